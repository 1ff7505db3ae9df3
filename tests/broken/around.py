"""Wrong in between: a backend around a sound one, of any kind, with one fault in its logic.

Used in the processes of T9, each of which wraps its own handle.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import (
    START,
    Append,
    Backend,
    Commit,
    Head,
    Lease,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import SystemClock
from holdfast.core.event import record_link


class Around:
    """Passes everything on."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return [self.commit_one(commit) for commit in commits]

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        return self.inner.commit([commit])[0]

    def rebased(self, commit: Commit, *, keyless: bool = False) -> Commit:
        """Returns the commit as if it had been made for the streams as they are now."""
        heads = self.inner.heads([append.stream for append in commit.appends])
        time = max([commit.time, *(head.time for head in heads if head)])
        appends = [
            rebase(append, head, time, keyless)
            for append, head in zip(commit.appends, heads, strict=True)
        ]
        return replace(commit, time=time, appends=tuple(appends))


def rebase(append: Append, head: Head | None, time: int, keyless: bool) -> Append:
    if append.fork or head is None:
        revision, link = append.expected, append.previous
    else:
        revision, link = head.revision, head.link
    records: list[Record] = []
    previous = bytes(32) if link is None else link
    for number, record in enumerate(append.records, revision + 1):
        key = None if keyless else record.key
        record = replace(record, revision=number, time=time, key=key)
        previous = record_link(previous, record)
        records.append(replace(record, link=previous))
    return Append(append.stream, revision, tuple(records), append.fork, link)


class ExpectsNothing(Around):
    """Puts what came too late behind whatever is there: the last writer wins."""

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        while True:
            outcome = self.inner.commit([commit])[0]
            streams = [append.stream for append in commit.appends if not append.fork]
            if isinstance(outcome, Receipt) or outcome.stream not in streams:
                return outcome
            if outcome.reason != "conflict":
                return outcome
            commit = self.rebased(commit)


class GuardsNothing(Around):
    """Does not look at the streams that a commit only read."""

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        return self.inner.commit([replace(commit, reads=())])[0]


class RemembersHeads(Around):
    """Asks for a head once in twenty times, and answers from memory otherwise."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._known: dict[str, Head | None] = {}
        self._asked = itertools.count(1)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        if next(self._asked) % 20 == 0:
            self._known.clear()
        for stream in streams:
            if stream not in self._known:
                self._known[stream] = self.inner.heads([stream])[0]
        return [self._known[stream] for stream in streams]

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        outcome = self.inner.commit([commit])[0]
        for append in commit.appends:
            self._known.pop(append.stream, None)
        return outcome


class ServesOldSnapshots(Around):
    """Answers every third question from a replica that is some way behind."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._old: dict[str, list[Head]] = {}
        self._asked = itertools.count(1)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        heads = self.inner.heads(streams)
        is_old = next(self._asked) % 3 == 0
        answers: list[Head | None] = []
        for stream, head in zip(streams, heads, strict=True):
            seen = self._old.setdefault(stream, [])
            if head is not None and (not seen or seen[-1].revision < head.revision):
                seen.append(head)
            answers.append(seen[-5:][0] if is_old and seen else head)
        return answers


class WritesHalf(Around):
    """Writes the first stream of a commit, and forgets the others."""

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        return self.inner.commit([replace(commit, appends=commit.appends[:1])])[0]


class AnswersFirst(Around):
    """Acknowledges at once and writes afterwards, if nothing is in the way then."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._waiting: list[Commit] = []
        self._lock = threading.Lock()

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        with self._lock:
            before, self._waiting = self._waiting, [commit]
        if before:
            self.inner.commit(before)
        return Receipt(Position(self.inner.wait(START, timeout_s=0) + 1))

    def close(self) -> None:
        if self._waiting:
            self.inner.commit(self._waiting)
        self.inner.close()


class SendsTwice(Around):
    """Loses the answer now and then, and sends the commit again as if it were a new one."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._sent = itertools.count(1)

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        outcome = self.inner.commit([commit])[0]
        if isinstance(outcome, Receipt) and next(self._sent) % 10 == 0 and commit.appends:
            again = self.rebased(replace(commit, reads=(), fence=None, marks=()), keyless=True)
            self.inner.commit([again])
        return outcome


