"""The backend itself: a list of commits is one call of a script on the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from holdfast.backends.connection_pool import (
    AckedEvent,
    AckTracker,
    PositionPoller,
    write_parts,
)
from holdfast.backends.protocol import (
    AHEAD_US,
    GONE,
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
    Leftover,
    Mark,
    MarkQuery,
    Marks,
    MarksAtMoment,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
    written_in_part,
)
from holdfast.backends.redis.connection import (
    RedisCheckout,
    RedisConnection,
    RedisPool,
    ReplyError,
    Word,
)
from holdfast.backends.redis.encoding import (
    CRC_BYTES,
    DUE_ZERO,
    Keys,
    RedisBatch,
    batches,
    decode,
    decode_answers,
    decode_counts,
    decode_head,
    is_sealed,
    missing,
    order_of,
    prefix_end,
    record_crc,
    sealed,
    stopped_by,
)
from holdfast.backends.redis.inspection import RedisInspection
from holdfast.backends.redis.purging import rewrite_files
from holdfast.backends.redis.server import FORMAT, RedisURL, opening, parse_url
from holdfast.backends.redis.tenancy import enter_tenant
from holdfast.clock import Clock
from holdfast.errors import CorruptError, ExpiredError, FormatError, NotFoundError
from holdfast.names import new_id

_log = logging.getLogger("holdfast.backends")

# --- acknowledged commits -------------------------------------------------------------------------

_CHECKED_AT_ONCE = 500


class RedisAckTracker(AckTracker):
    """Checks what was acknowledged when another Redis process answers than before.

    It may be gone: replication is asynchronous, and with `appendfsync everysec` a crash of the
    server loses about a second.
    """

    def __init__(self, checkout: RedisCheckout) -> None:
        super().__init__(checkout.server_url.shown)
        self._checkout = checkout

    def check(self, connection: RedisConnection) -> None:
        """Raises LostCommitsError if something that was acknowledged is not there."""
        position, acked = self.acknowledged()
        if not position and not acked:
            return
        keys = self._checkout.keys
        store, newest = connection.ask(("HMGET", keys.root, "store", "position"))[0]
        if store != self._checkout.store.encode():
            raise self.lost("the whole store")
        for start in range(0, len(acked), _CHECKED_AT_ONCE):
            self._check_page(connection, acked[start : start + _CHECKED_AT_ONCE])
        if self._checkout.number(newest) < position:
            raise self.lost(f"everything after position {int(newest)} of {position}")

    def _check_page(self, connection: RedisConnection, page: list[AckedEvent]) -> None:
        keys, where = self._checkout.keys, self._checkout.server_url.shown
        [texts] = connection.ask(("HMGET", keys.heads, *(stream for stream, _ in page)))
        for (stream, (revision, link)), text in zip(page, texts, strict=True):
            head = decode_head(stream, text, where)
            if head is not None and head.revision > revision:
                if head.expires_us:
                    continue  # the server may have deleted its older events: it has an end
                id = f"{revision}-0"
                [found] = connection.ask(("XRANGE", keys.events(stream), id, id))
                held = bool(found) and link in (None, decode(stream, found[0], where).link)
            else:
                held = head is not None and head.revision == revision and link in (None, head.link)
            if not held:
                raise self.lost(f'event {revision} of "{stream}"', stream, revision)


# --- leases ---------------------------------------------------------------------------------------
#
# Entries beside the log, judged by the server's clock alone: clocks of workers may differ.
#
# A dead owner cannot be told from a slow one over a network. So a lease passes to another owner
# only when it was released or has expired. An epoch is above the last one and at least the server's
# time in milliseconds: a replica that took over without the newest epochs still gives greater ones.


class RedisLeases:
    """The leases of a store.

    Every change is idempotent for its owner, so a call whose connection broke may be repeated.
    """

    def __init__(self, checkout: RedisCheckout) -> None:
        self._checkout = checkout
        self._keys = (checkout.keys.leases,)

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        ttl_us = round(ttl_s * 1_000_000)
        arguments = "acquire", name, owner, 0, ttl_us
        return _lease(name, self._checkout.write("lease", self._keys, arguments))

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return self.renew_many((lease,), ttl_s=ttl_s)[0]

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
        asked = [(lease.name, lease.owner, lease.epoch) for lease in leases]
        answers = self._checkout.write("renew", self._keys, (round(ttl_s * 1_000_000), asked))
        return [_lease(one.name, found) for one, found in zip(leases, answers, strict=True)]

    def release(self, lease: Lease) -> None:
        arguments = "release", lease.name, lease.owner, lease.epoch, 0
        self._checkout.write("lease", self._keys, arguments)

    def holder(self, name: str) -> Lease | None:
        return _lease(name, self._checkout.look("lease", self._keys, ("holder", name, "", 0, 0)))

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        # Sorted here by code points: the server may compare text by the rules of its locale.
        listed = sorted(
            Held(name.decode(), owner.decode(), int(epoch), int(left_us) > 0, int(left_us))
            for name, owner, epoch, left_us in self._checkout.look("leases", self._keys, (prefix,))
        )
        return [lease for lease in listed if lease.name > after][:limit]


def _lease(name: str, answer: list[Any] | None) -> Lease | None:
    if not answer:
        return None
    epoch, ends_us, owner = answer
    return Lease(name, owner.decode(), int(epoch), int(ends_us))


# --- marks ----------------------------------------------------------------------------------------
#
# Set and cleared by commits, claimed under a time limit by the server's clock.


_LIMIT_MAX = 1 << 40


def _mark(index: str, member: bytes, group: bytes) -> Mark:
    priority, due = DUE_ZERO - int(member[:20]), int(member[20:40]) - DUE_ZERO
    return Mark(index, member[40:].decode(), due, priority, group.decode())


def _ordered(indexes: list[Any]) -> list[Mark]:
    """Returns the marks of some indexes as one list, in the order of clause 17."""
    marks = [
        _mark(name.decode(), member, group) for name, found in indexes for member, group in found
    ]
    marks.sort(key=lambda mark: (-mark.priority, mark.due, mark.key, mark.index))
    return marks


class RedisMarks:
    """The marks of a store.

    A claim is not repeated after its connection broke: the first attempt may have claimed marks,
    and a second one would claim others as well. Marks claimed in vain become free when the claim
    expires, as after a worker's death.
    """

    def __init__(self, checkout: RedisCheckout) -> None:
        self._checkout = checkout

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        arguments = "claim", index, owner, n, round(ttl_s * 1_000_000)
        keys = self._checkout.keys.of_index(index)
        taken = self._checkout.write("claim", keys, arguments, repeatable=False)
        return [_mark(index, member, group) for member, group in taken]

    def release(self, index: str, key: str, owner: str) -> None:
        keys = self._checkout.keys.of_index(index)
        self._checkout.write("claim", keys, ("release", index, owner, key))

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        return self.find(MarkQuery(index, due_before=due_before, limit=limit))

    def find(self, query: MarkQuery) -> list[Mark]:
        last, before = query.after, query.due_before
        arguments: tuple[Any, ...] = (
            False if query.index is None else query.index,
            False if before is None else f"{DUE_ZERO + before:020}",
            # One more than wanted. The script begins at the place of the last mark, inclusive, and
            # `pick` drops what does not come after it: a mark with the same place and key in
            # another index comes after it or not, by the name of the index.
            min(query.limit + 1, _LIMIT_MAX),
            False,
            False if last is None else order_of(last) + last.key,
            False if query.group is None else query.group,
            False if query.keys is None else [*dict.fromkeys(query.keys)],
        )
        return query.pick(_ordered(self._checkout.look("marks", (), arguments)))

    def at_moment(self) -> MarksAtMoment:
        """Returns marks and a moment (clause 35); a script runs alone, so they belong together."""
        *found, position = self._checkout.look(
            "marks", (), (False, False, _LIMIT_MAX, True, False, False, False)
        )
        newest = Position(self._checkout.number(position))
        return MarksAtMoment(Moment(newest), newest, _ordered(found))

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        return sorted(
            Claim(index.decode(), key.decode(), owner.decode(), int(left_us))
            for index, found in self._checkout.look("claims", (), ())
            for key, owner, left_us in found
        )[:limit]


# --- objects --------------------------------------------------------------------------------------
#
# Named bytes beside the log: snapshots and blobs, one key each. A missing blob is damage, because
# events refer to it; a missing snapshot can be made again.


class RedisObjects:
    def __init__(self, checkout: RedisCheckout) -> None:
        self._checkout = checkout

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        self._write(kind, name, expires_us, sealed(kind, name, data))

    def get(self, kind: str, name: str) -> bytes | None:
        [stored] = self._checkout.ask(("GET", self._checkout.keys.object(kind, name)))
        if stored is None and (kind == "snapshot" or not self._is_lost(kind, name)):
            return None
        where = self._checkout.server_url.shown
        if stored is None:
            gone = CorruptError(f'{kind} "{name}" is missing ({where})', where=where)
            raise self._checkout.pool.explained(gone)
        if not is_sealed(kind, name, stored):
            raise CorruptError(f'{kind} "{name}" fails its checksum ({where})', where=where)
        return stored[CRC_BYTES:]

    def _is_lost(self, kind: str, name: str) -> bool:
        """Returns whether an object is gone though it should be there.

        So it is if its name is listed and its end has not come. An object that was never put has no
        name, and one that the server has deleted at its end has an end in the past.
        """
        keys = self._checkout.keys
        named, ends, there, (seconds, micros) = self._checkout.ask_counted(
            f"objects:{kind}",
            ("ZCARD", keys.objects(kind)),
            ("ZSCORE", keys.objects(kind), name),
            ("ZSCORE", keys.expiring(kind), name),
            ("EXISTS", keys.object(kind, name)),
            ("TIME",),
        )
        # The server may count a key's time from when it began a command, so the key may go a little
        # before the end that is noted: a second is on the safe side.
        now_ms = int(seconds) * 1000 + int(micros) // 1000 + 1000
        return named is not None and not there and (ends is None or int(ends) > now_ms)

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        start, end = f"[{prefix}" if prefix else "-", prefix_end(prefix)
        keys = self._checkout.keys
        names, ends, (seconds, micros) = self._checkout.ask_counted(
            f"objects:{kind}",
            ("ZCARD", keys.objects(kind)),
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
        keys = self._checkout.keys
        named = keys.object(kind, name), keys.objects(kind), keys.expiring(kind)
        self._checkout.write("object", named, (kind, name, expires_us or False), *data)


# --- the backend ----------------------------------------------------------------------------------

# The server builds the whole answer in memory before it sends it, so a page has a limit.
_PAGE = 1000


class RedisBackend:
    """A store in Redis, for many processes on many machines."""

    record_keys = True
    keeps_meta = True

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
        self.server_url, self.tenant = parse_url(url), None
        if self.server_url.tenant:
            self.tenant = enter_tenant(self.server_url, read_only=read_only)
            self.server_url = replace(self.server_url, application=self.tenant.id)
        self.timeout_s = self.server_url.timeout_s
        pool, store = open_pool(
            self.server_url, clock, durability=durability, create=create and not read_only
        )
        self._clock = clock
        self._reach = reach
        self._checkout = checkout = RedisCheckout(pool, store, read_only=read_only)
        pool.is_open_store = True
        self._keys = checkout.keys
        self._ack_tracker = RedisAckTracker(checkout)
        pool.recheck = self._ack_tracker.check
        self._poller = PositionPoller(checkout, self._newest, pool.check_open)
        self.leases: Leases = RedisLeases(checkout)
        marks = RedisMarks(checkout)
        self.marks: Marks = marks
        self.marks_at_moment = marks.at_moment
        self.objects: Objects = RedisObjects(checkout)
        self.inspect: Inspection = RedisInspection(checkout, self.objects, durability)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        self._checkout.pool.check_open()
        outcomes = write_parts(batches(self._keys, commits, self._clock), self._write)
        if outcomes:
            self._checkout.wake()
        return outcomes

    def _write(self, batch: RedisBatch) -> list[Receipt | Refusal]:
        """Sends a batch until the server has answered, or the deadline has passed.

        After a connection broke, nobody knows whether the batch was written. Sending the same batch
        again is safe and settles it. Each append names the revision that it follows and the link of
        that event, so of two equal batches one is refused, however late the other one arrives. The
        script is told that the batch was sent before: if a refused commit's own link is in the
        store, an earlier attempt has written it, and the script answers with its receipt.
        """
        attempts = 0
        process: str | None = None

        def work(connection: RedisConnection) -> list[Any]:
            nonlocal attempts, process
            attempts += 1
            process = connection.process
            if self._reach is not None:
                self._reach("redis.commit")
            about = connection.server.run_id, attempts > 1, batch.encoded, connection.waits
            return self._checkout.run_on(
                connection, "commit", batch.keys, (*about, AHEAD_US), *batch.payloads
            )

        answers = self._checkout.call(work)
        stopped = stopped_by(answers)
        # What was written before the damage was found is held against a server that comes back.
        written = batch.commits[: len(answers)]
        outcomes = decode_answers(answers, written, self.server_url.shown)
        self._ack_tracker.note(written, outcomes)
        if not self._checkout.pool.is_newest(process):
            # Another thread may have connected to a new process meanwhile. It checked there before
            # this commit was noted, so the commit itself has not been looked for yet.
            self._checkout.pool.doubt()
        if self._reach is not None:
            self._reach("redis.committed")
        if stopped is not None:
            error = self._checkout.pool.translate(ReplyError(stopped), outcome_known=False)
            assert error is not None, "BUG: an error of a script that has no meaning here"
            raise written_in_part(error) from error
        return outcomes

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        self._checkout.pool.check_open()
        records: list[Record] = []
        if limit is not None and limit <= 0:
            return records
        events, where = self._keys.events(stream), self.server_url.shown
        while True:
            count = _PAGE if limit is None else min(_PAGE, limit - len(records))
            end = "+" if until is None else f"{max(until, 0)}-0"
            start = f"{max(after, 0) + 1}-0"
            text, entries = self._checkout.ask(
                ("HGET", self._keys.heads, stream),
                ("XRANGE", events, start, end, "COUNT", count),
            )
            head = decode_head(stream, text, where)
            if head is None:
                self._checkout.is_let_go(stream)  # raises if there should be a head
                return records
            # Only up to the head that was read with the first page: all pages then belong to one
            # moment, and a stream that is written to without pause cannot keep this loop going.
            until = head.revision if until is None else min(until, head.revision)
            expected = max(after + 1, head.first)
            for entry in entries:
                record = decode(stream, entry, where)
                if record.revision > until:
                    break
                if record.revision != expected:
                    raise self._checkout.pool.explained(missing(stream, expected, where))
                records.append(record)
                expected += 1
            after = expected - 1
            if expected > until or (limit is not None and len(records) >= limit):
                return records
            if len(entries) < count:
                if self._checkout.is_let_go(stream):
                    raise ExpiredError(stream, expires_us=head.expires_us)
                raise self._checkout.pool.explained(missing(stream, expected, where))

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        self.shorten({name: dict.fromkeys(some, GONE) for name, some in revisions.items()})

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        self._checkout.pool.check_open()
        for stream, named in payloads.items():
            self._rewrite(stream, named)

    def _rewrite(self, stream: str, payloads: Mapping[int, bytes]) -> None:
        keys = self._keys
        named = keys.events(stream), keys.rewriting(stream)
        after, is_done = 0, False
        while not is_done:
            # Events may have been appended since this page was read. The script copies only as many
            # entries as were looked at here. An answer that is not done means that more follow.
            page = self.read(stream, after=after, limit=_PAGE)
            changed = [
                replace(record, payload=payloads[record.revision])
                for record in page
                if record.revision in payloads and record.payload != GONE
            ]
            rows = [(one.revision, record_crc(one), one.payload.decode()) for one in changed]
            most = max(len(page), 1)
            # Not repeated after a lost connection: the page may have been copied by the first
            # attempt, and the script would take that for another process's work. The caller begins
            # the whole stream again, which is safe: the copy begins anew at `after` 0.
            answer = self._checkout.write(
                "rewrite", named, (stream, after, most, rows), repeatable=False
            )
            after, is_done = int(answer[0]), bool(answer[1])

    def keep(self, stream: str, is_kept: bool) -> bool:
        self._checkout.pool.check_open()
        keys = self._keys
        named = keys.kept, keys.heads, keys.events(stream), keys.keys(stream)
        named = *named, keys.checkpoints(stream), keys.named(stream)
        return bool(self._checkout.write("keep", named, (stream, is_kept)))

    def kept(self) -> list[str]:
        self._checkout.pool.check_open()
        [names] = self._checkout.ask_counted(
            "kept", ("SCARD", self._keys.kept), ("SMEMBERS", self._keys.kept)
        )
        return sorted(name.decode() for name in names)

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        """Makes the server rewrite its files: until then they hold every payload ever written."""
        return rewrite_files(self._checkout, whole=whole)

    def read_many(self, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
        self._checkout.pool.check_open()
        if not streams or limit <= 0:
            return [[] for _ in streams]
        heads, *answers = self._checkout.ask(
            ("HMGET", self._keys.heads, *streams),
            *(
                ("XRANGE", self._keys.events(stream), "-", "+", "COUNT", min(limit, _PAGE))
                for stream in streams
            ),
        )
        where = self.server_url.shown
        found: list[list[Record]] = []
        for stream, text, entries in zip(streams, heads, answers, strict=True):
            head = decode_head(stream, text, where)
            whole = 0 if head is None else min(limit, head.revision - head.first + 1)
            # A stream of which something is missing is read alone: that finds out whether it has
            # ended, was never there, is longer than a page, or is damaged.
            if head is None or len(entries) < whole:
                found.append(self.read(stream, limit=limit))
                continue
            records = [decode(stream, entry, where) for entry in entries[:whole]]
            for revision, record in enumerate(records, head.first):
                if record.revision != revision:
                    raise self._checkout.pool.explained(missing(stream, revision, where))
            found.append(records)
        return found

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        self._checkout.pool.check_open()
        if limit <= 0:
            return []
        while True:
            try:
                records, last = self._read_after(after, limit)
            except CorruptError as exc:
                _log.debug("a page of the log is read again: %s", exc)
                # The log is read before the events. If the server came back in between without its
                # newest commits, it lacks events that the log named. A second read sees log and
                # events of the same server; only then is what is missing called damage.
                records, last = self._read_after(after, limit)
            if records or last is None:
                return records
            # The server has deleted all events of this page: their streams have ended. An empty
            # answer would mean the end of the store, and a follower would miss all that comes
            # after, so the next page is read.
            after = last

    def _read_after(self, after: Position, limit: int) -> tuple[list[Record], Position | None]:
        """Returns the records of a page of the log that still exist, and its last position.

        The position is None if there is no entry after `after`.
        """
        ask = ("XRANGE", self._keys.log, f"{after + 1}-0", "+", "COUNT", min(limit, _PAGE))
        [entries] = self._checkout.ask_counted("entries", ("XLEN", self._keys.log), ask)
        if len(entries) == min(limit, _PAGE):
            entries = self._whole(entries)
        ranges: list[tuple[str, int, int, int]] = []
        found, before = 0, 0
        for position, commit in _commits(entries):
            if found >= limit:
                break
            before = position
            ranges += commit
            found += sum(count for _, _, count, _ in commit)
        if not ranges:
            return [], None
        return self._read_ranges(ranges), Position(before)

    def _whole(self, entries: list[Any]) -> list[Any]:
        """Returns entries of the log with all entries of the last commit, which may have more."""
        last = entries[-1][0].partition(b"-")[0]
        [rest] = self._checkout.ask(("XRANGE", self._keys.log, last, last))
        return [e for e in entries if e[0].partition(b"-")[0] != last] + rest

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        self._checkout.pool.check_open()
        records: list[Record] = []
        while len(records) < limit:
            try:
                found, first = self._read_before(until, limit - len(records))
            except CorruptError as exc:
                _log.debug("a page of the log is read again: %s", exc)
                found, first = self._read_before(until, limit - len(records))  # as `read_all` does
            records = found + records
            if first is None:
                break
            until = Position(first - 1)
        return records

    def _read_before(
        self, until: Position | None, limit: int
    ) -> tuple[list[Record], Position | None]:
        """Returns the records of the last page of the log that still exist, and its first position.

        The position is None if there is no entry up to `until`.
        """
        last = "+" if until is None else f"{until}"
        ask = ("XREVRANGE", self._keys.log, last, "-", "COUNT", min(limit, _PAGE))
        [entries] = self._checkout.ask_counted("entries", ("XLEN", self._keys.log), ask)
        if len(entries) == min(limit, _PAGE):
            entries = self._whole(entries)
        ranges: list[tuple[str, int, int, int]] = []
        found, before = 0, 0
        for position, commit in sorted(_commits(entries), key=lambda one: -one[0]):
            if found >= limit:
                break
            before = position
            ranges[:0] = commit
            found += sum(count for _, _, count, _ in commit)
        if not ranges:
            return [], None
        return self._read_ranges(ranges), Position(before)

    def _read_ranges(self, ranges: list[tuple[str, int, int, int]]) -> list[Record]:
        where = self.server_url.shown
        answers = self._checkout.ask(
            *(
                ("XRANGE", self._keys.events(stream), f"{first}-0", f"{first + count - 1}-0")
                for stream, first, count, _ in ranges
            )
        )
        empty = {one[0] for one, entries in zip(ranges, answers, strict=True) if not entries}
        let_go = {stream for stream in sorted(empty) if self._checkout.is_let_go(stream)}
        records: list[Record] = []
        for (stream, first, count, position), entries in zip(ranges, answers, strict=True):
            if not entries and stream in let_go:
                continue
            part = [decode(stream, entry, where) for entry in entries]
            found = {(record.revision, record.position) for record in part}
            for revision in range(first, first + count):
                if (revision, position) not in found:
                    raise self._checkout.pool.explained(missing(stream, revision, where))
            records += part
        return records

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        self._checkout.pool.check_open()
        if not streams:
            return []
        ask = ("HMGET", self._keys.heads, *streams)
        # A head that was found needs no count to be believed: if the head of another stream is
        # lost, this one can still be read.
        [texts] = self._checkout.ask_counted(
            "streams",
            ("HLEN", self._keys.heads),
            ask,
            is_doubtful=lambda answers: None in answers[0],
        )
        where = self.server_url.shown
        return [decode_head(name, text, where) for name, text in zip(streams, texts, strict=True)]

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        self._checkout.pool.check_open()
        if limit <= 0:
            return []
        start = f"({after}" if after >= prefix and after else f"[{prefix}" if prefix else "-"
        end = prefix_end(prefix)
        ask = ("ZRANGEBYLEX", self._keys.streams, start, end, "LIMIT", 0, limit)
        [names] = self._checkout.ask_counted("streams", ("ZCARD", self._keys.streams), ask)
        return [name.decode() for name in names]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        self._checkout.pool.check_open()
        if limit is not None and limit <= 0:
            return []
        count = -1 if limit is None else limit
        if key is not None:
            keys = self._keys.keys(stream)
            found = self._indexed(stream, 0, ("HLEN", keys), ("HGET", keys, key))
            if found is None:
                return []
            revision, time = map(int, found.split())
            return [Found(revision, key, time)]
        if checkpoint is not None:
            names = self._keys.named(stream)
            start, end = f"({checkpoint}\x01", f"[{checkpoint}\0"
            ask = ("ZREVRANGEBYLEX", names, start, end, "LIMIT", 0, count)
            members = self._indexed(stream, 1, ("ZCARD", names), ask)
            pairs = [map(int, member.rpartition(b"\0")[2].split()) for member in members]
            return [Found(revision, checkpoint, time) for revision, time in pairs]
        last = -1 if limit is None else limit - 1
        names = self._keys.checkpoints(stream)
        members = self._indexed(stream, 1, ("ZCARD", names), ("ZREVRANGE", names, 0, last))
        parts = [member.decode().split(" ", 2) for member in members]
        return [Found(int(revision), name, int(time)) for revision, time, name in parts]

    def _indexed(
        self, stream: str, number: int, length: Sequence[Word], ask: Sequence[Word]
    ) -> Any:
        """Returns the answer of an index of a stream, after comparing its length with the head's.

        Raises CorruptError or LostCommitsError if the index is not as long as the head says.
        """
        text, answer, found = self._checkout.ask(("HGET", self._keys.heads, stream), ask, length)
        counted = decode_counts(text)[number] if text else 0
        if not text or counted not in (None, found):
            self._checkout.is_let_go(stream)  # raises if something is gone
        return answer

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._poller.wait(after, timeout_s)

    def _newest(self) -> int:
        """Returns the newest position, which is final: scripts run alone, so none is under way."""
        return self._checkout.position()

    def moment(self) -> Moment:
        return Moment(self.wait(START, timeout_s=0))

    def now_us(self, stream: str) -> int:
        return int(self._checkout.look("now", (), ()))

    def close(self) -> None:
        self._checkout.close()


def _commits(entries: list[Any]) -> Iterator[tuple[int, list[tuple[str, int, int, int]]]]:
    """Yields the commits in entries of the log: each position, and its ranges of events.

    A commit over many streams has several entries; they have the same position.
    """
    ordered = sorted(entries, key=lambda entry: tuple(map(int, entry[0].split(b"-"))))
    for position, group in groupby(ordered, lambda entry: int(entry[0].partition(b"-")[0])):
        ranges: list[tuple[str, int, int, int]] = []
        for _, fields in group:
            for name, range_ in zip(fields[::2], fields[1::2], strict=True):
                first, count = map(int, range_.split())
                ranges.append((name.decode(), first, count, position))
        yield position, ranges


def open_pool(
    server_url: RedisURL, clock: Clock, *, durability: Durability, create: bool
) -> tuple[RedisPool, str]:
    """Returns the pool of an open store, and its id."""
    pool = RedisPool(server_url, durability)
    try:
        return pool, pool.call(
            lambda connection: _store(connection, server_url, clock, create=create)
        )
    except BaseException:
        pool.close()
        raise


def _store(connection: RedisConnection, server_url: RedisURL, clock: Clock, *, create: bool) -> str:
    keys = Keys(server_url.application)
    touched = keys.root, keys.heads, keys.streams, keys.log
    values = new_id(clock), FORMAT, "1" if create else "0", connection.server.run_id
    found = connection.run(opening(), touched, values)
    if not found:
        raise NotFoundError(
            f'there is no store of application "{server_url.application}" in "{server_url.shown}"',
            hint="check the URL, or create the store",
        )
    store, format, position = found
    if format is None or not format.isdigit() or position is None or not position.isdigit():
        raise CorruptError(
            f'"{server_url.shown}": the key {keys.root} is damaged', where=server_url.shown
        )
    if int(format) > FORMAT:
        raise FormatError(
            f'"{server_url.shown}" has format {int(format)}, this holdfast knows formats up to '
            f"{FORMAT}",
            hint="upgrade holdfast",
        )
    return store.decode()
