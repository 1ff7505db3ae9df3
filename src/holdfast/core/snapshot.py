"""A state as bytes (packing), and the snapshots that keep packed states.

The text is JSON, compressed as one zstd frame if that makes it smaller (a frame begins with 0x28,
the text with `{` or `[`). A node is a value as `codec` encodes it, references to blobs included,
unless items are left in their events; then it is an array that names its kind:

    ["map",{key:value,…},[[place,node],…]]     places of values that are nodes; 0 stands for them
    ["map",[[key,value],…],[[place,node],…]]   the same, if some key is not plain JSON text
    ["list",part,…]

A part of a list is one of

    [revision,step,rows,op]           the values of op `op` of `rows` events, `step` revisions apart
    [revision,step,rows,op,columns]   of each event the values of `columns` ops, from `op` on
    {"values":[value,…]}              items by value
    {"nodes":[node,…]}                items that are nodes

So a conversation of 100,000 turns takes a few dozen bytes, and a turn is read from its event when
it is first looked at. Short items (64 bytes or less) are kept by value, unless a longer neighbour
in the same 32 is left in its event: then they join its run.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate, repeat
from typing import Any, NamedTuple, Protocol, cast

import msgspec
from msgspec import Raw, Struct

from holdfast.backends.protocol import Objects
from holdfast.core import codec
from holdfast.core.codec import Encoded
from holdfast.core.collector import Uncollected
from holdfast.core.event import BlobReader, StreamState
from holdfast.core.item_copies import (
    NAME,
    Block,
    ItemCopies,
    Path,
    Span,
    Table,
    folder_of,
    from_table,
    to_table,
)
from holdfast.core.layers import Layer, register_layer
from holdfast.core.sealing import Sealing
from holdfast.core.tree import Blobs, Ends, Lazy, List, Map, decode_ends, encode_ends, thaw
from holdfast.core.tree.frozen import SHORT, enter, unread_level
from holdfast.core.tree.vector import BITS, Node, Source, Vector, from_source
from holdfast.errors import CorruptError, ErasedError, HoldfastError

_logger = logging.getLogger("holdfast.log")

Fetch = Callable[[int, int], bytes]


class Values(Protocol):
    """Reads the values that a snapshot leaves in their events."""

    def encoded(self, revision: int, op: int) -> bytes:
        """Returns the value of an op as it is encoded in its event."""
        ...

    def plain(self, run: ItemRange) -> list[Any]:
        """Returns plain copies of the values of a run of ops."""
        ...


register_layer(Layer(name="snapshots"))

_SIZE_MAX = 1 << 30
_COMPRESS_MIN = 512
_PLAIN = frozenset({int, bool, type(None)})
_is_finite = math.isfinite

_raw_map = msgspec.json.Decoder(dict[str, Raw])
_raw_list = msgspec.json.Decoder(list[Raw])
_raw_pairs = msgspec.json.Decoder(list[tuple[Raw, Raw]])
_places = msgspec.json.Decoder(list[tuple[int, Raw]])

_ENDS = b'["ends",'
"""How the text begins if some values end: then come a list of ends, and the state as usual.

