"""Resolves links between recorded things, and finds dangling ones.

    decision:d7@team/red    task:t1    message:m1    fact:tests    event:team/red@7    run:r1
    conversation/b          a scope, by its name

An id without a scope belongs to the scope that the link is in. Every other kind (`file:`,
`commit:`, `https:`) points out of the store, and is not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.names import GLOBAL

if TYPE_CHECKING:
    from holdfast.backends.derived_tables import Condition, SideSession

_OF_A_SCOPE = ("task", "message", "fact")


class DanglingLink(Struct, frozen=True):
    """A link whose target is not in the store: the document that has it, and its text."""

    kind: str
    id: str
    scope: str
    link: str


def is_scope(link: str) -> bool:
    """Returns whether a link is the name of a scope."""
    return link == GLOBAL or "/" in link.partition(":")[0]


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
    return None


def dangling(session: SideSession) -> tuple[list[DanglingLink], list[DanglingLink]]:
    """Returns the links without a document, and all links to scopes, which are not checked here.

    Both are sorted by scope, kind and id.
    """
    known: dict[tuple[str, str], bool] = {}
    nowhere: list[DanglingLink] = []
    scopes: list[DanglingLink] = []
    rows = session.ask(
        "SELECT docs.kind, docs.id, docs.scope, links.link FROM links "
        "JOIN docs ON docs.n = links.n ORDER BY docs.scope, docs.kind, docs.id, links.link"
    )
    for kind, id, scope, link in rows:
        if is_scope(link):
            scopes.append(DanglingLink(kind, id, scope, link))
            continue
        if (link, scope) not in known:
            found = target(link, scope)
            known[link, scope] = found is None or bool(
                session.ask(f"SELECT 1 FROM docs WHERE {found[0]} LIMIT 1", found[1])
            )
        if not known[link, scope]:
            nowhere.append(DanglingLink(kind, id, scope, link))
    return nowhere, scopes
