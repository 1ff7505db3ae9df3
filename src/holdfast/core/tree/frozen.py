"""Frozen state: Map and List, equal to dict and list, sharing structure between versions.

A value enters as its encoded bytes and is decoded on first access (Lazy). The Lazy stays in the
tree and keeps the decoded value too: snapshots and diffs copy its bytes, or name its event, and
never encode again. Readers take no lock: two threads that decode the same bytes store equal values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NoReturn, cast, overload

import msgspec
from msgspec import UNSET, Raw, Struct

from holdfast.core import codec
from holdfast.core.codec import Encoded, Thawable
from holdfast.core.tree import trie, vector
from holdfast.core.tree.trie import Trie
from holdfast.core.tree.vector import Vector
from holdfast.errors import CorruptError, UsageError

# --- missing --------------------------------------------------------------------------------------
#
# Stands for an absent value in places where None could be a value.


class Missing:
    """The type of MISSING, which stands for the absent side of a change."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()


Blobs = Callable[[str, int], bytes]

# Copying a dict of this many keys takes about a microsecond and 5 KB; wider levels become tries.
WIDE = 128
# A scalar of at most this many bytes is decoded at once: a Lazy would be larger.
SHORT = 64
# A container of more bytes is decoded level by level, on access.
_WHOLE_MAX = 4096
# What decoding malformed JSON may raise. This package writes none, but damage or others may.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_SHOWN_MAX = 50

_raw_map = msgspec.json.Decoder(dict[str, Raw])
_raw_list = msgspec.json.Decoder(list[Raw])
_scalar = msgspec.json.Decoder().decode
_CONTAINERS = frozenset({b"{", b"["})
_new = object.__new__
_SEALED_BYTES = len(codec.SEALED_VALUE)


class Lazy(Struct, eq=False):
    """An encoded value in the tree, decoded on first access.

    `raw` is the value as stored in its event, perhaps a reference to a blob. Without `raw`, `fetch`
    reads it. `source` is the (revision, op index) of the op whose whole value this is.
    """

    raw: Encoded | None
    source: tuple[int, int] | None = None
    fetch: Callable[[], bytes] | None = None
    blobs: Blobs | None = None
    value: Any = UNSET

    def stored(self) -> Encoded:
        """Returns the encoded value, as stored in its event."""
        if self.raw is not None:
            return self.raw
        assert self.fetch is not None, "BUG: a lazy value has neither bytes nor a way to get them"
        return self.fetch()

    @property
    def is_sealed(self) -> bool:
        """Whether it is a sealed value: an opaque leaf that no path and no fold enters."""
        return self.value is UNSET and codec.is_sealed_value(self.stored())

    def force(self) -> Any:
        """Returns the frozen value. A sealed one is opened each time and not kept in memory."""
        value = self.value
        if value is UNSET:
            raw = self.raw if self.raw is not None else self.stored()
            reference = codec.parse_blob_ref(raw)
            is_sealed = bytes(memoryview(raw)[:_SEALED_BYTES]) == codec.SEALED_VALUE
            if is_sealed:
                reference = codec.parse_reference(raw)
            if reference is not None:
                if self.blobs is None:
                    raise UsageError(
                        f"blob {reference[0]:.80} cannot be loaded: this state was made without "
                        "blobs"
                    )
                if is_sealed:
                    if codec.is_kept_closed():
                        return codec.SealedLeaf(bytes(raw))
                    return _of_seal(_freeze_whole(self.blobs(*reference), self.blobs), bytes(raw))
                raw = self.blobs(*reference)
            value = self.value = _freeze_encoded(raw, self.blobs)
        return value


def _refuse(what: str) -> NoReturn:
    raise UsageError(
        f"state is frozen and has no {what}: a state that was handed out never changes",
        hint="change it in a draft (with scope.edit() as draft: …), or copy it with to_dict() "
        "or to_list()",
    )


class _Opened(Thawable):
    """A container that may come from a sealed value, and then knows it."""

    __slots__ = ("_seal",)
    _seal: codec.SealedLeaf | None
    """The sealed value that it is as a whole; None if it is a part of one. Mostly not set."""

    def closed(self) -> Any:
        """Returns it as it is stored: sealed, if it was."""
        try:
            seal = self._seal
        except AttributeError:  # that of nearly every container
            return super().closed()
        if seal is None and codec.is_for_subject():
            return super().closed()
        if seal is None:
            raise UsageError(
                "this is a part of a value that is sealed for a subject: stored elsewhere it would "
                "be in clear",
                hint="give it subject=…, or store the whole value, which keeps its seal",
            )
        return seal