A program that does not know ends finds a node of an unknown kind, and discards the snapshot.
"""


class ItemRange(NamedTuple):
    """Items that are values of ops: `columns` of them in each of `rows` events."""

    revision: int
    step: int  # 0 if there is one row
    rows: int
    op: int
    columns: int


FetchPlain = Callable[[ItemRange], list[Any]]
FetchCopies = Callable[[Span], list[Any] | None]


def pack(root: Map, ends: Ends | None = None) -> bytes:
    """Returns the state as bytes.

    Each list node remembers what it packs to, so packing a list again after more appends costs
    about as much as the new part.
    """
    text = bytes(_pack_map(root).raw)
    if ends:
        text = b"%b%b,%b]" % (_ENDS, encode_ends(ends), text)
    if _COMPRESS_MIN <= len(text) <= _SIZE_MAX:
        small = codec.compress(text)
        if len(small) < len(text) * 9 // 10:
            return small
    return text


def unpack(
    data: bytes,
    *,
    fetch: Fetch,
    blobs: Blobs | None,
    plain: FetchPlain | None = None,
    spans: dict[Path, list[Span]] | None = None,
    copies: FetchCopies | None = None,
) -> Map:
    """Returns the state of packed bytes, or raises CorruptError.

    `fetch(revision, op)` returns the encoded value of an op, `blobs` the bytes of a blob; both are
    called when a value is first looked at. `plain` returns plain copies of many values at once.
    `spans` says which items of lists are in blocks too, and `copies` returns the items of a block.
    """
    try:
        with Uncollected():
            root = _Unpacking(fetch, blobs, plain, spans or {}, copies).root(_text(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"snapshot is not a packed state: {error}") from error
    return root


def _text(data: bytes) -> bytes:
    return data if data[:1] in (b"{", b"[") else codec.decompress(data, size_max=_SIZE_MAX)


def _without_ends(data: bytes) -> tuple[bytes, Ends | None]:
    """Splits a packed state into the state and its ends, or raises CorruptError."""
    text = _text(data)
    if not text.startswith(_ENDS):
        return text, None
    try:
        _, ends, rest = _raw_list.decode(text)
        return bytes(rest), decode_ends(bytes(ends))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptError(f"snapshot has ends that cannot be read: {error}") from error


class _Packed:
    """The text of one value or one node; `is_node` says which."""

    __slots__ = ("is_node", "raw")

    def __init__(self, raw: Encoded, *, is_node: bool = False) -> None:
        self.raw = raw if type(raw) is Raw else Raw(raw)
        self.is_node = is_node


def _pack(kept: Any) -> Any:
    """Returns a scalar that JSON has, or the _Packed of anything else."""
    kind = cast("type[Any]", type(kept))
    if kind in _PLAIN or (kind is str and kept.isascii()) or (kind is float and _is_finite(kept)):
        return kept
    if kind is Lazy:
        return _Packed(kept.stored())
    if kind is Map:
        return _pack_map(kept)
    if kind is List:
        return _pack_list(kept.vector())
    return _Packed(codec.encode(kept))


def _pack_map(value: Map) -> _Packed:
    table: dict[str, Any] = {}
    nodes: list[tuple[int, Raw]] = []
    for place, (key, kept) in enumerate(value._kept()):
        packed = _pack(kept)
        if type(packed) is _Packed:
            if packed.is_node:
                nodes.append((place, packed.raw))
            packed = 0 if packed.is_node else packed.raw
        table[key] = packed
    # All values are encoded already, or ASCII: only a key can still have a lone surrogate.
    try:
        if nodes:
            return _Packed(codec.encode_plain(("map", table, nodes)), is_node=True)
        if len(table) != 1 or next(iter(table))[:1] != "$":
            return _Packed(codec.encode_plain(table))
    except UnicodeEncodeError:
        if nodes:
            return _Packed(codec.encode_plain(("map", _pairs(table), nodes)), is_node=True)
    return _Packed(codec.encode_plain({"$pairs": _pairs(table)}))


def _pairs(table: dict[str, Any]) -> list[tuple[Raw, Any]]:
    return [(Raw(codec.encode(key)), item) for key, item in table.items()]


def _pack_list(items: Vector) -> _Packed:
    parts: list[Any] = []
    if items.count > len(items.tail):
        parts.extend(_node_parts(items.root, items.shift))
    _join_all(parts, _leaf_parts(items.tail))
    packed: list[Any] = ["list"]
    group: list[Any] = []
    group_name = ""
    is_node = False
    for part in parts:
        if type(part) is ItemRange:
            packed.append(part if part.columns > 1 else part[:4])
            group_name = ""
            is_node = True
            continue
        name = "nodes" if type(part) is _Packed and part.is_node else "values"
        if name != group_name:
            group = []
            group_name = name
            packed.append({name: group})
            is_node = is_node or name == "nodes"
        group.append(part.raw if type(part) is _Packed else part)
    if not is_node:
        return _Packed(codec.encode_plain(group))
    return _Packed(codec.encode_plain(packed), is_node=True)


def _node_parts(node: Node, shift: int) -> Sequence[Any]:
    """Returns what the items below a node pack to, runs joined."""
    parts: Any = node.memo
    if parts is not None:
        return parts
    if node.content is None and isinstance(node.source, _Parts):
        parts = node.source.between(node.start, node.stop)
    elif not shift:
        parts = _leaf_parts(node.load(0))
    else:
        parts = []
        for child in node.load(shift):
            _join_all(parts, _node_parts(child, shift - BITS))
    # Parts without a run are not remembered: items by value must be written out each time anyway.
    if any(type(part) is ItemRange for part in parts):
        node.memo = tuple(parts)
    return parts


def _leaf_parts(items: tuple[Any, ...]) -> list[Any]:
    if not any(type(item) is Lazy and _is_long(item) for item in items):
        return [_pack(item) for item in items]
    sources = [item.source if type(item) is Lazy else None for item in items]
    if None not in sources and len(sources) > 1:
        (revision, op), (second, _) = cast("list[tuple[int, int]]", sources[:2])
        step = second - revision
        if step > 0:
            revisions = range(revision, revision + step * len(items), step)
            if sources == list(zip(revisions, repeat(op))):
                return [ItemRange(revision, step, len(items), op, 1)]
    parts: list[Any] = []
    for item, source in zip(items, sources, strict=True):
        _join(parts, _pack(item) if source is None else ItemRange(source[0], 0, 1, source[1], 1))
    return parts


def _is_long(item: Lazy) -> bool:
    return item.source is not None and (item.raw is None or len(item.raw) > SHORT)


def _join(parts: list[Any], part: Any) -> None:
    """Adds a part, and merges it with those before it while they go on in equal steps."""
    parts.append(part)
    while len(parts) > 1 and type(parts[-1]) is ItemRange and type(parts[-2]) is ItemRange:
        joined = _joined(parts[-2], parts[-1])
        if joined is None:
            return
        parts[-2:] = [joined]


def _join_all(parts: list[Any], more: Sequence[Any]) -> None:
    """Adds parts that are merged among themselves already."""
    for index, part in enumerate(more):
        before = len(parts)
        _join(parts, part)
        if len(parts) > before:
            parts.extend(more[index + 1 :])
            return


def _joined(first: ItemRange, then: ItemRange) -> ItemRange | None:
    revision, step, rows, op, columns = first
    if rows == then.rows == 1 and revision == then.revision and op + columns == then.op:
        return ItemRange(revision, 0, 1, op, columns + then.columns)
    if (op, columns) != (then.op, then.columns):
        return None
    stride = then.revision - revision - step * (rows - 1)
    if stride <= 0 or (rows > 1 and stride != step) or (then.rows > 1 and stride != then.step):
        return None
    return ItemRange(revision, stride, rows + then.rows, op, columns)


def _run_slice(run: ItemRange, start: int, stop: int) -> Iterator[ItemRange]:
    """Yields the runs that cover items[start:stop] of a run."""
    revision, step, _, op, columns = run
    while start < stop:
        row, column = divmod(start, columns)
        rows = (stop - start) // columns
        if column or not rows:
            width = min(columns - column, stop - start)
            yield ItemRange(revision + step * row, 0, 1, op + column, width)
            start += width
        else:
            yield ItemRange(revision + step * row, step if rows > 1 else 0, rows, op, columns)
            start += rows * columns


class _Parts:
    """The parts of a packed list, as the source of a vector's nodes."""

    __slots__ = ("_blobs", "_copies", "_fetch", "_parts", "_plain", "_spans", "_starts", "count")

    def __init__(
        self,
        parts: list[ItemRange | list[Any]],
        fetch: Fetch,
        blobs: Blobs | None,
        plain: FetchPlain | None,
        spans: list[Span],
        copies: FetchCopies | None,
    ) -> None:
        sizes = [
            part.rows * part.columns if type(part) is ItemRange else len(part) for part in parts
        ]
        self._starts = list(accumulate(sizes, initial=0))
        self.count = self._starts[-1]
        self._parts = parts
        self._fetch = fetch
        self._blobs = blobs
        self._plain = plain
        self._spans = spans if copies is not None else []
        self._copies = copies

    def items(self, start: int, stop: int) -> tuple[Any, ...]:
        found: list[Any] = []
        for part in self._slices(start, stop):
            found += self._kept(part)
        return tuple(found)

    def _kept(self, part: ItemRange | list[Any]) -> list[Any]:
        """Returns the items of a part as a tree keeps them: values, or references to events."""
        if type(part) is not ItemRange:
            return cast("list[Any]", part)
        found: list[Any] = []
        for row in range(part.rows):
            revision = part.revision + part.step * row
            for op in range(part.op, part.op + part.columns):
                load = partial(self._fetch, revision, op)
                found.append(Lazy(None, (revision, op), load, self._blobs))
        return found

    def plain(self, start: int, stop: int) -> list[Any]:
        found: list[Any] = []
        place = start
        for span in self.spans(start, stop):
            assert self._copies is not None, "BUG: blocks, and nobody to read them"
            items = self._copies(span)
            if items is not None:
                found += self._from_events(place, span.start)
                found += items
                place = span.stop
        found += self._from_events(place, stop)
        return found

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        for one in self._spans:
            if (part := one.between(start, stop)) is not None:
                yield part

    def _from_events(self, start: int, stop: int) -> list[Any]:
        found: list[Any] = []
        for part in self._slices(start, stop):
            if self._plain is not None and type(part) is ItemRange:
                found += self._plain(part)
            else:
                found += map(thaw, self._kept(part))
        return found

    def is_same(self, other: Source, start: int, stop: int) -> bool:
        assert isinstance(other, _Parts), "BUG: lists are unread in snapshots only"
        mine, theirs = self.between(start, stop), other.between(start, stop)
        return mine == theirs and all(type(part) is ItemRange for part in mine)

    def between(self, start: int, stop: int) -> list[Any]:
        """Packs items[start:stop] without making references to events into items first."""
        parts: list[Any] = []
        for part in self._slices(start, stop):
            for one in (part,) if type(part) is ItemRange else map(_pack, part):
                _join(parts, one)
        return parts

    def _slices(self, start: int, stop: int) -> Iterator[ItemRange | list[Any]]:
        place = bisect_right(self._starts, start) - 1
        while start < stop:
            part, first, end = self._parts[place], self._starts[place], self._starts[place + 1]
            if isinstance(part, ItemRange):
                yield from _run_slice(part, start - first, min(stop, end) - first)
            else:
                yield part[start - first : stop - first]
            start = end
            place += 1


