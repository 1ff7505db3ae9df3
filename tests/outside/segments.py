"""Reads a store on plain files by docs/decisions/0001-format.md alone: lines, ring, head.json."""

from __future__ import annotations

import json
import re
import struct
from base64 import urlsafe_b64decode
from binascii import crc_hqx
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from tests.outside.chains import Damage, Event, check_chains

SLOT_BYTES = 512
_HEADER = struct.Struct("<4sIQQQQQ32s")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_scan = json.JSONDecoder().raw_decode


class Batch(NamedTuple):
    """A whole batch of the ring."""

    number: int
    offset: int
    synced_end: int
    position: int
    digest: bytes
    text: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.text)


class Reading(NamedTuple):
    """What was found: every event in order, where the log ends, and what could not be read."""

    events: list[Event]
    end: int
    position: int
    digest: bytes
    torn: bytes
    marks: dict[tuple[str, str], list[Any]]


def read_text(place: Path) -> bytes:
    """Returns all segments laid end to end; each is named by the offset of its first byte."""
    text = b""
    for path in sorted((place / "log").glob("*.jsonl")):
        if int(path.stem, 16) != len(text) or len(path.stem) != 16:
            raise Damage(f"segment {path.name} does not begin at {len(text):016x}")
        text += _unpacked(path.read_bytes())
    return text


def _unpacked(data: bytes) -> bytes:
    """Returns the text of a segment (0086): a packed one leaves out spaces, and tells of them."""
    head, _, rest = data.partition(b"\n")
    if not head.startswith(b'{"packed":'):
        return data
    body = head.rpartition(b',"crc":')[0]
    said = json.loads(head)
    if said["crc"] != f"{crc32(body):08x}" or said["packed"][1] != len(rest):
        raise Damage("the first line of a packed segment is not what was written")
    text = b""
    for raw in rest.splitlines(keepends=True):
        kept, mark, gap = raw.rpartition(b',"gap":"')
        if mark:
            told, _, crc = gap.partition(b";")
            begin, *numbers = (int(number, 16) for number in told.split(b","))
            if crc != b'%08x"}\n' % crc32(kept + mark + told) or begin != len(text):
                raise Damage("a packed line is not what was written, or not in its place")
            whole, place = b"", 0
            for at, count in zip(numbers[::2], numbers[1::2], strict=True):
                whole += kept[place:at] + b" " * count
                place = at
            raw = whole + kept[place:] + b"}\n"
        text += raw
    if len(text) != said["packed"][0]:
        raise Damage(f"a packed segment stands for {len(text)} bytes, and says {said['packed'][0]}")
    return text


def read_ring(place: Path) -> list[Batch] | None:
    """Returns the whole batches of the ring, oldest first; None if there is no ring."""
    try:
        data = (place / "ring").read_bytes()
    except FileNotFoundError:
        return None
    store = json.loads((place / "holdfast.json").read_bytes())["store"]
    seed = crc32(store.encode())  # a ring of another store holds no batch
    found: list[Batch] = []
    for at in range(0, len(data) - _HEADER.size + 1, SLOT_BYTES):
        magic, crc, number, offset, length, synced_end, position, digest = _HEADER.unpack_from(
            data, at
        )
        begin, end = at + _HEADER.size, at + _HEADER.size + length
        if magic == b"HFR1" and end <= len(data) and crc32(data[at + 8 : end], seed) == crc:
            text = data[begin:end]
            found.append(Batch(number, offset, synced_end, position, digest, text))
    found.sort()
    if len({batch.number for batch in found}) != len(found):
        raise Damage("two batches of the ring have the same number")
    return found


def read_closed(place: Path) -> Reading:
    """Reads a store that was closed cleanly: the text must be whole, and what head.json says."""
    reading = read_unlinked(place)
    check_chains(reading.events)
    return reading


def read_unlinked(place: Path) -> Reading:
    """Does the same, but for links: those of what was let go of need what was told of it."""
    if (place / "ring").exists():
        raise Damage("there is a ring after a clean close")
    reading = _read_lines(read_text(place), {})
    if reading.torn:
        raise Damage(f"{len(reading.torn)} bytes behind {reading.end} are no line")
    found = (reading.end, reading.position, reading.digest.hex())
    try:
        head = json.loads((place / "head.json").read_bytes())
    except FileNotFoundError:
        head = {"end": 0, "position": 0, "digest": bytes(32).hex()}
    if (head["end"], head["position"], head["digest"]) != found:
        raise Damage(f"head.json says {head}, the text {found}")
    return reading


