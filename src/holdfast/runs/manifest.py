"""What runs own in a store: their journals, and the marks of those that have not ended."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.layers import Layer, register_layer
from holdfast.core.log import Log
from holdfast.names import WORKFLOW

INDEX = "run"
"""The marks of unfinished runs; a mark's group is the run's status."""
DUE = "run.due"
"""The marks of runs that may be claimed, when they are due."""

register_layer(
    Layer(
        name="runs",
        prefixes=("run",),
        removable=("run",),
        kept_with={"run": "workflow"},
        indexes=(INDEX, DUE),
        holds=lambda context, stream: _unfinished_of(context.log, stream),
        erased=lambda stream: _marks_of(stream),
    )
)


def _marks_of(stream: str) -> Iterator[tuple[str, str]]:
    """Yields what says that a run is unfinished, if a stream is the journal of one."""
    word, _, id = stream.partition("/")
    if word == "run":
        yield from ((INDEX, id), (DUE, id))


def _unfinished_of(log: Log, stream: str) -> Iterator[str]:
    """Yields the run whose own state or journal a stream is, if it has not ended."""
    level, _, id = stream.partition("/")
    if level in (WORKFLOW, "run"):
        for mark in log.find_marks(INDEX, keys=[id]):
            yield f'run "{id}" is {mark.group}'
