"""Packed segments: files without the spaces that stand in the text where payloads were (0086).

    {"packed":[VIRTUAL,REST],"crc":"1a2b3c4d"}
    … a line as it is in the text …
    … a rewritten line without its spaces …,"was":"XXXXXXXX","gap":"OFFSET,AT,N,AT,N…;1a2b3c4d"}

VIRTUAL is the length of the text that the file stands for, REST that of the file after the first
line. `gap` has, in hex, where in the text the line begins, and for each run of spaces the byte of
the packed line that it stood before and how many there were. Its checksum is CRC-32 of all that
stands before the `;` in its line.

`pack` makes such a file, `PackedSegment` reads the text from one. Each packed line says where it
begins, so damage to one does not move those after it: text that is lost reads as zeros, which are
no line, and the text around it stays where it was.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from holdfast.backends.files.disk import Disk, read_all

BEGINNING = b'{"packed":'
SAVED_SHARE = 16
"""A segment is packed if one part in so many of it is saved, …"""
SAVED_BYTES_MIN = 4096
"""… and as much as a block of the disk."""
LINE_BYTES_MAX = 64 << 20
"""Longer lines stay as they are, so that reading one line of a small file takes little memory."""
CHUNK_BYTES = 1 << 20
PLACE_BYTES = 16 << 10
_RUN_MIN = 24
_HEAD_BYTES_MAX = 100
_END_BYTES = 12  # of a packed line, from the `;` on

_HEAD = re.compile(rb'(\{"packed":\[(\d{1,18}),(\d{1,18})\]),"crc":"([0-9a-f]{8})"\}\n')
_WAS = re.compile(rb',"was":"[A-Za-z0-9_-]{8}"\}\n')
_RUN = re.compile(rb'(?<! ) {%d,}+(?=,"[A-Za-z0-9_-]{43}")' % _RUN_MIN)
_GAP = re.compile(rb',"gap":"([0-9a-f]+(?:,[0-9a-f]+,[0-9a-f]+)+);([0-9a-f]{8})"\}\n')

_SAME, _MIXED, _LOST = range(3)
"""What a piece of the text is: as it stands in the file, with packed lines, or not known."""


def pack(text: bytes) -> bytes | None:
    """Returns the packed file for the text of a segment, None if too little would be saved."""
    parts: list[bytes] = []
    copied = 0  # the text before this is in `parts`
    for end in _WAS.finditer(text):
        begin = text.rfind(b"\n", copied, end.start()) + 1 or copied
        gaps = [run.span() for run in _RUN.finditer(text, begin, end.start())]
        if gaps and end.end() - begin <= LINE_BYTES_MAX:
            parts += (text[copied:begin], _packed(text, begin, end.end(), gaps))
            copied = end.end()
    parts.append(text[copied:])
    rest = sum(map(len, parts))
    if not is_worth(len(text), rest):
        return None
    head = b'{"packed":[%d,%d]' % (len(text), rest)
    return b"".join([head, b',"crc":"%08x"}\n' % crc32(head), *parts])


def _packed(text: bytes, begin: int, end: int, gaps: list[tuple[int, int]]) -> bytes:
    """Returns a line of the text without its gaps, and with where they were."""
    parts: list[bytes] = []
    numbers = [b"%x" % begin]
    place, length = begin, 0
    for start, stop in gaps:
        parts.append(text[place:start])
        length += start - place
        numbers.append(b"%x,%x" % (length, stop - start))
        place = stop
    parts += (text[place : end - 2], b',"gap":"', b",".join(numbers))
    line = b"".join(parts)
    return line + b';%08x"}\n' % crc32(line)


def is_worth(before: int, after: int) -> bool:
    """Returns whether so much is saved that a shorter file is to take the place of a file."""
    return before - after >= max(before // SAVED_SHARE, SAVED_BYTES_MIN)


class _Packed(NamedTuple):
    """A packed line that verifies."""

    place: int  # where it begins in what was searched
    end: int
    offset: int  # where it begins in the text
    length: int  # in the text
    gaps: list[tuple[int, int]]
    tail: int  # where in what was searched its gaps are told


def _packed_lines(data: bytes, until: int) -> Iterator[_Packed]:
    """Yields the packed lines before `until` in some lines of a file."""
    for found in _GAP.finditer(data, 0, until):
        place = data.rfind(b"\n", 0, found.start()) + 1
        if crc32(data[place : found.end() - _END_BYTES]) != int(found[2], 16):
            continue
        offset, *numbers = (int(number, 16) for number in found[1].split(b","))
        gaps = list(zip(numbers[::2], numbers[1::2], strict=True))
        length = found.start() - place + 2 + sum(numbers[1::2])
        is_in_order = numbers[::2] == sorted(numbers[::2]) and gaps[-1][0] <= found.start() - place
        if is_in_order and length <= LINE_BYTES_MAX:
            yield _Packed(place, found.end(), offset, length, gaps, found.start())


class PackedSegment:
    """Reads the text of a segment whose file may be packed; each call is given a descriptor.

    The places of lines are found by one pass over the file, when text is read for the first time.
    """

    def __init__(self, disk: Disk, fd: int, length: int | None) -> None:
        """`length` is that of the text, None if no later segment tells."""
        self._disk = disk
        self._file_bytes = disk.size(fd)
        self._begin = 0  # of the lines in the file
        self._is_said = False
        head = _HEAD.match(read_all(disk, fd, min(_HEAD_BYTES_MAX, self._file_bytes)))
        if head is not None and int(head[4], 16) == crc32(head[1]):
            self._begin = head.end()
            length = int(head[2]) if length is None else length
            said = int(head[2]), int(head[3])
            self._is_said = said == (length, self._file_bytes - self._begin)
        self._length = self._file_bytes if length is None else length
        # Where each piece begins, in the text and in the file, and what it is; behind them, where
        # the last one ends.
        self._offsets = array("Q")
        self._places = array("Q")
        self._kinds = bytearray()

    def is_packed(self, fd: int) -> bool:
        """Returns whether the file has packed lines, or begins like one that has."""
        self._find_places(fd)
        return bool(self._kinds)

    def size(self, fd: int) -> int:
        """Returns the length of the text; that of the file, if it is not packed or is not whole."""
        if self._is_said:
            return self._length
        self._find_places(fd)
        return self._length if self._kinds and _LOST not in self._kinds else self._file_bytes

    def read(self, fd: int, offset: int, length: int) -> bytes:
        """Returns `length` bytes of the text, or fewer only where it ends."""
        self._find_places(fd)
        if not self._kinds:
            return read_all(self._disk, fd, length, offset)
        end = min(offset + length, self._length)
        number = bisect_right(self._offsets, offset) - 1
        parts: list[bytes] = []
        while offset < end:
            stop = min(self._offsets[number + 1], end)
            parts.append(self._piece(fd, number, offset, stop))
            offset = stop
            number += 1
        return b"".join(parts)

    def place_of(self, offset: int) -> int:
        """Returns about where in the file a byte of the text is: for messages."""
        if not self._kinds:
            return offset
        number = min(bisect_right(self._offsets, offset), len(self._kinds)) - 1
        start, place = self._offsets[number], self._places[number]
        return place if self._kinds[number] != _SAME else place + offset - start

    def _piece(self, fd: int, number: int, begin: int, end: int) -> bytes:
        """Returns the text of one piece between two offsets."""
        start, place = self._offsets[number], self._places[number]
        data = b""
        if self._kinds[number] == _SAME:
            data = read_all(self._disk, fd, end - begin, place + begin - start)
        elif self._kinds[number] == _MIXED:
            lines = read_all(self._disk, fd, self._places[number + 1] - place, place)
            data = _text_of(lines, begin - start, end - start)
        if len(data) == end - begin:
            return data
        # It is lost, or has changed since the places were found. It ends like a line, so that the
        # next line is not taken for a part of it.
        is_end = end == self._offsets[number + 1]
        return bytes(end - begin - is_end) + b"\n" * is_end

    # --- where things are ---

    def _find_places(self, fd: int) -> None:
        if self._offsets:
            return
        self._kinds.clear()
        offset, place = 0, self._begin
        for line, begin in self._lines(fd):
            if line.offset < offset or line.offset + line.length > self._length:
                continue  # it is no line of this place, and counts as damage of what is there
            self._add_between(fd, offset, line.offset, place, begin + line.place)
            self._add(line.offset, begin + line.place, _MIXED)
            offset, place = line.offset + line.length, begin + line.end
        if offset or self._begin:
            self._add_between(fd, offset, self._length, place, self._file_bytes)
        self._places.append(self._file_bytes)
        self._offsets.append(self._length)

    def _lines(self, fd: int) -> Iterator[tuple[_Packed, int]]:
        """Yields each packed line, and where in the file the chunk begins that it was found in."""
        disk, place, want = self._disk, 0, CHUNK_BYTES
        while place < self._file_bytes:
            data = read_all(disk, fd, want, place)
            whole = data.rfind(b"\n") + 1
            if not data:
                return  # it was cut since
            if whole:
                for line in _packed_lines(data, whole):
                    yield line, place
                place += whole
                want = CHUNK_BYTES
            elif len(data) == want <= LINE_BYTES_MAX and data[-1]:
                want *= 2  # a line longer than a chunk
            else:
                # What cannot be a line may be a hole of gigabytes.
                place = disk.next_data(fd, place + len(data)) or self._file_bytes
                want = CHUNK_BYTES

    def _add(self, offset: int, place: int, kind: int) -> None:
        """Notes where a piece begins; neighbouring packed lines make one."""
        is_one = bool(self._kinds) and self._kinds[-1] == kind == _MIXED
        if not is_one or offset - self._offsets[-1] >= PLACE_BYTES:
            self._offsets.append(offset)
            self._places.append(place)
            self._kinds.append(kind)

    def _add_between(self, fd: int, offset: int, stop: int, place: int, end: int) -> None:
        """Notes the text between two packed lines, which stands in the file as it is."""
        if stop - offset == end - place:
            if offset < stop:
                self._add(offset, place, _MIXED if stop - offset < PLACE_BYTES else _SAME)
            return
        # A line among these is damaged, so that its length is not known. Those before it are as far
        # from the packed line before them as ever, those after it from the one after them.
        left = right = 0
        if end - place <= LINE_BYTES_MAX:
            left, right = _around_damage(read_all(self._disk, fd, end - place, place))
        if left + right > stop - offset:
            left = right = 0
        if left:
            self._add(offset, place, _SAME)
        if left + right < stop - offset:
            self._add(offset + left, place + left, _LOST)
        if right:
            self._add(stop - right, end - right, _SAME)


def _around_damage(data: bytes) -> tuple[int, int]:
    """Returns how many bytes of some lines lie before damage, and how many after it."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    whole = [not line or _ends_well(line) for line in lines]
    if False not in whole:
        return len(data), 0
    first = whole.index(False)
    last = len(whole) - whole[::-1].index(False)
    return sum(map(len, lines[:first])), sum(map(len, lines[last:]))


def _ends_well(line: bytes) -> bool:
    """Returns whether a line has its length: it verifies, or is rewritten and not packed."""
    is_rewritten = _WAS.match(line[-19:]) is not None
    return is_rewritten or line.endswith(b',"crc":"%08x"}\n' % crc32(line[:-19]))


def _text_of(data: bytes, begin: int, end: int) -> bytes:
    """Returns the text of some lines of a file, between two offsets in that text.

    Spaces outside of the two are not made: a line may be much longer than what is asked for.
    """
    parts: list[bytes] = []
    offset = place = 0  # how far, in the text and in the file

    def add(until: int) -> None:
        nonlocal offset, place
        parts.append(
            data[place + max(begin - offset, 0) : min(until, place + max(end - offset, 0))]
        )
        offset += until - place
        place = until

    for line in _packed_lines(data, len(data)):
        for at, count in line.gaps:
            add(line.place + at)
            parts.append(b" " * (min(offset + count, end) - max(offset, begin)))
            offset += count
        add(line.tail)
        place = line.end - 2  # the text has `}` and the line break behind what was kept
        add(line.end)
    add(len(data))
    return b"".join(parts)