def read_crashed(place: Path) -> Reading:
    """Reads a store that nobody has open and nobody closed: the text, completed from the ring.

    What follows the last batch and cannot be read is returned as `torn`.
    """
    text = bytearray(read_text(place))
    batches = read_ring(place) or []
    required = 0
    if (place / "head.json").exists():
        required = json.loads((place / "head.json").read_bytes())["end"]
    if batches:
        required = max(required, batches[-1].synced_end)
    if len(text) < required:
        raise Damage(f"the text ends at {len(text)}, before the recorded end {required}")
    for batch in batches:
        if batch.end > required:
            if batch.offset > len(text):
                raise Damage(f"ring batch {batch.number} begins behind the end of the text")
            text[batch.offset : batch.end] = batch.text
    if batches:
        required = max(required, batches[-1].end)
    reading = _read_lines(bytes(text), {batch.offset: batch for batch in batches})
    if reading.end < required:
        raise Damage(f"the text is damaged at {reading.end}, before its recorded end {required}")
    check_chains(reading.events)
    return reading


def _read_lines(text: bytes, batches: dict[int, Batch]) -> Reading:
    events: list[Event] = []
    marks: dict[tuple[str, str], list[Any]] = {}
    digest, end, position = bytes(32), 0, 0
    for raw in re.findall(rb"[^\n]*\n|[^\n]+", text):
        batch = batches.get(end)
        if batch is not None and (batch.position, batch.digest) != (position, digest):
            raise Damage(f"ring batch {batch.number} follows another text than the one here")
        try:
            line = _read_line(raw)
        except (ValueError, LookupError):
            break
        if line.n != position + 1:
            raise Damage(f"line {line.n} at {end} follows line {position}")
        position = line.n
        end += len(raw)
        digest = sha256(digest + line.crc + b"".join(line.links)).digest()
        events += line.events
        marks.update({(mark[0], mark[1]): mark for mark in line.marks})
        for index, key in line.cleared:
            marks.pop((index, key), None)
    return Reading(events, end, position, digest, text[end:], marks)


class _Line(NamedTuple):
    n: int
    events: list[Event]
    links: list[bytes]  # the last of each section
    marks: list[list[Any]]
    cleared: list[list[str]]
    crc: bytes


def _read_line(raw: bytes) -> _Line:
    body, mark, tail = raw.rpartition(b',"crc":')
    crc = crc32(body).to_bytes(4, "big")
    if not mark:  # rewritten: the crc that it had before, and CRC-16 of what it is now
        body, mark, tail = raw.rpartition(b',"was":')
        crc = urlsafe_b64decode(tail[1:9])
        if tail[9:] != b'"}\n' or crc[4:] != crc_hqx(body, 0).to_bytes(2, "big"):
            raise ValueError("a rewritten line that its checksum does not fit")
        crc = crc[:4]
    elif tail != b'"%b"}\n' % crc.hex().encode():
        raise ValueError("a line that its checksum does not fit")
    text = raw.decode()
    line = json.loads(text)
    time = (datetime.fromisoformat(line["at"]) - _EPOCH) // timedelta(microseconds=1)
    texts = iter(_texts(text))
    events: list[Event] = []
    links: list[bytes] = []
    for stream, revision, written, *rest in line["in"]:
        own = rest[0] if rest else None
        keys = own if isinstance(own, list) else [own, *[None] * (len(written) - 1)]
        for number, (type, _, link, *more) in enumerate(written, revision):
            checkpoint = more[0] if more else None
            subject = more[1] if len(more) > 1 else None
            links_to = urlsafe_b64decode(link + "=")
            payload, meta = next(texts)
            if payload.startswith("-0 "):
                payload = "-0"  # let go: spaces keep the line as long as it was
            envelope = (line["n"], time, type, line["by"], payload.encode(), links_to)
            key = keys[number - revision]
            events.append(Event(stream, number, *envelope, key, checkpoint, subject, meta))
        links.append(events[-1].link)
    return _Line(line["n"], events, links, line.get("set", []), line.get("clear", []), crc)


def _texts(text: str) -> list[tuple[str, str | None]]:
    """Returns every payload of a line and its meta as they stand there: links are made of bytes."""
    found: list[tuple[str, str | None]] = []
    at = text.index('"in":') + len('"in":')
    for section in _items(text, at):
        _, _, events = list(_items(text, section))[:3]
        for event in _items(text, events):
            items = _items(text, event)
            payload = text[items[1] : _scan(text, items[1])[1]]
            meta = text[items[6] : _scan(text, items[6])[1]] if len(items) > 6 else None
            found.append((payload, meta))
    return found


def _items(text: str, at: int) -> list[int]:
    """Returns where the items of the array at `at` begin. Spaces follow only what was let go of."""
    starts: list[int] = []
    at += 1
    while text[at] != "]":
        starts.append(at)
        at = _scan(text, at)[1]
        while text[at] == " ":
            at += 1
        if text[at] == ",":
            at += 1
    return starts
