"""The directory that shows a program's state as files, and the edits that are read back from it.

The content of the files follows from the journal alone (`views`). So it can be told of each file
whether it is unchanged, outdated or edited. Files are updated right before a session and at the
end. A `let` that somebody edited is imported first; an edited const is refused. Each file is
replaced atomically.

A directory shows one run, whose id is in the file `run`.
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
    """One name to show; `updated` is None for a const."""

    name: str
    place: str
    value: Any
    updated: str | None

    @property
    def path(self) -> str:
        """Its file in the directory."""
        return state_path(self.name, self.place)

    @property
    def data(self) -> bytes:
        """The content of its file."""
        if self.updated is None:
            return render_const(self.name, self.value)
        return render_let(self.value, self.updated)


class ModifiedError(Exception):
    """Raised if the file of a const was modified, so that a person must choose the value."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(f'the constant "{name}" was modified in {path}')
        self.name = name


class ViewDirectory:
    """One directory of views."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    def claim(self, run: str, is_unfinished: Callable[[str], bool]) -> None:
        """Empties the directory and gives it to a run.

        Raises ExistsError if it shows another run that has not ended.
        """
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
        """Updates the files, and returns the values of lets that somebody edited, by name.

        A let of the program itself counts as edited if the first line of its file, with the time of
        the last update, is still the current one; otherwise the file is only outdated. Raises
        ModifiedError for an edited const, before anything is written.
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
        """Deletes a file; it is written again when the program goes on."""
        (self._root / path).unlink(missing_ok=True)

    def write(self, path: str, data: bytes) -> None:
        """Replaces a file atomically, without a sync: it can be made again from the journal."""
        target = self._root / path
        temporary = target.with_name(f".{target.name}.new")
        try:
            with _WRITING:  # parallel arms write the same checkpoint file
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
    """Removes a file or a directory of views, without following links."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        for one in path.iterdir():
            _remove(one)
        path.rmdir()
