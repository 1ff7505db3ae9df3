"""Encodes values to bytes and decodes them: the value domain of decision 0003. Pure functions.

Encoded values are UTF-8 JSON without spaces or raw newlines, keys in insertion order. A value that
JSON does not have is an object with one key that begins with `$`:

    {"$float":"nan"}            nan, inf, -inf
    {"$bytes":"aGk="}           bytes, base64
    {"$datetime":"2026-11-16T00:14:47.123456+00:00"}
    {"$text":"\\"\\\\ud800\\""}     a str with lone surrogates, as its JSON text; an array of such
                                texts, to be joined, if a high one stands before a low one
    {"$pairs":[[key,value],…]}  a dict that would read as a tag, or has such a str among its keys
    {"$blob":{"id":"<64 hex digits>","size":123456}}   a large value, kept beside the log
    {"$sealed":{"of":"<subject>","data":"<base64>"}}    a value that the subject's key opens; `data`
                                is a `$blob` if it is large
    {"$erased":true}            what a sealed value reads as after its subject was erased

A dict of the user cannot look like one of these, because it is stored as `$pairs`.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, ItemsView, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from holdfast.backends.nesting import pieces
from holdfast.errors import CorruptError, UsageError, ValueDomainError, show_value, unloaded

SIZE_MAX = 64 << 20
"""The largest encoded value."""

DECOMPRESSED_MAX = 2 << 30
"""The largest size that `decompress` accepts, whatever the reference to the data says."""

DEPTH_MAX = 100
"""How many containers may be nested. The path of a value in its state counts, so no state is
deeper."""

_ALWAYS_PLAIN = frozenset({str, bool, type(None)})
_INT_END = 10**4000
_INT_START = -_INT_END  # computed once: to negate it for each int would double the check's cost
_DOLLAR, _BACKSLASH = b"$\\"
# At this level zstd takes about 2 ms per MiB; higher levels gain little on JSON.
_ZSTD_LEVEL = 3

Path = tuple[str | int, ...]
Encoded = bytes | msgspec.Raw


class Thawable(ABC):
    """A container of this package that is stored as a plain copy of itself."""

    __slots__ = ()

    @abstractmethod
    def thaw(self) -> Any:
        """Returns plain dicts and lists that share nothing mutable with this container."""

    def closed(self) -> Any:
        """Returns the same with the sealed values in it still sealed: the form to be stored.

        So a container keeps its seals wherever it is written. Raises UsageError for a part of a
        sealed value, which has no seal of its own.
        """
        with kept_closed():
            return self.thaw()


class Erased(str):
    """The type of ERASED. It is a str, so code that shows text shows that a value was here."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ERASED"

    def __reduce__(self) -> str:
        return "ERASED"


ERASED: Final = Erased("[erased]")
"""Stands where a sealed value was whose subject is erased. Test for it with `value is ERASED`. It
says nothing about a person, and may be stored again."""


