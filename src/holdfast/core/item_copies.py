"""The items of long lists by value, in blocks beside the snapshots: one decoding for hundreds.

A snapshot leaves the items of a long list in their events, so that it stays small and one item is
read without the others. Whoever reads the whole list would have to visit every event: find it,
verify it, parse its envelope. So the leaves of a list (32 items each) are kept once more, by value,
in blocks of about 256 KiB: one JSON array each, compressed. A block is an object named
`<stream digest>/items-<revision>-<digest>`, with the least revision that an item of it comes from,
and the first half of the digest of its bytes.

A snapshot lists the blocks of its lists, with their digests, and is verified itself (`snapshot.py`)
before it is trusted. A block that is missing or fails its digest is left out: the events have
everything. Nothing is made of a subject's streams, which are sealed record by record.

A leaf never changes, so neither does a block. One whose leaf was replaced is listed in parts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from holdfast.backends.protocol import Objects
from holdfast.core import codec
from holdfast.core.event import BlobReader
from holdfast.core.tree import Lazy, List, Map, thaw
from holdfast.core.tree.frozen import SHORT
from holdfast.core.tree.vector import BITS, WIDTH, Node, Vector
from holdfast.errors import CorruptError, HoldfastError

BLOCK_BYTES = 256 * 1024
BLOCK_BYTES_MIN = 64 * 1024
"""Less than this is left to the events, which are read as fast as a block of that size is made."""
BLOCKS_AT_ONCE = 64
READ_AT_ONCE = 1024
"""How many items are read from their events to make blocks: those of a list without any yet."""
KEPT_BYTES_MAX = 32 << 20
_TEXT_BYTES_MAX = 1 << 30
_WANTED_PART = 4
"""A block is not decoded for less than one item in so many."""

NAME = re.compile("items-([0-9]{16})-[0-9a-f]{32}")

_decoder = msgspec.json.Decoder(list[Any])
_raw_decoder = msgspec.json.Decoder(list[Raw])

Path = tuple[str, ...]
"""The keys that lead from the root of a state to a list."""


def folder_of(stream: str) -> str:
    """Returns the beginning of the names of all objects that are made of one stream's state."""
    return sha256(stream.encode()).hexdigest()[:32] + "/"


Row = tuple[int, int, int, str, int, int, int, str]


class Block(NamedTuple):
    """A block of items of a stream, as it is listed by the snapshots of it and of its forks."""

    stream: str
    revision: int
    """The least that an item comes from."""
    items: int
    size: int
    """How many bytes it has when it is not compressed."""
    digest: str

    @property
    def name(self) -> str:
        return f"{folder_of(self.stream)}items-{self.revision:016d}-{self.digest[:32]}"


class Span(NamedTuple):
    """Items of a list that are in a block: `length` from `start` on are those from `offset` on."""

    start: int
    length: int
    offset: int
    block: Block

    @property
    def stop(self) -> int:
        return self.start + self.length

    def row(self) -> Row:
        """Returns the span as a snapshot stores it."""
        stream, revision, items, size, digest = self.block
        return self.start, self.length, self.offset, stream, revision, items, size, digest

    def between(self, start: int, stop: int) -> Span | None:
        """Returns the part of the span with these indexes of the list; None if there is none."""
        first, last = max(start, self.start), min(stop, self.stop)
        if first >= last:
            return None
        return Span(first, last - first, self.offset + first - self.start, self.block)


Table = list[tuple[list[str], list[Row]]]
"""The spans of lists as a snapshot stores them: by the keys that lead to a list."""


def to_table(lists: dict[Path, list[Span]]) -> Table:
    """Returns what a snapshot stores of the spans of its lists."""
    return [(list(path), [one.row() for one in spans]) for path, spans in lists.items() if spans]


def from_table(table: Table) -> dict[Path, list[Span]]:
    """Returns the spans of lists that a snapshot stores, or raises CorruptError."""
    lists: dict[Path, list[Span]] = {}
    for path, rows in table:
        spans = [Span(*row[:3], Block(*row[3:])) for row in rows]
        stop = 0
        for one in spans:
            in_block = one.offset >= 0 and one.offset + one.length <= one.block.items
            if one.start < stop or one.length < 1 or not in_block:
                raise CorruptError(f"snapshot has a malformed block of items: {one!r:.120}")
            stop = one.stop
        lists[tuple(path)] = spans
    return lists


# --- where a list has blocks ----------------------------------------------------------------------


