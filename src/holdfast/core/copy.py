"""Copies a store into another, on whichever backends, with equal links in every stream.

What is copied: every event as it is, with its key, checkpoint name and time; the blobs that events
name; the marks. Forks stay references. What is not: leases and claims, which belong to the workers
of the source and end with them; snapshots, which the target makes anew; positions; and a stream
whose lifetime is over, of which a name and a head may be left: it has nothing to copy.

A copy can be killed at any point and run again. A blob is written before the event that names it,
and a commit whole, so what the target holds at any time is a beginning of every stream. Before
anything is written, the target's streams are compared with the source's: links are chained, so one
equal link says that everything before it is equal. A target that holds anything else is refused.

A source may be written to meanwhile: what it had when the copy began is copied, and the answer says
that there is more. Run it again to catch up; marks are right after a run during which nothing was
written. Memory is bounded by a batch, not by the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from msgspec import Struct

from holdfast.backends.protocol import (
    GONE,
    START,
    Append,
    Backend,
    Cleared,
    Commit,
    Head,
    KeepsEnded,
    Mark,
    Position,
    Record,
    Refusal,
    Rewrites,
    Shortens,
    has_meta,
    is_shortened,
    keeps_meta,
)
from holdfast.core import codec
from holdfast.core.commit import meta_not_kept
from holdfast.core.erased_ledger import Ledger
from holdfast.core.event import follows
from holdfast.core.expiry import EXPIRING, HOLDS
from holdfast.core.holds import keep_held
from holdfast.core.log import Log
from holdfast.core.retention import STREAM, Told, ledger, tell_again
from holdfast.errors import ConflictError, CorruptError, UsageError

COMMITS_PER_BATCH = 200
BYTES_PER_BATCH = 4 << 20
RECORDS_PER_READ = 500
MARKS_PER_COMMIT = 500
BLOBS_STAY_US = 60_000_000
MARKS_MAX = 1 << 62
_BLOBS_KNOWN_MAX = 100_000

_Tail = tuple[int, bytes]
_NOTHING: _Tail = (0, b"")

Progress = Callable[[int, int], None]
"""Called with the number of events passed so far, and how many there are."""


def parts_of(log: Log) -> list[Backend]:
    """Returns the backends that a log is made of, its own if it is one."""
    return log.routes.parts() or [log._backend]


class Copied(Struct, frozen=True):
    """What a copy did."""

    commits: int
    events: int
    blobs: int
    marks: int  # set or cleared
    skipped: int  # events that the target had already
    ended: int  # events of scopes whose lifetime is over: they are not copied
    is_behind: bool  # the source was written to meanwhile: run it again


def copy_log(source: Log, target: Log, *, progress: Progress | None = None) -> Copied:
    """Copies what the target lacks, and verifies that every head is equal."""
    check_related(source, target)
    copier = Copier(source, target, progress, ledger=Ledger(source, target))
    copied = copier.run()
    copier.tell_erased()
    return copied


class Copier:
    """One run. A mixed store is copied part by part, and written to part by part."""

    def __init__(
        self,
        source: Log,
        target: Log,
        progress: Progress | None,
        ends: Callable[[list[str]], dict[str, int]] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`ends` says when streams end by themselves, -1 for those that have; else heads do.

        What `ledger` knows to be erased is copied without its data, if there is one.
        """
        self._ledger = ledger
        self.erased: dict[tuple[str, int], Told] = {}
        """What was erased of events that the source still has whole."""
        self._source = source
        self._target = target
        self._progress = progress
        self._ends = ends or self._ends_by_head
        self._parts = parts_of(target)
        self._known: set[tuple[int, str]] = set()
        self._commits = self._events = self._blobs = self._skipped = self._ended = 0

    def run(self) -> Copied:
        began = self._source.position()
        total = _count(self._source._backend)
        for part in parts_of(self._source):
            # The goal is fixed before the first event is read: a busy source would have no end.
            for batch in batches(commits_until(part, START, part.wait(START, timeout_s=0))):
                self.copy(batch, total)
        marks = self.copy_marks(self._source.marks.list(limit=MARKS_MAX))
        is_behind = _compare_heads(self._source, self._target._backend, began)
        is_behind = is_behind or self._source.position() != began
        return self.copied(marks, is_behind=is_behind)

    def copied(self, marks: int, *, is_behind: bool) -> Copied:
        """Returns what was done so far."""
        return Copied(
            self._commits, self._events, self._blobs, marks, self._skipped, self._ended, is_behind
        )

    def copy(self, batch: list[list[Record]], total: int) -> None:
        """Copies what the target lacks of some commits, and says how far it is."""
        if self._ledger is not None:
            batch = [[self._without_erased(self._ledger, one) for one in many] for many in batch]
        self._copy(batch)
        if self._progress is not None:
            passed = self._events + self._skipped + self._ended
            self._progress(passed, max(total, passed))

    def tell_erased(
        self, told: Mapping[tuple[str, int], Told] | None = None, key: str | None = None
    ) -> None:
        """Tells in the target what was erased of what it has, unless it says so already.

        `told` has what is known of these events besides: what was let go of in another way.
        """
        gone = {name: one.after((told or {}).get(name)) for name, one in self.erased.items()}
        gone = {**(told or {}), **gone}
        known = ledger(self._target) if gone else {}
        if untold := {name: one for name, one in gone.items() if name not in known}:
            tell_again(self._target, untold, key)

    def _without_erased(self, ledger: Ledger, record: Record) -> Record:
        found = ledger.applied(record)
        if found is None:
            return record
        without, digest, steps = found
        is_gone = without.payload == GONE
        name = record.stream, record.revision
        self.erased[name] = Told(digest, "erased", record.position, steps, is_gone)
        return without

    # --- events ----------------------------------------------------------------------------------

    def _copy(self, batch: list[list[Record]]) -> None:
        streams = sorted({record.stream for records in batch for record in records})
        heads = zip(streams, self._target.heads(streams), strict=True)
        known = {stream: (head.revision, head.link) if head else _NOTHING for stream, head in heads}
        ends = self._ends(streams)
        for place, part in enumerate(self._parts):
            wanted: list[Commit] = []
            for records in batch:
                mine = [r for r in records if self._target.routes.place_of(r.stream) == place]
                commit = _missing(mine, known, ends)
                sent = 0
                if commit is not None:
                    wanted.append(commit)
                    sent = sum(len(append.records) for append in commit.appends)
                ended = sum(ends[record.stream] < 0 for record in mine)
                self._events += sent
                self._ended += ended
                self._skipped += len(mine) - sent - ended
            for commit in wanted:
                self._copy_blobs(commit, place)
            self._commits += len(wanted)
            _send(part, wanted)
            every = [record for records in batch for record in records]
            self._let_go(part, [one for one in every if one.payload == GONE])
            self._shorten(part, [one for one in every if is_shortened(one.payload)])

    def _shorten(self, part: Backend, shorter: list[Record]) -> None:
        """Cuts out in the target what was cut out in the source since it was copied."""
        mine = [r for r in shorter if self._parts[self._target.routes.place_of(r.stream)] is part]
        wanted: dict[str, dict[int, bytes]] = {}
        for record in mine:
            there = part.read(record.stream, after=record.revision - 1, until=record.revision)
            if there and there[0].payload != record.payload:
                wanted.setdefault(record.stream, {})[record.revision] = record.payload
        if not wanted:
            return
        if not isinstance(part, Shortens):
            raise UsageError(
                "the target has data that was erased in the source, and cannot take it out",
                hint="copy into an empty store",
            )
        part.shorten(wanted)
        for stream, named in wanted.items():
            self._target.snapshots.forget(stream, max(named))

    def _let_go(self, part: Backend, gone: list[Record]) -> None:
        """Lets go in the target of what was let go of in the source since it was copied.

        An equal link says that two events were equal when they were written, and not that both
        still have their data.
        """
        mine = [
            r for r in gone if self._target.routes.place_of(r.stream) == self._parts.index(part)
        ]
        named: dict[str, list[int]] = {}
        for stream, records in groupby(mine, lambda record: record.stream):
            revisions = [record.revision for record in records]
            there = part.read(stream, after=revisions[0] - 1, until=revisions[-1])
            more = [r.revision for r in there if r.revision in revisions and r.payload != GONE]
            if more:
                named.setdefault(stream, []).extend(more)
        if not named:
            return
        if not isinstance(part, Rewrites):
            raise UsageError(
                "the target has data that the source has let go of, and cannot let go of it",
                hint="copy into an empty store",
            )
        part.rewrite(named)
        for stream, revisions in named.items():
            self._target.snapshots.forget(stream, max(revisions))

    def _ends_by_head(self, streams: list[str]) -> dict[str, int]:
        """Returns when each stream ends by itself; -1 where it has: no backend takes it then."""
        expiry = self._source.expiry
        ends: dict[str, int] = {}
        for stream, head in zip(streams, self._source.heads(streams), strict=True):
            if head is None or expiry.has_ended(stream, head):
                ends[stream] = -1
            elif expiry.is_due(stream, head):  # only a hold keeps it, and the copy has that too
                ends[stream] = self._end_of_held(stream)
            else:
                ends[stream] = expiry.end(stream, head)
        return ends

    def _slides(self, stream: str) -> bool:
        """Says whether the end of a stream slides; True where a damaged store cannot say."""
        try:
            [head] = self._source.heads([stream])
        except CorruptError:
            return True
        return head is not None and self._source.expiry.lifetime(stream, head).slides_us > 0

    def _end_of_held(self, stream: str) -> int:
        """Returns how a stream past its end is written: without one, which no backend refuses.

        What a target has begun with the end, and would let go of by itself, it has let go of.
        """
        [head] = self._target.heads([stream])
        return 0 if head is None or not head.expires_us else -1

    def _copy_blobs(self, commit: Commit, place: int) -> None:
        """Copies the blobs that a commit names, each verified against its digest."""
        for append in commit.appends:
            for record in append.records:
                for name, size in codec.blobs_in(record.payload):
                    if (place, name) in self._known:
                        continue
                    objects = self._parts[place].objects
                    # One that ends with its stream may be there for less long than this one needs.
                    # What belongs to one whose end slides stays until `retain`.
                    ends = append.expires_us and append.expires_us + BLOBS_STAY_US
                    if ends and self._slides(append.stream):
                        ends = 0
                    if ends or name not in objects.names("blob", prefix=name):
                        data = self._source.blobs.stored(name, size)
                        objects.put("blob", name, data, expires_us=ends)
                        self._blobs += 1
                    if ends:
                        continue
                    if len(self._known) >= _BLOBS_KNOWN_MAX:
                        self._known.clear()
                    self._known.add((place, name))

    # --- marks -----------------------------------------------------------------------------------

    def copy_marks(self, marks: list[Mark], among: Callable[[Mark], bool] | None = None) -> int:
        """Makes the target's marks those of the source; returns how many were set or cleared.

        Nobody but a copy has written to the target, so a mark that only it has was cleared in the
        source since the last run. Where only some scopes are copied, `among` says which marks are
        about them: the others are left as they are.
        """
        wanted = {(mark.index, mark.key): mark for mark in marks}
        changed = 0
        held = [mark.key for mark in marks if mark.index == HOLDS]
        for place, part in enumerate(self._parts):
            every = part.marks.list(limit=MARKS_MAX)
            mine = [mark for mark in every if among is None or among(mark)]
            there = {(mark.index, mark.key): mark for mark in mine}
            if among is not None:
                held += [mark.key for mark in every if mark.index == HOLDS and not among(mark)]
            changes: list[Mark | Cleared] = [
                mark
                for name, mark in wanted.items()
                if there.get(name) != mark and self._target.routes.place_of_mark(mark) == place
            ]
            changes += [Cleared(*name) for name in there if name not in wanted]
            for start in range(0, len(changes), MARKS_PER_COMMIT):
                chunk = tuple(changes[start : start + MARKS_PER_COMMIT])
                part.commit([Commit(self._target.clock.now_us(), self._target.actor, marks=chunk)])
            changed += len(changes)
        if held or any(isinstance(part, KeepsEnded) for part in self._parts):
            keep_held(self._target, held)
        return changed


