"""Splits any text into pieces: lines, and bytes that cannot be a line.

For reading text that may be damaged, in bounded memory: a file with a hole of gigabytes takes no
more memory than one line. A line begins with `{"n":` and holds no zero byte, because JSON escapes
it. Bytes that break either rule are no line, and are not held in memory in search of a line break.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.backends.files.text import LINE_BYTES_MAX, Segments

CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 4096
_BEGINNING = b'{"n":'


class Piece(NamedTuple):
    """A line with its line break, which the last may lack; `encoded` is None for other bytes."""

    offset: int
    end: int
    encoded: bytes | None


def may_be_line(text: bytes) -> bool:
    """Returns whether text without a line break can be the beginning of a line."""
    return text.startswith(_BEGINNING) and b"\0" not in text and len(text) <= LINE_BYTES_MAX + 100


def pieces(segments: Segments, offset: int, end: int) -> Iterator[Piece]:
    """Yields everything between two log offsets, in order and without gaps."""
    want = CHUNK_BYTES
    while offset < end:
        stop = segments.stop_after(offset, end)
        is_there = segments.starts and offset >= segments.starts[0]
        text = segments.read(offset, min(offset + want, stop)) if is_there else b""
        if not text:
            yield Piece(offset, stop, None)  # the segment is short, or missing
            offset = stop
            continue
        whole = text.rfind(b"\n") + 1
        if offset + len(text) == stop:
            whole = len(text)
        elif not whole and len(text) == want and may_be_line(text):
            want *= 2
            continue
        want = CHUNK_BYTES
        if not whole:
            found = _line_end(segments, offset + len(text), stop)
            yield Piece(offset, found, None)
            offset = found
            continue
        for encoded in split_lines(text[:whole]):
            yield Piece(offset, offset + len(encoded), encoded)
            offset += len(encoded)


def _line_end(segments: Segments, offset: int, stop: int) -> int:
    """Returns the offset after the next line break, or `stop` if there is none."""
    while (offset := segments.next_data(offset, stop)) < stop:
        text = segments.read(offset, min(offset + CHUNK_BYTES, stop))
        at = text.find(b"\n")
        if at >= 0:
            return offset + at + 1
        if not text:
            break
        offset += len(text)
    return stop


class Extract(NamedTuple):
    """Bytes that are worth keeping, and what was left out of them."""

    kept: bytes
    zeros: list[tuple[int, int]]  # log offset and length of each run
    rest: int  # bytes at the end that are not in `kept`, because it is long enough


def extract(segments: Segments, offset: int, end: int, *, most: int) -> Extract:
    """Returns the bytes between two offsets, without long runs of zeros, at most `most` of them.

    A hole in a file takes no room on the disk but reads as zeros, which a copy would write out.
    """
    kept = bytearray()
    zeros: list[tuple[int, int]] = []
    while offset < end and len(kept) < most:
        data_at = segments.next_data(offset, end)
        if data_at - offset >= BLOCK_BYTES:
            _note(zeros, offset, data_at - offset)
            offset = data_at
            continue
        text = segments.read(offset, min(offset + CHUNK_BYTES, end))
        if not text:
            break
        for start in range(0, len(text), BLOCK_BYTES):
            block = text[start : start + BLOCK_BYTES]
            if len(block) == BLOCK_BYTES and not any(block):
                _note(zeros, offset + start, BLOCK_BYTES)
            else:
                kept += block
        offset += len(text)
    return Extract(bytes(kept[:most]), zeros, end - offset + max(len(kept) - most, 0))


def _note(zeros: list[tuple[int, int]], offset: int, length: int) -> None:
    if zeros and zeros[-1][0] + zeros[-1][1] == offset:
        zeros[-1] = (zeros[-1][0], zeros[-1][1] + length)
    else:
        zeros.append((offset, length))


def split_lines(text: bytes) -> list[bytes]:
    """Returns the lines with their line breaks; the last one may lack it."""
    lines = text.splitlines(keepends=True)
    if b"\r" in text:  # `splitlines` takes it for a line break, but in JSON it is a space
        pieces = text.split(b"\n")
        lines = [piece + b"\n" for piece in pieces[:-1]]
        if pieces[-1]:
            lines.append(pieces[-1])
    return lines
