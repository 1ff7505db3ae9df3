"""Working memory: what an agent keeps at hand, each kind for as long as it is worth something.

It is state like any other, under the key `working_memory`, so history, diff, restore and forks have
it too. A lifetime is a place: what is for a turn or a session is kept in the scope itself and taken
away when that ends; what is for the project in the widest scope from here up that is neither a
conversation nor the global one, or else in that, so that the next session finds it; what is for
ever in the global scope. Unless another lifetime is given:

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

from holdfast.core.arguments import older_bound
from holdfast.core.draft import Draft
from holdfast.core.event import to_datetime
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
    """One thing at hand, as it was when it was read."""

    kind: str
    name: str
    value: Any
    lifetime: MemoryLifetime
    scope: str
    updated_at: datetime


class MemoryKind(Struct, frozen=True):
    """A kind of things, how long they are kept, and how many of them."""

    name: str
    lifetime: MemoryLifetime
    max_items: int | None = None


FILES = MemoryKind("files", "session")
NOTES = MemoryKind("notes", "project")
RESULTS = MemoryKind("results", "project")
ERRORS = MemoryKind("errors", "project", ERRORS_MAX)
SETTINGS = MemoryKind("settings", "forever")


class MemorySection:
    """The things of one kind that a scope has at hand, those of the scopes above it included."""

    def __init__(self, memory: Memory, kind: MemoryKind) -> None:
        self._memory = memory
        self._kind = kind

    def put(
        self, name: str, value: Any = None, *, lifetime: MemoryLifetime | None = None
    ) -> MemoryItem:
        """Keeps a value under a name, in place of an earlier one; durable when it returns.

        It is kept for this kind's usual time, or for a turn, session, project or forever.
        """
        refuse_in_body("a change of working memory")
        name = check_name(name, f"a name among {self._kind.name}")
        lifetime = _check_lifetime(lifetime or self._kind.lifetime)
        scope = self._memory._scope_for(lifetime)
        at = to_datetime(self._memory._context.log.clock.now_us())
        entry = {"value": value, "lifetime": lifetime, "at": at}
        # One name is one thing: what was kept under it for another time is taken away first, so
        # that a crash in between leaves too little at hand, never two answers.
        for other in self._memory._scopes:
            if other != scope and name in self._read(other):
                other.edit(lambda draft: _drop(draft, self._kind.name, name), retries=RETRIES)
        if self._kind.max_items is None:
            scope.set((KEY, self._kind.name, name), entry)
        else:
            scope.edit(lambda draft: self._put_bounded(draft, name, entry), retries=RETRIES)
        return MemoryItem(self._kind.name, name, value, lifetime, scope.name, at)

    def add(self, value: Any, *, lifetime: MemoryLifetime | None = None) -> MemoryItem:
        """Keeps a value under a name of its own, which sorts by time."""
        return self.put(new_id(self._memory._context.log.clock), value, lifetime=lifetime)

    def get(self, name: str) -> MemoryItem:
        """Returns what is kept under a name, here or else above."""
        for kept in self.list():
            if kept.name == name:
                return kept
        raise NotFoundError(
            f'"{self._memory._scope.name}" has no {show_value(name)} among its {self._kind.name}',
            hint="list() shows what it has",
        )

    def list(self, *, older_than: object = None) -> list[MemoryItem]:
        """Returns what is kept, oldest first; `older_than` a length of time if given."""
        found: dict[str, MemoryItem] = {}
        for scope in self._memory._scopes:
            for name, entry in self._read(scope).items():
                kept = MemoryItem(
                    self._kind.name,
                    name,
                    entry["value"],
                    entry["lifetime"],
                    scope.name,
                    entry["at"],
                )
                found.setdefault(name, kept)
        kept = sorted(found.values(), key=lambda kept: kept.updated_at)
        if older_than is None:
            return kept
        latest = older_bound(self._memory._context.log.clock.now_us(), older_than)
        return [one for one in kept if one.updated_at <= latest]

    def drop(self, name: str) -> None:
        """Takes away what is kept under a name; its history stays."""
        kept = self.get(name)
        for scope in self._memory._scopes:
            if scope.name == kept.scope:
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
        self, context: RecordContext, scope: Scope, upwards: Callable[[], Iterator[Scope]]
    ) -> None:
        self._context = context
        self._scope = scope
        self._upwards = upwards
        self._found_scopes: list[Scope] = []

    @property
    def _scopes(self) -> list[Scope]:
        """The scopes that it is kept in: this one, and those above it, nearest first."""
        if not self._found_scopes:
            self._found_scopes = list(self._upwards())
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
        """The block of a turn: what was kept for it is taken away at its end, however it ends."""
        try:
            yield
        finally:
            self.end("turn")

    def end(self, lifetime: MemoryLifetime) -> None:
        """Takes away what was kept for that long. The end of a session is also that of a turn."""
        ended = ("turn", "session") if _check_lifetime(lifetime) == "session" else (lifetime,)
        scope = self._scope_for(lifetime)

        def forget(draft: Draft) -> None:
            sections: Any = draft.get(KEY, {})  # another writer may have gone back before it
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
        """Returns the scope that things of a lifetime are kept in."""
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
