"""A list of commits as the server's function takes it, and its answer as receipts and refusals.

Locks are numbers: the first eight bytes of a digest of what they guard. They are sorted, so that
every writer takes them in one order. A stream that is written, a mark and the lease of a fence that
is taken or moved are locked against everybody; a stream that is only read and the lease of a fence
are shared. Every commit shares the lock of its application, which a very large one takes for itself
in place of thousands: a server has room for a few thousand locks in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, json

from holdfast.backends.connection_pool import split_commits
from holdfast.backends.postgresql.rows import lock_of, record_crc
from holdfast.backends.protocol import (
    Append,
    Commit,
    Head,
    Mark,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import Clock

# --- batches that are accepted whole --------------------------------------------------------------
#
# A batch of which every commit is expected to be accepted, as the server checks and writes it.
#
# Whether the commits of a batch fit each other is judged here: a later one sees the earlier ones,
# as clause 1 says. What is left are demands on the store as it is before the batch, and rows to
# add. The server checks all demands and writes all rows in a few statements, however many commits
# there are.
#
# `plan` returns None for a batch that cannot be accepted whole whatever the store says, or that is
# not worth the thought; such a batch is judged commit by commit on the server.


COMMIT_ALL = b"SELECT holdfast.commit_all(" + b", ".join(b"$%d" % n for n in range(1, 15)) + b")"

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
        self._ends += [ends_us for _, ends_us in commit.read_ends]
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
        for record in append.records:
            if record.key is not None:
                if (stream, record.key) in self._keys:
                    return False
                self._keys[stream, record.key] = None
        self._tails[stream] = last.revision, last.link
        return True

    def values(self, *, is_time_judged: bool = False) -> tuple[bytes | None, ...]:
        """Returns the bindings of COMMIT_ALL after the locks.

        A time that is ahead where each stream has it already is accepted, but not by COMMIT_ALL:
        that is not asked about it again once it `is_time_judged`.
        """
        times = () if is_time_judged else (one.time for one in self._commits if _is_judged(one))
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
            b"%d" % max(times, default=0),
        )

    def receipts(self, answer: bytes) -> list[Receipt]:
        """Returns the receipts of the batch, all of it accepted."""
        base, before = json.decode(answer)
        if before is None:
            return [Receipt(Position(base + n)) for n in range(1, len(self._commits) + 1)]
        stored: dict[str, int] = dict(zip(self._watched, before, strict=True))
        return [
            Receipt(
                Position(base + number),
                {name: news.get(name, stored[name]) for name in commit.watch},
            )
            for number, (commit, news) in enumerate(zip(self._commits, self._news, strict=True), 1)
        ]


def one_event(commits: Sequence[Commit]) -> tuple[bytes | None, ...] | None:
    """Returns the bindings of COMMIT_ONE after the locks, None if the batch is more than that."""
    if len(commits) != 1 or len(commits[0].appends) != 1:
        return None
    commit = commits[0]
    append = commit.appends[0]
    if append.fork or append.expected == 0 or len(append.records) != 1:
        return None
    if commit.reads or commit.marks or commit.watch or commit.fence is not None:
        return None
    if commit.is_copy:
        return None
    record = append.records[0]
    if record.meta is not None:
        return None
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


def _is_judged(commit: Commit) -> bool:
    """Returns whether the time of a commit is judged: one that only sets marks stores none."""
    return bool(commit.appends) and not commit.is_copy


def plan(commits: Sequence[Commit], tokens: Iterator[str]) -> Plan | None:
    """Returns the plan of a batch, None if its commits do not fit each other."""
    made = Plan(commits)
    for number, commit in enumerate(commits, 1):
        if not made.add(number, commit, tokens):
            return None
    return made


def _row(number: int, ordinal: int, record: Record) -> tuple[Any, ...]:
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
        record.payload.decode(),
    )
    return row if record.meta is None else (*row, record.meta)


def _some(rows: list[Any]) -> bytes | None:
    return json.encode(rows) if rows else None


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _bytea(value: bytes | None) -> bytes | None:
    return None if value is None else b"\\x" + value.hex().encode()


COMMIT_EACH = b"SELECT holdfast.commit_each($1, $2, $3, $4, $5)"
# A position has room for 4,095 commits of one transaction.
COMMITS_MAX = 1000
# Far below what one value may have: 256 MiB as jsonb.
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
        # Leases stay: whoever moves one does not know the application's lock.
        leases = {
            lock_of("lease", application, commit.fence.name): True
            for commit in commits
            if commit.fence is not None
        }
        return {whole: False, **dict(sorted(leases.items()))}
    locks = {**dict.fromkeys(shared, True), **dict.fromkeys(alone, False)}
    return {whole: True, **dict(sorted(locks.items()))}


class PostgresqlBatch(Struct, frozen=True):
    """Some commits of a list, and the locks that they need, as the text of two arrays."""

    commits: Sequence[Commit]
    locks: bytes
    shared: bytes
    tokens: tuple[str, ...]  # one per commit without events, the same in every attempt

    def text(self) -> bytes:
        """Returns the commits as COMMIT_EACH takes them."""
        tokens = iter(self.tokens)
        return json.encode([_encoded(commit, tokens) for commit in self.commits])


def batches(application: str, commits: Sequence[Commit], clock: Clock) -> Iterator[PostgresqlBatch]:
    """Yields the commits as batches, nearly always as one."""
    for part in split_commits(commits, most=COMMITS_MAX, bytes_max=BYTES_MAX):
        yield _batch(application, part, clock)


def _batch(application: str, commits: list[Commit], clock: Clock) -> PostgresqlBatch:
    silent = [commit for commit in commits if not commit.appends]
    tokens = tuple(clock.random_bytes(16).hex() for _ in silent)
    return _locked(application, commits, tokens)


def _locked(application: str, commits: list[Commit], tokens: tuple[str, ...]) -> PostgresqlBatch:
    locks = locks_of(application, commits)
    return PostgresqlBatch(
        commits,
        b"{" + b",".join(b"%d" % lock for lock in locks) + b"}",
        b"{" + b",".join(b"t" if shared else b"f" for shared in locks.values()) + b"}",
        tokens,
    )


# --- keys on later records ------------------------------------------------------------------------
#
# `commit_each` knows one key for each append, and the text of its file never changes. `commit_all`
# takes every record with its key. So a commit with keys on later records (clause 26) that was not
# accepted in a batch is sent to `commit_all` alone, and `judge` says why it is refused.

JUDGE = b"SELECT holdfast.judge($1, $2)::text"


def has_later_keys(commit: Commit) -> bool:
    """Says whether a record that is not the first of its append has a key."""
    return any(_later_keys(append) for append in commit.appends)


def _later_keys(append: Append) -> list[str]:
    return [record.key for record in append.records[1:] if record.key is not None]


def apart(application: str, batch: PostgresqlBatch) -> Iterator[PostgresqlBatch]:
    """Yields each commit of a batch as a batch of its own."""
    tokens = iter(batch.tokens)
    for commit in batch.commits:
        own = () if commit.appends else (next(tokens),)
        yield _locked(application, [commit], own)


def question(commit: Commit) -> bytes:
    """Returns a commit as `judge` takes it: an append without records for each later key."""
    appends, *rest = _encoded(commit, iter(()))
    for append, encoded in zip(commit.appends, tuple(appends), strict=False):
        stream, expected, fork, previous, _, _, ends = encoded
        for key in _later_keys(append):
            appends.append((stream, expected, fork, previous, key, (), ends))
    return json.encode((appends, *rest))


def _encoded(commit: Commit, tokens: Iterator[str]) -> tuple[Any, ...]:
    appends: list[Any] = []
    for append in commit.appends:
        records: list[Any] = []
        for record in append.records:
            payload = record.payload.decode()
            fields = record.type, payload, record.link.hex(), record.checkpoint, record.subject
            meta = () if record.meta is None else (record.meta,)
            records.append((*fields, record_crc(record), *meta))
        previous = append.previous.hex() if append.previous is not None else None
        key = append.records[0].key
        ends = append.expires_us or None
        appends.append((append.stream, append.expected, append.fork, previous, key, records, ends))
    # `judge` knows the ends of what is appended alone, and the text of its file never changes. So
    # what was only read and ends is an append of no records: it is judged, and writes nothing.
    ends_of = dict(commit.read_ends)
    for stream, expected in commit.reads:
        if stream in ends_of and expected:
            appends.append((stream, expected, False, None, None, (), ends_of[stream]))
    fence = commit.fence
    marks = [
        (mark.index, mark.key, mark.due, mark.priority, mark.group)
        if isinstance(mark, Mark)
        else (mark.index, mark.key)
        for mark in commit.marks
    ]
    return (
        appends,
        commit.reads,
        () if fence is None else (fence.name, fence.owner, fence.epoch),
        marks,
        commit.watch,
        commit.time,
        commit.actor,
        None if commit.appends else next(tokens),
        commit.is_copy,
    )


def decode_answers(text: bytes, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
    """Returns the outcomes that the server's function answered with."""
    return [
        _decode(answer, commit) for answer, commit in zip(json.decode(text), commits, strict=True)
    ]


def decode_answer(text: bytes, commit: Commit) -> Receipt | Refusal:
    """Returns the one outcome that the server's function answered with."""
    return _decode(json.decode(text), commit)


def _decode(answer: list[Any], commit: Commit) -> Receipt | Refusal:
    match answer:
        case [int(position), news]:
            watched = dict(zip(commit.watch, news, strict=True)) if commit.watch else {}
            return Receipt(Position(position), watched)
        case ["duplicate", stream, expected, revision]:
            return Refusal("duplicate", stream, expected, revision=revision)
        case ["expired", stream, expected]:
            return Refusal("expired", stream, expected)
        case ["ahead", stream, expected, now_us]:
            return Refusal("ahead", stream, expected, now_us=now_us)
        case ["fenced", name]:
            return Refusal("fenced", name)
        case ["conflict", stream, expected, head]:
            return Refusal("conflict", stream, expected, head and _head(head))
        case _:
            raise AssertionError(f"BUG: the server's function answered {answer!r}")


def _head(fields: list[Any]) -> Head:
    revision, link, time, position, first = fields
    return Head(revision, bytes.fromhex(link), time, Position(position), first)
