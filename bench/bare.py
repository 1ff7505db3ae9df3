"""Bare loops: what the disk and SQLite can do, with the same durability and nothing else.

They validate nothing, link nothing and can recover nothing; they are the floor, not a rival.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import apsw

from bench.harness import Block, Loop
from bench.messages import KEYS, messages

PREWRITTEN_BYTES = 1 << 20
WRITERS = 64

_CREATE = "CREATE TABLE IF NOT EXISTS log (position INTEGER PRIMARY KEY, stream TEXT, payload BLOB)"
_INSERT = "INSERT INTO log (stream, payload) VALUES (?, ?)"
_ALL = "SELECT payload FROM log ORDER BY position"
_LAST = "SELECT payload FROM log ORDER BY position DESC LIMIT 20"


def lines() -> Callable[[], bytes]:
    """Returns a function that gives one encoded message after another."""
    ready = [json.dumps(message).encode() + b"\n" for message in islice(messages(), 100)]
    return cycle(ready).__next__


class PrewrittenFile:
    """A file whose size never changes, so that a sync has no metadata to write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._file, bytes(PREWRITTEN_BYTES), 0)
        os.fsync(self._file)
        self._at = 0

    def write(self, data: bytes) -> None:
        """Makes the bytes durable behind the last ones, or at the start again."""
        if self._at + len(data) > PREWRITTEN_BYTES:
            self._at = 0
        os.pwrite(self._file, data, self._at)
        os.fdatasync(self._file)
        self._at += len(data)

    def close(self) -> None:
        os.close(self._file)


class Database:
    """One table, WAL, synchronous FULL unless told otherwise."""

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self.connection = apsw.Connection(str(path))
        self.connection.set_busy_timeout(60_000)
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", synchronous)
        self.connection.execute(_CREATE)

    def write(self, rows: Sequence[bytes]) -> None:
        """Makes the rows durable in one transaction."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        for row in rows:
            execute(_INSERT, ("conversation/c1", row))
        execute("COMMIT")

    def close(self) -> None:
        self.connection.close()


def prewritten_loop(path: Path) -> Loop:
    """One pwrite and one fdatasync an operation, in a prewritten file."""
    file, line = PrewrittenFile(path), lines()
    return Loop("bare prewritten file", lambda: file.write(line()), file.close)


def append_loop(path: Path) -> Loop:
    """One write and one fdatasync an operation, at the end of a growing file."""
    file, line = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), lines()

    def append() -> None:
        os.write(file, line())
        os.fdatasync(file)

    return Loop("bare append", append, lambda: os.close(file))


def sqlite_loop(path: Path, *, synchronous: str = "FULL") -> Loop:
    """One insert and one commit an operation."""
    database, line = Database(path, synchronous=synchronous), lines()
    return Loop("bare apsw", lambda: database.write((line(),)), database.close)


def locked_file(path: Path, stack: ExitStack) -> Callable[[], None]:
    """One process of several: lock, write, sync, unlock, in a prewritten file of all."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    stack.callback(os.close, file)
    if os.fstat(file).st_size < PREWRITTEN_BYTES:
        os.pwrite(file, bytes(PREWRITTEN_BYTES), 0)
        os.fsync(file)
    line, places = lines(), cycle(range(0, PREWRITTEN_BYTES - 4096, 1024))

    def write() -> None:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.pwrite(file, line(), next(places))
        os.fdatasync(file)
        fcntl.flock(file, fcntl.LOCK_UN)

    return write


def shared_database(path: Path, stack: ExitStack) -> Callable[[], None]:
    """One process of several: one insert a commit, waiting while others write."""
    database, line = Database(path), lines()
    stack.callback(database.close)
    return lambda: database.write((line(),))


