"""Finds decisions for their lists in the index, so that no conversation is read.

A list of decisions must equal what reading every event gives. So the index only says where they
are, and each is then read by its key. It is asked when many events would have to be read without
it. If it is far behind, it follows for about as long as reading those events takes, and then the
events are read. So the next call finds it closer, and no call waits for an index that is made from
the start. Sealed events are in no index; where there are any, the events are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.record.context import FoundDecision

if TYPE_CHECKING:
    from holdfast.query.index import QueryIndex

_logger = logging.getLogger("holdfast.query")
EVENT_S = 0.000_01
"""About how long it takes to read one event."""
AT_ONCE = 100
_IN = (
    "SELECT revision, id, scope FROM docs {hint} WHERE kind = 'decision' AND scope = ? "
    f"AND revision < ? ORDER BY revision DESC LIMIT {AT_ONCE}"
)
_ANYWHERE = (
    "SELECT time, id, scope FROM docs WHERE kind = 'decision' AND (time, id) IN (SELECT DISTINCT "
    "time, id FROM docs WHERE kind = 'decision' {passed} ORDER BY time DESC, id "
    f"LIMIT {AT_ONCE}) ORDER BY time DESC, id, scope"
)
_PASSED = "AND (time < ? OR (time = ? AND id > ?))"


def find_decisions(
    open_index: Callable[[], QueryIndex],
    stream: str | None,
    passed: tuple[Any, ...] | None,
    events: int,
) -> list[FoundDecision] | None:
    """Returns the next decisions of a scope or of the store; None if the index cannot be used.

    An error of the index is only logged, because the caller can read the events instead.
    """
    try:
        index = open_index()
        if not index.catch_up(events * EVENT_S) or index.has_sealed(stream):
            return None
        if stream is not None:
            hint = index.hint("docs_decided")
            rows = index.rows(_IN.format(hint=hint), [stream, *(passed or (1 << 62,))])
            return [FoundDecision((row[0],), row[1], (row[2],)) for row in rows]
        values: list[Any] = []
        if passed is not None:
            values = [-passed[0], -passed[0], passed[1]]
        rows = index.rows(_ANYWHERE.format(passed=_PASSED if passed else ""), values)
    except HoldfastError as error:
        _logger.warning("the index is not used: %s", error)
        return None
    found: dict[tuple[int, str], list[str]] = {}
    for time, id, scope in rows:
        found.setdefault((-time, id), []).append(scope)
    return [FoundDecision(key, key[1], scopes) for key, scopes in found.items()]
