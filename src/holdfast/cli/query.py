"""Verbs for questions over everything recorded: query, similar, sql."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, cast

from cyclopts import Parameter

from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    open_reading,
    print_more,
    read_seconds,
)
from holdfast.cli.parsing import parse_limit, parse_where, read_time
from holdfast.cli.printing import is_terminal, print_aside, print_json, print_note, print_table
from holdfast.cli.user_code import load_embedder
from holdfast.query.form import SQL_BYTES_MAX, SQL_ROWS_MAX, SQL_TIMEOUT_S, TIMEOUT_S, Hit, Hits
from holdfast.render.query import hits_document, rows_document, similar_document
from holdfast.render.text import encode_json, show_time

COLUMNS = ("kind", "scope", "id", "time", "actor", "status", "text")


@Parameter(name="*")
@dataclass(frozen=True)
class Question:
    """The conditions of a question: what is found fits all that are given."""

    kind: Words = None
    """message, decision, task, fact, state, run, event or log; may be given again."""
    type: Words = None
    """The type of an event; alone, only events are looked at."""
    actor: str | None = None
    """Who recorded it."""
    source: str | None = None
    """Where it came from: human, model, tool, import or file."""
    trust: str | None = None
    """How far that is trusted, in your own word."""
    scope: str | None = None
    """A scope's name, or a pattern such as "conversation/*"."""
    since: str | None = None
    """Not before this time, or this long ago: 2026-11-16T09:30 or 7d."""
    until: str | None = None
    """Before this time, or this long ago."""
    text: str | None = None
    """Words that all occur; "a phrase" in quotes, and beginnings such as manag*."""
    tag: str | None = None
    """A tag of a task, of a message's metadata or of an event's data."""
    status: Words = None
    """open, closed, completed and so on; may be given again."""
    links: Words = None
    """Only what links to this, such as decision:d7 or file:src/a.py; may be given again."""
    where: Words = None
    """A comparison of the state, such as "customer.id=7" or "score >= 3"; may be given again."""
    timeout: Annotated[float, Parameter(converter=read_seconds)] = TIMEOUT_S
    """How long to wait for the index, in seconds or such as 1h30m."""
    stale_ok: Flag = False
    """After that time answer from the index as it is, and say how far behind it is."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments for `Store.query`."""
        given: dict[str, Any] = {**vars(self)}
        given["since"], given["until"] = _parse_moment(self.since), _parse_moment(self.until)
        if self.where is not None:
            given["where"] = [parse_where(one) for one in self.where]
        return given

    def words(self) -> list[str]:
        """Returns the words to type for the same question."""
        words = [
            word
            for name, value in vars(self).items()
            if value is not None and name not in ("timeout", "stale_ok")
            for one in (cast("list[Any]", value) if isinstance(value, list) else [value])
            for word in (f"--{name}", str(one))
        ]
        words += [] if self.timeout == TIMEOUT_S else ["--timeout", f"{self.timeout:g}"]
        return [*words, *(["--stale-ok"] if self.stale_ok else [])]


EVERYTHING = Question()


def query(
    *,
    question: Question = EVERYTHING,
    limit: int = 20,
    after: str | None = None,
    explain: Flag = False,
    rebuild: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Find what was recorded, newest first: of every kind, over all scopes.

    Parameters
    ----------
    limit
        How many at most.
    after
        The cursor of the page before.
    explain
        Say how it was found, and at which position of the store.
    rebuild
        Rebuild the index first.
    """
    asked = question.arguments()
    with open_reading(options) as store:
        if rebuild:
            store.search.rebuild()
        hits = store.query(**asked, limit=parse_limit(limit), after=after)
    if options.json:
        print_json(hits_document(hits))
        return
    _print_hits(hits, explain=explain)
    print_more(
        hits, ["query", *question.words(), *(["--explain"] if explain else [])], options, limit
    )


def similar(
    text: str,
    /,
    *,
    embedder: str,
    question: Question = EVERYTHING,
    limit: int = 10,
    options: Options = DEFAULTS,
) -> None:
    """Find what was recorded that is nearest to a text in meaning, by an embedder of yours.

    Parameters
    ----------
    text
        The text to compare with.
    embedder
        Your embedder: FILE.py:name or package.module:name.
    limit
        How many at most.
    """
    asked, chosen = question.arguments(), load_embedder(embedder)
    with open_reading(options) as store:
        found = store.search.similar(text, limit=parse_limit(limit), embedder=chosen, **asked)
    if options.json:
        print_json(similar_document(found))
    elif found:
        rows = [[f"{one.score:.3f}", *_row(one.hit)] for one in found]
        print_table(("score", *COLUMNS), rows)
    else:
        print_note("nothing found")


def _print_hits(hits: Hits, *, explain: bool) -> None:
    if hits:
        print_table(COLUMNS, [_row(hit) for hit in hits])
    else:
        print_note("nothing found")
    if hits.behind:
        print_aside(f"the index is {hits.behind} positions behind")
    if explain:
        for line in (*hits.explained, f"at position {hits.position}"):
            print_aside(line)


def _row(hit: Hit) -> list[str]:
    shown = hit.shown.partition("\n")[0] or hit.type
    if is_terminal():
        shown = shown[:60]
    return [hit.kind, hit.scope, hit.id, show_time(hit.time), hit.actor, hit.status, shown]


def _parse_moment(word: str | None) -> datetime | str | None:
    """Returns a time if the word reads as one, else the word: a length of time."""
    return None if word is None else read_time(word) or word


def sql(
    statement: str,
    /,
    *,
    timeout: Annotated[float, Parameter(converter=read_seconds)] = SQL_TIMEOUT_S,
    max_rows: int = SQL_ROWS_MAX,
    max_bytes: int = SQL_BYTES_MAX,
    options: Options = DEFAULTS,
) -> None:
    """Run a SELECT on tables of everything recorded, and print what it returns.

    Parameters
    ----------
    statement
        A SELECT on scopes, events, state, messages, decisions, tasks, facts or runs.
    timeout
        End it after this time, in seconds or such as 5m.
    max_rows
        Refuse an answer of more rows.
    max_bytes
        Refuse an answer of more bytes.
    """
    with open_reading(options) as store:
        found = store.search.sql(statement, timeout=timeout, max_rows=max_rows, max_bytes=max_bytes)
    if options.json:
        print_json(rows_document(found))
    elif found.rows:
        print_table(found.columns, [[_cell(value) for value in row] for row in found.rows])
    else:
        print_note("no rows")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_json(value).decode()
