"""What people type, and what it means: scopes, moments, paths, values. Each has one small grammar.

A path:     customer.name   messages[0].text   ["a.b",0]
            As `holdfast.path` reads it.
A moment:   7   -1   "before refund"   2026-11-16T09:30   @revision:7   @name:7   @time:2026-11-16
            A whole number is a revision, counted from the newest if negative. Any other word is a
            checkpoint's name, and if there is none of that name, an ISO 8601 date or time, UTC
            unless it has an offset. An `@` form says which is meant.
A value:    JSON if it parses, else text; what begins like JSON and does not parse is refused.
A name:     a scope, a run or a decision may be cut short, with or without an ellipsis after it, as
            long as only one begins so.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any, cast

from holdfast.backends.protocol import Position
from holdfast.core import codec
from holdfast.core.arguments import parse_path
from holdfast.core.kernel import kernel_of
from holdfast.core.listing import adopt_levels, register_level
from holdfast.errors import CorruptError, NotFoundError, UsageError
from holdfast.names import GLOBAL, PROJECT, check_scope_name, split_name
from holdfast.query.form import OPERATORS, Operator, Where, nearest
from holdfast.scope import Scope
from holdfast.store import Store

NAMES_MAX = 10_000
"""How many names are searched for those that begin with what was typed."""
SHOWN_MAX = 5

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")


def parse_value(text: str, *, is_text: bool) -> Any:
    """Returns the value that a word means: JSON if it parses, else the text itself.

    Text that begins like a JSON object, list or string was meant as one, and is refused if it does
    not parse: a forgotten quote must not make it a text that later readers cannot use.
    """
    if is_text:
        return text
    try:
        plain = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            at = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise UsageError(
                f"the value {text!r:.60} begins like JSON, but cannot be read{at}: {why}",
                hint="correct it, or give it as text with --text",
            ) from error
        return text
    if isinstance(plain, str):
        return plain
    try:
        return codec.decode(text.encode("utf-8", "surrogatepass"))
    except CorruptError as error:
        raise UsageError(
            f"the value is JSON, but cannot be stored: {error.message}",
            hint="correct it, or give it as text with --text",
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise UsageError(
            f"the value has the key {twice!r:.80} twice: only one of them can be stored",
            hint="correct it, or give it as text with --text",
        )
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def parse_named(words: Sequence[str] | None, what: str) -> dict[str, Any]:
    """Returns values that were typed as NAME=VALUE, each JSON if it parses, else text."""
    found: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f'{what} is typed as NAME=VALUE, found "{word}"')
        if name in found:
            raise UsageError(f'{what} "{name}" is given twice')
        found[name] = parse_value(value, is_text=False)
    return found


def parse_limit(limit: int) -> int:
    """Returns the limit of a list as it was given; raises UsageError if it is out of range."""
    if not 1 <= limit < 1 << 62:
        raise UsageError(f"--limit must be at least 1, found {limit}")
    return limit


def parse_place(word: str | None) -> Position | str | None:
    """Returns a place among events: a revision or a position as a number, or a page's cursor."""
    return Position(int(word)) if word is not None and _INTEGER.match(word) else word


def parse_priority(word: str) -> int | str:
    """Returns a priority as it was typed: a number, or a word that the store knows."""
    try:
        return int(word)
    except ValueError:
        return word


def find_scope(
    store: Store, name: str, *, must_exist: bool = True, even_removed: bool = False
) -> Scope:
    """Returns a scope by its name, such as `team/red`; raises NotFoundError if it has no events.

    A removed scope counts as one without events, unless `even_removed` is set. A scope that must
    exist may be named by its beginning, if only one begins so.

    A level that an application registered can be read and written like any other, but only an
    application makes its first scope. The exception is the level of projects, which is known here.
    """
    typed = name.removesuffix("…") if must_exist else name
    name = check_scope_name(typed)
    level, id = split_name(name)
    kernel = kernel_of(store)
    if id is not None and not kernel.levels.has(level):
        with suppress(CorruptError):  # what is whole in a damaged store can still be read
            adopt_levels(kernel.log, kernel.levels)
        if kernel.log.head(name) is not None:
            # A stream of a layer, or of a level that nobody recorded.
            kernel.levels.adopt(level)
        elif level == PROJECT and not must_exist and not kernel.levels.has(level):
            register_level(kernel, PROJECT, below=GLOBAL)
    if must_exist and kernel.log.head(name) is None:
        names = islice(kernel.log.streams(), NAMES_MAX)
        whole = complete(name, names, "scope", hint="holdfast scopes")
        return find_scope(store, whole, even_removed=even_removed)
    try:
        scope = store.scope(typed)
    except UsageError as mistake:
        raise UsageError(
            f'"{name}" is not a scope: {mistake.message}',
            hint="write it like team/support, conversation/ticket-7 or global",
        ) from mistake
    if must_exist and not even_removed and is_removed(store, scope):
        newest = newest_revision(store, scope)
        raise NotFoundError(
            f'scope "{name}" was removed at revision {newest}',
            hint=f'"holdfast undo" brings it back; --at {newest - 1} reads what it was',
        )
    return scope


