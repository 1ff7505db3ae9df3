"""Verbs for the state of a scope: show, get, set, delete, audit."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.completion import Moment, ScopeName
from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading, open_writing
from holdfast.cli.parsing import find_revision, find_scope, parse_value
from holdfast.cli.printing import (
    is_terminal,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_raw,
    print_table,
    print_tree,
)
from holdfast.core import codec
from holdfast.core.arguments import check_duration, parse_path
from holdfast.core.log import scope_stream
from holdfast.core.tree import List, Map
from holdfast.errors import NotFoundError, UsageError
from holdfast.record.audit import AuditItem
from holdfast.render.history import (
    audit_document,
    state_document,
    value_document,
    write_document,
)
from holdfast.render.query import hit_document, linked_document
from holdfast.render.text import (
    clean,
    indent,
    preview,
    shorten,
    show_path,
    show_time,
    time_text,
)
from holdfast.scope import Scope
from holdfast.store import Store

NAMED_KEYS_MAX = 10


def show(scope: ScopeName, /, *, at: Moment | None = None, options: Options = DEFAULTS) -> None:
    """Show the state of a scope, now or at an earlier moment.

    Parameters
    ----------
    scope
        The scope, such as team/support or global; or a link, such as decision:d7@team/support.
    at
        The moment: a revision, a checkpoint's name, or a time.
    """
    with open_reading(options) as store:
        if ":" in scope.partition("/")[0]:
            show_linked(store, scope, options)
            return
        found = find_scope(store, scope, even_removed=at is not None)
        scope = found.name
        revision = find_revision(found, at)
        state = scope_stream(found).now_at(revision) if at is None else found.at(revision)
        if options.json:
            print_json(state_document(scope, revision, state))
        elif is_terminal():
            print_tree(f"{scope} at revision {revision}", state, preview)
        else:
            print_line(indent(state))


def show_linked(store: Store, link: str, options: Options) -> None:
    """Shows what a link leads to, and where the links of that lead."""
    hit = store.search.resolve(link)
    if hit is None:
        raise NotFoundError(
            f"{clean(link)} leads to nothing in the store",
            hint="a link is decision:ID@SCOPE, task:ID@SCOPE, message:ID@SCOPE, fact:NAME@SCOPE, "
            "event:SCOPE@REVISION or run:ID",
        )
    document = hit_document(hit)
    leads = {
        one: None
        if (to := store.search.resolve(one, scope=hit.scope)) is None
        else to.shown or to.id
        for one in hit.links
    }
    if options.json:
        print_json(linked_document(hit, leads))
        return
    facts = [(name, str(value)) for name, value in document.items() if value and name != "links"]
    print_facts([*facts, *((f"links to {one}", to or "") for one, to in leads.items())])


def get(
    scope: ScopeName,
    path: str,
    /,
    *,
    at: Moment | None = None,
    raw: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Print one value: text as it is, everything else as JSON.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    path
        The place: customer.name, messages[0].text, or a JSON array such as ["a.b",0].
    at
        The moment: a revision, a checkpoint's name, or a time.
    raw
        Write text and bytes exactly as stored, control characters too, without a newline.
    """
    with open_reading(options) as store:
        found = find_scope(store, scope, even_removed=at is not None)
        scope = found.name
        revision = find_revision(found, at)
        place = parse_path(path)
        state = scope_stream(found).now_at(revision) if at is None else found.at(revision)
        refuse_two_meanings(found, state, path, place)
        value = read_value(found, state, place)
        if options.json:
            print_json(value_document(scope, revision, place, value))
        elif raw:
            print_raw(to_bytes(value))
        else:
            print_value(value)


def print_value(value: Any) -> None:
    """Prints a value for people: text as it is, everything else as indented JSON."""
    print_line(clean(value, keep="\n\t") if isinstance(value, str) else indent(value))


