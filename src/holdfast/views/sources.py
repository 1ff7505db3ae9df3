"""Where the items of a view are in the log, and how a person's edit is written there.

A source has items by id, each with its fields. It accepts new items, changes and removals in a
joint commit: the edits of one file are all committed together, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from msgspec import Struct

from holdfast.core.codec import SEALED_VALUE, Thawable, encode, kept_closed
from holdfast.core.log import scope_stream
from holdfast.errors import ConflictError, ExistsError, HoldfastError, NotFoundError, UsageError
from holdfast.joint_commit import JointCommit
from holdfast.record.context import context_of
from holdfast.record.decisions import Decision
from holdfast.record.task_events import Task
from holdfast.scope import Scope
from holdfast.views.item import Fields, plain_fields, same, shown, taken

REFUSED = (UsageError, NotFoundError, ExistsError)
"""The errors by which the log refuses an edit: it is reported, and the file shows the log again."""


class Source(Protocol):
    """The items of one scope that a view shows."""

    @property
    def scope(self) -> Scope: ...
    @property
    def is_append_only(self) -> bool:
        """Whether items never change: only new ones are taken from a file."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether the file must not have items that the log does not have."""
        ...

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns all items as they are now, in the order in which a file shows them."""
        ...

    def is_shown(self, fields: Fields) -> bool:
        """Returns whether an item that is not in the file belongs there."""
        ...

    def is_hidden(self, fields: Fields) -> bool:
        """Returns whether an item that is in the file no longer belongs there."""
        ...

    def added(self, key: str) -> str | None:
        """Returns the id of the item that an earlier import added with this key."""
        ...

    def add(self, tx: JointCommit, id: str | None, fields: Fields, key: str) -> str:
        """Adds an item and returns its id; `change` then sets the fields that `later` names."""
        ...

    @property
    def later(self) -> tuple[tuple[str, ...], ...]:
        """Groups of fields that are changed one after the other; each may be refused alone."""
        ...

    def change(self, tx: JointCommit, id: str, fields: Fields) -> None:
        """Sets these fields of an item; None removes a field."""
        ...

    def remove(self, tx: JointCommit, id: str) -> str:
        """Cancels an item because its line is gone; returns what was done, "" if nothing."""
        ...


def task_fields(task: Task) -> dict[str, Any]:
    """Returns the fields of a task."""
    return plain_fields(
        {
            "title": task.title,
            "status": task.status,
            "priority": task.priority,
            "dependencies": task.dependencies,
            "tags": task.tags,
            "owner": task.owner,
            "epic": task.epic,
            "why": task.why,
            "outcome": task.outcome,
            "note": task.note,
        }
    )


class TaskSource(Struct, frozen=True):
    """The tasks of a scope, or only those with some statuses."""

    scope: Scope
    statuses: tuple[str, ...] | None = None
    is_append_only = False
    is_whole = False
    later = (("status", "outcome", "why", "owner"), ("dependencies",), ("note",))
    seen: dict[str, tuple[Task, dict[str, Any]]] = {}
    """A cache of the fields of each task; most tasks are unchanged from one look to the next."""

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns all items as they are now, in the order in which a file shows them."""
        table = context_of(self.scope).tables.of(self.scope.name)
        with table.lock:
            table.refresh()
            tasks = sorted(table.tasks.values(), key=_order)
        found: dict[str, dict[str, Any]] = {}
        for task in tasks:
            known = self.seen.get(task.id)
            if known is None or known[0] is not task:
                known = self.seen[task.id] = (task, task_fields(task))
            found[task.id] = known[1]
        return found

    def is_shown(self, fields: Fields) -> bool:
        """Returns whether an item that is not in the file belongs there."""
        # A removed line does not come back: its task is cancelled.
        status = fields.get("status", "open")
        return status in self.statuses if self.statuses is not None else status != "cancelled"

    def is_hidden(self, fields: Fields) -> bool:
        """Returns whether an item that is in the file no longer belongs there."""
        return self.statuses is not None and fields.get("status", "open") not in self.statuses

    def added(self, key: str) -> str | None:
        """Returns the id of the item that an earlier import added with this key."""
        return next((t.id for t in self.scope.tasks.list(limit=None) if t.key == key), None)

    def add(self, tx: JointCommit, id: str | None, fields: Fields, key: str) -> str:
        """Adds an item and returns its id."""
        tasks = tx.scope(self.scope).tasks
        task = tasks.add(
            fields["title"],
            id=id,
            priority=fields.get("priority", 0),
            epic=fields.get("epic"),
            tags=fields.get("tags", ()),
            key=key,
        )
        return task.id

    def change(self, tx: JointCommit, id: str, fields: Fields) -> None:
        """Sets these fields of an item; None removes a field."""
        for name in ("outcome", "why"):
            if name in fields and fields[name] is None and "status" not in fields:
                raise UsageError(f"the {name} of a task can be changed, but not taken away")
        said = {name: _EMPTY[name] if value is None else value for name, value in fields.items()}
        tx.scope(self.scope).tasks.amend(id, **said)

    def remove(self, tx: JointCommit, id: str) -> str:
        """Cancels an item because its line is gone; returns what was done."""
        tasks = tx.scope(self.scope).tasks
        task = tasks.get(id)
        if task.status == "completed":
            raise UsageError(f'task "{id}" is completed: what was done stays on record')
        if task.is_closed:
            return ""
        tasks.amend(id, status="cancelled", outcome="its line was removed")
        return "cancelled"


