"""A list of commits as the server's script takes it, and its answer as receipts and refusals.

A script runs alone, and nobody else is answered meanwhile: a long list becomes several scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from holdfast.backends.connection_pool import cut
from holdfast.backends.protocol import Append, Commit, Mark, Position, Receipt, Record, Refusal
from holdfast.backends.redis.entries import Keys, decode_head, order_of, record_crc
from holdfast.clock import Clock

COMMITS_MAX = 500
BYTES_MAX = 8 << 20
# What stands before the payloads among the script's values: the store's id, the arguments.
_BEFORE_PAYLOADS = 2


class RedisBatch(Struct, frozen=True):
    """Some commits of a list, ready to be sent, as often as it takes."""

    commits: list[Commit]
    keys: list[str]
    encoded: list[Any]
    payloads: list[bytes]


def batches(keys: Keys, commits: Sequence[Commit], clock: Clock) -> Iterator[RedisBatch]:
    """Yields the commits as batches, nearly always as one."""
    for part in cut(commits, most=COMMITS_MAX, bytes_max=BYTES_MAX):
        yield _batch(keys, part, clock)


def _batch(keys: Keys, commits: list[Commit], clock: Clock) -> RedisBatch:
    payloads: list[bytes] = []
    touched = dict.fromkeys((keys.heads, keys.streams, keys.log))
    encoded: list[Any] = []
    for commit in commits:
        token = False if commit.appends else clock.random_bytes(16).hex()
        touched.update(dict.fromkeys(_touched(keys, commit)))
        if token:
            touched[keys.token(token)] = None
        encoded.append(_encoded(commit, payloads, token))
    return RedisBatch(commits, list(touched), encoded, payloads)


def _touched(keys: Keys, commit: Commit) -> Iterator[str]:
    if commit.fence is not None:
        yield keys.leases
    for append in commit.appends:
        yield keys.events(append.stream)
        if append.records[0].key is not None:
            yield keys.keys(append.stream)
        if any(record.checkpoint is not None for record in append.records):
            yield keys.checkpoints(append.stream)
            yield keys.named(append.stream)
    for mark in commit.marks:
        yield from keys.of_index(mark.index)


def _encoded(commit: Commit, payloads: list[bytes], token: str | bool) -> tuple[Any, ...]:
    fence = commit.fence
    return (
        [_append(append, payloads) for append in commit.appends],
        commit.reads,
        fence is not None and (fence.name, fence.owner, fence.epoch),
        [
            (mark.index, mark.key, order_of(mark), str(mark.due), mark.group)
            if isinstance(mark, Mark)
            else (mark.index, mark.key)
            for mark in commit.marks
        ],
        commit.watch,
        commit.time,
        commit.actor,
        token,
    )


def _append(append: Append, payloads: list[bytes]) -> tuple[Any, ...]:
    previous = append.previous
    return (
        append.stream,
        append.expected,
        append.fork,
        False if previous is None else previous.hex(),
        _or_false(append.records[0].key),
        [_record(record, payloads) for record in append.records],
        append.expires_us or False,
    )


def _record(record: Record, payloads: list[bytes]) -> tuple[Any, ...]:
    payloads.append(record.payload)
    return (
        record.type,
        _BEFORE_PAYLOADS + len(payloads),
        record.link.hex(),
        _or_false(record.checkpoint),
        _or_false(record.subject),
        record_crc(record),
    )


def _or_false(text: str | None) -> str | bool:
    return False if text is None else text


def decode_answers(answers: list[Any], batch: RedisBatch, where: str) -> list[Receipt | Refusal]:
    """Returns the outcomes that the server's script answered with."""
    return [
        _decode(answer, commit, where)
        for answer, commit in zip(answers, batch.commits, strict=True)
    ]


def _decode(answer: list[Any], commit: Commit, where: str) -> Receipt | Refusal:
    reason = answer[0]
    if isinstance(reason, int):
        return Receipt(Position(reason), dict(zip(commit.watch, answer[1:], strict=True)))
    if reason == b"fenced":
        assert commit.fence is not None, "BUG: fenced without a fence"
        return Refusal("fenced", commit.fence.name)
    number: int = answer[1] - 1
    if reason == b"stale":
        stream, expected = commit.reads[number]
        return Refusal("conflict", stream, expected, decode_head(stream, answer[2], where))
    append = commit.appends[number]
    if reason == b"expired":
        return Refusal("expired", append.stream, append.expected)
    if reason == b"duplicate":
        return Refusal("duplicate", append.stream, append.expected, revision=answer[2])
    assert reason == b"conflict", f"BUG: the server's script answered {answer!r}"
    head = decode_head(append.stream, answer[2], where)
    return Refusal("conflict", append.stream, append.expected, head)
