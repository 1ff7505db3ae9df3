"""Own events: events of types that the program declares, such as `task_created`.

    @holdfast.event("task_created", version=1)
    class TaskCreated(msgspec.Struct):
        id: str
        title: str

An own event is stored with `own:` before its type, and changes no state:

    own:task_created   {"version":1,"data":{"id":"t1","title":"write"},"refs":["file:plan.md"]}

No type of Holdfast has a colon, so none can ever collide with a stored own type. People leave
`own:` out. That is unambiguous: the types of Holdfast without a dot are a closed list
(`CORE_TYPES`), and no own type may have one of these names. All other types of Holdfast have a dot,
and no own type has one.

`version` is that of the class that wrote the event. It is left out if the data was not checked. A
read upgrades the data of older versions to that of the class, one event at a time.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from msgspec import Raw, Struct

from holdfast.backends.protocol import Record
from holdfast.core import codec
from holdfast.core.event import CORE_TYPES, BlobReader, Event
from holdfast.core.schema import Schema, attach
from holdfast.errors import (
    CorruptError,
    ExistsError,
    LetGoError,
    NotFoundError,
    SchemaError,
    UsageError,
    show_value,
)

OWN = "own:"
"""The prefix of the stored type of an own event."""
KIND = "event"
"""The kind of the schemas of own events."""
REFS_MAX = 1000
REF_CHARACTERS_MAX = 2048

_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_REF = re.compile(r"[a-z][a-z0-9_.+-]{0,63}:\S")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")

_UNREAD = object()

C = TypeVar("C", bound=type[Any])


# --- the types that a program has -----------------------------------------------------------------

_types: dict[str, Schema[Any]] = {}
_by_class: dict[object, Schema[Any]] = {}


def event(
    name: str, *, version: int = 1, aliases: Mapping[str, str] | None = None
) -> Callable[[C], C]:
    """Returns the decorator that declares a type of own events, with a class for its data.

    The class is a `msgspec.Struct`, dataclass, TypedDict, attrs class or pydantic model.
    `@holdfast.upgrade(TaskCreated, 1)` then registers how data of version 1 becomes version 2.
    `aliases` has the former names of fields: `{"outcome": "result"}`.
    """
    check_type_name(name)

    def register(kind: C) -> C:
        schema = Schema(kind, name, version=version, kind=KIND, aliases=aliases)
        known = _types.get(name)
        # A module that is loaded again defines the same class once more: the new one counts.
        if known is not None and _place(known.type) != _place(kind):
            raise ExistsError(
                f'the event type "{name}" is declared already, by {_place(known.type)}',
                hint="give one of them another name",
            )
        attach(schema)
        _types[name] = _by_class[kind] = schema
        return kind

    return register


def _place(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def declared() -> list[Schema[Any]]:
    """Returns the own types that this process has declared, by name."""
    return [_types[name] for name in sorted(_types)]


def declared_by(kind: object) -> Schema[Any] | None:
    """Returns the own type that a class declares, None if it declares none."""
    return _by_class.get(kind) if isinstance(kind, type) else None


def find_type(name: str) -> Schema[Any] | None:
    """Returns the schema of an own type by its name; None if this process has not declared it."""
    return _types.get(name)


def check_type_name(name: object) -> str:
    """Returns the name of an own type, or raises UsageError."""
    if not isinstance(name, str) or not _TYPE.match(name):
        raise UsageError(
            f"an event type is a lower-case letter, then at most 63 letters, digits or '_', found "
            f"{show_value(name)}",
            hint='say what happened: "task_created"',
        )
    if name in CORE_TYPES:
        raise UsageError(
            f'"{name}" is an event type of holdfast itself', hint="give yours another name"
        )
    return str.__str__(name)


def known_type(name: str) -> Schema[Any]:
    """Returns the own type of that name; raises NotFoundError, which suggests the nearest name."""
    found = _types.get(check_type_name(name))
    if found is None:
        near = difflib.get_close_matches(name, _types, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "import the module that declares it"
        raise NotFoundError(
            f'no event type "{name}" is declared in this process',
            hint=f'{hint}; @holdfast.event("{name}") declares it, unchecked=True records it anyway',
        )
    return found


def stored_type(type: object) -> str:
    """Returns the stored form of a type that a reader asks for by its name or its class.

    A name without a dot is an own type, unless it is one of `CORE_TYPES`. The class `OwnEvent`
    means every own type: see `is_of_type`.
    """
    if not isinstance(type, str):
        if type is OwnEvent:
            return OWN
        schema = declared_by(type)
        if schema is None:
            raise UsageError(
                f"type is the name or the class of a type of events, found {show_value(type)}"
            )
        return OWN + schema.name
    return OWN + type if _TYPE.match(type) and type not in CORE_TYPES else type


def is_of_type(found: str, stored: str) -> bool:
    """Returns whether a record's type is one that `stored_type` returned."""
    return found == stored or (stored == OWN and found.startswith(OWN))


# --- refs -----------------------------------------------------------------------------------------


def check_refs(refs: object) -> list[str]:
    """Returns the refs of an event as texts, each once, or raises UsageError."""
    if isinstance(refs, str) or not isinstance(refs, Iterable):
        raise UsageError(f"refs are a list, found {show_value(refs)}", hint='refs=["decision:…"]')
    found = list(dict.fromkeys(map(ref_text, cast("Iterable[object]", refs))))
    if len(found) > REFS_MAX:
        raise UsageError(f"an event has at most {REFS_MAX} refs, found {len(found)}")
    return found


