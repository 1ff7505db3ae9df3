"""The closed form of a question: its fields, and the checks of each. Pure functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, cast, get_args

from msgspec import Struct

from holdfast.core.arguments import (
    check_flag,
    check_path,
    check_seconds,
    check_since,
    check_word,
    name_of,
    parse_path,
)
from holdfast.core.event import from_datetime
from holdfast.core.own_event import OWN, stored_type
from holdfast.core.page import PAGE_SIZE, Page, check_limit, read_cursor
from holdfast.core.provenance import check_source
from holdfast.core.tree import MISSING, List, Map, get
from holdfast.errors import UsageError, show_value
from holdfast.names import check_level, is_pattern
from holdfast.query.words import Term, parse_text, plain

Kind = Literal["message", "decision", "task", "fact", "state", "run", "event", "log"]
KINDS: tuple[str, ...] = get_args(Kind)
KINDS_OF_SCOPES = KINDS[:-1]
"""What is found if no kind is given: what scopes and runs have now, without the log."""
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "exists"]
OPERATORS: tuple[str, ...] = get_args(Operator)
TIMEOUT_S = 30.0
SQL_TIMEOUT_S = 30.0
SQL_ROWS_MAX = 100_000
SQL_BYTES_MAX = 64 << 20
"""The limits of a SQL statement, unless the caller gives others."""
FIELDS = ("kind", "type", "actor", "source", "trust", "scope", "since", "until", "text", "tag",
          "status", "links", "where", "limit", "after", "timeout", "stale_ok")  # fmt: skip


class Where(NamedTuple):
    """A comparison of the value at a path of the state, such as ("customer.id", "=", 7)."""

    path: str | tuple[str | int, ...]
    operator: Operator
    value: Any = None


class Condition(Struct, frozen=True):
    """A comparison that was checked."""

    path: tuple[str | int, ...]
    operator: str
    value: Any

    def holds(self, root: Map) -> bool:
        """Returns whether a state meets it. Values of two kinds are never equal or ordered."""
        found = get(root, self.path, MISSING)
        if self.operator == "exists":
            return (found is not MISSING) is self.value
        if found is MISSING or isinstance(found, Map | List):
            return False
        if self.operator == "in":
            return any(_is_same(found, one) for one in self.value)
        if self.operator in ("=", "!="):
            return _is_same(found, self.value) is (self.operator == "=")
        if sort_of(found) != sort_of(self.value) or sort_of(found) not in ("number", "text"):
            return False
        return _ORDER[self.operator](found, self.value)


_ORDER: dict[str, Any] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def sort_of(value: object) -> str:
    """Returns the kind that a value is compared as: number, text, flag, or its type's name."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__


def _is_same(a: Any, b: Any) -> bool:
    return sort_of(a) == sort_of(b) and bool(a == b)


Place = tuple[int, str, int, str, str]
"""The sort key of hits, newest first: time, scope, revision, kind, id."""


class Query(Struct, frozen=True, kw_only=True):
    """A checked question. A field that is None or empty does not restrict the answer.

    Its texts are as those of documents are (`plain`), so that each finds what was recorded with it.
    """

    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    actor: str | None = None
    source: str | None = None
    trust: str | None = None
    scope: str | None = None
    since: int | None = None
    until: int | None = None
    terms: tuple[Term, ...] = ()
    tag: str | None = None
    statuses: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    where: tuple[Condition, ...] = ()
    limit: int | None = PAGE_SIZE
    passed: Place | None = None
    timeout_s: float = TIMEOUT_S
    stale_ok: bool = False


class Hit(Struct, frozen=True, kw_only=True):
    """One thing that a question found: what it is, where it is, and the beginning of its text."""

    kind: Kind
    id: str
    scope: str
    time: datetime
    actor: str
    type: str = ""
    status: str = ""
    revision: int = 0
    tags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    shown: str = ""
    source: str | None = None
    trust: str | None = None

    @property
    def place(self) -> Place:
        """The sort key; newer hits have greater ones."""
        return from_datetime(self.time), self.scope, self.revision, self.kind, self.id


class Hits(Page[Hit]):
    """A page of hits, and how far the index had followed the log."""

    position: int = 0
    """The position that the index had reached."""
    behind: int = 0
    """How far the store was ahead of `position`; always 0 without `stale_ok`."""
    explained: tuple[str, ...] = ()
    """How the hits were found, in words."""


