"""Finds the positions of events by type, actor, source or time in the index.

A page of events must equal what reading the whole log gives. So the index only says at which
positions to look; the events are read from the log and filtered again. It is asked when a page is
not full after some events, and it follows the log as for lists of decisions (`decided.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.own_event import OWN
from holdfast.core.paging import EventFilter
from holdfast.errors import HoldfastError
from holdfast.query.decided import EVENT_S

if TYPE_CHECKING:
    from holdfast.query.index import QueryIndex

_logger = logging.getLogger("holdfast.query")
_END = (1 << 63) - 1


def find_positions(
    open_index: Callable[[], QueryIndex],
    wanted: EventFilter,
    low: int,
    high: int | None,
    limit: int,
    events: int,
    *,
    newest_first: bool,
) -> list[int] | None:
    """Returns the next positions with such an event, above `low` and up to `high`.

    Returns None if the index is too far behind, or cannot be used, which is logged.
    """
    if wanted.type == OWN:
        return None  # all own events: the index has no common name for them
    parts, values = _conditions(wanted)
    order = "DESC" if newest_first else "ASC"
    try:
        index = open_index()
        if not index.catch_up(events * EVENT_S):
            return None
        rows = index.rows(
            f"SELECT DISTINCT position FROM docs {index.hint(_index_for(wanted))} "
            f"WHERE kind IN ('log') AND {' AND '.join(parts)} AND position > ? AND position <= ? "
            f"ORDER BY position {order} LIMIT {int(limit)}",
            [*values, low, _END if high is None else high],
        )
    except HoldfastError as error:
        _logger.warning("the index is not used: %s", error)
        return None
    return [position for (position,) in rows]


def _conditions(wanted: EventFilter) -> tuple[list[str], list[Any]]:
    """Returns the filter as SQL conditions and their parameters; no value is in the text."""
    type = None if wanted.type is None else wanted.type.removeprefix(OWN)
    asked = (
        ("type = ?", type),
        ("actor = ?", wanted.actor),
        ("time >= ?", wanted.since),
        ("time < ?", wanted.until),
        ("source <> '' AND source = ?", wanted.source),
        ("trust <> '' AND trust = ?", wanted.trust),
    )
    found = [(text, value) for text, value in asked if value is not None]
    return [text for text, _ in found], [value for _, value in found]


def _index_for(wanted: EventFilter) -> str:
    """Returns the index to read: by time if the filter has a time, else in the log's order."""
    is_timed = wanted.since is not None or wanted.until is not None
    if wanted.source is not None:
        return "docs_source"
    if wanted.trust is not None:
        return "docs_trust"
    if wanted.type is not None:
        return "docs_type" if is_timed else "docs_type_at"
    if wanted.actor is not None:
        return "docs_actor" if is_timed else "docs_actor_at"
    return "docs_kind"