def long_lists(value: Map, path: Path = ()) -> Iterator[tuple[Path, Vector]]:
    """Yields the lists of a state that have leaves, but for those in wide levels and in lists."""
    if not value.is_narrow:
        return
    for key, kept in value._kept():
        if not _is_unicode(key):
            continue  # JSON has no such text, and a path is stored as JSON
        if type(kept) is Map:
            yield from long_lists(kept, (*path, key))
        elif type(kept) is List and kept.vector().count > len(kept.vector().tail):
            yield (*path, key), kept.vector()


def _is_unicode(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _covered(node: Node, shift: int, start: int) -> tuple[Span, ...] | None:
    """Returns the spans of all items below a node, None if some of them are in no block.

    What a branch has is remembered: to look through a long list again costs about its new part.
    """
    if node.block is not None:
        block: tuple[Span, ...] = node.block
        return block
    if node.source is not None:
        spans = tuple(node.source.spans(node.start, node.stop))
        if sum(one.length for one in spans) == node.stop - node.start:
            return spans
    if not shift or node.content is None:
        return None
    found: list[Span] = []
    for place, child in enumerate(node.content):
        spans_below = _covered(child, shift - BITS, start + (place << shift))
        if spans_below is None:
            return None
        join_spans(found, spans_below)
    node.block = tuple(found)
    return node.block


def _pieces(node: Node, shift: int, start: int) -> Iterator[Span | tuple[int, Node]]:
    """Yields, in order, the spans below a node, and the leaves without one with their places."""
    spans = _covered(node, shift, start)
    if spans is not None:
        yield from spans
    elif not shift:
        yield start, node
    else:
        for place, child in enumerate(node.load(shift)):
            yield from _pieces(child, shift - BITS, start + (place << shift))


def join_spans(spans: list[Span], more: Iterable[Span]) -> None:
    """Adds spans, made one with those before them where they go on in the same block."""
    for one in more:
        last = spans[-1] if spans else None
        if last is not None and (last.stop, last.offset + last.length, last.block) == (
            one.start,
            one.offset,
            one.block,
        ):
            spans[-1] = Span(last.start, last.length + one.length, last.offset, last.block)
        else:
            spans.append(one)


# --- the blocks of a store ------------------------------------------------------------------------


class ItemCopies:
    """Reads and writes the blocks; those read last are kept, each verified once."""

    def __init__(
        self,
        objects_of: Callable[[str], Objects],
        *,
        first_of: Callable[[str], int],
        blobs: BlobReader,
        report: Callable[[str], None],
    ) -> None:
        self._objects_of = objects_of
        self.first_of = first_of
        self._blobs = blobs
        self._report = report
        self._mutex = Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0

    def plain(self, span: Span) -> list[Any] | None:
        """Returns plain copies of the items of a span; None if they are to be read elsewhere."""
        if span.length * _WANTED_PART < span.block.items:
            return None
        text = self._text(span.block)
        if text is None:
            return None
        if codec.may_have_tags(text):
            some = _raw_decoder.decode(text)[span.offset : span.offset + span.length]
            return [thaw(Lazy(raw, None, None, self._blobs)) for raw in some]
        items = _decoder.decode(text)
        if span.length == len(items):
            return items
        return items[span.offset : span.offset + span.length]

    def _text(self, block: Block) -> bytes | None:
        with self._mutex:
            text = self._kept.get(block.digest)
            if text is not None:
                self._kept.move_to_end(block.digest)
                return text
        try:
            text = self.read(block)
        except CorruptError as error:
            self._report(f"{error.message}; it was discarded, the log has everything")
            self._discard(block)
            return None
        if text is not None:
            self._keep(block, text)
        return text

    def _keep(self, block: Block, text: bytes) -> None:
        with self._mutex:
            if block.digest not in self._kept:
                self._kept[block.digest] = text
                self._kept_bytes += len(text)
            while self._kept_bytes > KEPT_BYTES_MAX:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= len(oldest)

    def read(self, block: Block) -> bytes | None:
        """Returns the JSON array of a block, None if it is not there; CorruptError if damaged."""
        stream = block.stream
        data = self._objects_of(stream).get("snapshot", block.name)
        if data is None:
            return None
        if sha256(data).hexdigest() != block.digest:
            raise CorruptError(f'a block of items of "{stream}" fails its digest', stream=stream)
        return codec.decompress(data, size_max=block.size)

    def write(
        self, stream: str, root: Map, expires_us: int
    ) -> tuple[dict[Path, list[Span]], list[Block]]:
        """Returns where the long lists of a state have blocks, and those that were made for it."""
        making = _Making(self, stream, expires_us)
        spans = {path: making.spans(items) for path, items in long_lists(root)}
        return spans, making.made

    def put(self, block: Block, data: bytes, expires_us: int) -> None:
        """Stores a block."""
        objects = self._objects_of(block.stream)
        objects.put("snapshot", block.name, data, expires_us=expires_us)

    def delete(self, block: Block) -> None:
        """Deletes a block."""
        self._objects_of(block.stream).delete("snapshot", block.name)

    def forget(self, stream: str, until: int) -> None:
        """Deletes the blocks with items of events up to a revision, which were let go of."""
        folder = folder_of(stream)
        objects = self._objects_of(stream)
        for name in objects.names("snapshot", prefix=folder):
            found = NAME.fullmatch(name[len(folder) :])
            if found is not None and int(found[1]) <= until:
                objects.delete("snapshot", name)
        with self._mutex:  # rare, so there is no need to know which of them are of this stream
            self._kept.clear()
            self._kept_bytes = 0

    def _discard(self, block: Block) -> None:
        try:
            self.delete(block)
        except HoldfastError as error:
            self._report(f"the damaged block could not be deleted: {error}")


class _Leaf(NamedTuple):
    """A leaf without a block: its place in the list, and its items as their events have them."""

    start: int
    node: Node
    revision: int  # the least that an item comes from
    items: list[bytes]


class _Making:
    """Makes the blocks that the lists of one state lack, as many as are made at once."""

    def __init__(self, copies: ItemCopies, stream: str, expires_us: int) -> None:
        self._copies = copies
        self._stream = stream
        self._expires_us = expires_us
        self._first = copies.first_of(stream)
        self.made: list[Block] = []
        self._reads_left = READ_AT_ONCE

    def spans(self, items: Vector) -> list[Span]:
        """Returns where the items of a list are in blocks."""
        spans: list[Span] = []
        leaves: list[_Leaf] = []
        size = 0
        for piece in _pieces(items.root, items.shift, 0):
            leaf = None if isinstance(piece, Span) else self._leaf(*piece)
            is_next = leaf is not None and (not leaves or leaf.start == leaves[-1].start + WIDTH)
            if not is_next or size >= BLOCK_BYTES:
                join_spans(spans, self._block(leaves))
                leaves, size = [], 0
            if isinstance(piece, Span):
                join_spans(spans, (piece,))
            elif leaf is not None:
                leaves.append(leaf)
                size += sum(map(len, leaf.items))
        join_spans(spans, self._block(leaves))
        return spans

    def _leaf(self, start: int, node: Node) -> _Leaf | None:
        """Returns a leaf that is to be in a block; None if it is not.

        It is not if the snapshot has it by value anyway, if an item was changed in itself, or if
        one is from before a fork: that is for the stream to keep which it was forked from.
        """
        source = node.source
        is_unread = node.content is None and source is not None
        if len(self.made) >= BLOCKS_AT_ONCE or (is_unread and self._reads_left < WIDTH):
            return None
        items = source.items(node.start, node.stop) if is_unread and source else node.load(0)
        sources = [item.source for item in items if type(item) is Lazy and item.source is not None]
        if any(isinstance(item, Map | List) for item in items) or not sources:
            return None
        absent = sum(type(item) is Lazy and item.raw is None for item in items)
        is_long = absent or any(type(item) is Lazy and len(item.stored()) > SHORT for item in items)
        # Of a value that has no source it is only known that its event is one of the stream's own.
        revision = min(sources)[0] if len(sources) == len(items) else self._first
        if not is_long or absent > self._reads_left or min(sources)[0] < self._first:
            return None
        self._reads_left -= absent
        return _Leaf(start, node, revision, [_encoded(item) for item in items])

    def _block(self, leaves: list[_Leaf]) -> list[Span]:
        """Stores a block of some leaves; returns its span, none if it is not worth it."""
        text = b"[%b]" % b",".join([item for leaf in leaves for item in leaf.items])
        if len(text) < BLOCK_BYTES_MIN or len(self.made) >= BLOCKS_AT_ONCE:
            return []
        data = codec.compress(text)
        revision = min(leaf.revision for leaf in leaves)
        digest = sha256(data).hexdigest()
        block = Block(self._stream, revision, WIDTH * len(leaves), len(text), digest)
        self._copies.put(block, data, self._expires_us)
        self.made.append(block)
        begin = leaves[0].start
        for leaf in leaves:
            leaf.node.block = (Span(leaf.start, WIDTH, leaf.start - begin, block),)
        return [Span(begin, block.items, 0, block)]


def _encoded(item: Any) -> bytes:
    return bytes(item.stored()) if type(item) is Lazy else codec.encode(item)
