"""Decisions as they are read: the events of one folded, old and new types alike. Pure.

    decision.opened       {"key", "decision", "owner", …}   durable before the act
    decision.failed       {"key", "error", "by"}            the act raised; still open
    decision.taken        {"key", "owner", "why"}           another worker answers for it from here
    decision.closed       {"key", "outcome", "by", "how", "output"?}
    decision.prioritized  {"key", "priority"}
    decision.superseded   {"key", "by"}                     closed, by the decision with that id

`_OLD` has the types and fields of the bootcamp text, whose decisions are known by their number in
the stream. An event never changes, so what was written in an old form is read in the new
one, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.event import Event, to_datetime
from holdfast.errors import CorruptError, UsageError, show_value
from holdfast.names import check_name

OPENED = "decision.opened"
FAILED = "decision.failed"
TAKEN = "decision.taken"
CLOSED = "decision.closed"
PRIORITIZED = "decision.prioritized"
SUPERSEDED = "decision.superseded"

NO_OUTCOME = "no outcome stated"

LINKED = ("message", "task", "file", "commit", "decision")
PRIORITIES = {"low": -1, "normal": 0, "high": 1}

Status = Literal["open", "standing", "closed", "superseded", "abandoned"]


class Link(Struct, frozen=True):
    """What a decision has to do with: kind is message, task, file, commit or decision."""

    kind: str
    to: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.to}"


class Decision(Struct, frozen=True, kw_only=True):
    """A decision as it was when it was read; `hf.outcome(d.id, …)` closes an open one."""

    id: str
    key: str
    """The idempotency key to act with: the same for whoever does the act, and for ever."""
    scope: str
    timestamp: datetime
    decision: str
    rationale: str | None = None
    planned_action: str | None = None
    outcome: str | None = None
    completed_at: datetime | None = None
    output: Any = None
    """What a verifier or an act gave when recovery closed it."""
    status: Status = "open"
    owner: str
    owner_alive: bool | None = None
    """Whether the worker that answers for it lives; None if it is no longer open."""
    actor: str = ""
    error: str | None = None
    closed_by: str | None = None
    how: str | None = None
    verify: str | None = None
    act: str | None = None
    alternatives: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    supersedes: str | None = None
    superseded_by: str | None = None
    place: str | None = None
    """What names the place in a run that made it."""
    priority: int = 0
    updated_at: datetime
    revision: int
    events: int = 1

    @property
    def is_open(self) -> bool:
        """Whether its act may or may not have been done, and nobody has said yet."""
        return self.status == "open"


def make_id(key: str, stream: str) -> str:
    """Returns an id that leads to the decision: its key, and the scope that it was made in."""
    return f"{key}@{stream}"


def split_id(id: object) -> tuple[str, str]:
    """Returns key and scope of an id, or raises UsageError."""
    key, at, stream = id.partition("@") if isinstance(id, str) else ("", "", "")
    if not key or not at or not stream:
        raise UsageError(
            f"a decision's id is its key, @ and its scope, found {show_value(id)}",
            hint="list the decisions: each has its id",
        )
    check_name(key, "a decision's key")
    check_name(stream, "scope")
    return key, stream


def parse_link(link: object) -> Link:
    """Returns a link given as "file:src/a.py", as a pair or as a Link, or raises UsageError."""
    kind, to = None, None
    if isinstance(link, Link):
        kind, to = link.kind, link.to
    elif isinstance(link, str):
        kind, _, to = link.partition(":")
    elif isinstance(link, tuple):
        pair = cast("tuple[object, ...]", link)
        kind, to = pair if len(pair) == 2 else (None, None)
    if kind not in LINKED or not isinstance(to, str) or not to:
        raise UsageError(
            f'a link is text such as "file:src/a.py", of {", ".join(LINKED)}, '
            f"found {show_value(cast('object', link))}"
        )
    return Link(str(kind), to)


def parse_priority(priority: object) -> int:
    """Returns a priority given as a whole number or as low, normal or high."""
    if isinstance(priority, str) and priority in PRIORITIES:
        return PRIORITIES[priority]
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) >= 1 << 31:
        raise UsageError(
            f"a priority is a whole number, or {', '.join(PRIORITIES)}, "
            f"found {show_value(priority)}"
        )
    return priority


# --- the fold ------------------------------------------------------------------------------------


def project(events: Iterable[Event]) -> dict[str, Decision]:
    """Returns the decisions of one stream's events, by id, in the order they were made.

    Events of other types are passed over, and so are those of a decision that was made elsewhere.
    """
    found: dict[str, Decision] = {}
    made = 0
    for event in events:
        if not is_of_decision(event.type):
            continue
        with _readable(event):
            type, data = upcast(event.type, event.data)
            made += type == OPENED
            key = str(data.get("key", made))  # old ones are known by their number
            id = make_id(key, event.stream)
            if type == OPENED:
                found[id] = opened(event.record, {**data, "key": key})
            elif id in found:
                found[id] = advance(found[id], event.time, type, data)
    return found


def fold(events: Iterable[Event]) -> Decision | None:
    """Returns the decision that all its own events, oldest first, make; None if there are none."""
    decision = None
    for event in events:
        with _readable(event):
            type, data = upcast(event.type, event.data)
            if decision is None:
                decision = opened(event.record, data)
            else:
                decision = advance(decision, event.time, type, data)
    return decision


def key_of(event: Event) -> str:
    """Returns the key of the decision that an event of today's types is about."""
    with _readable(event):
        return event.data["key"]