class GroupCommit:
    """64 coroutines and one committer thread that writes whatever waits, with one sync."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[bytes]], None],
        close: Callable[[], None],
        writers: int = WRITERS,
    ) -> None:
        self.name = name
        self._writers = writers
        self._write = write
        self._close = close
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = threading.Condition()
        self._ended = False
        self._runner = asyncio.Runner()
        # Asked for here: two threads that ask a Runner for the first time get a loop each.
        self._loop = self._runner.get_loop()
        self._line = lines()
        self._thread = threading.Thread(target=self._commit, name="bare-committer")
        self._thread.start()

    def _commit(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._ended:
                    self._wake.wait()
                taken, self._waiting = self._waiting, []
            if not taken:
                return
            self._write([line for line, _ in taken])
            self._loop.call_soon_threadsafe(_settle, [future for _, future in taken])

    async def _append(self) -> None:
        future = asyncio.get_running_loop().create_future()
        with self._wake:
            self._waiting.append((self._line(), future))
            self._wake.notify()
        await future

    def block(self, operations: int) -> Block:
        together = write_together(lambda _: self._append(), operations, writers=self._writers)
        return self._runner.run(together)

    def close(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join()
        self._runner.close()
        self._close()


def _settle(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


async def write_together(
    append: Callable[[int], object], operations: int, *, writers: int = WRITERS
) -> Block:
    """Lets the writers append so many times each, all at once."""
    latencies: list[float] = []

    async def writer(number: int) -> None:
        for _ in range(operations):
            begin = time.perf_counter()
            await append(number)  # type: ignore[misc]
            latencies.append(time.perf_counter() - begin)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(writers):
            group.create_task(writer(number))
    return Block(time.perf_counter() - start, latencies)


def file_group(path: Path, *, writers: int = WRITERS) -> GroupCommit:
    """Group commit into a prewritten file."""
    file = PrewrittenFile(path)

    def write(rows: list[bytes]) -> None:
        file.write(b"".join(rows))

    return GroupCommit("bare group, file", write, file.close, writers)


def sqlite_group(path: Path, *, writers: int = WRITERS) -> GroupCommit:
    """Group commit into SQLite, through one connection of the committer's."""
    database = Database(path)
    return GroupCommit("bare group, apsw", database.write, database.close, writers)


class Worker:
    """The floor under a peer: its records in one table or one file, and nothing besides."""

    runner = None

    def __init__(self, path: str, *, kind: str = "apsw", items: int = 1) -> None:
        self.release = f"apsw {apsw.apsw_version()}, SQLite {apsw.sqlite_lib_version()}"
        self._path, self._line, self._items = Path(path), lines(), items
        if kind == "file":
            file = PrewrittenFile(self._path)
            self.operations: dict[str, Callable[[], Any]] = {
                "append": lambda: file.write(b"".join(self._line() for _ in range(items)))
            }
            self.close: Callable[[], None] = file.close
            return
        self._database = Database(self._path)
        self._connection = self._database.connection
        self._connection.execute("CREATE TABLE pairs (key TEXT PRIMARY KEY, value BLOB)")
        self._sets, self._gets = count(), count()
        self.close = self._database.close
        self.operations = {
            "append": self._append,
            "turn": self._append,
            "last 20": lambda: self._decoded(self._connection, _LAST),
            "all": lambda: self._decoded(self._connection, _ALL),
            "newest": lambda: self._decoded(self._connection, _ALL),
            "all, opened afresh": self._afresh,
            "newest, opened afresh": self._afresh,
            "set": self._set,
            "get": self._get,
        }

    def _append(self) -> None:
        self._database.write([self._line() for _ in range(self._items)])

    def _decoded(self, connection: apsw.Connection, query: str) -> list[Any]:
        return [json.loads(payload) for (payload,) in connection.execute(query)]

    def _afresh(self) -> None:
        connection = apsw.Connection(str(self._path))
        assert self._decoded(connection, _ALL)
        connection.close()

    def _set(self) -> None:
        key = f"key {next(self._sets) % KEYS}"
        self._connection.execute("INSERT OR REPLACE INTO pairs VALUES (?, ?)", (key, self._line()))

    def _get(self) -> None:
        key = f"key {next(self._gets) * 7 % KEYS}"
        found = self._connection.execute("SELECT value FROM pairs WHERE key = ?", (key,))
        assert json.loads(found.fetchone()[0])["role"] == "user"