_EMPTY: dict[str, Any] = {
    "status": "open",
    "priority": 0,
    "dependencies": (),
    "tags": (),
    "owner": None,
    "epic": None,
    "why": None,
    "outcome": None,
    "note": None,
}
"""The value that a field of a task gets when a person removes it from a line."""


def _order(task: Task) -> int:
    return task.order


class ListSource(Struct, frozen=True):
    """A list of items in a scope's state: `state[name]` has them by id.

    {"goals": {"g1": {"title": "ship it", "status": "completed"}}}
    """

    scope: Scope
    name: str
    prefix: str
    is_append_only = False
    is_whole = False
    later = ()

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns all items as they are now, in the order in which a file shows them."""
        found = self.scope.state.get(self.name, {})
        return (
            {
                id: plain_fields({k: v for k, v in value.items() if k != "key"})
                for id, value in found.to_dict().items()
            }
            if found
            else {}
        )

    def is_shown(self, fields: Fields) -> bool:
        """Returns whether an item that is not in the file belongs there."""
        return fields.get("status") != "cancelled"

    def is_hidden(self, fields: Fields) -> bool:
        """Returns whether an item that is in the file no longer belongs there."""
        return False

    def added(self, key: str) -> str | None:
        """Returns the id of the item that an earlier import added with this key."""
        found = self.scope.state.get(self.name, {})
        return next((id for id, value in found.items() if value.get("key") == key), None)

    def add(self, tx: JointCommit, id: str | None, fields: Fields, key: str) -> str:
        """Adds an item and returns its id."""
        scope = tx.scope(self.scope)
        known = scope.get(self.name, {})
        if id is not None and id in known:
            raise ExistsError(f'"{self.name}" already has "{id}"', hint="use another id")
        id = id or next_id(known, self.prefix)
        scope.set((self.name, id), {**_stored(fields), "key": key})
        return id

    def change(self, tx: JointCommit, id: str, fields: Fields) -> None:
        """Sets these fields of an item; None removes a field."""
        scope = tx.scope(self.scope)
        for name, value in _stored(fields).items():
            if value is None:
                scope.delete((self.name, id, name), missing_ok=True)
            else:
                scope.set((self.name, id, name), value)

    def remove(self, tx: JointCommit, id: str) -> str:
        """Cancels an item because its line is gone; returns what was done."""
        scope = tx.scope(self.scope)
        known = scope.get((self.name, id))
        if known is None or known.get("status") == "cancelled":
            return ""
        scope.set((self.name, id, "status"), "cancelled")
        return "cancelled"


class StateSource(Struct, frozen=True):
    """The newest state of a scope, or the part below one key of it: each key is an item.

    Keys that only `defaults` has are shown with their default.
    """

    scope: Scope
    at: str | None = None
    defaults: dict[str, Any] = {}
    is_append_only = False
    is_whole = True
    later = ()

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns all items as they are now, in the order in which a file shows them."""
        state: Any = self.scope.state
        found = state if self.at is None else state.get(self.at, {})
        known: dict[str, Any] = found.to_dict() if hasattr(found, "to_dict") else {}
        return {key: {"value": shown(value)} for key, value in {**self.defaults, **known}.items()}

    def is_shown(self, fields: Fields) -> bool:
        """Returns whether an item that is not in the file belongs there."""
        return True

    def is_hidden(self, fields: Fields) -> bool:
        """Returns whether an item that is in the file no longer belongs there."""
        return False

    def added(self, key: str) -> str | None:
        """Returns None: the key is its own id."""
        return None

    def add(self, tx: JointCommit, id: str | None, fields: Fields, key: str) -> str:
        """Sets a new key, and returns it."""
        assert id is not None, "BUG: a key without a name"
        tx.scope(self.scope).set(self._path(id), fields["value"])
        return id

    def change(self, tx: JointCommit, id: str, fields: Fields) -> None:
        """Sets a key; unchanged parts of its value are not written."""
        scope = tx.scope(self.scope)
        with kept_closed():  # the file shows a word in the place of a sealed value
            before = scope.get(self._path(id))
            before = before.thaw() if isinstance(before, Thawable) else before
        _set_changed(scope, self._path(id), taken(fields["value"], before), before)

    def remove(self, tx: JointCommit, id: str) -> str:
        """Deletes a key."""
        scope = tx.scope(self.scope)
        if id in self.defaults and scope.get(self._path(id), self) is self:
            raise UsageError(f'nobody has set "{id}": it is shown with what it has by itself')
        scope.delete(self._path(id), missing_ok=True)
        return "deleted"

    def _path(self, key: str) -> tuple[str, ...]:
        return (key,) if self.at is None else (self.at, key)


