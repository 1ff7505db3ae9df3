"""A list of commits as the server's function takes it, and its answer as receipts and refusals.

Locks are numbers: the first eight bytes of a digest of what they guard. They are sorted, so that
every writer takes them in one order. A stream that is written, a mark and the lease of a fence that
is taken or moved are locked against everybody; a stream that is only read and the lease of a fence
are shared. Every commit shares the lock of its application, which a very large one takes for itself
in place of thousands: a server has room for a few thousand locks in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct, json

from holdfast.backends.gate import cut
from holdfast.backends.postgresql.rows import record_crc
from holdfast.backends.protocol import (
    Commit,
    Head,
    Mark,
    Position,
    Receipt,
    Refusal,
)
from holdfast.clock import Clock

COMMIT_EACH = b"SELECT holdfast.commit_each($1, $2, $3, $4, $5)"
# A position has room for 4,095 commits of one transaction.
COMMITS_MAX = 1000
# Far below what one value may have: 256 MiB as jsonb.
BYTES_MAX = 32 << 20
LOCKS_MAX = 256


def lock_of(kind: str, application: str, *names: str) -> int:
    """Returns the number of the advisory lock that guards something of an application."""
    named = "\0".join((kind, application, *names)).encode()
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "big", signed=True)


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


class Batch(Struct, frozen=True):
    """Some commits of a list, and the locks that they need, as the text of two arrays."""

    commits: Sequence[Commit]
    locks: bytes
    shared: bytes
    tokens: tuple[str, ...]  # one per commit without events, the same in every attempt

    def text(self) -> bytes:
        """Returns the commits as COMMIT_EACH takes them."""
        tokens = iter(self.tokens)
        return json.encode([_encoded(commit, tokens) for commit in self.commits])


def batches(application: str, commits: Sequence[Commit], clock: Clock) -> Iterator[Batch]:
    """Yields the commits as batches, nearly always as one."""
    for part in cut(commits, most=COMMITS_MAX, bytes_max=BYTES_MAX):
        yield _batch(application, part, clock)


def _batch(application: str, commits: list[Commit], clock: Clock) -> Batch:
    locks = locks_of(application, commits)
    silent = [commit for commit in commits if not commit.appends]
    return Batch(
        commits,
        b"{" + b",".join(b"%d" % lock for lock in locks) + b"}",
        b"{" + b",".join(b"t" if shared else b"f" for shared in locks.values()) + b"}",
        tuple(clock.random_bytes(16).hex() for _ in silent),
    )


def _encoded(commit: Commit, tokens: Iterator[str]) -> tuple[Any, ...]:
    appends: list[Any] = []
    for append in commit.appends:
        records: list[Any] = []
        for record in append.records:
            payload = record.payload.decode()
            fields = record.type, payload, record.link.hex(), record.checkpoint, record.subject
            records.append((*fields, record_crc(record)))
        previous = append.previous.hex() if append.previous is not None else None
        key = append.records[0].key
        ends = append.expires_us or None
        appends.append((append.stream, append.expected, append.fork, previous, key, records, ends))
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
        None if appends else next(tokens),
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
        case ["fenced", name]:
            return Refusal("fenced", name)
        case ["conflict", stream, expected, head]:
            return Refusal("conflict", stream, expected, head and _head(head))
        case _:
            raise AssertionError(f"BUG: the server's function answered {answer!r}")


def _head(fields: list[Any]) -> Head:
    revision, link, time, position, first = fields
    return Head(revision, bytes.fromhex(link), time, Position(position), first)
