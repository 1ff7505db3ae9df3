"""The plain scan: answers a question by reading the whole store.

It defines the right answer. It is used where there is no index, and the tests compare the index
with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from holdfast.backends.protocol import START
from holdfast.core.codec import kept_closed
from holdfast.core.event import to_datetime
from holdfast.core.log import READ_CHUNK
from holdfast.core.page import write_cursor
from holdfast.errors import ExpiredError, UpgradeError
from holdfast.names import fits_pattern
from holdfast.query import documents
from holdfast.query.documents import Document
from holdfast.query.form import KINDS_OF_SCOPES, Hit, Hits, Query
from holdfast.query.words import chunks_of, has_term
from holdfast.record.context import RecordContext

_logger = logging.getLogger("holdfast.query")


def scan(context: RecordContext, query: Query) -> Hits:
    """Answers a question by reading everything."""
    log = context.log
    position = log.position()
    found = [one for one in _all(context) if fits(query, one)]
    if query.where:
        found = [one for one in found if has_state(context, query, one.scope)]
    hits = sorted(map(to_hit, found), key=lambda hit: hit.place, reverse=True)
    if query.passed is not None:
        hits = [hit for hit in hits if hit.place < query.passed]
    return make_page(query, hits, int(position), 0)


def make_page(query: Query, hits: list[Hit], position: int, behind: int) -> Hits:
    """Returns the first of some hits as a page."""
    page = hits[: query.limit]
    cursor = write_cursor("query", *page[-1].place) if page else None
    answer = Hits(page, more=len(page) < len(hits), cursor=cursor)
    answer.position, answer.behind = position, behind
    return answer


def _all(context: RecordContext) -> Iterator[Document]:
    log, after = context.log, START
    for stream in log.streams():
        try:
            with kept_closed():  # as in the index: a question finds the same with and without it
                found = list(documents.documents_of(context, stream))
            yield from found
        except ExpiredError:
            continue
    while records := log.read_all(after=after, limit=READ_CHUNK):
        yield from map(documents.log_document, log.expiry.kept(records))
        after = records[-1].position


def fits(query: Query, one: Document) -> bool:
    """Returns whether a document meets a question, apart from comparisons of the state."""
    if one.kind not in (query.kinds or KINDS_OF_SCOPES):
        return False
    if query.where and one.kind != "state":
        return False
    chunks = chunks_of(one.texts) if query.terms else []
    return (
        (not query.types or one.type in query.types)
        and query.actor in (None, one.actor)
        and query.source in (None, one.source)
        and query.trust in (None, one.trust)
        and (query.scope is None or fits_pattern(query.scope, one.scope))
        and (query.since is None or one.time >= query.since)
        and (query.until is None or one.time < query.until)
        and (query.tag is None or query.tag in one.tags)
        and (not query.statuses or one.status in query.statuses)
        and (not query.links or not set(query.links).isdisjoint(one.links))
        and all(has_term(chunks, term) for term in query.terms)
    )


def has_state(context: RecordContext, query: Query, stream: str) -> bool:
    """Returns whether a scope's state, as this program shows it, meets every comparison.

    A state that its schema cannot upgrade is compared as it is stored.
    """
    try:
        state = context.log.newest(stream)
    except ExpiredError:
        return False
    if state.dropped:
        return False
    try:
        root = context.log.typed.shown(state, stream)
    except UpgradeError as error:
        _logger.warning("a state is compared as it is stored: %s", error)
        root = state.root
    with kept_closed():  # sealed values match no question, with an index or without
        return all(one.holds(root) for one in query.where)


def to_hit(one: Document) -> Hit:
    """Converts a document to a hit."""
    return Hit(
        kind=one.kind,  # pyright: ignore[reportArgumentType]
        id=one.id,
        scope=one.scope,
        time=to_datetime(one.time),
        actor=one.actor,
        type=one.type,
        status=one.status,
        revision=one.revision,
        tags=one.tags,
        links=one.links,
        shown=one.shown,
        source=one.source or None,
        trust=one.trust or None,
    )
