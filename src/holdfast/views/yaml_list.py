"""A YAML file with a list of items below one key: `backlog.yaml`.

    backlog:
      - id: t1
        title: build the form
        priority: high
        status: open
        epic: checkout
        tags: [web, form]

Only the lines of changed items are written again; comments in them stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from holdfast.record.keyed_item import PRIORITIES
from holdfast.record.task_events import STATUSES
from holdfast.views.item import BrokenFile, Fields, Item, decode_text, plain_fields
from holdfast.views.yaml_text import (
    block_end,
    dump_block,
    load_yaml,
    plain_mapping,
    split_lines,
    without_list,
)

_WORDS = {number: word for word, number in PRIORITIES.items()}
_NAMES = {
    "title": "title",
    "priority": "priority",
    "status": "status",
    "epic": "epic",
    "tags": "tags",
    "dependencies": "depends_on",
    "owner": "owner",
    "why": "why",
    "outcome": "outcome",
    "note": "note",
}
"""The fields of an item, and their names in the file."""
_LISTS = ("tags", "dependencies")


class YamlDocument(Struct, frozen=True):
    """A file in lines, with its items and their places."""

    lines: list[str]
    items: list[Item]
    places: list[tuple[int, int, int]]
    """The first line of each item, the line after it, and its indentation."""
    is_begun: bool = False

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        return "".join(self.lines).encode()


class YamlList(Struct, frozen=True):
    """The form of a list of items in YAML, below the key `root`."""

    root: str = "backlog"
    fields = tuple(_NAMES)

    def parse(self, data: bytes) -> YamlDocument:
        """Returns a file as a document; raises BrokenFile if it cannot be parsed."""
        text = decode_text(data)
        loaded, lines = load_yaml(text), split_lines(text)
        if loaded is None:
            return YamlDocument(lines, [], [])
        known = plain_mapping(loaded)
        if not isinstance(known.get(self.root) or [], list):
            raise BrokenFile(f'"{self.root}" is no list')
        found: list[Any] = known.get(self.root) or []
        if not found:
            return YamlDocument(lines, [], [], self.root in known)
        sequence = loaded[self.root]
        if sequence.fa.flow_style():
            raise BrokenFile(f'the list "{self.root}" is written in one line: write one item to it')
        later = [loaded.lc.key(key)[0] for key in known]
        starts: list[int] = [sequence.lc.item(number)[0] for number in range(len(found))]
        after = min((line for line in later if line > starts[-1]), default=len(lines))
        places: list[tuple[int, int, int]] = []
        for start, end in zip(starts, [*starts[1:], after], strict=True):
            dash = len(lines[start]) - len(lines[start].lstrip(" "))
            places.append((start, _end_of_item(lines, start, end, dash), dash))
        return YamlDocument(lines, [_item(one) for one in found], places, True)

    def splice(
        self,
        document: YamlDocument,
        items: Mapping[str, Fields],
        *,
        hidden: Mapping[str, Fields] | None = None,
        ids: Mapping[int, str] | None = None,
    ) -> YamlDocument:
        """Returns the document with these items, and with every other byte unchanged."""
        hidden, ids = hidden or {}, ids or {}
        lines = document.lines
        ending = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
        made: list[str] = []
        shown: set[str] = set()
        copied = 0
        for number, (item, (start, end, dash)) in enumerate(
            zip(document.items, document.places, strict=True)
        ):
            made += lines[copied:start]
            copied = end
            id = ids.get(number, item.id)
            if id is not None and id in hidden:
                continue
            block = lines[start:end]
            if id is not None and id in items:
                shown.add(id)
                wanted = self._visible(items[id])
                if id != item.id or wanted != item.fields or item.problem:
                    block = _changed(block, id, wanted, item, ending, dash)
            made += block
        added = [
            {"id": id, **_stored(self._visible(fields), is_new=True)}
            for id, fields in items.items()
            if id not in shown
        ]
        rest = lines[copied:]
        if added:
            if not document.is_begun:
                made, rest = [*made, *rest], []
                if made and not made[-1].endswith("\n"):
                    made[-1] += ending
                made.append(f"{self.root}:{ending}")
            elif not document.items:
                made, rest = without_list(lines, load_yaml("".join(lines)), self.root)
                made = [*made, f"{self.root}:{ending}"]
            dash = document.places[-1][2] if document.places else 2
            if made and not made[-1].endswith("\n"):
                made[-1] += ending
            made += dump_block(added, ending, dash)
        text = "".join([*made, *rest])
        return document if text == "".join(lines) else self.parse(text.encode())

    def _visible(self, fields: Fields) -> dict[str, Any]:
        return {name: fields[name] for name in self.fields if name in fields}


def _item(found: Any) -> Item:
    """Returns an item of the list; fields that break the schema are left out and reported."""
    if not isinstance(found, dict):
        return Item(None, {"title": str(found)})
    said = cast("dict[str, Any]", found)
    fields: dict[str, Any] = {}
    problems = [
        f'"{name}" is no field of an item' for name in said if name not in (*_NAMES.values(), "id")
    ]
    for name, word in _NAMES.items():
        value = said.get(word)
        if value is None:
            continue
        if name == "priority" and isinstance(value, str) and value in PRIORITIES:
            value = PRIORITIES[value]
        if name == "status" and value not in STATUSES:
            problems.append(f"{value!r} is no status: {', '.join(STATUSES)}")
        elif name == "priority" and (isinstance(value, bool) or not isinstance(value, int)):
            problems.append(f"{value!r} is no priority: low, normal, high or a whole number")
        elif name in _LISTS and not isinstance(value, list):
            problems.append(f"{word} is a list, found {value!r}")
        elif name not in (*_LISTS, "priority") and not isinstance(value, str):
            problems.append(f"{word} is text, found {value!r}")
        else:
            fields[name] = value
    if "title" not in fields:
        problems.append("it has no title")
    id = said.get("id")
    return Item(
        None if id is None else str(id), plain_fields(fields), "; ".join(problems), not problems
    )


def _stored(fields: Fields, *, is_new: bool = False) -> dict[str, Any]:
    """Returns the fields of an item in the form of the file."""
    found: dict[str, Any] = {}
    for name, word in _NAMES.items():
        default = {"priority": 0, "status": "open"}.get(name) if is_new else None
        value = fields.get(name, default)
        if value is None:
            continue
        if name == "priority":
            value = _WORDS.get(cast("int", value), value)
        found[word] = list(cast("tuple[str, ...]", value)) if name in _LISTS else value
    return found


def _changed(
    block: list[str], id: str, wanted: Fields, item: Item, ending: str, dash: int
) -> list[str]:
    """Returns the lines of an item with new values; comments and the order of keys stay."""
    text = "".join(line[dash:] if line.strip() else line for line in block)
    [old] = load_yaml(text.replace("\r\n", "\n"))
    if not isinstance(old, dict):
        return dump_block([{"id": id, **_stored(wanted, is_new=True)}], ending, dash)
    loaded = cast("dict[str, Any]", old)
    if str(loaded.get("id")) != id:
        loaded["id"] = id
    for word in [word for word in loaded if word not in (*_NAMES.values(), "id")]:
        del loaded[word]  # the log refused it
    now = _stored(wanted)
    for name, word in _NAMES.items():
        if wanted.get(name) == item.fields.get(name) and (
            word not in loaded or name in item.fields
        ):
            continue
        if word in now:
            loaded[word] = now[word]
        elif word in loaded:
            default = {"status": "open", "priority": "normal"}.get(word)
            if default is None:
                del loaded[word]
            elif loaded[word] != default:
                loaded[word] = default
    return dump_block([loaded], ending, dash)


def _end_of_item(lines: list[str], start: int, end: int, dash: int) -> int:
    end = block_end(lines, start, end)
    while end > start + 1:
        text = lines[end - 1]
        is_comment = text.lstrip().startswith("#") and len(text) - len(text.lstrip(" ")) <= dash
        if text.strip() and not is_comment:
            break
        end -= 1
    return end
