"""The target of a transfer: a log that gets the commits it lacks, a batch at a time.

A transfer can be killed at any point and run again. A blob is written before the event that names
it, and a commit is written completely or not at all. So at any time the target holds a prefix of
every stream that it takes. An appended event must follow, by its link, the newest event of the
target. The mark of a scope with an expiry is set with its first event, and the one that says that
values are sealed before the first such event. Other marks come last: they have no history, so a
mark that is cleared in a wrong target could not be recovered.

What is taken: every event unchanged, with its key, checkpoint name and time; the blobs that events
name; the marks. Forks stay references. What is not taken: leases and claims, which belong to the
workers of the source and end with them; snapshots, which the target makes again; positions; and
streams that have expired, of which only a name and a head may be left.

A mixed store is written one backend at a time: a commit over two of them becomes one in each.
Memory is bounded by a batch, not by the size of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import (
    GONE,
    Append,
    Backend,
    Cleared,
    Commit,
    Head,
    KeepsEnded,
    Mark,
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
from holdfast.core.event import FORKED, ORIGIN, follows
from holdfast.core.expiry import EXPIRING, HOLDS
from holdfast.core.holds import keep, keep_blobs, keep_held
from holdfast.core.log import NO_LIMIT, Log
from holdfast.core.retention import Told, ledger, tell_again
from holdfast.core.sealing import BESIDE
from holdfast.errors import ConflictError, ExpiredError, UsageError
from holdfast.transfer.source import OVER, Source

COMMITS_PER_BATCH = 200
BYTES_PER_BATCH = 4 << 20
MARKS_PER_COMMIT = 500
BLOBS_STAY_US = 60_000_000
_BLOBS_KNOWN_MAX = 100_000

Progress = Callable[[int, int], None]
"""Called with the number of events passed so far, and how many there are."""

_End = tuple[int, bytes]
"""The revision and the link of a stream's newest event."""


class Copied(Struct, frozen=True):
    """The counts of what a copy did."""

    commits: int
    events: int
    blobs: int
    marks: int  # set or cleared
    skipped: int  # events that the target had already
    ended: int  # events of scopes that have expired, which are not copied
    is_behind: bool  # the source was written to meanwhile: run it again


