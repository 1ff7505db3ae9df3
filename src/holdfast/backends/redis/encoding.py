"""How a store is encoded in Redis: its keys, entries of events, heads, batches of commits.

The checksum of an entry covers everything but the position, which only the server knows. It covers
stream and revision too, so an entry that turns up in another place fails it. The checksum finds
accidents; forged data is found by the links, which the log verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from msgspec import Struct

from holdfast.backends.connection_pool import split_commits
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
from holdfast.errors import CorruptError

# --- keys -----------------------------------------------------------------------------------------
#
# The names of a store's keys. All have the same hash tag, so a cluster keeps them in one slot, and
# one script can write any of them atomically.


_PER_INDEX = ("marks", "order", "due", "ready", "held", "claims")


class Keys:
    """The keys of one application."""

    def __init__(self, application: str) -> None:
        self.root = root = f"holdfast:{{{application}}}"
        self.heads = f"{root}:heads"
        self.streams = f"{root}:streams"
        self.log = f"{root}:log"
        self.leases = f"{root}:leases"
        self.indexes = f"{root}:indexes"
        self.kept = f"{root}:kept"

    def events(self, stream: str) -> str:
        return f"{self.root}:events:{stream}"

    def rewriting(self, stream: str) -> str:
        return f"{self.root}:rewriting:{stream}"

    def keys(self, stream: str) -> str:
        return f"{self.root}:keys:{stream}"

    def checkpoints(self, stream: str) -> str:
        return f"{self.root}:checkpoints:{stream}"

    def named(self, stream: str) -> str:
        return f"{self.root}:named:{stream}"

    def of_stream(self, stream: str) -> list[str]:
        """Returns what the script `whole` calls the parts of a stream."""
        about = (self.events(stream), self.keys(stream), self.checkpoints(stream))
        return [stream, f"head of {stream}", *about]

    def of_index(self, index: str) -> list[str]:
        """Returns every key that a mark of this index may be in."""
        return [self.indexes, *(f"{self.root}:{name}:{index}" for name in _PER_INDEX)]

    def object(self, kind: str, name: str) -> str:
        return f"{self.root}:object:{kind}:{name}"

    def objects(self, kind: str) -> str:
        return f"{self.root}:objects:{kind}"

    def expiring(self, kind: str) -> str:
        return f"{self.root}:expiring:{kind}"

    def token(self, token: str) -> str:
        return f"{self.root}:token:{token}"


# --- events, heads and marks ----------------------------------------------------------------------

_HEAD = re.compile(rb"(\d+) ([0-9a-f]{64}) (\d+) (\d+) (\d+)(?: (\d+)(?: (\d+) (\d+))?)?\Z")


def record_crc(record: Record) -> str:
    """Returns the checksum of a record as its entry has it."""
    envelope = (
        f"{record.stream} {record.revision} {record.time} {record.type} {record.actor} "
        f"{record.key} {record.checkpoint} {record.subject} "
    )
    if record.meta is not None:
        envelope = f"{envelope}{record.meta} "
    return f"{crc32(record.payload, crc32(record.link, crc32(envelope.encode()))):08x}"


def decode(stream: str, entry: list[Any], where: str) -> Record:
    """Returns the record of an entry, or raises CorruptError if it is not what was written."""
    id, fields = entry
    revision, _, part = id.partition(b"-")
    try:
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        record = Record(
            stream,
            int(revision),
            int(found[b"time"]),
            found[b"type"].decode(),
            found[b"actor"].decode(),
            found[b"payload"],
            bytes.fromhex(found[b"link"].decode()),
            _text(found.get(b"key")),
            _text(found.get(b"checkpoint")),
            _text(found.get(b"subject")),
            Position(int(found[b"position"])),
            _text(found.get(b"meta")),
        )
        whole = part == b"0" and record_crc(record) == found[b"crc"].decode()
    except (KeyError, ValueError):
        raise _corrupt(stream, int(revision), "cannot be read", where) from None
    if not whole:
        raise _corrupt(stream, int(revision), "fails its checksum", where)
    return record


def missing(stream: str, revision: int, where: str) -> CorruptError:
    return _corrupt(stream, revision, "is missing", where)


def _corrupt(stream: str, revision: int, problem: str, where: str) -> CorruptError:
    return CorruptError(
        f'event {revision} of "{stream}" {problem} ({where})',
        where=where,
        stream=stream,
        revision=revision,
    )


def decode_head(stream: str, text: bytes | None, where: str) -> Head | None:
    """Returns the head of a stream as it is stored."""
    if not text:
        return None
    match = _HEAD.match(text)
    if match is None:
        raise CorruptError(
            f'the head of "{stream}" is damaged ({where})', where=where, stream=stream
        )
    revision, link, time, position, first, ends, _, _ = match.groups()
    head = bytes.fromhex(link.decode())
    return Head(int(revision), head, int(time), Position(int(position)), int(first), int(ends or 0))


def decode_counts(text: bytes | None) -> tuple[int | None, int | None]:
    """Returns how many keys and checkpoint names a stream has, by its head; None: not counted."""
    match = _HEAD.match(text or b"")
    if match is None or match.group(7) is None:
        return None, None
    return int(match.group(7)), int(match.group(8))


def prefix_end(prefix: str) -> str:
    """Returns the end of a range by name (ZRANGEBYLEX) of all names that begin with `prefix`."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return "+"
    after = ord(stem[-1]) + 1
    if 0xD800 <= after <= 0xDFFF:  # surrogates are no text; the code point after them is
        after = 0xE000
    return f"({stem[:-1]}{chr(after)}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


