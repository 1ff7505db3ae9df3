"""What `status` and `check` ask: plain facts, and all damage that can be found below the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.backends.protocol import Durability, Finding, Head, Objects, Record
from holdfast.backends.redis.connection import RedisCheckout, RedisConnection, problem_of
from holdfast.backends.redis.encoding import decode, decode_head, is_sealed
from holdfast.backends.redis.server import RedisServer
from holdfast.errors import CorruptError

_log = logging.getLogger("holdfast.backends")

_PAGE = 200
_BEGIN = 50
"""How many events of each stream of a page are read together with those of the others."""


class RedisInspection:
    """Facts and verification. It reads in pages, so commits go on; what they add is not checked."""

    def __init__(self, checkout: RedisCheckout, objects: Objects, durability: Durability) -> None:
        self._checkout = checkout
        self._named = objects
        self._keys = checkout.keys
        self._where = checkout.server_url.shown
        self._durability: Durability = durability

    def describe(self) -> dict[str, Any]:
        def look(connection: RedisConnection) -> tuple[RedisServer, int, int]:
            asked = "HMGET", self._keys.root, "position", "format"
            [(position, format)] = self._checkout.ask_on(connection, asked)
            server = self._checkout.pool.read_settings(connection)
            return server, self._checkout.number(position), self._checkout.number(format)

        server, position, format = self._checkout.pool.call(look)
        waits = server.waits(self._durability)
        return {
            "kind": "redis",
            "place": self._where,
            "application": self._checkout.server_url.application,
            "format": format,
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
            return  # the rest needs these keys
        for page in self._pages():
            found = list(self._counts(page, is_store_included=False))
            yield from found
            damaged |= {finding.where for finding in found}
        if read_all:
            for page in self._pages():
                yield from self._streams([one for one in page if keys.events(one) not in damaged])
            yield from self._log(position, damaged)
            for kind in ("blob", "snapshot"):
                if not damaged & {keys.objects(kind), keys.expiring(kind)}:
                    yield from self._objects(kind)

    def _counts(self, streams: Sequence[str], *, is_store_included: bool) -> Iterator[Finding]:
        """Returns a finding for each key, of the store or streams, that differs from its count."""
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
        """Yields findings; a CorruptError while they are looked for becomes the last one."""
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

    def _answers(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns the answers to many questions, which are sent together.

        If one of them fails because of damage, they are sent one by one, and the error takes the
        place of its answer.
        """
        if not commands:
            return []
        try:
            return self._checkout.ask(*commands)
        except CorruptError as exc:
            _log.debug("the questions of a check are asked one by one: %s", exc)
        answers: list[Any] = []
        for command in commands:
            try:
                answers += self._checkout.ask(command)
            except CorruptError as exc:
                answers.append(exc)
        return answers

    def _streams(self, streams: Sequence[str]) -> Iterator[Finding]:
        """Checks many streams; their beginnings are read together, because most are short."""
        heads = self._answers([("HGET", self._keys.heads, stream) for stream in streams])
        begins = self._answers(
            [("XRANGE", self._keys.events(one), "-", "+", "COUNT", _BEGIN) for one in streams]
        )
        indexed: list[Record] = []
        for stream, text, entries in zip(streams, heads, begins, strict=True):
            failed = [one for one in (text, entries) if isinstance(one, CorruptError)]
            if failed:
                yield Finding(stream, failed[0].message)
            else:
                yield from self._caught(stream, self._stream(stream, text, entries, indexed))
        yield from self._indexed(indexed)

    def _stream(
        self, stream: str, text: bytes | None, entries: list[Any], indexed: list[Record]
    ) -> Iterator[Finding]:
        """Checks a stream's events; those that an index must have are added to `indexed`."""
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
        while entries and expected <= head.revision:
            for entry in entries:
                revision = int(entry[0].partition(b"-")[0])
                if revision > head.revision:
                    break  # written after the head was read
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
                if last.key is not None or last.checkpoint is not None:
                    indexed.append(last)
            if len(indexed) > _PAGE:
                yield from self._indexed(indexed)
                indexed.clear()
            ask = ("XRANGE", self._keys.events(stream), f"{expected}-0", f"{head.revision}-0")
            entries = []
            if expected <= head.revision:
                [entries] = self._checkout.ask((*ask, "COUNT", _PAGE))
        if expected <= head.revision and not self._is_let_go(stream):
            yield Finding(f"{stream}@{expected}", "the event is missing")
        elif last is not None:
            yield from _tail(stream, head, last)

    def _is_let_go(self, stream: str) -> bool:
        """Returns whether the server has deleted a stream at its end: only its head stays then."""
        return self._problems((stream,), is_store_included=False)[1][0]

    def _indexed(self, records: Sequence[Record]) -> Iterator[Finding]:
        """Yields each key and checkpoint name of these records that its index lacks."""
        asked: list[tuple[Any, ...]] = []
        expected: list[tuple[Record, str, bytes | None]] = []  # None: whatever there is
        keys = self._keys
        for one in records:
            at, name = f"{one.revision} {one.time}", one.checkpoint
            if one.key is not None:
                asked.append(("HGET", keys.keys(one.stream), one.key))
                expected.append((one, "key", at.encode()))
            if name is not None:
                member = f"{name}\0{one.revision:016} {one.time}"
                asked.append(("ZSCORE", keys.checkpoints(one.stream), f"{at} {name}"))
                asked.append(("ZSCORE", keys.named(one.stream), member))
                expected += [(one, "checkpoint name", None)] * 2
        told: set[tuple[str, str]] = set()
        for (one, what, at), found in zip(expected, self._answers(asked), strict=True):
            where, problem = f"{one.stream}@{one.revision}", f"its {what} is not in the index"
            if isinstance(found, CorruptError):
                problem = found.message
            elif found is not None and at in (None, found):
                continue
            if (where, problem) not in told:
                told.add((where, problem))
                yield Finding(where, problem)

    def _log(self, position: int, damaged: set[str]) -> Iterator[Finding]:
        """Yields each entry of the log whose events are not all there at its position."""
        after = "-"
        while True:
            ask = ("XRANGE", self._keys.log, after, str(position), "COUNT", _PAGE)
            [entries] = self._checkout.ask(ask)
            named = [
                (id.partition(b"-")[0], name.decode(), range_)
                for id, fields in entries
                for name, range_ in zip(fields[::2], fields[1::2], strict=True)
            ]
            yield from self._logged(
                [one for one in named if self._keys.events(one[1]) not in damaged]
            )
            if len(entries) < _PAGE:
                return
            after = f"({entries[-1][0].decode()}"

    def _logged(self, named: Sequence[tuple[bytes, str, bytes]]) -> Iterator[Finding]:
        """Yields what is missing of events that the log names by position, stream and revisions."""
        asked: list[tuple[str, ...]] = []
        counts: list[int] = []
        for _, stream, range_ in named:
            first, count = map(int, range_.split())
            counts.append(count)
            ends = f"{first}-0", f"{first + count - 1}-0"
            asked.append(("XRANGE", self._keys.events(stream), *ends))
        answers = self._answers(asked)
        for (at, stream, _), count, entries in zip(named, counts, answers, strict=True):
            if isinstance(entries, CorruptError):
                yield Finding(stream, entries.message)
                continue
            places = [dict(zip(f[::2], f[1::2], strict=True)).get(b"position") for _, f in entries]
            if places != [at] * count and not self._is_let_go(stream):
                yield Finding(f"position {at.decode()}", f'its events of "{stream}" are not whole')

    def _objects(self, kind: str) -> Iterator[Finding]:
        harmless = kind == "snapshot"
        [names] = self._checkout.ask(("ZRANGE", self._keys.objects(kind), 0, -1))
        for name in (found.decode() for found in names):
            [stored] = self._answers([("GET", self._keys.object(kind, name))])
            if isinstance(stored, CorruptError):
                yield Finding(f"{kind} {name}", stored.message, harmless)
                continue
            if stored is None and name in self._named.names(kind, prefix=name):
                yield Finding(f"{kind} {name}", "is missing", harmless)
            elif stored is not None and not is_sealed(kind, name, stored):
                yield Finding(f"{kind} {name}", "fails its checksum", harmless)


def _tail(stream: str, head: Head, last: Record) -> Iterator[Finding]:
    said = last.revision, last.link, last.time, last.position
    if said != (head.revision, head.link, head.time, head.position):
        yield Finding(stream, "its head is not its newest event")
