"""Verbs for own events, and for the projections that are folded from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from cyclopts import Parameter

from holdfast.cli.completion import ScopeName
from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading, open_writing, print_more
from holdfast.cli.parsing import find_scope, parse_limit, parse_place, parse_value
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.cli.state import read_input
from holdfast.cli.user_code import load_module, load_projection
from holdfast.core.own_event import OwnEvent
from holdfast.errors import UsageError
from holdfast.render.record import own_event_document, own_events_document, projected_document
from holdfast.render.text import clean, indent, preview, show_time

Code = Annotated[list[str] | None, Parameter(name="--module", negative="")]
COLUMNS = ("scope", "revision", "time", "type", "actor", "data", "refs")


def record(
    scope: ScopeName,
    type: str,
    data: Annotated[str, Parameter(allow_leading_hyphen=True)] = "{}",
    /,
    *,
    ref: Annotated[list[str] | None, Parameter(negative="")] = None,
    key: str | None = None,
    subject: str | None = None,
    module: Code = None,
    options: Options = DEFAULTS,
) -> None:
    """Record an event of a type of your own in a scope; durable when the command returns.

    Parameters
    ----------
    scope
        The scope, such as team/support; created if it does not exist.
    type
        What happened, such as ticket_opened.
    data
        Its data: a JSON object; - reads it from standard input.
    ref
        What it refers to, such as decision:refund-7@team/support, file:src/a.py or a URL; may be
        given again.
    key
        An idempotency key: a second event with the same key and data adds nothing.
    subject
        The subject that the event belongs to: sealed by their key, gone when they are erased.
    module
        A Python file or module that declares the type: the data must fit it. May be given again.
    """
    for name in module or ():
        load_module(name)
    meant = parse_value(read_input() if data == "-" else data, is_text=False)
    if not isinstance(meant, Mapping):
        raise UsageError(
            f"the data of an event is a JSON object, found {data!r:.60}",
            hint="""write it like '{"id": "t1"}'""",
        )
    with open_writing(options) as store:
        found = find_scope(store, scope, must_exist=False)
        event = found.record(
            type,
            cast("Any", meant),
            refs=ref or (),
            key=key,
            unchecked=module is None,
            subject=subject,
        )
        if options.json:
            print_json(own_event_document(event))
        else:
            print_line(f"{clean(found.name)} is at revision {event.revision}: {clean(event.type)}")


def list_events(
    scope: ScopeName | None = None,
    /,
    *,
    type: str | None = None,
    actor: str | None = None,
    source: str | None = None,
    trust: str | None = None,
    limit: int = 20,
    before: str | None = None,
    after: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List events of your own, newest first: of a scope, or of the whole store.

    Parameters
    ----------
    scope
        The scope, such as team/support; without it every scope.
    type
        Only events of this type, such as ticket_opened.
    actor
        Only events of this actor.
    source
        Only events from this source: human, model, tool, import or file.
    trust
        Only events with this trust: your own word for how far a source is trusted.
    limit
        How many events at most.
    before
        Only events before this revision, without a scope before this position; or a page's cursor.
    after
        Only events after it.
    """
    with open_reading(options) as store:
        scope = None if scope is None else find_scope(store, scope).name
        page = store.events(
            before=parse_place(before),
            after=parse_place(after),
            limit=parse_limit(limit),
            scope=scope,
            type=OwnEvent if type is None else type,
            actor=actor,
            source=source,
            trust=trust,
            newest_first=True,
        )
        if options.json:
            print_json(own_events_document(scope, page))
            return
        rows = [row_of(event) for event in page if isinstance(event, OwnEvent)]
    if rows:
        print_table(COLUMNS, rows)
    else:
        print_note("no events")
    given = {"--after": after, "--type": type, "--actor": actor}
    given |= {"--source": source, "--trust": trust}
    words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    verb = ["event", "list", *([scope] if scope else [])]
    print_more(page, [*verb, *words], options, limit, "--before")


def row_of(event: OwnEvent) -> tuple[str, ...]:
    return (
        event.stream,
        str(event.revision),
        show_time(event.time),
        event.type,
        event.actor,
        "let go of" if event.is_let_go else preview(event.raw),
        "" if event.is_let_go else " ".join(event.refs),
    )


def projection(
    code: str,
    over: str | None = None,
    /,
    *,
    verify: Flag = False,
    module: Code = None,
    options: Options = DEFAULTS,
) -> int:
    """Show the state that a projection of yours folds from events.

    Parameters
    ----------
    code
        The projection: FILE.py:NAME or module:NAME.
    over
        A scope, or a pattern of names such as conversation/*; without it the whole store.
    verify
        Replay all events, and compare with what was kept; exit code 1 if that differs.
    module
        A further Python file or module to load first. May be given again.
    """
    found = load_projection(code, module)
    with open_reading(options) as store:
        shown = store.projections.of(found, over)
        differences = len(shown.verify()) if verify else None
        state = shown.state
        if options.json:
            print_json(projected_document(found.name, shown.over, state, shown.events, differences))
        else:
            print_line(indent(state))
            if differences is not None:
                print_note(f"what was kept differed from a replay in {differences} places")
    return 1 if differences else 0
