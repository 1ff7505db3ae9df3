"""Sessions of a project: each has a conversation, and a lease that shows who is in it.

The conversation of a session is `conversation/<project>/<session>`, below the project's scope.
Whoever is in a session holds the lease of the same name. So a session is active while that lease is
held, crashed if the lease lapsed and was not given back, and ended otherwise. Parallel sessions
have separate conversations; a message from one to another (`tell`) links both.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from holdfast.core.arguments import check_text
from holdfast.core.kernel import kernel_of
from holdfast.core.page import NO_LIMIT
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.joint_commit import JointCommit
from holdfast.names import CONVERSATION, new_id
from holdfast.record.messages import BYTES_PER_TOKEN
from holdfast.scope import Scope

if TYPE_CHECKING:
    from holdfast.projects.project import Project

SessionState = Literal["crashed", "active", "ended"]
TITLE_CHARACTERS_MAX = 60
_ORDER = ("crashed", "active", "ended")


class ProjectSession(Struct, frozen=True):
    """A session as a picker shows it."""

    id: str
    title: str
    status: SessionState
    first: str
    last: str
    begun_at: datetime | None
    updated_at: datetime | None
    branch: str | None
    linked: tuple[str, ...] = ()
    """The sessions that messages were sent to or came from."""


class SessionSize(Struct, frozen=True):
    """The size of a session's conversation as it is read now, after compaction."""

    messages: int
    tokens: int
    """An estimate: one for every four bytes."""
    summaries: int
    """How many summaries it has."""


def size_of(project: Project, session: str) -> SessionSize:
    """Returns the size of a session. It reads all messages; compaction keeps them few."""
    messages = conversation(project, session).messages
    tokens = count = 0
    for one in messages:
        count += 1
        tokens += -(-len(one.text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
    return SessionSize(count, tokens, len(messages.summaries()))


def begin(project: Project, session: str | None = None, *, title: str = "") -> str:
    """Begins a session, or makes the given one the newest again; returns its id."""
    if session is not None:
        if not conversation(project, session).revision:
            raise NotFoundError(
                f'project "{project.id}" has no session "{session}"',
                hint="holdfast project sessions",
            )
        if project.scope.get("session") != session:
            project.scope.set("session", session)
        return session
    session = new_id(kernel_of(project.store).clock)
    git = project.survey_git()
    with project.store.commit() as tx:
        scope = tx.scope(conversation(project, session))
        scope.update({"title": title, "branch": git})
        tx.scope(project.scope).set("session", session)
    return session


@contextmanager
def entered(project: Project, session: str) -> Generator[Scope]:
    """Holds the lease of a session during the block; yields its conversation."""
    scope = conversation(project, session)
    lease = project.store.workers.lease(scope.name, keep=True)
    try:
        yield scope
    finally:
        lease.give_back()


def conversation(project: Project, session: str) -> Scope:
    """Returns the conversation of a session."""
    if not isinstance(session, str) or not session:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a session is named by its id, found {show_value(session)}")
    return project.store.conversation(f"{project.id}/{session}", parent=project.scope)


def conversations(project: Project) -> list[str]:
    """Returns the names of the conversations of all sessions."""
    prefix = f"{project.id}/"
    return [one.name for one in project.store.scopes(CONVERSATION, prefix=prefix, limit=None)]


def listed(project: Project, *, limit: int | None = None) -> list[ProjectSession]:
    """Returns the sessions: crashed first, then active, then ended ones, newest first."""
    prefix = f"{project.id}/"
    names = [
        (scope.id or "").removeprefix(prefix)
        for scope in project.store.scopes(CONVERSATION, prefix=prefix, limit=None)
    ]
    held = kernel_of(project.store).log.leases.list(
        prefix=f"{CONVERSATION}/{prefix}", after="", limit=NO_LIMIT
    )
    states: dict[str, SessionState] = {
        one.name.removeprefix(f"{CONVERSATION}/{prefix}"): "active" if one.is_held else "crashed"
        for one in held
    }
    # Ids begin with their time, so the sessions to show are chosen without reading conversations.
    chosen = sorted(sorted(names, reverse=True), key=lambda one: _rank(states.get(one, "ended")))
    return [shown(project, one, states.get(one, "ended")) for one in chosen[:limit]]


def _rank(state: SessionState) -> int:
    return _ORDER.index(state)


def shown(project: Project, session: str, status: SessionState) -> ProjectSession:
    """Returns one session as a picker shows it; reads only its first and last message."""
    scope = conversation(project, session)
    last = scope.messages.last(1)
    first = scope.messages[:1] if last else []
    title = scope.get("title") or (first[0].text if first else "")
    return ProjectSession(
        session,
        title[:TITLE_CHARACTERS_MAX],
        status,
        first[0].text if first else "",
        last[0].text if last else "",
        first[0].time if first else None,
        scope.life.updated_at,
        scope.get("branch"),
        tuple(scope.get("linked", ())),
    )


def tell(project: Project, session: str, text: str, *, sender: str | None = None) -> None:
    """Adds a message to a session's conversation, linked to the session `sender`, if given."""
    check_text(text, "a message")
    there = conversation(project, session)
    if not there.revision:
        raise NotFoundError(
            f'project "{project.id}" has no session "{session}"', hint="holdfast project sessions"
        )

    links = None if sender is None else [f"scope:{conversation(project, sender).name}"]
    metadata = {"from": sender or kernel_of(project.store).log.actor}
    there.messages.add("user", text, metadata=metadata, links=links)
    if sender is not None:
        link(project, session, sender)


def link(project: Project, one: str, other: str) -> None:
    """Notes in the states of two sessions that they are linked."""

    def write(tx: JointCommit) -> None:
        for here, there in ((one, other), (other, one)):
            scope = tx.scope(conversation(project, here))
            known = list(scope.get("linked", ()))
            if there not in known:
                scope.set("linked", [*known, there])

    project.store.commit(write)
