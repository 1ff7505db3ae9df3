"""Deliberately broken stores, to prove that kills find what they are for.

A fault is planted in a child process and changes holdfast there for good; the child ends soon. Each
is a mistake that such stores have been made with.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

import holdfast
from holdfast.backends import liveness
from holdfast.backends.files import directory, journal, objects, recovery
from holdfast.backends.files.backend import FilesBackend
from holdfast.backends.files.catalog import Tail
from holdfast.backends.files.disk import Disk, write_all
from holdfast.backends.protocol import START, Commit, Receipt, Refusal
from holdfast.backends.sqlite import backend as sqlite_backend
from holdfast.backends.sqlite import connection as driver
from holdfast.backends.sqlite import opening as sqlite_opening
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.errors import UnavailableError
from tests.crash import workload

_ID = re.compile(r"op:[\d.]+")


def plant(name: str, backend: str) -> None:
    """Plants a fault in this process; "" plants none, and the disk's own are planted there."""
    if name and name != "forgetful":
        PLANTS[name](backend)


def _early(backend: str) -> None:
    """Acknowledged before it is written."""
    workload.is_early = True


def _halves(backend: str) -> None:
    """A commit over several streams is written stream by stream; what is there is served."""
    kind: Any = FilesBackend if backend == "files" else SqliteBackend
    whole = kind.commit

    def commit(self: Any, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        answers: list[Receipt | Refusal] = []
        for one in commits:
            parts = [one]
            if len(one.appends) > 1:
                parts = [replace(one, appends=(append,), marks=()) for append in one.appends]
                parts[-1] = replace(parts[-1], marks=one.marks)
            for part in parts:
                [answer] = whole(self, [part])
                if isinstance(answer, Refusal):
                    break
            answers.append(answer)
        return answers

    kind.commit = commit


def _no_takeover(backend: str) -> None:
    """The store is locked by a file that its owner takes away, and that outlives a dead owner."""

    def opened(store: Any, owner: Path) -> None:
        close = store.close
        owner.write_text(str(os.getpid()))

        def leave() -> None:
            close()
            owner.unlink(missing_ok=True)

        store.close = leave

    def check(place: Path, owner: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            pid = int(owner.read_text() or "0")
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                raise UnavailableError(f"the store is locked by process {pid}") from None

    _around_open(check, opened)


def _no_lock(backend: str) -> None:
    """Nobody waits for anybody."""
    Disk.lock = staticmethod(lambda fd, operation: None)  # type: ignore[assignment]


def _cuts_whole(backend: str) -> None:
    """Recovery takes the last line for torn, whole as it is."""
    complete = recovery.complete_text

    def cut(place: Any, segments: Any, *, published_end: int, was_in_use: bool) -> Any:
        segments.refresh()
        if was_in_use and segments.starts:
            text = segments.read(segments.newest, segments.end())
            segments.cut(segments.newest + text.rfind(b"\n", 0, -1) + 1)
            place.remove(journal.NAME)
        return complete(place, segments, published_end=0, was_in_use=was_in_use)

    recovery.complete_text = cut


def _replays_twice(backend: str) -> None:
    """After a crash the newest operation is done again, without looking whether it was."""

    def opened(store: Any, was_left: bool) -> None:
        events = list(store.follow(as_events=True, after=START, timeout_s=0)) if was_left else []
        for event in events[-1:]:
            for id in _ID.findall(str(event.data))[:1]:
                store.scope(event.stream).append("log", id)

    _around_open(lambda place, owner: None, lambda store, owner: None, recovered=opened)


def _key_lost(backend: str) -> None:
    """Recovery brings back events, but not the keys that they were written under."""
    if backend == "files":
        apply = Tail.apply

        def forget(self: Tail, line: Any, length: int, commit: Commit | None = None) -> None:
            apply(self, line, length, commit)
            if commit is None:
                for section in line.sections:
                    self.keys.pop((section.stream, section.key), None)

        Tail.apply = forget
        return

    def check(place: Path, owner: Path) -> None:
        if place.with_name(f"{place.name}-wal").exists():
            with contextlib.suppress(apsw.SQLError):
                apsw.Connection(str(place)).execute("DELETE FROM keys")

    _around_open(check, lambda store, owner: None)


def _in_place(backend: str) -> None:
    """Files are made under their own names, and are there before they are whole."""

    def write(disk: Disk, name: str, data: bytes, *, at: int, temp: str, durable: bool) -> None:
        fd = disk.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, at=at)
        write_all(disk, fd, data, 0)
        disk.sync(fd)
        disk.close(fd)

    for module in (directory, objects, recovery, journal):
        module.replace_file = write

    def create(path: str, clock: Any) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        sqlite_opening._fill(path, clock)  # pyright: ignore[reportPrivateUsage]

    sqlite_opening._create = create  # pyright: ignore[reportPrivateUsage]


def _lease_kept(backend: str) -> None:
    """A dead worker is taken for alive, and keeps its lease."""
    liveness.Workers.is_alive = lambda self, owner: True


def _wal_removed(backend: str) -> None:
    """A WAL that is found at the opening is taken for rubbish."""

    def check(place: Path, owner: Path) -> None:
        for suffix in ("-wal", "-shm"):
            place.with_name(place.name + suffix).unlink(missing_ok=True)

    _around_open(check, lambda store, owner: None)


def _no_journal(backend: str) -> None:
    """Pages are overwritten in place, with nothing to fall back upon."""
    connect = driver.connect

    def unsafe(name: str, flags: int) -> Any:
        connection = connect(name, flags)
        connection.pragma("journal_mode", "off")
        return connection

    driver.connect = unsafe
    sqlite_opening.use_wal = sqlite_backend.use_wal = lambda connection, path: None


def _around_open(
    check: Callable[[Path, Path], None],
    opened: Callable[[Any, Path], None],
    recovered: Callable[[Any, bool], None] = lambda store, was_left: None,
) -> None:
    """Does something before a store is opened and after it."""
    real = holdfast.open

    def open_store(url: str, **options: Any) -> Any:
        place = Path(url.removeprefix("sqlite:"))
        owner = place.with_name(f"{place.name}.owner")
        left = place / "ring", place.with_name(f"{place.name}-wal")
        was_left = any(path.exists() for path in left)
        check(place, owner)
        store = real(url, **options)
        opened(store, owner)
        recovered(store, was_left)
        return store

    holdfast.open = open_store  # type: ignore[assignment]


PLANTS: dict[str, Callable[[str], None]] = {
    "early": _early,
    "halves": _halves,
    "no-takeover": _no_takeover,
    "no-lock": _no_lock,
    "cuts-whole": _cuts_whole,
    "replays-twice": _replays_twice,
    "key-lost": _key_lost,
    "in-place": _in_place,
    "lease-kept": _lease_kept,
    "wal-removed": _wal_removed,
    "no-journal": _no_journal,
}
