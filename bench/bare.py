"""Bare loops: what the disk and SQLite can do, with the same durability and nothing else.

They validate nothing, link nothing and can recover nothing; they are the floor, not a rival.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

import apsw

from bench.harness import Block, Loop
from bench.messages import messages

PREWRITTEN_BYTES = 1 << 20
WRITERS = 64

_CREATE = "CREATE TABLE log (position INTEGER PRIMARY KEY, stream TEXT, payload BLOB)"
_INSERT = "INSERT INTO log (stream, payload) VALUES (?, ?)"


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
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", synchronous)
        self._connection.execute(_CREATE)

    def write(self, rows: Sequence[bytes]) -> None:
        """Makes the rows durable in one transaction."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for row in rows:
            execute(_INSERT, ("conversation/c1", row))
        execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


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


class GroupCommit:
    """64 coroutines and one committer thread that writes whatever waits, with one sync."""

    def __init__(self, name: str, write: Callable[[list[bytes]], None], close: Callable[[], None]):
        self.name = name
        self._write = write
        self._close = close
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = threading.Condition()
        self._ended = False
        self._runner = asyncio.Runner()
        self._line = lines()
        self._thread = threading.Thread(target=self._commit, name="bare-committer")
        self._thread.start()

    def _commit(self) -> None:
        loop = self._runner.get_loop()
        while True:
            with self._wake:
                while not self._waiting and not self._ended:
                    self._wake.wait()
                taken, self._waiting = self._waiting, []
            if not taken:
                return
            self._write([line for line, _ in taken])
            loop.call_soon_threadsafe(_settle, [future for _, future in taken])

    async def _append(self) -> None:
        future = asyncio.get_running_loop().create_future()
        with self._wake:
            self._waiting.append((self._line(), future))
            self._wake.notify()
        await future

    def block(self, operations: int) -> Block:
        return self._runner.run(write_together(lambda _writer: self._append(), operations))

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


async def write_together(append: Callable[[int], object], operations: int) -> Block:
    """Lets 64 writers append so many times each, all at once."""
    latencies: list[float] = []

    async def writer(number: int) -> None:
        for _ in range(operations):
            begin = time.perf_counter()
            await append(number)  # type: ignore[misc]
            latencies.append(time.perf_counter() - begin)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(writer(number))
    return Block(time.perf_counter() - start, latencies)


def file_group(path: Path) -> GroupCommit:
    """Group commit into a prewritten file."""
    file = PrewrittenFile(path)
    return GroupCommit("bare group, file", lambda rows: file.write(b"".join(rows)), file.close)


def sqlite_group(path: Path) -> GroupCommit:
    """Group commit into SQLite, through one connection of the committer's."""
    database = Database(path)
    return GroupCommit("bare group, apsw", database.write, database.close)