class Rows(Struct, frozen=True):
    """The result of a SQL statement: the names of the columns, and the rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def check_query(
    now_us: int,
    *,
    kind: object = None,
    type: object = None,
    actor: object = None,
    source: object = None,
    trust: object = None,
    scope: object = None,
    since: object = None,
    until: object = None,
    text: object = None,
    tag: object = None,
    status: object = None,
    links: object = None,
    where: object = None,
    limit: object = PAGE_SIZE,
    after: object = None,
    timeout: object = TIMEOUT_S,
    stale_ok: object = False,
    **unknown: object,
) -> Query:
    """Returns the checked question; raises UsageError, which names the nearest known word.

    Without `kind`, a question with `where` finds states, and one with `type` finds events: own
    events, or those of the log if a type is not one of the program's.
    """
    for name in unknown:
        raise UsageError(
            f"a query has no field {show_value(name)}: {nearest(name, FIELDS)}",
            hint=f"its fields are {', '.join(FIELDS)}",
        )
    kinds = _kinds(kind)
    types, conditions = _type_names(type), check_where(where)
    if not kinds and (types or conditions):
        own = all(stored_type(one).startswith(OWN) for one in types)
        kinds = ("state",) if conditions else ("event",) if own else ("log",)
    return Query(
        kinds=tuple(dict.fromkeys(kinds)),
        types=types,
        actor=_plain(check_word(actor, "actor")),
        source=_plain(check_source(source)),
        trust=_plain(check_word(trust, "trust")),
        scope=None if scope is None else _pattern(scope),
        since=None if since is None else check_since(since, "since", now_us),
        until=None if until is None else check_since(until, "until", now_us),
        terms=() if text is None else parse_text(text),
        tag=_plain(check_word(tag, "tag")),
        statuses=_words(status, "status"),
        links=_words(links, "links"),
        where=conditions,
        limit=check_limit(limit),
        passed=None if after is None else _place(after),
        timeout_s=check_seconds(timeout, "timeout", above=-1e-9),
        stale_ok=check_flag(stale_ok, "stale_ok"),
    )


def _kinds(kind: object) -> tuple[str, ...]:
    kinds = _words(kind, "kind")
    for one in kinds:
        if one not in KINDS:
            raise UsageError(
                f"a query has no kind {show_value(one)}: {nearest(one, KINDS)}",
                hint=f"its kinds are {', '.join(KINDS)}",
            )
    return kinds


def check_where(where: object) -> tuple[Condition, ...]:
    """Returns the comparisons given as a mapping of paths to values, one tuple, or several."""
    if where is None:
        return ()
    given: list[Any]
    if isinstance(where, Mapping):
        given = [(path, "=", value) for path, value in cast("Mapping[Any, Any]", where).items()]
    elif isinstance(where, Iterable) and not isinstance(where, str):
        given = list(cast("Iterable[Any]", where))
        if len(given) in (2, 3) and isinstance(given[1], str) and not isinstance(where, list):
            given = [tuple(given)]
    else:
        given = [where]
    return tuple(map(_comparison, given))


def _comparison(given: object) -> Condition:
    parts = tuple(cast("tuple[Any, ...]", given)) if isinstance(given, tuple | list) else ()
    if len(parts) == 2 and parts[1] == "exists":
        parts = (*parts, True)
    if len(parts) != 3:
        raise UsageError(
            "a comparison is a path, an operator and a value, "
            f"found {show_value(cast('object', given))}",
            hint='write ("customer.id", "=", 7)',
        )
    path, sign, value = parts
    if sign not in OPERATORS:
        raise UsageError(
            f"a query has no operator {show_value(sign)}: {nearest(sign, OPERATORS)}",
            hint=f"its operators are {' '.join(OPERATORS)}",
        )
    if sign == "in":
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UsageError(f"in takes a list of values, found {show_value(value)}")
        value = tuple(cast("Sequence[Any]", value))
    if sign == "exists":
        value = True if value is None else value
        check_flag(value, "the value of exists")
    return Condition(check_place(path), sign, value)


def check_place(path: object) -> tuple[str | int, ...]:
    """Returns a path given as a tuple, or as text such as `customer.orders[0].id`."""
    if isinstance(path, tuple):
        steps = check_path(cast("object", path))
    else:
        steps = parse_path(cast("str", path))
    if not steps:
        raise UsageError("a comparison is of a value in the state: its path is empty")
    return steps


def nearest(name: object, known: Sequence[str]) -> str:
    """Returns the known word nearest to a misspelt one, as part of a sentence."""
    close = get_close_matches(str(name), known, n=1, cutoff=0.1)
    return f'the nearest is "{close[0] if close else known[0]}"'


def _words(given: object, what: str) -> tuple[str, ...]:
    if given is None:
        return ()
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple | set | frozenset):
        raise UsageError(f"{what} is text or a list of texts, found {show_value(given)}")
    for word in cast("Iterable[object]", words):
        if not isinstance(word, str) or not word:
            raise UsageError(f"{what} is text or a list of texts, found {show_value(word)}")
    return tuple(map(plain, cast("Iterable[str]", words)))


def _plain(word: str | None) -> str | None:
    return None if word is None else plain(word)


def _type_names(given: object) -> tuple[str, ...]:
    """Returns the names of event types, which may be given as classes of own events."""
    listed = cast("Iterable[object]", given) if isinstance(given, list | tuple | set) else (given,)
    named = [stored_type(one) if isinstance(one, type) else one for one in listed]
    words = _words(named if given is not None else None, "type")
    return tuple(word.removeprefix(OWN) for word in words)


def _pattern(scope: object) -> str:
    """Returns the name of a scope, or a pattern in which * matches any characters."""
    if isinstance(scope, str) and is_pattern(scope):
        return plain(scope) if "*" in scope else f"{check_level(scope)}/*"
    return plain(name_of(scope))


def _place(after: object) -> Place:
    parts = read_cursor("query", after)
    kinds = (int, str, int, str, str)
    if len(parts) != len(kinds) or not all(map(isinstance, parts, kinds)):
        raise UsageError(f"{show_value(after)} is not a cursor of query")
    return cast("Place", tuple(plain(one) if isinstance(one, str) else one for one in parts))
