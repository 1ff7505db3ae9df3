"""Shapes: what a type says of plain data, part by part. Pure.

A type is a `msgspec.Struct`, a dataclass, a TypedDict, an attrs class, a pydantic model, or
anything else that msgspec converts to. Its shape is found once, from its annotations: which fields
a mapping has and which it must have, and what the items of a list and the values of a dict are. So
a change is checked where it was made, and the data beside it is not looked at. A type with checks
of the whole (`__post_init__`, validators, constraints, a union of several types, a pydantic model)
has no parts here: whatever changes in it, the whole is checked.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from holdfast.core.codec import Encoded, Erased, Path, SealedLeaf, may_have_tags, show_path
from holdfast.errors import UsageError, show_error, show_value

_EXPECTED = re.compile(r"Expected (.+?)(?:, got .+?)?(?: - at (`key` in )?`[^`]*`)?$", re.S)
_AT = re.compile(r" - at `[^`]*`$")
_ANYTHING = (Any, object)


class Misfit(Struct, frozen=True):
    """One place where data does not fit its type."""

    path: tuple[str | int, ...]
    expected: str
    found: str

    def __str__(self) -> str:
        place = show_path(self.path) or "the whole"
        return f"{place}: expected {self.expected}, found {self.found}"


def is_unread(data: Any) -> bool:
    """Returns whether data stands for a subject's value that cannot or must not be read here."""
    return isinstance(data, Erased | SealedLeaf)


def has_unread(data: Any) -> bool:
    """Returns whether such a value is anywhere in plain data."""
    if isinstance(data, dict):
        return any(map(has_unread, cast("dict[str, Any]", data).values()))
    return any(map(has_unread, cast("list[Any]", data))) if type(data) is list else is_unread(data)


class Part(Struct, frozen=True):
    """One field of a mapping: the shape of its value, and whether it must be there."""

    shape: Shape
    required: bool
    name: str = ""  # of the attribute, which may differ from the name of the stored field


