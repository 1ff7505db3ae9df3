"""One commit as one line of text, and back. The format (0001):

    {"n":17,"at":"2026-11-16T00:14:47.123456Z","by":"w1","in":[[stream,revision,[event,…],key,fork],
     …],"set":[…],"clear":[…],"crc":"1a2b3c4d"}
    event = [type,payload,link], then as far as they are needed: checkpoint|null, subject|null,
            [space before the payload, space after it]|null, meta; the place after it is null
    key   = that of the first event; or, where a later event has one (0026), a list with the key of
            each event, null for one without

without the line break and without spaces. `crc` is CRC-32 over all bytes before `,"crc":`. A
payload stands in the line verbatim, and so does meta, which is an object. Format 1 has no meta: its
reader refuses a line with anything in that place. Every line is decoded again before it is written,
by the decoder that will read it: one payload that is not JSON would make the whole line unreadable,
with the events of everybody else in it.

`rewrite_line` (0041) keeps the length of a line, so that every log offset stays true: `-0`, or a
shorter payload, and spaces stand in the place of a payload. Such a line ends in `,"was":"` and 8
characters of base64url. They hold the checksum that the line had before, because the store digest
was computed from it, and CRC-16 of all bytes before `,"was":`.
"""

from __future__ import annotations

import contextlib
import os
import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64, crc_hqx
from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import RLock
from typing import Annotated, NamedTuple
from zlib import crc32

from msgspec import DecodeError, Meta, Raw, Struct, field
from msgspec.json import Decoder, Encoder

from holdfast.backends.file_watch import FileWatch
from holdfast.backends.files.disk import Disk, read_all, write_all
from holdfast.backends.files.packing import BEGINNING, PackedSegment
from holdfast.backends.nesting import deep_containers, pieces
from holdfast.backends.protocol import (
    GONE,
    Append,
    Commit,
    LinkedRow,
    Mark,
    PayloadRow,
    Position,
    Record,
    has_meta,
)
from holdfast.clock import Clock
from holdfast.errors import CorruptError, UsageError

DIGEST_START = bytes(32)
LINE_BYTES_MAX = 1 << 31


class BadLine(ValueError):
    """A line that cannot be what was written; the text says why."""


_NO_META = Raw()


class LineEvent(Struct, array_like=True, gc=False):
    type: str
    payload: Raw
    link: str
    checkpoint: str | None = None
    subject: str | None = None
    padding: tuple[str, str] | None = None
    meta: Raw = _NO_META
    reserved: None = None  # for a later format: anything here is refused, never ignored

    def stored(self) -> bytes:
        """Returns the payload as it was given, with the space around it."""
        if self.padding is None or bytes(self.payload) == GONE:
            return bytes(self.payload)
        before, after = self.padding
        return b"".join([before.encode(), self.payload, after.encode()])


class Section(Struct, array_like=True, gc=False):
    """What a line adds to one stream; `revision` is that of the first event."""

    stream: str
    revision: int
    events: Annotated[list[LineEvent], Meta(min_length=1)]
    key: str | list[str | None] | None = None
    fork: int = 0

    def keys(self) -> list[str | None]:
        """Returns the key of each event; raises BadLine unless there is one entry for each."""
        if isinstance(self.key, list):
            if len(self.key) != len(self.events):
                raise BadLine(f"it has {len(self.key)} keys for {len(self.events)} events")
            return self.key
        return [self.key, *[None] * (len(self.events) - 1)]


class LineMark(Struct, array_like=True, gc=False):
    index: str
    key: str
    due: int = 0
    priority: int = 0
    group: str = ""


class LogLine(Struct, gc=False):
    n: int
    at: str
    by: str
    sections: list[Section] = field(name="in")
    crc: str = ""
    was: str = ""
    set: list[LineMark] = []
    clear: list[LineMark] = []


_decode = Decoder(LogLine).decode
_decode_lines = Decoder(LogLine).decode_lines
_encode = Encoder().encode
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")


def fits_format_1(commit: Commit) -> bool:
    """Returns whether format 1 can hold a commit: no meta, and no key after the first event."""
    return not has_meta(commit) and all(
        record.key is None for append in commit.appends for record in append.records[1:]
    )