def set_value(
    scope: ScopeName,
    path: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    text: Flag = False,
    expected: int | None = None,
    checkpoint: str | None = None,
    key: str | None = None,
    ttl: str | None = None,
    subject: str | None = None,
    unchecked: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Set a value in a scope; durable when the command returns.

    Parameters
    ----------
    scope
        The scope, such as team/support or global; created if it does not exist.
    path
        The place: customer.name, messages[0].text, or a JSON array such as ["a.b",0].
    value
        JSON if it parses, else text; - reads it from standard input.
    text
        Take the value as text, even if it looks like JSON.
    expected
        Refuse unless the scope is at this revision.
    checkpoint
        Give the new revision this name.
    key
        An idempotency key: a second set with the same key and value writes nothing.
    ttl
        How long the value lasts: 45s, 1h30m, 2d. Set again without --ttl, it lasts.
    subject
        The subject that the value belongs to: sealed by their key, gone when they are erased.
    unchecked
        Write to a scope whose schema is not known here, without a check.
    """
    place = parse_path(path)
    parsed = parse_value(read_input() if value == "-" else value, is_text=text)
    if ttl is not None:
        check_duration(ttl, "--ttl")
    with open_writing(options, unchecked=unchecked) as store:
        found = find_scope(store, scope, must_exist=False)
        refuse_two_meanings(found, found.state, path, place)
        revision = found.set(
            place, parsed, subject=subject, ttl_s=ttl, expected=expected, key=key,
            checkpoint=checkpoint,
        )  # fmt: skip
        ends_at = None if ttl is None else found.life.ends_at(place)
    if options.json:
        print_json(write_document(scope, revision, place, ends_at))
    else:
        print_line(f"{clean(scope)} is at revision {revision}: {_set(place, parsed, ends_at)}")


def _set(place: tuple[str | int, ...], value: Any, ends_at: datetime | None) -> str:
    until = "" if ends_at is None else f", until {show_time(ends_at)}"
    return f"{clean(show_path(place))} = {shorten(preview(value))}{until}"


def delete(
    scope: ScopeName,
    path: str,
    /,
    *,
    expected: int | None = None,
    checkpoint: str | None = None,
    unchecked: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Delete a value from a scope; its history still has it.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    path
        The place: customer.name, messages[0].text, or a JSON array such as ["a.b",0].
    expected
        Refuse unless the scope is at this revision.
    checkpoint
        Give the new revision this name.
    unchecked
        Write to a scope whose schema is not known here, without a check.
    """
    place = parse_path(path)
    with open_writing(options, unchecked=unchecked) as store:
        found = find_scope(store, scope)
        scope = found.name
        refuse_two_meanings(found, found.state, path, place)
        read_value(found, found.state, place)
        revision = found.delete(place, expected=expected, checkpoint=checkpoint)
    if options.json:
        print_json(write_document(scope, revision, place))
    else:
        print_line(
            f"{clean(scope)} is at revision {revision}: {clean(show_path(place))} is deleted"
        )


def refuse_two_meanings(scope: Scope, state: Map, text: str, path: tuple[str | int, ...]) -> None:
    """Raises UsageError for a word such as a.b if the state has a key of exactly that name.

    In Python a text is one key; on the command line it is a path. If both could be meant, guessing
    might change the wrong value.
    """
    if len(path) > 1 and text in state:
        key = json.dumps([text], ensure_ascii=False)
        whole = json.dumps(list(path), ensure_ascii=False, separators=(",", ":"))
        raise UsageError(
            f'{text!r:.80} may be the key of scope "{scope.name}" that is called so, or a path',
            hint=f"write {shlex.quote(key)} for the key, {shlex.quote(whole)} for the path",
        )


def read_value(scope: Scope, state: Map, path: tuple[str | int, ...]) -> Any:
    """Returns the value at a path, or raises NotFoundError that says where the path ends."""
    value: Any = state
    for depth, step in enumerate(path):
        if not has(value, step):
            where = show_path(path[:depth]) if depth else "its state"
            raise NotFoundError(
                f'scope "{scope.name}" has nothing at {show_path(path)}: '
                f"{where} is {describe(value)}",
                hint=f"holdfast show {shlex.quote(scope.name)}",
            )
        value = value[step]
    return value


def has(value: Any, step: str | int) -> bool:
    if isinstance(value, Map):
        return isinstance(step, str) and step in value
    return isinstance(value, List) and isinstance(step, int) and -len(value) <= step < len(value)


def describe(value: Any) -> str:
    """Returns what a value holds, for an error message about a path."""
    if isinstance(value, Map):
        if not value:
            return "an empty map"
        keys = [show_path((key,)) for key, _ in zip(value, range(NAMED_KEYS_MAX), strict=False)]
        more = f" and {len(value) - len(keys)} more" if len(value) > len(keys) else ""
        return f"a map with the keys {', '.join(keys)}{more}"
    if isinstance(value, List):
        return f"a list of {len(value)}"
    return f"the value {shorten(preview(value))}"


def to_bytes(value: Any) -> bytes:
    """Returns a value as bytes: text as UTF-8, bytes as they are, the rest as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return codec.encode(value, size_max=sys.maxsize)


def read_input() -> str:
    """Returns what is on standard input, without the newline that ends it."""
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte {error.start} cannot be read",
            hint='give bytes as JSON: {"$bytes":"<base64>"}',
        ) from error
    return text.removesuffix("\n")


COLUMNS = ("changes", "size", "changed", "key")


def audit(scope: ScopeName, /, *, options: Options = DEFAULTS) -> None:
    """Show the keys of a scope's state: how large each is, how often and when it changed.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    """
    with open_reading(options) as store:
        found = find_scope(store, scope)
        scope = found.name
        revision = found.revision
        items = found.life.audit().items()
    if options.json:
        print_json(audit_document(scope, revision, items))
        return
    print_table(COLUMNS, [row_of(item) for item in items])
    if not items:
        print_note(f"{scope} has no state")


def row_of(item: AuditItem) -> tuple[str, str, str, str]:
    """Returns an item as a row of a table."""
    show = show_time if is_terminal() else time_text
    changed = "" if item.changed_at is None else show(item.changed_at)
    return str(item.changes), str(item.size), changed, show_path(item.path)