# --- batches -------------------------------------------------------------------------------------


def commits_until(source: Backend, after: Position, until: Position) -> Iterator[list[Record]]:
    """Yields the commits after a position up to another, in the order of the source."""
    while records := source.read_all(after=after, limit=RECORDS_PER_READ):
        after = records[-1].position
        for at, group in groupby(records, lambda record: record.position):
            if at > until:
                return
            yield list(group)
        if after >= until:
            return


def batches(commits: Iterable[list[Record]]) -> Iterator[list[list[Record]]]:
    """Yields commits a few at a time: so many, or so many bytes, as are copied in one step."""
    batch: list[list[Record]] = []
    size = 0
    for records in commits:
        batch.append(records)
        size += sum(len(record.payload) for record in records)
        if len(batch) >= COMMITS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _missing(records: list[Record], known: dict[str, _Tail], ends: dict[str, int]) -> Commit | None:
    """Returns the part of a commit that the target lacks, None if it has all of it.

    What is appended must follow, by its link, the very event that the target has, and says so: an
    event that somebody else wrote there meanwhile would else become part of this history.
    """
    appends: list[Append] = []
    marks: list[Mark] = []
    streams: dict[str, list[Record]] = {}
    for record in records:
        streams.setdefault(record.stream, []).append(record)
    for stream, mine in streams.items():
        first, last = mine[0], mine[-1]
        revision, link = known[stream]
        if revision >= last.revision or ends[stream] < 0:
            continue
        fork = revision == 0 and first.revision > 1
        if not fork and (revision != first.revision - 1 or (revision and not follows(link, first))):
            raise _differs(stream, first.revision - 1, revision)
        previous = link if revision else None
        appends.append(
            Append(stream, first.revision - 1, tuple(mine), fork, previous, ends[stream])
        )
        if ends[stream] and first.revision == 1:
            # With its beginning, as where it was written first: a copy that is killed before it
            # comes to the marks must not leave a scope that is not known to end.
            marks.append(Mark(EXPIRING, stream, ends[stream]))
        known[stream] = last.revision, last.link
    if not appends:
        return None
    first = records[0]
    return Commit(first.time, first.actor, tuple(appends), marks=tuple(marks), is_copy=True)