def encode_line(commit: Commit, position: int) -> tuple[bytes, LogLine]:
    """Returns the encoded line with its line break, and the line that decoding it gives.

    Raises UsageError for what a line cannot hold: a payload that is not JSON text on one line, a
    name with a lone surrogate, a time outside the years 1 to 9999.
    """
    # One flat list of pieces, joined once: a payload is copied once, however deep it lies.
    seconds, micros = divmod(commit.time, 1_000_000)
    known, moment = _formatted
    if known == seconds:
        parts = [b'{"n":%d,"at":"%b.%06dZ","by":' % (position, moment, micros)]
    else:
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
        # No JSON value begins or ends with a byte up to the space: such a byte is space around it.
        if payload[:1] <= b" " or payload[-1:] <= b" ":
            parts += (separator, *_padded(record, link))
        elif record.meta is not None:
            rest = [record.checkpoint, record.subject, None]
            parts += (separator, _encode(record.type), b",", payload, b',"', link, b'",')
            parts += (_encode(rest)[1:-1], b",", record.meta.encode())
        elif record.checkpoint is None and record.subject is None:
            parts += (separator, _encode(record.type), b",", payload, b',"', link, b'"')
        else:
            parts += (separator, _encode(record.type), b",", payload, b',"', link, b'",')
            parts.append(_encode(record.checkpoint))
            if record.subject is not None:
                parts += (b",", _encode(record.subject))
        separator = b"],["
    key: str | list[str | None] | None = records[0].key
    if len(records) > 1:
        for record in records[1:]:
            if record.key is not None:
                key = [one.key for one in records]
                break
    if append.fork:
        parts += (b"]],", _encode(key), b",1")
    elif key is not None:
        parts += (b"]],", _encode(key))
    else:
        parts.append(b"]]")


def _padded(record: Record, link: bytes) -> list[bytes]:
    """Encodes a payload apart from the space around it, which a JSON reader would drop."""
    value = record.payload.strip(b" \t\r")
    before, _, after = record.payload.partition(value) if value else (b"", b"", b"")
    rest = [record.checkpoint, record.subject, [before.decode(), after.decode()]]
    meta = b"" if record.meta is None else b"," + record.meta.encode()
    return [_encode(record.type), b",", value, b',"', link, b'",', _encode(rest)[1:-1], meta]


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


# JSON allows an escape of half a surrogate pair; msgspec refuses it even in a `Raw` that it skips.
# So such a line is decoded with an escaped space, which is as long, in place of each half. The
# halves are put back in order afterwards. Names cannot be confused with that: msgspec wrote them,
# and it never escapes a space, so every escaped space stands in a payload or in meta.
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_SPACE = rb"\u0020"


def _parse(encoded: bytes) -> LogLine:
    """Decodes a line that has escaped surrogates; raises DecodeError if it is no line."""
    if not _HALF.search(encoded):
        return _decode(encoded)
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
            if event.meta:
                event.meta = Raw(_ESCAPE.sub(show, bytes(event.meta)))
    return line


_PAYLOAD_DEPTH = 6
"""How deep a payload lies in a line, or meta, if it is a list or an object."""
_read_piece = Decoder(Raw).decode


def _parse_deep(encoded: bytes) -> LogLine:
    """Decodes a line with payloads that are nested deeper than Python decodes.

    Its own digest stands in the place of each such list and object while the rest is decoded. Each
    is checked alone, in pieces.
    """
    hidden: dict[bytes, bytes] = {}
    parts: list[bytes] = []
    at = 0
    for begin, end in deep_containers(encoded, _PAYLOAD_DEPTH):
        value = encoded[begin:end]
        for piece in pieces(_ESCAPE.sub(_without_half, value)):
            _read_piece(piece)
        digest = b'"%b"' % sha256(value).hexdigest().encode()
        hidden[digest] = value
        parts += (encoded[at:begin], digest)
        at = end
    line = _parse(b"".join([*parts, encoded[at:]]))
    for section in line.sections:
        for event in section.events:
            event.payload = Raw(hidden.get(bytes(event.payload), event.payload))
            if event.meta:
                event.meta = Raw(hidden.get(bytes(event.meta), event.meta))
    return line


def _without_half(escape: re.Match[bytes]) -> bytes:
    return _SPACE if _HALF.fullmatch(escape.group()) else escape.group()


def _decode_any(encoded: bytes) -> LogLine:
    """Decodes a line, whatever its payloads hold; raises DecodeError if it is no line."""
    try:
        try:
            return _decode(encoded)
        except DecodeError:
            return _parse(encoded)
    except RecursionError:
        return _parse_deep(encoded)


def _read_back(encoded: bytes, commit: Commit) -> LogLine:
    """Decodes a line as its readers will; raises UsageError if it does not hold the commit.

    Everything before a payload was decoded as it was meant, so the payload begins where it was put.
    If its length is right too, it is the same payload, and its bytes need no comparison.
    """
    try:
        line = _decode_any(encoded)
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UsageError(f"a payload is not JSON text: {exc}") from exc
    if encoded.find(b"\n") != len(encoded) - 1 or not _says(line, commit):
        raise UsageError(
            f"a payload for {commit.appends[0].stream!r} is not one JSON value on one line, or its "
            "meta not one JSON object"
        )
    return line