class Sink:
    """One run of a transfer into one target."""

    def __init__(
        self,
        target: Log,
        *,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
        total: int = 0,
        keeps: bool = False,
    ) -> None:
        """Events that `ledger` knows to be erased are taken without their data.

        With `keeps` the target keeps all that it has, even data that the source has let go of
        since. Then `began` has the ends of its streams before, and `taken` their newest links.
        """
        self._target = target
        self._ledger = ledger
        self._progress = progress
        self.total = total
        """The number of events to pass, for `progress`."""
        self._keeps = keeps
        self.began: dict[str, _End] = {}
        self.taken: dict[str, bytes] = {}
        self._erased: dict[tuple[str, int], Told] = {}
        self._parts = target.parts()
        self._source = Source(target)
        self._batch: list[list[Record]] = []
        self._bytes = 0
        self._known: set[tuple[int, str]] = set()
        self._is_told = False
        self._held: set[str] = set()  # streams that a server keeps because the source does
        self._commits = self._events = self._blobs = self._marks = self._skipped = self._ended = 0

    def copied(self, *, is_behind: bool = False) -> Copied:
        """Returns the counts so far."""
        return Copied(
            self._commits, self._events, self._blobs, self._marks, self._skipped, self._ended,
            is_behind,
        )  # fmt: skip

    # --- events ----------------------------------------------------------------------------------

    def take(self, source: Source, commits: Iterable[list[Record]] | None = None) -> None:
        """Writes the commits of a source that the target lacks, or of `commits` if given."""
        self._source, self._batch, self._bytes = source, [], 0
        for commit in source.commits() if commits is None else commits:
            self._batch.append(commit)
            self._bytes += sum(len(record.payload) for record in commit)
            if len(self._batch) >= COMMITS_PER_BATCH or self._bytes >= BYTES_PER_BATCH:
                self._flush()
        self._flush()

    def link_at(self, stream: str, revision: int) -> bytes | None:
        """Returns the link of an event in the target, after writing the current batch."""
        self._flush()
        return self._target.link_at(stream, revision)

    def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if not batch:
            return
        if self._ledger is not None:
            batch = [[self._without_erased(self._ledger, one) for one in many] for many in batch]
        self._write(batch)
        if self._progress is not None:
            passed = self._events + self._skipped + self._ended
            self._progress(passed, max(self.total, passed))

    def _write(self, batch: list[list[Record]]) -> None:
        streams = sorted({record.stream for commit in batch for record in commit})
        heads = dict(zip(streams, self._target.heads(streams), strict=True))
        known = {name: _end_of(head) for name, head in heads.items()}
        ends = {name: _end_in(heads[name], end) for name, end in self._source.ends(streams).items()}
        there = [one for commit in batch for one in commit if one.revision <= known[one.stream][0]]
        if self._keeps:
            for name in streams:
                self.began.setdefault(name, known[name])
            self.taken.update((one.stream, one.link) for commit in batch for one in commit)
            batch = [[one for one in many if one.revision > known[one.stream][0]] for many in batch]
            self._skipped += len(there)
        if not self._is_told and any(map(_has_sealed_value, chain.from_iterable(batch))):
            self._tell_beside()
        for place, part in enumerate(self._parts):
            mine = [self._of_part(place, records) for records in batch]
            self._write_part(place, part, mine, known, ends)
            if not self._keeps:
                self._let_go(part, self._of_part(place, there))

    def _of_part(self, place: int, records: list[Record]) -> list[Record]:
        return [one for one in records if self._target.routes.place_of(one.stream) == place]

    def _write_part(
        self,
        place: int,
        part: Backend,
        batch: list[list[Record]],
        known: dict[str, _End],
        ends: dict[str, int],
    ) -> None:
        """Writes the commits that one backend of the target lacks, and counts their events.

        All blobs are written before the first commit that names one: a kill in between leaves
        blobs that no event names, and never an event without its blob.

        Another run of the same transfer may write to the target too, such as one that was thought
        dead. What it has written is there, so it is passed over. Anything else is refused.
        """
        sent = 0
        while True:
            wanted = [one for many in batch if (one := _missing(many, known, ends)) is not None]
            for commit in wanted:
                self._write_blobs(commit, place)
            written, refusal = _send(part, wanted)
            self._commits += len(written)
            sent += sum(len(append.records) for one in written for append in one.appends)
            if isinstance(part, KeepsEnded):
                self._keep_held({one.stream for many in batch for one in many}, ends)
            if refusal is None:
                break
            known.update(self._known_now(batch, refusal))
        ended = sum(ends[record.stream] == OVER for records in batch for record in records)
        self._events += sent
        self._ended += ended
        self._skipped += sum(map(len, batch)) - sent - ended

    def _keep_held(self, streams: Collection[str], ends: dict[str, int]) -> None:
        """Makes a server keep what a hold keeps in the source: the mark itself comes last.

        If the run is killed before that, the server must not let go of it when its end comes. Also
        of what was there before: another run may have written it, and been killed before it came
        here. What is gone must be told here, because its head is still there, and is equal.
        """
        for stream in sorted(self._source.held(name for name in streams if ends[name])):
            try:
                keep(self._target, stream)
                keep_blobs(self._target, stream)
            except ExpiredError:
                raise _held_and_gone(stream) from None
            self._held.add(stream)

    def _keep_exactly(self, held: Collection[str]) -> None:
        for stream in keep_held(self._target, held):
            if stream in self._held:
                raise _held_and_gone(stream)

    def _known_now(self, batch: list[list[Record]], refusal: Refusal) -> dict[str, _End]:
        """Returns where streams of a batch end in the target, after a commit was refused.

        Raises ConflictError unless another run has written what this one was about to write.
        """
        records = {(one.stream, one.revision): one for many in batch for one in many}
        names = sorted({stream for stream, _ in records})
        found = {
            name: _end_of(head) for name, head in zip(names, self._target.heads(names), strict=True)
        }
        is_ahead = found[refusal.stream][0] > refusal.expected
        for name, (revision, link) in found.items():
            ours = records.get((name, revision))
            if not is_ahead or (ours is not None and ours.link != link):
                raise differs(refusal.stream, refusal.expected, found[refusal.stream][0])
        return found

    def _let_go(self, part: Backend, there: list[Record]) -> None:
        """Removes data from the target that the source has let go of since it was copied.

        Equal links say that two events were equal when they were written, not that both still have
        their data. From an event that was shortened, the same parts are cut.
        """
        less: dict[str, dict[int, bytes]] = {}
        for record in there:
            if record.payload == GONE or is_shortened(record.payload):
                less.setdefault(record.stream, {})[record.revision] = record.payload
        gone: dict[str, list[int]] = {}
        shorter: dict[str, dict[int, bytes]] = {}
        for stream, left in less.items():
            for record in part.read(stream, after=min(left) - 1, until=max(left)):
                payload = left.get(record.revision, record.payload)
                if record.payload in (payload, GONE):
                    continue
                if payload == GONE:
                    gone.setdefault(stream, []).append(record.revision)
                else:
                    shorter.setdefault(stream, {})[record.revision] = payload
        if gone and not isinstance(part, Rewrites):
            raise _cannot_let_go("let go of it")
        if shorter and not isinstance(part, Shortens):
            raise _cannot_let_go("take it out")
        if gone:
            cast("Rewrites", part).rewrite(gone)
        if shorter:
            cast("Shortens", part).shorten(shorter)
        for stream, revisions in [*gone.items(), *shorter.items()]:
            self._target.snapshots.forget(stream, max(revisions))

    def _write_blobs(self, commit: Commit, place: int) -> None:
        """Writes the blobs that a commit names, each verified against its digest."""
        part = self._parts[place]
        objects = part.objects
        for append in commit.appends:
            # A blob that is there already may end with another stream, earlier than this one needs
            # it. So a blob with an end is always written, with the end that is needed here. If the
            # stream's end slides, no end is known in advance: the blob stays until `retain`.
            ends = append.expires_us and append.expires_us + BLOBS_STAY_US
            named = [one for record in append.records for one in codec.blobs_in(record.payload)]
            if ends and named and self._source.slides(append.stream):
                ends = 0
            for name, size in named:
                if (place, name) in self._known:
                    continue
                # Where blobs can end, one that is there may go too early for a scope that lasts.
                may_go = bool(ends) or isinstance(part, KeepsEnded)
                if may_go or name not in objects.names("blob", prefix=name):
                    data = self._source.log.blobs.stored(name, size)
                    objects.put("blob", name, data, expires_us=ends)
                    self._blobs += 1
                if ends:
                    continue
                if len(self._known) >= _BLOBS_KNOWN_MAX:
                    self._known.clear()
                self._known.add((place, name))

    def _tell_beside(self) -> None:
        """Says in the target that a scope that is nobody's has a sealed value.

        The mark belongs to no scope, so none brings it along. A write to the target that does not
        know of it would put a plain value over a sealed one. So it is set before the event.
        """
        if not self._target.find_marks(BESIDE, limit=1):
            mark = Mark(BESIDE, "values")
            self._commit_marks(self._parts[self._target.routes.place_of_mark(mark)], [mark])
        self._is_told = True

    # --- what was erased -------------------------------------------------------------------------

    def _without_erased(self, ledger: Ledger, record: Record) -> Record:
        found = ledger.applied(record)
        if found is None:
            return record
        without, digest, steps = found
        is_gone = without.payload == GONE
        name = record.stream, record.revision
        self._erased[name] = Told(digest, "erased", record.position, steps, is_gone)
        return without

    def tell_erased(
        self, told: Mapping[tuple[str, int], Told] | None = None, key: str | None = None
    ) -> None:
        """Records in the target which of its events were erased, unless it says so already.

        `told` has what else is known of these events: what was let go of in another way.
        """
        gone = {name: one.after((told or {}).get(name)) for name, one in self._erased.items()}
        gone = {**(told or {}), **gone}
        known = ledger(self._target) if gone else {}
        since = {name: _since(known.get(name), one) for name, one in gone.items()}
        if untold := {name: one for name, one in since.items() if one is not None}:
            tell_again(self._target, untold, key)

    # --- marks -----------------------------------------------------------------------------------

    def set_marks(self, marks: Iterable[Mark], among: Callable[[Mark], bool] | None = None) -> None:
        """Makes the marks of the target equal to those of the source.

        Only transfers write to the target. So a mark that only the target has was cleared in the
        source since the last run, and is cleared here too. Where only some scopes are taken,
        `among` selects their marks, and the others are not touched.
        """
        wanted = {(mark.index, mark.key): mark for mark in marks}
        held = [mark.key for mark in wanted.values() if mark.index == HOLDS]
        for place, part in enumerate(self._parts):
            every = part.marks.list(limit=NO_LIMIT)
            there = {(one.index, one.key): one for one in every if among is None or among(one)}
            held += [
                mark.key
                for mark in every
                if mark.index == HOLDS and (mark.index, mark.key) not in there
            ]
            changes: list[Mark | Cleared] = [
                mark
                for name, mark in wanted.items()
                if there.get(name) != mark and self._target.routes.place_of_mark(mark) == place
            ]
            # A source from before has no mark for the sealed values that are in the target now.
            gone = [name for name in there if name not in wanted and name[0] != BESIDE]
            changes += [Cleared(*name) for name in gone]
            self._commit_marks(part, changes)
        if held or any(isinstance(part, KeepsEnded) for part in self._parts):
            self._keep_exactly(held)

    def add_marks(self, marks: Sequence[Mark], further: Collection[str] = ()) -> None:
        """Sets the marks that the target lacks, and leaves those that it has unchanged.

        But the marks of the streams `further`, which the target had and which got newer events,
        become equal to those given: they belong to events that are not the newest any more.
        """
        wanted = {(mark.index, mark.key) for mark in marks}
        for place, part in enumerate(self._parts):
            there = {(mark.index, mark.key): mark for mark in part.marks.list(limit=NO_LIMIT)}
            old = {name: mark for name, mark in there.items() if _is_about(mark, further)}
            changes: list[Mark | Cleared] = [
                mark
                for mark in marks
                if (name := (mark.index, mark.key)) not in there or old.get(name, mark) != mark
                if self._target.routes.place_of_mark(mark) == place
            ]
            changes += [Cleared(*name) for name in old if name not in wanted]
            self._commit_marks(part, changes)
        if any(mark.index == HOLDS for mark in marks):
            self._keep_exactly([one.key for one in self._target.find_marks(HOLDS)])

    def _commit_marks(self, part: Backend, changes: list[Mark | Cleared]) -> None:
        for start in range(0, len(changes), MARKS_PER_COMMIT):
            chunk = tuple(changes[start : start + MARKS_PER_COMMIT])
            part.commit([Commit(self._target.clock.now_us(), self._target.actor, marks=chunk)])
        self._marks += len(changes)


