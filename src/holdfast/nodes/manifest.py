"""Registers what nodes own in a store: the streams of their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.layers import Layer, register_layer
from holdfast.core.log import Log

PREFIX = "node"


def streams_about(context: Any, scope: str) -> Iterator[str]:
    """Yields the streams of results for a scope that were not removed; one query per graph."""
    log: Log = context.log
    return (stream for stream in copies_of(context, scope) if has_results(log, stream))


def copies_of(context: Any, scope: str) -> Iterator[str]:
    """Yields the streams of results for a scope, of every graph, including removed ones."""
    log: Log = context.log
    after = ""
    while names := log.stream_page(prefix=f"{PREFIX}/", after=after, limit=1):
        graph = names[0].split("/", 2)[1]
        stream = f"{PREFIX}/{graph}/{scope}"
        if log.heads((stream,)) != [None]:
            yield stream
        after = f"{PREFIX}/{graph}0"  # "0" follows "/", so this skips the rest of the graph


def has_results(log: Log, stream: str) -> bool:
    """Returns whether a stream has events that were not removed."""
    [head] = log.heads((stream,))
    return head is not None and log.life(stream, head.revision) != head.revision


register_layer(
    Layer(
        name="nodes",
        prefixes=(PREFIX,),
        removable=(PREFIX,),
        along=streams_about,
        copies=copies_of,
    )
)