def ref_text(ref: object) -> str:
    """Returns a ref as it is stored: a kind, a colon and a name.

    Text is taken unchanged (`decision:d7@team/red`, `https://…`). The id of a git commit becomes
    `commit:…`, a path `file:…`, an event `event:scope@revision`.
    """
    if isinstance(ref, Event):
        return f"event:{ref.stream}@{ref.revision}"
    if isinstance(ref, os.PathLike):
        ref = f"file:{os.fspath(cast('os.PathLike[str]', ref))}"
    text = str(ref) if hasattr(ref, "kind") and hasattr(ref, "to") else ref
    if isinstance(text, str) and _COMMIT.match(text):
        return f"commit:{text}"
    if (
        not isinstance(text, str)
        or len(text) > REF_CHARACTERS_MAX
        or not _REF.match(text)
        or _CONTROL.search(text)
    ):
        raise UsageError(
            'a ref is text such as "decision:d7@team/red", "file:src/a.py" or "https://…", the id '
            f"of a git commit, a path or an event, found {show_value(ref)}"
        )
    return str.__str__(text)


# --- one event ------------------------------------------------------------------------------------


class _Body(Struct, frozen=True):
    """The stored payload, with its data still encoded."""

    data: Raw
    version: int = 0
    refs: list[str] = []


def encode_body(data: Raw, version: int, refs: list[str]) -> bytes:
    """Returns the payload of an own event; version 0 means that the data was not checked."""
    body: dict[str, Any] = {"version": version} if version else {}
    body["data"] = data
    if refs:
        body["refs"] = refs
    return codec.encode_plain(body)


class OwnEvent(Event):
    """An event of a type of your own; `data` is a value of its class if this process has that."""

    __slots__ = ("_blobs", "_body", "_typed")

    def __init__(self, record: Record, blobs: BlobReader) -> None:
        super().__init__(record)
        self._blobs = blobs
        self._body: _Body | None = None
        self._typed: Any = _UNREAD

    @property
    def type(self) -> str:
        return self.record.type[len(OWN) :]

    @property
    def version(self) -> int:
        """The version of the class that wrote it; 0 if its data was not checked."""
        return self._read().version

    @property
    def refs(self) -> tuple[str, ...]:
        """What it refers to, as texts such as `decision:d7@team/red`."""
        return tuple(self._read().refs)

    @property
    def raw(self) -> Any:
        """The data as it is stored, in the version that it was stored with."""

        def blob(name: str, size: int) -> Any:
            return codec.decode(self._blobs(name, size))

        return codec.decode(self._read().data, blob=blob)

    @property
    def plain(self) -> Any:
        """The data as plain values, upgraded to the version of the class in this process.

        Without a class, or if the data is newer than the class, it is the data as stored.
        """
        schema = find_type(self.type)
        raw = self.raw
        if schema is None or self.version > schema.version or raw is codec.ERASED:
            return raw
        if not isinstance(raw, dict):
            raise CorruptError(
                f"{self._where} has no fields: expected a mapping, found {show_value(raw)}",
                stream=self.stream,
                revision=self.revision,
            )
        table = cast("dict[str, Any]", raw)
        if schema.is_current(table, self.version):
            return table
        return schema.upgraded(table, self.version, self._where)

    @property
    def data(self) -> Any:
        schema = find_type(self.type)
        plain = self.plain if schema is None or self._typed is _UNREAD else None
        if schema is None or plain is codec.ERASED:
            return plain
        if self._typed is _UNREAD:
            try:
                self._typed = schema.load(plain, self._where)
            except SchemaError as misfit:
                if self.version > schema.version:
                    raise schema.newer(self.version, self._where) from misfit
                raise
        return self._typed

    def __getitem__(self, field: str) -> Any:
        return _FIELDS[field](self)

    def keys(self) -> Iterator[str]:
        """Yields the names of the event's fields, so that `dict(event)` works."""
        return iter(_FIELDS)

    @property
    def _where(self) -> str:
        return f'event {self.revision} of "{self.stream}"'

    def _read(self) -> _Body:
        if self._body is None:
            if self.is_let_go:
                raise LetGoError(self.stream, self.revision)
            try:
                self._body = codec.decode_as(self.record.payload, _Body)
            except CorruptError as error:
                raise CorruptError(
                    f"{self._where} is no event of a program's own: {error.message}",
                    stream=self.stream,
                    revision=self.revision,
                ) from error
        return self._body

    def _place(self, record: Record) -> None:
        """Notes the stored record, which was not final when the event was handed out."""
        self.record = record


_FIELDS: dict[str, Callable[[OwnEvent], Any]] = {
    "type": lambda event: event.type,
    "scope": lambda event: event.stream,
    "revision": lambda event: event.revision,
    "timestamp": lambda event: event.time.isoformat(),
    "agent": lambda event: event.actor,
    "version": lambda event: event.version,
    "data": lambda event: event.plain,
    "refs": lambda event: list(event.refs),
}
"""The fields of an own event as a mapping, for projections that expect plain data."""


def event_of(record: Record, blobs: BlobReader) -> Event:
    """Returns a record as the event that readers are handed."""
    return OwnEvent(record, blobs) if record.type.startswith(OWN) else Event(record)