def _since(known: Told | None, told: Told) -> Told | None:
    """Returns what a target does not tell yet of an event; None if it tells all of it."""
    if known is None:
        return told
    steps = told.steps[len(known.steps) :]
    if known.is_gone or not (steps or told.is_gone):
        return None
    return replace(told, steps=steps)


def _is_about(mark: Mark, streams: Collection[str]) -> bool:
    """Returns whether a mark is set and cleared with events of these streams.

    A hold is not: whoever set it must be the one who ends it.
    """
    return mark.group in streams or (mark.index == EXPIRING and mark.key in streams)


def _has_sealed_value(record: Record) -> bool:
    return record.subject is None and codec.SEALED_VALUE in record.payload


def _end_of(head: Head | None) -> _End:
    return (0, ORIGIN) if head is None else (head.revision, head.link)


def _end_in(head: Head | None, end: int) -> int:
    """Returns when a stream ends in the target, given its end in the source.

    A stream that a hold keeps past its end is written without an end, because a backend refuses
    events after it. But if the target has begun the stream with the end, it has expired there, and
    there is nothing to append to.
    """
    return OVER if not end and head is not None and head.expires_us else end


def _missing(records: list[Record], known: dict[str, _End], ends: dict[str, int]) -> Commit | None:
    """Returns the part of a commit that the target lacks; None if it has all of it.

    Each append names the link of the event that it must follow, and the target checks it. Otherwise
    an event that somebody else wrote there meanwhile would become part of this history.
    """
    appends: list[Append] = []
    marks: list[Mark] = []
    streams: dict[str, list[Record]] = {}
    for record in records:
        streams.setdefault(record.stream, []).append(record)
    for stream, mine in streams.items():
        first, last = mine[0], mine[-1]
        revision, link = known[stream]
        if revision >= last.revision or ends[stream] == OVER:
            continue
        fork = revision == 0 and first.type == FORKED
        if not fork and (revision != first.revision - 1 or (revision and not follows(link, first))):
            raise differs(stream, first.revision - 1, revision)
        previous = link if revision else None
        appends.append(
            Append(stream, first.revision - 1, tuple(mine), fork, previous, ends[stream])
        )
        if ends[stream] and first.revision == 1:
            # The mark goes with the first event, as it did in the source. If the run is killed
            # before the other marks are set, no scope may be left that never expires.
            marks.append(Mark(EXPIRING, stream, ends[stream]))
        known[stream] = last.revision, last.link
    if not appends:
        return None
    first = records[0]
    return Commit(first.time, first.actor, tuple(appends), marks=tuple(marks), is_copy=True)