class SealedLeaf(str):
    """A sealed value that stays sealed: it shows as text, and its sealed bytes are stored again."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> SealedLeaf:
        leaf = str.__new__(cls, "[sealed]")
        leaf.raw = raw
        return leaf

    def __reduce__(self) -> tuple[type[SealedLeaf], tuple[bytes]]:
        return SealedLeaf, (self.raw,)


T = TypeVar("T")
CLOSED_TEXT = b'"[sealed]"'
_CLOSED: ContextVar[bool] = ContextVar("holdfast_sealed_closed", default=False)


@contextmanager
def kept_closed() -> Generator[None]:
    """Keeps sealed values sealed in this block, for code that stores what it reads.

    Every layer that keeps a copy of what it reads does its reading in such a block. So no copy has
    clear data of a subject, which an erasure would have to find.
    """
    token = _CLOSED.set(True)
    try:
        yield
    finally:
        _CLOSED.reset(token)


@contextmanager
def kept_open() -> Generator[None]:
    """Opens sealed values in this block, whatever block of `kept_closed` the caller is in.

    A commit may be prepared by the thread of another caller.
    """
    token = _CLOSED.set(False)
    try:
        yield
    finally:
        _CLOSED.reset(token)


_FOR_SUBJECT: ContextVar[bool] = ContextVar("holdfast_for_subject", default=False)


def for_subject(make: Callable[[], T]) -> T:
    """Returns what `make` encodes of a value that is about to be sealed as a whole.

    Parts of sealed values may be in it, which nobody else may store.
    """
    token = _FOR_SUBJECT.set(True)
    try:
        return make()
    finally:
        _FOR_SUBJECT.reset(token)


def is_for_subject() -> bool:
    """Returns whether the caller encodes a value that is about to be sealed as a whole."""
    return _FOR_SUBJECT.get()


def closed_items(values: Thawable) -> Any:
    """Returns the items of a mapping that are to be stored one by one, with their seals."""
    found = values.closed()
    if isinstance(found, SealedLeaf):
        if not is_for_subject():
            raise UsageError(
                "this mapping is one value that is sealed for a subject: its items would be in "
                "clear",
                hint="give it subject=…, or store it as a whole at one key",
            )
        return values.thaw()
    return found


def is_kept_closed() -> bool:
    """Returns whether the caller is in a `kept_closed` block."""
    return _CLOSED.get()


ERASED_TEXT = b'{"$erased":true}'

_dict_items = cast("Callable[[dict[Any, Any]], ItemsView[Any, Any]]", dict[Any, Any].items)
_type_of = cast("Callable[[Any], Any]", type)
_encoder = msgspec.json.Encoder()
_sorting_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()

encode_plain = _encoder.encode
"""Returns the JSON bytes of a value that is known to be plain JSON, such as an envelope."""


def encode(
    value: Any,
    *,
    size_max: int = SIZE_MAX,
    path: Path = (),
    encoder: msgspec.json.Encoder = _encoder,
) -> bytes:
    """Returns the JSON bytes of any value of the domain; key order is kept.

    `path` is the place that the value will have in a state: paths in errors begin with it, and its
    length counts as depth. Raises ValueDomainError, which names the place inside the value.
    """
    data = None
    if _is_ordinary(value, DEPTH_MAX - len(path)):
        try:
            data = encoder.encode(value)
        except UnicodeEncodeError:
            # Some str has a lone surrogate. A search beforehand would read every string twice;
            # msgspec notices it at no cost.
            data = None
    if data is None:
        data = encoder.encode(_Conversion(encoder is _sorting_encoder).convert(value, path))
    if len(data) > size_max:
        raise ValueDomainError(
            f"value{_at(path)} takes {len(data)} bytes encoded: at most {size_max} fit", path=path
        )
    return data


encode_sorted = partial(encode, encoder=_sorting_encoder)
"""Returns bytes that are equal for equal values, whatever the order of their keys.