class Map(_Opened, Mapping[str, Any]):
    """A frozen mapping, equal to a dict with equal content; keys in insertion order."""

    __slots__ = ("_entries",)
    _entries: dict[str, Any] | Trie | UnreadLevel

    def __init__(self, entries: dict[str, Any] | Trie | UnreadLevel | None = None) -> None:
        """Takes over `entries`, whose values are frozen; use `freeze` for anything else."""
        self._entries = {} if entries is None else entries

    @property
    def is_narrow(self) -> bool:
        """Whether a walk over it costs little: it has few keys, and all values are in the tree."""
        return isinstance(self._entries, dict)

    def __getitem__(self, key: str) -> Any:
        entries = self._entries
        value = (entries if isinstance(entries, dict) else entries.leaf(key))[key]
        return value.force() if type(value) is Lazy else value

    def get(self, key: str, default: Any = None) -> Any:
        value = self._entries.get(key, default)
        return value.force() if type(value) is Lazy else value

    def _peek(self, key: str) -> Any:
        """Returns the value as it is kept, perhaps a Lazy, or MISSING."""
        return self._entries.get(key, MISSING)

    def __contains__(self, key: object) -> bool:
        return self._entries.get(cast("str", key), MISSING) is not MISSING

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        entries = self._entries
        return len(entries) if isinstance(entries, dict) else entries.count

    def _kept(self) -> Iterable[tuple[str, Any]]:
        """Returns keys and values as they are kept, perhaps Lazy."""
        return self._entries.items()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Map):
            if len(self) != len(other):
                return False
            return all(is_equal(value, other._peek(key)) for key, value in self._kept())
        if isinstance(other, dict):
            table = cast("dict[str, Any]", other)
            if len(self) != len(table):
                return False
            return all(key in table and is_equal(value, table[key]) for key, value in self._kept())
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Map({_show(self)})"

    def __copy__(self) -> Map:
        return self

    def __deepcopy__(self, memo: object) -> Map:
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns a deep, plain, mutable copy."""
        entries = self._entries
        if type(entries) is UnreadLevel:
            return entries.plain()
        return {key: thaw(value) for key, value in entries.items()}

    def thaw(self) -> dict[str, Any]:
        return self.to_dict()

    def _with_key(self, key: str, value: Any) -> Map:
        """Returns the map with one key set; a new key comes last."""
        entries = self._entries
        if isinstance(entries, dict):
            if len(entries) <= WIDE:
                entries = entries.copy()
                entries[key] = value
                changed = _new(Map)
                changed._entries = entries
                return changed
            entries = self._widen(entries)
        changed = _new(Map)
        changed._entries = entries.set(key, value)
        return changed

    def _with_keys(self, items: dict[str, Any]) -> Map:
        """Returns the map with several keys set."""
        entries = self._entries
        if isinstance(entries, dict):
            if len(entries) <= WIDE:
                return Map(entries | items)
            entries = self._widen(entries)
        wide = entries
        for key, value in items.items():
            wide = wide.set(key, value)
        return Map(wide)

    def _without_key(self, key: str) -> Map:
        """Returns the map without a key, which must be in it."""
        entries = self._entries
        if isinstance(entries, dict):
            if len(entries) <= WIDE:
                entries = entries.copy()
                del entries[key]
                return Map(entries)
            entries = self._widen(entries)
        return Map(entries.delete(key))

    def _widen(self, entries: dict[str, Any]) -> Trie:
        # This map keeps the trie too: another change that starts from it need not build one again.
        # Readers in other threads see the dict or the trie, which are equal.
        wide = self._entries = trie.from_entries(entries)
        return wide

    def _wide(self) -> Trie | None:
        """Returns the trie of a wide level, if it has one yet."""
        entries = self._entries
        if isinstance(entries, dict):
            return None
        return entries.trie if isinstance(entries, UnreadLevel) else entries

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        _refuse("item assignment")

    def __delitem__(self, key: str) -> NoReturn:
        _refuse("item deletion")

    def __ior__(self, other: object) -> NoReturn:
        _refuse("|=")

    def update(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("update()")

    def setdefault(self, key: str, default: Any = None) -> NoReturn:
        _refuse("setdefault()")

    def pop(self, *args: Any) -> NoReturn:
        _refuse("pop()")

    def popitem(self) -> NoReturn:
        _refuse("popitem()")

    def clear(self) -> NoReturn:
        _refuse("clear()")


class List(_Opened, Sequence[Any]):
    """A frozen sequence, equal to a list with equal content."""

    __slots__ = ("_items",)
    _items: Vector

    def __init__(self, items: Vector = vector.EMPTY) -> None:
        """Takes over `items`, which are frozen; use `freeze` for anything else."""
        self._items = items

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        items = self._items
        if isinstance(index, slice):
            start, stop, step = index.indices(items.count)
            if step == 1:
                return [_forced(item) for item in items.slice(start, max(start, stop))]
            return [_forced(items.get(i)) for i in range(start, stop, step)]
        place = index + items.count if index < 0 else index
        if not 0 <= place < items.count:
            raise IndexError(f"list index {index} is out of range: the list has {items.count}")
        value = items.get(place)
        return value.force() if type(value) is Lazy else value

    def __len__(self) -> int:
        return self._items.count

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._items.chunks():
            for item in chunk:
                yield item.force() if type(item) is Lazy else item

    def vector(self) -> Vector:
        """Returns the items as they are kept, perhaps Lazy."""
        return self._items

    def _with_item(self, item: Any) -> List:
        """Returns the list with one more item."""
        changed = _new(List)
        changed._items = self._items.append(item)
        return changed

    def _with_items(self, items: Sequence[Any]) -> List:
        """Returns the list with these items appended."""
        return List(self._items.extend(items))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, List):
            if len(self) != len(other):
                return False
            a, b = self._items, other.vector()
            return all(is_equal(a.get(i), b.get(i)) for i in vector.changed_indexes(a, b))
        if isinstance(other, list):
            items = cast("list[Any]", other)
            if len(self) != len(items):
                return False
            return all(is_equal(a, b) for a, b in zip(self, items, strict=True))
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"List({_show(self)})"

    def __copy__(self) -> List:
        return self

    def __deepcopy__(self, memo: object) -> List:
        return self

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other] if isinstance(other, list | List) else NotImplemented

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def to_list(self) -> list[Any]:
        """Returns a deep, plain, mutable copy."""
        return self._items.plain(thaw)

    def thaw(self) -> list[Any]:
        return self.to_list()

    def __setitem__(self, index: int | slice, value: Any) -> NoReturn:
        _refuse("item assignment")

    def __delitem__(self, index: int | slice) -> NoReturn:
        _refuse("item deletion")

    def __iadd__(self, other: object) -> NoReturn:
        _refuse("+=")

    def append(self, item: Any) -> NoReturn:
        _refuse("append()")

    def extend(self, items: Iterable[Any]) -> NoReturn:
        _refuse("extend()")

    def insert(self, index: int, item: Any) -> NoReturn:
        _refuse("insert()")

    def pop(self, index: int = -1) -> NoReturn:
        _refuse("pop()")

    def remove(self, item: Any) -> NoReturn:
        _refuse("remove()")

    def clear(self) -> NoReturn:
        _refuse("clear()")

    def sort(self, **kwargs: Any) -> NoReturn:
        _refuse("sort()")

    def reverse(self) -> NoReturn:
        _refuse("reverse()")


class UnreadLevel:
    """A wide level of a snapshot, with the methods of a Trie; values that are not read stay bytes.

    A value is entered on first access, and every later access returns the same object. The first
    change makes a trie of the level, which is kept for the next change.
    """

    __slots__ = ("_blobs", "_entered", "_level", "count", "trie")

    def __init__(self, level: dict[str, Raw], blobs: Blobs | None) -> None:
        self._level = level
        self._blobs = blobs
        self._entered: dict[str, Any] = {}
        self.count = len(level)
        self.trie: Trie | None = None

    def get(self, key: str, default: Any) -> Any:
        kept = self._entered.get(key, MISSING)
        if kept is MISSING:
            raw = self._level.get(key)
            if raw is None:
                return default
            kept = self._entered.setdefault(key, enter(raw, None, self._blobs))
        return kept

    def leaf(self, key: str) -> dict[str, Any]:
        """Returns a dict with the entry of a key; an empty one if there is none."""
        kept = self.get(key, MISSING)
        return {} if kept is MISSING else {key: kept}

    def __iter__(self) -> Iterator[str]:
        return iter(self._level)

    def items(self) -> Iterator[tuple[str, Any]]:
        for key in self._level:
            yield key, self.get(key, MISSING)

    def plain(self) -> dict[str, Any]:
        """Returns a plain copy of the level; values that were not read are not kept by it."""
        entered, blobs = self._entered, self._blobs
        return {
            key: thaw(entered[key] if key in entered else enter(raw, None, blobs))
            for key, raw in self._level.items()
        }

    def set(self, key: str, value: Any) -> Trie:
        return self._widened().set(key, value)

    def delete(self, key: str) -> Trie:
        return self._widened().delete(key)

    def _widened(self) -> Trie:
        if self.trie is None:
            self.trie = trie.from_entries(dict(self.items()))
        return self.trie


EMPTY: Final = Map({})


def _forced(value: Any) -> Any:
    return value.force() if type(value) is Lazy else value


def thaw(value: Any) -> Any:
    """Returns a deep, plain, mutable copy of a kept value."""
    if type(value) is Lazy:
        if value.value is UNSET:
            # The frozen value was not needed yet, and a plain copy does not need it: it decodes the
            # bytes directly.
            data = bytes(value.stored())
            if not codec.may_have_tags(data):
                return codec.decode(data)
        value = value.force()
    return value.thaw() if isinstance(value, Map | List) else value


def is_equal(a: Any, b: Any) -> bool:
    """Returns whether two kept values are equal; equal bytes are not decoded."""
    if a is b:
        return True
    if type(a) is Lazy:
        if type(b) is Lazy and a.raw is not None and a.raw == b.raw and a.blobs == b.blobs:
            return True
        a = a.force()
    b = _forced(b)
    return a is b or bool(a == b)


def freeze(value: Any) -> Any:
    """Returns the frozen form of a plain value; they share no container."""
    kind = cast("type[Any]", type(value))
    if kind is dict:
        return Map({key: freeze(item) for key, item in value.items()})
    if kind is list or kind is tuple:
        return List(vector.from_items([freeze(item) for item in value]))
    return value


def enter(raw: Encoded, source: tuple[int, int] | None, blobs: Blobs | None) -> Any:
    """Returns what the tree keeps for an encoded value: a Lazy, or a short scalar itself."""
    if len(raw) > SHORT:
        return Lazy(raw, source, None, blobs)
    data = bytes(raw)
    if data[:1] in _CONTAINERS:
        return Lazy(raw, source, None, blobs)
    try:
        return _scalar(data)
    except MALFORMED as error:
        raise CorruptError(f"stored value is not the JSON of a value: {error}") from error


def enter_level(raw: Encoded, blobs: Blobs | None) -> dict[str, Any]:
    """Returns the entries of an encoded mapping, with each value entered on its own.

    Raises CorruptError if the bytes are not those of a mapping.
    """
    try:
        level = _raw_map.decode(raw)
    except MALFORMED as error:
        raise CorruptError(f"stored value is not a JSON object: {error}") from error
    if len(level) == 1 and next(iter(level))[:1] == "$":
        value = _freeze_encoded(raw, blobs)
        if not isinstance(value, Map):
            raise CorruptError("stored value is not a mapping")
        return dict(value._kept())
    return {key: enter(item, None, blobs) for key, item in level.items()}


def unread_level(raw: Encoded, blobs: Blobs | None) -> Map:
    """Returns the Map of an encoded mapping; the values of a wide one are entered on access."""
    try:
        level = _raw_map.decode(raw)
    except MALFORMED as error:
        raise CorruptError(f"stored value is not a JSON object: {error}") from error
    return Map(UnreadLevel(level, blobs) if len(level) > WIDE else enter_level(raw, blobs))


def _freeze_encoded(raw: Encoded, blobs: Blobs | None) -> Any:
    if len(raw) > _WHOLE_MAX:
        first = bytes(memoryview(raw)[:3])
        if first[:1] == b"[":
            return _enter_items(raw, blobs)
        if first[:1] == b"{" and first != b'{"$':
            return Map(enter_level(raw, blobs))
    try:
        return freeze(codec.decode(raw, blob=None if blobs is None else _blob_maker(blobs)))
    except RecursionError as error:
        # `encode` never writes a value that deep, but damage or other programs may.
        raise CorruptError("stored value is nested too deeply") from error


def _freeze_whole(raw: Encoded, blobs: Blobs | None) -> Any:
    """Returns the frozen value of encoded bytes, decoded at once to its last level."""
    return freeze(codec.decode(raw, blob=None if blobs is None else _blob_maker(blobs)))


def _of_seal(value: Any, raw: bytes) -> Any:
    """Returns the content of a sealed value; its containers know where they are from."""
    if isinstance(value, Map | List):
        for part in _containers(value):
            part._seal = None
        value._seal = codec.SealedLeaf(raw)
    return value


def _containers(value: Map | List) -> Iterator[Map | List]:
    yield value
    for item in value.values() if isinstance(value, Map) else value:
        if isinstance(item, Map | List):
            yield from _containers(item)


def _enter_items(raw: Encoded, blobs: Blobs | None) -> List:
    try:
        items = _raw_list.decode(raw)
    except MALFORMED as error:
        raise CorruptError(f"stored value is not a JSON array: {error}") from error
    return List(vector.from_items([enter(item, None, blobs) for item in items]))


def _blob_maker(blobs: Blobs) -> Callable[[str, int], Lazy]:
    return lambda id, size: Lazy(codec.reference(id, size), None, None, blobs)


def is_sealed(kept: Any) -> bool:
    """Returns whether a kept value is a sealed one."""
    return type(kept) is Lazy and kept.is_sealed


def dump(value: Any) -> Encoded:
    """Returns the encoded form of a kept value; a value that came as bytes keeps its bytes."""
    kind = cast("type[Any]", type(value))
    if kind is Lazy:
        return value.stored()
    if kind is Map:
        return dump_entries((key, dump(item)) for key, item in value._kept())
    if kind is List:
        items = (bytes(dump(item)) for chunk in value.vector().chunks() for item in chunk)
        return b"[" + b",".join(items) + b"]"
    return codec.encode(value)


def dump_entries(entries: Iterable[tuple[str, Encoded]]) -> bytes:
    """Returns the encoded form of a mapping whose values are encoded already."""
    pairs = [(codec.encode(key), bytes(item)) for key, item in entries]
    if (len(pairs) == 1 and pairs[0][0][:2] == b'"$') or any(key[:1] == b"{" for key, _ in pairs):
        return b'{"$pairs":[' + b",".join(b"[%s,%s]" % pair for pair in pairs) + b"]}"
    return b"{" + b",".join(b"%s:%s" % pair for pair in pairs) + b"}"


_SAMPLE = 8
_PLACE_BYTES = 120  # of an entry or item: its place in a table, its key, a small value


def footprint(value: Any, depth: int = 4) -> int:
    """Estimates how many bytes of memory a kept value takes, from a few samples at each level.

    It assumes that the rest of a level is like its beginning. Values without bytes in memory count
    as nothing.
    """
    kind = cast("type[Any]", type(value))
    if kind is Lazy:
        size = _PLACE_BYTES + (0 if value.raw is None else len(value.raw))
        return size if value.value is UNSET or not depth else size + footprint(value.value, depth)
    if kind is Map:
        return _sampled(len(value), (item for _, item in islice(value._kept(), _SAMPLE)), depth)
    if kind is List:
        items = value.vector()
        count = len(items.tail) if items.root.content is None else items.count
        return _sampled(count, items.tail[:_SAMPLE], depth)
    return len(value) if kind is str or kind is bytes else 0


def _sampled(count: int, samples: Iterable[Any], depth: int) -> int:
    sizes = [footprint(sample, depth - 1) for sample in samples] if depth else []
    return 2 * _PLACE_BYTES + count * (_PLACE_BYTES + sum(sizes) // (len(sizes) or 1))


def _show(value: Any) -> str:
    """Returns the repr of a kept value; a part that is not in memory is named, not loaded."""
    kind = cast("type[Any]", type(value))
    if kind is Lazy:
        if value.value is UNSET:
            if value.raw is None:
                return f"<value of revision {value.source[0] if value.source else '?'}, not loaded>"
            if value.is_sealed:
                return "<sealed value>"
            reference = codec.parse_blob_ref(value.raw)
            if reference is not None:
                return f"<blob of {reference[1]} bytes, not loaded>"
        return _show(value.force())
    if kind is Map:
        return "{" + ", ".join(_some(value, lambda pair: f"{pair[0]!r}: {_show(pair[1])}")) + "}"
    if kind is List:
        return "[" + ", ".join(_some(value, _show)) + "]"
    return repr(value)


def _some(value: Map | List, show: Callable[[Any], str]) -> list[str]:
    if isinstance(value, Map):
        kept: Iterator[Any] = iter(value._kept())
    else:
        kept = iter(value.vector().slice(0, min(len(value), _SHOWN_MAX)))
    shown = [show(item) for _, item in zip(range(_SHOWN_MAX), kept, strict=False)]
    if len(value) > _SHOWN_MAX:
        shown.append(f"… {len(value) - _SHOWN_MAX} more")
    return shown
