"""Working memory: what an agent keeps at hand, each kind for as long as it is useful.

It is part of the state, under the key `working_memory`, so history, diff, restore and forks cover
it too. The lifetime of an item decides where it is kept. Items for a turn are in the memory of this
process and never reach the store (0042). Items for a session are in the scope itself, and are
deleted when the session ends. Items for the project are in the widest scope, from this one up, that
is neither a conversation nor the global one, or else in the global one; so the next session finds
them. Items forever are in the global scope. The kinds and their default lifetimes are:

    files     files being discussed or modified             session
    notes     what research found                           project
    results   of tests, and metrics: the newest of a name   project
    errors    what went wrong, what was done about it       project, the newest 100
    settings  configuration and preferences                 forever
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from msgspec import Struct

from holdfast.core import codec
from holdfast.core.arguments import older_bound
from holdfast.core.draft import Draft
from holdfast.core.event import to_datetime
from holdfast.core.tree import Lazy
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.names import CONVERSATION, GLOBAL, check_name, new_id
from holdfast.record.context import RecordContext
from holdfast.record.in_run import refuse_in_body

if TYPE_CHECKING:
    from holdfast.scope import Scope

KEY = "working_memory"
RETRIES = 1000
ERRORS_MAX = 100

MemoryLifetime = Literal["turn", "session", "project", "forever"]
LIFETIMES: tuple[str, ...] = get_args(MemoryLifetime)


class MemoryItem(Struct, frozen=True):
    """An item of working memory at the time it was read."""

    kind: str
    name: str
    value: Any
    lifetime: MemoryLifetime
    scope: str
    updated_at: datetime


class MemoryKind(Struct, frozen=True):
    """A kind of items, with its default lifetime and the largest number of items."""

    name: str
    lifetime: MemoryLifetime
    max_items: int | None = None


FILES = MemoryKind("files", "session")
NOTES = MemoryKind("notes", "project")
RESULTS = MemoryKind("results", "project")
ERRORS = MemoryKind("errors", "project", ERRORS_MAX)
SETTINGS = MemoryKind("settings", "forever")


class MemorySection:
    """The items of one kind in a scope's working memory, including those of scopes above it."""

    def __init__(self, memory: Memory, kind: MemoryKind) -> None:
        self._memory = memory
        self._kind = kind

    def put(
        self, name: str, value: Any = None, *, lifetime: MemoryLifetime | None = None
    ) -> MemoryItem:
        """Keeps a value under a name, and replaces an earlier one; durable when it returns.

        The lifetime is turn, session, project or forever, by default that of the kind. A value for
        a turn is kept in the memory of this process only.
        """
        refuse_in_body("a change of working memory")
        name = check_name(name, f"a name among {self._kind.name}")
        lifetime = _check_lifetime(lifetime or self._kind.lifetime)
        scope = self._memory._scope_for(lifetime)
        if lifetime == "turn":
            return self._put_for_turn(scope, name, value)
        at = to_datetime(self._memory._context.log.clock.now_us())
        entry = {"value": value, "lifetime": lifetime, "at": at}
        # A name is one item. An item of that name with another lifetime may be in another scope,
        # and so in another commit. It is deleted first, so that a crash in between leaves no item
        # rather than two.
        for other in self._memory._scopes:
            if other != scope and name in self._read(other):
                other.edit(lambda draft: _drop(draft, self._kind.name, name), retries=RETRIES)
        if self._kind.max_items is None:
            scope.set((KEY, self._kind.name, name), entry)
        else:
            scope.edit(lambda draft: self._put_bounded(draft, name, entry), retries=RETRIES)
        self._memory._for_turn.pop((self._kind.name, name), None)
        return MemoryItem(self._kind.name, name, value, lifetime, scope.name, at)

    def _put_for_turn(self, scope: Scope, name: str, value: Any) -> MemoryItem:
        """Keeps a value in this process, after deleting what is stored under its name."""
        kept = Lazy(codec.encode(value)).force()  # frozen, as a store would return it
        at = to_datetime(self._memory._context.log.clock.now_us())
        for other in self._memory._scopes:
            if name in self._read(other):
                other.edit(lambda draft: _drop(draft, self._kind.name, name), retries=RETRIES)
        item = MemoryItem(self._kind.name, name, kept, "turn", scope.name, at)
        self._memory._for_turn[self._kind.name, name] = item
        return item

    def add(self, value: Any, *, lifetime: MemoryLifetime | None = None) -> MemoryItem:
        """Keeps a value under a new name, which sorts by time."""
        return self.put(new_id(self._memory._context.log.clock), value, lifetime=lifetime)

    def get(self, name: str) -> MemoryItem:
        """Returns the item with that name, from this scope or else from one above."""
        for item in self.list():
            if item.name == name:
                return item
        raise NotFoundError(
            f'"{self._memory._scope.name}" has no {show_value(name)} among its {self._kind.name}',
            hint="list() shows what it has",
        )

    def list(self, *, older_than: object = None) -> list[MemoryItem]:
        """Returns the items, oldest first; with `older_than` only those not updated for so long."""
        for_turn = self._memory._for_turn.copy()
        found = {name: one for (kind, name), one in for_turn.items() if kind == self._kind.name}
        for scope in self._memory._scopes:
            for name, entry in self._read(scope).items():
                item = MemoryItem(
                    self._kind.name,
                    name,
                    entry["value"],
                    entry["lifetime"],
                    scope.name,
                    entry["at"],
                )
                found.setdefault(name, item)
        items = sorted(found.values(), key=lambda item: item.updated_at)
        if older_than is None:
            return items
        latest = older_bound(self._memory._context.log.clock.now_us(), older_than)
        return [item for item in items if item.updated_at <= latest]

    def drop(self, name: str) -> None:
        """Deletes the item with that name; its history stays."""
        item = self.get(name)
        if self._memory._for_turn.pop((self._kind.name, name), None) is not None:
            return
        for scope in self._memory._scopes:
            if scope.name == item.scope:
                scope.edit(lambda draft: _drop(draft, self._kind.name, name), retries=RETRIES)

    def _read(self, scope: Scope) -> Any:
        return scope.get((KEY, self._kind.name), {})

    def _put_bounded(self, draft: Draft, name: str, entry: dict[str, Any]) -> None:
        section: Any = draft.setdefault(KEY, {}).setdefault(self._kind.name, {})
        section[name] = entry
        max_items = cast("int", self._kind.max_items)
        names = sorted(section, key=lambda one: (section[one]["at"], one))
        for old in names[: max(len(names) - max_items, 0)]:
            del section[old]