Only for thumbprints and blob ids: `1` and `1.0` still give different bytes.
"""


def _is_ordinary(value: Any, depth: int) -> bool:
    """Returns whether msgspec encodes the value faithfully, without a conversion."""
    kind = _type_of(value)
    if kind in _ALWAYS_PLAIN:
        return True
    if kind is int:
        return _INT_START < value < _INT_END
    if kind is float:
        return math.isfinite(value)
    if depth <= 0:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or (key[:1] == "$" and len(value) == 1):
                return False
            if type(item) not in _ALWAYS_PLAIN and not _is_ordinary(item, depth - 1):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:
            if type(item) not in _ALWAYS_PLAIN and not _is_ordinary(item, depth - 1):
                return False
        return True
    return False


def _is_tag(key: Any) -> bool:
    return isinstance(key, str) and key[:1] == "$"


class _Conversion:
    """Turns a value of the domain into one that msgspec encodes faithfully; else raises."""

    def __init__(self, is_sorted: bool) -> None:
        self._is_sorted = is_sorted

    def convert(self, value: Any, path: Path) -> Any:
        if isinstance(value, Thawable):
            value = value.closed()
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            if isinstance(value, Erased):
                return {"$erased": True}
            return msgspec.Raw(value.raw) if type(value) is SealedLeaf else _convert_text(value)
        if isinstance(value, int):
            if not _INT_START < value < _INT_END:
                _refuse("is an int of more than 4000 digits: store it as text", path)
            return int.__int__(value)
        if isinstance(value, float):
            plain = float.__float__(value)
            return plain if math.isfinite(plain) else {"$float": repr(plain)}
        if isinstance(value, dict):
            return self._convert_dict(cast("dict[Any, Any]", value), path)
        if isinstance(value, list | tuple):
            return self._convert_list(cast("list[Any]", value), path)
        if isinstance(value, bytes | bytearray | memoryview):
            # Checked before three copies are made: bytes that cannot be stored may also be too
            # large for memory.
            if (size := memoryview(cast("bytes", value)).nbytes) > SIZE_MAX:
                _refuse(f"takes {size} bytes: at most {SIZE_MAX} fit, encoded", path)
            return {"$bytes": b64encode(bytes(cast("bytes", value))).decode()}
        if isinstance(value, datetime):
            return _convert_datetime(value, path)
        _refuse(
            f"is of type {type(value).__name__}: expected None, bool, int, float, str, bytes, "
            "an aware datetime, list, tuple or dict",
            path,
        )

    def _convert_dict(self, value: dict[Any, Any], path: Path) -> dict[str, Any]:
        _check_depth(path)
        pairs: list[tuple[Any, Any]] = []
        is_plain = True
        # The items method of dict itself: a subclass may override it and show other items.
        for key, item in _dict_items(value):
            if not isinstance(key, str):
                _refuse(
                    f"has the key {key!r:.80} of type {type(key).__name__}: keys must be text, "
                    "because JSON would not tell 1 from '1'",
                    path,
                )
            name = _convert_text(key)
            is_plain = is_plain and type(name) is str
            pairs.append((name, self.convert(item, (*path, str.__str__(key)))))
        if is_plain and not (len(pairs) == 1 and _is_tag(pairs[0][0])):
            return dict(pairs)
        if self._is_sorted:
            pairs.sort(key=lambda pair: encode_plain(pair[0]))
        return {"$pairs": pairs}

    def _convert_list(self, value: list[Any] | tuple[Any, ...], path: Path) -> list[Any]:
        _check_depth(path)
        return [self.convert(item, (*path, index)) for index, item in enumerate(value)]


def _check_depth(path: Path) -> None:
    if len(path) >= DEPTH_MAX:
        _refuse(
            f"is nested more than {DEPTH_MAX} levels deep: a value that contains itself, or one "
            "to store in parts",
            path,
        )


# A high surrogate before a low one: escaped side by side, they would read as one character.
_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")


def _convert_text(value: str) -> Any:
    if value.isascii():
        return str.__str__(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        parts = [json.dumps(part) for part in _PAIR.split(str.__str__(value))]
        return {"$text": parts if len(parts) > 1 else parts[0]}
    return str.__str__(value)


def _convert_datetime(value: datetime, path: Path) -> dict[str, str]:
    text = datetime.isoformat(value)
    if value.utcoffset() is None:
        _refuse("is a datetime without a time zone: give it one, or store text", path)
    if datetime.fromisoformat(text) != value:
        _refuse(
            f"is a {type(value).__name__} that a datetime cannot hold exactly: store text", path
        )
    return {"$datetime": text}


def show_path(path: Path) -> str:
    """Returns the path as a chain of Python indexes; a long one is shortened in the middle."""
    steps = [f"[{show_value(step)}]" for step in path]
    if len(steps) > 12:
        steps[6:-4] = [f"…{len(steps) - 10} more…"]
    return "".join(steps)


def _at(path: Path) -> str:
    return f" at {show_path(path)}" if path else ""


def _refuse(problem: str, path: Path) -> NoReturn:
    raise ValueDomainError(f"value{_at(path)} {problem}", path=path)


def decode(data: Encoded, *, blob: Callable[[str, int], Any] | None = None) -> Any:
    """Returns the plain, mutable value of encoded bytes, or raises CorruptError.

    `blob` returns the value of a blob reference or a sealed value from a name and a size (see
    `parse_reference`). Without it these stay dicts, and so does a tag that this version does not
    know.
    """
    view = data if type(data) is bytes else bytes(data)
    try:
        value = _decoder.decode(view)
        if may_have_tags(view):
            value = _revive(value, blob)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"stored value is not the JSON of a value: {error}") from error
    return value


def may_have_tags(data: bytes) -> bool:
    """Returns whether encoded bytes may have tags, so that JSON alone cannot decode them.

    Most values have no tags, and a search of the bytes is far cheaper than a walk over the value. A
    search for one byte, given as an int, is forty times cheaper still: for a bytes operand `in`
    first tries to read it as an int, and handles an exception each time.
    """
    return (_DOLLAR in data and b'"$' in data) or (_BACKSLASH in data and b"\\u0024" in data)


def decode_as(data: Encoded, kind: type[T]) -> T:
    """Returns a structure of this package from its bytes, or raises CorruptError.

    Its fields hold plain JSON, or Raw for values of the domain: tags are not decoded.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"stored data is not a {kind.__name__}: {error}") from error


