"""The memory backend with one fault in its logic each: for the contract, the machine and T9."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from msgspec.structs import replace

from holdfast.backends.judge import head_after, judge
from holdfast.backends.memory import MemoryBackend, _Committed
from holdfast.backends.protocol import (
    AHEAD_US,
    GONE,
    START,
    Append,
    Claim,
    Commit,
    Found,
    Head,
    Held,
    Lease,
    Leftover,
    LinkedRow,
    Mark,
    MarkQuery,
    MarksAtMoment,
    Moment,
    PayloadRow,
    Position,
    Receipt,
    Record,
    Refusal,
    linked_row,
)
from holdfast.core.event import ORIGIN, record_link
from holdfast.errors import ExpiredError


class ForgetsKeys(MemoryBackend):
    """Does not know a key again."""

    def _key_of(self, stream: str, key: str) -> int | None:
        return None


class ForgetsLaterKeys(MemoryBackend):
    """Keeps the key of the first record of an append, and forgets those of the others."""

    def _fold(self) -> None:
        super()._fold()
        firsts = {
            (record.stream, record.key)
            for entry in self._log
            for number, record in enumerate(entry.records)
            if number == 0 or entry.records[number - 1].stream != record.stream
        }
        self._keys = {at: revision for at, revision in self._keys.items() if at in firsts}


class CutsCommits(MemoryBackend):
    """Ends a page of `read_all` in the middle of a commit."""

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        return super().read_all(after=after, limit=limit)[:limit]


class TakesPatterns(MemoryBackend):
    """Takes a prefix for a pattern."""

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        names = super().streams(after=after, limit=1000)
        return [name for name in names if fnmatch(name, prefix.replace("%", "*") + "*")][:limit]


class EndsPagesEarly(MemoryBackend):
    """Returns fewer names of streams than were asked for, though there are more."""

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        return super().streams(prefix=prefix, after=after, limit=max(limit - 1, min(limit, 1)))


class ReadsBackHalfACommit(MemoryBackend):
    """Begins a page that is read from the end in the middle of a commit."""

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        return super().read_back(until=until, limit=limit)[-limit:] if limit else []


class ReadsPastTheEnd(MemoryBackend):
    """Takes the position to read back from for one that is read already."""

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        end = None if until is None else Position(max(until - 1, 0))
        return super().read_back(until=end, limit=limit)


class ListsMarksLater(MemoryBackend):
    """Looks at the marks when one more commit has been made since the moment."""

    def marks_at_moment(self) -> MarksAtMoment:
        found = super().marks_at_moment()
        return replace(found, moment=Moment(Position(max(found.newest - 1, 0))))


class AnswersByName(MemoryBackend):
    """Reads many streams in the order of their names, not in the order asked."""

    def read_many(self, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
        return [self.read(stream, limit=limit) for stream in sorted(streams)]


class LeavesNamesOutOfRows(MemoryBackend):
    """Returns rows to be verified without the names of checkpoints."""

    def read_linked(
        self, stream: str, *, after: int, until: int | None, limit: int | None
    ) -> list[LinkedRow]:
        records = self.read(stream, after=after, until=until, limit=limit)
        return [linked_row(replace(record, checkpoint=None)) for record in records]


class LeavesSubjectsOutOfPayloads(MemoryBackend):
    """Returns payloads without the subject that says that they may be sealed."""

    def read_payloads(self, stream: str, *, after: int, until: int) -> list[PayloadRow]:
        records = self.read(stream, after=after, until=until)
        return [(record.type, record.payload, None) for record in records]


class ForgetsWhereForksBegin(MemoryBackend):
    """Says of a fork that it begins at revision 1."""

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        return [head and replace(head, first=1) for head in super().heads(streams)]


class FindsOldestFirst(MemoryBackend):
    """Returns the oldest checkpoint of a name where the newest is asked for."""

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        return super().find(stream, key=key, checkpoint=checkpoint)[::-1][:limit]


class TakesNoLimitForNone(MemoryBackend):
    """Takes a limit of 0 for no limit."""

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        return super().read(stream, after=after, until=until or None, limit=limit or None)


class FailsNeighbours(MemoryBackend):
    """Refuses every commit of a list behind one that was refused."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        outcomes: list[Receipt | Refusal] = []
        for commit in commits:
            refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
            outcomes += refused[:1] or super().commit([commit])
        return outcomes


