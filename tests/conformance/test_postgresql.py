"""The PostgreSQL backend keeps the contract, on the newest server and on an older one.

Leases and due marks are judged by the server's clock. These tests put their own in its place: the
function `now_us` of a database for fake clocks answers with the time of the test's FakeClock.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypothesis import settings

from holdfast.backends.protocol import Backend, Commit, Position, Record
from holdfast.clock import Clock
from holdfast.testing import FakeClock
from holdfast.testing.contract import BackendContract
from holdfast.testing.durable import DurableContract
from holdfast.testing.machine import STEADY, machine_for
from tests.servers.databases import Database, database
from tests.servers.postgresql import NEWEST, OLDEST
from tests.servers.silence import SilentOwners

RAW = """SELECT revision, time, type, actor, convert_to(payload, 'UTF8'), link, key, checkpoint,
 subject, position, meta FROM holdfast.events
 WHERE application = %s AND stream = %s ORDER BY revision"""
_PLANT = f"INSERT INTO holdfast.events VALUES ({'%s,' * 14}%s)"


class _Contract(SilentOwners, BackendContract, DurableContract):
    has_own_clock = True
    version: int

    def make(self, place: Path, clock: Clock) -> Backend:
        return _make(self.version, place, clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        rows = self._database(place).rows(RAW, (_application(place), stream))
        return [Record(stream, *row) for row in rows]

    def plant(self, place: Path, commit: Commit, position: Position) -> None:
        """Writes rows by the description of the format, not by the code that implements it."""
        database = self._database(place)
        # The next transaction's own position, which is greater than any that was given.
        [(number,)] = database.rows("SELECT pg_current_xact_id()::text::bigint")
        ordinal = 0
        for append in commit.appends:
            if append.fork or not append.expected:
                start = _application(place), append.stream, append.expected + 1
                database.rows("INSERT INTO holdfast.streams VALUES (%s, %s, %s)", start)
            for record in append.records:
                row = _application(place), record.stream, record.revision, number * 4096 + 1
                row += (ordinal, record.time, record.type, record.actor, record.key)
                row += (record.checkpoint, record.subject, _crc(record), record.link)
                database.rows(_PLANT, (*row, record.payload.decode(), record.meta))
                ordinal += 1

    def damage(self, place: Path, payload: bytes) -> None:
        changed = payload[:-2] + bytes([payload[-2] ^ 1]) + payload[-1:]
        values = changed.decode(), _application(place), payload.decode()
        found = self._database(place).rows(
            "UPDATE holdfast.events SET payload = %s WHERE application = %s AND payload = %s "
            "RETURNING revision",
            values,
        )
        assert found == [(2,)]

    def make_newer(self, place: Path) -> None:
        self._database(place).rows(
            "UPDATE holdfast.stores SET format = 3 WHERE application = %s", (_application(place),)
        )

    def wait_out(self, seconds: float) -> None:
        database(self.version, "real").pass_time(seconds)

    def _database(self, place: Path) -> Database:
        # Some tests open the same place under both kinds of clock one after another.
        return database(self.version, _kind(place))


def _make(version: int, place: Path, clock: Clock) -> Backend:
    from holdfast.backends.postgresql import PostgresqlBackend

    if isinstance(clock, FakeClock):
        found = database(version, "fake")
        found.follow(clock)
    else:
        found = database(version, "real")
        (place / "real").touch()
    return PostgresqlBackend(found.url(application=_application(place)), clock=clock)


def _kind(place: Path) -> str:
    return "real" if (place / "real").exists() else "fake"


@cache
def _application(place: Path) -> str:
    return sha256(str(place).encode()).hexdigest()[:20]


def _crc(record: Record) -> int:
    fields = (record.stream, record.revision, record.time, record.type, record.actor)
    fields += (record.key, record.checkpoint, record.subject)
    fields += () if record.meta is None else (record.meta,)
    covered = "".join(f"{field} " for field in fields).encode() + record.link + record.payload
    return int.from_bytes(zlib.crc32(covered).to_bytes(4, "big"), "big", signed=True)


def _opener(version: int) -> Callable[[Path, Clock], Backend]:
    return lambda place, clock: _make(version, place, clock)


_FEWER = settings(STEADY, max_examples=15)


def _machine(version: int) -> Any:
    opener = _opener(version)
    return machine_for(opener, reopen=opener, steady=_FEWER).TestCase


# Where no driver is installed, as under the portable suites, there is nothing to test;
# tests/servers/test_servers.py fails where there should have been.
if NEWEST:

    class TestPostgresqlNewest(_Contract):
        version = NEWEST

    class TestPostgresqlOldest(_Contract):
        version = OLDEST

    class TestPostgresqlNewestLikeMemory(_machine(NEWEST)):  # type: ignore[misc]
        """Clauses 1 to 17, in lock step with the memory backend."""

    class TestPostgresqlOldestLikeMemory(_machine(OLDEST)):  # type: ignore[misc]
        """Clauses 1 to 17, in lock step with the memory backend."""
