"""Documents of questions: what was found, and how far the index had followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from holdfast.core.check import Report
from holdfast.query.form import Hit, Hits, Rows
from holdfast.query.links import DanglingLink
from holdfast.query.vectors import Similar
from holdfast.render.store import check_document
from holdfast.render.text import page_document, time_text


def hit_document(hit: Hit) -> dict[str, Any]:
    """Returns one thing that a question found."""
    return {
        "kind": hit.kind,
        "id": hit.id,
        "scope": hit.scope,
        "time": time_text(hit.time),
        "actor": hit.actor,
        "source": hit.source,
        "trust": hit.trust,
        "type": hit.type,
        "status": hit.status,
        "revision": hit.revision,
        "tags": list(hit.tags),
        "links": list(hit.links),
        "text": hit.shown,
    }


def linked_document(hit: Hit, leads: Mapping[str, str | None]) -> dict[str, Any]:
    """Returns what a link leads to, and where the links of that lead; None for nowhere."""
    return {**hit_document(hit), "leads": dict(leads)}


def linked_check_document(
    report: Report, dangling: Sequence[DanglingLink] | None
) -> dict[str, Any]:
    """Returns what a check found, and the links that lead nowhere if they were asked for."""
    links = None if dangling is None else [to_builtins(one) for one in dangling]
    return {**check_document(report), "dangling": links}


def hits_document(answer: Hits) -> dict[str, Any]:
    """Returns a page of what was found, with the position that it was read at."""
    return {
        "hits": [hit_document(hit) for hit in answer],
        "position": answer.position,
        "behind": answer.behind,
        "explained": list(answer.explained),
        **page_document(answer),
    }


def similar_document(found: Sequence[Similar]) -> dict[str, Any]:
    """Returns what is near in meaning, the nearest first."""
    return {"similar": [{"score": one.score, **hit_document(one.hit)} for one in found]}


def rows_document(found: Rows) -> dict[str, Any]:
    """Returns what a statement returned."""
    return {"columns": list(found.columns), "rows": [list(row) for row in found.rows]}