DUE_ZERO = 1 << 63


def order_of(mark: Mark) -> str:
    """Returns 40 digits that sort in the order of clause 17: highest priority, earliest due time.

    Redis sorts members of one score as bytes, so both numbers are made positive and padded.
    """
    return f"{DUE_ZERO - mark.priority:020}{DUE_ZERO + mark.due:020}"


# --- objects --------------------------------------------------------------------------------------

CRC_BYTES = 8


def sealed(kind: str, name: str, data: bytes) -> bytes:
    """Returns the bytes, preceded by their checksum.

    It covers kind and name too, so bytes that turn up under another name fail it.
    """
    return b"%08x" % crc32(data, crc32(f"{kind} {name} ".encode())) + data


def is_sealed(kind: str, name: str, stored: bytes) -> bool:
    return sealed(kind, name, stored[CRC_BYTES:]) == stored


# --- batches of commits ---------------------------------------------------------------------------
#
# A list of commits as the server's script takes it, and its answer as receipts and refusals. While
# a script runs, the server answers nobody else, so a long list is split over several scripts.

COMMITS_MAX = 500
BYTES_MAX = 8 << 20
# The number of values before the payloads in ARGV: the store's id and the arguments.
_BEFORE_PAYLOADS = 2


class RedisBatch(Struct, frozen=True):
    """Some commits of a list, encoded once: every attempt sends the same bytes and tokens."""

    commits: list[Commit]
    keys: list[str]
    encoded: list[Any]
    payloads: list[bytes]


def batches(keys: Keys, commits: Sequence[Commit], clock: Clock) -> Iterator[RedisBatch]:
    """Yields the commits as batches, nearly always as one."""
    for part in split_commits(commits, most=COMMITS_MAX, bytes_max=BYTES_MAX):
        yield _batch(keys, part, clock)


def _batch(keys: Keys, commits: list[Commit], clock: Clock) -> RedisBatch:
    payloads: list[bytes] = []
    touched = dict.fromkeys((keys.heads, keys.streams, keys.log))
    encoded: list[Any] = []
    for commit in commits:
        # A commit without events leaves nothing else by which a second attempt could find it.
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
        # If the stream ends by itself, all its keys are given the new end, so all are declared.
        if append.expires_us or any(record.key is not None for record in append.records):
            yield keys.keys(append.stream)
        if append.expires_us or any(record.checkpoint is not None for record in append.records):
            yield keys.checkpoints(append.stream)
            yield keys.named(append.stream)
    for mark in commit.marks:
        yield from keys.of_index(mark.index)


def _encoded(commit: Commit, payloads: list[bytes], token: str | bool) -> tuple[Any, ...]:
    fence, ends = commit.fence, dict(commit.read_ends)
    return (
        [_append(append, payloads) for append in commit.appends],
        [(stream, expected, ends.get(stream, False)) for stream, expected in commit.reads],
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
        commit.is_copy,
    )


def _append(append: Append, payloads: list[bytes]) -> tuple[Any, ...]:
    previous = append.previous
    return (
        append.stream,
        append.expected,
        append.fork,
        False if previous is None else previous.hex(),
        any(record.key is not None for record in append.records),
        [_record(record, payloads) for record in append.records],
        append.expires_us or False,
        append.renews_us or False,
    )


def _record(record: Record, payloads: list[bytes]) -> tuple[Any, ...]:
    payloads.append(record.payload)
    fields = (
        record.type,
        _BEFORE_PAYLOADS + len(payloads),
        record.link.hex(),
        _or_false(record.checkpoint),
        _or_false(record.subject),
        record_crc(record),
        _or_false(record.key),
    )
    return fields if record.meta is None else (*fields, record.meta)


def _or_false(text: str | None) -> str | bool:
    return False if text is None else text


def stopped_by(answers: list[Any]) -> str | None:
    """Takes out the last answer and returns it, if the script found damage and stopped there."""
    if answers and answers[-1][0] == b"stopped":
        return str(answers.pop()[1].decode("utf-8", "replace"))
    return None


def decode_answers(
    answers: list[Any], commits: Sequence[Commit], where: str
) -> list[Receipt | Refusal]:
    """Returns the outcomes that the server's script answered with."""
    return [_decode(answer, commit, where) for answer, commit in zip(answers, commits, strict=True)]


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
    if reason == b"ended":
        return Refusal("expired", *commit.reads[number])
    append = commit.appends[number]
    if reason == b"expired":
        return Refusal("expired", append.stream, append.expected)
    if reason == b"duplicate":
        return Refusal("duplicate", append.stream, append.expected, revision=answer[2])
    if reason == b"ahead":
        return Refusal("ahead", append.stream, append.expected, now_us=int(answer[2]))
    assert reason == b"conflict", f"BUG: the server's script answered {answer!r}"
    head = decode_head(append.stream, answer[2], where)
    return Refusal("conflict", append.stream, append.expected, head)