def check(data: Encoded) -> None:
    """Raises CorruptError if bytes are not an encoded value, or have a key twice in one object.

    `decode` does not look for the latter, because it takes ten times as long and `encode` never
    writes it: msgspec keeps the last of the two.
    """
    try:
        _check_piece(data)
    except CorruptError as error:
        if not isinstance(error.__cause__, RecursionError):
            raise
        for piece in pieces(bytes(data)):
            _check_piece(piece)


def _check_piece(data: Encoded) -> None:
    decode(data)
    try:
        json.loads(bytes(data), object_pairs_hook=_check_keys)
    except RecursionError as error:
        raise CorruptError("stored value is nested too deeply") from error


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise CorruptError(f"stored value has the key {key!r:.80} twice in one object")
        seen.add(key)


def _revive(value: Any, blob: Callable[[str, int], Any] | None) -> Any:
    if type(value) is dict:
        table = cast("dict[str, Any]", value)
        if len(table) == 1:
            key = next(iter(table))
            if key[:1] == "$":
                return _revive_tag(table, key, blob)
        for key, item in table.items():
            if type(item) is dict or type(item) is list:
                table[key] = _revive(item, blob)
    elif type(value) is list:
        items = cast("list[Any]", value)
        for index, item in enumerate(items):
            if type(item) is dict or type(item) is list:
                items[index] = _revive(item, blob)
    return cast("Any", value)


def _revive_tag(table: dict[str, Any], tag: str, blob: Callable[[str, int], Any] | None) -> Any:
    content = table[tag]
    if tag == "$blob" or (tag == "$sealed" and type(content) is dict):
        reference = _blob_fields(content) if tag == "$blob" else _sealed_fields(content)
        return table if blob is None else blob(*reference)
    revive = _REVIVERS.get(tag)
    if tag == "$pairs":
        return _revive_pairs(_revive(content, blob))
    if revive is None:
        table[tag] = _revive(content, blob)
        return table
    try:
        return revive(content)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"stored value has a malformed {tag}: {content!r:.80}") from error


