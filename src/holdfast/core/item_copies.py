"""Blocks: the items of long lists by value, beside the snapshots. One decoding reads hundreds.

A snapshot leaves the items of a long list in their events, so that it stays small and one item can
be read without the others. A reader of the whole list would have to find and verify every event,
and parse its envelope. So the leaves of a list (32 items each) are also stored by value, in blocks
of about 256 KiB: one JSON array each, compressed. A block is an object named
`<stream digest>/items-<revision>-<digest>`. The revision is the least that one of its items comes
from; the digest is the first half of the digest of its bytes.

A snapshot lists the blocks of its lists with their digests, and is itself verified before use
(`snapshot.py`). A block that is missing or fails its digest is ignored: the events have everything.
Streams of subjects get no blocks, because they are sealed record by record.

A leaf never changes, so neither does a block. If a leaf in the middle of a block was replaced in a
list, the parts of the block around it are listed.
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
"""No block is made of fewer bytes: reading that much from events is as fast as making a block."""
BLOCKS_AT_ONCE = 64
READ_AT_ONCE = 1024
"""How many items are read from their events at most to make blocks, for a list without any."""
KEPT_BYTES_MAX = 32 << 20
_TEXT_BYTES_MAX = 1 << 30
_WANTED_PART = 4
"""A block is decoded only if at least one in this many of its items is wanted."""

NAME = re.compile("items-([0-9]{16})-[0-9a-f]{32}")

_decoder = msgspec.json.Decoder(list[Any])
_raw_decoder = msgspec.json.Decoder(list[Raw])

Path = tuple[str, ...]
"""The keys that lead from the root of a state to a list."""


def folder_of(stream: str) -> str:
    """Returns the common prefix of the names of all objects made from one stream's state."""
    return sha256(stream.encode()).hexdigest()[:32] + "/"


Row = tuple[int, int, int, str, int, int, int, str]


class Block(NamedTuple):
    """A block of items of a stream, as the snapshots of the stream and of its forks list it."""

    stream: str
    revision: int
    """The least revision that one of its items comes from."""
    items: int
    size: int
    """Its uncompressed size in bytes."""
    digest: str

    @property
    def name(self) -> str:
        return f"{folder_of(self.stream)}items-{self.revision:016d}-{self.digest[:32]}"


class Span(NamedTuple):
    """A run of `length` items, from index `start` of a list and from `offset` of a block."""

    start: int
    length: int
    offset: int
    block: Block

    @property
    def stop(self) -> int:
        return self.start + self.length

    def row(self) -> Row:
        """Returns the form in which a snapshot stores the span."""
        stream, revision, items, size, digest = self.block
        return self.start, self.length, self.offset, stream, revision, items, size, digest

    def between(self, start: int, stop: int) -> Span | None:
        """Returns the part of the span within list[start:stop]; None if there is none."""
        first, last = max(start, self.start), min(stop, self.stop)
        if first >= last:
            return None
        return Span(first, last - first, self.offset + first - self.start, self.block)


Table = list[tuple[list[str], list[Row]]]
"""The form in which a snapshot stores spans: for each list the keys that lead to it, and rows."""


def to_table(lists: dict[Path, list[Span]]) -> Table:
    """Returns the form in which a snapshot stores the spans of its lists."""
    return [(list(path), [one.row() for one in spans]) for path, spans in lists.items() if spans]


def from_table(table: Table) -> dict[Path, list[Span]]:
    """Returns the spans from the form in which a snapshot stores them, or raises CorruptError."""
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
    """Yields the lists of a state that have leaves, except those in wide levels or in lists."""
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
    """Returns the spans of all items below a node; None if some of them are in no block.

    The spans of a branch are cached in it, so another look through a long list costs about as much
    as its new part.
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
    """Yields, in order, the spans below a node, and (index, leaf) for leaves without a span."""
    spans = _covered(node, shift, start)
    if spans is not None:
        yield from spans
    elif not shift:
        yield start, node
    else:
        for place, child in enumerate(node.load(shift)):
            yield from _pieces(child, shift - BITS, start + (place << shift))


def join_spans(spans: list[Span], more: Iterable[Span]) -> None:
    """Adds spans; one that continues the last span in the same block is joined with it."""
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
    """Reads and writes blocks. The last ones read are cached, so each is verified once."""

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
        """Returns plain copies of the items of a span; None if the events must be read instead.

        That is so if the block is missing or damaged, or if too few of its items are wanted.
        """
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
        """Returns the JSON array of a block; None if it is missing. Raises CorruptError."""
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
        """Makes blocks for the long lists of a state; returns all their spans, and the new blocks.

        One call makes at most BLOCKS_AT_ONCE blocks; later calls make the rest.
        """
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
        """Deletes the blocks that may have items of events up to a revision, which were let go."""
        folder = folder_of(stream)
        objects = self._objects_of(stream)
        for name in objects.names("snapshot", prefix=folder):
            found = NAME.fullmatch(name[len(folder) :])
            if found is not None and int(found[1]) <= until:
                objects.delete("snapshot", name)
        with self._mutex:  # this is rare, so the cached blocks of other streams go too
            self._kept.clear()
            self._kept_bytes = 0

    def _discard(self, block: Block) -> None:
        try:
            self.delete(block)
        except HoldfastError as error:
            self._report(f"the damaged block could not be deleted: {error}")


class _Leaf(NamedTuple):
    """A leaf without a block: its index in the list, and the encoded items of its events."""

    start: int
    node: Node
    revision: int  # the least revision that one of its items comes from
    items: list[bytes]


class _Making:
    """Makes the missing blocks of the lists of one state, up to the limits for one call."""

    def __init__(self, copies: ItemCopies, stream: str, expires_us: int) -> None:
        self._copies = copies
        self._stream = stream
        self._expires_us = expires_us
        self._first = copies.first_of(stream)
        self.made: list[Block] = []
        self._reads_left = READ_AT_ONCE

    def spans(self, items: Vector) -> list[Span]:
        """Returns the spans of a list's items that are in blocks, among them new ones."""
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
        """Returns a leaf that belongs into a block, or None.

        It does not if the snapshot has its items by value anyway, if an item was changed below its
        top, or if one is from before a fork: the stream that was forked keeps blocks of those.
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
        # An item without a source may come from any event of the stream itself, so the stream's
        # first revision is taken as the least.
        revision = min(sources)[0] if len(sources) == len(items) else self._first
        if not is_long or absent > self._reads_left or min(sources)[0] < self._first:
            return None
        self._reads_left -= absent
        return _Leaf(start, node, revision, [_encoded(item) for item in items])

    def _block(self, leaves: list[_Leaf]) -> list[Span]:
        """Stores a block of some leaves and returns its span; nothing if it would be too small."""
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
