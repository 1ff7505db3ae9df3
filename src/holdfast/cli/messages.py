"""Verbs for messages: say, messages."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.completion import ScopeName
from holdfast.cli.options import DEFAULTS, Flag, Options, Words, open_reading, open_writing
from holdfast.cli.parsing import find_scope, parse_named
from holdfast.cli.printing import is_terminal, print_json, print_line, print_note, print_table
from holdfast.cli.state import read_input
from holdfast.cli.user_code import load_schemas
from holdfast.errors import UsageError
from holdfast.record.message_events import Message
from holdfast.render.record import added_message_document, messages_document
from holdfast.render.text import clean, show_time, time_text

COLUMNS = ("revision", "time", "role", "text")


def say(
    scope: ScopeName,
    text: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    role: str = "user",
    key: str | None = None,
    subject: str | None = None,
    metadata: Words = None,
    schemas: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Add a message to a conversation; durable when the command returns.

    Parameters
    ----------
    scope
        The conversation, such as conversation/c1; created if it does not exist.
    text
        The text of the message; - reads it from standard input.
    role
        Whose message it is: user, assistant, system, or another name.
    key
        An idempotency key: a second message with the same key and text adds nothing.
    subject
        The subject that it belongs to: sealed by their key, gone when they are erased.
    metadata
        A field of your own, as NAME=VALUE: JSON if it parses, else text; may be given again.
    schemas
        The file or module with the schemas of messages, such as app.py: its version is stored.
    """
    content = read_input() if text == "-" else text
    fields = parse_named(metadata, "a field") or None
    known = [] if schemas is None else load_schemas(schemas, items=True)
    with open_writing(options, schemas=known) as store:
        found = find_scope(store, scope, must_exist=False)
        message = found.messages.add(role, content, subject=subject, key=key, metadata=fields)
    if options.json:
        print_json(added_message_document(scope, message))
    else:
        print_line(
            f"{clean(scope)} is at revision {message.revision}: message added ({clean(role)})"
        )


def messages(
    scope: ScopeName,
    /,
    *,
    last: int = 20,
    before: str | None = None,
    after: str | None = None,
    oldest: Flag = False,
    original: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Show the messages of a conversation: the newest, or those next to a cursor.

    Parameters
    ----------
    scope
        The conversation, such as conversation/c1.
    last
        How many.
    before
        Show those before this cursor; --json prints it as "older".
    after
        Show those after this cursor; --json prints it as "newer".
    oldest
        Start with the first message.
    original
        Show the messages that a compaction replaced, not its summary.
    """
    if last < 1:
        raise UsageError(f"--last must be at least 1, found {last}")
    with open_reading(options) as store:
        named = find_scope(store, scope)
        scope, found = named.name, named.messages
        history = found.original() if original else found
        page = history.page(last, before=before, after=after, oldest=oldest)
        if options.json:
            print_json(messages_document(scope, page))
            return
        rows = [row_of(message) for message in page.messages]
        print_table(COLUMNS, rows)
        if page.older is not None:
            print_note(f"older ones: --before {page.older}")


def row_of(message: Message) -> tuple[str, str, str, str]:
    text = message.text or ", ".join(f"calls {call['id']}" for call in message.tool_calls)
    time = show_time(message.time) if is_terminal() else time_text(message.time)
    return str(message.revision), time, message.role, text
