"""Verbs for scopes that end by themselves: touch, expiry."""

from __future__ import annotations

from holdfast.cli.completion import ScopeName
from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading, open_writing
from holdfast.cli.parsing import find_scope
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.errors import UsageError
from holdfast.render.store import expiry_document, touched_document
from holdfast.render.text import clean, show_time

NEVER = "never"


def touch(scope: ScopeName, /, *, options: Options = DEFAULTS) -> None:
    """Say that a scope is in use, so that its end slides on.

    Parameters
    ----------
    scope
        A scope whose end slides, such as conversation/ticket-7.
    """
    with open_writing(options) as store:
        found = find_scope(store, scope)
        ends = found.life.touch()
    if options.json:
        print_json(touched_document(found.name, ends))
    else:
        print_line(f"{clean(found.name)} ends at {show_time(ends)}")


def expiry(
    level: str | None = None,
    time: str | None = None,
    /,
    *,
    fixed: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Show or set how long the scopes of a level last before they end by themselves.

    Parameters
    ----------
    level
        The level to set it for; without it what is set is shown.
    time
        How long scopes that begin from now on last, such as 1h, or never.
    fixed
        Count from the beginning of a scope, not from its newest write.
    """
    if level is not None and time is None:
        raise UsageError("expiry needs a time to set", hint=f"holdfast expiry {level} 1h")
    with open_reading(options) if level is None else open_writing(options) as store:
        if level is not None:
            ttl_s = None if time == NEVER else time
            store.retention.expire(level, ttl_s=ttl_s, slides=not fixed)
        terms = store.retention.expiry
    if options.json:
        print_json(expiry_document(terms))
    elif terms:
        rows = [
            (name, f"{term.ttl_s:g}", "each write" if term.slides else "the beginning")
            for name, term in sorted(terms.items())
        ]
        print_table(("level", "seconds", "counted from"), rows)
    else:
        print_note("scopes last unless they are begun with a time")
