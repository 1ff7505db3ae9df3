r"""One item as one line of markdown, and back.

    - [ ] (high) build the form; after t1, t2; by ann <!-- hf:t3 -->

    line      = bullet [box] [priority] title {";" field} [id]
    box       = "[ ]" open | "[/]" in progress | "[!]" blocked | "[x]" completed | "[-]" cancelled
    priority  = "(low)" | "(high)" | "(" whole number ")"
    field     = "after" ids | "by" name | "epic" name | "tags" names
              | "why" text | "outcome" text | "note" text
    id        = "<!-- hf:" id " -->"

Escapes are those of markdown: a backslash before punctuation stands for that character, and a
number such as `&#10;` for a character that no line can hold. A `;` in a title is written `\;`, a
`,` in a name of a list `\,`. Text after a `;` that does not begin with the word of a field is part
of the title, because people type semicolons. `parse_line(render_line(item))` is the item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from holdfast.record.keyed_item import PRIORITIES
from holdfast.views.item import Item, plain_fields

BOXES = {"open": " ", "in_progress": "/", "blocked": "!", "completed": "x", "cancelled": "-"}
_STATUSES = {box: status for status, box in BOXES.items()} | {"X": "completed", "~": "in_progress"}
_LISTS = {"after": "dependencies", "tags": "tags"}
_WORDS = {
    **_LISTS,
    "by": "owner",
    "epic": "epic",
    "why": "why",
    "outcome": "outcome",
    "note": "note",
}
FIELDS = ("title", "status", "priority", *_WORDS.values())
"""The fields of an item that a line can show."""
_NAMES = {number: word for word, number in PRIORITIES.items() if number}

_PUNCTUATION = r"!-/:-@\[-`{-~"
_ESCAPED = re.compile(rf"\\([{_PUNCTUATION}])|&#(?:(\d{{1,7}})|[xX]([0-9a-fA-F]{{1,6}}));")
_UNSAFE = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ufeff\ud800-\udfff]")
_ID = re.compile(r"[ \t]*<!--[ \t]*hf:(\S+?)[ \t]*-->[ \t]*$")
_BOX = re.compile(r"\[(.)\](?:[ \t]+|$)")
_PRIORITY = re.compile(r"\((low|normal|high|-?\d{1,9})\)(?:[ \t]+|$)")
_FIELD = re.compile(rf"[ \t]*({'|'.join(_WORDS)})[ \t]+(.*)", re.DOTALL)
_BLOCK = re.compile(r"(?=[#>\-+*`~=_<\[|:(])|\d{1,9}(?=[.)])|(?=\\)")
"""Beginnings of a line without a box that markdown would take for something else."""


# --- escapes -------------------------------------------------------------------------------------


def escape(text: str, more: str = "") -> str:
    """Returns a text with escapes, as in a line; the characters in `more` are escaped too."""
    if not _needs_escape(text, more):
        return text
    special = ";" + more
    pieces: list[str] = []
    last = len(text) - 1
    for at, one in enumerate(text):
        if _UNSAFE.match(one) or (one == " " and at in (0, last)):
            pieces.append(f"&#{ord(one)};")
        elif (
            one in special
            or (one == "&" and text[at + 1 : at + 2] == "#")
            or (one == "<" and text.startswith("!--", at + 1))
        ):
            pieces.append("\\" + one)
        else:
            pieces.append(one)
    for at in range(last, -1, -1):
        if pieces[at] == "\\" and (at == last or re.match(f"[{_PUNCTUATION}]", pieces[at + 1])):
            pieces[at] = "\\\\"
    return "".join(pieces)


def _needs_escape(text: str, more: str) -> bool:
    if text[:1] == " " or text[-1:] == " " or _UNSAFE.search(text):
        return True
    return any(one in text for one in (";", "\\", "&#", "<!--", *more))


def unescape(text: str) -> str:
    """Returns the text without its escapes."""
    if "\\" not in text and "&#" not in text:
        return text
    return _ESCAPED.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    number = int(found[2]) if found[2] else int(found[3], 16)
    return chr(number) if number <= 0x10FFFF else found.group()


def _split(text: str, separator: str) -> list[str]:
    """Returns the parts between separators that are not part of an escape."""
    if separator not in text:
        return [text]
    parts: list[str] = []
    start = 0
    for found in re.finditer(f"{_ESCAPED.pattern}|{separator}", text):
        if found.group() == separator:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


# --- lines ---------------------------------------------------------------------------------------


def parse_line(text: str, *, has_box: bool = True) -> Item:
    """Returns the item of a line, which is given without its bullet."""
    fields: dict[str, Any] = {}
    problem = ""
    found = _ID.search(text)
    id = None
    if found is not None:
        id, text = unquote(found[1]), text[: found.start()]
    if has_box:
        box = _BOX.match(text)
        if box is None:
            problem = "it has no box: its status stays as it is"
        elif box[1] not in _STATUSES:
            problem = f"[{box[1]}] is no box: its status stays as it is"
            text = text[box.end() :]
        else:
            fields["status"] = _STATUSES[box[1]]
            text = text[box.end() :]
    if (priority := _PRIORITY.match(text)) is not None:
        word = priority[1]
        fields["priority"] = PRIORITIES[word] if word in PRIORITIES else int(word)
        text = text[priority.end() :]
    parts = _split(text, ";")
    while len(parts) > 1 and (field := _FIELD.fullmatch(parts[-1])) is not None:
        if _WORDS[field[1]] in fields:
            break
        fields[_WORDS[field[1]]] = _value(field[1], field[2])
        parts.pop()
    title = unescape(";".join(parts).strip(" \t"))
    return Item(id, plain_fields({"title": title, **fields}), problem)


def _value(word: str, text: str) -> Any:
    if word not in _LISTS:
        return unescape(text.strip(" \t"))
    names = (unescape(part.strip(" \t")) for part in _split(text, ","))
    return tuple(dict.fromkeys(name for name in names if name))


def render_line(id: str | None, fields: Mapping[str, Any], *, has_box: bool = True) -> str:
    """Returns the line of an item, without its bullet."""
    parts: list[str] = []
    if has_box:
        parts.append(f"[{BOXES[fields.get('status', 'open')]}]")
    if priority := fields.get("priority", 0):
        parts.append(f"({_NAMES.get(priority, priority)})")
    title = escape(fields.get("title", ""))
    if _PRIORITY.match(title):
        title = "\\" + title
    elif not parts and (begins := _BLOCK.match(title)) and not title.startswith("\\"):
        title = f"{title[: begins.end()]}\\{title[begins.end() :]}"
    parts.append(title)
    text = " ".join(parts)
    for word, name in _WORDS.items():
        if name in fields:
            text += f"; {word} {_shown(word, fields[name])}"
    return text if id is None else f"{text} {id_comment(id)}"


def _shown(word: str, value: Any) -> str:
    if word not in _LISTS:
        return escape(str(value))
    names: Iterable[str] = value
    return ", ".join(escape(name, ",") for name in names)


def id_comment(id: str) -> str:
    """Returns the comment that names an item at the end of its line."""
    text = quote(id, safe="/:@+,=").replace("--", "-%2D").replace("--", "-%2D")
    return f"<!-- hf:{text} -->"
