"""Provenance: who wrote something, where it came from, and how far that is trusted (0047).

It is said once, for all that a block writes, and stored with every event: the actor in its field of
the envelope, source and trust in `meta`. What is not said is not known; nothing is assumed. It is
the word of the program that writes, and nothing checks it: data that came from a tool must be
written in a block that says so.
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
    """What a block says about everything that is written in it."""

    actor: str | None = None
    meta: str | None = None


SAID: ContextVar[Said | None] = ContextVar("holdfast_provenance", default=None)
"""What the innermost block says, completed by the blocks around it."""


class provenance:
    """Says about everything that is written in its block who wrote it and where it came from.

    `with holdfast.provenance(source="tool", actor="search", trust="low"):`. The source is human,
    model, tool, import or file (somebody edited it). `trust` is a word of your own. Blocks nest:
    the inner one counts, and what it does not say is taken from the outer one. A commit over
    several scopes is written when its own block ends, so the provenance block must be around that
    end.
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
    """Returns provenance that was checked, or raises UsageError."""
    check_source(source)
    if trust is not None:
        check_name(trust, "trust")
    given: Any = {"source": source, "trust": trust}
    name = None if actor is None else check_name(actor, "actor")
    return Said(name, encode_meta(Meta(**given)))


def check_source(source: object) -> str | None:
    """Returns a source or None; raises UsageError for any other word, as it would match nothing."""
    if source is None or (isinstance(source, str) and source in SOURCES):
        return source
    raise UsageError(
        f"source is one of {', '.join(SOURCES)}, found {show_value(source)}",
        hint="which tool, model or person it was is said by actor",
    )


def both(below: str | None, above: str | None) -> str | None:
    """Returns two texts of meta as one; where both say something, `above` counts."""
    return below if above is None else joined(below, above)
