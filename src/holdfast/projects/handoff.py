"""A handoff: one session offers its context to another, which accepts it, or it expires.

An offer writes the goals, position, open tasks, decisions and risks into the state of the project,
and as a message into the other session's conversation. Nothing else moves before the other session
accepts. Then, in one commit, the first conversation is merged into the second by time and without
duplicates, and the states of both are merged key by key; the base is the state that the first began
with. Where both changed a key, the successor's value stays, and the conflict is listed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert

from holdfast.core.arguments import Duration, check_seconds, check_text
from holdfast.core.codec import kept_closed
from holdfast.core.event import to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.errors import ExpiredError, NotFoundError, UsageError
from holdfast.joint_commit import JointCommit
from holdfast.projects import sessions

if TYPE_CHECKING:
    from holdfast.projects.project import Project

LASTS_S = 24 * 3600.0
_OWN = ("title", "branch", "linked")
"""The keys of a session's state that describe the session itself; they are not merged."""
_MISSING = object()


class Handoff(Struct, frozen=True):
    """What one session hands to another."""

    sender: str
    to: str
    reason: str
    goals: tuple[str, ...]
    position: str
    tasks: tuple[str, ...]
    decisions: tuple[str, ...]
    risks: tuple[str, ...]
    expires_at: datetime

    @property
    def text(self) -> str:
        """The handoff as text, for an agent or a person to read."""
        parts = [f"Handoff from session {self.sender}: {self.reason}", f"Position: {self.position}"]
        for title, lines in (
            ("Goals", self.goals),
            ("Open tasks", self.tasks),
            ("Decisions", self.decisions),
            ("Risks", self.risks),
        ):
            if lines:
                parts.append("\n".join([f"{title}:", *[f"- {line}" for line in lines]]))
        return "\n\n".join(parts)


class Conflict(Struct, frozen=True):
    """A key that both sessions changed; the value `mine` stays."""

    key: str
    base: Any
    mine: Any
    theirs: Any


class Accepted(Struct, frozen=True):
    """The result of an accepted handoff: how many messages came, and the conflicts."""

    handoff: Handoff
    messages: int
    conflicts: tuple[Conflict, ...]


def offer(
    project: Project, sender: str, to: str, reason: str, risks: tuple[str, ...], lasts: Duration
) -> Handoff:
    """Writes a handoff to the state of the project and to the other session's conversation."""
    check_text(reason, "a reason")
    if sender == to:
        raise UsageError("a session is handed to another one, found the same", hint="name another")
    seconds = check_seconds(lasts, "lasts")
    now = to_datetime(kernel_of(project.store).clock.now_us())
    found = Handoff(
        sender,
        to,
        reason,
        _goals(project),
        _position(project),
        tuple(f"{one.id} {one.title}" for one in project.tasks.list(limit=None)
              if not one.is_closed),
        tuple(f"{one.id} {one.decision}"
              for one in project.store.decisions.list(scope=project.scope, incomplete=True)),
        (*risks, *(f"task {one.id} is blocked: {one.why}"
                   for one in project.tasks.list(status="blocked", limit=None))),
        now + timedelta(seconds=seconds),
    )  # fmt: skip
    known = [one.id for one in project.sessions(limit=None)]
    for session in (sender, to):
        if session not in known:
            raise NotFoundError(
                f'project "{project.id}" has no session "{session}"',
                hint="holdfast project sessions",
            )

    def write(tx: JointCommit) -> None:
        tx.scope(project.scope).set(("handoffs", to), _stored(found))
        links = [f"scope:{project.conversation(sender).name}"]
        metadata = {"handoff": sender}
        there = tx.scope(project.conversation(to))
        there.messages.add("system", found.text, metadata=metadata, links=links)

    project.store.commit(write)
    return found


def accept(project: Project, to: str) -> Accepted:
    """Accepts the handoff to a session, in one commit; raises ExpiredError if it has expired."""
    stored: Any = project.scope.get(("handoffs", to))
    if stored is None:
        raise NotFoundError(f'nothing was handed to session "{to}" of project "{project.id}"')
    found = _read(dict(stored))
    now = to_datetime(kernel_of(project.store).clock.now_us())
    if now >= found.expires_at:
        project.scope.delete(("handoffs", to), missing_ok=True)
        raise ExpiredError(
            project.conversation(to).name,
            expires_us=round(found.expires_at.timestamp() * 1_000_000),
        )
    theirs, mine = project.conversation(found.sender), project.conversation(to)
    base = theirs.at(1).to_dict() if theirs.revision else {}
    merged, conflicts = merge(base, mine.state.to_dict(), theirs.state.to_dict())
    count = 0

    def take(tx: JointCommit) -> None:
        nonlocal count
        here = tx.scope(mine)
        count = len(here.messages.merge(theirs))
        for key, value in merged.items():
            if value is _MISSING:
                here.delete(key, missing_ok=True)
            else:
                here.set(key, value)
        tx.scope(project.scope).delete(("handoffs", to), missing_ok=True)

    project.store.commit(take)
    sessions.link(project, to, found.sender)
    return Accepted(found, count, tuple(conflicts))


def merge(
    base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]
) -> tuple[dict[str, Any], list[Conflict]]:
    """Merges two states three ways; returns the changes that `mine` lacks, and the conflicts."""
    changes: dict[str, Any] = {}
    conflicts: list[Conflict] = []
    for key in sorted({*base, *mine, *theirs} - {*_OWN}):
        was, ours, other = (one.get(key, _MISSING) for one in (base, mine, theirs))
        if other in (was, ours):
            continue
        if was == ours:
            changes[key] = other
        else:
            shown = [None if one is _MISSING else one for one in (was, ours, other)]
            conflicts.append(Conflict(key, *shown))
    return changes, conflicts


def _goals(project: Project) -> tuple[str, ...]:
    with kept_closed():  # they are written once more, so sealed values stay sealed
        found: Any = project.scope.get("goals", {})
        return tuple(str(one.get("title", "")) for one in found.values())


def _position(project: Project) -> str:
    work: Any = project.scope.get("work")
    if work is None:
        return "nothing is being worked on"
    return f"task {work['task']}, run {work['run']}"


def _stored(handoff: Handoff) -> dict[str, Any]:
    return {name: getattr(handoff, name) for name in Handoff.__struct_fields__}


def _read(stored: dict[str, Any]) -> Handoff:
    lists = ("goals", "tasks", "decisions", "risks")
    return convert({**stored, **{name: list(stored[name]) for name in lists}}, Handoff)