class KeepsMarksOfRefusals(MemoryBackend):
    """Sets the marks of a commit that it refused."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        outcomes = super().commit(commits)
        for commit, outcome in zip(commits, outcomes, strict=True):
            if isinstance(outcome, Refusal):
                self._marks.apply(commit.marks)
        return outcomes


class ShortensWhatWent(MemoryBackend):
    """Puts a shorter payload also in place of one that was let go of."""

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        super().shorten(payloads)
        for stream, named in payloads.items():
            self._streams[stream] = [
                replace(one, payload=named.get(one.revision, one.payload))
                for one in self._streams[stream]
            ]


class PassesOverLikeMarks(MemoryBackend):
    """Goes on after a mark with those of lower priority, and leaves out those of the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        marks = self._marks
        found = marks.find

        def find(query: MarkQuery) -> Sequence[Mark]:
            last = query.after
            return [one for one in found(query) if last is None or one.priority < last.priority]

        marks.find = find  # type: ignore[method-assign]


class FindsMarksOfOtherGroups(MemoryBackend):
    """Looks for marks of a group among those whose group begins like it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        marks = self._marks
        found = marks.find

        def find(query: MarkQuery) -> Sequence[Mark]:
            group = query.group
            if not group:
                return found(query)
            every = found(replace(query, group=None))
            return [one for one in every if one.group.startswith(group)]

        marks.find = find  # type: ignore[method-assign]


class IgnoresFences(MemoryBackend):
    """Does not look at the fence of a commit."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return super().commit([replace(commit, fence=None) for commit in commits])


class IgnoresLinks(MemoryBackend):
    """Looks at the revision that a commit follows, and not at the link."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        unlinked = [
            replace(
                commit,
                appends=tuple(replace(append, previous=None) for append in commit.appends),
            )
            for commit in commits
        ]
        return super().commit(unlinked)


class CachesReads(MemoryBackend):
    """Keeps what it read of a stream for ever."""

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        if not hasattr(self, "_cached"):
            self._cached: dict[object, list[Record]] = {}
        asked = stream, after, until, limit
        if asked not in self._cached:
            self._cached[asked] = super().read(stream, after=after, until=until, limit=limit)
        return self._cached[asked]


class LooksBack(MemoryBackend):
    """Takes for the present moment what was final before the newest commit."""

    def moment(self) -> Moment:
        return Moment(Position(max(super().moment().position - 1, START)))


class ReusesPositions(MemoryBackend):
    """Gives a commit of several streams and the one before it the same position."""

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        outcome = super()._commit(commit)
        if isinstance(outcome, Receipt) and len(commit.appends) > 1 and outcome.position > 1:
            return replace(outcome, position=Position(outcome.position - 1))
        return outcome


class SkipsAPosition(MemoryBackend):
    """Begins the next page of `read_all` one commit too late."""

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        return super().read_all(after=Position(after + 1) if after else after, limit=limit)


class ConfusesNames(MemoryBackend):
    """Takes a stream for another whose name begins alike."""

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        alike = [min(self.streams(prefix=name) or [name], key=len) for name in streams]
        longer = [max(self.streams(prefix=name) or [name], key=len) for name in alike]
        return super().heads(longer)


class ForgetsExpiry(MemoryBackend):
    """Takes a lease whose time is up for one that holds."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self._leases._held = self._leases._leases.get  # type: ignore[method-assign]


class RenewsAllOrNone(MemoryBackend):
    """Renews no lease of several if one of them was lost."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        every = self._leases.renew_many

        def all_or_none(leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
            renewed = every(leases, ttl_s=ttl_s)
            return renewed if all(renewed) else [None for _ in renewed]

        self._leases.renew_many = all_or_none  # type: ignore[method-assign]


class StartsEpochsAgain(MemoryBackend):
    """Forgets a lease, and with it its epoch, when it is given back."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        inner = self._leases

        class Forgetful:
            acquire, renew, holder = inner.acquire, inner.renew, inner.holder
            renew_many, list = inner.renew_many, inner.list

            def release(self, lease: Lease) -> None:
                held = inner.holder(lease.name)
                if held is not None and (held.owner, held.epoch) == (lease.owner, lease.epoch):
                    del inner._leases[lease.name]

        self.leases = Forgetful()


class ClaimsTwice(MemoryBackend):
    """Hands a mark out without noting to whom."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        marks = self._marks
        claim = marks.claim

        def forgetful(index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
            taken = claim(index, owner, n=n, ttl_s=ttl_s)
            marks._claims.clear()
            return taken

        marks.claim = forgetful  # type: ignore[method-assign]


class HidesTheLapsed(MemoryBackend):
    """Lists only the leases that are held."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        every = self._leases.list

        def held(*, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
            return [one for one in every(prefix=prefix, after=after, limit=limit) if one.is_held]

        self._leases.list = held  # type: ignore[method-assign]


class ListsClaimsThatEnded(MemoryBackend):
    """Lists claims whose time is over."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        marks = self._marks

        def claims(*, limit: int = 1000) -> list[Claim]:
            found = sorted(marks._claims.items())
            return [Claim(*place, owner, ends) for place, (owner, ends) in found][:limit]

        marks.claims = claims  # type: ignore[method-assign]


class OutlivesItsEnd(MemoryBackend):
    """Takes an append to a stream whose end has come."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return super().commit(
            [
                replace(one, appends=tuple(replace(each, expires_us=0) for each in one.appends))
                for one in commits
            ]
        )


