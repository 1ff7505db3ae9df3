"""Entries of events and heads: how they are read, and the checksum that tells accident from data.

The checksum covers everything but the position, which only the server knows. An entry that turns up
under another stream or revision fails it too. That nobody forged the data is told by the links,
which are the log's.
"""

from __future__ import annotations

import re
from typing import Any
from zlib import crc32

from holdfast.backends.protocol import Head, Position, Record
from holdfast.errors import CorruptError

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


def behind_prefix(prefix: str) -> str:
    """Returns the end, for a range by name, of all names that begin with `prefix`."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return "+"
    after = ord(stem[-1]) + 1
    if 0xD800 <= after <= 0xDFFF:  # surrogates are no text; the next code point behind them is
        after = 0xE000
    return f"({stem[:-1]}{chr(after)}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
