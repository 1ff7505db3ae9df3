"""A JSON or YAML file that is one mapping: each of its keys is an item, whose field is `value`.

The position of each value is known, so that only changed values are written again. The order of
keys, the indentation and, in YAML, the comments stay as they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from holdfast.views.item import BrokenFile, Fields, Item, decode_text, same
from holdfast.views.yaml_text import (
    block_end,
    dump_block,
    load_yaml,
    merge_into,
    plain_mapping,
    refuse_markers,
    split_lines,
)

_BOM = "\ufeff"
_SPACE = re.compile(r"[ \t\r\n]*")


class MappingDocument(Struct, frozen=True):
    """A file, and the position of each value in it."""

    text: str
    items: list[Item]
    places: dict[str, tuple[int, int, int]]
    """By key: where the key begins, where its value begins, and where the value ends."""
    closing: int = 0

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        return self.text.encode()

    def value(self, key: str) -> Any:
        """Returns the value of a key."""
        return next(item.fields["value"] for item in self.items if item.id == key)


class JsonMapping(Struct, frozen=True):
    """The form of a JSON object."""

    fields = ("value",)

    def parse(self, data: bytes) -> MappingDocument:
        """Returns a file as a document; raises BrokenFile if it cannot be parsed."""
        text = decode_text(data)
        if not text.strip():
            return MappingDocument(text, [], {})
        try:
            return self._parsed(text)
        except (ValueError, RecursionError) as error:
            refuse_markers(text)
            raise BrokenFile(f"it is no JSON: {error}") from error

    def _parsed(self, text: str) -> MappingDocument:
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        items: list[Item] = []
        places: dict[str, tuple[int, int, int]] = {}
        at = _skip(text, 1 if text.startswith(_BOM) else 0)
        if text[at : at + 1] != "{":
            raise ValueError("it is no object")
        at = _skip(text, at + 1)
        while text[at : at + 1] != "}":
            begin = at
            key, at = decoder.raw_decode(text, at)
            if not isinstance(key, str) or key in places:
                raise ValueError(f"{key!r} is no key, or is there twice")
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise ValueError(f"no value after {key!r}")
            start = _skip(text, at + 1)
            value, at = decoder.raw_decode(text, start)
            places[key] = (begin, start, at)
            items.append(Item(key, {"value": value}))
            at = _skip(text, at)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
                if text[at : at + 1] == "}":
                    raise ValueError("a comma before the end")
            elif text[at : at + 1] != "}":
                raise ValueError(f"something else after the value of {key!r}")
        if text[at + 1 :].strip():
            raise ValueError("something after the object")
        return MappingDocument(text, items, places, at)

    def splice(
        self,
        document: MappingDocument,
        items: Mapping[str, Fields],
        *,
        hidden: Mapping[str, Fields] | None = None,
        ids: Mapping[int, str] | None = None,
    ) -> MappingDocument:
        """Returns the document with these values, and with every other byte unchanged."""
        text, hidden = document.text, hidden or {}
        if not document.places:
            if not items and text.strip():
                return document
            whole = {key: fields["value"] for key, fields in items.items()}
            return self.parse(_bytes(json.dumps(whole, indent=2, ensure_ascii=False) + "\n"))
        keys = list(document.places)
        first, _, _ = document.places[keys[0]]
        gap = text[text.index("{") + 1 : first]
        indent = len(gap) - len(gap.rstrip(" ")) if "\n" in gap else None
        parts: list[str] = []
        for key in keys:
            begin, start, end = document.places[key]
            if key in hidden:
                continue
            said = text[begin:end]
            if key in items and not same(document.value(key), items[key]["value"]):
                said = text[begin:start] + _dumped(items[key]["value"], indent, gap)
            parts.append(said)
        for key, fields in items.items():
            if key not in document.places:
                name = json.dumps(key, ensure_ascii=False)
                parts.append(f"{name}: {_dumped(fields['value'], indent, gap)}")
        if len(parts) == len(keys) and not hidden:
            return self._in_place(document, parts)
        last = document.places[keys[-1]][2]
        body = f",{gap if indent is not None else ' '}".join(parts)
        made = f"{text[:first]}{body}{text[last:]}"
        return self.parse(_bytes(made))

    def _in_place(self, document: MappingDocument, parts: list[str]) -> MappingDocument:
        """Returns the document with the same keys and new values; the text between stays."""
        text, at = "", 0
        for (begin, _, end), part in zip(document.places.values(), parts, strict=True):
            text += document.text[at:begin] + part
            at = end
        text += document.text[at:]
        return document if text == document.text else self.parse(_bytes(text))


def _bytes(text: str) -> bytes:
    """Returns JSON as bytes; a lone surrogate, which is in a string, becomes an escape of JSON."""
    return text.encode("utf-8", "backslashreplace")


def _dumped(value: Any, indent: int | None, gap: str) -> str:
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    text = json.dumps(value, indent=indent or 2, ensure_ascii=False)
    return text.replace("\n", gap[gap.rindex("\n") :]) if "\n" in text else text


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "BUG: a pattern that fits anything"
    return found.end()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class YamlMapping(Struct, frozen=True):
    """The form of a YAML mapping in block style."""

    fields = ("value",)

    def parse(self, data: bytes) -> MappingDocument:
        """Returns a file as a document; raises BrokenFile if it cannot be parsed."""
        text = decode_text(data)
        root = load_yaml(text)
        if root is None:
            return MappingDocument(text, [], {})
        values = plain_mapping(root)
        if root.fa.flow_style():
            raise BrokenFile("it is written in one line: write one key to a line")
        lines = split_lines(text)
        starts = {key: root.lc.key(key)[0] for key in values}
        order = sorted(starts, key=lambda key: starts[key])
        places: dict[str, tuple[int, int, int]] = {}
        for number, key in enumerate(order):
            after = starts[order[number + 1]] if number + 1 < len(order) else len(lines)
            places[key] = (starts[key], starts[key], block_end(lines, starts[key], after))
        return MappingDocument(text, [Item(key, {"value": values[key]}) for key in order], places)

    def splice(
        self,
        document: MappingDocument,
        items: Mapping[str, Fields],
        *,
        hidden: Mapping[str, Fields] | None = None,
        ids: Mapping[int, str] | None = None,
    ) -> MappingDocument:
        """Returns the document with these values, and with every other byte unchanged."""
        lines, hidden = split_lines(document.text), hidden or {}
        ending = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
        made: list[str] = []
        copied = 0
        for key, (begin, _, end) in document.places.items():
            made += lines[copied:begin]
            copied = end
            if key in hidden:
                continue
            block = lines[begin:end]
            if key in items and not same(document.value(key), items[key]["value"]):
                old = load_yaml("".join(block).replace("\r\n", "\n"))
                merge_into(cast("dict[str, Any]", old), key, items[key]["value"])
                block = dump_block(old, ending)
            made += block
        made += lines[copied:]
        added = {key: items[key]["value"] for key in items if key not in document.places}
        if added:
            if made and not made[-1].endswith("\n"):
                made[-1] += ending
            made += dump_block(added, ending)
        text = "".join(made)
        return document if text == document.text else self.parse(text.encode())
