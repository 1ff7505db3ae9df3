"""The Redis backend keeps the contract, on every server that is installed.

Leases and due marks are judged by the server's clock. These tests put their own in its place: see
`tests.servers.redis_clock`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from hypothesis import settings

from holdfast.backends.protocol import Backend, Commit, Position, Record
from holdfast.clock import Clock
from holdfast.testing import FakeClock
from holdfast.testing.contract import BackendContract
from holdfast.testing.durable import DurableContract
from holdfast.testing.machine import STEADY, machine_for
from tests.servers.redis import OLDEST, installations
from tests.servers.redis_clock import CLOCK, FAKE, REAL, shared_ground
from tests.servers.silence import SilentOwners


class _Contract(SilentOwners, BackendContract, DurableContract):
    has_own_clock = True
    server: str

    def make(self, place: Path, clock: Clock) -> Backend:
        return _make(self.server, place, clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        entries = self._client(place).xrange(f"{_root(place)}:events:{stream}")
        return [record_of(stream, id, fields) for id, fields in entries]

    def plant(self, place: Path, commit: Commit, position: Position) -> None:
        """Writes keys by the description of the format, not by the code that implements it."""
        client, root = self._client(place), _root(place)
        logged: dict[str, str] = {}
        for append in commit.appends:
            first = append.expected + 1
            stream = append.stream
            keys = names = 0
            if append.fork or not append.expected:
                client.zadd(f"{root}:streams", {stream: 0})
                client.hincrby(root, "streams", 1)
            else:
                head = client.hget(f"{root}:heads", stream).split()
                first, keys, names = int(head[4]), int(head[6]), int(head[7])
            for record in append.records:
                client.xadd(
                    f"{root}:events:{stream}", _fields(record, position), f"{record.revision}-0"
                )
                at = f"{record.revision} {record.time}"
                if record.key is not None:
                    client.hset(f"{root}:keys:{stream}", record.key, at)
                    keys += 1
                if record.checkpoint is not None:
                    name = record.checkpoint
                    member = f"{name}\0{record.revision:016} {record.time}"
                    client.zadd(f"{root}:checkpoints:{stream}", {f"{at} {name}": record.revision})
                    client.zadd(f"{root}:named:{stream}", {member: 0})
                    names += 1
            last = append.records[-1]
            about = f"{last.revision} {last.link.hex()} {last.time} {position} {first}"
            client.hset(f"{root}:heads", stream, f"{about} 0 {keys} {names}")
            logged[stream] = f"{append.expected + 1} {len(append.records)}"
        client.xadd(f"{root}:log", logged, f"{position}-0")
        client.hset(root, "position", position)
        client.hincrby(root, "entries", 1)

    def damage(self, place: Path, payload: bytes) -> None:
        """A stream's entry cannot be changed in place: the stream is written anew around it."""
        changed = payload[:-2] + bytes([payload[-2] ^ 1]) + payload[-1:]
        client, key = self._client(place), f"{_root(place)}:events:a"
        entries = client.xrange(key)
        client.delete(key)
        found = 0
        for id, fields in entries:
            found += fields[b"payload"] == payload
            if fields[b"payload"] == payload:
                fields[b"payload"] = changed
            client.xadd(key, fields, id)
        assert found == 1

    def make_newer(self, place: Path) -> None:
        self._client(place).hset(_root(place), "format", 3)

    def wait_out(self, seconds: float) -> None:
        shared_ground(self.server).pass_time(seconds)

    def _client(self, place: Path):
        return shared_ground(self.server).clients[_database(place)]


def _make(server: str, place: Path, clock: Clock) -> Backend:
    from holdfast.backends.redis import RedisBackend

    ground = shared_ground(server)
    if isinstance(clock, FakeClock):
        ground.follow(clock)
    else:
        (place / "real").touch()
    backend = RedisBackend(ground.url(_database(place), _application(place)), clock=clock)
    backend._checkout.clock = CLOCK
    return backend


def _database(place: Path) -> int:
    return REAL if (place / "real").exists() else FAKE


@cache
def _application(place: Path) -> str:
    return sha256(str(place).encode()).hexdigest()[:20]


def _root(place: Path) -> str:
    return f"holdfast:{{{_application(place)}}}"


def _fields(record: Record, position: int) -> dict[str, str | bytes | int]:
    optional = {"key": record.key, "checkpoint": record.checkpoint, "subject": record.subject}
    optional["meta"] = record.meta
    covered = (record.stream, record.revision, record.time, record.type, record.actor)
    covered += (record.key, record.checkpoint, record.subject)
    covered += () if record.meta is None else (record.meta,)
    text = "".join(f"{field} " for field in covered).encode()
    return {
        "position": position,
        "time": record.time,
        "type": record.type,
        "actor": record.actor,
        "link": record.link.hex(),
        "crc": f"{zlib.crc32(text + record.link + record.payload):08x}",
        **{name: value for name, value in optional.items() if value is not None},
        "payload": record.payload,
    }


def record_of(stream: str, id: bytes, fields: dict[bytes, bytes]) -> Record:
    def text(name: bytes) -> str | None:
        return fields[name].decode() if name in fields else None

    return Record(
        stream,
        int(id.removesuffix(b"-0")),
        int(fields[b"time"]),
        fields[b"type"].decode(),
        fields[b"actor"].decode(),
        fields[b"payload"],
        bytes.fromhex(fields[b"link"].decode()),
        text(b"key"),
        text(b"checkpoint"),
        text(b"subject"),
        Position(int(fields[b"position"])),
        text(b"meta"),
    )


def _opener(server: str) -> Callable[[Path, Clock], Backend]:
    return lambda place, clock: _make(server, place, clock)


_FEWER = settings(STEADY, max_examples=15)

# Where no driver is installed, as under the portable suites, there is nothing to test;
# tests/servers/test_redis_servers.py fails where there should have been.
if OLDEST:

    class TestRedis(_Contract):
        server = OLDEST

    _oldest = machine_for(_opener(OLDEST), reopen=_opener(OLDEST), steady=_FEWER)

    class TestRedisLikeMemory(_oldest.TestCase):  # type: ignore[misc]
        """Clauses 1 to 17, in lock step with the memory backend."""


if len(installations()) > 1:
    _NEWEST = list(installations())[-1]

    class TestRedisNewest(_Contract):
        server = _NEWEST

    _newest = machine_for(_opener(_NEWEST), reopen=_opener(_NEWEST), steady=_FEWER)

    class TestRedisNewestLikeMemory(_newest.TestCase):  # type: ignore[misc]
        """Clauses 1 to 17, in lock step with the memory backend."""
