"""What an operation asks its driver for. An operation is a generator that does no I/O itself.

It yields acts and is sent their results, so that one implementation serves `Context`, which
performs them in its thread, and `AsyncContext`, which awaits them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec import Struct

from holdfast.core.commit import ProposedCommit

Operation = Generator[Any, Any, Any]


class CommitNow(Struct, frozen=True):
    """Makes everything recorded so far durable."""


class CommitWith(Struct, frozen=True):
    """Commits an event together with writes to other streams; sent what was written."""

    event: Struct
    extra: ProposedCommit


class Call(Struct, frozen=True):
    """Calls a function of the user's outside the journal: a step's body, a verifier."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}
    is_async: bool = False
    path: str = ""
    drop: Callable[[], None] | None = None  # ends it, when nobody awaits it any more


class Enter(Struct, frozen=True):
    """Calls a function of the user's inside the journal: the body of a block, in this thread."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: Any


class Pause(Struct, frozen=True):
    """Waits until a time, which is near."""

    until: int


class Fork(Struct, frozen=True):
    """Runs branches side by side until their block is decided."""

    joining: Any


class Finish(Struct, frozen=True):
    """Makes the end of a pass durable, with the marks that say where the run stands."""

    marks: tuple[Any, ...]


class Look(Struct, frozen=True):
    """Reads the run's inbox."""


COMMIT = CommitNow()
LOOK = Look()
