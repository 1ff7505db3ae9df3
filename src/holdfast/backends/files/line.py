"""One commit as one line of text, and back. The format (0001):

    {"n":17,"at":"2026-11-16T00:14:47.123456Z","by":"w1","in":[[stream,revision,[event,…],key,fork],
     …],"set":[…],"clear":[…],"crc":"1a2b3c4d"}
    event = [type,payload,link], then as far as they are needed: checkpoint|null, subject|null,
            [space before the payload, space behind it]; behind it two places are reserved for the
            cipher and the key id of an encrypted payload, and are null in format 1

without the line break and without spaces. `crc` is CRC-32 over all bytes before `,"crc":`. A
payload stands in the line verbatim. Whatever is encoded is decoded again before it is written, by
the very decoder that will read it: a payload that is no JSON would make its line unreadable.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Annotated
from zlib import crc32

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError, field
from msgspec.json import Decoder, Encoder

from holdfast.backends.protocol import Append, Commit, Mark, Position, Record
from holdfast.errors import UsageError

DIGEST_START = bytes(32)
LINE_BYTES_MAX = 1 << 31


class BadLine(ValueError):
    """A line that cannot be what was written; the text says why."""


class LineEvent(Struct, array_like=True, gc=False):
    type: str
    payload: Raw
    link: str
    checkpoint: str | None = None
    subject: str | None = None
    padding: tuple[str, str] | None = None
    cipher: None = None
    key_id: None = None

    def stored(self) -> bytes:
        """Returns the payload, every byte of it."""
        if self.padding is None:
            return bytes(self.payload)
        before, after = self.padding
        return b"".join([before.encode(), self.payload, after.encode()])


class Section(Struct, array_like=True, gc=False):
    """What a line adds to one stream; `revision` is that of the first event."""

    stream: str
    revision: int
    events: Annotated[list[LineEvent], Meta(min_length=1)]
    key: str | None = None
    fork: int = 0


class LineMark(Struct, array_like=True, gc=False):
    index: str
    key: str
    due: int = 0
    priority: int = 0
    group: str = ""


class Line(Struct, gc=False):
    n: int
    at: str
    by: str
    sections: list[Section] = field(name="in")
    crc: str
    set: list[LineMark] = []
    clear: list[LineMark] = []


_decode = Decoder(Line).decode
_encode = Encoder().encode
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")


def encode_line(commit: Commit, position: int) -> tuple[bytes, Line]:
    """Returns the line, its line break included, and what reading it gives.

    Raises UsageError for what a line cannot hold: a payload that is not JSON text on one line, a
    name with a lone surrogate, a time outside the years 1 to 9999.
    """
    # One flat list of pieces, joined once: a payload is copied once, however deep it lies.
    parts = [b'{"n":%d,"at":"' % position, format_time(commit.time), b'","by":']
    try:
        parts += (_encode(commit.actor), b',"in":[')
        separator = b"["
        for append in commit.appends:
            parts.append(separator)
            _add_section(parts, append)
            separator = b"],["
        parts.append(b"]]" if commit.appends else b"]")
        if commit.marks:
            parts.append(_encode_marks(commit))
    except UnicodeEncodeError as exc:
        raise UsageError(
            f"a name holds a lone surrogate, which is no text: {exc.object!r}"
        ) from exc
    body = b"".join(parts)
    if len(body) > LINE_BYTES_MAX:
        raise UsageError(
            f"a commit takes {len(body)} bytes: at most {LINE_BYTES_MAX} fit in a line"
        )
    line = b"".join((body, b',"crc":"%08x"}\n' % crc32(body)))
    return line, _read_back(line, commit)


def _add_section(parts: list[bytes], append: Append) -> None:
    records = append.records
    separator = b",%d,[[" % (append.expected + 1)
    parts.append(_encode(append.stream))
    for record in records:
        payload = record.payload
        link = b2a_base64(record.link, newline=False).translate(_TO_URL)[:43]
        # No JSON value begins or ends with a control character: what is below is space around it.
        if payload[:1] <= b" " or payload[-1:] <= b" ":
            parts += (separator, *_padded(record, link))
        elif record.checkpoint is None and record.subject is None:
            parts += (separator, _encode(record.type), b",", payload, b',"', link, b'"')
        else:
            parts += (separator, _encode(record.type), b",", payload, b',"', link, b'",')
            parts.append(_encode(record.checkpoint))
            if record.subject is not None:
                parts += (b",", _encode(record.subject))
        separator = b"],["
    key = records[0].key
    if append.fork:
        parts += (b"]],", _encode(key), b",1")
    elif key is not None:
        parts += (b"]],", _encode(key))
    else:
        parts.append(b"]]")


def _padded(record: Record, link: bytes) -> list[bytes]:
    """Sets the space around a payload apart: JSON passes over it, and it must not be lost."""
    value = record.payload.strip(b" \t\r")
    before, _, after = record.payload.partition(value) if value else (b"", b"", b"")
    rest = [record.checkpoint, record.subject, [before.decode(), after.decode()]]
    return [_encode(record.type), b",", value, b',"', link, b'",', _encode(rest)[1:-1]]


def _encode_marks(commit: Commit) -> bytes:
    kept: list[list[object]] = []
    cleared: list[list[object]] = []
    for mark in commit.marks:
        if isinstance(mark, Mark):
            kept.append([mark.index, mark.key, mark.due, mark.priority, mark.group])
        else:
            cleared.append([mark.index, mark.key])
    text = b',"set":' + _encode(kept) if kept else b""
    return text + b',"clear":' + _encode(cleared) if cleared else text


# JSON may escape one half of a surrogate pair; msgspec refuses that even in what it passes over.
# Such a line is decoded with a harmless escape in place of each half, put back in order afterwards.
# Names are written by msgspec, which never escapes a space: all of these stand in payloads.
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_SPACE = rb"\u0020"


def _parse(encoded: bytes) -> Line:
    try:
        return _decode(encoded)
    except DecodeError:
        if not _HALF.search(encoded):
            raise
    hidden: list[bytes] = []

    def hide(escape: re.Match[bytes]) -> bytes:
        found = escape.group()
        if found != _SPACE and not _HALF.fullmatch(found):
            return found
        hidden.append(found)
        return _SPACE

    line = _decode(_ESCAPE.sub(hide, encoded))
    originals = iter(hidden)

    def show(escape: re.Match[bytes]) -> bytes:
        found = escape.group()
        return next(originals) if found == _SPACE else found

    for section in line.sections:
        for event in section.events:
            event.payload = Raw(_ESCAPE.sub(show, bytes(event.payload)))
    return line


def _read_back(encoded: bytes, commit: Commit) -> Line:
    """Returns what the line says; raises UsageError if that is not what was to be written.

    Each payload begins where it was put, because all before it was read as it was meant; so it is
    the same if it ends at the same place.
    """
    try:
        line = _parse(encoded)
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UsageError(f"a payload is not JSON text: {exc}") from exc
    if encoded.find(b"\n") != len(encoded) - 1 or not _says(line, commit):
        raise UsageError(
            f"a payload for {commit.appends[0].stream!r} is not one JSON value on one line"
        )
    return line


def _says(line: Line, commit: Commit) -> bool:
    appends, sections = commit.appends, line.sections
    if len(sections) != len(appends):
        return False
    # Indexed and not zipped: `strict=` alone would cost as much as all the rest of this.
    for place, append in enumerate(appends):
        events, records = sections[place].events, append.records
        if len(events) != len(records):
            return False
        for number, record in enumerate(records):
            event = events[number]
            if len(event.payload) != len(record.payload) and event.stored() != record.payload:
                return False
    return True


def decode_line(encoded: bytes) -> Line:
    """Returns what a line says, its line break included; raises BadLine if its bytes changed."""
    if encoded[-19:-11] != b',"crc":"' or encoded[-3:] != b'"}\n':
        raise BadLine("it does not end in a checksum and a line break")
    if b"%08x" % crc32(encoded[:-19]) != encoded[-11:-3]:
        raise BadLine("its checksum does not match")
    try:
        return _parse(encoded)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as exc:
        raise BadLine(f"it is not the JSON that was written: {exc}") from exc


def next_digest(digest: bytes, line: Line, links: list[bytes]) -> bytes:
    """Returns the store digest after the line, given the last link of each of its sections."""
    return sha256(b"".join([digest, bytes.fromhex(line.crc), *links])).digest()


def decode_link(text: str) -> bytes:
    try:
        link = a2b_base64(text.encode().translate(_FROM_URL) + b"=")
    except (Base64Error, ValueError) as exc:
        raise BadLine(f"the link {text!r} is not base64url") from exc
    if len(link) != 32:
        raise BadLine(f"the link {text!r} has {len(link)} bytes: expected 32")
    return link


def section_of(line: Line, stream: str) -> Section:
    """Returns what the line adds to a stream; raises BadLine if that is nothing."""
    for section in line.sections:
        if section.stream == stream:
            return section
    raise BadLine(f"it holds nothing of {stream!r}")


def records_of(line: Line, section: Section) -> list[Record]:
    """Returns the section's events as records."""
    time, actor, position = parse_time(line.at), line.by, Position(line.n)
    stream, revision, key = section.stream, section.revision, section.key
    records: list[Record] = []
    for event in section.events:
        payload = bytes(event.payload) if event.padding is None else event.stored()
        link = decode_link(event.link)
        checkpoint, subject = event.checkpoint, event.subject
        records.append(
            Record(
                stream, revision, time, event.type, actor, payload, link, key, checkpoint, subject,
                position,
            )
        )  # fmt: skip
        revision += 1
        key = None
    return records


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)

