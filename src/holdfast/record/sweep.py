"""Marks that lead nowhere any more, taken away by `recover`.

A mark is cleared in the commit that ends what it stands for. Two ends come without a commit: a
scope that expires, and a worker that dies in a turn, which then reads as interrupted for good.
Readers pass such marks over; swept away they do not pile up.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import ExpiredError
from holdfast.lifetimes import EXPIRING
from holdfast.log import Log
from holdfast.record import decisions, facts, table, turns
from holdfast.record.book import Book
from holdfast.wanted import Cleared, Mark, Wanted

_ALL = 1 << 31
_INDEXES = (
    decisions.INDEX_OPEN,
    decisions.INDEX_STANDING,
    decisions.INDEX_SUPERSEDING,
    facts.INDEX,
    facts.INDEX_KEPT,
    table.INDEX,
    table.INDEX_CLAIMED,
    turns.INDEX,
)


def sweep(book: Book) -> int:
    """Clears the marks of the record that lead nowhere; returns how many."""
    found = {(mark.index, mark.key) for mark in (*_expired(book.log), *_interrupted(book))}
    for index, key in found:
        # One commit each: in a store over several backends they may be kept apart.
        book.log.commit(Wanted((), marks=(Cleared(index, key),)))
    return len(found)


def _expired(log: Log) -> Iterator[Mark]:
    if not log.backend.marks.list(EXPIRING, limit=1):
        return  # nothing here expires
    ended: dict[str, bool] = {}
    for index in _INDEXES:
        for mark in log.backend.marks.list(index, limit=_ALL):
            if mark.group not in ended:
                ended[mark.group] = _has_ended(log, mark.group)
            if ended[mark.group]:
                yield mark


def _has_ended(log: Log, stream: str) -> bool:
    try:
        log.head(stream)
    except ExpiredError:
        return True
    return False


def _interrupted(book: Book) -> Iterator[Mark]:
    for mark in book.log.backend.marks.list(turns.INDEX, limit=_ALL):
        if not book.heart.is_alive(turns.worker_of(mark)):
            yield mark
