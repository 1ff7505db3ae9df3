"""Operations of a run: what they ask their driver for, and how they leave a run.

An operation is a generator that does no I/O itself. It yields acts and is sent their results, so
that one implementation serves `Context`, which performs them in its thread, and `AsyncContext`,
which awaits them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import FrameType, TracebackType
from typing import Any

from msgspec import Struct

from holdfast.core.commit import ProposedCommit

Operation = Generator[Any, Any, Any]


# --- acts -----------------------------------------------------------------------------------------


class CommitNow(Struct, frozen=True):
    """Makes everything recorded so far durable."""


class CommitWith(Struct, frozen=True):
    """Commits an event together with writes to other streams; the result is the receipt."""

    event: Struct
    extra: ProposedCommit


class Call(Struct, frozen=True):
    """Calls a user's function outside the journal: a step's body, a verifier."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}
    is_async: bool = False
    path: str = ""
    drop: Callable[[], None] | None = None  # ends the call when nobody awaits it any more


class Enter(Struct, frozen=True):
    """Calls a user's function inside the journal: the body of a block, in this thread."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: Any


class Pause(Struct, frozen=True):
    """Waits for a short time, until a given moment."""

    until: int


class Fork(Struct, frozen=True):
    """Runs branches side by side until their block is decided."""

    joining: Any


class Finish(Struct, frozen=True):
    """Makes the end of a pass durable, with the marks for the run's status."""

    marks: tuple[Any, ...]


class Look(Struct, frozen=True):
    """Reads the run's inbox."""


class Settle(Struct, frozen=True):
    """Lets an interrupt that is already on its way arrive, and drops it: a cleanup begins."""


COMMIT = CommitNow()
LOOK = Look()
SETTLE = Settle()


# --- control exceptions ---------------------------------------------------------------------------
#
# The exceptions that leave a run without an outcome of its body.
#
# They are BaseExceptions, so that `except Exception` in a run's body lets them pass. If a body
# swallows one nevertheless, its next operation raises it again, and what it returns does not count.


class Control(BaseException):
    """The base of all control exceptions."""


class RunSuspended(Control):
    """The run waits, without a thread, until a time, a message or the end of a child."""

    def __init__(
        self,
        reason: str,
        until: int | None,
        seen: int | None = None,
        children: tuple[str, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.until = until
        self.seen = seen
        """The revision up to which the wait had read the inbox; None if it did not read it."""
        self.children = children
        """The runs that it waits for; the end of any of them wakes it."""


class Parked(Control):
    """The run needs a person: a divergence, or an act whose outcome nobody knows."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Cancelled(Control):
    """The run was asked to stop."""


class Stopped(Control):
    """The branch is no longer wanted: another one decided its parallel block."""


class OwnerLost(Control):
    """The run belongs to another worker, or its journal could not be written: stop here."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def passed_through(error: BaseException) -> str:
    """Returns file and line of the outermost frame that an exception came through."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def calling_line(frame: FrameType | None) -> str:
    """Returns file and line of the nearest caller that is not part of the engine."""
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(frame: FrameType) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.startswith(("holdfast.", "asyncio", "concurrent", "threading"))
