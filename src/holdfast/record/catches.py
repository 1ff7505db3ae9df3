"""Catches: what a control found amiss, logged in the scope where it happened.

    policy.breached   {"effect", "policy", "worker"}      an effect without an open decision
    catch.logged      {"control", "caught", "outcome"?, "notes"?, "about"?}   by hand, or found

A control is anything that checks: a reviewer, a hook, a policy. A person logs a catch by hand. A
decision that is in a message but not in the record is found by its words: a sentence says that
something was decided, and no decision of the scope has most of its words. This is a guess. It is
logged once for each message, for a person to look at, and changes nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.backends.protocol import Record
from holdfast.core import codec
from holdfast.core.arguments import check_call, check_text, check_whole
from holdfast.core.commit import NewEvent, ProposedCommit
from holdfast.core.event import to_datetime
from holdfast.core.log import scope_stream
from holdfast.errors import UsageError, show_value
from holdfast.record.context import RecordContext
from holdfast.record.decisions import BREACHED, Decisions
from holdfast.record.in_run import refuse_in_body
from holdfast.record.message_events import Message

if TYPE_CHECKING:
    from holdfast.scope import Scope

LOGGED = "catch.logged"
TYPES = (LOGGED, BREACHED)
BY_HAND = "review"
DECIDE_FIRST = "decide first"
"""The control behind `policy.breached`: no effect without an open decision."""
UNRECORDED = "decision without a record"
LAST = 200
SHARED_LEAST = 0.6
CHUNK = 1_000
_DECIDED = re.compile(
    r"\b(?:I|we)(?:['’]ve| have)?(?: now| just| finally)? (?:decided|agreed|settled|chose|chosen)\b"
    r"|\b(?:I|we)(?:['’]ll| will) (?:use|go with|switch|drop|keep|adopt|replace|remove|not)\b"
    r"|\blet['’]?s (?:use|go with|switch|drop|keep|adopt|replace|remove)\b"
    r"|\b(?:the )?decision(?: is|:)\s",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_WORD = re.compile(r"\w{4,}")
_SAID_OF_ANY = frozenset(
    ("decided", "decision", "agreed", "settled", "chose", "chosen", "have", "will", "with", "that",
     "this", "from", "instead", "because", "lets", "switch", "adopt", "replace", "remove", "keep",
     "drop")
)  # fmt: skip
"""Words that say that something was decided, but not what."""

Finder = Callable[[Message], str | None]
"""Returns what a message decides, or None if it decides nothing."""


class Catch(Struct, frozen=True, kw_only=True):
    """One finding: the control, what it caught, and the outcome."""

    scope: str
    revision: int
    time: datetime
    control: str
    caught: str
    actor: str
    outcome: str | None = None
    notes: str | None = None
    about: str | None = None
    """What it is about, as a link: `message:…`, `file:…`, `commit:…`."""


def log_catch(
    context: RecordContext,
    scope: Scope,
    caught: object,
    *,
    control: object = BY_HAND,
    outcome: object = None,
    notes: object = None,
    about: object = None,
    key: str | None = None,
) -> Catch:
    """Logs a catch in a scope; durable when it returns."""
    refuse_in_body("a catch")
    data = {
        "control": check_text(control, "a control"),
        "caught": check_text(caught, "what was caught"),
        "outcome": check_text(outcome, "an outcome", optional=True),
        "notes": check_text(notes, "notes", optional=True),
        "about": check_text(about, "what a catch is about", optional=True),
    }
    given = {name: value for name, value in data.items() if value is not None}
    write = scope_stream(scope).write((NewEvent(LOGGED, codec.encode(given)),), key=key)
    revision = context.log.commit(ProposedCommit((write,))).revision
    return read_catch(context.log.record(scope.name, revision))


def read_catch(record: Record) -> Catch:
    """Returns the catch in an event of either type."""
    data: dict[str, Any] = codec.decode(record.payload)
    if record.type == BREACHED:
        outcome = "refused" if data["policy"] == "refuse" else "let through, with a warning"
        data = {"control": DECIDE_FIRST, "caught": data["effect"], "outcome": outcome}
    return Catch(
        scope=record.stream,
        revision=record.revision,
        time=to_datetime(record.time),
        actor=record.actor,
        **data,
    )


def catches_in(context: RecordContext, scope: Scope) -> Iterator[Catch]:
    """Yields the catches of a scope, oldest first, including those that a fork inherited."""
    after, last = context.log.life(scope.name), scope.revision
    while after < last:
        records = context.log.records(scope.name, after=after, until=last, limit=CHUNK)
        yield from (read_catch(record) for record in records if record.type in TYPES)
        after = records[-1].revision if records else last


def catch_decisions(
    context: RecordContext, scope: Scope, *, last: object = LAST, find: Finder | None = None
) -> list[Catch]:
    """Logs decisions in the newest messages that no record has; returns the new catches."""
    refuse_in_body("looking for decisions in messages")
    count = check_whole(last, "last")
    if find is not None:
        check_call(find, "find")
    decisions = list(Decisions(context).all_in(scope.name))
    linked = {str(link) for entry in decisions for link in entry.links}
    recorded = [
        significant(f"{entry.decision} {entry.planned_action or ''}") for entry in decisions
    ]
    found: list[Catch] = []
    for message in scope.messages.last(count):
        about, key = f"message:{message.id}", f"catch/{message.revision}"
        said = (find or decided_in)(message)
        if said is not None and not isinstance(said, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"find returns what a message decides, found {show_value(said)}")
        if not said or about in linked or is_recorded(said, recorded):
            continue
        if not context.log.find(scope.name, key=key):  # else it was caught before
            found.append(log_catch(context, scope, said, control=UNRECORDED, about=about, key=key))
    return found


def decided_in(message: Message) -> str | None:
    """Returns the first sentence of a message that says that something was decided."""
    if message.role in ("system", "tool") or message.is_summary:
        return None
    for sentence in _SENTENCE.findall(message.text):
        if _DECIDED.search(sentence):
            return str(sentence).strip()[:1_000]
    return None


def significant(text: str) -> frozenset[str]:
    """Returns the words of a text that tell what it is about."""
    return frozenset(_WORD.findall(text.casefold())) - _SAID_OF_ANY


def is_recorded(said: str, recorded: Iterable[frozenset[str]]) -> bool:
    """Returns whether a recorded decision and a text share most words of the shorter one."""
    words = significant(said)
    return any(
        len(words & one) >= SHARED_LEAST * min(len(words), len(one)) for one in recorded if one
    ) and bool(words)
