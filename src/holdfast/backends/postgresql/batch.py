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

from holdfast.backends.judge import check_shape
from holdfast.backends.postgresql.rows import record_crc
from holdfast.backends.protocol import (
    Commit,
    Head,
    Mark,
    Position,
    Receipt,
    Refusal,
)
from holdfast.errors import UsageError

COMMIT = "SELECT holdfast.commit(%s, %s, %s::bigint[], %s::boolean[], %s::jsonb)"
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
    """Some commits of a list, as the bindings of COMMIT."""

    commits: Sequence[Commit]
    locks: str
    shared: str
    text: str


def batches(application: str, commits: Sequence[Commit], tokens: Iterator[str]) -> Iterator[Batch]:
    """Yields the commits as batches, nearly always as one."""
    part: list[Commit] = []
    texts: list[bytes] = []
    size = 0
    for commit in commits:
        check_shape(commit)
        text = _encode(commit, tokens)
        if part and (len(part) >= COMMITS_MAX or size + len(text) > BYTES_MAX):
            yield _batch(application, part, texts)
            part, texts, size = [], [], 0
        part.append(commit)
        texts.append(text)
        size += len(text)
    if part:
        yield _batch(application, part, texts)


def _batch(application: str, commits: list[Commit], texts: list[bytes]) -> Batch:
    locks = locks_of(application, commits)
    return Batch(
        commits,
        "{" + ",".join(map(str, locks)) + "}",
        "{" + ",".join("t" if shared else "f" for shared in locks.values()) + "}",
        (b"[" + b",".join(texts) + b"]").decode(),
    )


def _encode(commit: Commit, tokens: Iterator[str]) -> bytes:
    appends: list[Any] = []
    for append in commit.appends:
        records: list[Any] = []
        for record in append.records:
            try:
                payload = record.payload.decode()
            except UnicodeDecodeError:
                raise UsageError(
                    f'event {record.revision} of "{append.stream}" has a payload that is not UTF-8'
                ) from None
            fields = record.type, payload, record.link.hex(), record.checkpoint, record.subject
            records.append((*fields, record_crc(record)))
        previous = append.previous.hex() if append.previous is not None else None
        key = append.records[0].key
        appends.append((append.stream, append.expected, append.fork, previous, key, records))
    fence = commit.fence
    marks = [
        (mark.index, mark.key, mark.due, mark.priority, mark.group)
        if isinstance(mark, Mark)
        else (mark.index, mark.key)
        for mark in commit.marks
    ]
    return json.encode(
        (
            appends,
            commit.reads,
            () if fence is None else (fence.name, fence.owner, fence.epoch),
            marks,
            commit.watch,
            commit.time,
            commit.actor,
            None if appends else next(tokens),
        )
    )


def decode_answers(text: str, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
    """Returns the outcomes that the server's function answered with."""
    return [
        _decode(answer, commit) for answer, commit in zip(json.decode(text), commits, strict=True)
    ]


def _decode(answer: list[Any], commit: Commit) -> Receipt | Refusal:
    match answer:
        case [int(position), news]:
            watched = dict(zip(commit.watch, news, strict=True)) if commit.watch else {}
            return Receipt(Position(position), watched)
        case ["duplicate", stream, expected, revision]:
            return Refusal("duplicate", stream, expected, revision=revision)
        case ["fenced", name]:
            return Refusal("fenced", name)
        case ["conflict", stream, expected, head]:
            return Refusal("conflict", stream, expected, head and _head(head))
        case _:
            raise AssertionError(f"BUG: the server's function answered {answer!r}")


def _head(fields: list[Any]) -> Head:
    revision, link, time, position, first = fields
    return Head(revision, bytes.fromhex(link), time, Position(position), first)
