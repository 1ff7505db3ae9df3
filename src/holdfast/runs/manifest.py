"""What runs own in a store: their journals, and marks for unfinished runs."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.layers import Layer, register_layer
from holdfast.core.log import Log
from holdfast.names import WORKFLOW

INDEX = "run"
"""The marks of unfinished runs; a mark's group is the run's status."""
DUE = "run.due"
"""The marks of runs that wait to be claimed; `due` says from when on."""

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
    """Yields the marks of a run that goes with its journal, for the erasure of that stream."""
    word, _, id = stream.partition("/")
    if word == "run":
        yield from ((INDEX, id), (DUE, id))


def _unfinished_of(log: Log, stream: str) -> Iterator[str]:
    """Yields why a run's journal or own state cannot be removed, if the run has not ended."""
    level, _, id = stream.partition("/")
    if level in (WORKFLOW, "run"):
        for mark in log.find_marks(INDEX, keys=[id]):
            yield f'run "{id}" is {mark.group}'