def is_removed(store: Store, scope: Scope) -> bool:
    """Returns whether a scope was removed, and nothing was written to it since."""
    life = kernel_of(store).log.life(scope.name)
    return life != 0 and newest_revision(store, scope) == life


def complete(typed: str, names: Iterable[str], what: str, *, hint: str) -> str:
    """Returns the only name that begins with what was typed; NotFoundError says which are near."""
    known = list(names)
    begun = [name for name in known if name.startswith(typed)] if typed else []
    if len(begun) == 1:
        return begun[0]
    if begun:
        shown = ", ".join(begun[:SHOWN_MAX]) + (" …" if len(begun) > SHOWN_MAX else "")
        raise NotFoundError(f'{len(begun)} {what}s begin with "{typed}": {shown}', hint=hint)
    near = get_close_matches(typed, known, n=1, cutoff=0.7)
    asked = f', did you mean "{near[0]}"?' if near else ""
    raise NotFoundError(f'there is no {what} "{typed}"{asked}', hint=hint)


def find_run(store: Store, id: str) -> str:
    """Returns the whole id of a run that exists; its beginning may have been typed."""
    typed = id.removesuffix("…")
    log = kernel_of(store).log
    if log.head(f"run/{typed}") is not None:
        return typed
    names = log.streams(prefix="run/")
    known = (name.removeprefix("run/") for name in islice(names, NAMES_MAX))
    return complete(typed, known, "run", hint="holdfast runs list")


def find_decision(store: Store, id: str, *, incomplete: bool = False) -> str:
    """Returns the whole id of a decision; its beginning may have been typed."""
    typed = id.removesuffix("…")
    if "@" in typed and kernel_of(store).log.head(typed.partition("@")[2]) is not None:
        return typed
    found = store.decisions.list(incomplete=incomplete, limit=NAMES_MAX)
    return complete(typed, (one.id for one in found), "decision", hint="holdfast decisions")


def newest_revision(store: Store, scope: Scope) -> int:
    """Returns the newest revision of a scope, without reading its state."""
    head = kernel_of(store).log.head(scope.name)
    return head.revision if head else 0


def find_revision(scope: Scope, word: str | None) -> int:
    """Returns the revision that a moment means; the newest for None.

    Raises NotFoundError or UsageError if there is no such moment.
    """
    if word is None:
        return scope.revision
    form, colon, rest = word.partition(":")
    if colon and form == "@revision":
        return _existing(scope, _parse_integer(rest, word))
    if colon and form == "@time":
        return scope.life.revision_at(_parse_time(rest, word))
    if colon and form == "@name":
        return _named(scope, rest)
    if _INTEGER.match(word):
        return _existing(scope, int(word))
    try:
        return _named(scope, word)
    except NotFoundError:
        time = read_time(word)
        if time is None:
            raise
    return scope.life.revision_at(time)


def _existing(scope: Scope, number: int) -> int:
    newest = scope.revision
    revision = number if number >= 0 else newest + number
    if not 0 <= revision <= newest:
        raise NotFoundError(
            f'scope "{scope.name}" has no revision {number}: it has 0 to {newest}',
            hint=f"holdfast log {shlex.quote(scope.name)}",
        )
    return revision


def _named(scope: Scope, name: str) -> int:
    try:
        return scope.life.revision_at(name)
    except NotFoundError as absent:
        hint = f"holdfast checkpoints {shlex.quote(scope.name)}"
        raise NotFoundError(absent.message, hint=hint) from absent


def _parse_integer(text: str, word: str) -> int:
    if not _INTEGER.match(text):
        raise UsageError(f'"{word}" is not a revision: expected a whole number after the colon')
    return int(text)


def _parse_time(text: str, word: str) -> datetime:
    time = read_time(text)
    if time is None:
        raise UsageError(
            f'"{word}" is not a time: expected ISO 8601 after the colon',
            hint="write it like @time:2026-11-16T09:30:00Z",
        )
    return time


def read_time(text: str) -> datetime | None:
    """Returns the time that a text names, in UTC if it says no zone; None if it names none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


_WHERE = re.compile(
    r"\s*(?P<path>[^\s=<>!~]+)(\s*(?P<operator>[=<>!~]+)\s*(?P<value>.*)|\s+exists\s*)"
)


def parse_where(word: str) -> Where:
    """Returns the comparison that a word means, or raises UsageError."""
    found = _WHERE.fullmatch(word)
    if found is None:
        raise UsageError(
            f"a comparison is a path, an operator and a value, found {word!r:.60}",
            hint=f"write it like customer.id=7; the operators are {' '.join(OPERATORS)}",
        )
    operator = found["operator"]
    if operator is None:
        return Where(parse_path(found["path"]), "exists")
    if operator not in OPERATORS:
        raise UsageError(
            f'a query has no operator "{operator}": {nearest(operator, OPERATORS)}',
            hint=f"its operators are {' '.join(OPERATORS)}",
        )
    value = parse_value(found["value"], is_text=False)
    return Where(parse_path(found["path"]), cast("Operator", operator), value)
