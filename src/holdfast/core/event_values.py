"""Reads values that a snapshot leaves in their events, and caches the events in blocks.

To look at one item of a list is to read the block of events around it. A plain copy of a whole list
reads its events about a thousand at a time and decodes each payload once, directly into the result.
The most recently used blocks are cached up to a number of bytes, also the last block of a stream,
which is not full yet. A second copy then costs only the decoding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from holdfast.backends.protocol import PayloadRow
from holdfast.core.event import CHANGED, BlobReader, plain_values, stored_ops
from holdfast.core.snapshot import ItemRange
from holdfast.core.tree import decode_values
from holdfast.errors import CorruptError

BLOCK_EVENTS = 64
READ_BLOCKS = 16
KEPT_BYTES_MAX = 32 << 20
_ROW_BYTES = 120

Read = Callable[[str, int, int], Sequence[PayloadRow]]


class EventBlocks:
    """The cache of blocks of events, for all streams of a store."""

    def __init__(self, read: Read, blobs: BlobReader) -> None:
        self._read = read
        self.blobs = blobs
        self._mutex = Lock()
        self._kept: OrderedDict[tuple[str, int], Sequence[PayloadRow]] = OrderedDict()
        self._kept_bytes = 0

    def rows(self, stream: str, first: int, last: int) -> list[PayloadRow]:
        """Returns the events from `first` to `last`; raises CorruptError if one is missing.

        Neighbouring blocks that are not cached are read in one call.
        """
        begin, end = (first - 1) // BLOCK_EVENTS, (last - 1) // BLOCK_EVENTS
        found: list[PayloadRow] = []
        missing = 0
        for block in range(begin, end + 1):
            # A cached block may have been read before the stream grew, and lack wanted events.
            kept = self._get(stream, block, min(last - block * BLOCK_EVENTS, BLOCK_EVENTS))
            if kept is None:
                missing += 1
            if missing and (kept is not None or missing == READ_BLOCKS or block == end):
                after = block if kept is not None else block + 1
                found += self._fetch(stream, after - missing, after)
                missing = 0
            if kept is not None:
                found += kept
        found = found[first - 1 - begin * BLOCK_EVENTS : last - begin * BLOCK_EVENTS]
        if len(found) != last - first + 1:
            raise CorruptError(
                f'event {first + len(found)} of "{stream}" is missing',
                stream=stream,
                revision=first + len(found),
            )
        return found

    def _get(self, stream: str, block: int, wanted: int) -> Sequence[PayloadRow] | None:
        with self._mutex:
            kept = self._kept.get((stream, block))
            if kept is None or len(kept) < wanted:
                return None
            self._kept.move_to_end((stream, block))
            return kept

    def _fetch(self, stream: str, begin: int, end: int) -> Sequence[PayloadRow]:
        """Reads blocks, caches them, and returns their events."""
        rows = self._read(stream, begin * BLOCK_EVENTS, end * BLOCK_EVENTS)
        with self._mutex:
            for number, first in enumerate(range(0, len(rows), BLOCK_EVENTS), begin):
                block = rows[first : first + BLOCK_EVENTS]
                self._kept_bytes += _size(block) - _size(self._kept.pop((stream, number), ()))
                self._kept[stream, number] = block
            while self._kept_bytes > KEPT_BYTES_MAX:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= _size(oldest)
        return rows


def _size(rows: Sequence[PayloadRow]) -> int:
    return sum([len(payload) for _, payload, _ in rows]) + _ROW_BYTES * len(rows)


class EventValues:
    """The values of the ops of one stream's events."""

    def __init__(self, blocks: EventBlocks, stream: str) -> None:
        self._blocks = blocks
        self._stream = stream

    def encoded(self, revision: int, op: int) -> bytes:
        """Returns the encoded value of one op, as stored in its event."""
        [(type, payload, _)] = self._blocks.rows(self._stream, revision, revision)
        ops = stored_ops(self._stream, revision, type, payload)
        if op >= len(ops):
            raise self._no_op(revision, op)
        return bytes(ops[op].value)

    def plain(self, run: ItemRange) -> list[Any]:
        """Returns plain copies of the values of a run of ops."""
        found: list[Any] = []
        blobs = self._blocks.blobs
        revision, step, rows, op, columns = run
        # If most events in between are not wanted, only the blocks of the wanted ones are read.
        together = 1 if step > BLOCK_EVENTS else max(READ_BLOCKS * BLOCK_EVENTS // (step or 1), 1)
        for row in range(0, rows, together):
            first = revision + step * row
            last = first + step * (min(together, rows - row) - 1)
            for type, payload, _ in self._blocks.rows(self._stream, first, last)[:: step or 1]:
                values = decode_values(payload) if type == CHANGED else None
                if values is None:
                    ops = stored_ops(self._stream, first, type, payload)
                    values = plain_values(ops[op : op + columns], blobs)
                elif op or len(values) != columns:
                    values = values[op : op + columns]
                if len(values) != columns:
                    raise self._no_op(first, op + len(values))
                found += values
                first += step
        return found

    def _no_op(self, revision: int, op: int) -> CorruptError:
        return CorruptError(
            f'event {revision} of "{self._stream}" has no change number {op}: a snapshot says '
            "that it has",
            stream=self._stream,
            revision=revision,
        )