def _send(target: Backend, wanted: list[Commit]) -> None:
    if not keeps_meta(target):
        for commit in wanted:
            if has_meta(commit):
                raise meta_not_kept(commit.appends[0].stream)
    for commit, answer in zip(wanted, target.commit(wanted) if wanted else [], strict=True):
        if isinstance(answer, Refusal) and answer.reason != "expired":  # meanwhile
            actual = answer.head.revision if answer.head else 0
            raise _differs(answer.stream, commit.appends[0].expected, actual)


# --- comparing -----------------------------------------------------------------------------------


_HINT_ERASED = (
    "the target tells of data that was erased or let go of since the source was made: go on from "
    "the newer store, or copy the source into an empty one, which leaves out what was erased again"
)


def check_related(source: Log, target: Log) -> None:
    """Raises ConflictError unless every stream of the target is a beginning of the source's."""
    for name, theirs, ours in _pairs(target._backend, source._backend):
        if ours is None:
            raise ConflictError(
                f'the target has a stream "{name}" that the source has not',
                stream=name,
                expected=0,
                actual=theirs.revision,
                hint=_HINT_ERASED if name == STREAM else "copy into an empty store",
            )
        if not _is_beginning(source, name, theirs, ours):
            raise _differs(name, ours.revision, theirs.revision)