class _Unpacking:
    """One pass over a packed state that makes it a tree."""

    def __init__(
        self,
        fetch: Fetch,
        blobs: Blobs | None,
        plain: FetchPlain | None,
        spans: dict[Path, list[Span]],
        copies: FetchCopies | None,
    ) -> None:
        self._fetch = fetch
        self._blobs = blobs
        self._plain = plain
        self._spans = spans
        self._copies = copies

    def root(self, text: bytes) -> Map:
        root = unread_level(text, self._blobs) if text[:1] == b"{" else self._node(text, ())
        if type(root) is not Map:
            raise CorruptError("snapshot is not a packed state: it is no mapping")
        return root

    def _node(self, text: Encoded, path: Path | None) -> Any:
        """Returns a map or a list; only one that is reached through maps alone has a path."""
        kind, *fields = _raw_list.decode(text) or [Raw(b"")]
        name = bytes(kind)
        if name == b'"list"':
            return self._list(fields, path)
        if name == b'"map"' and len(fields) == 2:
            entries, nodes = fields
            return self._map(entries, nodes, path)
        raise CorruptError(f"snapshot has a node of unknown kind: {name[:40]!r}")

    def _map(self, entries: Raw, nodes: Raw, path: Path | None) -> Map:
        if bytes(entries)[:1] == b"{":
            pairs: Iterable[tuple[str, Raw]] = _raw_map.decode(entries).items()
        else:
            pairs = [(codec.decode(key), item) for key, item in _raw_pairs.decode(entries)]
        table = {key: enter(item, None, self._blobs) for key, item in pairs}
        keys = list(table)
        for place, node in _places.decode(nodes):
            if not 0 <= place < len(keys):
                raise CorruptError(f"snapshot has a node at place {place} of {len(keys)}")
            table[keys[place]] = self._node(node, None if path is None else (*path, keys[place]))
        return Map(table)

    def _list(self, fields: list[Raw], path: Path | None) -> List:
        parts = [self._part(field) for field in fields]
        spans = [] if path is None else self._spans.get(path, [])
        source = _Parts(parts, self._fetch, self._blobs, self._plain, spans, self._copies)
        if spans and spans[-1].stop > source.count:
            raise CorruptError(f"snapshot has blocks for {spans[-1].stop} of {source.count} items")
        return List(from_source(source, source.count))

    def _part(self, field: Raw) -> ItemRange | list[Any]:
        if bytes(field)[:1] != b"{":
            return _run(msgspec.json.decode(field, type=list[int]))
        for name, items in _raw_map.decode(field).items():
            if name == "values":
                return [enter(item, None, self._blobs) for item in _raw_list.decode(items)]
            if name == "nodes":
                return [self._node(node, None) for node in _raw_list.decode(items)]
        raise CorruptError(f"snapshot has a list with an unknown part: {bytes(field)[:40]!r}")


