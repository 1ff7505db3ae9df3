"""Verbs for what controls have caught: catch, catch list, catch scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.options import DEFAULTS, Options, open_reading, open_writing, print_more
from holdfast.cli.parsing import find_scope, parse_limit
from holdfast.cli.printing import print_aside, print_json, print_line, print_note, print_table
from holdfast.errors import UsageError
from holdfast.record.catches import BY_HAND, LAST, Catch
from holdfast.render.record import catch_document, catches_document
from holdfast.render.text import clean, show_time

COLUMNS = ("time", "scope", "control", "caught", "actor", "outcome", "notes")


def catch(
    scope: str,
    caught: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    control: str = BY_HAND,
    outcome: str | None = None,
    notes: str | None = None,
    about: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Log by hand what a control has caught, such as a review.

    Parameters
    ----------
    scope
        The scope that it happened in.
    caught
        What was caught.
    control
        What caught it.
    outcome
        What became of it.
    notes
        Whatever else is worth knowing.
    about
        A link to what it is about, such as message:… or commit:….
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        one = found.decisions.catch(
            caught, control=control, outcome=outcome, notes=notes, about=about
        )
    if options.json:
        print_json(catch_document(one))
    else:
        print_line(f"{clean(one.scope)} is at revision {one.revision}: catch logged")


def list_catches(
    scope: str | None = None,
    /,
    *,
    limit: int = 20,
    after: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List what was caught: in one scope, or in all, newest first.

    Parameters
    ----------
    scope
        The scope; without it every scope.
    limit
        How many at most.
    after
        Continue after this cursor, which the page before ended with. Only without a scope.
    """
    is_cut = False
    with open_reading(options) as store:
        if scope is None:
            page = store.decisions.catches(limit=parse_limit(limit), after=after)
            found: Sequence[Catch] = page
        elif after is not None:
            raise UsageError("--after is for the list of all scopes: leave the scope out")
        else:
            every = find_scope(store, scope).decisions.catches()[::-1]
            found = every[: parse_limit(limit)]
            page, is_cut = None, len(every) > len(found)
    if options.json:
        print_json(catches_document(found, page))
        return
    _print(found)
    if page is not None:
        print_more(page, ["catch", "list"], options, limit)
    elif is_cut:
        print_aside("there is more: give a greater --limit")


def scan(scope: str, /, *, last: int = LAST, options: Options = DEFAULTS) -> None:
    """Look for decisions that messages state and no record has, and log each once.

    Parameters
    ----------
    scope
        The conversation.
    last
        How many of its newest messages to look at.
    """
    if last < 1:
        raise UsageError(f"--last must be at least 1, found {last}")
    with open_writing(options) as store:
        found = find_scope(store, scope).decisions.catch_unrecorded(last=last)
    if options.json:
        print_json(catches_document(found, None))
    else:
        _print(found)


def _print(found: Sequence[Catch]) -> None:
    if not found:
        print_note("nothing was caught")
        return
    print_table(COLUMNS, [_row(one) for one in found])


def _row(one: Catch) -> list[str]:
    return [
        show_time(one.time),
        one.scope,
        one.control,
        one.caught,
        one.actor,
        one.outcome or "",
        one.notes or "",
    ]