class RefusesAfterWriting(Around):
    """Says now and then of a commit that it came too late, and has written it."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._sent = itertools.count(1)

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        outcome = self.inner.commit([commit])[0]
        if isinstance(outcome, Receipt) and next(self._sent) % 7 == 0 and commit.appends:
            append = commit.appends[0]
            [head] = self.inner.heads([append.stream])
            return Refusal("conflict", append.stream, append.expected, head)
        return outcome


class MixesAnswers(Around):
    """Gives the answers of a list of commits in the wrong order."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return self.inner.commit(commits)[::-1]


class ForgetsKeys(Around):
    """Stores no keys: what is sent again is written again."""

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        return self.inner.commit([self._keyless(commit)])[0]

    def _keyless(self, commit: Commit) -> Commit:
        if all(append.records[0].key is None for append in commit.appends):
            return commit
        appends = [
            rebase(append, _head_before(append), commit.time, True) for append in commit.appends
        ]
        return replace(commit, appends=tuple(appends))


def _head_before(append: Append) -> Head | None:
    if append.previous is None:
        return None
    return Head(append.expected, append.previous, 0, START, 1)


class KeepsKeysToItself(ForgetsKeys):
    """Knows the keys of this process only: whoever goes on for it when it died writes again."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._keys: dict[tuple[str, str], int] = {}

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        keys = [(append.stream, append.records[0].key) for append in commit.appends]
        for stream, key in keys:
            if key is not None and (stream, key) in self._keys:
                return Refusal("duplicate", stream, revision=self._keys[stream, key])
        outcome = self.inner.commit([self._keyless(commit)])[0]
        if isinstance(outcome, Receipt):
            for append, (stream, key) in zip(commit.appends, keys, strict=True):
                if key is not None:
                    self._keys[stream, key] = append.expected + 1
        return outcome


class FencesNothing(Around):
    """Lets a writer in whose lease has passed on."""

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        return self.inner.commit([replace(commit, fence=None)])[0]


class KeepsLeasesToItself(FencesNothing):
    """Keeps leases in this process, where no other one sees them."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._own = MemoryBackend(clock=SystemClock())
        self.leases = self._own.leases

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        fence = commit.fence
        if fence is not None:
            held = self.leases.holder(fence.name)
            if held is None or (held.owner, held.epoch) != (fence.owner, fence.epoch):
                return Refusal("fenced", fence.name)
        return super().commit_one(commit)


class _Leases:
    """Leases around leases."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _OneEpoch(_Leases):
    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        lease = self.inner.acquire(name, owner, ttl_s=ttl_s)
        return lease and replace(lease, epoch=1)

    def release(self, lease: Lease) -> None:
        held = self.inner.holder(lease.name)
        if held is not None and held.owner == lease.owner:
            self.inner.release(held)


class ReusesEpochs(Around):
    """Gives every holder the same epoch, and tells them apart by name only."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.leases = _OneEpoch(inner.leases)

    def commit_one(self, commit: Commit) -> Receipt | Refusal:
        fence = commit.fence
        held = None if fence is None else self.inner.leases.holder(fence.name)
        if fence is not None and held is not None:
            commit = replace(commit, fence=replace(fence, epoch=held.epoch))
        return self.inner.commit([commit])[0]


class _NoEnd(_Leases):
    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        return self.inner.acquire(name, owner, ttl_s=ttl_s + 100)


class NeverExpires(Around):
    """Takes a lease whose time is up for one that holds."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.leases = _NoEnd(inner.leases)
