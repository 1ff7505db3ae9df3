"""The backend itself: a list of commits is one call of a script on the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.connection_pool import AckTracker, Follower, Tail, in_parts
from holdfast.backends.protocol import (
    START,
    Claim,
    Commit,
    Durability,
    Found,
    Head,
    Held,
    Inspection,
    Lease,
    Leases,
    Mark,
    Marks,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.backends.redis.batch import Batch, batches, decode_answers
from holdfast.backends.redis.connection import RedisCheckout, RedisConnection, RedisPool
from holdfast.backends.redis.entries import (
    CRC_BYTES,
    DUE_ZERO,
    Keys,
    behind_prefix,
    decode,
    decode_head,
    is_sealed,
    missing,
    sealed,
)
from holdfast.backends.redis.inspection import RedisInspection
from holdfast.backends.redis.server import FORMAT, ServerURL, opening, parse_url
from holdfast.clock import Clock
from holdfast.errors import CorruptError, ExpiredError, FormatError, NotFoundError
from holdfast.names import new_id

# --- witness --------------------------------------------------------------------------------------
#
# Looks for what this handle was told, when another Redis process answers than before.


_CHECKED_AT_ONCE = 500


class RedisAckTracker(AckTracker):
    """Replication is asynchronous, and `appendfsync everysec` loses about a second."""

    def __init__(self, gate: RedisCheckout) -> None:
        super().__init__(gate.place.shown)
        self._gate = gate

    def check(self, line: RedisConnection) -> None:
        """Raises LostCommitsError if something that was acknowledged is not there."""
        position, tails = self.told()
        if not position and not tails:
            return
        keys = self._gate.keys
        store, newest = line.ask(("HMGET", keys.root, "store", "position"))[0]
        if store != self._gate.store.encode():
            raise self.lost("the whole store")
        for start in range(0, len(tails), _CHECKED_AT_ONCE):
            self._check_page(line, tails[start : start + _CHECKED_AT_ONCE])
        if int(newest) < position:
            raise self.lost(f"everything behind position {int(newest)} of {position}")

    def _check_page(self, line: RedisConnection, page: list[Tail]) -> None:
        keys, where = self._gate.keys, self._gate.place.shown
        [texts] = line.ask(("HMGET", keys.heads, *(stream for stream, _ in page)))
        for (stream, (revision, link)), text in zip(page, texts, strict=True):
            head = decode_head(stream, text, where)
            if head is not None and head.revision > revision:
                if head.expires_us:
                    continue  # its older events may be gone by right
                id = f"{revision}-0"
                [found] = line.ask(("XRANGE", keys.events(stream), id, id))
                held = bool(found) and link in (None, decode(stream, found[0], where).link)
            else:
                held = head is not None and head.revision == revision and link in (None, head.link)
            if not held:
                raise self.lost(f'event {revision} of "{stream}"', stream, revision)


# --- leases ---------------------------------------------------------------------------------------
#
# Leases: entries beside the log, judged by the server's clock alone.
#
# Nobody can tell from here whether an owner is dead or slow. A lease passes on when it has expired.
# An epoch is above the last one and at least the server's time in milliseconds: a server that took
# over without the newest epochs still gives greater ones.


class RedisLeases:
    """Every change is idempotent for its owner, so a call whose connection broke is repeated."""

    def __init__(self, gate: RedisCheckout) -> None:
        self._gate = gate
        self._keys = (gate.keys.leases,)

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        ttl_us = round(ttl_s * 1_000_000)
        arguments = "acquire", name, owner, 0, ttl_us
        return _lease(name, self._gate.write("lease", self._keys, arguments))

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        ttl_us = round(ttl_s * 1_000_000)
        arguments = "renew", lease.name, lease.owner, lease.epoch, ttl_us
        return _lease(lease.name, self._gate.write("lease", self._keys, arguments))

    def release(self, lease: Lease) -> None:
        arguments = "release", lease.name, lease.owner, lease.epoch, 0
        self._gate.write("lease", self._keys, arguments)

    def holder(self, name: str) -> Lease | None:
        return _lease(name, self._gate.look("lease", self._keys, ("holder", name, "", 0, 0)))

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        # Sorted here: a server compares text by the rules of its locale.
        listed = sorted(
            Held(name.decode(), owner.decode(), int(epoch), int(left_us) > 0, int(left_us))
            for name, owner, epoch, left_us in self._gate.look("leases", self._keys, (prefix,))
        )
        return [lease for lease in listed if lease.name > after][:limit]


def _lease(name: str, answer: list[Any] | None) -> Lease | None:
    if not answer:
        return None
    epoch, ends_us, owner = answer
    return Lease(name, owner.decode(), int(epoch), int(ends_us))


# --- marks ----------------------------------------------------------------------------------------
#
# Marks: set and cleared by commits, claimed under a time limit by the server's clock.


_LIMIT_MAX = 1 << 40


def _mark(index: str, member: bytes, group: bytes) -> Mark:
    priority, due = DUE_ZERO - int(member[:20]), int(member[20:40]) - DUE_ZERO
    return Mark(index, member[40:].decode(), due, priority, group.decode())


class RedisMarks:
    """A claim is not repeated when its connection broke: it may have taken marks.

    They stay with nobody until the claim ends by itself, as after a worker's death.
    """

    def __init__(self, gate: RedisCheckout) -> None:
        self._gate = gate

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        arguments = "claim", index, owner, n, round(ttl_s * 1_000_000)
        keys = self._gate.keys.of_index(index)
        taken = self._gate.write("claim", keys, arguments, repeatable=False)
        return [_mark(index, member, group) for member, group in taken]

    def release(self, index: str, key: str, owner: str) -> None:
        keys = self._gate.keys.of_index(index)
        self._gate.write("claim", keys, ("release", index, owner, key))

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        before = False if due_before is None else f"{DUE_ZERO + due_before:020}"
        wanted = False if index is None else index
        arguments: tuple[Any, ...] = (wanted, before, min(limit, _LIMIT_MAX))
        marks = [
            _mark(name.decode(), member, group)
            for name, found in self._gate.look("marks", (), arguments)
            for member, group in found
        ]
        marks.sort(key=lambda mark: (-mark.priority, mark.due, mark.key, mark.index))
        return marks[:limit]

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        return sorted(
            Claim(index.decode(), key.decode(), owner.decode(), int(left_us))
            for index, found in self._gate.look("claims", (), ())
            for key, owner, left_us in found
        )[:limit]


# --- objects --------------------------------------------------------------------------------------
#
# Named bytes beside the log: snapshots and blobs, one key each.


class RedisObjects:
    def __init__(self, gate: RedisCheckout) -> None:
        self._gate = gate

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        self._write(kind, name, expires_us, sealed(kind, name, data))

    def get(self, kind: str, name: str) -> bytes | None:
        [stored] = self._gate.ask(("GET", self._gate.keys.object(kind, name)))
        if stored is None:
            return None
        if not is_sealed(kind, name, stored):
            where = self._gate.place.shown
            raise CorruptError(f'{kind} "{name}" fails its checksum ({where})', where=where)
        return stored[CRC_BYTES:]

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        start, end = f"[{prefix}" if prefix else "-", behind_prefix(prefix)
        keys = self._gate.keys
        names, ends, (seconds, micros) = self._gate.ask(
            ("ZRANGEBYLEX", keys.objects(kind), start, end),
            ("ZRANGE", keys.expiring(kind), 0, -1, "WITHSCORES"),
            ("TIME",),
        )
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        gone = {name for name, end in zip(ends[::2], ends[1::2], strict=True) if int(end) <= now_ms}
        return [name.decode() for name in names if name not in gone]

    def delete(self, kind: str, name: str) -> None:
        self._write(kind, name, 0)

    def _write(self, kind: str, name: str, expires_us: int, *data: bytes) -> None:
        keys = self._gate.keys
        named = keys.object(kind, name), keys.objects(kind), keys.expiring(kind)
        self._gate.write("object", named, (kind, name, expires_us or False), *data)


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
        self.place = parse_url(url)
        lines, store = open_pool(
            self.place, clock, durability=durability, create=create and not read_only
        )
        self._clock = clock
        self._reach = reach
        self._gate = gate = RedisCheckout(lines, store, read_only=read_only)
        self._keys = gate.keys
        self._witness = RedisAckTracker(gate)
        lines.recheck = self._witness.check
        self._follower = Follower(gate, self._newest, lines.check_open)
        self.leases: Leases = RedisLeases(gate)
        self.marks: Marks = RedisMarks(gate)
        self.objects: Objects = RedisObjects(gate)
        self.inspect: Inspection = RedisInspection(gate, self.objects, durability)

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

        def work(line: RedisConnection) -> list[Any]:
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


def open_pool(
    place: ServerURL, clock: Clock, *, durability: Durability, create: bool
) -> tuple[RedisPool, str]:
    """Returns the lines of a store that is there, and its id."""
    lines = RedisPool(place, durability)
    try:
        return lines, lines.call(lambda line: _store(line, place, clock, create=create))
    except BaseException:
        lines.close()
        raise


def _store(line: RedisConnection, place: ServerURL, clock: Clock, *, create: bool) -> str:
    keys = Keys(place.application)
    touched = keys.root, keys.heads, keys.streams, keys.log
    values = new_id(clock), FORMAT, "1" if create else "0", line.server.run_id
    found = line.run(opening(), touched, values)
    if not found:
        raise NotFoundError(
            f'there is no store of application "{place.application}" in "{place.shown}"',
            hint="check the URL, or create the store",
        )
    store, format, position = found
    if format is None or not format.isdigit() or position is None or not position.isdigit():
        raise CorruptError(f'"{place.shown}": the key {keys.root} is damaged', where=place.shown)
    if int(format) > FORMAT:
        raise FormatError(
            f'"{place.shown}" has format {int(format)}, this holdfast knows formats up to {FORMAT}',
            hint="upgrade holdfast",
        )
    return store.decode()