def _send(part: Backend, wanted: list[Commit]) -> tuple[list[Commit], Refusal | None]:
    """Sends commits; returns all that were written, and the first refusal that counts.

    A commit behind a refused one may have been written: each is judged by its own streams.
    """
    if not keeps_meta(part):
        for commit in wanted:
            if has_meta(commit):
                raise meta_not_kept(commit.appends[0].stream)
    written: list[Commit] = []
    first: Refusal | None = None
    for commit, answer in zip(wanted, part.commit(wanted) if wanted else [], strict=True):
        while isinstance(answer, Refusal) and answer.reason == "expired":
            # One of its streams ended meanwhile: the others are taken without it.
            left = tuple(one for one in commit.appends if one.stream != answer.stream)
            if not left:
                break
            marks = tuple(mark for mark in commit.marks if mark.key != answer.stream)
            commit = replace(commit, appends=left, marks=marks)
            [answer] = part.commit([commit])
        if not isinstance(answer, Refusal):
            written.append(commit)
        elif answer.reason != "expired" and first is None:
            refused = [one.expected for one in commit.appends if one.stream == answer.stream]
            first = replace(answer, expected=refused[0] if refused else 0)
    return written, first


def _held_and_gone(stream: str) -> UsageError:
    return UsageError(
        f'the target has let go of "{stream}" at its end, and a hold keeps it in the source',
        hint="copy into an empty store",
    )


def _cannot_let_go(how: str) -> UsageError:
    return UsageError(
        f"the target has data that the source has let go of, and cannot {how}",
        hint="copy into an empty store",
    )


def differs(stream: str, expected: int, actual: int) -> ConflictError:
    """Returns the error that a target has other events than the source."""
    return ConflictError(
        f'the target has other events in "{stream}" than the source at revision {expected}',
        stream=stream,
        expected=expected,
        actual=actual,
        hint="take an empty store as the target",
    )
