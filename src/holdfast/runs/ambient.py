"""The run that the calling code is part of."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.log import WRITER
from holdfast.runs.define import CURRENT
from holdfast.runs.execution import StepWriter


class Current(Struct, frozen=True):
    """The run that code is part of, and the path of its step in the journal, if it is in one."""

    run: str
    step: str | None = None


def current() -> Current | None:
    """Returns the run and the step that execute the calling code; None outside of runs.

    This is kept in context variables. A thread that a step starts itself has them only if it is
    started with `contextvars.copy_context().run`, as `asyncio.to_thread` does.
    """
    context = CURRENT.get()
    if context is not None:
        return Current(context._execution.id)
    writer = WRITER.get()
    if isinstance(writer, StepWriter):
        return Current(writer.execution.id, writer.block)
    return None
