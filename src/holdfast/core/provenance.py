"""Provenance: who wrote something, where it came from, and how far that is trusted (0047).

It is said once, for all that a block writes, and stored with every event of it: the actor in its
place of the envelope, source and trust in `meta`. What nobody says is not known, and nothing is
assumed. It is a statement of the program that writes. A program that lies about itself is not
found out: what was read from a tool must be written where the program says so.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Literal, NamedTuple, Self, get_args

from holdfast.core.meta import Meta, encode_meta, joined
from holdfast.errors import UsageError, show_value
from holdfast.names import check_name

Source = Literal["human", "model", "tool", "import", "file"]
SOURCES: tuple[str, ...] = get_args(Source)


class Said(NamedTuple):
    """What a block says of everything that is written in it."""

    actor: str | None = None
    meta: str | None = None


SAID: ContextVar[Said | None] = ContextVar("holdfast_provenance", default=None)
"""What the innermost block says, with what those around it say."""


class provenance:
    """Says of everything that is written in its block who writes it and where it came from.

    `with holdfast.provenance(source="tool", actor="search", trust="low"):`. Sources are human,
    model, tool, import and file (somebody edited it). `trust` is a word of your own. Inside another
    such block it counts before that one; what it does not say stays. A commit over several scopes
    is written when its own block ends: that is where it must be said.
    """

    def __init__(
        self, *, source: Source | None = None, actor: str | None = None, trust: str | None = None
    ) -> None:
        self._said = check_provenance(source, actor, trust)
        self._entered: list[Token[Said | None]] = []

    def __enter__(self) -> Self:
        said, around = self._said, SAID.get()
        if around is not None:
            said = Said(said.actor or around.actor, both(around.meta, said.meta))
        self._entered.append(SAID.set(said))
        return self

    def __exit__(self, *_: object) -> None:
        SAID.reset(self._entered.pop())


def check_provenance(source: object, actor: object, trust: object) -> Said:
    """Returns what is said of a writer, or raises UsageError."""
    check_source(source)
    if trust is not None:
        check_name(trust, "trust")
    given: Any = {"source": source, "trust": trust}
    name = None if actor is None else check_name(actor, "actor")
    return Said(name, encode_meta(Meta(**given)))


def check_source(source: object) -> str | None:
    """Returns a source, or none; raises UsageError: a misspelt one would match nothing."""
    if source is None or (isinstance(source, str) and source in SOURCES):
        return source
    raise UsageError(
        f"source is one of {', '.join(SOURCES)}, found {show_value(source)}",
        hint="which tool, model or person it was is said by actor",
    )


def both(below: str | None, above: str | None) -> str | None:
    """Returns two texts of meta as one; where both say something, `above` counts."""
    return below if above is None else joined(below, above)
