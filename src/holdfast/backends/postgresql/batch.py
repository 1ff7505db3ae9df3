"""A list of commits as the server's function takes it, and its answer as receipts and refusals.

A commit takes advisory locks of its transaction. The number of a lock is eight bytes of a digest of
what it guards. The application's lock comes first, the others in the order of their numbers, so all
writers take them in one order and there are no deadlocks. A stream that is written and a mark are
locked exclusively; a stream that is only read and the lease of a fence are shared. So commits under
one lease run side by side, and whoever acquires that lease, which takes its lock exclusively, waits
for them. Advisory locks give the transaction no id, so it gets its id, and with it its position,
when it has all its locks: along each stream positions grow with revisions (0006).

A batch with very many locks takes the application's lock exclusively in their place, because a
server has room for a few thousand locks in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, json

from holdfast.backends.connection_pool import split_commits
from holdfast.backends.postgresql.rows import lock_of, record_crc
from holdfast.backends.protocol import (
    Append,
    Cleared,
    Commit,
    Head,
    Mark,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import Clock

# The number of the commit in its transaction has 12 bits of a position: at most 4,095.
COMMITS_MAX = 1000
# Far below the limit of one jsonb value, 256 MiB.
BYTES_MAX = 32 << 20
LOCKS_MAX = 256


def locks_of(application: str, commits: Sequence[Commit]) -> dict[int, bool]:
    """Returns the locks of a batch in their order, each with whether it is shared."""
    alone: set[int] = set()
    shared: set[int] = set()
    for commit in commits:
        for append in commit.appends:
            alone.add(lock_of("stream", application, append.stream))
        for mark in commit.marks:
            alone.add(lock_of("mark", application, mark.index, mark.key))
        for stream, _ in commit.reads:
            shared.add(lock_of("stream", application, stream))
        if commit.fence is not None:
            shared.add(lock_of("lease", application, commit.fence.name))
    whole = lock_of("application", application)
    if len(alone) + len(shared) > LOCKS_MAX:
        # The locks of leases stay: acquiring or renewing a lease does not take the application's
        # lock, so that lock alone would not keep others from it.
        leases = {
            lock_of("lease", application, commit.fence.name): True
            for commit in commits
            if commit.fence is not None
        }
        return {whole: False, **dict(sorted(leases.items()))}
    locks = {**dict.fromkeys(shared, True), **dict.fromkeys(alone, False)}
    return {whole: True, **dict(sorted(locks.items()))}


class PostgresqlBatch(Struct, frozen=True):
    """Some commits of a list, and the arguments of the server's function for them."""

    commits: Sequence[Commit]
    locks: bytes
    shared: bytes
    rows: tuple[bytes | None, ...]  # encoded once, so that every attempt sends the same tokens


def batches(application: str, commits: Sequence[Commit], clock: Clock) -> Iterator[PostgresqlBatch]:
    """Yields the commits as batches, nearly always as one."""
    for part in split_commits(commits, most=COMMITS_MAX, bytes_max=BYTES_MAX):
        locks = locks_of(application, part)
        yield PostgresqlBatch(
            part,
            b"{" + b",".join(b"%d" % lock for lock in locks) + b"}",
            b"{" + b",".join(b"t" if shared else b"f" for shared in locks.values()) + b"}",
            _rows(part, clock),
        )


# --- the encoding ---------------------------------------------------------------------------------
#
# `postgresql_functions_0001.sql` says what the lists hold: each has a list of rows for each commit.
#
# A later commit of a batch sees the earlier ones (clause 1). What they write is known here, so
# whether the commits fit each other is judged here. What is left are conditions on the store as it
# is before the batch. The server checks all of these at once. If one fails, or if the commits do
# not fit each other, it judges one commit after another, by the same rows.

COMMIT = b"SELECT holdfast.commit(" + b", ".join(b"$%d" % n for n in range(1, 13)) + b")"


def _rows(commits: Sequence[Commit], clock: Clock) -> tuple[bytes | None, ...]:
    """Returns the bindings of COMMIT after the locks."""
    encoder = _Encoder()
    for commit in commits:
        encoder.add(commit, clock)
    return encoder.bindings()


