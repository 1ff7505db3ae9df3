"""Files that only grow: `events.yaml`, `catch-log.tsv`. A row has no id, only its content.

New rows are imported. A changed or removed row is refused, reported with a difference, and put
back: the file is written again from the last text that the log knows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any, Protocol, cast

from msgspec import Struct

from holdfast.core.own_event import OwnEvent
from holdfast.errors import HoldfastError
from holdfast.joint_commit import JointCommit, recorder_of
from holdfast.record.catches import log_catch
from holdfast.record.context import context_of
from holdfast.scope import Scope
from holdfast.views.item import BrokenFile, Finding, Item, ItemEdit, decode_text, plain_fields
from holdfast.views.item_view import Seen, signature
from holdfast.views.last_text import LastText
from holdfast.views.sources import as_stored, refusal
from holdfast.views.yaml_text import (
    block_end,
    dump_block,
    load_yaml,
    plain_mapping,
    refuse_markers,
    split_lines,
    without_list,
)

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_ESCAPED = re.compile(r"\\([\\tnr])")
_BACK = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


class RowDocument(Struct, frozen=True):
    """A file of rows, in their order."""

    text: str
    items: list[Item]

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        return self.text.encode()


class RowForm(Protocol):
    """How rows look in a file."""

    def parse(self, data: bytes) -> RowDocument: ...
    def append(self, document: RowDocument, rows: list[dict[str, Any]]) -> RowDocument: ...


class TsvRows(Struct, frozen=True):
    """Rows of columns separated by tabs, below a line with the names of the columns."""

    columns: tuple[str, ...]

    def parse(self, data: bytes) -> RowDocument:
        """Returns a file as a document; raises BrokenFile if it cannot be parsed."""
        text = decode_text(data)
        refuse_markers(text)
        items: list[Item] = []
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            line = line.rstrip("\r")
            if not line.strip() or line.startswith("#"):
                continue
            cells = [_ESCAPED.sub(lambda found: _BACK[found[1]], one) for one in line.split("\t")]
            if tuple(cells) == self.columns:
                continue
            if len(cells) > len(self.columns):
                raise BrokenFile(f"line {number} has more than {len(self.columns)} columns")
            row = {name: cell or None for name, cell in zip(self.columns, cells, strict=False)}
            items.append(Item(None, plain_fields(row)))
        return RowDocument(text, items)

    def append(self, document: RowDocument, rows: list[dict[str, Any]]) -> RowDocument:
        """Returns the document with more rows at its end."""
        text = document.text
        ending = "\r\n" if "\r\n" in text else "\n"
        if not text:
            text = "\t".join(self.columns) + ending
        if rows and not text.endswith("\n"):
            text += ending
        for row in rows:
            cells = (_cell(row.get(name, "")) for name in self.columns)
            text += "\t".join(cells).rstrip("\t") + ending
        items = [*document.items, *(Item(None, plain_fields(row)) for row in rows)]
        return RowDocument(text, items)


def _cell(value: Any) -> str:
    return "".join(_ESCAPES.get(one, one) for one in str(value))


class YamlRows(Struct, frozen=True):
    """Rows as mappings in a list below one key."""

    columns: tuple[str, ...]
    root: str = "events"

    def parse(self, data: bytes) -> RowDocument:
        """Returns a file as a document; raises BrokenFile if it cannot be parsed."""
        text = decode_text(data)
        loaded = load_yaml(text)
        rows: Any = [] if loaded is None else plain_mapping(loaded).get(self.root)
        if rows is not None and not isinstance(rows, list):
            raise BrokenFile(f'"{self.root}" is no list')
        items: list[Item] = []
        for row in cast("list[Any]", rows or []):
            if not isinstance(row, dict):
                raise BrokenFile(f'"{self.root}" holds {row!r}, which is no mapping')
            items.append(Item(None, plain_fields(cast("dict[str, Any]", row))))
        return RowDocument(text, items)

    def append(self, document: RowDocument, rows: list[dict[str, Any]]) -> RowDocument:
        """Returns the document with more rows at the end of its list.

        Raises BrokenFile if the result does not parse as the old rows followed by the new ones.
        """
        text, indent = document.text, 2
        ending = "\r\n" if "\r\n" in text else "\n"
        rest = ""
        if document.items:
            text, rest, indent = self._cut(text)
        else:
            text, rest = self._begun(text)
        if text and not text.endswith("\n"):
            text += ending
        if not rows:
            return self.parse(f"{text}{self.root}: []{ending}{rest}".encode())
        if not document.items:
            text = f"{text}{self.root}:{ending}"
        shown = [{k: row[k] for k in self.columns if k in row} for row in rows]
        made = text + "".join(dump_block(shown, ending, indent)) + rest
        found = self.parse(made.encode())
        wanted = [*document.items, *(Item(None, plain_fields(row)) for row in shown)]
        if [one.fields for one in found.items] != [one.fields for one in wanted]:
            raise BrokenFile(f'the list "{self.root}" cannot be added to as it is written')
        return found

    def _begun(self, text: str) -> tuple[str, str]:
        """Returns the text before and after a list that is empty, or not there yet."""
        loaded = load_yaml(text)
        if not isinstance(loaded, Mapping) or self.root not in loaded:
            return text, ""
        before, after = without_list(split_lines(text), cast("Any", loaded), self.root)
        return "".join(before), "".join(after)

    def _cut(self, text: str) -> tuple[str, str, int]:
        """Returns the text up to the end of the list, the rest, and the indentation of the rows."""
        loaded, lines = load_yaml(text), split_lines(text)
        sequence = loaded[self.root]
        if sequence.fa.flow_style():
            raise BrokenFile(f'the list "{self.root}" is written in one line: write one row to it')
        last: int = sequence.lc.item(len(sequence) - 1)[0]
        later: list[int] = [loaded.lc.key(key)[0] for key in loaded]
        after = min((line for line in later if line > last), default=-1)
        end = len(lines) if after < 0 else block_end(lines, last, after)
        indent = len(lines[last]) - len(lines[last].lstrip(" "))
        return "".join(lines[:end]), "".join(lines[end:]), indent


class RowSource(Protocol):
    """Where rows are in the log."""

    @property
    def scope(self) -> Scope: ...
    def rows(self) -> list[dict[str, Any]]: ...
    def add(self, tx: JointCommit, row: Mapping[str, Any]) -> None: ...


class EventRows(Struct, frozen=True):
    """The scope's own events: when, of which type, by whom, and what they refer to."""

    scope: Scope
    columns = ("date", "time", "type", "agent", "commit", "ref", "summary", "backrefs")

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, oldest first."""
        found = (event for event in self.scope.history() if isinstance(event, OwnEvent))
        return [_event_row(event) for event in found]

    def add(self, tx: JointCommit, row: Mapping[str, Any]) -> None:
        """Records a row that somebody wrote, exactly as they wrote it."""
        stored = {name: as_stored(value) for name, value in row.items()}
        given = [one for one in row.get("backrefs", ()) if isinstance(one, str)]
        refs = [one if ":" in one else f"file:{one}" for one in given]
        kind = re.sub(r"\W+", "_", str(row.get("type", "")).lower()).strip("_0123456789")
        tx.scope(self.scope).record(kind or "entry", stored, refs=refs, unchecked=True)


def _event_row(event: OwnEvent) -> dict[str, Any]:
    """Returns an event as a row; columns in its data override the envelope, except its type.

    An event that somebody wrote into the file is shown as they wrote it.
    """
    data: Any = event.raw
    said = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    row: dict[str, Any] = {
        "date": event.time.strftime("%Y-%m-%d"),
        "time": event.time.strftime("%H:%M"),
        "type": event.type,
        "agent": event.actor,
    }
    if event.source == "file" and not event.version and _is_row(said):
        return plain_fields({name: said[name] for name in EventRows.columns if name in said})
    refs = list(event.refs)
    commits = [one.partition(":")[2] for one in refs if one.startswith("commit:")]
    if commits:
        row["commit"] = commits[0]
    others = [one for one in refs if not one.startswith("commit:")]
    if others:
        row["backrefs"] = others
    known = {name: said[name] for name in EventRows.columns if name in said}
    own = known.pop("type", None)
    if "summary" not in known:
        known["summary"] = ", ".join(f"{name}: {value}" for name, value in said.items())
    elif own is not None:
        known["summary"] = f"{known['summary']} (type: {own})"
    return plain_fields({**row, **known})


def _is_row(said: Mapping[str, Any]) -> bool:
    """Returns whether data may be a row that somebody wrote, perhaps with further columns."""
    return said.keys() <= set(EventRows.columns) or {"date", "type"} <= said.keys()


class CatchRows(Struct, frozen=True):
    """The catches of controls in a scope."""

    scope: Scope
    columns = ("date", "control", "caught", "agent", "outcome", "notes")

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, oldest first."""
        return [
            plain_fields(
                {
                    "date": one.time.strftime("%Y-%m-%d"),
                    "control": one.control,
                    "caught": one.caught,
                    "agent": one.actor,
                    "outcome": one.outcome,
                    "notes": one.notes,
                }
            )
            for one in self.scope.decisions.catches()
        ]

    def add(self, tx: JointCommit, row: Mapping[str, Any]) -> None:
        """Logs a catch that somebody wrote; the date and agent in the row go into its notes."""
        recorder = recorder_of(tx.scope(self.scope))
        said = [f"{name} {row[name]}" for name in ("date", "agent") if name in row]
        notes = "; ".join([*([str(row["notes"])] if "notes" in row else []), *said])
        log_catch(
            context_of(recorder),
            recorder,
            row.get("caught"),
            control=row.get("control", "review"),
            outcome=row.get("outcome"),
            notes=notes or None,
        )