def _compare_heads(source: Log, target: Backend, began: Position) -> bool:
    """Raises ConflictError unless the target has what the source had when the copy began.

    Returns whether the source has more. That is so of one that is written to meanwhile, and of a
    server where a stranger's open transaction holds back what is final: such an event is in its
    stream, but no follower has seen it.
    """
    is_behind = False
    for name, ours, theirs in _pairs(source._backend, target):
        if theirs is not None and (ours.revision, ours.link) == (theirs.revision, theirs.link):
            continue
        is_ended = source.expiry.is_due(name, ours)
        is_later = not ours.position <= began
        if not (is_ended or is_later) or not (
            theirs is None or _is_beginning(source, name, theirs, ours)
        ):
            raise _differs(name, ours.revision, theirs.revision if theirs else 0)
        is_behind = is_behind or is_later
    return is_behind


def _is_beginning(source: Log, name: str, theirs: Head, ours: Head) -> bool:
    """Returns whether the source's stream goes on from where the target's ends."""
    if theirs.revision >= ours.revision:
        return (theirs.revision, theirs.link) == (ours.revision, ours.link)
    if source.expiry.is_due(name, ours):
        return True  # what it held is gone, and cannot be compared
    there = source._backend.read(name, after=theirs.revision - 1, until=theirs.revision)
    return bool(there) and there[0].link == theirs.link


def _pairs(first: Backend, second: Backend) -> Iterator[tuple[str, Head, Head | None]]:
    """Yields every stream of the first with its head, and its head in the second."""
    after = ""
    while names := first.streams(after=after):
        for name, one, other in zip(names, first.heads(names), second.heads(names), strict=True):
            if one is not None:
                yield name, one, other
        after = names[-1]


def _count(source: Backend) -> int:
    """Returns how many events there are."""
    count, after = 0, ""
    while names := source.streams(after=after):
        heads = source.heads(names)
        count += sum(head.revision - head.first + 1 for head in heads if head is not None)
        after = names[-1]
    return count


def _differs(stream: str, expected: int, actual: int) -> ConflictError:
    return ConflictError(
        f'the target has other events in "{stream}" than the source at revision {expected}',
        stream=stream,
        expected=expected,
        actual=actual,
        hint="copy into an empty store",
    )