class _Encoder:
    """The rows of some commits by their numbers, and whether the commits fit each other."""

    def __init__(self) -> None:
        self._heads: list[list[Any]] = []
        self._records: list[list[Any]] = []
        self._payloads: list[bytes] = []
        self._ends: list[int] = []
        self._latest = 0
        self._more: dict[str, Any] = {}
        # The newest event that the commits so far write to a stream: number of the commit, revision
        # and link.
        self._tails: dict[str, tuple[int, int, bytes]] = {}
        self._keys: set[tuple[str, str]] = set()
        self._marks: dict[tuple[str, str], list[Any]] = {}

    def add(self, commit: Commit, clock: Clock) -> None:
        number = len(self._heads)
        heads: list[Any] = []
        records: list[Any] = []
        self._heads.append(heads)
        self._records.append(records)
        time = None if commit.is_copy else commit.time
        for append in commit.appends:
            heads.append(self._head(number, append, time))
            for record in append.records:
                self._payloads.append(record.payload)
                records.append(_record(number, len(records), record, len(self._payloads)))
                if record.key is not None:
                    self._add_key(record.stream, record.key)
        if commit.reads:
            ends = dict(commit.read_ends)
            self._ends += ends.values()
            for stream, expected in commit.reads:
                after = self._after(stream, expected, None)
                heads.append((stream, expected, None, after, ends.get(stream), None))
        if not commit.appends:
            self._add("silent", number, (number, clock.random_bytes(16).hex()))
        elif time is not None:
            self._latest = max(self._latest, time)
        for append in commit.appends:
            last = append.records[-1]
            self._tails[append.stream] = number, last.revision, last.link
        if commit.fence is not None:
            fence = commit.fence
            self._add("fences", number, (fence.name, fence.owner, fence.epoch))
        for mark in commit.marks:
            self._add_mark(number, mark)
        for stream in commit.watch:
            after, revision, _ = self._tails.get(stream, _UNWRITTEN)
            self._add("watched", number, (stream, after, revision))

    def _add(self, name: str, number: int, row: Any) -> None:
        self._more.setdefault(name, {}).setdefault(number, []).append(row)

    def _head(self, number: int, append: Append, time: int | None) -> tuple[Any, ...]:
        newest, link = append.expected, append.previous
        if append.fork or not newest:
            self._add("new", number, (append.stream, newest + 1))
            newest, link = 0, None
        if append.expires_us:
            self._ends.append(append.expires_us)
        after = self._after(append.stream, newest, link)
        told = None if link is None else link.hex()
        return append.stream, newest, told, after, append.expires_us or None, time

    def _after(self, stream: str, newest: int, link: bytes | None) -> int:
        """Returns the number of the last commit of the batch that writes a stream, -1 if none does.

        Notes that the commits do not fit each other if that one ends elsewhere than expected.
        """
        after, revision, last = self._tails.get(stream, _UNWRITTEN)
        if after >= 0 and (revision != newest or link not in (None, last)):
            self._more["misfits"] = True
        return after

    def _add_key(self, stream: str, key: str) -> None:
        if (stream, key) in self._keys:
            self._more["misfits"] = True
        self._keys.add((stream, key))

    def _add_mark(self, number: int, mark: Mark | Cleared) -> None:
        """Adds the row of a mark; if an earlier commit sets it too, notes in that row by which.

        Written at once, only the last row of each mark counts.
        """
        named = mark.index, mark.key
        more = (mark.due, mark.priority, mark.group) if isinstance(mark, Mark) else ()
        if named in self._marks:
            self._marks[named][1] = number
        row = self._marks[named] = [(*named, *more), None]
        self._add("marks", number, row)

    def bindings(self) -> tuple[bytes | None, ...]:
        payloads = b"\n".join(self._payloads)
        # A text parameter ends at a zero byte, and payloads are separated by line breaks.
        lines = payloads.count(b"\n") + 1
        if lines != max(len(self._payloads), 1) or b"\0" in payloads:
            # Not by `assert`, which can be turned off: the payloads behind it would be mistaken.
            raise AssertionError("BUG: a payload that is not one line of text")
        is_one = len(self._payloads) == len(self._heads[0]) == len(self._heads) == 1
        return (
            json.encode(self._heads),
            json.encode(self._records) if self._payloads else None,
            payloads,
            b"t" if is_one and not self._more else b"f",
            b"t" if self._keys else b"f",
            b"%d" % min(self._ends) if self._ends else None,
            b"%d" % self._latest,
            self._encoded_more() if self._more else None,
        )

    def _encoded_more(self) -> bytes:
        numbers = range(len(self._heads))
        lists = {
            name: rows if rows is True else [rows.get(number, ()) for number in numbers]
            for name, rows in self._more.items()
        }
        return json.encode(lists)


_UNWRITTEN = -1, 0, b""


def _record(number: int, ordinal: int, record: Record, line: int) -> tuple[Any, ...]:
    row = (
        number,
        record.stream,
        record.revision,
        ordinal,
        record.time,
        record.type,
        record.actor,
        record.key,
        record.checkpoint,
        record.subject,
        record_crc(record),
        record.link.hex(),
        line,
    )
    return row if record.meta is None else (*row, record.meta)


def decode_answer(text: bytes, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
    """Returns the outcomes that the server's function answered with."""
    answer: Any = json.decode(text)
    if isinstance(answer, int):
        return [Receipt(Position(answer + number)) for number in range(len(commits))]
    place, told, revisions = answer
    others: dict[int, list[Any]] = dict(told)
    news = iter(revisions)
    return [
        _other(others[number], commit)
        if number in others
        else Receipt(Position(place + number), {stream: next(news) for stream in commit.watch})
        for number, commit in enumerate(commits)
    ]


def _other(answer: list[Any], commit: Commit) -> Receipt | Refusal:
    appended = [(append.stream, append.expected) for append in commit.appends]
    asked = [*appended, *commit.reads]
    match answer:
        case ["there", int(position)]:
            return Receipt(Position(position))
        case ["expired", int(row)]:
            return Refusal("expired", *asked[row - 1])
        case ["duplicate", str(stream), int(revision)]:
            return Refusal("duplicate", stream, dict(appended)[stream], revision=revision)
        case ["fenced", str(name)]:
            return Refusal("fenced", name)
        case ["conflict", int(row), None]:
            return Refusal("conflict", *asked[row - 1])
        case ["conflict", int(row), [*head]]:
            return Refusal("conflict", *asked[row - 1], _head(head))
        case ["ahead", int(row), int(now_us)]:
            return Refusal("ahead", *asked[row - 1], now_us=now_us)
        case _:
            raise AssertionError(f"BUG: the server's function answered {answer!r}")


def _head(fields: list[Any]) -> Head:
    revision, link, time, position, first = fields
    return Head(revision, bytes.fromhex(link), time, Position(position), first)