def _run(numbers: list[int]) -> ItemRange:
    if len(numbers) == 4:
        numbers.append(1)
    if len(numbers) == 5:
        run = ItemRange(*numbers)
        is_sound = run.revision >= 0 and run.rows >= 1 and run.op >= 0 and run.columns >= 1
        if is_sound and (run.step == 0 if run.rows == 1 else run.step >= 1):
            return run
    raise CorruptError(f"snapshot has a malformed run of items: {numbers!r:.80}")


# --- snapshots ------------------------------------------------------------------------------------
#
# Which folds are kept as snapshots, when, and what makes one trusted when it is read.
#
# A snapshot is an object named `<stream digest>/<revision>`: sha256 of the rest (32 bytes), a JSON
# line with stream, revision, link, time, parent, closing and the version of its schema, then the
# packed state as it is stored: readers upgrade it to the version of their program. A snapshot is a
# hint. One that fails its digest, or whose link the log does not have at that revision, is
# reported, deleted and not used. The JSON line ends with the blocks of items of its lists, if there
# are any (`item_copies.py`).
#
# A snapshot is due when the log has grown by as many bytes as the last one took, and by at least
# 256 KiB. So all snapshots together cost at most about what the log costs, and no state is further
# than that from a snapshot at or below it.


GROWING_MAX = 1 << 17  # streams whose growth is counted
GROWTH_BYTES_MIN = 256 * 1024
CLOSE_BYTES_MIN = 16 * 1024
EVENT_OVERHEAD_BYTES = 200
REPLAYED_EVENTS_MIN = 4096
_OF_STREAM = re.compile(f"[0-9a-f]{{32}}/([0-9]{{16}}|{NAME.pattern})")
_DIGEST_BYTES = 32


