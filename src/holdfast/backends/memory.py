"""The contract in its shortest form: everything is in dicts of this process, nothing is durable.

All other backends are compared with this one, so it implements each clause as plainly as possible,
without optimisations. One lock guards everything. A commit is one entry of the log; everything else
is a fold of the log, so an interrupt between the two can delay the fold but not corrupt it. A
worker cannot die without the store, so leases and claims end only by expiry or release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import RLock
from time import monotonic
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.gates import Waiters, held_here, reentered, shut_gate
from holdfast.backends.handle import Handle
from holdfast.backends.judge import head_after, judge
from holdfast.backends.protocol import (
    GONE,
    START,
    Claim,
    Cleared,
    Commit,
    Durability,
    Fence,
    Finding,
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
    mark_order,
)
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.names import new_id


class _Committed(Struct, frozen=True):
    """An entry of the log: all that a commit did."""

    records: tuple[Record, ...]
    heads: dict[str, Head]
    marks: Sequence[Mark | Cleared]


class MemoryBackend:
    """A store that lives as long as this object. `durability` is stated, not provided."""

    record_keys = True
    keeps_meta = True

    def __init__(
        self, *, clock: Clock, durability: Durability = "none", read_only: bool = False
    ) -> None:
        self.durability: Durability = durability
        self._checkout = checkout = _MemoryCheckout(clock, read_only)
        self._leases = _MemoryLeases(checkout)
        self._marks = _MemoryMarks(checkout)
        self.leases: Leases = self._leases
        self.marks: Marks = self._marks
        self.objects: Objects = _MemoryObjects(checkout)
        self.inspect: Inspection = _MemoryInspection(self)
        self.store = new_id(clock)
        self._log: list[_Committed] = []  # the commit at position n is at n - 1
        self._folded = 0  # how many of its entries are in the dicts below
        self._streams: dict[str, list[Record]] = {}
        self._heads: dict[str, Head] = {}
        self._keys: dict[tuple[str, str], int] = {}

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        with self._checkout.writing():
            # Applied one by one, so a later commit of the list sees the earlier ones (clause 1).
            try:
                outcomes = [self._commit(commit) for commit in commits]
            finally:
                self._fold()  # also entries whose fold was interrupted before
        self._checkout.changed.wake()
        return outcomes

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        refusal = judge(
            commit,
            self._heads.get,
            self._key_of,
            self._leases.fence_holds,
            self._checkout.clock.now_us,
        )
        if refusal is not None:
            return refusal
        position = Position(len(self._log) + 1)
        written: list[Record] = []
        heads: dict[str, Head] = {}
        for append in commit.appends:
            written += [replace(record, position=position) for record in append.records]
            before = self._heads.get(append.stream)
            heads[append.stream] = head_after(append, before, position)
        # This one step commits. An interrupt after it only delays the fold.
        self._log.append(_Committed(tuple(written), heads, commit.marks))
        self._fold()
        return Receipt(position, {stream: self._revision(stream) for stream in commit.watch})

    def _fold(self) -> None:
        """Applies new entries of the log to the dicts; one that was applied in part, once more."""
        while self._folded < len(self._log):
            entry = self._log[self._folded]
            for record in entry.records:
                known = self._streams.setdefault(record.stream, [])
                if not known or known[-1].revision < record.revision:
                    known.append(record)
                if record.key is not None:
                    self._keys[record.stream, record.key] = record.revision
            self._heads.update(entry.heads)
            self._marks.apply(entry.marks)
            self._folded += 1

    def _key_of(self, stream: str, key: str) -> int | None:
        return self._keys.get((stream, key))

    def _revision(self, stream: str) -> int:
        head = self._heads.get(stream)
        return 0 if head is None else head.revision

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        with self._checkout.writing():
            for stream, named in revisions.items():
                for revision in named:
                    self._rewrite(stream, revision, GONE)

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        with self._checkout.writing():
            for stream, named in payloads.items():
                for revision, payload in named.items():
                    self._rewrite(stream, revision, payload)

    def _rewrite(self, stream: str, revision: int, payload: bytes) -> None:
        known = self._streams[stream]
        place = revision - known[0].revision
        assert place >= 0, f"BUG: {stream!r} has no record {revision} of its own"
        if known[place].payload == GONE:
            return
        known[place] = rewritten = replace(known[place], payload=payload)
        entry = self._log[rewritten.position - 1]
        records = tuple(
            rewritten if (one.stream, one.revision) == (stream, revision) else one
            for one in entry.records
        )
        self._log[rewritten.position - 1] = replace(entry, records=records)

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        self._checkout.check_open()
        return []

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        with self._checkout.reading():
            records = self._streams.get(stream, [])
            first = records[0].revision if records else 1
            end = None if until is None else max(until - first + 1, 0)
            return records[max(after - first + 1, 0) : end][:limit]

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        with self._checkout.reading():
            records: list[Record] = []
            for entry in self._log[after:]:
                if len(records) >= limit:
                    break
                records.extend(entry.records)
            return records

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        with self._checkout.reading():
            records: list[Record] = []
            at = len(self._log) if until is None else min(until, len(self._log))
            while at > 0 and len(records) < limit:
                at -= 1
                records[:0] = self._log[at].records
            return records

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        with self._checkout.reading():
            return [self._heads.get(stream) for stream in streams]

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        with self._checkout.reading():
            names = [name for name in self._heads if name.startswith(prefix) and name > after]
            return sorted(names)[:limit]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        with self._checkout.reading():
            found: list[Found] = []
            for record in reversed(self._streams.get(stream, ())):
                name = record.checkpoint if key is None else record.key
                wanted = checkpoint if key is None else key
                if name is not None and (wanted is None or name == wanted):
                    found.append(Found(record.revision, name, record.time))
            return found[:limit]

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        gate = shut_gate()
        try:
            deadline = monotonic() + timeout_s
            self._checkout.changed.add(gate)
            while len(self._log) <= after and (left_s := deadline - monotonic()) > 0:
                self._checkout.check_open()
                gate.acquire(timeout=left_s)
        finally:
            self._checkout.changed.remove(gate)
        with self._checkout.reading():  # which says if it was closed meanwhile
            return Position(len(self._log))

    def moment(self) -> Moment:
        return Moment(self.wait(START, timeout_s=0))

    def marks_at_moment(self) -> MarksAtMoment:
        with self._checkout.reading():
            newest = Position(len(self._log))
            return MarksAtMoment(Moment(newest), newest, list(self._marks.ordered(None)))

    def now_us(self, stream: str) -> int:
        self._checkout.check_open()
        return self._checkout.clock.now_us()

    def size(self) -> int:
        """Returns the bytes of all payloads."""
        with self._checkout.reading():
            return sum(len(record.payload) for entry in self._log for record in entry.records)

    def close(self) -> None:
        self._checkout.close()


class _MemoryCheckout(Handle):
    """The one lock, the clock, and whether the store may still be used."""

    def __init__(self, clock: Clock, read_only: bool) -> None:
        super().__init__()
        self.clock = clock
        self.changed = Waiters()
        self._lock = RLock()
        self._is_held_here = held_here(self._lock)
        self._read_only = read_only

    def reading(self) -> RLock:
        """Returns the lock to take.

        Checks first whether the handle was inherited by a forked child, where the lock may have
        been held at the fork, and so for ever.
        """
        self.check_open()
        if self._is_held_here():
            raise reentered("a call")
        return self._lock

    def writing(self) -> RLock:
        lock = self.reading()
        if self._read_only:
            raise UsageError(
                "store is open read-only, found a write", hint="open it without read_only"
            )
        return lock

    def close(self) -> None:
        self.mark_closed()
        self.changed.wake()


class _MemoryObjects:
    def __init__(self, checkout: _MemoryCheckout) -> None:
        self._checkout = checkout
        self._data: dict[tuple[str, str], bytes] = {}

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        with self._checkout.writing():
            self._data[kind, name] = bytes(data)

    def get(self, kind: str, name: str) -> bytes | None:
        with self._checkout.reading():
            return self._data.get((kind, name))

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        with self._checkout.reading():
            return sorted(n for k, n in self._data if k == kind and n.startswith(prefix))

    def delete(self, kind: str, name: str) -> None:
        with self._checkout.writing():
            self._data.pop((kind, name), None)


class _MemoryLeases:
    """The leases. The greatest epoch of released ones is kept: no epoch is repeated (clause 16)."""

    def __init__(self, checkout: _MemoryCheckout) -> None:
        self._checkout = checkout
        self._leases: dict[str, Lease] = {}
        self._released = 0

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        with self._checkout.writing():
            held = self._held(name)
            if held is not None and held.owner != owner:
                return None
            if held is None:
                last = self._leases.get(name)
                least = self._released if last is None else last.epoch
                held = Lease(name, owner, least + 1, 0)
            return self._extend(held, ttl_s)

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        with self._checkout.writing():
            held = self._held(lease.name)
            if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
                return None
            return self._extend(held, ttl_s)

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
        return [self.renew(lease, ttl_s=ttl_s) for lease in leases]

    def release(self, lease: Lease) -> None:
        with self._checkout.writing():
            last = self._leases.get(lease.name)
            if last is not None and (last.owner, last.epoch) == (lease.owner, lease.epoch):
                self._released = max(self._released, last.epoch)
                del self._leases[lease.name]

    def holder(self, name: str) -> Lease | None:
        with self._checkout.reading():
            return self._held(name)

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        with self._checkout.reading():
            now_us = self._checkout.clock.boot_us()
            return [
                Held(last.name, last.owner, last.epoch, last.expires_us > now_us, left_us)
                for last in sorted(self._leases.values(), key=lambda lease: lease.name)
                if last.name.startswith(prefix) and last.name > after
                for left_us in (last.expires_us - now_us,)
            ][:limit]

    def fence_holds(self, fence: Fence) -> bool:
        """Returns whether a fence holds by clause 6; the caller has the lock."""
        held = self._held(fence.name)
        return held is not None and (held.owner, held.epoch) == (fence.owner, fence.epoch)

    def _held(self, name: str) -> Lease | None:
        lease = self._leases.get(name)
        if lease is None or lease.expires_us <= self._checkout.clock.boot_us():
            return None
        return lease

    def _extend(self, lease: Lease, ttl_s: float) -> Lease:
        ends_us = self._checkout.clock.boot_us() + round(ttl_s * 1_000_000)
        # Never sooner than before: a caller may rely on the later end that it was promised.
        extended = replace(lease, expires_us=max(ends_us, lease.expires_us))
        self._leases[lease.name] = extended
        return extended


class _MemoryMarks:
    def __init__(self, checkout: _MemoryCheckout) -> None:
        self._checkout = checkout
        self._marks: dict[tuple[str, str], Mark] = {}
        self._claims: dict[tuple[str, str], tuple[str, int]] = {}  # owner, end on the boot clock

    def apply(self, marks: Sequence[Mark | Cleared]) -> None:
        """Sets and clears marks of a commit and ends claims on them; the caller has the lock."""
        for mark in marks:
            place = mark.index, mark.key
            self._claims.pop(place, None)
            if isinstance(mark, Mark):
                self._marks[place] = mark
            else:
                self._marks.pop(place, None)

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        with self._checkout.writing():
            now_us = self._checkout.clock.boot_us()
            due_us = self._checkout.clock.now_us()
            taken = [
                mark
                for mark in self.ordered(index)
                if mark.due <= due_us and not self._claimed(mark, now_us)
            ][:n]
            for mark in taken:
                self._claims[mark.index, mark.key] = owner, now_us + round(ttl_s * 1_000_000)
            return taken

    def release(self, index: str, key: str, owner: str) -> None:
        with self._checkout.writing():
            claim = self._claims.get((index, key))
            if claim is not None and claim[0] == owner:
                del self._claims[index, key]

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        with self._checkout.reading():
            return [
                mark for mark in self.ordered(index) if due_before is None or mark.due < due_before
            ][:limit]

    def find(self, query: MarkQuery) -> Sequence[Mark]:
        with self._checkout.reading():
            if query.index is not None and query.keys is not None:
                named = [self._marks.get((query.index, key)) for key in set(query.keys)]
                return query.pick(mark for mark in named if mark is not None)
            return query.pick(self._marks.values())

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        with self._checkout.reading():
            now_us = self._checkout.clock.boot_us()
            claims = [
                Claim(*place, owner, ends_us - now_us)
                for place, (owner, ends_us) in sorted(self._claims.items())
            ]
            return [claim for claim in claims if claim.left_us > 0][:limit]

    def ordered(self, index: str | None) -> Sequence[Mark]:
        marks = [mark for mark in self._marks.values() if index is None or mark.index == index]
        return sorted(marks, key=mark_order)

    def _claimed(self, mark: Mark, now_us: int) -> bool:
        claim = self._claims.get((mark.index, mark.key))
        return claim is not None and now_us < claim[1]


class _MemoryInspection:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "memory",
            "place": "memory:",
            "store": self._backend.store,
            "format": 2,
            "durability": self._backend.durability,
            "size_bytes": self._backend.size(),
            "reports": [],
        }

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields nothing: this backend stores no bytes that could be damaged."""
        self._backend.size()
        return iter(())