def _revive_pairs(content: Any) -> dict[str, Any]:
    pairs = cast("list[Any]", content) if type(content) is list else None
    if pairs is None or not all(type(p) is list and len(p) == 2 for p in pairs):
        raise CorruptError(f"stored value has a malformed $pairs: {content!r:.80}")
    table = {key: item for key, item in pairs if type(key) is str}
    if len(table) != len(pairs):
        raise CorruptError("stored value has $pairs with a key twice, or one that is not text")
    return table


def _revive_text(content: str | list[str]) -> str:
    # join refuses what is not the JSON text of a string.
    return "".join(map(json.loads, [content] if isinstance(content, str) else content))


def _revive_datetime(content: str) -> datetime:
    moment = datetime.fromisoformat(content)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_REVIVERS: dict[str, Callable[[Any], Any]] = {
    "$float": lambda content: _FLOATS[content],
    "$bytes": lambda content: b64decode(content, validate=True),
    "$datetime": _revive_datetime,
    "$text": _revive_text,
    "$erased": lambda _: ERASED,
}

_BLOB_PREFIX = b'{"$blob":{"id":"'
_BLOB_WITHIN = re.compile(rb'\{"\$blob":\{"id":"([0-9a-f]{64})","size":(0|[1-9][0-9]{0,15})\}\}')
_BLOB = re.compile(rb'\{"\$blob":\{"id":"([0-9a-f]{64})","size":(0|[1-9][0-9]{0,15})\}\}\Z')
# From the shortest to the longest text that the pattern can match: other sizes need no look.
_BLOB_SIZES = range(len(_BLOB_PREFIX) + 64 + 12, len(_BLOB_PREFIX) + 64 + 28)


def blob_ref(id: str, size: int) -> bytes:
    """Returns the encoded reference to a blob: its sha256 in hex, and its length in bytes."""
    return b'%s%s","size":%d}}' % (_BLOB_PREFIX, id.encode(), size)


def parse_blob_ref(raw: Encoded) -> tuple[str, int] | None:
    """Returns id and size if the encoded value is a reference to a blob."""
    if len(raw) not in _BLOB_SIZES:
        return None
    match = _BLOB.match(raw)
    return (match[1].decode(), int(match[2])) if match else None


def blobs_in(payload: bytes) -> list[tuple[str, int]]:
    """Returns id and size of every blob that encoded data refers to, at any depth.

    Nothing else can look like a reference: quotes inside a text are escaped, and a dict of the user
    with such a key is stored as `$pairs`.
    """
    if b"$blob" not in payload:
        return []  # true of nearly all data, and the pattern takes longer to find nothing
    return [(id.decode(), int(size)) for id, size in _BLOB_WITHIN.findall(payload)]


def blob_places(payload: bytes) -> Iterator[tuple[int, int, str, int]]:
    """Yields the start, end, id and size of each reference to a blob in encoded data."""
    for found in _BLOB_WITHIN.finditer(payload):
        yield found.start(), found.end(), found[1].decode(), int(found[2])


def _blob_fields(content: Any) -> tuple[str, int]:
    raw = encode_plain({"$blob": content})
    reference = parse_blob_ref(raw)
    if reference is None:
        raise CorruptError(f"stored value has a malformed $blob: {content!r:.80}")
    return reference


# --- sealed values --------------------------------------------------------------------------------
#
# A value that belongs to a subject, in a scope that does not. It is one opaque leaf: a copy of it
# copies these bytes. It is read through the reader of blobs, under a name that contains all of it
# (its bytes, or its blob's id). So code that can read blobs can read it; other code sees the tag.

SEALED_VALUE = b'{"$sealed":{"of":"'
"""How a sealed value begins. Nothing else can look like it: quotes inside a text are escaped."""
_SEALED = "sealed:"
_SEALED_BLOB = "sealed-blob:"
_SEALED_WITHIN = re.compile(rb'\{"\$sealed":\{"of":"([0-9A-Za-z._-]{1,200})","data":')