class _Header(Struct, array_like=True):
    version: int
    stream: str
    revision: int
    link: str
    time: int
    parent: str | None
    closed_at: int
    dropped: bool
    expires_us: int = 0
    removed_at: int = 0
    schema: int = 0


class _SealedHeader(_Header, array_like=True):
    """A header with a subject, for which the rest is sealed, or with an end that slides."""

    subject: str | None = None
    slides_us: int = 0


class _CopiesHeader(_SealedHeader, array_like=True):
    """A header with the blocks of items of its lists; older readers ignore that field."""

    copies: Table = []


class _Growth(Struct, gc=False):
    bytes: int
    due_at_bytes: int


class Snapshots:
    """The snapshots of one store."""

    def __init__(
        self,
        objects_of: Callable[[str], Objects],
        *,
        link_of: Callable[[str, int], bytes | None],
        values_of: Callable[[str], Values],
        first_of: Callable[[str], int],
        is_current: Callable[[str, StreamState, bool], bool],
        blobs: BlobReader,
        sealing: Sealing,
        report: Callable[[str], None],
    ) -> None:
        self._objects_of = objects_of
        self._link_of = link_of
        self._is_current = is_current
        self.copies = ItemCopies(objects_of, first_of=first_of, blobs=blobs, report=report)
        self._values_of = values_of
        self._blobs = blobs
        self._sealing = sealing
        self._report = report
        self.growth: OrderedDict[str, _Growth] = OrderedDict()
        """By stream, how many bytes were added since its newest snapshot, and when one is due."""

    def grown(self, stream: str, state: StreamState, size: int) -> None:
        """Notes that the stream grew by one commit, and writes a snapshot if one is due."""
        growth = self.growth.get(stream) or self._begin(stream)
        growth.bytes += size
        if growth.bytes >= growth.due_at_bytes:
            self._write(stream, state, growth)

    def unfolded(self, stream: str, size: int) -> None:
        """Notes that the stream grew by a commit, of which the state is not known here."""
        growth = self.growth.get(stream) or self._begin(stream)
        growth.bytes += size

    def replayed(self, stream: str, events: int) -> None:
        """Notes that so many events were folded for one state: worth a snapshot at close.

        A process that only appends events that change no state folds nothing, and so writes no
        snapshots. The first process that must read such a long stream writes one for all others.
        """
        if events >= REPLAYED_EVENTS_MIN:
            growth = self.growth.get(stream) or self._begin(stream)
            growth.bytes += events * EVENT_OVERHEAD_BYTES

    def _begin(self, stream: str) -> _Growth:
        if len(self.growth) >= GROWING_MAX:
            self.growth.popitem(last=False)
        return self.growth.setdefault(stream, _Growth(0, GROWTH_BYTES_MIN))

    def flush(self, folds: dict[str, StreamState]) -> None:
        """Writes snapshots at a clean close, so that the next process need not fold again."""
        for stream, growth in self.growth.items():
            state = folds.get(stream)
            if state is not None and growth.bytes >= CLOSE_BYTES_MIN:
                self._write(stream, state, growth)

    def revisions(self, stream: str) -> list[int]:
        """Returns the revisions of a stream that have a snapshot, oldest first."""
        prefix = folder_of(stream)
        names = self._objects_of(stream).names("snapshot", prefix=prefix)
        # Other names are skipped: a block of items, or damage. No snapshot is needed to read.
        return sorted(int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdecimal())

    def having(self, streams: Iterable[str]) -> list[str]:
        """Returns those of the streams that have a snapshot, from one listing for all of them.

        Where the listing fails, their streams count as having one: reading each shows the error.
        """
        listed: dict[int, set[str] | None] = {}
        found: list[str] = []
        for stream in streams:
            objects = self._objects_of(stream)
            if id(objects) not in listed:
                try:
                    names = objects.names("snapshot")
                    listed[id(objects)] = {name.partition("/")[0] + "/" for name in names}
                except HoldfastError as error:
                    _logger.debug("snapshots are looked for stream by stream: %s", error)
                    listed[id(objects)] = None
            prefixes = listed[id(objects)]
            if prefixes is None or folder_of(stream) in prefixes:
                found.append(stream)
        return found

    def nearest(self, stream: str, revision: int) -> StreamState | None:
        """Returns the newest sound snapshot at or below the revision, None if there is none.

        Damaged ones are reported and deleted on the way.
        """
        for candidate in reversed(self.revisions(stream)):
            if candidate > revision:
                continue
            try:
                return self.read(stream, candidate)
            except CorruptError as error:
                self._report(f"{error.message}; it was discarded, the log has everything")
                self._discard(stream, candidate)
        return None

    def read(self, stream: str, revision: int) -> StreamState:
        """Returns one snapshot, or raises CorruptError if it cannot be trusted."""
        header, packed = self._verified(stream, revision)
        if header.subject is not None:
            try:
                packed = self._sealing.of(header.subject).open(packed)
            except ErasedError as error:
                what = _called(stream, revision)
                raise CorruptError(f"{what} is of a subject that was erased") from error
        packed, ends = _without_ends(packed)
        values = self._values_of(stream)
        root = unpack(
            packed,
            fetch=values.encoded,
            blobs=self._blobs,
            plain=values.plain,
            spans=from_table(header.copies),
            copies=self.copies.plain,
        )
        return StreamState(
            revision,
            bytes.fromhex(header.link),
            header.time,
            root,
            header.parent,
            header.closed_at,
            header.dropped,
            header.expires_us,
            header.removed_at,
            header.schema,
            header.subject,
            header.slides_us,
            ends,
        )

    def _verified(self, stream: str, revision: int) -> tuple[_CopiesHeader, bytes]:
        """Returns header and packed state of a snapshot whose digest and link are right."""
        data = self._objects_of(stream).get("snapshot", _name(stream, revision))
        what = _called(stream, revision)
        if data is None or sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            raise CorruptError(f"{what} fails its digest", stream=stream, revision=revision)
        end = data.index(b"\n", _DIGEST_BYTES)
        header = codec.decode_as(data[_DIGEST_BYTES:end], _CopiesHeader)
        link = bytes.fromhex(header.link)
        named = (header.stream, header.revision)
        if named != (stream, revision) or self._link_of(stream, revision) != link:
            raise CorruptError(f"{what} disagrees with the log", stream=stream, revision=revision)
        return header, data[end + 1 :]

    def verify(self, stream: str) -> None:
        """Raises CorruptError if a snapshot of a stream, or a block that one lists, is damaged."""
        known: set[Block] = set()
        for revision in self.revisions(stream):
            self.read(stream, revision)
            header, _ = self._verified(stream, revision)
            for spans in from_table(header.copies).values():
                for block in {one.block for one in spans} - known:
                    self.copies.read(block)
                    known.add(block)

    def _write(self, stream: str, state: StreamState, growth: _Growth) -> None:
        size = 0
        try:
            # Only the newest state may be written: of an older one the events may have been let go
            # of, and the snapshot would bring their data back (0071). If another writer was faster,
            # the next commit tries again.
            if not self._is_current(stream, state, True):
                return
            packed = pack(state.root, state.ends)
            copies: Table = []
            made: list[Block] = []
            if state.subject is not None:
                packed = self._sealing.of(state.subject).seal(packed)
            else:
                spans, made = self.copies.write(stream, state.root, state.ends_us)
                copies = to_table(spans)
            rest = codec.encode_plain(_header(stream, state, copies)) + b"\n" + packed
            name = _name(stream, state.revision)
            data = sha256(rest).digest() + rest
            self._objects_of(stream).put("snapshot", name, data, expires_us=state.ends_us)
            size = len(data)
            # Asked again after the write: events may have been let go of in between. A process that
            # lets go of them later finds this snapshot and deletes it.
            if not self._is_current(stream, state, False):
                self._objects_of(stream).delete("snapshot", name)
                for block in made:
                    self.copies.delete(block)
        except HoldfastError as error:
            # The commit is durable already; a snapshot that cannot be written (disk full, a store
            # that is open read-only) must not make it fail. The next try comes when as much has
            # been written again.
            self._report(f'snapshot of "{stream}" was not written: {error}')
        growth.bytes = 0
        growth.due_at_bytes = max(GROWTH_BYTES_MIN, size)

    def forget_derived(self, stream: str) -> None:
        """Deletes what other layers derived from events, of all streams in this one's backend.

        Their names do not say which events they were made of; each is made again when it is used.
        """
        objects = self._objects_of(stream)
        for name in objects.names("snapshot"):
            if _OF_STREAM.fullmatch(name) is None:
                objects.delete("snapshot", name)

    def forget(self, stream: str, until: int) -> None:
        """Deletes the snapshots up to a revision, because their events were let go of."""
        for revision in self.revisions(stream):
            if revision <= until:
                self._objects_of(stream).delete("snapshot", _name(stream, revision))
        self.copies.forget(stream, until)

    def _discard(self, stream: str, revision: int) -> None:
        try:
            self._objects_of(stream).delete("snapshot", _name(stream, revision))
        except HoldfastError as error:
            self._report(f"the damaged snapshot could not be deleted: {error}")


def _header(stream: str, state: StreamState, copies: Table) -> _Header:
    """Returns the shortest kind of header that fits a state."""
    fields = (
        1,
        stream,
        state.revision,
        state.link.hex(),
        state.time,
        state.parent,
        state.closed_at,
        state.dropped,
        state.expires_us,
        state.removed_at,
        state.version,
    )
    if copies:
        return _CopiesHeader(*fields, state.subject, state.slides_us, copies)
    if state.subject is not None or state.slides_us:
        return _SealedHeader(*fields, state.subject, state.slides_us)
    return _Header(*fields)


def _called(stream: str, revision: int) -> str:
    return f'snapshot of "{stream}" at revision {revision}'


def _name(stream: str, revision: int) -> str:
    return f"{folder_of(stream)}{revision:016d}"
