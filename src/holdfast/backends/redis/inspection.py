"""What `status` and `check` ask: plain facts, and everything that can be wrong below the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.backends.protocol import Durability, Finding, Head, Objects, Record
from holdfast.backends.redis.connection import RedisCheckout, RedisConnection, problem_of
from holdfast.backends.redis.encoding import decode, decode_head, is_sealed
from holdfast.backends.redis.server import FORMAT, RedisServer
from holdfast.errors import CorruptError

_PAGE = 200


class RedisInspection:
    """Verification reads in pages, so commits go on meanwhile; what they add is not looked at."""

    def __init__(self, checkout: RedisCheckout, objects: Objects, durability: Durability) -> None:
        self._checkout = checkout
        self._named = objects
        self._keys = checkout.keys
        self._where = checkout.server_url.shown
        self._durability: Durability = durability

    def describe(self) -> dict[str, Any]:
        def look(connection: RedisConnection) -> tuple[RedisServer, int]:
            [position] = self._checkout.ask_on(connection, ("HGET", self._keys.root, "position"))
            server = self._checkout.pool.read_settings(connection)
            return server, self._checkout.number(position)

        server, position = self._checkout.pool.call(look)
        waits = server.waits(self._durability)
        return {
            "kind": "redis",
            "place": self._where,
            "application": self._checkout.server_url.application,
            "format": FORMAT,
            "store": self._checkout.store,
            "durability": self._durability,
            "server_durability": server.durability,
            # Of the whole server: Redis does not count by application.
            "size_bytes": server.dataset_bytes,
            "position": position,
            "server": f"{server.name} {server.version}",
            "cluster": server.is_cluster,
            "replicas": server.replicas,
            "appendonly": server.appendonly,
            "appendfsync": server.appendfsync,
            "maxmemory_policy": server.shown_policy,
            "evicted_keys": server.evicted_keys,
            "waits_for_sync": waits,
            "reports": server.reports(),
        }

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields what is wrong; with `read_all`, the checksum of every entry is computed."""
        position = self._checkout.position()
        keys = self._keys
        found = list(self._counts((), is_store_included=True))
        yield from found
        damaged = {finding.where for finding in found}
        if damaged & {keys.streams, keys.log}:
            return  # what follows would read them
        for page in self._pages():
            found = list(self._counts(page, is_store_included=False))
            yield from found
            damaged |= {finding.where for finding in found}
        if read_all:
            for page in self._pages():
                for stream in page:
                    if keys.events(stream) not in damaged:
                        yield from self._caught(stream, self._stream(stream))
            yield from self._log(position, damaged)
            for kind in ("blob", "snapshot"):
                if not damaged & {keys.objects(kind), keys.expiring(kind)}:
                    yield from self._objects(kind)

    def _counts(self, streams: Sequence[str], *, is_store_included: bool) -> Iterator[Finding]:
        """Every key of the store, or of some streams, holds as much as it is said to."""
        problems, _ = self._problems(streams, is_store_included=is_store_included)
        return (Finding(where, problem_of(problem)) for where, problem in problems)

    def _problems(
        self, streams: Sequence[str], *, is_store_included: bool
    ) -> tuple[list[tuple[str, str]], list[bool]]:
        return self._checkout.pool.call(
            lambda connection: self._checkout.problems_on(
                connection, streams, is_store_included=is_store_included
            )
        )

    def _caught(self, where: str, findings: Iterator[Finding]) -> Iterator[Finding]:
        """Yields findings, the last of them what cannot be read at all."""
        try:
            yield from findings
        except CorruptError as exc:
            yield Finding(where, exc.message)

    def _pages(self) -> Iterator[list[str]]:
        after = "-"
        while True:
            page = ("ZRANGEBYLEX", self._keys.streams, after, "+", "LIMIT", 0, _PAGE)
            [names] = self._checkout.ask(page)
            yield [name.decode() for name in names]
            if len(names) < _PAGE:
                return
            after = f"({names[-1].decode()}"

    def _stream(self, stream: str) -> Iterator[Finding]:
        [text] = self._checkout.ask(("HGET", self._keys.heads, stream))
        try:
            head = decode_head(stream, text, self._where)
        except CorruptError as exc:
            yield Finding(stream, exc.message)
            return
        if head is None:
            yield Finding(stream, "the stream has no head")
            return
        expected = head.first
        last: Record | None = None
        while expected <= head.revision:
            ask = ("XRANGE", self._keys.events(stream), f"{expected}-0", f"{head.revision}-0")
            [entries] = self._checkout.ask((*ask, "COUNT", _PAGE))
            if not entries:
                break
            for entry in entries:
                revision = int(entry[0].partition(b"-")[0])
                where = f"{stream}@{revision}"
                if revision != expected:
                    yield Finding(where, f"expected revision {expected} in its place")
                expected = revision + 1
                try:
                    last = decode(stream, entry, self._where)
                except CorruptError as exc:
                    last = None
                    yield Finding(where, exc.message)
                    continue
                yield from self._indexed(last, where)
        if expected <= head.revision and not self._is_let_go(stream):
            yield Finding(f"{stream}@{expected}", "the event is missing")
        elif last is not None:
            yield from _tail(stream, head, last)

    def _is_let_go(self, stream: str) -> bool:
        """A stream that has come to its end has no events any more: its head is all that stays."""
        return self._problems((stream,), is_store_included=False)[1][0]

    def _indexed(self, record: Record, where: str) -> Iterator[Finding]:
        """A key and a checkpoint name are found by their indexes."""
        at = f"{record.revision} {record.time}"
        if record.key is not None:
            [found] = self._checkout.ask(("HGET", self._keys.keys(record.stream), record.key))
            if found != at.encode():
                yield Finding(where, "its key is not in the index")
        if record.checkpoint is not None:
            stream, name = record.stream, record.checkpoint
            found = self._checkout.ask(
                ("ZSCORE", self._keys.checkpoints(stream), f"{at} {name}"),
                (
                    "ZSCORE",
                    self._keys.named(stream),
                    f"{name}\0{record.revision:016} {record.time}",
                ),
            )
            if None in found:
                yield Finding(where, "its checkpoint name is not in the index")

    def _log(self, position: int, damaged: set[str]) -> Iterator[Finding]:
        """Every entry of the log names events that are there, at its position."""
        after = "-"
        while True:
            ask = ("XRANGE", self._keys.log, after, str(position), "COUNT", _PAGE)
            [entries] = self._checkout.ask(ask)
            for id, fields in entries:
                at = id.partition(b"-")[0]
                for name, range_ in zip(fields[::2], fields[1::2], strict=True):
                    stream = name.decode()
                    if self._keys.events(stream) not in damaged:
                        yield from self._caught(stream, self._logged(at, stream, range_))
            if len(entries) < _PAGE:
                return
            after = f"({entries[-1][0].decode()}"

    def _logged(self, at: bytes, stream: str, range_: bytes) -> Iterator[Finding]:
        first, count = map(int, range_.split())
        ask = ("XRANGE", self._keys.events(stream), f"{first}-0", f"{first + count - 1}-0")
        [entries] = self._checkout.ask(ask)
        places = [dict(zip(f[::2], f[1::2], strict=True)).get(b"position") for _, f in entries]
        if places != [at] * count and not self._is_let_go(stream):
            yield Finding(f"position {at.decode()}", f'its events of "{stream}" are not whole')

    def _objects(self, kind: str) -> Iterator[Finding]:
        harmless = kind == "snapshot"
        [names] = self._checkout.ask(("ZRANGE", self._keys.objects(kind), 0, -1))
        for name in (found.decode() for found in names):
            try:
                [stored] = self._checkout.ask(("GET", self._keys.object(kind, name)))
            except CorruptError as exc:
                yield Finding(f"{kind} {name}", exc.message, harmless)
                continue
            if stored is None and name in self._named.names(kind, prefix=name):
                yield Finding(f"{kind} {name}", "is missing", harmless)
            elif stored is not None and not is_sealed(kind, name, stored):
                yield Finding(f"{kind} {name}", "fails its checksum", harmless)


def _tail(stream: str, head: Head, last: Record) -> Iterator[Finding]:
    said = last.revision, last.link, last.time, last.position
    if said != (head.revision, head.link, head.time, head.position):
        yield Finding(stream, "its head is not its newest event")