class RefusesWhatIsAhead(MemoryBackend):
    """Refuses every time that is ahead of its clock, also where the stream has it already."""

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        now_us = self._checkout.clock.now_us()
        if commit.appends and commit.time > now_us + AHEAD_US:
            return Refusal("ahead", commit.appends[0].stream, now_us=now_us)
        return super()._commit(commit)


class EndsAtWhatHasEnded(MemoryBackend):
    """Leaves ended streams out of a page of `read_all`, and takes an empty page for the end."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # pyright: ignore[reportArgumentType]
        self._ends: dict[str, int] = {}

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        outcomes = super().commit(commits)
        for commit, outcome in zip(commits, outcomes, strict=True):
            if isinstance(outcome, Receipt):
                self._ends |= {
                    a.stream: a.renews_us or a.expires_us for a in commit.appends if a.expires_us
                }
        return outcomes

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        page = super().read_all(after=after, limit=limit)
        now_us = self.now_us("")
        return [one for one in page if self._ends.get(one.stream, now_us + 1) > now_us]


class LetsGoAtTheFirstEnd(EndsAtWhatHasEnded):
    """Lets go of a stream at the end that it began with, though a later append has moved it."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return super().commit(
            [
                replace(one, appends=tuple(replace(each, renews_us=0) for each in one.appends))
                for one in commits
            ]
        )

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        if (ends := self._ends.get(stream, 0)) and self.now_us(stream) >= ends:
            raise ExpiredError(stream, expires_us=ends)
        return super().read(stream, after=after, until=until, limit=limit)


class MovesEndsOfRefusals(EndsAtWhatHasEnded):
    """Moves the end of a stream before it judges the commit, and says so though it is refused."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        for commit in commits:
            self._ends |= {one.stream: one.renews_us for one in commit.appends if one.renews_us}
        return super().commit(commits)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        found = zip(streams, super().heads(streams), strict=True)
        return [head and replace(head, expires_us=self._ends.get(name, 0)) for name, head in found]

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        return MemoryBackend.read_all(self, after=after, limit=limit)


class LetsGoByItself(EndsAtWhatHasEnded):
    """Lets go of streams at their end, but for those that it is told to keep: as it should."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._kept: set[str] = set()

    def keep(self, stream: str, is_kept: bool) -> bool:
        self._checkout.check_open()
        is_there = stream in self._streams and not self._has_gone(stream)
        if is_kept and is_there:
            self._kept.add(stream)
        elif not is_kept:
            self._kept.discard(stream)
        return is_there

    def kept(self) -> list[str]:
        self._checkout.check_open()
        return sorted(self._kept)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        found = zip(streams, super().heads(streams), strict=True)
        return [head and replace(head, expires_us=self._ends.get(name, 0)) for name, head in found]

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        if self._has_gone(stream):
            raise ExpiredError(stream, expires_us=self._ends[stream])
        return super().read(stream, after=after, until=until, limit=limit)

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        while page := MemoryBackend.read_all(self, after=after, limit=limit):
            if left := [one for one in page if not self._has_gone(one.stream)]:
                return left
            after = page[-1].position
        return []

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        if self._has_gone(stream):
            return []
        return super().find(stream, key=key, checkpoint=checkpoint, limit=limit)

    def _has_gone(self, stream: str) -> bool:
        ends = self._ends.get(stream, 0)
        return bool(ends) and stream not in self._kept and self.now_us(stream) >= ends


class LetsGoOfWhatIsKept(LetsGoByItself):
    """Lists a stream as kept, and lets go of it at its end all the same."""

    def _has_gone(self, stream: str) -> bool:
        ends = self._ends.get(stream, 0)
        return bool(ends) and self.now_us(stream) >= ends


class ListsWhatWasKept(LetsGoByItself):
    """Lists a stream as kept that it keeps no longer."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._ever: set[str] = set()

    def keep(self, stream: str, is_kept: bool) -> bool:
        is_there = super().keep(stream, is_kept)
        self._ever |= self._kept
        return is_there

    def kept(self) -> list[str]:
        return sorted({*super().kept(), *self._ever})


class StandsOnWhatHasEnded(MemoryBackend):
    """Takes a commit that has read a stream whose end has come."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return super().commit([replace(one, read_ends=()) for one in commits])