class SealedValue(msgspec.Struct, frozen=True):
    """A sealed value as stored: its subject, and its bytes in base64 or the blob that has them."""

    subject: str
    text: str = ""
    blob: str = ""


def sealed_value(subject: str, data: bytes) -> bytes:
    """Returns the encoded form of a sealed value; `data` is quoted base64, or a blob reference."""
    return b'%b%b","data":%b}}' % (SEALED_VALUE, subject.encode(), data)


def is_sealed_value(raw: Encoded) -> bool:
    """Returns whether an encoded value is a sealed one."""
    return bytes(memoryview(raw)[: len(SEALED_VALUE)]) == SEALED_VALUE


def subjects_in(payload: bytes) -> set[str]:
    """Returns the subjects of the sealed values in encoded data, at any depth."""
    return {subject.decode() for subject in _SEALED_WITHIN.findall(payload)}


def parse_reference(raw: Encoded) -> tuple[str, int] | None:
    """Returns the name and size to ask a reader of blobs for; None for any other value.

    The name is a blob's id, or that of a sealed value, which `parse_sealed_name` takes apart.
    """
    if not is_sealed_value(raw):
        return parse_blob_ref(raw)
    try:
        return _sealed_fields(_decoder.decode(raw)["$sealed"])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"stored value has a malformed $sealed: {error}") from error


def reference(name: str, size: int) -> bytes:
    """Returns the encoded value for a name and size: the inverse of `parse_reference`."""
    sealed = parse_sealed_name(name)
    if sealed is None:
        return blob_ref(name, size)
    data = blob_ref(sealed.blob, size) if sealed.blob else b'"%b"' % sealed.text.encode()
    return sealed_value(sealed.subject, data)


def parse_sealed_name(name: str) -> SealedValue | None:
    """Returns the sealed value that a name from `parse_reference` has; None if it is a blob."""
    if name.startswith(_SEALED):
        subject, _, text = name.removeprefix(_SEALED).partition(":")
        return SealedValue(subject, text)
    if name.startswith(_SEALED_BLOB):
        subject, _, blob = name.removeprefix(_SEALED_BLOB).partition(":")
        return SealedValue(subject, blob=blob)
    return None


def _sealed_fields(content: Any) -> tuple[str, int]:
    table = cast("dict[str, Any]", content) if type(content) is dict else {}
    subject, data = table.get("of"), table.get("data")
    if type(subject) is str and len(table) == 2:
        if type(data) is str:
            return f"{_SEALED}{subject}:{data}", len(data)
        if type(data) is dict and list(cast("dict[str, Any]", data)) == ["$blob"]:
            name, size = _blob_fields(cast("dict[str, Any]", data)["$blob"])
            return f"{_SEALED_BLOB}{subject}:{name}", size
    raise CorruptError(f"stored value has a malformed $sealed: {content!r:.80}")


def _zstandard() -> Any:
    """Returns the module, which is loaded with the first large value: few programs have one."""
    try:
        import zstandard
    except OSError as exc:
        raise unloaded("zstandard", exc) from exc
    return zstandard


def compress(data: bytes) -> bytes:
    """Returns one zstd frame that records its content's size and checksum."""
    zstandard = _zstandard()
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(data)


def decompress(data: bytes, *, size_max: int) -> bytes:
    """Returns the data that `compress` was given.

    Raises CorruptError if it is damaged or larger than `size_max`. The size in the frame's header
    is checked before anything is allocated, and zstd refuses a frame that yields more than that: so
    a few damaged bytes cannot claim all memory.
    """
    zstandard = _zstandard()
    try:
        size = zstandard.frame_content_size(data)
        size_max = min(size_max, DECOMPRESSED_MAX)
        if not 0 <= size <= size_max:
            found = "an unknown size" if size < 0 else f"{size} bytes"
            raise CorruptError(f"compressed data holds {found}: expected at most {size_max} bytes")
        content = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"compressed data is damaged: {error}") from error
    return content
