"""Copies a store into another, on whichever backends, with equal links in every stream.

A copy can be stopped at any point and run again: what the target has is compared and skipped, and
what it lacks is appended commit by commit, each whole. A target that holds something else in a
stream of the same name is refused before that stream is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from msgspec import Struct

from holdfast.backends.protocol import START, Append, Backend, Commit, Record, Refusal
from holdfast.errors import ConflictError, CorruptError
from holdfast.log import Log

COMMITS_PER_BATCH = 200
RECORDS_PER_READ = 1000

Progress = Callable[[int, int], None]
"""Called with the source's position reached so far, and the one to reach."""


class Copied(Struct, frozen=True):
    """What a copy did."""

    commits: int
    events: int
    blobs: int
    skipped: int  # events that the target had already


def copy(source: Log, target: Log, *, progress: Progress | None = None) -> Copied:
    """Copies what the target lacks, and verifies that every head is equal."""
    blobs = _copy_blobs(source.backend, target.backend)
    goal = source.position()
    known: dict[str, int] = {}
    commits = events = skipped = 0
    for batch in _batches(source.backend):
        wanted = [commit for records in batch if (commit := _missing(target, records, known))]
        _send(target.backend, wanted)
        sent = sum(len(append.records) for commit in wanted for append in commit.appends)
        commits += len(wanted)
        events += sent
        skipped += sum(len(records) for records in batch) - sent
        if progress is not None:
            progress(batch[-1][-1].position, goal)
    _copy_marks(source.backend, target)
    _compare_heads(source.backend, target.backend)
    return Copied(commits, events, blobs, skipped)


def _copy_blobs(source: Backend, target: Backend) -> int:
    """Blobs go first: an event never arrives before the bytes that it names."""
    there = set(target.objects.names("blob"))
    missing = [name for name in source.objects.names("blob") if name not in there]
    for name in missing:
        data = source.objects.get("blob", name)
        if data is None:
            raise CorruptError(f'blob "{name}" is listed but cannot be read')
        target.objects.put("blob", name, data)
    return len(missing)


def _batches(source: Backend) -> Iterator[list[list[Record]]]:
    position = START
    while records := source.read_all(after=position, limit=RECORDS_PER_READ):
        commits = [list(group) for _, group in groupby(records, lambda r: r.position)]
        for start in range(0, len(commits), COMMITS_PER_BATCH):
            yield commits[start : start + COMMITS_PER_BATCH]
        position = records[-1].position


def _missing(target: Log, records: list[Record], known: dict[str, int]) -> Commit | None:
    """Returns the part of a commit that the target lacks, None if it has all of it."""
    appends: list[Append] = []
    streams: dict[str, list[Record]] = {}
    for record in records:
        streams.setdefault(record.stream, []).append(record)
    for stream, mine in streams.items():
        first, last = mine[0], mine[-1]
        if stream not in known:
            head = target.head(stream)
            known[stream] = head.revision if head else 0
        if known[stream] >= last.revision:
            _compare(target, last)
            continue
        begins = known[stream] == 0
        fork = begins and first.revision > 1
        if known[stream] != first.revision - 1 and not fork:
            raise _differs(stream, first.revision - 1, known[stream])
        appends.append(Append(stream, first.revision - 1, tuple(mine), fork))
        known[stream] = last.revision
    if not appends:
        return None
    return Commit(records[0].time, records[0].actor, tuple(appends))


def _compare(target: Log, record: Record) -> None:
    there = target.backend.read(record.stream, after=record.revision - 1, until=record.revision)
    if not there or there[0].link != record.link:
        raise _differs(record.stream, record.revision, record.revision)


def _differs(stream: str, expected: int, actual: int) -> ConflictError:
    return ConflictError(
        f'the target has other events in "{stream}" than the source at revision {expected}',
        stream=stream,
        expected=expected,
        actual=actual,
        hint="copy into an empty store",
    )


def _send(target: Backend, wanted: list[Commit]) -> None:
    for commit, answer in zip(wanted, target.commit(wanted) if wanted else [], strict=True):
        if isinstance(answer, Refusal):
            actual = answer.head.revision if answer.head else 0
            raise _differs(answer.stream, commit.appends[0].expected, actual)


def _copy_marks(source: Backend, target: Log) -> None:
    marks = source.marks.list(limit=1_000_000)
    there = set(target.backend.marks.list(limit=1_000_000))
    missing = tuple(mark for mark in marks if mark not in there)
    if missing:
        target.backend.commit([Commit(target.clock.now_us(), target.actor, marks=missing)])


def _compare_heads(source: Backend, target: Backend) -> None:
    after = ""
    while names := source.streams(after=after):
        pairs = zip(names, source.heads(names), target.heads(names), strict=True)
        for name, ours, theirs in pairs:
            mine = ours and (ours.revision, ours.link)
            if mine != (theirs and (theirs.revision, theirs.link)):
                raise _differs(name, ours.revision if ours else 0, theirs.revision if theirs else 0)
        after = names[-1]
