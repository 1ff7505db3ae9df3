"""A file that shows items: a form defines how they look, a source where they are in the log.

A person's changes are merged item by item and field by field; the base is the last text that the
log knows. If only one side changed a field, that side counts. If both did, the person's value
counts, and the conflict is reported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.joint_commit import JointCommit
from holdfast.scope import Scope
from holdfast.views.item import Fields, Finding, Item, ItemEdit, same
from holdfast.views.last_text import LastText
from holdfast.views.sources import Source, refusal

_PARSED_MAX = 4


class Document(Protocol):
    """A file as parsed by a form."""

    @property
    def items(self) -> list[Item]: ...
    def encode(self) -> bytes: ...


class Form(Protocol):
    """How items look in a file: `splice(parse(x), {})` is x."""

    @property
    def fields(self) -> tuple[str, ...]: ...
    def parse(self, data: bytes) -> Any: ...
    def splice(
        self,
        document: Any,
        items: Mapping[str, Fields],
        *,
        hidden: Mapping[str, Fields] | None = None,
        ids: Mapping[int, str] | None = None,
    ) -> Any: ...


class Seen(Struct, frozen=True):
    """How a file differs from the last text."""

    edits: list[ItemEdit]
    findings: list[Finding]
    removed: int
    """How many of the items that the last text had are gone."""
    had: int


class ItemView:
    """One file of items."""

    def __init__(self, path: str, source: Source, form: Form) -> None:
        self.path = path
        self.source = source
        self.form = form
        self._parsed: dict[bytes, Any] = {}

    @property
    def scope(self) -> Scope:
        """The scope that it shows."""
        return self.source.scope

    # --- reading ---------------------------------------------------------------------------------

    def document(self, data: bytes) -> Any:
        """Returns the text as a document; raises BrokenFile."""
        found = self._parsed.get(data)
        return self._remember(data, self.form.parse(data)) if found is None else found

    def _remember(self, data: bytes, document: Any) -> Any:
        if len(self._parsed) >= _PARSED_MAX:
            self._parsed.pop(next(iter(self._parsed)))
        self._parsed[data] = document
        return document

    def read(self, data: bytes, last: LastText | None, *, is_read: bool = True) -> Seen:
        """Returns what a person changed; raises BrokenFile.

        The base of the comparison is the last text. If nobody has read that yet (`is_read`), it is
        the last text that somebody may have read: a person who saves an older text has not changed
        what they have never seen.
        """
        items: list[Item] = self.document(data).items
        if last is None:
            return self._first(items)
        if data == last.data:
            return Seen([], [], 0, 0)
        told = [one for one in self.document(last.data).items if one.problem]
        known = self._accepted(self.document(last.data).items)
        before = _by_id(known)
        unread = {} if is_read else last.unread
        strangers = last.strangers or ()
        unnamed = Counter(signature(e.fields) for e in known if e.id is None)
        edits: list[ItemEdit] = []
        findings: list[Finding] = []
        seen: set[str] = set()
        for place, item in enumerate(items):
            id = item.id
            if id is None or id in seen:
                mark = signature(item.fields)
                if not item.fits:
                    findings += [] if item in told else [self._misfit(item)]
                elif id is None and unnamed[mark]:
                    unnamed[mark] -= 1
                else:
                    edits.append(ItemEdit(None, None, item.fields, place))
                continue
            seen.add(id)
            old = unread.get(id) or before.get(id)
            if item.problem and item not in told:
                findings.append(self._misfit(item))
            if old is None:
                if item.fits:
                    edits.append(ItemEdit(id, None, item.fields, place))
                continue
            # A part of an item that cannot be parsed counts as unchanged.
            after = {**old, **item.fields} if item.problem else item.fields
            is_changed = not same(after, old)
            if is_changed and id in strangers and item.fits:
                # It was refused before, and has been corrected: so it is new.
                edits.append(ItemEdit(id, None, item.fields, place))
            elif is_changed:
                edits.append(ItemEdit(id, old, after, place))
        gone = [id for id in before if id not in seen and unread.get(id, before) is not None]
        edits += [ItemEdit(id, before[id], None) for id in gone]
        return Seen(edits, findings, len(gone), len(before))

    def _first(self, items: list[Item]) -> Seen:
        """Returns the edits of a file without a last text: items that the log lacks are new."""
        now = self.source.items()
        edits: list[ItemEdit] = []
        findings: list[Finding] = []
        seen: set[str] = set()
        for place, item in enumerate(items):
            id = item.id
            if not item.fits:
                findings.append(self._misfit(item))
                seen |= set() if id is None else {id}
                continue
            if id is None or id in seen:
                edits.append(ItemEdit(None, None, item.fields, place))
                continue
            seen.add(id)
            if id not in now:
                edits.append(ItemEdit(id, None, item.fields, place))
            elif not same(self.visible(now[id]), item.fields):
                message = "nothing tells which is newer, the file or the log: the log's word counts"
                findings.append(Finding(self.path, "unknown", message, id))
        return Seen(edits, findings, 0, 0)

    def _misfit(self, item: Item) -> Finding:
        return Finding(self.path, "refused", item.problem, item.id)

    def _accepted(self, items: list[Item]) -> list[Item]:
        """Returns the items of a text without those that were refused entirely.

        A new item that did not fit stays in the file, so that its author can correct it. Once it is
        corrected it is new, and not a change of an item that the log never had.
        """
        if all(item.fits for item in items):
            return items
        now = self.source.items()
        return [item for item in items if item.fits or item.id in now]

    def visible(self, fields: Fields) -> dict[str, Any]:
        """Returns the fields that the form can show."""
        known = self.form.fields
        if all(name in known for name in fields):
            return dict(fields)
        return {name: fields[name] for name in known if name in fields}

    # --- importing -------------------------------------------------------------------------------

    def apply(self, tx: JointCommit, seen: Seen, key: str) -> tuple[list[Finding], dict[int, str]]:
        """Records edits in a joint commit; returns findings, and the new ids by place."""
        now = self.source.items()
        findings: list[Finding] = []
        ids: dict[int, str] = {}
        deferred: list[tuple[str, dict[str, Any]]] = []
        for number, edit in enumerate(seen.edits):
            if edit.before is None and edit.after is not None:
                added = self._added(tx, edit, now, f"{key}.{number}", findings)
                if added is not None:
                    ids[edit.place] = added
                    deferred.append((added, edit.after))
        for id, fields in deferred:
            for group in self.source.later:
                self._change(tx, id, {n: fields[n] for n in group if n in fields}, findings)
        for edit in seen.edits:
            if edit.before is not None and edit.id is not None:
                if edit.after is None:
                    self._remove(tx, edit, now, findings)
                else:
                    self._merge(tx, edit, now, findings)
        return findings, ids

    def _added(
        self,
        tx: JointCommit,
        edit: ItemEdit,
        now: Mapping[str, Fields],
        key: str,
        findings: list[Finding],
    ) -> str | None:
        assert edit.after is not None, "BUG: a new item without fields"
        if edit.id is not None and edit.id in now:
            return None
        try:
            id = self.source.add(tx, edit.id, edit.after, key)
        except HoldfastError as error:
            findings.append(self._refused(error, edit.id))
            return None
        findings.append(Finding(self.path, "added", str(edit.after.get("title", "")), id))
        return id

    def _merge(
        self, tx: JointCommit, edit: ItemEdit, now: Mapping[str, Fields], findings: list[Finding]
    ) -> None:
        assert edit.id is not None, "BUG: a change of an item without an id"
        before, after = edit.before or {}, edit.after or {}
        current = now.get(edit.id)
        if current is None:
            findings.append(Finding(self.path, "refused", "it is not in the log any more", edit.id))
            return
        wanted: dict[str, Any] = {}
        for name in edit.changed:
            old, theirs, ours = before.get(name), after.get(name), current.get(name)
            if same(theirs, ours):
                continue
            if not same(ours, old):
                message = f"{name}: {_shown(ours)} in the log, {_shown(theirs)} in the file"
                message += f", {_shown(old)} before; the file's counts"
                findings.append(Finding(self.path, "conflict", message, edit.id))
            wanted[name] = theirs
        grouped = [name for group in self.source.later for name in group]
        for group in (*self.source.later, *((n,) for n in wanted if n not in grouped)):
            self._change(tx, edit.id, {n: wanted[n] for n in group if n in wanted}, findings)

    def _change(
        self, tx: JointCommit, id: str, fields: dict[str, Any], findings: list[Finding]
    ) -> None:
        if not fields:
            return
        if self.source.is_append_only:
            message = f"{', '.join(fields)} changed: what was recorded never changes"
            findings.append(Finding(self.path, "refused", message, id))
            return
        try:
            self.source.change(tx, id, fields)
        except HoldfastError as error:
            findings.append(self._refused(error, id))
            return
        message = ", ".join(f"{name} is {_shown(value)}" for name, value in fields.items())
        findings.append(Finding(self.path, "changed", message, id))

    def _remove(
        self, tx: JointCommit, edit: ItemEdit, now: Mapping[str, Fields], findings: list[Finding]
    ) -> None:
        assert edit.id is not None, "BUG: a removal of an item without an id"
        current = now.get(edit.id)
        if current is None:
            return
        if self.source.is_append_only:
            message = "it was removed: what was recorded stays"
            findings.append(Finding(self.path, "refused", message, edit.id))
            return
        if self.visible(current) != edit.before and not self.source.is_hidden(current):
            message = "the log changed it, and its line was removed: the removal counts"
            findings.append(Finding(self.path, "conflict", message, edit.id))
        try:
            done = self.source.remove(tx, edit.id)
        except HoldfastError as error:
            findings.append(self._refused(error, edit.id))
            return
        if done:
            message = f"{done}: its line was removed"
            findings.append(Finding(self.path, "removed", message, edit.id))

    def _refused(self, error: HoldfastError, id: str | None) -> Finding:
        reason = refusal(error)
        if reason is None:
            raise error
        return Finding(self.path, "refused", reason, id)

    def added_before(self, seen: Seen, key: str) -> dict[int, str]:
        """Returns the ids that an earlier import of the same edits assigned, by place."""
        found: dict[int, str] = {}
        for number, edit in enumerate(seen.edits):
            if edit.before is None and edit.id is None:
                id = self.source.added(f"{key}.{number}")
                if id is not None:
                    found[edit.place] = id
        return found

    # --- writing ---------------------------------------------------------------------------------

    def render(
        self, data: bytes | None, named: Mapping[str, list[str]], last: LastText | None = None
    ) -> bytes:
        """Returns the text as it should be now: this one, with its items as the log has them.

        `named` has the ids of lines that show none, by the `signature` of the line. Items that the
        last text had, and that the log has taken back since, are removed.
        """
        document = self.document(b"" if data is None else data)
        now = self.source.items()
        left = {mark: list(ids) for mark, ids in named.items()}
        ids: dict[int, str] = {}
        known: set[str] = set()
        for place, item in enumerate(document.items):
            if item.id is None or item.id in known:
                waiting = left.get(signature(item.fields)) if item.fits else None
                if waiting:
                    ids[place] = waiting.pop(0)
                    known.add(ids[place])
            else:
                known.add(item.id)
        items = {
            id: self.visible(fields)
            for id, fields in now.items()
            if (id in known or self.source.is_shown(fields)) and not self.source.is_hidden(fields)
        }
        hidden = {id: self.visible(now[id]) for id in known & now.keys() if id not in items}
        if self.source.is_whole:
            hidden |= {id: {} for id in known - now.keys()}
        elif gone := known - now.keys():
            there = _by_id(document.items)
            for id in gone.difference(self.strangers(data or b"", last)):
                hidden[id] = {**there.get(id, {}), "status": "cancelled"}
        spliced = self.form.splice(document, items, hidden=hidden, ids=ids)
        new: bytes = spliced.encode()
        self._remember(new, spliced)
        return new

    def strangers(self, data: bytes, last: LastText | None) -> list[str]:
        """Returns the ids in a text that the log does not know, except those it has taken back.

        The log took an item back, as a rewind does, if the last text has it with the same fields
        and the log knew it then. If somebody has changed its line since, it is an edit, and stays.
        """
        now = self.source.items()
        found = _by_id(self.document(data).items)
        unknown = [id for id in found if id not in now]
        if not unknown or last is None:
            return unknown
        base = _by_id(self.document(last.data).items)
        before = base if last.strangers is None else last.strangers
        return [id for id in unknown if id in before or base.get(id) != found[id]]

    def unread(self, old: bytes, new: bytes, before: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the items in which a new text differs from the one that somebody last read.

        They are returned as in the text that was read; None if they were not in it. `before` has
        the items in which the old text itself already differs from it.
        """
        had = _by_id(self.document(old).items)
        typed = {signature(e.fields) for e in self.document(old).items if e.id is None}
        found = dict(before)
        for id, fields in _by_id(self.document(new).items).items():
            if id not in found and not same(had.get(id), fields) and signature(fields) not in typed:
                found[id] = had.get(id)
        return found


def signature(fields: Fields) -> str:
    """Returns the text by which a line without an id is identified: its fields."""
    try:
        return msgspec.json.encode(fields, order="sorted", enc_hook=str).decode()
    except UnicodeEncodeError:  # a text has a lone surrogate, which JSON writes as an escape
        return json.dumps(fields, sort_keys=True, default=str)


def _by_id(items: list[Item]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        if item.id is not None:
            found.setdefault(item.id, item.fields)
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, tuple):
        return ", ".join(str(one) for one in _each(value))  # pyright: ignore[reportUnknownArgumentType]
    return f'"{value}"'


def _each(value: tuple[Any, ...]) -> Iterator[Any]:
    return iter(value)
