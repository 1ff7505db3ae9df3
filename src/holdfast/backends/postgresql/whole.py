"""A batch of which every commit is expected to be accepted, as the server checks and writes it.

Whether the commits of a batch fit each other is judged here: a later one sees the earlier ones, as
clause 1 says. What is left are demands on the store as it is before the batch, and rows to add. The
server checks all demands and writes all rows in a few statements, however many commits there are.

`plan` returns None for a batch that cannot be accepted whole whatever the store says, or that is
not worth the thought; such a batch is judged commit by commit on the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import json

from holdfast.backends.postgresql.rows import record_crc
from holdfast.backends.protocol import Append, Commit, Mark, Position, Receipt, Record

COMMIT_ALL = b"SELECT holdfast.commit_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"

COMMIT_ONE = b"SELECT holdfast.commit_one(" + b", ".join(b"$%d" % n for n in range(1, 18)) + b")"


class Plan:
    """The demands and rows of a batch."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._commits = commits
        self._demands: dict[str, tuple[int, str | None]] = {}
        self._tails: dict[str, tuple[int, bytes]] = {}  # where streams will be
        self._keys: dict[tuple[str, str], None] = {}
        self._fences: dict[tuple[str, str, int], None] = {}
        self._new: list[tuple[str, int]] = []
        self._records: list[tuple[Any, ...]] = []
        self._silent: list[tuple[int, str]] = []
        self._marks: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._watched: dict[str, None] = {}
        self._news: list[dict[str, int]] = []
        self._ends: list[int] = []

    def add(self, number: int, commit: Commit, tokens: Iterator[str]) -> bool:
        """Takes the next commit; returns False if it does not fit those before it."""
        if not all(self._guard(stream, expected) for stream, expected in commit.reads):
            return False
        if not all(self._append(append) for append in commit.appends):
            return False
        if commit.fence is not None:
            self._fences[commit.fence.name, commit.fence.owner, commit.fence.epoch] = None
        ordinal = 0
        for append in commit.appends:
            for record in append.records:
                self._records.append(_row(number, ordinal, record))
                ordinal += 1
        if not commit.appends:
            self._silent.append((number, next(tokens)))
        for mark in commit.marks:
            about = mark.index, mark.key
            more = (mark.due, mark.priority, mark.group) if isinstance(mark, Mark) else ()
            self._marks[about] = (*about, *more)
        # Known already for what the batch has written; asked of the store for the rest.
        self._news.append(
            {name: self._tails[name][0] for name in commit.watch if name in self._tails}
        )
        self._watched.update(dict.fromkeys(commit.watch))
        return True

    def _guard(self, stream: str, expected: int) -> bool:
        tail = self._tails.get(stream)
        if tail is not None:
            return tail[0] == expected
        return self._demands.setdefault(stream, (expected, None))[0] == expected

    def _append(self, append: Append) -> bool:
        stream, expected, last = append.stream, append.expected, append.records[-1]
        tail = self._tails.get(stream)
        if tail is not None:
            fits = not append.fork and tail[0] == expected
            if not fits or append.previous not in (None, tail[1]):
                return False
        else:
            begins = append.fork or expected == 0
            if not self._guard(stream, 0 if begins else expected):
                return False
            if begins:
                self._new.append((stream, expected + 1))
            elif append.previous is not None:
                self._demands[stream] = expected, append.previous.hex()
        if append.expires_us:
            self._ends.append(append.expires_us)
        key = append.records[0].key
        if key is not None:
            if (stream, key) in self._keys:
                return False
            self._keys[stream, key] = None
        self._tails[stream] = last.revision, last.link
        return True

    def values(self) -> tuple[bytes | None, ...]:
        """Returns the bindings of COMMIT_ALL behind the locks."""
        heads = [(stream, *demand) for stream, demand in self._demands.items()]
        return (
            json.encode(heads),
            _some(self._records),
            _some(self._new),
            _some(list(self._keys)),
            _some(list(self._fences)),
            _some(self._silent),
            _some(list(self._marks.values())),
            _some(list(self._watched)),
            b"%d" % min(self._ends) if self._ends else None,
        )

    def receipts(self, answer: bytes) -> list[Receipt]:
        """Returns the receipts of the batch, all of it accepted."""
        place, before = json.decode(answer)
        if before is None:
            return [Receipt(Position(place + n)) for n in range(1, len(self._commits) + 1)]
        stored: dict[str, int] = dict(zip(self._watched, before, strict=True))
        return [
            Receipt(
                Position(place + number),
                {name: news.get(name, stored[name]) for name in commit.watch},
            )
            for number, (commit, news) in enumerate(zip(self._commits, self._news, strict=True), 1)
        ]


def one_event(commits: Sequence[Commit]) -> tuple[bytes | None, ...] | None:
    """Returns the bindings of COMMIT_ONE behind the locks, None if the batch is more than that."""
    if len(commits) != 1 or len(commits[0].appends) != 1:
        return None
    commit = commits[0]
    append = commit.appends[0]
    if append.fork or append.expected == 0 or len(append.records) != 1:
        return None
    if commit.reads or commit.marks or commit.watch or commit.fence is not None:
        return None
    record = append.records[0]
    return (
        append.stream.encode(),
        b"%d" % append.expected,
        _bytea(append.previous),
        b"%d" % commit.time,
        record.type.encode(),
        commit.actor.encode(),
        _text(record.key),
        _text(record.checkpoint),
        _text(record.subject),
        b"%d" % record_crc(record),
        _bytea(record.link),
        record.payload,
        b"%d" % append.expires_us if append.expires_us else None,
    )


def plan(commits: Sequence[Commit], tokens: Iterator[str]) -> Plan | None:
    """Returns the plan of a batch, None if its commits do not fit each other."""
    made = Plan(commits)
    for number, commit in enumerate(commits, 1):
        if not made.add(number, commit, tokens):
            return None
    return made


def _row(number: int, ordinal: int, record: Record) -> tuple[Any, ...]:
    return (
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
        record.payload.decode(),
    )


def _some(rows: list[Any]) -> bytes | None:
    return json.encode(rows) if rows else None


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _bytea(value: bytes | None) -> bytes | None:
    return None if value is None else b"\\x" + value.hex().encode()
