"""The directory that shows a program's state as files, and what is read back from it.

What the files hold follows from the journal alone (`views`), so that it is known of each file
whether it is as it was written, older, or edited. They are brought up to date right before a
session is asked, and at the end: a `let` that somebody edited is imported first, a const that
somebody edited is refused. Each file is replaced as a whole.

A directory shows one run. Its id stands in `run`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec import Struct

from holdfast.errors import ExistsError, UnavailableError
from holdfast.prose.views import (
    CHECKPOINT,
    Damage,
    read_let,
    render_const,
    render_let,
    state_path,
)

OWNER = "run"
_SHOWN = ("state", "parallel")
_WRITING = Lock()


class Shown(Struct, frozen=True):
    """One name as it is to be shown; `updated` is None for a const."""

    name: str
    place: str
    value: Any
    updated: str | None

    @property
    def path(self) -> str:
        """Where it stands in the directory."""
        return state_path(self.name, self.place)

    @property
    def data(self) -> bytes:
        """What its file holds."""
        if self.updated is None:
            return render_const(self.name, self.value)
        return render_let(self.value, self.updated)


class ModifiedError(Exception):
    """The file of a const was modified: nobody knows which of the two values is meant."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(f'the constant "{name}" was modified in {path}')
        self.name = name


class ViewDirectory:
    """One directory of views."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    def claim(self, run: str, is_unfinished: Callable[[str], bool]) -> None:
        """Makes the directory that of a run, and empties it; ExistsError if another needs it."""
        owner = _read(self._root / OWNER)
        if owner is not None:
            before = owner.decode("utf-8", "replace").strip()
            if before != run and is_unfinished(before):
                raise ExistsError(
                    f'"{self._root}" shows run "{before}", which has not ended',
                    hint="resume that one, or show this one in another directory",
                )
        for part in _SHOWN:
            _remove(self._root / part)
        _remove(self._root / CHECKPOINT)
        self.write(OWNER, f"{run}\n".encode())

    def sync(self, shown: list[Shown], others: dict[str, bytes]) -> dict[str, Any]:
        """Brings the files up to date; returns the lets that somebody edited, by name.

        Raises ModifiedError for a const, before anything is written.
        """
        edited: dict[str, Any] = {}
        stale: list[Shown] = []
        for one in shown:
            data, found = one.data, _read(self._root / one.path)
            if found == data:
                continue
            if found is not None and one.updated is None:
                raise ModifiedError(one.name, self._root / one.path)
            if found is not None and _first_line(found) == _first_line(data):
                value = read_let(found)
                if not isinstance(value, Damage) and not one.place:
                    edited[one.name] = value
                    continue
            stale.append(one)
        for one in stale:
            self.write(one.path, one.data)
        for path, data in others.items():
            if _read(self._root / path) != data:
                self.write(path, data)
        return edited

    def remove(self, path: str) -> None:
        """Takes a file away; it is written again when the program goes on."""
        (self._root / path).unlink(missing_ok=True)

    def write(self, path: str, data: bytes) -> None:
        """Replaces a file as a whole."""
        target = self._root / path
        temporary = target.with_name(f".{target.name}.new")
        try:
            with _WRITING:  # arms write the same checkpoint
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(data)
                temporary.replace(target)
        except OSError as error:
            raise UnavailableError(
                f'the view "{target}" cannot be written: {error}', hint="free space, or look at it"
            ) from error


def _first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[0]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f'the view "{path}" cannot be read: {error}') from error


def _remove(path: Path) -> None:
    """Removes a file or a directory of views, and follows no link."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        for one in path.iterdir():
            _remove(one)
        path.rmdir()