# The last second that was formatted or parsed: replaced whole, so threads need no lock. Commits
# and lines come by the thousand in one second, and calendar arithmetic costs more than the rest.
_formatted: tuple[int, bytes] = (0, b"1970-01-01T00:00:00")
_parsed: tuple[str, int] = ("1970-01-01T00:00:00", 0)


def format_time(time_us: int) -> bytes:
    """Returns 2026-11-16T00:14:47.123456Z."""
    global _formatted
    seconds, micros = divmod(time_us, 1_000_000)
    known, text = _formatted
    if known != seconds:
        try:
            moment = _EPOCH + timedelta(seconds=seconds)
        except OverflowError as exc:
            raise UsageError(f"time {time_us} is outside the years 1 to 9999") from exc
        text = moment.replace(tzinfo=None).isoformat().encode()
        _formatted = seconds, text
    return b"%b.%06dZ" % (text, micros)


def parse_time(text: str) -> int:
    """Returns microseconds since 1970; raises BadLine for what `format_time` would not write."""
    global _parsed
    second, micros = text[:19], text[20:26]
    known, seconds = _parsed
    try:
        if known != second:
            seconds = (datetime.fromisoformat(second + "+00:00") - _EPOCH) // _SECOND
            _parsed = second, seconds
        if not (micros.isascii() and micros.isdigit()):
            raise ValueError(micros)
        return seconds * 1_000_000 + int(micros)
    except ValueError as exc:
        raise BadLine(f"the time {text!r} is not one") from exc