def _says(line: LogLine, commit: Commit) -> bool:
    appends, sections = commit.appends, line.sections
    if len(sections) != len(appends):
        return False
    # Indexed and not zipped: `strict=` alone would cost as much as all the rest of this.
    for index, append in enumerate(appends):
        events, records = sections[index].events, append.records
        if len(events) != len(records):
            return False
        for number, record in enumerate(records):
            event = events[number]
            if len(event.payload) != len(record.payload) and event.stored() != record.payload:
                return False
            meta = record.meta
            if meta is not None and (meta[:1] != "{" or bytes(event.meta) != meta.encode()):
                return False
    return True


def decode_line(encoded: bytes) -> LogLine:
    """Decodes a line, given with its line break; raises BadLine if its bytes changed."""
    # One comparison for the whole end of the line: lines are read by the thousand.
    if encoded.endswith(b',"crc":"%08x"}\n' % crc32(encoded[:-19])):
        try:
            return _decode(encoded)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return parse_line(encoded)
    if encoded[-19:-11] == b',"crc":"' and encoded[-3:] == b'"}\n':
        raise BadLine("its checksum does not match")
    if not is_rewritten(encoded):
        raise BadLine("it does not end in a checksum and a line break")
    return parse_line(encoded)


def parse_line(encoded: bytes) -> LogLine:
    """Decodes a line without verifying its checksum, for a caller that verifies the links."""
    try:
        line = _decode_any(encoded)
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadLine(f"it is not the JSON that was written: {exc}") from exc
    if not line.crc:
        line.crc = _crc_before(line.was)
    return line


# --- rewritten lines ------------------------------------------------------------------------------


_REWRITTEN = b',"was":"'
_TAIL_BYTES = 19
"""How long the end of a line is, from the comma before the checksum on."""


def is_rewritten(encoded: bytes) -> bool:
    """Returns whether `rewrite_line` wrote a line; raises BadLine if its bytes changed since.

    CRC-16 finds every change of one bit or of a run of up to 16 bits, which is what a disk does to
    a line. What is left of the events is also covered by their links.
    """
    if encoded[-_TAIL_BYTES:-11] != _REWRITTEN or encoded[-3:] != b'"}\n':
        return False
    if encoded[-11:-3] != _rewritten_mark(encoded[:-_TAIL_BYTES], _crc_before(encoded[-11:-3])):
        raise BadLine("its checksum does not match")
    return True


def _rewritten_mark(body: bytes, crc: str) -> bytes:
    digest = bytes.fromhex(crc) + crc_hqx(body, 0).to_bytes(2, "big")
    return b2a_base64(digest, newline=False).translate(_TO_URL)


def _crc_before(was: str | bytes) -> str:
    """Returns the checksum that a line had before it was rewritten."""
    try:
        found = a2b_base64((was.encode() if isinstance(was, str) else was).translate(_FROM_URL))
    except (Base64Error, ValueError) as exc:
        raise BadLine("it has no checksum") from exc
    if len(found) != 6:
        raise BadLine("it has no checksum")
    return found[:4].hex()


def rewrite_line(encoded: bytes, wanted: Mapping[str, Mapping[int, bytes]]) -> bytes:
    """Returns a line of the same length, with other payloads at the revisions in `wanted`.

    A payload is found by the link of its event, which follows it: the link is a digest, so nothing
    before it in the line can contain it by chance. Between the two there may be spaces that an
    earlier rewriting left. The new line is decoded again: nothing else in it may have changed.
    """
    line = decode_line(encoded)
    body = bytearray(encoded[:-_TAIL_BYTES])
    place, is_changed = 0, False
    for section in line.sections:
        named = wanted.get(section.stream, {})
        for revision, event in enumerate(section.events, section.revision):
            place = body.index(b',"%b"' % event.link.encode(), place)
            payload = _instead(bytes(event.payload), named.get(revision))
            if payload is not None:
                end = place
                while body[end - 1] in b" \t":
                    end -= 1
                begin = end - len(event.payload)
                body[begin:place] = payload.ljust(place - begin)
                is_changed = True
    if not is_changed:
        return encoded
    mark = _rewritten_mark(bytes(body), line.crc)
    rewritten = b'%b%b%b"}\n' % (body, _REWRITTEN, mark)
    _check_rewritten(line, decode_line(rewritten), wanted)
    assert len(rewritten) == len(encoded), "BUG: a line has another length than before"
    return rewritten


