"""The SQLite backend keeps the contract."""

from __future__ import annotations

import zlib
from pathlib import Path

import apsw

from holdfast.backends.protocol import Backend, Commit, Position, Record
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import Clock
from holdfast.testing.contract import BackendContract
from holdfast.testing.durable import DurableContract, MultiProcessContract
from holdfast.testing.machine import machine_for

_RAW = """SELECT revision, time, type, actor, payload, link, key, checkpoint, subject,
 ifnull(position, ordinal), meta FROM events
 WHERE stream = (SELECT id FROM streams WHERE name = ?) ORDER BY revision"""


def _make(place: Path, clock: Clock) -> SqliteBackend:
    return SqliteBackend(place / "state.db", clock=clock)


class TestSqlite(BackendContract, DurableContract, MultiProcessContract):
    def make(self, place: Path, clock: Clock) -> Backend:
        return _make(place, clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        connection = apsw.Connection(str(place / "state.db"))
        rows = connection.execute(_RAW, (stream,)).fetchall()
        connection.close()
        return [Record(stream, *row) for row in rows]

    def plant(self, place: Path, commit: Commit, position: Position) -> None:
        connection = apsw.Connection(str(place / "state.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        records = [record for append in commit.appends for record in append.records]
        with connection:
            for ordinal, record in enumerate(records, position):
                _plant(connection, record, ordinal, position + len(records) - 1)
        connection.close()

    def make_newer(self, place: Path) -> None:
        connection = apsw.Connection(str(place / "state.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.pragma("user_version", 3)
        connection.close()


def _plant(connection: apsw.Connection, record: Record, ordinal: int, position: int) -> None:
    """Writes a row by the description of the format, not by the code that implements it."""
    number = "SELECT id FROM streams WHERE name = ?"
    if connection.execute(number, (record.stream,)).get is None:
        start = record.stream, record.revision
        connection.execute("INSERT INTO streams (name, first) VALUES (?,?)", start)
    stream = connection.execute(number, (record.stream,)).get
    fields = (ordinal, position, record.stream, record.revision, record.time, record.type)
    fields += (record.actor, record.key, record.checkpoint, record.subject)
    fields += () if record.meta is None else (record.meta,)
    covered = "".join(f"{field} " for field in fields).encode() + record.link + record.payload
    crc = int.from_bytes(zlib.crc32(covered).to_bytes(4, "big"), "big", signed=True)
    row = (ordinal, position if position != ordinal else None, stream, *fields[3:10], crc)
    connection.execute(
        f"INSERT INTO events VALUES ({'?,' * 13}?)",
        (*row, record.link, record.payload, record.meta),
    )
    if record.key is not None:
        connection.execute(
            """CREATE TABLE IF NOT EXISTS keys (stream INTEGER NOT NULL, key TEXT NOT NULL,
            revision INTEGER NOT NULL, PRIMARY KEY (stream, key)) STRICT, WITHOUT ROWID"""
        )
        connection.execute("INSERT INTO keys VALUES (?,?,?)", (stream, record.key, record.revision))


class TestSqliteLikeMemory(machine_for(_make, reopen=_make).TestCase):  # type: ignore[misc]
    """Clauses 1 to 17, in lock step with the memory backend."""
