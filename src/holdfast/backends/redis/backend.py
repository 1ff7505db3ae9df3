"""The backend itself: a list of commits is one call of a script on the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.follower import Follower
from holdfast.backends.gate import in_parts
from holdfast.backends.protocol import (
    START,
    Commit,
    Durability,
    Found,
    Head,
    Inspection,
    Leases,
    Marks,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.backends.redis.batch import Batch, batches, decode_answers
from holdfast.backends.redis.entries import behind_prefix, decode, decode_head, missing
from holdfast.backends.redis.gate import Gate
from holdfast.backends.redis.inspection import RedisInspection
from holdfast.backends.redis.leases import RedisLeases
from holdfast.backends.redis.lines import Line
from holdfast.backends.redis.marks import RedisMarks
from holdfast.backends.redis.objects import RedisObjects
from holdfast.backends.redis.opening import open_lines
from holdfast.backends.redis.place import place_of
from holdfast.backends.redis.witness import RedisWitness
from holdfast.clock import Clock
from holdfast.errors import CorruptError, ExpiredError

# One page is copied whole by the server before it goes out.
_PAGE = 1000


class RedisBackend:
    """A store in Redis, for many processes on many machines."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        durability: Durability = "full",
        create: bool = True,
        read_only: bool = False,
        reach: Callable[[str], None] | None = None,
    ) -> None:
        self.durability: Durability = durability
        self.place = place_of(url)
        lines, store = open_lines(
            self.place, clock, durability=durability, create=create and not read_only
        )
        self._clock = clock
        self._reach = reach
        self._gate = gate = Gate(lines, store, read_only=read_only)
        self._keys = gate.keys
        self._witness = RedisWitness(gate)
        lines.recheck = self._witness.check
        self._follower = Follower(gate, self._newest, lines.check_open)
        self.leases: Leases = RedisLeases(gate)
        self.marks: Marks = RedisMarks(gate)
        self.objects: Objects = RedisObjects(gate)
        self.inspect: Inspection = RedisInspection(gate, durability)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        self._gate.lines.check_open()
        outcomes = in_parts(batches(self._keys, commits, self._clock), self._write)
        if outcomes:
            self._gate.wake()
        return outcomes

    def _write(self, batch: Batch) -> list[Receipt | Refusal]:
        """Sends a batch until the server has answered, or the time is over.

        A connection that breaks leaves open whether the batch is there. It is settled by sending
        the same batch again: each append names the revision and, by its link, the very event that
        it follows, so of two equal batches one is refused, however late the other comes. What is
        refused the second time may be there from the first; its own link says so.
        """
        attempts = 0
        process: str | None = None

        def work(line: Line) -> list[Any]:
            nonlocal attempts, process
            attempts += 1
            process = line.process
            if self._reach is not None:
                self._reach("redis.commit")
            arguments = line.server.run_id, attempts > 1, batch.encoded, line.waits
            return self._gate.run_on(line, "commit", batch.keys, arguments, *batch.payloads)

        outcomes = decode_answers(self._gate.call(work), batch, self.place.shown)
        self._witness.note(batch.commits, outcomes)
        if not self._gate.lines.is_newest(process):
            # Another thread met a new one meanwhile, and looked there before this was remembered.
            self._gate.lines.doubt()
        if self._reach is not None:
            self._reach("redis.committed")
        return outcomes

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        self._gate.lines.check_open()
        records: list[Record] = []
        if limit is not None and limit <= 0:
            return records
        events, where = self._keys.events(stream), self.place.shown
        while True:
            count = _PAGE if limit is None else min(_PAGE, limit - len(records))
            end = "+" if until is None else f"{max(until, 0)}-0"
            start = f"{max(after, 0) + 1}-0"
            text, entries = self._gate.ask(
                ("HGET", self._keys.heads, stream),
                ("XRANGE", events, start, end, "COUNT", count),
            )
            head = decode_head(stream, text, where)
            if head is None:
                if entries:
                    raise CorruptError(f'stream "{stream}" has no head ({where})', where=where)
                return records
            # Only up to the head as it was asked for first: what comes later is for later.
            until = head.revision if until is None else min(until, head.revision)
            expected = max(after + 1, head.first)
            for entry in entries:
                record = decode(stream, entry, where)
                if record.revision > until:
                    break
                if record.revision != expected:
                    raise missing(stream, expected, where)
                records.append(record)
                expected += 1
            after = expected - 1
            if expected > until or (limit is not None and len(records) >= limit):
                return records
            if len(entries) < count:
                self._check_there(stream)
                raise missing(stream, expected, where)

    def _check_there(self, stream: str) -> None:
        """Raises ExpiredError if the server has let the stream go, as it was told to."""
        text, there = self._gate.ask(
            ("HGET", self._keys.heads, stream), ("EXISTS", self._keys.events(stream))
        )
        head = decode_head(stream, text, self.place.shown)
        if head is not None and head.expires_us and not there:
            raise ExpiredError(stream, expires_us=head.expires_us)

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        self._gate.lines.check_open()
        if limit <= 0:
            return []
        while True:
            try:
                records, last = self._read_behind(after, limit)
            except CorruptError:
                # The log is asked before the events. A server that came back in between without its
                # newest commits has none of those that the log named: it is asked for both again.
                records, last = self._read_behind(after, limit)
            if records or last is None:
                return records
            # The server has let go of all that this page names. No records would mean the end of
            # the store, and a follower would pass over whatever lies behind.
            after = last

    def _read_behind(self, after: Position, limit: int) -> tuple[list[Record], Position | None]:
        """Returns what is left of a page of the log, and its last position; None at the end."""
        ask = ("XRANGE", self._keys.log, f"{after + 1}-0", "+", "COUNT", min(limit, _PAGE))
        [entries] = self._gate.ask(ask)
        if len(entries) == min(limit, _PAGE):
            # The last commit may go on: it is read whole.
            last = entries[-1][0].partition(b"-")[0]
            [rest] = self._gate.ask(("XRANGE", self._keys.log, last, last))
            entries = [e for e in entries if e[0].partition(b"-")[0] != last] + rest
        ranges: list[tuple[str, int, int, int]] = []
        found, before = 0, 0
        for id, fields in entries:
            position = int(id.partition(b"-")[0])
            if found >= limit and position != before:
                break
            before = position
            for name, range_ in zip(fields[::2], fields[1::2], strict=True):
                first, count = map(int, range_.split())
                ranges.append((name.decode(), first, count, position))
                found += count
        if not ranges:
            return [], None
        return self._read_ranges(ranges), Position(before)

    def _read_ranges(self, ranges: list[tuple[str, int, int, int]]) -> list[Record]:
        where = self.place.shown
        answers = self._gate.ask(
            *(
                ("XRANGE", self._keys.events(stream), f"{first}-0", f"{first + count - 1}-0")
                for stream, first, count, _ in ranges
            )
        )
        empty = {one[0] for one, entries in zip(ranges, answers, strict=True) if not entries}
        let_go = {stream for stream in sorted(empty) if self._is_let_go(stream)}
        records: list[Record] = []
        for (stream, first, count, position), entries in zip(ranges, answers, strict=True):
            if not entries and stream in let_go:
                continue
            part = [decode(stream, entry, where) for entry in entries]
            found = {(record.revision, record.position) for record in part}
            for revision in range(first, first + count):
                if (revision, position) not in found:
                    raise missing(stream, revision, where)
            records += part
        return records

    def _is_let_go(self, stream: str) -> bool:
        try:
            self._check_there(stream)
        except ExpiredError:
            return True
        return False

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        self._gate.lines.check_open()
        if not streams:
            return []
        [texts] = self._gate.ask(("HMGET", self._keys.heads, *streams))
        where = self.place.shown
        return [decode_head(name, text, where) for name, text in zip(streams, texts, strict=True)]

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        self._gate.lines.check_open()
        if limit <= 0:
            return []
        start = f"({after}" if after >= prefix and after else f"[{prefix}" if prefix else "-"
        end = behind_prefix(prefix)
        ask = ("ZRANGEBYLEX", self._keys.streams, start, end, "LIMIT", 0, limit)
        [names] = self._gate.ask(ask)
        return [name.decode() for name in names]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        self._gate.lines.check_open()
        if limit is not None and limit <= 0:
            return []
        count = -1 if limit is None else limit
        if key is not None:
            [found] = self._gate.ask(("HGET", self._keys.keys(stream), key))
            if found is None:
                return []
            revision, time = map(int, found.split())
            return [Found(revision, key, time)]
        if checkpoint is not None:
            names = self._keys.named(stream)
            start, end = f"({checkpoint}\x01", f"[{checkpoint}\0"
            [members] = self._gate.ask(("ZREVRANGEBYLEX", names, start, end, "LIMIT", 0, count))
            pairs = [map(int, member.rpartition(b"\0")[2].split()) for member in members]
            return [Found(revision, checkpoint, time) for revision, time in pairs]
        last = -1 if limit is None else limit - 1
        [members] = self._gate.ask(("ZREVRANGE", self._keys.checkpoints(stream), 0, last))
        parts = [member.decode().split(" ", 2) for member in members]
        return [Found(int(revision), name, int(time)) for revision, time, name in parts]

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._follower.wait(after, timeout_s)

    def _newest(self) -> int:
        """Returns the newest position. A script runs alone: what can be seen is final."""
        [position] = self._gate.ask(("HGET", self._keys.root, "position"))
        return int(position)

    def moment(self) -> Moment:
        return Moment(self.wait(START, timeout_s=0))

    def now_us(self, stream: str) -> int:
        return int(self._gate.look("now", (), ()))

    def close(self) -> None:
        self._gate.close()