class Memory:
    """The working memory of one scope."""

    def __init__(
        self, context: RecordContext, scope: Scope, upwards: Callable[[Scope], Iterator[Scope]]
    ) -> None:
        self._context = context
        self._scope = scope
        self._upwards = upwards
        self._found_scopes: list[Scope] = []

    @property
    def _for_turn(self) -> dict[tuple[str, str], MemoryItem]:
        """The items for a turn, by kind and name."""
        return self._context.turn_memory.setdefault(self._scope.name, {})

    @property
    def _scopes(self) -> list[Scope]:
        """The scopes that items are kept in: this one, and those above it, nearest first."""
        if not self._found_scopes:
            self._found_scopes = list(self._upwards(self._scope))
        return self._found_scopes

    @property
    def files(self) -> MemorySection:
        """Files being discussed or modified."""
        return MemorySection(self, FILES)

    @property
    def notes(self) -> MemorySection:
        """What research found."""
        return MemorySection(self, NOTES)

    @property
    def results(self) -> MemorySection:
        """Results of tests, and metrics."""
        return MemorySection(self, RESULTS)

    @property
    def errors(self) -> MemorySection:
        """What went wrong, and what was done about it."""
        return MemorySection(self, ERRORS)

    @property
    def settings(self) -> MemorySection:
        """Configuration and preferences."""
        return MemorySection(self, SETTINGS)

    @contextmanager
    def turn(self) -> Generator[None]:
        """Returns the block of a turn; at its end, the items for the turn are deleted."""
        try:
            yield
        finally:
            self.end("turn")

    def end(self, lifetime: MemoryLifetime) -> None:
        """Deletes the items of a lifetime; the end of a session also ends its turn."""
        ended = ("turn", "session") if _check_lifetime(lifetime) == "session" else (lifetime,)
        scope = self._scope_for(lifetime)
        if "turn" in ended:
            self._context.turn_memory.pop(scope.name, None)

        def forget(draft: Draft) -> None:
            sections: Any = draft.get(KEY, {})  # another writer may have restored an older state
            for kind in list(sections):
                for name in list(sections[kind]):
                    if sections[kind][name]["lifetime"] in ended:
                        del sections[kind][name]

        sections: Any = scope.get(KEY, {})
        if any(
            entry["lifetime"] in ended for kind in sections for entry in sections[kind].values()
        ):
            scope.edit(forget, retries=RETRIES)

    def _scope_for(self, lifetime: str) -> Scope:
        """Returns the scope that items of a lifetime are kept in."""
        if lifetime in ("turn", "session"):
            return self._scope
        lasting = [scope for scope in self._scopes if scope.level not in (CONVERSATION, GLOBAL)]
        return lasting[-1] if lifetime == "project" and lasting else self._scopes[-1]


def _drop(draft: Draft, kind: str, name: str) -> None:
    draft.get(KEY, {}).get(kind, {}).pop(name, None)


def _check_lifetime(lifetime: object) -> MemoryLifetime:
    if lifetime not in LIFETIMES:
        known = ", ".join(LIFETIMES)
        raise UsageError(f"a lifetime is one of {known}, found {show_value(lifetime)}")
    return cast("MemoryLifetime", lifetime)
