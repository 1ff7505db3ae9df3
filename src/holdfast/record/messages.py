"""Messages: what was said in a conversation, each durable when the call returns.

A message changes no state, so adding one to a conversation of a million others folds nothing and
reads nothing but the newest event. `message.py` has the events, `history.py` how they are read,
`changing.py` what becomes of messages that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from holdfast import codec
from holdfast.arguments import update_ops
from holdfast.errors import UsageError, show_value
from holdfast.record import message as forms
from holdfast.record.changing import Changing
from holdfast.record.message import (
    FileChange,
    Message,
    Spill,
    check_fields,
    encode,
    key_of,
    make_id,
)
from holdfast.record.scan import Scan
from holdfast.record.turns import OpenTurn, make_turn
from holdfast.record.within import refuse_in_body
from holdfast.wanted import Cleared, Mark, Proposal, Record, Wanted, Written, changed

_END = 1 << 62
"""No stream is so long."""


class Said(Struct, frozen=True):
    """Messages on their way: the commit that adds them, and which of its events they are."""

    wanted: Wanted
    first: int
    count: int
    turn: OpenTurn | None


class Messages(Changing):
    """The messages of one conversation: a sequence to read, and everything that changes it."""

    # --- adding ----------------------------------------------------------------------------------

    def add(
        self,
        role: str | None = None,
        content: str | list[Any] | None = None,
        *,
        parts: list[Any] | None = None,
        tool_calls: list[dict[str, Any]] | None = None,
        tool_call_id: str | None = None,
        usage: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        links: Iterable[object] | None = None,
        files: Iterable[FileChange] | None = None,
        foreign: Any = None,
        foreign_id: str | None = None,
        said_at: datetime | None = None,
        turn: OpenTurn | None = None,
        state: Mapping[str, Any] | None = None,
        key: str | None = None,
        expected: int | None = None,
    ) -> Message:
        """Adds a message and returns it; durable when it returns.

        `foreign` is another program's item, kept exactly; `foreign_id` is its id there, and adds
        it once, however often it is sent. `state` is set in the same commit.
        """
        given = {
            "role": role,
            "content": content,
            "parts": parts,
            "tool_calls": tool_calls,
            "tool_call_id": tool_call_id,
            "usage": usage,
            "metadata": metadata,
            "links": links,
            "files": files,
            "foreign": foreign,
            "foreign_id": foreign_id,
            "said_at": said_at,
        }
        if foreign_id is not None and key is None:
            return self._add_once(given, turn, state, expected)
        said = self.prepare([given], turn=turn, state=state, key=key, expected=expected)
        return self.made(said, self._log.commit(said.wanted))[0]

    def add_many(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        turn: OpenTurn | None = None,
        state: Mapping[str, Any] | None = None,
        key: str | None = None,
        expected: int | None = None,
    ) -> list[Message]:
        """Adds several messages, each a mapping with the names of `add`, all or nothing.

        Items with a `foreign_id` are each told apart by it, and one commit has one key: so unless
        `key` is given they are one commit each, in one batch with one sync. What a crash leaves
        out of it is added, and nothing twice, when they are sent again.
        """
        given = [_check_item(item) for item in _listed(items)]
        if not given:
            return []
        if key is None and any(item.get("foreign_id") is not None for item in given):
            if turn is None and state is None and expected is None:
                return self._add_batch(given)
            return [self._add_once(item, turn, state, expected) for item in given]
        said = self.prepare(given, turn=turn, state=state, key=key, expected=expected)
        return self.made(said, self._log.commit(said.wanted))

    def prepare(
        self,
        given: list[dict[str, Any]],
        *,
        turn: OpenTurn | None = None,
        state: Mapping[str, Any] | None = None,
        key: str | None = None,
        expected: int | None = None,
        spill: Spill | None = None,
    ) -> Said:
        """Returns the commit that adds messages; large parts of them are written by now."""
        clock = self._log.clock
        proposals: list[Proposal] = []
        marks: tuple[Mark | Cleared, ...] = ()
        if turn is not None:
            begun, marks = _check_turn(turn, self).begin()
            proposals += begun
        first = len(proposals)
        for number, item in enumerate(given):
            fields = check_fields(item)
            if "id" not in fields:
                # A retry with the same key must have the same bytes, and so the same id.
                made = fields.get("foreign_id") or (f"{key}/{number}" if key and number else key)
                fields = {"id": made or make_id(clock, fields, number), **fields}
            if turn is not None:
                fields["turn"] = turn.id
                fields["foreign"] = fields.pop("foreign", None)  # the last one, still
                if fields["foreign"] is None:
                    del fields["foreign"]
            payload = encode(fields, spill or self._spill)
            proposals.append(Proposal(forms.ADDED, payload))
        if state is not None:
            ops = [self._log.blobs.spill(op, self.name) for op in update_ops(state)]
            proposals.append(changed(ops))
        part = self._recorder.events_part(tuple(proposals), expected=expected, key=key)
        return Said(Wanted((part,), marks=marks), first, len(given), turn)

    def made(self, said: Said, written: Written) -> list[Message]:
        """Returns the messages that a commit added, now that it is durable."""
        part = said.wanted.parts[0]
        after = written.after[0]
        if said.turn is not None:
            said.turn.committed()
        self._scope.subscribers.tell(part, written.before[0], after)
        before = after.revision - len(part.proposals) + 1
        return [
            Message(
                Record(self.name, before + at, after.time, forms.ADDED, self._log.actor,
                       part.proposals[at].payload, b"", part.key if at == 0 else None),
                self._log.blobs.read,
            )
            for at in range(said.first, said.first + said.count)
        ]  # fmt: skip

    def _add_once(
        self,
        given: dict[str, Any],
        turn: OpenTurn | None,
        state: Mapping[str, Any] | None,
        expected: int | None,
    ) -> Message:
        """Adds a foreign item, unless it is there already."""
        refuse_in_body("adding a foreign item without a key=")
        again = 0
        while True:
            key = key_of(check_fields(given)["foreign_id"], again)
            there = self._inherited(key)
            if there is None:
                said = self.prepare([given], turn=turn, state=state, key=key, expected=expected)
                try:
                    written = self._log.commit(said.wanted)
                except UsageError:
                    there = self._by_key(self.name, key)
                    if there is None or not _is_same(there, check_fields(given)):
                        raise
                else:
                    there = self.made(said, written)[0]
                    if not written.repeated:
                        return there
            standing = there if self.is_there(there) else self._moved(there)
            if standing is not None:
                return standing
            # It was taken away since, and is said once more: under a key of its own.
            again = there.revision

    def _add_batch(self, given: list[dict[str, Any]]) -> list[Message]:
        """Adds items, each under its own key, with one sync for all; those there are passed."""
        refuse_in_body("adding foreign items without a key=")
        said: list[Said | None] = []
        for item in given:
            foreign_id = check_fields(item).get("foreign_id")
            key = None if foreign_id is None else key_of(foreign_id)
            is_inherited = key is not None and self._inherited(key) is not None
            said.append(None if is_inherited else self.prepare([item], key=key))
        sent = iter(self._log.submit_all([one.wanted for one in said if one is not None]))
        requests = [None if one is None else next(sent) for one in said]
        found: list[Message] = []
        for item, one, request in zip(given, said, requests, strict=True):
            try:
                written = None if request is None else self._log.wait(request)
            except UsageError:
                written = None
            if one is None or written is None or written.repeated:
                found.append(self._add_once(item, None, None, None))
            else:
                found += self.made(one, written)
        return found

    def _inherited(self, key: str) -> Message | None:
        """Returns what a key added in a stream that this one was forked from."""
        stream, until = self.name, _END
        while (origin := self._log.origin(stream)) is not None:
            stream, until = origin[0], min(until, origin[1])
            found = self._by_key(stream, key, until)
            if found is not None:
                return found
        return None

    def _moved(self, there: Message) -> Message | None:
        """Returns the same foreign item as a merge wrote it again, behind where it was.

        Each message behind is decoded once, however many items are looked for.
        """
        scan = self._scan_to(there.revision)
        with scan.mutex:
            if there.revision < scan.foreign_from:
                scan.foreign_from = scan.foreign_until = there.revision
            for message in self._messages(scan, scan.after(scan.foreign_until, _END)):
                if message.foreign_id is not None:
                    scan.foreign[message.foreign_id] = message.revision
            scan.foreign_until = scan.until
            at = scan.foreign.get(there.fields["foreign_id"], 0)
            if at <= there.revision or at in scan.removed:
                return None
            [record] = self._log.records(self.name, after=at - 1, until=at)
            return self._message(scan, record)

    def _by_key(self, stream: str, key: str, until: int = _END) -> Message | None:
        """Returns the message that a stream was given under a key, up to a revision.

        The key stands on the first event of the commit: before the message there may be the one
        that gave the scope its parent, and the one that began a turn. Where a merge took the key,
        it is the message that it brought; if that never came or was taken away, what is returned
        is none that is there, and has nothing but its foreign id.
        """
        for found in self._log.backend.find(stream, key=key):
            after = found.revision - 1
            for record in self._log.backend.read(stream, after=after, until=min(after + 3, until)):
                if record.type == forms.ADDED:
                    return Message(record, self._log.blobs.read)
                if record.type == forms.MOVED:
                    moved = self._moved(Message(record, self._log.blobs.read))
                    return Message(moved.record if moved else record, self._log.blobs.read)
        return None

    def is_there(self, message: Message) -> bool:
        """Says whether a message stands: not deleted, not rewound; a summary may stand for it."""
        scan = self._scan_to(message.revision)
        with scan.mutex:
            found = scan.before(scan.place(message.record) + 1, 1)
            return bool(found) and found[0].revision == message.revision

    def _scan_to(self, revision: int) -> Scan:
        """Returns what stands down to a revision, whatever a compaction took out of sight there.

        What was compacted was not taken away: sent again, it is not said once more.
        """
        scan = self._scan()
        with scan.mutex:
            scan.before(revision + 1, 1)  # meets the summary that stands for it, if there is one
            if scan.summary is None:
                return scan
        return self.original()._scan()

    # --- turns -----------------------------------------------------------------------------------

    def turn(self) -> OpenTurn:
        """Returns the block of a turn: `with chat.turn() as turn:`, then `turn.add(…)`.

        A block that raises ends the turn as failed, with the error. One whose process dies leaves
        it open, and it reads as `interrupted`.
        """
        return make_turn(self, self._log, self._book.heart)


def _is_same(there: Message, given: dict[str, Any]) -> bool:
    """Says whether a message is what is given once more; id and turn are each attempt's own.

    One that was merged was given the time it was said at. A key that a merge took, and brought
    nothing for, stands for whatever has that id.
    """
    if there.record.type == forms.MOVED:
        return True
    own = {"id", "turn", "said_at"} - given.keys()
    fields = {name: value for name, value in there.fields.items() if name not in own}
    return codec.encode_sorted(fields) == codec.encode_sorted(given)


def _listed(items: object) -> list[Any]:
    if isinstance(items, list):
        return cast("list[Any]", items)
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        found = show_value(cast("object", items))
        raise UsageError(f"add_many takes a list of mappings, found {found}")
    return list(cast("Iterable[Any]", items))


def _check_item(item: object) -> dict[str, Any]:
    if not isinstance(item, (dict, Mapping)):  # nearly always the one, which is quick to tell
        raise UsageError(f"a message is a mapping with a role, found {show_value(item)}")
    return dict(cast("Mapping[str, Any]", item))


def _check_turn(turn: object, messages: Messages) -> OpenTurn:
    if not isinstance(turn, OpenTurn) or turn.name != messages.name:
        raise UsageError(
            f"a turn is what chat.turn() of the same conversation returns, found {show_value(turn)}"
        )
    return turn
