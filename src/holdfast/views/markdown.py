"""A markdown file with items: finds their lines, and replaces those of changed items.

markdown-it-py finds the lines that are items of a list. Everything else in the file is kept byte
for byte: prose, fences, quotes, HTML, front matter, line ends and a byte order mark. Only the lines
of changed items are rendered: `splice(parse(x), {}) == x`.

In a list with boxes, an item is a line of a list that has a box or an id. In a list without boxes,
every first-level item of the lists below its heading is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnavailableError
from holdfast.views.grammar import FIELDS, id_comment, parse_line, render_line
from holdfast.views.item import BrokenFile, Fields, Item, decode_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_BOM = "\ufeff"
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|$)")
_BULLET = re.compile(r"[ \t]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+)+")
_NUMBER = re.compile(r"(\d{1,9})(?=[.)][ \t]+$)")
_BOXED = re.compile(r"\[.\](?:[ \t]|$)")
_HAS_ID = re.compile(r"<!--[ \t]*hf:\S+?[ \t]*-->[ \t]*$")
_FRONT = re.compile(r"---[ \t]*")
_MARKERS = ("<<<<<<<", "=======", ">>>>>>>")


class PlacedItem(Struct, frozen=True):
    """An item and its place: its first line, the number of lines of its text, and its end."""

    item: Item
    line: int
    lines: int
    end: int
    """The line after everything that belongs to it, notes and nested lists included."""
    prefix: str
    is_nested: bool = False

    @property
    def has_more(self) -> bool:
        """Whether something else belongs to it, such as notes or a nested list."""
        return self.end > self.line + self.lines


class MarkdownDocument(Struct, frozen=True):
    """A file in lines, with its items."""

    lines: tuple[str, ...]
    placed: tuple[PlacedItem, ...]
    insert_at: int
    """The line where the first items are inserted; -1 if their heading is missing."""
    has_bom: bool = False

    @property
    def items(self) -> list[Item]:
        """The items, in the order of the file."""
        return [one.item for one in self.placed]

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        text = "".join(self.lines)
        return (_BOM + text if self.has_bom else text).encode()

    @property
    def newline(self) -> str:
        """The line end of the file."""
        first = self.lines[0] if self.lines else ""
        return "\r\n" if first.endswith("\r\n") else "\r" if first.endswith("\r") else "\n"


class MarkdownList(Struct, frozen=True):
    """The form of a list in markdown; `heading` is the title above its items."""

    title: str
    has_box: bool = True
    heading: str | None = None
    suffix = ".md"
    fields = FIELDS

    # --- reading ---------------------------------------------------------------------------------

    def parse(self, data: bytes) -> MarkdownDocument:
        """Returns a file as a document; raises BrokenFile if it cannot be parsed."""
        text = decode_text(data)
        has_bom = text.startswith(_BOM)
        lines = _LINE.findall(text[1:] if has_bom else text)
        if lines and not lines[-1]:
            lines.pop()
        tokens = _parser().parse(_without_front_matter(lines))
        _refuse_markers(lines, tokens)
        first, last = 0, len(lines)
        if self.heading is not None:
            first, last = _section(lines, tokens, self.heading)
        placed = self._placed(lines, tokens, first, last)
        return MarkdownDocument(
            tuple(lines), tuple(placed), _trim(lines, first, last) if first >= 0 else -1, has_bom
        )

    def _placed(
        self, lines: list[str], tokens: list[Token], first: int, last: int
    ) -> list[PlacedItem]:
        found: list[PlacedItem] = []
        quotes = depth = 0
        for at, token in enumerate(tokens):
            kind = token.type
            if kind.startswith("blockquote"):
                quotes += token.nesting
            elif kind in ("bullet_list_open", "ordered_list_open"):
                depth += 1
            elif kind in ("bullet_list_close", "ordered_list_close"):
                depth -= 1
            elif kind == "list_item_open" and not quotes and token.map is not None:
                start, end = token.map
                if not first <= start < last or (depth > 1 and not self.has_box):
                    continue
                text = tokens[at + 1]
                if text.type != "paragraph_open" or text.map is None or text.map[0] != start:
                    continue
                one = self._item(lines, start, text.map[1], end, is_nested=depth > 1)
                if one is not None:
                    found.append(one)
        return found

    def _item(
        self, lines: list[str], start: int, stop: int, end: int, *, is_nested: bool
    ) -> PlacedItem | None:
        bullet = _BULLET.match(lines[start])
        if bullet is None:
            return None
        text = lines[start][bullet.end() :].rstrip("\r\n")
        count = 1
        if not _HAS_ID.search(text):
            # An editor may have wrapped a long line: then the id is at the end of a later one.
            for line in range(start + 1, stop):
                if _HAS_ID.search(lines[line].rstrip("\r\n")):
                    count = line - start + 1
                    more = [one.strip(" \t\r\n") for one in lines[start + 1 : line + 1]]
                    text = " ".join([text.rstrip(" \t"), *more])
                    break
            else:
                if self.has_box and not _BOXED.match(text):
                    return None
        item = parse_line(text, has_box=self.has_box)
        if "title" not in item.fields or not item.fields["title"].strip():
            if item.id is None:
                return None
            said = {name: value for name, value in item.fields.items() if name != "title"}
            item = Item(item.id, said, "it has no title: the title stays as it is")
        return PlacedItem(item, start, count, _trim(lines, start, end), bullet.group(), is_nested)

    # --- writing ---------------------------------------------------------------------------------

    def splice(
        self,
        document: MarkdownDocument,
        items: Mapping[str, Fields],
        *,
        hidden: Mapping[str, Fields] | None = None,
        ids: Mapping[int, str] | None = None,
    ) -> MarkdownDocument:
        """Returns the document with these items, and with every other byte unchanged.

        An item without a line gets one after the last. A hidden item loses its line, unless
        something else belongs to it. `ids` has, by place, the ids of lines that show none or a
        wrong one.
        """
        hidden, ids = hidden or {}, ids or {}
        lines: list[str] = []
        placed: list[PlacedItem] = []
        shown: set[str] = set()
        copied = 0
        for place, one in enumerate(document.placed):
            lines += document.lines[copied : one.line]
            copied = one.line + one.lines
            id = ids.get(place, one.item.id)
            if id in hidden and not one.has_more:
                continue
            fields = None if id is None else items.get(id, hidden.get(id))
            if id is not None and fields is not None:
                shown.add(id)
            new, item = self._line(one, document.lines[one.line : copied], id, fields)
            lines += new
            placed.append(one if item is one.item else replace(one, item=item))
        lines += document.lines[copied:]
        if len(lines) == len(document.lines):
            spliced = replace(document, lines=tuple(lines), placed=tuple(placed))
        else:
            text = "".join(lines)
            spliced = self.parse((_BOM + text if document.has_bom else text).encode())
        added = {id: fields for id, fields in items.items() if id not in shown}
        return self._with_added(spliced, added) if added else spliced

    def _line(
        self, one: PlacedItem, old: tuple[str, ...], id: str | None, fields: Fields | None
    ) -> tuple[tuple[str, ...], Item]:
        """Returns the lines of an item; the old ones if they are still right."""
        item = one.item
        if id is None or fields is None:
            return old, item
        if id == item.id and fields == item.fields and not item.problem:
            return old, item
        fields = {name: fields[name] for name in self.fields if name in fields}
        if fields == item.fields and not item.problem:
            if id == item.id:
                return old, item
            if item.id is None:
                text = old[-1].rstrip("\r\n")
                ending = old[-1][len(text) :]
                line = f"{text.rstrip(' ' + chr(9))} {id_comment(id)}{ending}"
                return (*old[:-1], line), Item(id, item.fields)
        ending = old[-1][len(old[-1].rstrip("\r\n")) :]
        text = render_line(id, fields, has_box=self.has_box)
        return (f"{one.prefix}{text}{ending}",), Item(id, fields)

    def _with_added(
        self, document: MarkdownDocument, added: Mapping[str, Fields]
    ) -> MarkdownDocument:
        """Returns the document with more items after its last one."""
        top = [one for one in document.placed if not one.is_nested]
        if not top:
            return self._begun(document, added)
        last = top[-1]
        lines = list(document.lines)
        prefix, at = last.prefix, last.end
        ending = lines[at - 1][len(lines[at - 1].rstrip("\r\n")) :]
        newline = ending or document.newline
        new: list[str] = []
        placed: list[PlacedItem] = []
        for number, (id, fields) in enumerate(added.items()):
            prefix = _NUMBER.sub(lambda found: str(int(found[1]) + 1), prefix)
            shown = {name: fields[name] for name in self.fields if name in fields}
            new.append(f"{prefix}{render_line(id, shown, has_box=self.has_box)}{newline}")
            place = at + number
            placed.append(PlacedItem(Item(id, shown), place, 1, place + 1, prefix))
        if not ending:
            lines[at - 1] += newline
            new[-1] = new[-1][: -len(newline)]
        lines[at:at] = new
        if any(one.end > at for one in document.placed):
            # Other items follow, nested in foreign ones: parse again to find their new places.
            text = "".join(lines)
            return self.parse((_BOM + text if document.has_bom else text).encode())
        return replace(
            document,
            lines=tuple(lines),
            placed=(*document.placed, *placed),
            insert_at=document.insert_at + len(new),
        )

    def _begun(self, document: MarkdownDocument, added: Mapping[str, Fields]) -> MarkdownDocument:
        """Returns the document with its first items.

        They go below their heading, or to the end of the file. If the end is inside an open block,
        such as a fence, they would be part of it; then they go to the top.
        """
        newline = document.newline
        known = [one.id for one in document.items]
        items: list[str] = []
        for id, fields in added.items():
            shown = {name: fields[name] for name in self.fields if name in fields}
            items.append(f"- {render_line(id, shown, has_box=self.has_box)}{newline}")
        lines = list(document.lines)
        at, new = document.insert_at, items
        if at < 0 or not lines:
            at = len(lines)
            level = "#" if not lines else "##"
            new = [f"{level} {self.heading or self.title}{newline}", newline, *items]
        if at and not lines[at - 1].endswith(("\r", "\n")):
            lines[at - 1] += newline
        if at and lines[at - 1].strip():
            new = [newline, *new]
        if at < len(lines) and lines[at].strip():
            new = [*new, newline]
        for place, text in ((at, new), (_front_lines(lines), [*new, newline, _CLOSE, newline])):
            tried = "".join([*lines[:place], *text, *lines[place:]])
            found = self.parse((_BOM + tried if document.has_bom else tried).encode())
            ids = [one.id for one in found.items if one.id not in added]
            if len(found.items) == len(ids) + len(added) and ids == known:
                return found
        raise BrokenFile("there is no place in it where a list could stand")


_CLOSE = "<!-- -->\n"
"""Ends a list, so that the text after it is not part of its last item."""


@cache
def _parser() -> MarkdownIt:
    """Returns a parser of blocks; the text within a line is parsed by `grammar`."""
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise UnavailableError(
            "files as views need markdown-it-py, which is not installed",
            hint='pip install "holdfast[views]"',
        ) from error
    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _front_lines(lines: list[str] | tuple[str, ...]) -> int:
    """Returns how many lines the front matter of a file takes."""
    if not lines or not _FRONT.fullmatch(lines[0].rstrip("\r\n")):
        return 0
    for at, line in enumerate(lines[1:], 1):
        if line.rstrip(" \t\r\n") in ("---", "..."):
            return at + 1
    return 0


def _without_front_matter(lines: list[str]) -> str:
    """Returns the text with empty lines in the place of the front matter, for the parser."""
    skipped = _front_lines(lines)
    return "\n" * skipped + "".join(lines[skipped:])


def _refuse_markers(lines: list[str], tokens: list[Token]) -> None:
    """Raises BrokenFile if there are conflict markers of a merge, except in code."""
    marked = [at for at, line in enumerate(lines) if line.startswith(_MARKERS)]
    if len(marked) < 3:
        return
    code = [
        range(*token.map)
        for token in tokens
        if token.type in ("fence", "code_block") and token.map is not None
    ]
    left = iter(at for at in marked if not any(at in one for one in code))
    if all(any(lines[at].startswith(marker) for at in left) for marker in _MARKERS):
        raise BrokenFile("it holds the markers of a merge that is not finished")


def _section(lines: list[str], tokens: list[Token], heading: str) -> tuple[int, int]:
    """Returns the first line below a heading, and the line after the last; -1, -1 without it."""
    level, first = "", -1
    for token in tokens:
        if token.type != "heading_open" or token.map is None or token.level:
            continue
        if first >= 0 and token.tag <= level:
            return first, token.map[0]
        if first < 0 and _title_of(lines[token.map[0]]) == heading.casefold():
            level, first = token.tag, token.map[1]
    return (first, len(lines)) if first >= 0 else (-1, -1)


def _title_of(line: str) -> str:
    return line.strip().strip("#").strip().casefold()


def _trim(lines: list[str], start: int, end: int) -> int:
    """Returns the end of a block without its trailing empty lines."""
    while end > start and not lines[end - 1].strip():
        end -= 1
    return end


def line_fields(fields: Fields) -> dict[str, Any]:
    """Returns the fields that a line can show."""
    return {name: fields[name] for name in FIELDS if name in fields}