def _instead(payload: bytes, wanted: bytes | None) -> bytes | None:
    """Returns what replaces a payload, None if the payload stays."""
    if wanted is None or payload in (wanted, GONE) or len(payload) < len(GONE):
        return None
    assert len(wanted) <= len(payload), "BUG: a payload is to become longer"
    return wanted


def _check_rewritten(
    before: LogLine, after: LogLine, wanted: Mapping[str, Mapping[int, bytes]]
) -> None:
    """Asserts that nothing but the wanted payloads has changed."""
    for old, new in zip(before.sections, after.sections, strict=True):
        named = wanted.get(old.stream, {})
        for revision, event in enumerate(old.events, old.revision):
            payload = _instead(bytes(event.payload), named.get(revision))
            if payload is not None:
                event.payload = Raw(payload)
        assert old == new, f"BUG: more of {old.stream!r} was rewritten than was asked"
    fields = (before.n, before.at, before.by, before.crc, before.set, before.clear)
    assert fields == (after.n, after.at, after.by, after.crc, after.set, after.clear), (
        "BUG: more of a line was rewritten than its payloads"
    )


def next_digest(digest: bytes, line: LogLine, links: list[bytes]) -> bytes:
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


def meta_of(event: LineEvent) -> str | None:
    """Returns the meta of an event as the text that was given, None if it has none."""
    meta = bytes(event.meta)
    if meta in (b"", b"null"):
        return None
    if meta[:1] != b"{":
        raise BadLine(f"the meta of an event is {meta[:20]!r}, expected an object")
    try:
        return meta.decode()
    except UnicodeDecodeError as exc:
        raise BadLine("the meta of an event is not UTF-8") from exc


def records_of(line: LogLine, section: Section) -> list[Record]:
    """Returns the section's events as records."""
    time, actor, position = parse_time(line.at), line.by, Position(line.n)
    stream, revision = section.stream, section.revision
    records: list[Record] = []
    for event, key in zip(section.events, section.keys(), strict=True):
        payload = bytes(event.payload) if event.padding is None else event.stored()
        link = decode_link(event.link)
        checkpoint, subject = event.checkpoint, event.subject
        records.append(
            Record(
                stream, revision, time, event.type, actor, payload, link, key, checkpoint, subject,
                position, meta_of(event) if event.meta else None,
            )
        )  # fmt: skip
        revision += 1
    return records


def linked_rows_of(line: LogLine, section: Section) -> list[LinkedRow]:
    """Returns those parts of the section's events that their links cover."""
    time, actor, revision, key = parse_time(line.at), line.by, section.revision, section.key
    events = section.events
    # Nearly every line has one event, and needs no list of keys.
    keys = section.keys() if len(events) > 1 or isinstance(key, list) else [key]
    rows: list[LinkedRow] = []
    for event in events:
        payload = bytes(event.payload) if event.padding is None else event.stored()
        try:
            link = a2b_base64(event.link.encode().translate(_FROM_URL) + b"=")
        except (Base64Error, ValueError):
            link = decode_link(event.link)  # which says what is wrong with it
        rows.append(
            (
                revision, time, event.type, actor, keys[len(rows)], event.checkpoint,
                event.subject, payload, link, meta_of(event) if event.meta else None,
            )
        )  # fmt: skip
        revision += 1
    return rows


def linked_rows_in(text: bytes, stream: str, revision: int, count: int) -> list[LinkedRow] | None:
    """Returns what links cover in `count` neighbouring lines, each of which continues a stream.

    All lines are decoded in one call, without their checksums. Returns None if anything is not as
    expected: the caller then decodes line by line, and finds which line is wrong, if one is.
    """
    try:
        lines = _decode_lines(text)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(lines) != count:
        return None
    rows: list[LinkedRow] = []
    second, time = "", 0
    for line in lines:
        for section in line.sections:
            if section.stream == stream:
                break
        else:
            return None
        if section.revision != revision:
            return None
        events, key, at = section.events, section.key, line.at
        event = events[0]
        try:
            if len(events) > 1 or isinstance(key, list) or event.padding or event.meta:
                rows += linked_rows_of(line, section)
                revision += len(events)
                continue
            micros = at[20:26]
            if at[:19] != second or not (micros.isascii() and micros.isdigit()):
                second, time = at[:19], parse_time(at) - int(micros)
            link = a2b_base64(event.link.encode().translate(_FROM_URL) + b"=")
        except (BadLine, Base64Error, ValueError):
            return None
        rows.append(
            (
                revision, time + int(micros), event.type, line.by, key,
                event.checkpoint, event.subject, bytes(event.payload), link, None,
            )
        )  # fmt: skip
        revision += 1
    return rows