@contextmanager
def _readable(event: Event) -> Generator[None]:
    """Turns data that no version of ours has written into an error that says where it is."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f'event {event.revision} of "{event.stream}" is not what "{event.type}" holds',
            stream=event.stream,
            revision=event.revision,
        ) from error


class Envelope(Protocol):
    """What an event says besides its data: a record has it, and so has what was just written."""

    @property
    def stream(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def time(self) -> int: ...
    @property
    def actor(self) -> str: ...


def opened(envelope: Envelope, data: dict[str, Any]) -> Decision:
    """Returns the decision that an event opened."""
    key, time = data["key"], to_datetime(envelope.time)
    return Decision(
        id=make_id(key, envelope.stream),
        key=key,
        scope=envelope.stream,
        timestamp=time,
        decision=data["decision"],
        rationale=data.get("rationale"),
        planned_action=data.get("planned_action"),
        status="standing" if data.get("standing") else "open",
        owner=data.get("owner", envelope.actor),
        actor=envelope.actor,
        verify=data.get("verify"),
        act=data.get("act"),
        alternatives=tuple(data.get("alternatives", ())),
        links=tuple(Link(kind, to) for kind, to in data.get("links", ())),
        supersedes=data.get("supersedes"),
        place=data.get("place"),
        priority=data.get("priority", 0),
        updated_at=time,
        revision=envelope.revision,
    )


def advance(decision: Decision, time: datetime, type: str, data: dict[str, Any]) -> Decision:
    """Returns the decision one event later; a type that nobody knows leaves it as it is."""
    decision = replace(decision, updated_at=time, events=decision.events + 1)
    if type == CLOSED:
        return replace(
            decision,
            status="abandoned" if data.get("how") == "abandoned" else "closed",
            outcome=data.get("outcome"),
            output=data.get("output"),
            completed_at=time,
            closed_by=data.get("by"),
            how=data.get("how"),
        )
    if type == SUPERSEDED:
        return replace(decision, status="superseded", superseded_by=data["by"], completed_at=time)
    if type == FAILED:
        return replace(decision, error=data["error"])
    if type == TAKEN:
        return replace(decision, owner=data["owner"])
    if type == PRIORITIZED:
        return replace(decision, priority=data["priority"])
    return decision


# --- old forms -----------------------------------------------------------------------------------


def is_of_decision(type: str) -> bool:
    """Says whether an event of that type tells of a decision."""
    return type.startswith("decision.") or type in _OLD


def is_old(type: str) -> bool:
    """Says whether a type is one that only older programs write."""
    return type in _OLD


def upcast(type: str, data: Any) -> tuple[str, dict[str, Any]]:
    """Returns an event of any form ever written as the type and data that are written today."""
    if type in _OLD:
        newer, convert = _OLD[type]
        return newer, convert(data)
    return type, data


def _made(data: dict[str, Any]) -> dict[str, Any]:
    made = {"decision": data.get("decision", data.get("text", ""))}
    if "priority" in data:
        made["priority"] = _old_priority(data["priority"])
    return {**{name: data[name] for name in ("key", "rationale") if name in data}, **made}


def _ended(data: dict[str, Any]) -> dict[str, Any]:
    outcome = data.get("result", data.get("outcome"))
    return {"key": data["decision_id"], "outcome": outcome, "how": "stated"}


def _prioritized(data: dict[str, Any]) -> dict[str, Any]:
    return {"key": data["decision_id"], "priority": _old_priority(data["priority"])}


def _old_priority(priority: Any) -> int:
    return PRIORITIES.get(priority, 0) if isinstance(priority, str) else int(priority)


_OLD: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "decision_made": (OPENED, _made),
    "decision_outcome": (CLOSED, _ended),
    "decision_result": (CLOSED, _ended),
    "decision_prioritized": (PRIORITIZED, _prioritized),
}
