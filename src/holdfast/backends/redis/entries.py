"""Entries of events and heads: how they are read, and the checksum that tells accident from data.

The checksum covers everything but the position, which only the server knows. An entry that turns up
under another stream or revision fails it too. That nobody forged the data is told by the links,
which are the log's.
"""

from __future__ import annotations

import re
from typing import Any
from zlib import crc32

from holdfast.backends.protocol import (
    Head,
    Mark,
    Position,
    Record,
)
from holdfast.errors import CorruptError

# --- keys -----------------------------------------------------------------------------------------
#
# The names of a store's keys. All have one hash tag, so a cluster keeps them in one slot.


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

    def events(self, stream: str) -> str:
        return f"{self.root}:events:{stream}"

    def keys(self, stream: str) -> str:
        return f"{self.root}:keys:{stream}"

    def checkpoints(self, stream: str) -> str:
        return f"{self.root}:checkpoints:{stream}"

    def named(self, stream: str) -> str:
        return f"{self.root}:named:{stream}"

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


_HEAD = re.compile(rb"(\d+) ([0-9a-f]{64}) (\d+) (\d+) (\d+)(?: (\d+))?\Z")


def record_crc(record: Record) -> str:
    """Returns the checksum of a record as its entry has it."""
    envelope = (
        f"{record.stream} {record.revision} {record.time} {record.type} {record.actor} "
        f"{record.key} {record.checkpoint} {record.subject} "
    )
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
    revision, link, time, position, first, ends = match.groups()
    head = bytes.fromhex(link.decode())
    return Head(int(revision), head, int(time), Position(int(position)), int(first), int(ends or 0))


def prefix_end(prefix: str) -> str:
    """Returns the end, for a range by name, of all names that begin with `prefix`."""
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
    """Returns 40 digits that sort as clause 17 says: priority, greatest first, then due time."""
    return f"{DUE_ZERO - mark.priority:020}{DUE_ZERO + mark.due:020}"


CRC_BYTES = 8


def sealed(kind: str, name: str, data: bytes) -> bytes:
    """Returns the bytes with their checksum before them.

    It covers kind and name too: bytes that turn up under another name fail it.
    """
    return b"%08x" % crc32(data, crc32(f"{kind} {name} ".encode())) + data


def is_sealed(kind: str, name: str, stored: bytes) -> bool:
    return sealed(kind, name, stored[CRC_BYTES:]) == stored
