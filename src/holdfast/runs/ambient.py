"""Which run this code is in."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.log import WRITER
from holdfast.runs.define import CURRENT
from holdfast.runs.execution import StepWriter


class Current(Struct, frozen=True):
    """The run that code is part of, and the step of it, by the step's path in the journal."""

    run: str
    step: str | None = None


def current() -> Current | None:
    """Returns the run, and the step, that this code is executed by; None outside of runs.

    It is kept in context variables: a thread that a step starts by itself knows of it if it was
    started with `contextvars.copy_context().run`, as `asyncio.to_thread` does.
    """
    context = CURRENT.get()
    if context is not None:
        return Current(context._execution.id)
    writer = WRITER.get()
    if isinstance(writer, StepWriter):
        return Current(writer.execution.id, writer.block)
    return None