def _set_changed(scope: Any, path: tuple[str, ...], value: Any, before: Any) -> None:
    """Sets a value; where a part of it is sealed, only the changed parts, never the sealed one."""
    if not (
        isinstance(value, dict) and isinstance(before, dict) and SEALED_VALUE in encode(before)
    ):
        scope.set(path, value, diff=True)
        return
    new, old = cast("dict[str, Any]", value), cast("dict[str, Any]", before)
    for key in old.keys() - new.keys():
        scope.delete((*path, key))
    for key, one in new.items():
        if key not in old or not same(one, old[key]):
            _set_changed(scope, (*path, key), one, old.get(key))


class DecisionSource(Struct, frozen=True):
    """The decisions of a scope, oldest first. They do not change; a person can add new ones."""

    scope: Scope
    is_append_only = True
    is_whole = False
    later = ()

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns all items as they are now, in the order in which a file shows them."""
        found = reversed(self.scope.decisions.recall(recent=1_000_000).recent)
        return {one.id: decision_fields(one) for one in found}

    def is_shown(self, fields: Fields) -> bool:
        """Returns whether an item that is not in the file belongs there."""
        return True

    def is_hidden(self, fields: Fields) -> bool:
        """Returns whether an item that is in the file no longer belongs there."""
        return False

    def added(self, key: str) -> str | None:
        """Returns the id of the decision that an earlier import added with this key."""
        found = self.scope.decisions.recall(recent=1_000_000).recent
        return next((one.id for one in found if one.key == key), None)

    def add(self, tx: JointCommit, id: str | None, fields: Fields, key: str) -> str:
        """Records a decision that somebody wrote, with the owner that they name.

        With status "completed", it is closed by its outcome.
        """
        decided = tx.scope(self.scope).decide(
            fields["title"],
            because=fields.get("why"),
            priority=fields.get("priority", 0),
            owner=fields.get("owner", scope_stream(self.scope).log.actor),
            key=key,
        )
        if fields.get("status") == "completed":
            tx.outcome(decided, fields.get("outcome", "done"))
        return decided.id

    def change(self, tx: JointCommit, id: str, fields: Fields) -> None:
        """Raises UsageError: decisions do not change."""
        raise UsageError("what was decided stays as it is")

    def remove(self, tx: JointCommit, id: str) -> str:
        """Raises UsageError: decisions do not change."""
        raise UsageError("what was decided stays as it is")


class IndexSource(Struct, frozen=True):
    """The standing orders, and the newest decisions, as two lists.

    An entry that somebody adds to a list becomes a decision. Other edits are refused.
    """

    scope: Scope
    recent: int = 20
    is_append_only = False
    is_whole = True
    later = ()

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns the two lists."""
        found = self.scope.decisions.recall(recent=self.recent)
        return {
            "standing_orders": {"value": [_indexed(one) for one in found.orders]},
            "recent": {"value": [_indexed(one) for one in found.recent]},
        }

    def is_shown(self, fields: Fields) -> bool:
        """Returns whether an item that is not in the file belongs there."""
        return True

    def is_hidden(self, fields: Fields) -> bool:
        """Returns whether an item that is in the file no longer belongs there."""
        return False

    def added(self, key: str) -> str | None:
        """Returns None: no list can be added."""
        return None

    def add(self, tx: JointCommit, id: str | None, fields: Fields, key: str) -> str:
        """Raises UsageError: there are exactly two lists."""
        raise UsageError(f'there is no list "{id}": standing_orders and recent are the two')

    def change(self, tx: JointCommit, id: str, fields: Fields) -> None:
        """Records the entries that somebody added to a list as decisions."""
        now: list[Any] = self.items()[id]["value"]
        value = fields["value"]
        said = cast("list[Any]", value) if isinstance(value, list) else []
        new = [one for one in said if one not in now]
        texts = [_decision_of(one) for one in new]
        if [one for one in said if one in now] != now or not all(texts):
            raise UsageError("decisions are added to the index, and neither changed nor removed")
        for text, because in (one for one in texts if one is not None):
            tx.scope(self.scope).decide(
                text,
                because=because,
                standing=id == "standing_orders",
                owner=scope_stream(self.scope).log.actor,
            )

    def remove(self, tx: JointCommit, id: str) -> str:
        """Raises UsageError: the lists of the index stay."""
        raise UsageError("decisions are added to the index, and neither changed nor removed")


