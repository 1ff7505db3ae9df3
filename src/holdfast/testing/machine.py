"""A Hypothesis state machine that runs any backend in step with the memory backend.

    class TestMine(machine_for(make, reopen=make).TestCase): ...

Every rule does the same to both and compares the answers. The memory backend is the model because
it is short enough to be checked against the contract by reading. Each backend chooses its positions
and epochs itself, so these are compared by the promised order, never by value.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import (
    START,
    Append,
    Backend,
    Cleared,
    Commit,
    Fence,
    Head,
    Lease,
    Mark,
    MarkQuery,
    Position,
    Receipt,
    Record,
    Refusal,
    Rewrites,
    find_marks,
    keeps_meta,
    marks_at_moment,
    position_before,
    read_back,
    read_many,
    renew_many,
    takes_record_keys,
)
from holdfast.clock import Clock
from holdfast.testing.clock import FakeClock
from holdfast.testing.meta import METAS
from holdfast.testing.records import RecordBuilder

Make = Callable[[Path, Clock], Backend]

STEADY = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""No deadline, because the time of a sync varies; a failure prints a blob that replays it."""

_STREAMS = st.sampled_from(["a", "b", "a/b", "%", "é", "'\U0001f600"])
_KEYS = st.sampled_from([None, None, None, None, "k1", "k2", "K1"])
_CHECKPOINTS = st.sampled_from([None, "p", "q"])
_METAS = st.sampled_from([None, None, *METAS])
_OWNERS = st.sampled_from(["w1", "w2", "w3"])
_LEASES = st.sampled_from(["l1", "l2"])
_INDEXES = st.sampled_from(["i", "j"])
_MARK_KEYS = st.sampled_from(["m", "n", "o", "é"])
_SECONDS = st.sampled_from([0.0, 1.0, 4.0, 11.0])
_LIMITS = st.none() | st.integers(0, 5)
_OFFSETS = st.sampled_from([0, 0, 0, 0, -1, 1])


class Openers(NamedTuple):
    """How a backend is opened in an empty directory, and again (None if it is not durable)."""

    make: Make
    reopen: Make | None


