"""What differs between two moments of a scope, and what a return to one of them does not change.

State, messages and tasks go back and forth together. Decisions and facts do not, because the world
does not go back: an e-mail stays sent. So a return reports which of them were recorded since.

The past never changes, so everything but the state is read only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from holdfast.backends.protocol import Record
from holdfast.core.event import Change, Event
from holdfast.record import facts as fact_events
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decision, Decisions, is_of_decision, is_old, key_of, project
from holdfast.record.facts import Fact
from holdfast.record.message_events import Message
from holdfast.record.message_scan import Scan, differing
from holdfast.record.task_events import Task

if TYPE_CHECKING:
    from holdfast.scope import Scope

FACT_EVENTS = (
    fact_events.STATED,
    fact_events.VERIFIED,
    fact_events.CONTRADICTED,
    fact_events.WITHDRAWN,
)


class MessageChange(Struct, frozen=True):
    """A message that was added (`old` is None), removed (`new` is None) or edited (has both)."""

    old: Message | None
    new: Message | None


class TaskChange(Struct, frozen=True):
    """A task that was added (`old` is None), removed (`new` is None) or changed (has both)."""

    old: Task | None
    new: Task | None


class Difference(list[Change]):
    """What differs between two moments of a scope: the changes of its state, as a list.

    `messages` and `tasks` have the differences in those. `decisions` and `facts` have those that
    were recorded or changed between the two moments, in their present form. All four are read when
    they are first used.
    """

    def __init__(
        self,
        scope: Scope,
        context: RecordContext,
        since: int,
        until: int,
        changes: Sequence[Change],
    ) -> None:
        super().__init__(changes)
        self.since = since
        self.until = until
        self._scope = scope
        self._context = context

    def keys(self) -> list[str | int]:
        """Returns the top-level keys of the state below which something differs."""
        return list(dict.fromkeys(change.path[0] for change in self if change.path))

    @cached_property
    def messages(self) -> list[MessageChange]:
        """The messages that exist at only one of the two moments, or were edited in between."""
        scans, stream = self._context.scans, self._scope.name
        old, new = scans.at(stream, self.since), scans.at(stream, self.until)
        read = self._context.log.blobs.read

        def message(scan: Scan, record: Record | None) -> Message | None:
            return None if record is None else Message(record, read, scan.edits_of(record))

        found = [(message(old, one), message(new, other)) for one, other in differing(old, new)]
        return [
            MessageChange(before, after)
            for before, after in found
            if before is None or after is None or before.fields != after.fields
        ]

    @cached_property
    def tasks(self) -> list[TaskChange]:
        """The tasks that exist at only one of the two moments, or changed in between."""
        table = self._context.tables.of(self._scope.name)
        old, new = table.at(self.since), table.at(self.until)
        return [
            TaskChange(old.get(id), new.get(id))
            for id in dict.fromkeys((*old, *new))
            if old.get(id) != new.get(id)
        ]

    @property
    def decisions(self) -> list[Decision]:
        """The decisions that were made or changed between the two moments, in present form."""
        return self._recorded[0]

    @property
    def facts(self) -> list[Fact]:
        """The facts that were stated or verified between the two moments, and still count."""
        return self._recorded[1]

    @cached_property
    def _recorded(self) -> tuple[list[Decision], list[Fact]]:
        low, high = sorted((self.since, self.until))
        events = [
            event
            for event in self._scope.history(after=low, until=high)
            if is_of_decision(event.type) or event.type in FACT_EVENTS
        ]
        facts = self._scope.facts
        names = dict.fromkeys(event.data["name"] for event in events if event.type in FACT_EVENTS)
        found = [fact for name in names if (fact := facts._find(name)) is not None]
        return self._decisions([e for e in events if is_of_decision(e.type)]), found

    def _decisions(self, events: list[Event]) -> list[Decision]:
        if any(is_old(event.type) for event in events):
            # Decisions of older programs are identified by their number, so all must be counted.
            low, high = sorted((self.since, self.until))
            before, after = (project(self._scope.history(until=each)) for each in (low, high))
            now = project(self._scope.history())
            return [now[id] for id, one in after.items() if one != before.get(id)]
        decisions = Decisions(self._context)
        keys = dict.fromkeys(key_of(event) for event in events)
        found = (decisions.find(self._scope.name, key) for key in keys)
        return [one for one in found if one is not None]

    def load(self) -> Self:
        """Reads everything now, for callers that must not wait later."""
        self.messages, self.tasks, self._recorded  # noqa: B018  # pyright: ignore[reportUnusedExpression]
        return self


class Restored(int):
    """The new revision after a `restore` or `undo`, with what the return changed.

    `to` is the revision whose state is there again. `changes` has the differences in state,
    messages and tasks. `decisions` and `facts` are those that were recorded after `to`: they stay.
    Everything but `to` is read when it is first used, so a read that fails cannot hide that the
    return was done.
    """

    to: int

    def __new__(cls, revision: int, scope: Scope, since: int, to: int) -> Self:
        made = super().__new__(cls, revision)
        made.to, made._scope, made._since = to, scope, since
        return made

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # in another process it is the revision alone

    _scope: Scope
    _since: int

    @cached_property
    def changes(self) -> Difference:
        """What the return changed: state, messages and tasks."""
        return self._scope.diff(self._since, int(self))

    @property
    def decisions(self) -> list[Decision]:
        """The decisions that were made or changed after `to`, in their present form."""
        return self._kept.decisions

    @property
    def facts(self) -> list[Fact]:
        """The facts that were stated or verified after `to`, and still count."""
        return self._kept.facts

    @cached_property
    def _kept(self) -> Difference:
        return self._scope.diff(self.to, self._since)

    def load(self) -> Self:
        """Reads everything now, for callers that must not wait later."""
        self.changes.load()
        self._kept.facts  # noqa: B018  # pyright: ignore[reportUnusedExpression]
        return self
