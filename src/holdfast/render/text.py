"""Values, times, paths and stored text in the forms that documents and people get. Pure.

A stored value stands in a document in the form of the value domain: bytes, datetimes and the like
are tagged objects, so that what is printed can be given to `set` again.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast.core import codec
from holdfast.core.arguments import Path
from holdfast.core.event import Change, Event
from holdfast.core.own_event import OwnEvent
from holdfast.core.page import Page
from holdfast.core.tree import MISSING, List, Map
from holdfast.errors import CorruptError

WIDTH_MAX = 60
# C0 and C1 controls, line separators, bidirectional controls, lone surrogates, the byte order mark.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_UNSAFE_IN_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def clean(text: str, *, keep: str = "") -> str:
    """Returns the text with every character that could drive a terminal written as an escape."""

    def escape(match: re.Match[str]) -> str:
        character = match.group()
        if character in keep:
            return character
        if character in _SHORT:
            return _SHORT[character]
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escape, text)


def shorten(text: str, width: int = WIDTH_MAX) -> str:
    """Returns the text cut to a width; an ellipsis marks the cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def encode_json(document: Any) -> bytes:
    """Returns a document as JSON; an argument that is not UTF-8 is written with escapes.

    Python hands bytes that are not UTF-8 on as lone surrogates, which JSON writes as `\\udcff`.
    """
    try:
        return msgspec.json.encode(document, enc_hook=_as_text)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(document), enc_hook=_as_text)


def _as_text(value: object) -> str:
    """Returns an object of a subclass of str, such as ERASED, as plain text."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a document cannot have a {type(value).__name__}")


def _escaped(document: Any) -> Any:
    if isinstance(document, str):
        return document if document.isascii() else msgspec.Raw(json.dumps(document))
    if isinstance(document, dict):
        table = cast("dict[str, Any]", document)
        return {key: _escaped(value) for key, value in table.items()}
    if isinstance(document, list | tuple):
        return [_escaped(item) for item in cast("list[Any]", document)]
    return document


def escape_json(text: str) -> str:
    """Returns equal JSON in which no character could drive a terminal."""
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


PREVIEW_ITEMS_MAX = 20


def encode_value(value: Any) -> Raw:
    """Returns a stored value as JSON, without a limit on its size: it is stored already."""
    return Raw(codec.encode(value, size_max=sys.maxsize))


def preview(value: Any) -> str:
    """Returns a value as one line of JSON for people; a large map or list as its size."""
    if isinstance(value, Map) and len(value) > PREVIEW_ITEMS_MAX:
        return f"{{{len(value)} keys}}"
    if isinstance(value, List) and len(value) > PREVIEW_ITEMS_MAX:
        return f"[{len(value)} items]"
    if isinstance(value, str) and len(value) > 1000:
        return clean(codec.encode(value[:1000]).decode())
    return clean(escape_json(codec.encode(value, size_max=sys.maxsize).decode()))


def show_time(moment: datetime) -> str:
    """Returns a time for people: UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def indent(value: Any) -> str:
    """Returns a value as indented JSON, safe to show."""
    data = msgspec.json.format(codec.encode(value, size_max=sys.maxsize), indent=2)
    return escape_json(data.decode())


def time_text(moment: datetime) -> str:
    """Returns a time for programs: UTC, ISO 8601, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def page_document(page: Page[Any]) -> dict[str, Any]:
    """Returns what each document of a page has: whether there is more, and the cursor."""
    return {"more": page.more, "cursor": page.cursor}


def show_summary(event: Event) -> str:
    """Returns what an event did, in short; an unknown type shows its data.

    The meta of the event comes last, as it is stored.
    """
    try:
        did = _summary(event)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # Not what we write under that type: another program wrote it, so it is shown as it is.
        did = preview(_stored(event))
    except CorruptError as error:
        if not isinstance(error.__cause__, RecursionError):
            raise
        # A result of a node may be nested deeper than Python decodes: it is sound all the same.
        did = clean(event.record.payload[:1000].decode("utf-8", "replace")) + "…"
    meta = event.record.meta
    return (
        did if meta is None else f"{did} {preview(codec.decode_as(meta.encode(), dict[str, Any]))}"
    )


def _stored(event: Event) -> Any:
    """Returns the data of an event as stored, which needs no code of the program that wrote it."""
    return event.raw if isinstance(event, OwnEvent) else event.data


def _summary(event: Event) -> str:
    if event.is_let_go:
        return "let go of"
    data = _stored(event)
    if event.type == "changed":
        return show_ops(data)
    if event.type == "restored":
        return f"to revision {data['to']}"
    if event.type == "forked":
        return f"from {data['from']} at revision {data['at']}"
    if event.type == "opened":
        return f"parent {data['parent']}"
    if event.type == "closed":
        return "state kept" if data["keep"] else "state dropped"
    if isinstance(data, dict) and (text := _said(event.type, cast("dict[str, Any]", data))):
        return text
    return "" if data is None else preview(data)


_SAID = {
    "decision.opened": "decision",
    "decision.closed": "outcome",
    "message.added": "text",
    "task.added": "title",
    "fact.stated": "name",
}
"""The field that has the words, by the type of event; for what people write."""
SHORT_ID = 12


def _said(type: str, data: dict[str, Any]) -> str:
    """Returns the words of a record, with its id before them if it has a short one."""
    words = data.get(_SAID.get(type, ""))
    if not isinstance(words, str):
        return ""
    id = data.get("id")
    is_short = isinstance(id, str) and len(id) <= SHORT_ID
    return f"{id}: {words}" if is_short else words


def show_ops(ops: list[Any]) -> str:
    """Returns the first op and how many follow."""
    if not ops:
        return "nothing"
    kind, path, *value = ops[0]
    place = show_path((path,) if isinstance(path, str) else tuple(path))
    first = f"{kind} {place}"
    if value:
        first += f" {shorten(preview(value[0]))}"
    return first if len(ops) == 1 else f"{first} (and {len(ops) - 1} more)"


_SIMPLE_KEY = re.compile(r"[^.\[\]\"'\s\x00-\x1f]+\Z")


def show_path(path: Path) -> str:
    """Returns a path as it is typed: the inverse of `parse_path`."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]" if shown else ""
        elif _SIMPLE_KEY.match(step):
            shown += f".{step}" if shown else step
        else:
            shown = ""
        if not shown:
            break
    return shown or json.dumps(list(path), ensure_ascii=False, separators=(",", ":"))


def change_cells(change: Change) -> tuple[str, str, str, str]:
    """Returns a change as a sign (+, - or ~), its path, the old value and the new one."""
    is_new, is_gone = change.old is MISSING, change.new is MISSING
    return (
        "+" if is_new else "-" if is_gone else "~",
        show_path(change.path),
        "" if is_new else shorten(preview(change.old)),
        "" if is_gone else shorten(preview(change.new)),
    )