class BackendMachine(RuleBasedStateMachine):
    """The rules; `machine_for` adds the backend under test."""

    openers: ClassVar[Openers]

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="holdfast-machine-"))
        self.clock = FakeClock()
        self.build = RecordBuilder(self.clock.now_us())
        self.model: Backend = MemoryBackend(clock=self.clock)
        self.real = self.openers.make(self.place, self.clock)
        self.positions: dict[Position, Position] = {START: START}
        """The backend's position of each commit, by the model's position."""
        self.leases: list[tuple[Lease, Lease]] = []
        """Every lease that was ever given, by the model and by the backend."""
        self.rewritten = START
        """The backend's position after the last `rewrite`, which may take a position."""

    def teardown(self) -> None:
        self.real.close()
        shutil.rmtree(self.place)

    @rule(stream=_STREAMS, size=st.integers(1, 3), key=_KEYS, checkpoint=_CHECKPOINTS, meta=_METAS)
    def append(
        self, stream: str, size: int, key: str | None, checkpoint: str | None, meta: str | None
    ) -> None:
        """Commits to one stream, the usual case."""
        append = self._append(None, stream, 0, size, key, checkpoint, meta)
        self._commit([self.build.commit(append)])

    @rule(stream=_STREAMS, keys=st.lists(_KEYS, min_size=1, max_size=3))
    def append_keyed(self, stream: str, keys: list[str | None]) -> None:
        """Commits records with a key each (clause 26), if the backend takes them; some repeat."""
        keys = [key if key not in keys[:at] else None for at, key in enumerate(keys)]
        if not takes_record_keys(self.real):
            keys = keys[:1]
        payloads = [b'"%d"' % (self.build.time + n) for n in range(len(keys))]
        [head] = self.model.heads([stream])
        append = self.build.append(stream, *payloads, behind=head, keys=keys)
        self._commit([self.build.commit(append)])

    @rule(
        plans=st.lists(
            st.lists(
                st.tuples(_STREAMS, _OFFSETS, st.integers(1, 3), _KEYS, _CHECKPOINTS),
                min_size=1,
                max_size=3,
                unique_by=lambda plan: plan[0],
            ),
            min_size=1,
            max_size=3,
        ),
        read=st.none() | st.tuples(_STREAMS, _OFFSETS),
    )
    def commit(
        self,
        plans: list[list[tuple[str, int, int, str | None, str | None]]],
        read: tuple[str, int] | None,
    ) -> None:
        """Sends a list of commits, each to several streams, some of them stale."""
        commits: list[Commit] = []
        tails: dict[str, Head | Append] = {}
        for plan in plans:
            appends = [
                self._append(tails.get(stream), stream, offset, size, key, checkpoint)
                for stream, offset, size, key, checkpoint in plan
            ]
            # Built on the commit before. If that one is refused, this one must be refused, too.
            tails |= {append.stream: append for append in appends}
            reads = [(read[0], max(0, self._revision(read[0]) + read[1]))] if read else []
            commits.append(self.build.commit(*appends, reads=reads))
        watched = replace(commits[-1], watch=("a", "none"))
        self._commit([*commits[:-1], watched])

    @rule(
        index=_INDEXES,
        marks=st.lists(
            st.tuples(_MARK_KEYS, st.sampled_from([None, 0, 5]), st.integers(-1, 1)),
            min_size=1,
            max_size=3,
            unique_by=lambda mark: mark[0],
        ),
        stale=st.booleans(),
    )
    def mark(self, index: str, marks: list[tuple[str, int | None, int]], stale: bool) -> None:
        """Commits marks, set (due now or later) or cleared, under a read that may be stale."""
        now_us = self.clock.now_us()
        changes = [
            Cleared(index, key)
            if delay is None
            else Mark(index, key, now_us + delay * 1_000_000, priority, _group(key))
            for key, delay, priority in marks
        ]
        reads = [("a", self._revision("a") + stale)]
        self._commit([self.build.commit(reads=reads, marks=changes)])

    @rule(stream=_STREAMS, name=st.sampled_from(["f1", "f2", "a"]), at=st.integers(0, 3))
    def fork(self, stream: str, name: str, at: int) -> None:
        parents = self.model.read(stream, limit=at)
        behind = parents[-1] if parents else None
        self._commit([self.build.commit(self.build.append(name, behind=behind, fork=True))])

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data(), stream=_STREAMS, wrong=st.sampled_from([0, 0, 0, 10**15]))
    def fenced(self, data: st.DataObject, stream: str, wrong: int) -> None:
        """Commits under a lease that was given earlier, and may have been lost since."""
        ours, theirs = data.draw(st.sampled_from(self.leases))
        append = self.build.append(stream, behind=self.model.heads([stream])[0])
        commit = self.build.commit(append)
        self._commit(
            [replace(commit, fence=Fence(ours.name, ours.owner, ours.epoch + wrong))],
            [replace(commit, fence=Fence(theirs.name, theirs.owner, theirs.epoch + wrong))],
        )

    def _append(
        self,
        tail: Head | Append | None,
        stream: str,
        offset: int,
        size: int,
        key: str | None,
        checkpoint: str | None,
        meta: str | None = None,
    ) -> Append:
        behind = tail or self.model.heads([stream])[0]
        if offset:
            revision = max(0, self._revision(stream) + offset)
            behind = Head(revision, bytes(32), 0, START, 1) if revision else None
        payloads = [b'"%d"' % (self.build.time + n) for n in range(size)]
        known = meta if keeps_meta(self.real) else None
        return self.build.append(
            stream, *payloads, behind=behind, key=key, checkpoint=checkpoint, meta=known
        )

    def _commit(self, commits: list[Commit], real: list[Commit] | None = None) -> None:
        expected = self.model.commit(commits)
        found = self.real.commit(commits if real is None else real)
        assert len(found) == len(expected)
        for ours, theirs in zip(expected, found, strict=True):
            if isinstance(ours, Receipt):
                assert isinstance(theirs, Receipt), f"expected a receipt, found {theirs}"
                assert theirs.news == ours.news
                assert theirs.position > max(self.positions.values())
                self.positions[ours.position] = theirs.position
            else:
                assert isinstance(theirs, Refusal), f"expected {ours}, found {theirs}"
                assert (theirs.reason, theirs.stream) == (ours.reason, ours.stream)
                assert theirs.revision == ours.revision
                if ours.reason == "conflict":
                    assert theirs == replace(ours, head=self._placed(ours.head))

    def _revision(self, stream: str) -> int:
        [head] = self.model.heads([stream])
        return head.revision if head else 0

    def _placed(self, item: Any) -> Any:
        """Returns a head or record of the model with the backend's position."""
        return item and replace(item, position=self.positions[item.position])

    @rule(after=st.integers(0, 8), until=st.none() | st.integers(0, 8), limit=_LIMITS)
    def read(self, after: int, until: int | None, limit: int | None) -> None:
        for stream in [*self.model.streams(), "none"]:
            expected = self.model.read(stream, after=after, until=until, limit=limit)
            found = self.real.read(stream, after=after, until=until, limit=limit)
            assert found == [self._placed(record) for record in expected]

    @rule(streams=st.lists(_STREAMS, max_size=3), limit=st.integers(0, 4))
    def read_many(self, streams: list[str], limit: int) -> None:
        expected = read_many(self.model, [*streams, "none"], limit=limit)
        found = read_many(self.real, [*streams, "none"], limit=limit)
        assert found == [[self._placed(record) for record in records] for records in expected]

    @rule(limit=st.integers(1, 7))
    def read_all(self, limit: int) -> None:
        """Reads page by page; pages may differ in size, but not in their sum."""
        found: list[Record] = []
        while page := self.real.read_all(after=found[-1].position if found else START, limit=limit):
            found += page
        expected = self.model.read_all(limit=1_000_000)
        assert found == [self._placed(record) for record in expected]

    @rule(limit=st.integers(1, 7))
    def read_back(self, limit: int) -> None:
        """Reads page by page from the end; each page has whole commits."""
        found: list[Record] = []
        until: Position | None = None
        while page := read_back(self.real, until=until, limit=limit):
            found = page + found
            until = position_before(self.real, page[0])
        expected = self.model.read_all(limit=1_000_000)
        assert [(one.stream, one.link) for one in found] == [
            (one.stream, one.link) for one in expected
        ]

    @rule(after=st.sampled_from(["", "%", "a", "a/b", "f1"]), limit=st.integers(0, 5))
    def streams(self, after: str, limit: int) -> None:
        for prefix in ("", "a", "A", "f", "%", "_", "é"):
            expected = self.model.streams(prefix=prefix, after=after, limit=limit)
            assert self.real.streams(prefix=prefix, after=after, limit=limit) == expected

    @rule(key=_KEYS, checkpoint=_CHECKPOINTS, limit=_LIMITS)
    def find(self, key: str | None, checkpoint: str | None, limit: int | None) -> None:
        for stream in [*self.model.streams(), "none"]:
            if key is not None:
                assert self.real.find(stream, key=key) == self.model.find(stream, key=key)
            expected = self.model.find(stream, checkpoint=checkpoint, limit=limit)
            assert self.real.find(stream, checkpoint=checkpoint, limit=limit) == expected

    @invariant()
    def heads_agree(self) -> None:
        names = [*self.model.streams(), "none"]
        assert self.real.heads(names) == [self._placed(head) for head in self.model.heads(names)]
        newest = self.model.wait(START, timeout_s=0)
        assert self.real.wait(START, timeout_s=0) == max(self.positions[newest], self.rewritten)
        moment = self.real.moment()
        assert all(moment.has(position) for position in self.positions.values())

    @rule(seconds=_SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(name=_LEASES, owner=_OWNERS, ttl_s=st.sampled_from([2.0, 10.0]))
    def acquire(self, name: str, owner: str, ttl_s: float) -> None:
        ours = self.model.leases.acquire(name, owner, ttl_s=ttl_s)
        theirs = self.real.leases.acquire(name, owner, ttl_s=ttl_s)
        assert (theirs is None) == (ours is None), f"expected {ours}, found {theirs}"
        if ours is None or theirs is None:
            return
        assert (theirs.name, theirs.owner) == (ours.name, ours.owner)
        given = [pair for pair in self.leases if pair[0].name == name]
        if given:
            before, last = given[-1]
            assert theirs.epoch >= last.epoch
            assert (theirs.epoch == last.epoch) == (ours.epoch == before.epoch)
        self.leases.append((ours, theirs))

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data(), ttl_s=st.sampled_from([2.0, 10.0]))
    def renew(self, data: st.DataObject, ttl_s: float) -> None:
        asked = data.draw(st.lists(st.sampled_from(self.leases), min_size=1, max_size=3))
        if len(asked) == 1:
            [(ours, theirs)] = asked
            expected = [self.model.leases.renew(ours, ttl_s=ttl_s)]
            found = [self.real.leases.renew(theirs, ttl_s=ttl_s)]
        else:
            expected = [*renew_many(self.model.leases, [one for one, _ in asked], ttl_s=ttl_s)]
            found = [*renew_many(self.real.leases, [one for _, one in asked], ttl_s=ttl_s)]
        assert [one is None for one in found] == [one is None for one in expected], (
            f"expected {expected}, found {found}"
        )

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ours, theirs = data.draw(st.sampled_from(self.leases))
        self.model.leases.release(ours)
        self.real.leases.release(theirs)

    @rule(name=_LEASES)
    def holder(self, name: str) -> None:
        ours, theirs = self.model.leases.holder(name), self.real.leases.holder(name)
        assert (theirs and theirs.owner) == (ours and ours.owner)
        listed = [(one.name, one.owner, one.is_held) for one in self.real.leases.list()]
        assert listed == [(one.name, one.owner, one.is_held) for one in self.model.leases.list()]

    @rule(index=_INDEXES, owner=_OWNERS, n=st.integers(0, 3), ttl_s=st.sampled_from([2.0, 10.0]))
    def claim(self, index: str, owner: str, n: int, ttl_s: float) -> None:
        expected = self.model.marks.claim(index, owner, n=n, ttl_s=ttl_s)
        assert self.real.marks.claim(index, owner, n=n, ttl_s=ttl_s) == expected

    @rule(index=_INDEXES, key=_MARK_KEYS, owner=_OWNERS)
    def unclaim(self, index: str, key: str, owner: str) -> None:
        self.model.marks.release(index, key, owner)
        self.real.marks.release(index, key, owner)

    @rule(index=_INDEXES, before=st.none() | st.integers(0, 9), limit=st.integers(0, 9))
    def marks(self, index: str, before: int | None, limit: int) -> None:
        due = None if before is None else self.clock.now_us() + before * 1_000_000
        expected = self.model.marks.list(index, due_before=due, limit=limit)
        assert self.real.marks.list(index, due_before=due, limit=limit) == expected
        claims = [(one.index, one.key, one.owner) for one in self.real.marks.claims()]
        assert claims == [(one.index, one.key, one.owner) for one in self.model.marks.claims()]
        # There is no other writer, so the moment of the marks is now.
        ours, theirs = marks_at_moment(self.model), marks_at_moment(self.real)
        assert (theirs.marks, theirs.exact) == (ours.marks, True)
        newest = max((one.position for one in self.model.read_all(limit=1_000_000)), default=START)
        assert theirs.newest >= self.positions[newest]
        assert theirs.moment.has(theirs.newest)
        assert all(theirs.moment.has(position) for position in self.positions.values())

    @rule(index=_INDEXES, key=_MARK_KEYS, limit=st.integers(1, 5))
    def find_marks(self, index: str, key: str, limit: int) -> None:
        """Finds marks by each kind of query, in one index or in all (clause 32)."""
        there = {mark.key: mark for mark in self.model.marks.list(index)}
        now_us = self.clock.now_us()
        if not there:
            marks = [Mark(index, one, now_us, 0, _group(one)) for one in ("m", "n", "o", "é")]
            self._commit([self.build.commit(marks=marks)])
            there = {mark.key: mark for mark in marks}
        place = there.get(key) or Mark(index, key, now_us)  # a place where there may be no mark
        for query in (
            MarkQuery(index, keys=(key, "o"), limit=limit),
            MarkQuery(group=_group(key), limit=limit),
            MarkQuery(index, after=place, limit=limit),
            MarkQuery(limit=limit),
        ):
            assert find_marks(self.real.marks, query) == find_marks(self.model.marks, query)

    @rule(stream=_STREAMS, revisions=st.lists(st.integers(1, 6), max_size=3), purge=st.booleans())
    def let_go(self, stream: str, revisions: list[int], purge: bool) -> None:
        """Lets go of payloads (clause 28), and purges their bytes (29); later reads compare."""
        if not (isinstance(self.model, Rewrites) and isinstance(self.real, Rewrites)):
            return
        [head] = self.model.heads([stream])
        # A stream's own records: what a fork inherits is let go of in its origin.
        own = range(0) if head is None else range(head.first, head.revision + 1)
        there = [one for one in sorted(set(revisions)) if one in own]
        for backend in (self.model, self.real):
            backend.rewrite({stream: there} if there else {})
            if purge:
                backend.purge(whole=True)
        self.rewritten = self.real.wait(START, timeout_s=0)

    @rule(name=st.sampled_from(["ab/0", "ab/01", "c"]), data=st.none() | st.binary(max_size=9))
    def object(self, name: str, data: bytes | None) -> None:
        for backend in (self.model, self.real):
            if data is None:
                backend.objects.delete("blob", name)
            else:
                backend.objects.put("blob", name, data)
        assert self.real.objects.get("blob", name) == data
        assert self.real.objects.names("blob") == self.model.objects.names("blob")

    @precondition(lambda self: self.openers.reopen is not None)
    @rule(closed=st.booleans())
    def open_again(self, closed: bool) -> None:
        """Opens the backend again, after all leases and claims have expired.

        They may also end with the handle that took them, so they could not be compared.
        """
        reopen = self.openers.reopen
        assert reopen is not None
        self.clock.advance(11)
        before = self.real
        if closed:
            before.close()
        self.real = reopen(self.place, self.clock)
        before.close()
        assert self.real.marks.list() == self.model.marks.list()


def _group(key: str) -> str:
    """Returns the group of a mark; one group is a prefix of the other."""
    return "g" if key in ("m", "o") else "gh"


def machine_for(
    make: Make, *, reopen: Make | None = None, steady: settings = STEADY
) -> type[BackendMachine]:
    """Returns the machine for one backend; a test class derives from its `TestCase`.

    `make` opens the backend in an empty directory. `reopen` opens a durable backend again.
    """

    class Machine(BackendMachine):
        openers = Openers(make, reopen)

    Machine.TestCase.settings = steady
    return Machine
