"""Verbs for sessions: session list, session export."""

from __future__ import annotations

from holdfast.cli.options import DEFAULTS, Options, open_reading
from holdfast.cli.parsing import find_scope
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.render.sessions import exported_document, session_document, sessions_document
from holdfast.render.text import clean, show_time


def list_sessions(*, options: Options = DEFAULTS) -> None:
    """List the sessions that have not ended: active, or crashed with their worker."""
    with open_reading(options) as store:
        found = list(store.sessions.list(limit=None))
    if options.json:
        print_json(sessions_document(found))
        return
    rows = [(one.scope, one.status, one.worker, show_time(one.begun_at)) for one in found]
    if rows:
        print_table(("scope", "status", "worker", "begun"), rows)
    else:
        print_note("no sessions that have not ended")


def export_session(scope: str, /, *, to: str | None = None, options: Options = DEFAULTS) -> None:
    """Write a session as one JSON document: messages, decisions, tool results, files, state.

    Parameters
    ----------
    scope
        The session's scope, such as conversation/c1.
    to
        The file, replaced if it is there; without it, standard output.
    """
    with open_reading(options) as store:
        document = find_scope(store, scope).session.export(to)
    if to is None:
        print_json(session_document(document))
    elif options.json:
        print_json(exported_document(document, to))
    else:
        print_line(
            f"wrote {clean(scope)} at revision {document['revision']} to {clean(to)}: "
            f"{len(document['messages'])} messages, {len(document['decisions'])} decisions, "
            f"{len(document['tool_results'])} tool results"
        )