def _indexed(decision: Decision) -> dict[str, Any]:
    found: dict[str, Any] = {"id": decision.id, "decision": decision.decision}
    if decision.rationale is not None:
        found["because"] = decision.rationale
    return {**found, "status": decision.status}


def _decision_of(said: Any) -> tuple[str, str | None] | None:
    """Returns the text and the reason of a new entry; None if it is no decision."""
    if isinstance(said, str):
        return said, None
    known = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    text, because = known.get("decision"), known.get("because")
    if not isinstance(text, str) or "id" in known:
        return None
    return text, because if isinstance(because, str) else None


_STATUSES = {"open": "open", "standing": "in_progress", "closed": "completed"}


def decision_fields(decision: Decision) -> dict[str, Any]:
    """Returns the fields of a decision."""
    status = _STATUSES.get(decision.status, "cancelled")
    return plain_fields(
        {
            "title": decision.decision,
            "status": status,
            "priority": decision.priority,
            "owner": decision.owner,
            "why": decision.rationale,
            "outcome": decision.outcome,
        }
    )


def _stored(fields: Fields) -> dict[str, Any]:
    return {name: as_stored(value) for name, value in fields.items()}


def as_stored(value: Any) -> Any:
    """Returns a value as it is stored, with a list instead of a tuple."""
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def next_id(known: Mapping[str, Any], prefix: str) -> str:
    """Returns the next free id: g1, g2, …"""
    number = len(known) + 1
    while f"{prefix}{number}" in known:
        number += 1
    return f"{prefix}{number}"


def refusal(error: HoldfastError) -> str | None:
    """Returns why an edit is refused; None if another attempt may succeed."""
    if isinstance(error, ConflictError) or not isinstance(error, REFUSED):
        return None
    return str(error)