# --- what only shows while others are at work: for T9 --------------------------------------------


class TakesNoLock(MemoryBackend):
    """Judges a commit, and writes it later, as if nobody came in between."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        outcomes: list[Receipt | Refusal] = []
        for commit in commits:
            refusal = judge(
                commit,
                self._heads.get,
                self._key_of,
                self._leases.fence_holds,
                self._checkout.clock.now_us,
            )
            outcomes.append(refusal or self._write(commit))
        return outcomes

    def _write(self, commit: Commit) -> Receipt:
        position = Position(len(self._log) + 1)
        before = {append.stream: self._streams.get(append.stream, []) for append in commit.appends}
        time.sleep(0)
        for append in commit.appends:
            records = [replace(record, position=position) for record in append.records]
            head = head_after(append, self._heads.get(append.stream), position)
            self._streams[append.stream] = before[append.stream] + records
            self._heads[append.stream] = head
            if records[0].key is not None:
                self._keys[append.stream, records[0].key] = records[0].revision
        self._log.append(_Committed((), {}, ()))
        return Receipt(position)


class ShowsWhatItMayRefuse(MemoryBackend):
    """Shows a commit to readers before it has judged what the commit only read."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        return [outcome for commit in commits for outcome in self._dirty(commit)]

    def _dirty(self, commit: Commit) -> list[Receipt | Refusal]:
        guarded = replace(commit, appends=(), marks=())
        if not commit.reads or not commit.appends:
            return super().commit([commit])
        [outcome] = super().commit([replace(commit, reads=())])
        if isinstance(outcome, Refusal):
            return [outcome]
        time.sleep(0.001)
        [judged] = super().commit([guarded])
        if isinstance(judged, Refusal):
            with self._checkout.writing():
                for append in commit.appends:
                    self._take_back(append)
            return [judged]
        return [outcome]

    def _take_back(self, append: Append) -> None:
        records = self._streams[append.stream]
        if records[-1].link == append.records[-1].link and len(records) > len(append.records):
            del records[-len(append.records) :]
            last, first = records[-1], records[0].revision
            self._heads[append.stream] = Head(
                last.revision, last.link, last.time, last.position, first
            )


class MergesByClock(MemoryBackend):
    """Lets a commit in that came too late, and puts it where its writer's clock says."""

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        outcome = super()._commit(commit)
        is_late = isinstance(outcome, Refusal) and outcome.reason == "conflict"
        if not is_late or len(commit.appends) != 1 or commit.appends[0].fork:
            return outcome
        append = commit.appends[0]
        if append.stream not in self._streams or outcome.stream != append.stream:
            return outcome
        self._log.append(_Committed((), {}, ()))
        position = Position(len(self._log))
        records = self._streams[append.stream]
        late = [replace(record, position=position) for record in append.records]
        at = bisect_right(records, commit.time, key=lambda record: record.time)
        self._streams[append.stream] = self._linked([*records[:at], *late, *records[at:]])
        last = self._streams[append.stream][-1]
        self._heads[append.stream] = Head(
            last.revision, last.link, last.time, position, records[0].revision
        )
        return Receipt(position)

    def _linked(self, records: list[Record]) -> list[Record]:
        link, linked = ORIGIN, list[Record]()
        for revision, record in enumerate(records, records[0].revision):
            record = replace(record, revision=revision)
            link = record_link(link, record)
            linked.append(replace(record, link=link))
        return linked


class DropsMeta(MemoryBackend):
    """Says that it keeps meta, and has no column for it."""

    def _commit(self, commit: Commit) -> Receipt | Refusal:
        appends = [
            replace(append, records=tuple(replace(one, meta=None) for one in append.records))
            for append in commit.appends
        ]
        return super()._commit(replace(commit, appends=tuple(appends)))


class LetsGoInOnePlace(MemoryBackend):
    """Rewrites a record where streams are read, and not where the whole store is."""

    def _rewrite(self, stream: str, revision: int, payload: bytes) -> None:
        if payload != GONE:
            super()._rewrite(stream, revision, payload)
            return
        known = self._streams[stream]
        place = revision - known[0].revision
        known[place] = replace(known[place], payload=GONE)


class LetsGoOfTheCommit(MemoryBackend):
    """Rewrites every record of the commit that has the one which was named."""

    def _rewrite(self, stream: str, revision: int, payload: bytes) -> None:
        known = self._streams[stream]
        position = known[revision - known[0].revision].position
        for record in self._log[position - 1].records:
            super()._rewrite(record.stream, record.revision, payload)


class PurgesWhatIsLeft(MemoryBackend):
    """Takes a purge for leave to forget every object."""

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        for name in self.objects.names("blob"):
            self.objects.delete("blob", name)
        return super().purge(whole=whole)