def payload_rows_of(line: LogLine, section: Section) -> list[PayloadRow]:
    """Returns type, payload and subject of the section's events; nothing else is looked at."""
    del line
    events = section.events
    if len(events) == 1 and events[0].padding is None:  # most are, and a loop costs as much again
        event = events[0]
        return [(event.type, bytes(event.payload), event.subject)]
    return [(event.type, event.stored(), event.subject) for event in events]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)

# The last second that was formatted or parsed. Each tuple is replaced by one assignment, so threads
# need no lock. Commits and lines come by the thousand in one second, and calendar arithmetic costs
# more than the rest.
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


# --- segments -------------------------------------------------------------------------------------
#
# The text: segments of lines, one after another, named by the log offset of their first byte.
#
# `log/0000000000000000.jsonl` is the first. A log offset is a place in all segments laid end to
# end. A line never straddles two segments. A segment is complete and synced before the next one is
# made, so that only the newest can ever be short. The file of a sealed segment may be packed: it is
# shorter than the text that is read from it (0086). Nobody but `Segments` knows of that.


DIRECTORY = "log"
OPEN_SEGMENT = "the open segment"
SEGMENT_BYTES = 64 << 20
RESERVE_BYTES = 1 << 20
_SUFFIX = ".jsonl"
_READERS_MAX = 8
_NO_END = 1 << 63


class FileIdentity(NamedTuple):
    """Which file it is. The number of a file that is gone may be used again for another one."""

    inode: int
    size: int
    changed_ns: int


class Beside(NamedTuple):
    """A file that was written beside a segment, synced and read back."""

    name: str
    inode: int


def _identity_of(found: os.stat_result) -> FileIdentity:
    return FileIdentity(found.st_ino, found.st_size, found.st_mtime_ns)


