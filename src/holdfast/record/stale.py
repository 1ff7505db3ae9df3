"""What is not to be trusted: facts past their time, facts a verifier contradicts, acts left open.

Each part of the record that knows of something in progress adds a source to the book; what a
silent worker left behind is then listed beside the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from msgspec import Struct

from holdfast.errors import ExpiredError
from holdfast.record import facts
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decisions

Why = Literal["past its time", "contradicted", "owner silent"]


class Stale(Struct, frozen=True):
    """One thing that describes a world which may be gone."""

    kind: str  # "fact", "decision", …
    id: str  # a fact's name, a decision's id
    scope: str
    why: Why
    text: str
    since: datetime


def stale_facts(context: RecordContext, *, verify: bool) -> Iterator[Stale]:
    """Yields the facts that are stale; with `verify` every verifier is asked about the world now.

    A verifier that says a fact still holds makes it fresh again, also one past its time.
    """
    due_before = None if verify else context.log.clock.now_us()
    for fact in facts.marked(context, due_before=due_before):
        if verify and fact.verify is not None:
            try:
                fact = facts.check_fact(context, fact).fact
            except ExpiredError:
                continue  # its scope has ended while it was asked about
        if fact.contradicted_at is not None:
            since, why = fact.contradicted_at, "contradicted"
        elif fact.stale and fact.valid_until is not None:
            since, why = fact.valid_until, "past its time"
        else:
            continue
        yield Stale("fact", fact.name, fact.scope, why, fact.reason or "", since)


def left_open(decisions: Decisions) -> Iterator[Stale]:
    """Yields the open decisions whose worker is silent."""
    for entry in decisions.list(incomplete=True):
        if not entry.owner_alive:
            said = f'worker "{entry.owner}" is silent: {entry.decision}'
            yield Stale("decision", entry.id, entry.scope, "owner silent", said, entry.updated_at)


def stale(context: RecordContext, *, verify: bool) -> list[Stale]:
    """Returns all of it: facts first, then what each source of the book has."""
    found = [*stale_facts(context, verify=verify), *left_open(Decisions(context))]
    for source in context.stale_sources:
        found += source()
    return found