class RowView:
    """One file of rows that only grows."""

    def __init__(self, path: str, source: RowSource, form: RowForm) -> None:
        self.path = path
        self.source = source
        self.form = form

    @property
    def scope(self) -> Scope:
        """The scope that it shows."""
        return self.source.scope

    def document(self, data: bytes) -> RowDocument:
        """Returns the text as a document; raises BrokenFile."""
        return self.form.parse(data)

    def read(self, data: bytes, last: LastText | None, *, is_read: bool = True) -> Seen:
        """Returns the new rows, and findings about changed or removed ones; raises BrokenFile."""
        rows = [signature(item.fields) for item in self.document(data).items]
        fields = [item.fields for item in self.document(data).items]
        if last is None:
            new = _lacking(rows, Counter(signature(row) for row in self.source.rows()))
            return Seen([ItemEdit(None, None, fields[at], at) for at in new], [], 0, 0)
        before = [signature(item.fields) for item in self.document(last.data).items]
        edits: list[ItemEdit] = []
        findings: list[Finding] = []
        gone: Counter[str] = Counter()
        for kind, i, j, k, m in SequenceMatcher(None, before, rows, False).get_opcodes():
            changed = min(j - i, m - k) if kind == "replace" else 0
            for number in range(i, j) if kind in ("delete", "replace") else ():
                done = "changed" if number < i + changed else "removed"
                message = f"row {number + 1} was {done}: what was recorded stays as it is"
                findings.append(Finding(self.path, "refused", message))
                gone[before[number]] += 1
            if kind in ("insert", "replace"):
                edits += [ItemEdit(None, None, fields[at], at) for at in range(k + changed, m)]
        # A row that was moved is not new.
        moved = set(_places_of(gone, [(edit.place, rows[edit.place]) for edit in edits]))
        return Seen([edit for edit in edits if edit.place not in moved], findings, 0, 0)

    def apply(self, tx: JointCommit, seen: Seen, key: str) -> tuple[list[Finding], dict[int, str]]:
        """Records new rows in a joint commit."""
        findings: list[Finding] = []
        for edit in seen.edits:
            row = edit.after or {}
            try:
                self.source.add(tx, row)
            except HoldfastError as error:
                reason = refusal(error)
                if reason is None:
                    raise
                findings.append(Finding(self.path, "refused", reason))
                continue
            text = str(row.get("summary") or row.get("caught") or "a row")
            findings.append(Finding(self.path, "added", text))
        return findings, {}

    def added_before(self, seen: Seen, key: str) -> dict[int, str]:
        """Returns nothing: a row has no id."""
        return {}

    def render(
        self, data: bytes | None, named: Mapping[str, list[str]], last: LastText | None = None
    ) -> bytes:
        """Returns the text with the rows that it lacks.

        If it has rows that the log does not have, lacks some that the last text had, or has them
        in another order, the rows are added to the last text instead.
        """
        rows = self.source.rows()
        base = b"" if last is None else last.data
        wanted = Counter(signature(row) for row in rows)
        had = [signature(item.fields) for item in self.document(base).items]
        had = [row for row in had if row in wanted]
        for text in (b"" if data is None else data, base, b""):
            document = self.document(text)
            shown = [signature(item.fields) for item in document.items]
            there = Counter(shown)
            if not there - wanted and _is_within(had, shown):
                break
        missing = [rows[at] for at in _lacking([signature(row) for row in rows], there)]
        if not missing and document.text:
            return document.encode()
        return self.form.append(document, missing).encode()

    def strangers(self, data: bytes, last: LastText | None) -> list[str]:
        """Returns nothing: a row has no id."""
        return []

    def unread(self, old: bytes, new: bytes, before: Mapping[str, Any]) -> dict[str, Any]:
        """Returns nothing: what was recorded never changes."""
        return {}


def _is_within(part: list[str], whole: list[str]) -> bool:
    """Returns whether `part` is a subsequence of `whole`."""
    rest = iter(whole)
    return all(row in rest for row in part)


def _places_of(gone: Counter[str], rows: list[tuple[int, str]]) -> list[int]:
    """Returns the places of the rows that were moved: each as often as it is in `gone`."""
    left, found = Counter(gone), list[int]()
    for place, row in rows:
        if left[row] > 0:
            left[row] -= 1
            found.append(place)
    return found


def _lacking(rows: list[str], there: Counter[str]) -> list[int]:
    """Returns the places of the rows that are missing in `there`; of equal rows, the last."""
    left = Counter(rows) - there
    found: list[int] = []
    for at in range(len(rows) - 1, -1, -1):
        if left[rows[at]] > 0:
            left[rows[at]] -= 1
            found.append(at)
    return found[::-1]