class Shape:
    """What a type says of data: of the whole, and of its parts if it has any."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._parts: _Parts | None = None
        self._decoders: dict[str, msgspec.json.Decoder[Any]] | None = None

    @property
    def parts(self) -> _Parts:
        """The parts, found at the first use: a type may contain itself."""
        if self._parts is None:
            self._parts = _parts_of(self.annotation)
        return self._parts

    @property
    def is_whole(self) -> bool:
        """Whether it can only be checked as a whole."""
        return self.parts.fields is None and self.parts.each is None

    @property
    def is_anything(self) -> bool:
        """Whether every value fits."""
        return self.annotation in _ANYTHING

    def load(self, data: Any) -> Any:
        """Returns plain data as a value of the type; raises what the type's library raises.

        ERASED fits at any place: the value that was there fitted once, and is not known any more.
        """
        try:
            validate = getattr(self.annotation, "model_validate", None)
            if validate is not None:
                return validate(data)
            return msgspec.convert(data, self.annotation, str_keys=True)
        except Exception as error:
            if not has_unread(data):
                raise
            return self._load_around(data, error)

    def _load_around(self, data: Any, error: Exception) -> Any:
        """Returns data as a value of the type although some of its values cannot be read."""
        if is_unread(data) or self.is_anything:
            return data
        errors = getattr(error, "errors", None)
        if callable(errors):  # a pydantic model reports each place
            if any(not is_unread(one.get("input")) for one in cast("list[Any]", errors())):
                raise error
            return self.annotation.model_construct(**data)
        parts = self.parts
        if parts.fields is not None and isinstance(data, dict):
            table = cast("dict[str, Any]", data)
            found = {
                part.name: part.shape.load(table[name])
                for name, part in parts.fields.items()
                if name in table
            }
            if parts.is_closed and table.keys() - parts.fields.keys():
                raise error
            return self.annotation(**found)
        if parts.each is None:
            return data
        if isinstance(data, dict):
            table = cast("dict[str, Any]", data)
            return {name: parts.each.load(value) for name, value in table.items()}
        return [parts.each.load(value) for value in cast("list[Any]", data)]

    def takes(self, field: object, value: Encoded) -> bool:
        """Returns True if a field may have this encoded value, at little cost.

        True is what `misfits` would find too. False may also mean that the value was not checked:
        it has tags of `codec` in it, or the type has no such field or no parts.
        """
        if self._decoders is None:
            fields = (self.parts.fields or {}).items()
            self._decoders = {
                name: msgspec.json.Decoder(part.shape.annotation)
                for name, part in fields
                if not hasattr(part.shape.annotation, "model_validate")
            }
        decoder = self._decoders.get(cast("str", field))
        if decoder is None or may_have_tags(bytes(value)):
            return False
        try:
            decoder.decode(value)
        except Exception:  # a user's type may raise anything: `misfits` asks again for the reason
            return False
        return True

    def misfits(self, data: Any, path: Path = ()) -> list[Misfit]:
        """Returns every place where the data does not fit the type; none if it fits."""
        try:
            if not self.is_anything:
                self.load(data)
        except Exception as error:  # whatever a user's validator raises means a misfit
            found = list(self._misfits_in_parts(data, path))
            return found or self._misfits_of_whole(data, path, error)
        return []

    def _misfits_in_parts(self, data: Any, path: Path) -> Iterator[Misfit]:
        parts = self.parts
        if parts.fields is not None and isinstance(data, dict):
            table = cast("dict[str, Any]", data)
            for name, part in parts.fields.items():
                if name in table:
                    yield from part.shape.misfits(table[name], (*path, name))
                elif part.required:
                    yield Misfit((*path, name), show_type(part.shape.annotation), "nothing")
            if parts.is_closed:
                for name in table.keys() - parts.fields.keys():
                    yield Misfit((*path, name), "no such field", show_value(table[name]))
        elif parts.each is not None and isinstance(data, dict | list):
            inside = cast("dict[str, Any] | list[Any]", data)
            items = inside.items() if isinstance(inside, dict) else enumerate(inside)
            for step, value in items:
                yield from parts.each.misfits(value, (*path, step))

    def _misfits_of_whole(self, data: Any, path: Path, error: Exception) -> list[Misfit]:
        """Returns the misfits of a type that was checked as a whole: one, or all that it names."""
        errors = getattr(error, "errors", None)
        if callable(errors):  # a pydantic model reports them all
            return [
                Misfit((*path, *one["loc"]), one["msg"], show_value(one.get("input")))
                for one in cast("list[Any]", errors())
            ]
        if isinstance(error, msgspec.ValidationError) and error.__cause__ is None:
            if said := _EXPECTED.match(str(error)):
                expected = said[1].replace("`", "") + (" as every key" if said[2] else "")
                return [Misfit(path, expected, show_value(data))]
            return [Misfit(path, show_type(self.annotation), show_value(data))]
        cause = error.__cause__ or error
        return [Misfit(path, f"what fits ({_AT.sub('', show_error(cause))})", show_value(data))]


class _Parts(Struct, frozen=True):
    """The fields of a mapping by name, or the shape of each item of a list or value of a dict."""

    fields: dict[str, Part] | None = None
    each: Shape | None = None
    is_closed: bool = False  # whether other fields are refused


_WHOLE = _Parts()


def check_type(kind: object) -> Shape:
    """Returns the shape of a class whose values are mappings, or raises UsageError."""
    what = f"a schema is a class with named fields, found {show_value(kind)}"
    if not isinstance(kind, type):
        raise UsageError(what, hint="a msgspec.Struct, dataclass, TypedDict, attrs class, or model")
    found = Shape(kind)
    if hasattr(kind, "model_validate"):
        return found
    try:
        if _is_array(kind) or not _has_fields(kind):
            raise UsageError(what, hint="its values must be stored as mappings")
        if found.parts.fields is None:
            msgspec.inspect.type_info(kind)
        for part in (found.parts.fields or {}).values():
            msgspec.inspect.type_info(part.shape.annotation)
    except (TypeError, NameError, ValueError, KeyError) as error:
        raise UsageError(
            f'the type "{kind.__name__}" cannot be a schema: {error}',
            hint="msgspec must know how to convert to it; types it names must be defined before it",
        ) from error
    return found


def _is_array(kind: type[Any]) -> bool:
    config = getattr(kind, "__struct_config__", None)
    return config is not None and config.array_like


def _has_fields(kind: type[Any]) -> bool:
    return (
        issubclass(kind, Struct)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or hasattr(kind, "__attrs_attrs__")
    )


def _parts_of(annotation: Any) -> _Parts:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if isinstance(annotation, typing.NewType):
        return _parts_of(annotation.__supertype__)
    if origin in (typing.Union, types.UnionType):
        # Of `X | None`, only X can have parts.
        others = [one for one in arguments if one is not type(None)]
        return _parts_of(others[0]) if len(others) == 1 else _WHOLE
    if origin is not None and isinstance(origin, type):
        if issubclass(origin, Mapping) and len(arguments) == 2 and arguments[0] is str:
            return _Parts(each=Shape(arguments[1]))
        if issubclass(origin, Sequence) and (
            len(arguments) == 1 or (len(arguments) == 2 and arguments[1] is Ellipsis)
        ):
            return _Parts(each=Shape(arguments[0]))
    if (
        isinstance(annotation, type)
        and _has_fields(annotation)
        and not _looks_at_itself(annotation)
    ):
        return _fields_of(annotation)
    return _WHOLE


def _looks_at_itself(kind: type[Any]) -> bool:
    """Returns whether a type has a check of its own that may look at several fields."""
    if hasattr(kind, "__post_init__") or hasattr(kind, "__attrs_post_init__"):
        return True
    config = getattr(kind, "__struct_config__", None)
    if config is not None and (config.tag is not None or config.array_like):
        return True
    attributes = cast("Sequence[Any]", getattr(kind, "__attrs_attrs__", ()))
    return any(one.validator is not None or one.converter is not None for one in attributes)


def _fields_of(kind: type[Any]) -> _Parts:
    said = cast("Any", msgspec.inspect.type_info(kind))
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: dict[str, Part] = {}
    for field in said.fields:
        annotation = hints[field.name]
        while typing.get_origin(annotation) in (typing.Required, typing.NotRequired):
            [annotation] = typing.get_args(annotation)
        fields[field.encode_name] = Part(Shape(annotation), field.required, field.name)
    return _Parts(fields, is_closed=bool(getattr(said, "forbid_unknown_fields", False)))


def show_type(annotation: Any) -> str:
    """Returns a type as it is written in a program."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__name__
    return re.sub(r"\b(typing|builtins|collections\.abc|msgspec)\.", "", repr(annotation))