class Segments:
    """The segments of a store, for reading and for the one writer who has the lock."""

    def __init__(self, disk: Disk, directory_fd: int, *, read_only: bool) -> None:
        self._disk = disk
        self._pwrite = disk.pwrite
        self._directory_fd = directory_fd
        self._flags = os.O_RDONLY if read_only else os.O_RDWR
        self.starts: list[int] = []
        self._fds: dict[int, int] = {}
        # What is known of each file that may be packed, as long as its name leads to it.
        self._packed: dict[int, tuple[FileIdentity, PackedSegment]] = {}
        self.mutex = RLock()  # a descriptor is not closed while another thread reads through it
        self.reserved_end = 0
        self._newest_fd = -1
        self._watch: FileWatch | None = None  # of the handle that writes
        self._watched_path = ""
        self.refresh()

    @property
    def newest(self) -> int:
        """The log offset at which the newest segment begins."""
        return self.starts[-1] if self.starts else 0

    def refresh(self) -> None:
        """Reads from the directory which segments exist."""
        names = self._disk.listdir(self._directory_fd)
        starts = sorted(start for name in names if (start := _start_of(name)) is not None)
        if starts != self.starts:
            self._newest_fd = -1
            if self._watch is not None:
                # It is sealed now, and may be rewritten. The next write watches the newest one.
                self._watch.forget(OPEN_SEGMENT)
        self.starts = starts

    def size_of(self, start: int) -> int:
        """Returns the length of a segment's text."""
        with self.mutex:
            fd = self._fd(start)
            packed = self._packed_of(start)
            return self._disk.size(fd) if packed is None else packed.size(fd)

    def end(self) -> int:
        """Returns the log offset after the last byte, by the size of the newest file."""
        return self.newest + self.size_of(self.newest) if self.starts else 0

    def where(self, offset: int) -> str:
        """Returns the file and the byte in it, for messages."""
        start = self.start_at(offset)
        packed = self._packed_of(start)
        place = offset - start if packed is None else packed.place_of(offset - start)
        return f"{DIRECTORY}/{_name_of(start)} byte {place}"

    def read(self, offset: int, end: int) -> bytes:
        """Returns the text between two log offsets; fewer bytes only where the text ends."""
        with self.mutex:
            start = self.start_at(offset)
            data = self._text(start, offset - start, end - offset)
            if len(data) == end - offset or start == self.newest:
                return data
            parts = [data]
            offset += len(data)
            while data and offset < end and offset in self.starts:
                data = self._text(offset, 0, end - offset)
                parts.append(data)
                offset += len(data)
            return b"".join(parts)

    def _text(self, start: int, offset: int, length: int) -> bytes:
        """Returns text of one segment, fewer bytes only where it ends; the caller has the mutex."""
        fd = self._fd(start)
        packed = self._packed_of(start)
        if packed is None:
            return read_all(self._disk, fd, length, offset)
        return packed.read(fd, offset, length)

    def stop_after(self, offset: int, end: int) -> int:
        """Returns where the next segment begins after an offset, or `end` if that comes first."""
        number = bisect_right(self.starts, offset)
        return min(self.starts[number], end) if number < len(self.starts) else end

    def next_data(self, offset: int, end: int) -> int:
        """Returns the next offset with data: the segment may have a hole here. `end` if none."""
        with self.mutex:
            start = self.start_at(offset)
            fd = self._fd(start)
            if self._is_packed(start, fd):
                return min(offset, end)
            found = self._disk.next_data(fd, offset - start)
        return end if found is None else min(start + found, end)

    def check_contiguous(self) -> None:
        """Raises CorruptError if a segment is missing, short or long."""
        expected = 0
        for start in self.starts:
            if start != expected:
                raise CorruptError(
                    f"the text between {expected} and {start} is missing: expected the segment "
                    f"{DIRECTORY}/{_name_of(expected)} to reach {DIRECTORY}/{_name_of(start)}",
                    where=f"{DIRECTORY}/{_name_of(start)}",
                )
            expected = start + self.size_of(start)
        if self.starts and self._packed_of(self.newest) is not None:
            name = f"{DIRECTORY}/{_name_of(self.newest)}"
            raise CorruptError(
                f"the text from {expected} on is missing: {name} is packed, and only segments that "
                "another one follows are",
                where=name,
            )

    def append(self, offset: int, text: bytes) -> None:
        """Writes text at `offset`, which the caller knows to be the end; nothing is synced."""
        if self._newest_fd < 0:
            self._open_newest()
        file_offset = offset - self.starts[-1]
        if self._pwrite(self._newest_fd, text, file_offset) != len(text):
            write_all(self._disk, self._newest_fd, text, file_offset)

    def _open_newest(self) -> None:
        with self.mutex:  # it may close the oldest descriptor, through which a thread may read
            self._newest_fd = self._fd_to_write(self.newest)
        self._watch_newest()

    def watch_newest(self, watch: FileWatch, path: str) -> None:
        """Sets the watch that keeps the segment that is written to; `path` is that of `log`."""
        self._watch, self._watched_path = watch, path

    def _watch_newest(self) -> None:
        if self._watch is not None:
            path = os.path.join(self._watched_path, _name_of(self.newest))
            self._watch.keep(OPEN_SEGMENT, path, self._newest_fd)

    def held(self) -> list[tuple[str, int, bool]]:
        """Returns each open segment: name, descriptor, and whether the name still leads to it."""
        with self.mutex:
            return [
                (f"{DIRECTORY}/{_name_of(start)}", fd, self._is_named(start, fd))
                for start, fd in sorted(self._fds.items())
            ]

    def held_end(self) -> int | None:
        """Returns the log offset after the last byte of the newest segment, None if it is shut."""
        with self.mutex:
            start = self.newest
            fd = self._fds.get(start)
            return None if fd is None else start + os.fstat(fd).st_size

    def _is_named(self, start: int, fd: int) -> bool:
        try:
            named = os.stat(_name_of(start), dir_fd=self._directory_fd, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(fd))

    def forget_sealed(self, newest: int) -> None:
        """Closes every segment before the given one: another process has rewritten some of them."""
        with self.mutex:
            if newest > self.newest:
                self.refresh()  # the one that was the newest here is sealed, and perhaps rewritten
            for start in [start for start in self._fds if start != self.newest]:
                self._disk.close(self._fds.pop(start))

    def forget_rewritten(self) -> None:
        """Closes sealed segments that another process has rewritten; the next read opens them anew.

        The name of such a segment leads to another file, whose text is as long, and in which each
        line is unchanged or rewritten. Any other file in its place is left for `held` to report.
        """
        with self.mutex:
            for start, fd in list(self._fds.items()):
                is_sealed = start != self.newest
                if is_sealed and not self._is_named(start, fd) and self._is_rewriting(start, fd):
                    self._disk.close(self._fds.pop(start))

    def _is_rewriting(self, start: int, held: int) -> bool:
        try:
            named = self._disk.open(_name_of(start), os.O_RDONLY, at=self._directory_fd)
        except OSError:
            return False
        try:
            old, new = (self._whole(start, fd).split(b"\n") for fd in (held, named))
            pairs = zip(old, new, strict=False)
            changed = [(one, other) for one, other in pairs if one != other]
            return len(old) == len(new) and all(_is_rewriting_of(*pair) for pair in changed)
        finally:
            self._disk.close(named)

    def _whole(self, start: int, fd: int) -> bytes:
        """Returns all text of a segment, from a file that is perhaps not the one in its place."""
        size = self._disk.size(fd)
        length = self.stop_after(start, _NO_END) - start
        if size == length:
            return read_all(self._disk, fd, size)
        return PackedSegment(self._disk, fd, length).read(fd, 0, length)

    def content(self, start: int) -> tuple[bytes, FileIdentity]:
        """Returns the text of a sealed segment, and which file it was read from.

        Raises CorruptError if text of a packed one is lost: it would be written as zeros, over what
        a person may still read.
        """
        fd = self._disk.open(_name_of(start), os.O_RDONLY, at=self._directory_fd)
        try:
            identity = _identity_of(os.fstat(fd))
            text = self._whole(start, fd)
        finally:
            self._disk.close(fd)
        lost = text.find(b"\0") if len(text) != identity.size else -1
        if lost >= 0:
            where = self.where(start + lost)
            raise CorruptError(f"the line at {where} cannot be read: it is damaged", where=where)
        return text, identity

    def write_beside(self, start: int, text: bytes, file: bytes, clock: Clock) -> Beside:
        """Writes a file beside a sealed segment, and syncs it.

        The text that it is to stand for is read back from it, because it is about to take the place
        of the only copy. If anything fails, no file stays behind.
        """
        assert start != self.newest, "BUG: the segment that is written to was to be rewritten"
        name, fd = self._open_beside(start, clock)
        try:
            write_all(self._disk, fd, file, 0)
            self._disk.sync(fd)
            if self._whole(start, fd) != text:
                where = f"{DIRECTORY}/{_name_of(start)}"
                problem = "did not read as it was written: it was removed, the segment is as it was"
                raise CorruptError(f"the file that was to replace {where} {problem}", where=where)
            return Beside(name, os.fstat(fd).st_ino)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove_beside(name)
            raise
        finally:
            self._disk.close(fd)

    def _open_beside(self, start: int, clock: Clock) -> tuple[str, int]:
        """Makes a file with a name that nobody else has; returns the name and a descriptor.

        The process id would not do: two handles of one process share it, and so do processes of two
        containers. One would then put the file of the other in the place of a segment.
        """
        while True:
            name = f"{_name_of(start)}.{clock.random_bytes(8).hex()}.new"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            with contextlib.suppress(FileExistsError):
                return name, self._disk.open(name, flags, at=self._directory_fd)

    def remove_beside(self, name: str) -> None:
        """Removes a file that `write_beside` wrote, if it is still there."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(name, at=self._directory_fd)

    def beside(self) -> list[str]:
        """Returns the names of files that rewritings, killed or running, put beside segments."""
        return [name for name in self._disk.listdir(self._directory_fd) if name.endswith(".new")]

    def replace(self, start: int, identity: FileIdentity, beside: Beside) -> bool:
        """Replaces a sealed segment by the file that was written beside it, atomically and durably.

        Returns False and changes nothing if another process has rewritten the segment meanwhile (it
        is not the file that was read), or has removed or replaced the new file. The caller has the
        store lock.
        """
        if _identity_of(self._disk.stat(_name_of(start), at=self._directory_fd)) != identity:
            return False
        try:
            if self._disk.stat(beside.name, at=self._directory_fd).st_ino != beside.inode:
                return False  # it is not the file that was synced and read back
            self._disk.rename(beside.name, _name_of(start), at=self._directory_fd)
            # The rename must survive a power loss: the caller tells that the old payloads are gone.
            self.sync_names()
        except FileNotFoundError:
            return False  # another process took it for one that was left behind
        finally:
            # Also if the sync failed: the name leads to the new file by then.
            with self.mutex:
                self._packed.pop(start, None)
                fd = self._fds.pop(start, None)
                if fd is not None:
                    self._disk.close(fd)
        return True

    def write_at(self, offset: int, text: bytes) -> None:
        """Writes bytes into any segment, not only the newest; only recovery does this."""
        start = self.start_at(offset)
        with self.mutex:
            write_all(self._disk, self._fd_to_write(start), text, offset - start)

    def reserve(self, offset: int, length: int) -> None:
        """Reserves room on the disk for `length` bytes at the end of the text."""
        if self._newest_fd < 0:
            self._open_newest()
        start = self.starts[-1]
        ahead = max(RESERVE_BYTES, length)
        try:
            self._disk.reserve(self._newest_fd, offset - start, ahead)
        except OSError:  # no room for a whole MiB: there may still be enough for this write
            ahead = length
            self._disk.reserve(self._newest_fd, offset - start, ahead)
        self.reserved_end = offset + ahead

    def add(self, start: int) -> None:
        """Makes the next segment; its name is durable when this returns.

        A writer that was killed may have made it before, empty.
        """
        fd = self._disk.open(_name_of(start), os.O_RDWR | os.O_CREAT, at=self._directory_fd)
        try:
            # Now, because a commit does not do it: that syncs ring or segment, never the directory.
            # Lines in a segment without a durable name would be lost with the name.
            self._disk.sync(fd)
            self.sync_names()
        except BaseException:
            self._disk.close(fd)
            # An empty segment would be harmless, but its name was not promised to anybody.
            with contextlib.suppress(OSError):
                self._disk.unlink(_name_of(start), at=self._directory_fd)
            raise
        with self.mutex:
            self._forget_oldest()
            known = self._fds.pop(start, None)
            self._fds[start] = fd
            self.starts = sorted({*self.starts, start})
            self._newest_fd = fd
        if known is not None:
            self._disk.close(known)
        self.reserved_end = start
        self._watch_newest()

    def sync(self, since: int) -> None:
        """Syncs every segment that may have bytes at or above the log offset `since`."""
        for start in self.starts[max(bisect_right(self.starts, since) - 1, 0) :]:
            with self.mutex:
                fd = self._fd(start)
                if start != self.newest:
                    self._disk.sync(fd)  # else a thread that reads could close it meanwhile
                    continue
            # Nobody closes this one but who has the store lock, so that readers need not wait.
            self._disk.sync(fd)

    def sync_names(self) -> None:
        """Makes the names of all segments durable."""
        self._disk.sync_directory(self._directory_fd)

    def cut(self, end: int) -> None:
        """Makes `end` the end of the newest segment, and frees the blocks reserved after it."""
        with self.mutex:
            self._disk.truncate(self._fd_to_write(self.newest), end - self.newest)
        self.reserved_end = end

    def close(self) -> None:
        # Else a thread that still reads could read from another file, which got the same number.
        with self.mutex:
            fds, self._fds = self._fds, {}
            self._packed.clear()
            self._newest_fd = -1
            for fd in fds.values():
                self._disk.close(fd)

    def start_at(self, offset: int) -> int:
        """Returns the log offset at which the segment with this offset begins."""
        number = bisect_right(self.starts, offset) - 1
        return self.starts[number] if number >= 0 else 0

    def _fd(self, start: int) -> int:
        fd = self._fds.get(start)
        if fd is None:
            try:
                fd = self._disk.open(_name_of(start), self._flags, at=self._directory_fd)
            except FileNotFoundError as exc:
                name = f"{DIRECTORY}/{_name_of(start)}"
                raise CorruptError(f"the segment {name} is missing", where=name) from exc
            try:
                self._look_at(start, fd)
            except BaseException:
                self._disk.close(fd)
                raise
            self._forget_oldest()
            self._fds[start] = fd
        return fd

    def _fd_to_write(self, start: int) -> int:
        """Returns the descriptor of a segment that is not packed; raises if it is.

        Text goes into the newest segment, or into the one that the ring has the end of. Neither is
        ever packed, unless files were put together from several states of a store.
        """
        fd = self._fd(start)
        if self._is_packed(start, fd):
            name = f"{DIRECTORY}/{_name_of(start)}"
            raise CorruptError(f"{name} is packed, and was to be written to", where=name)
        return fd

    def _look_at(self, start: int, fd: int) -> None:
        """Notes whether a file that was just opened may be packed.

        The file itself says so, by its beginning or by its length: another process may have put it
        in its place a moment ago.
        """
        identity = _identity_of(os.fstat(fd))
        known = self._packed.get(start)
        if known is not None and known[0] == identity:
            return
        self._packed.pop(start, None)
        is_said = read_all(self._disk, fd, len(BEGINNING)) == BEGINNING
        if is_said and start == self.newest:
            self.refresh()  # it was sealed since
        end = self.stop_after(start, _NO_END)
        length = None if end == _NO_END else end - start
        if is_said or (length is not None and identity.size < length):
            self._packed[start] = identity, PackedSegment(self._disk, fd, length)

    def _is_packed(self, start: int, fd: int) -> bool:
        packed = self._packed_of(start)
        return packed is not None and packed.is_packed(fd)

    def _packed_of(self, start: int) -> PackedSegment | None:
        known = self._packed.get(start)
        return None if known is None else known[1]

    def _forget_oldest(self) -> None:
        if len(self._fds) >= _READERS_MAX:
            oldest = next(start for start in self._fds if start != self.newest)
            self._disk.close(self._fds.pop(oldest))


def _is_rewriting_of(old: bytes, new: bytes) -> bool:
    try:
        return len(old) == len(new) and is_rewritten(new + b"\n")
    except BadLine:
        return False


def _name_of(start: int) -> str:
    return f"{start:016x}{_SUFFIX}"


def _start_of(name: str) -> int | None:
    stem = name.removesuffix(_SUFFIX)
    if len(stem) != 16 or stem == name:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None
