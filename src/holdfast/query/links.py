"""Resolves links between recorded things, and finds dangling ones.

    decision:d7@team/red    task:t1    message:m1    fact:tests    event:team/red@7    run:r1
    conversation/b          a scope, by its name; also scope:conversation/b
    agent:ada               who has written something here, or owns a task
    worker:ada-3f2k         a process that has had the store open
    key:plan.step@team/red  a place in the state of a scope

An id without a scope belongs to the scope that the link is in. Every other kind (`file:`,
`commit:`, `https:`) points out of the store, and is not checked.

A value in a state is a link if it says so: `{"$ref": "task:t1"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from holdfast.core import codec
from holdfast.core.leases import REGISTERED
from holdfast.core.leases import STREAM as WORKERS
from holdfast.core.tree import List, Map
from holdfast.errors import ClosedError, KeyMissingError, NotFoundError
from holdfast.names import GLOBAL

if TYPE_CHECKING:
    from holdfast.backends.derived_tables import Condition, SideSession
    from holdfast.record.context import RecordContext

_OF_A_SCOPE = ("task", "message", "fact")
REF = "$ref"
"""The only key of a mapping in a state that is a link."""


class DanglingLink(Struct, frozen=True):
    """A link whose target is not in the store: the document that has it, and its text."""

    kind: str
    id: str
    scope: str
    link: str


def scope_named(link: str) -> str | None:
    """Returns the scope that a link names; None if it leads to something else."""
    kind, _, to = link.partition(":")
    if link == GLOBAL or "/" in kind:
        return link
    return to if kind == "scope" else None


def refs_in(value: Any) -> Iterator[str]:
    """Yields the links among the values of a state."""
    if isinstance(value, Map | dict):
        said = cast("dict[str, Any]", value)
        if len(said) == 1 and isinstance(said.get(REF), str):
            yield said[REF]
        for key in said:
            yield from refs_in(said[key])
    elif isinstance(value, List | list):
        for item in cast("list[Any]", value):
            yield from refs_in(item)


def target(link: str, scope: str) -> Condition | None:
    """Returns the SQL condition for the target of a link; None if it points out of the store."""
    kind, _, to = link.partition(":")
    if kind == "decision":
        if "@" in to:
            return "kind = 'decision' AND id = ?", [to]
        begin = f"{to}@"
        return (
            "kind = 'decision' AND scope = ? AND substr(id, 1, ?) = ?",
            [scope, len(begin), begin],
        )
    if kind in _OF_A_SCOPE:
        id, at, of = to.rpartition("@")
        return f"kind = '{kind}' AND scope = ? AND id = ?", [of, id] if at else [scope, to]
    if kind == "event":
        return "kind = 'log' AND scope = ? AND id = ?", [to.rpartition("@")[0], to]
    if kind == "run":
        return "kind = 'run' AND id = ?", [to]
    if kind == "agent":
        return "kind = 'log' AND actor = ?", [to]
    return None


def dangling(session: SideSession) -> tuple[list[DanglingLink], list[DanglingLink]]:
    """Returns the links without a document, and those that `Known` must judge.

    Both are sorted by scope, kind and id.
    """
    known: dict[tuple[str, str], bool] = {}
    nowhere: list[DanglingLink] = []
    others: list[DanglingLink] = []
    rows = session.ask(
        "SELECT docs.kind, docs.id, docs.scope, links.link FROM links "
        "JOIN docs ON docs.n = links.n ORDER BY docs.scope, docs.kind, docs.id, links.link"
    )
    for kind, id, scope, link in rows:
        if scope_named(link) is not None or link.startswith(("worker:", "key:")):
            others.append(DanglingLink(kind, id, scope, link))
            continue
        if (link, scope) not in known:
            found = target(link, scope)
            known[link, scope] = found is None or bool(
                session.ask(f"SELECT 1 FROM docs WHERE {found[0]} LIMIT 1", found[1])
            )
        if not known[link, scope]:
            one = DanglingLink(kind, id, scope, link)
            (others if link.startswith("agent:") else nowhere).append(one)
    return nowhere, others


class Known:
    """What links lead to that has no document of its own: scopes, workers, agents, keys."""

    def __init__(self, context: RecordContext, scopes: Iterable[str] = ()) -> None:
        """`scopes` are those with tasks, whose owners are known as agents."""
        self._context = context
        self._log = context.log
        self._scopes = scopes

    def scopes_of(self, links: Iterable[str]) -> set[str]:
        """Returns those links that name a scope that is there, and has not expired."""
        named = {link: name for link in links if (name := scope_named(link)) is not None}
        names = sorted(set(named.values()))
        heads = self._log.heads(names) if names else []
        there = {
            name
            for name, head in zip(names, heads, strict=True)
            if head is not None and not self._log.expiry.has_ended(name, head)
        }
        there -= self._log.absent(sorted(there))
        return {link for link, name in named.items() if name in there}

    @cached_property
    def workers(self) -> dict[str, int]:
        """Every worker that ever had the store open, with the revision of its registration."""
        return {
            str(codec.decode(record.payload)["worker"]): record.revision
            for record in self._log.records(WORKERS)
            if record.type == REGISTERED
        }

    @cached_property
    def owners(self) -> set[str]:
        """Who owns a task, or has owned one that is closed; in scopes that can be read."""
        found: set[str] = set()
        for scope in self._scopes:
            try:
                table = self._context.tables.of(scope)
                with table.lock:
                    table.refresh()
                    owners = {task.owner for task in table.tasks.values()}
            except (NotFoundError, ClosedError, KeyMissingError):
                continue
            found |= {owner for owner in owners if owner is not None}
        return found

    def has_key(self, link: str, scope: str) -> bool:
        """Returns whether the place in a state that a link names is there.

        Raises KeyMissingError if nobody can say, as the scope's key is missing.
        """
        _, _, to = link.partition(":")
        path, at, of = to.rpartition("@")
        if not at:
            path, of = to, scope
        try:
            if self._log.head(of) is None or self._log.absent([of]):
                return False
            value: Any = self._log.folded(of).root
        except (NotFoundError, ClosedError):
            return False  # it expired, or was erased or let go of
        for word in path.split("."):
            if isinstance(value, List) and word.isdecimal() and int(word) < len(value):
                value = value[int(word)]
            elif isinstance(value, Map) and word in value:
                value = value[word]
            else:
                return False
        return True

    def leads(self, link: str, scope: str) -> bool:
        """Returns whether a link of `dangling` other than to a scope has its target.

        So does one into a scope whose key is missing: nobody can say that it has not.
        """
        kind, _, to = link.partition(":")
        if kind == "worker":
            return to in self.workers
        if kind == "agent":
            return to in self.owners
        try:
            return self.has_key(link, scope)
        except KeyMissingError:
            return True
