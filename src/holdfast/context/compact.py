"""The compact form of a project: one line for each item, in few tokens. Pure functions.

    hf1 team/red                                  the form and the scope
    order o1 answer in English ; customers read it
    goal g1 ship version 2
    task t1 ~ !5 @ann >t0,t2 #ui %forms build the form ; its note
    open d1 keep the form plain ; it is quick ; write form.py
    fact branch "main"

A task has `~` in progress, `=` blocked, `!` its priority, `@` its owner, `>` what it waits for, `#`
a tag, `%` its epic, each if it has one. Texts are separated by ` ; `. In a text, `;` is escaped by
a backslash, a line break is `\\n`, and a backslash also precedes a sign that begins the text.
Spaces in names and ids are escaped. Everything that is encoded can be decoded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.core import codec
from holdfast.errors import UsageError, show_value

FORM = "hf1"
KINDS = ("order", "goal", "task", "open", "fact")
_SIGNS = "~=!@>#%"
_STATUSES = {"in_progress": "~", "blocked": "="}
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", ";": "\\;"}
_SPECIAL = re.compile(r"[\\\n\r;]")
_UNESCAPED = {"n": "\n", "r": "\r", "s": " ", "c": ",", "t": "\t", "e": ""}


class CompactItem(Struct, frozen=True, kw_only=True):
    """One item of a project, with the fields of its kind."""

    kind: str
    id: str
    texts: tuple[str, ...] = ()
    status: str = "open"
    priority: int = 0
    owner: str | None = None
    waits: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    epic: str | None = None


def encode_items(scope: str, items: Iterable[CompactItem]) -> str:
    """Encodes the items of a scope as lines."""
    return "\n".join([f"{FORM} {_name(scope)}", *map(_line, items)]) + "\n"


def _line(item: CompactItem) -> str:
    words = [item.kind, _name(item.id)]
    if item.status in _STATUSES:
        words.append(_STATUSES[item.status])
    if item.priority:
        words.append(f"!{item.priority}")
    if item.owner is not None:
        words.append(f"@{_name(item.owner)}")
    if item.waits:
        words.append(">" + ",".join(map(_name, item.waits)))
    words += [f"#{_name(tag)}" for tag in item.tags]
    if item.epic is not None:
        words.append(f"%{_name(item.epic)}")
    texts = list(item.texts)
    while texts and not texts[-1]:
        texts.pop()
    if texts:
        words.append(" ; ".join(_text(text) for text in texts))
    return " ".join(words)


def _text(text: str) -> str:
    escaped = _SPECIAL.sub(lambda match: _ESCAPES[match[0]], text)
    if not escaped:
        return "\\e"
    if escaped[0] in _SIGNS or escaped[0] == " ":
        escaped = "\\s" + escaped[1:] if escaped[0] == " " else "\\" + escaped
    return escaped[:-1] + "\\s" if escaped.endswith(" ") else escaped


def _name(name: str) -> str:
    escaped = _SPECIAL.sub(lambda match: _ESCAPES[match[0]], name)
    return escaped.replace(" ", "\\s").replace(",", "\\c").replace("\t", "\\t")


def decode_items(text: str) -> tuple[str, list[CompactItem]]:
    """Decodes lines into the scope and its items; raises UsageError for other text."""
    lines = text.split("\n")
    form, _, scope = lines[0].partition(" ")
    if form != FORM or not scope:
        raise UsageError(f"a compact project begins with {FORM}, found {show_value(lines[0])}")
    return _plain(scope), [_item(line) for line in lines[1:] if line]


def _item(line: str) -> CompactItem:
    kind, _, rest = line.partition(" ")
    id, _, rest = rest.partition(" ")
    if kind not in KINDS or not id:
        raise UsageError(
            f"a line of a compact project begins with one of {', '.join(KINDS)} and an id, "
            f"found {show_value(line)}"
        )
    fields: dict[str, Any] = {}
    tags: list[str] = []
    while rest[:1] and rest[0] in _SIGNS:
        word, _, rest = rest.partition(" ")
        sign, value = word[0], word[1:]
        match sign:
            case "~" | "=":
                fields["status"] = "in_progress" if sign == "~" else "blocked"
            case "!":
                fields["priority"] = int(value)
            case "@":
                fields["owner"] = _plain(value)
            case ">":
                fields["waits"] = tuple(_plain(one) for one in value.split(","))
            case "#":
                tags.append(_plain(value))
            case _:
                fields["epic"] = _plain(value)
    texts = tuple(_plain(one) for one in rest.split(" ; ")) if rest else ()
    return CompactItem(kind=kind, id=_plain(id), texts=texts, tags=tuple(tags), **fields)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _UNESCAPED.get(match[1], match[1]), text, flags=re.DOTALL)


def trimmed(texts: Sequence[str | None]) -> tuple[str, ...]:
    """Returns texts without the empty ones at the end."""
    found = [text or "" for text in texts]
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def value_text(value: Any) -> str:
    """Returns the text of a fact's value: JSON with sorted keys."""
    return codec.encode_sorted(value).decode()
