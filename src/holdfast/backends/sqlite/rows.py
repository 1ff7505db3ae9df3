"""Event rows: the statement that writes them, those that read them, and the checksum between.

The columns are those of `sql/sqlite_0001.sql`; the last, `meta`, is missing in a store of format 1.
They are read by `*`: SQLite compiles a statement again when its table has changed, so a handle that
was open before another process added the column reads it from then on. The checksum covers every
column and the stream's name, so a row that turns up under another number, name or place fails it
too. It detects accidents. Forged data is detected by the links, which belong to the log.
"""

from __future__ import annotations

from zlib import crc32

from holdfast.backends.protocol import (
    Head,
    Position,
    Record,
)
from holdfast.backends.sqlite.connection import (
    Row,
)
from holdfast.errors import CorruptError

_COLUMNS = """ordinal, position, stream, revision, time, type, actor, key, checkpoint, subject,
 crc, link, payload"""
INSERT = f"INSERT INTO events ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
INSERT_META = f"INSERT INTO events ({_COLUMNS}, meta) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
INSERT_EMPTY = "INSERT INTO events (ordinal) VALUES (?)"
INSERT_STORE = "INSERT INTO events (ordinal, time, type, subject, crc) VALUES (?,?,?,?,?)"

READ = """SELECT * FROM events
 WHERE stream = ? AND revision > ? AND revision <= ? ORDER BY revision LIMIT ?"""
_LINKED = """SELECT revision, time, type, actor, key, checkpoint, subject, payload, link, {}
 FROM events WHERE stream = ? AND revision > ? AND revision <= ? ORDER BY revision LIMIT ?"""
READ_LINKED, READ_LINKED_META = _LINKED.format("NULL"), _LINKED.format("meta")
READ_HEAD = "SELECT * FROM events WHERE stream = ? ORDER BY revision DESC LIMIT 1"
# A commit without events has a row without stream and revision, which is passed over. A row that
# lost only its stream to damage is read, and found to be damaged.
READ_ALL = """SELECT * FROM events WHERE ordinal > ? AND ordinal <= ?
 AND (stream IS NOT NULL OR revision IS NOT NULL) ORDER BY ordinal LIMIT ?"""
# A position may lie among the ordinals of a commit that ends after it: those events are left out.
READ_BACK = """SELECT * FROM events WHERE ordinal <= ? AND coalesce(position, ordinal) <= ?
 AND (stream IS NOT NULL OR revision IS NOT NULL) ORDER BY ordinal DESC LIMIT ?"""
READ_ROWS = """SELECT * FROM events WHERE ordinal > ? AND ordinal <= ?
 ORDER BY ordinal LIMIT ?"""
READ_STORE = "SELECT ordinal, time, type, subject, crc FROM events WHERE ordinal = 0"

ORDINAL, POSITION, STREAM, REVISION = 0, 1, 2, 3
LINK = 11

ORDINAL_MAX = (1 << 63) - 1


def prefix_end(prefix: str) -> str | bytes:
    """Returns the smallest value that sorts after every text that begins with `prefix`.

    The end of "ab" is "ac". Where no text is great enough, it is an empty blob: SQLite sorts blobs
    after all text.
    """
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return b""
    after = ord(stem[-1]) + 1
    if 0xD800 <= after <= 0xDFFF:  # surrogates are no text; the code point after them is
        after = 0xE000
    return stem[:-1] + chr(after)


def signed_crc(data: bytes, start: int = 0) -> int:
    """Returns CRC-32 as SQLite stores it in four bytes: as a signed number."""
    crc = crc32(data, start)
    return crc - ((crc & 0x80000000) << 1)


def crc_of(*values: object) -> int:
    """Returns the checksum of a small row."""
    return signed_crc(repr(values).encode("utf-8", "surrogatepass"))


def store_row(store: str, made_us: int) -> Row:
    """Returns the bindings of INSERT_STORE."""
    row = 0, made_us, "store", store
    return *row, crc_of(*row)


def record_crc(record: Record, ordinal: int, position: int, payload: bytes) -> int:
    """Returns the checksum of a record's row with this payload, its own or a replacement."""
    envelope = (
        f"{ordinal} {position} {record.stream} {record.revision} {record.time} {record.type} "
        f"{record.actor} {record.key} {record.checkpoint} {record.subject} "
    )
    if record.meta is not None:
        envelope = f"{envelope}{record.meta} "
    crc = crc32(payload, crc32(record.link, crc32(envelope.encode())))
    return crc - ((crc & 0x80000000) << 1)


def encode(record: Record, stream_id: int, ordinal: int, position: int) -> Row:
    """Returns the bindings of INSERT, or of INSERT_META if the record has meta."""
    row = (
        ordinal,
        None if position == ordinal else position,
        stream_id,
        record.revision,
        record.time,
        record.type,
        record.actor,
        record.key,
        record.checkpoint,
        record.subject,
        record_crc(record, ordinal, position, record.payload),
        record.link,
        record.payload,
    )
    return row if record.meta is None else (*row, record.meta)


def decode(row: Row, stream: str, where: str) -> Record:
    """Returns the record of a row, or raises CorruptError if it is not what was written."""
    try:
        (
            ordinal, position, _, revision, time, type, actor, key, checkpoint, subject, crc, link,
            payload, *more,
        ) = row  # fmt: skip
    except ValueError:  # a table that somebody else made has fewer columns
        raise corrupt_event(stream, None, where) from None
    meta = more[0] if more else None
    if position is None:
        position = ordinal
    envelope = (
        f"{ordinal} {position} {stream} {revision} {time} {type} {actor} {key} {checkpoint} "
        f"{subject} "
    )
    if meta is not None:
        envelope = f"{envelope}{meta} "
    try:
        intact = crc32(payload, crc32(link, crc32(envelope.encode()))) == crc & 0xFFFFFFFF
    except TypeError:  # damage can turn a value into one of another type
        intact = False
    if not intact:
        raise corrupt_event(stream, revision, where)
    return Record(
        stream, revision, time, type, actor, payload, link, key, checkpoint, subject, position, meta
    )


def decode_head(row: Row, stream: str, first: int, where: str) -> Head:
    """Returns the head of the stream whose newest row this is."""
    record = decode(row, stream, where)
    return Head(record.revision, record.link, record.time, Position(record.position), first)


def corrupt_event(stream: str, revision: object, where: str) -> CorruptError:
    number = revision if isinstance(revision, int) else None
    return CorruptError(
        f'event {revision} of "{stream}" fails its checksum ({where})',
        where=where,
        stream=stream,
        revision=number,
    )


def object_crc(kind: str, name: str, data: bytes) -> int:
    return signed_crc(data, signed_crc(f"{kind} {name} ".encode()) & 0xFFFFFFFF)
