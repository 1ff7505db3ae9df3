"""Rows of events: the statements that read them, and the checksum that finds damaged ones.

The checksum covers every column but the position, which only the server knows, and the ordinal
within the commit. It covers stream and revision, so a row that turns up in another place fails it.
The checksum finds accidents; forged data is found by the links, which the log verifies.
"""

from __future__ import annotations

from hashlib import blake2b
from zlib import crc32

from holdfast.backends.postgresql.connection import (
    Row,
)
from holdfast.backends.protocol import (
    Head,
    Position,
    Record,
)
from holdfast.errors import CorruptError

REVISION_MAX = (1 << 63) - 1

# A payload is read as bytes: it is opaque here, so decoding it would be wasted.
_COLUMNS = """stream, revision, time, type, actor, convert_to(payload, 'UTF8'), link, key,
 checkpoint, subject, position, crc, NULL::bigint"""
FIRST, _META = 12, 13
# The column of meta by the format of the schema: in format 1 there is none.
_META_OF = {1: "NULL::text", 2: "meta"}

READ = {
    1: "SELECT *, NULL::text FROM holdfast.read(%s, %s, %s, %s, %s)",
    2: "SELECT * FROM holdfast.read_with_meta(%s, %s, %s, %s, %s)",
}
_READ_MANY = """SELECT asked.number, found.*{meta} FROM unnest(%(streams)s::text[]) WITH ORDINALITY
  AS asked (stream, number)
 CROSS JOIN LATERAL holdfast.{read}(%(application)s, asked.stream, 0, %(until)s, %(limit)s) AS found
 ORDER BY asked.number, found.revision"""
READ_MANY = {
    1: _READ_MANY.format(meta=", NULL::text", read="read"),
    2: _READ_MANY.format(meta="", read="read_with_meta"),
}

# WITH TIES adds the rest of the last commit: all its records have one position. Only positions
# below the horizon are read. A transaction that is still open could add one below those above it,
# and a follower would never see that (clause 9).
_READ_ALL = f"""WITH final AS MATERIALIZED (SELECT holdfast.horizon(%(application)s) AS horizon)
 SELECT {_COLUMNS}, {{meta}} FROM (
  SELECT * FROM holdfast.events WHERE application = %(application)s AND position > %(after)s
  AND position < (SELECT horizon FROM final)
  ORDER BY position FETCH FIRST %(limit)s ROWS WITH TIES) AS page ORDER BY position, ordinal"""
READ_ALL = {format: _READ_ALL.format(meta=meta) for format, meta in _META_OF.items()}

_READ_BACK = f"""WITH final AS MATERIALIZED (SELECT holdfast.horizon(%(application)s) AS horizon)
 SELECT {_COLUMNS}, {{meta}} FROM (
  SELECT * FROM holdfast.events WHERE application = %(application)s AND position <= %(until)s
  AND position < (SELECT horizon FROM final)
  ORDER BY position DESC FETCH FIRST %(limit)s ROWS WITH TIES) AS page
 ORDER BY position, ordinal"""
READ_BACK = {format: _READ_BACK.format(meta=meta) for format, meta in _META_OF.items()}

HEADS = "SELECT * FROM holdfast.heads(%(application)s, %(streams)s::text[])"

STREAMS = """SELECT stream FROM holdfast.streams WHERE application = %(application)s
 AND stream > %(after)s AND stream >= %(prefix)s AND (%(end)s::text IS NULL OR stream < %(end)s)
 ORDER BY stream LIMIT %(limit)s"""

BY_KEY = """SELECT revision, key, time FROM holdfast.events
 WHERE application = %(application)s AND stream = %(stream)s AND key = %(key)s"""
BY_CHECKPOINT = """SELECT revision, checkpoint, time FROM holdfast.events
 WHERE application = %(application)s AND stream = %(stream)s AND checkpoint IS NOT NULL
 AND (%(checkpoint)s::text IS NULL OR checkpoint = %(checkpoint)s)
 ORDER BY revision DESC LIMIT %(limit)s"""

BY_LINK = """SELECT position FROM holdfast.events
 WHERE application = %s AND stream = %s AND revision = %s AND link = %s"""

NEWEST = "SELECT holdfast.newest(%(application)s)"

# In the order of streams, for a check of every row.
_PAGE = f"""SELECT {_COLUMNS}, {{meta}} FROM holdfast.events WHERE application = %(application)s
 AND (stream, revision) > (%(stream)s, %(revision)s) AND stream <= %(until)s
 ORDER BY stream, revision LIMIT %(limit)s"""
PAGE = {format: _PAGE.format(meta=meta) for format, meta in _META_OF.items()}


def prefix_end(prefix: str) -> str | None:
    """Returns a text that sorts after every text beginning with `prefix`; None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    after = ord(stem[-1]) + 1
    if 0xD800 <= after <= 0xDFFF:  # surrogates are no text; the code point after them is
        after = 0xE000
    return stem[:-1] + chr(after)


def signed_crc(data: bytes, start: int = 0) -> int:
    """Returns CRC-32 as a signed number, which fits PostgreSQL's integer of four bytes."""
    crc = crc32(data, start)
    return crc - ((crc & 0x80000000) << 1)


def record_crc(record: Record) -> int:
    """Returns the checksum of a record's row."""
    envelope = (
        f"{record.stream} {record.revision} {record.time} {record.type} {record.actor} "
        f"{record.key} {record.checkpoint} {record.subject} "
    )
    if record.meta is not None:
        envelope = f"{envelope}{record.meta} "
    return signed_crc(record.payload, crc32(record.link, crc32(envelope.encode())))


def decode(row: Row, where: str) -> Record:
    """Returns the record of a row, or raises CorruptError if it is not what was written."""
    stream, revision, time, type, actor, payload, link, key, checkpoint, subject, position = row[
        :11
    ]
    record = Record(
        stream, revision, time, type, actor, payload, link, key, checkpoint, subject, position,
        row[_META],
    )  # fmt: skip
    if record_crc(record) != row[11]:
        raise CorruptError(
            f'event {revision} of "{stream}" fails its checksum ({where})',
            where=where,
            stream=stream,
            revision=revision,
        )
    return record


def decode_head(row: Row, stream: str, where: str) -> Head | None:
    """Returns the head of a row of HEADS, None if there is no such stream.

    Raises CorruptError if a stream has events but is not listed, or is listed without events.
    """
    _, revision, link, time, position, first = row
    if (revision is None) != (first is None):
        lost = "has no events" if revision is None else "is not among the streams"
        raise CorruptError(f'stream "{stream}" {lost} ({where})', where=where, stream=stream)
    if revision is None:
        return None
    return Head(revision, link, time, Position(position), first)


def lock_of(kind: str, application: str, *names: str) -> int:
    """Returns the number of the advisory lock that guards something of an application."""
    named = "\0".join((kind, application, *names)).encode()
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "big", signed=True)


def object_crc(kind: str, name: str, data: bytes) -> int:
    return signed_crc(data, signed_crc(f"{kind} {name} ".encode()) & 0xFFFFFFFF)
