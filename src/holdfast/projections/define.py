"""Declares projections: handlers of events by type, and the state that they start from.

    @holdfast.projection(init=dict, version=1)
    class Tickets:
        def ticket_opened(self, tickets, event):
            tickets[event.data.id] = {"title": event.data.title, "status": "open"}

        def ticket_closed(self, tickets, event):
            tickets[event.data.id]["status"] = "closed"

A handler is a pure function of the state and an event. It changes the state in place or returns a
new one. A function of two parameters is one handler for all types, or for those in `types`. A
function of one parameter gets all events at once, oldest first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from types import FunctionType
from typing import Any, cast

from holdfast.core import codec, tree
from holdfast.core.arguments import check_call, check_whole
from holdfast.core.own_event import (
    OWN,
    OwnEvent,
    check_type_name,
    declared,
    find_type,
    stored_type,
)
from holdfast.core.schema import Schema
from holdfast.core.tree import EMPTY, Map
from holdfast.errors import ExistsError, UsageError, show_error, show_value
from holdfast.names import check_name
from holdfast.thumbprint import Code, code_of, thumb

Handler = Callable[[Any, OwnEvent], Any]

VALUE = "value"
"""The key under which a state is kept if it is not a mapping."""

_known: dict[str, Projection] = {}


class Projection:
    """A declared projection: its handlers by type of event, and the state to start from."""

    counts_by_name = True

    def __init__(
        self,
        target: Any,
        *,
        name: str,
        init: Callable[[], Any],
        version: int,
        types: Iterable[object] | None,
    ) -> None:
        self.name = name
        self.version = version
        self.target = target
        self.__doc__ = target.__doc__
        self.view: Callable[[list[Any]], Any] | None = None
        """The function that gets all events at once; None for a projection with handlers."""
        self._handler: Handler | None = None
        self._handlers: dict[str, Handler] = {}
        if inspect.isclass(target):
            if types is not None:
                raise UsageError(f'projection "{name}" has a handler for each type: types says it')
            self._handlers = _handlers_of(cast("type[Any]", target), name)
        elif _parameters(target, name) == 1:
            self.view, self._handler, init = target, _collect, list
        else:
            self._handler = target
        self.types = self._checked_types(types)
        self.start, self.is_mapping = _started(init, name)
        self._codes: tuple[tuple[Any, ...], list[Code], str | None] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the decorated function or class itself."""
        return self.target(*args, **options)

    def __repr__(self) -> str:
        return f"<Projection {self.name}, version {self.version}>"

    def _checked_types(self, types: Iterable[object] | None) -> frozenset[str] | None:
        """Returns the stored types of the events that it handles; None for all own events."""
        if self._handlers:
            return frozenset(OWN + name for name in self._handlers)
        if types is None:
            return None
        if isinstance(types, str) or not isinstance(types, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"types are a list of event types, found {show_value(types)}")
        found = frozenset(map(stored_type, types))
        if wrong := sorted(type for type in found if not type.startswith(OWN)):
            raise UsageError(
                f'projection "{self.name}" handles events of your own, found "{wrong[0]}"'
            )
        if not found:
            raise UsageError(f'projection "{self.name}" has no handler: types is empty')
        return found

    def handles(self, type: str) -> bool:
        """Returns whether it handles events of a stored type."""
        return type.startswith(OWN) if self.types is None else type in self.types

    def handler(self, type: str) -> Handler:
        """Returns the handler for a type of own events."""
        return self._handler or self._handlers[type]

    # --- whether it is still the same ------------------------------------------------------------

    def thumb(self) -> str | None:
        """Returns the digest of everything but the events that the state depends on.

        That is the version, the initial state, the code of the handlers, and what reading an event
        needs: its class, its version and its upgrades. Returns None if some of that code has no
        source. Then a change of it could not be noticed, so the fold is never saved.
        """
        schemas = self._schemas()
        seen = tuple((schema, len(schema.upgrades)) for schema in schemas)
        known = self._codes
        if known is not None and known[0] == seen and all(code.holds() for code in known[1]):
            return known[2]
        codes: list[Code] = []
        digest: str | None = None
        try:
            parts: list[Any] = [1, self.version, thumb(self.start)]
            if self.view is None:
                codes.append(code_of(self.target))
                parts.append(codes[-1].thumb)
            for schema in schemas:
                found = [code_of(one) for one in (schema.type, *schema.upgrade_functions)]
                codes += found
                thumbs = [code.thumb for code in found]
                parts.append([schema.name, schema.version, sorted(schema.aliases.items()), thumbs])
            digest = sha256(codec.encode_plain(parts)).hexdigest()
        except UsageError:
            codes = []
        self._codes = (seen, codes, digest)
        return digest

    def _schemas(self) -> list[Schema[Any]]:
        if self.types is None:
            return declared()
        found = [find_type(type.removeprefix(OWN)) for type in sorted(self.types)]
        return [schema for schema in found if schema is not None]


def projection(
    *,
    init: Callable[[], Any] = dict,
    version: int = 1,
    name: str | None = None,
    types: Iterable[object] | None = None,
) -> Callable[[Any], Projection]:
    """Returns the decorator that makes a class of handlers, or a function, a projection.

    Each method of the class handles the events of the type that it is named after. `init` returns
    the initial state, plain data that can be stored. All events are folded again when the code
    changes; raise `version` after a change that the code does not show. `name` is by default the
    name of the class or function.
    """
    check_whole(version, "version", least=1)
    check_call(init, "init")

    def declare(target: Any) -> Projection:
        check_call(target, "a projection")
        own = name if name is not None else getattr(target, "__name__", None)
        found = Projection(
            target,
            name=check_name(own, "the name of a projection"),
            init=init,
            version=version,
            types=types,
        )
        known = _known.get(found.name)
        # A module that is reloaded declares the same projection again: the new one counts.
        if known is not None and _place(known.target) != _place(target):
            raise ExistsError(
                f'projection "{found.name}" is declared already, by {_place(known.target)}',
                hint="give one of them another name: name=…",
            )
        _known[found.name] = found
        return found

    return declare


def _place(target: Any) -> str:
    return f"{target.__module__}.{target.__qualname__}"


def _handlers_of(kind: type[Any], name: str) -> dict[str, Handler]:
    """Returns the handlers of a class by the type of event that each is named after."""
    found: dict[str, Handler] = {}
    instance: Any = None
    for word in dict.fromkeys(word for base in kind.__mro__[:-1] for word in vars(base)):
        member = inspect.getattr_static(kind, word)
        if word.startswith("_") or not isinstance(member, FunctionType | staticmethod):
            continue
        function: Any = getattr(kind, word)
        if isinstance(member, FunctionType) and _count(function) == 3:
            instance = kind() if instance is None else instance
            function = getattr(instance, word)
        if _count(function) != 2:
            raise _no_handler(function)
        found[check_type_name(word)] = function
    if not found:
        raise UsageError(
            f'projection "{name}" has no handler',
            hint="give the class a method for each type of event, named like it",
        )
    return found


def _parameters(function: Any, name: str) -> int:
    """Returns how many parameters a function takes, one or two, or raises UsageError."""
    try:
        count = _count(function)
    except (TypeError, ValueError) as error:
        raise UsageError(f'projection "{name}" has no handler: {show_error(error)}') from error
    if count not in (1, 2):
        raise _no_handler(function)
    return count


def _count(function: Any) -> int:
    """Counts the required arguments of a function; 0 if one of them is keyword-only."""
    needed = [one for one in inspect.signature(function).parameters.values() if _is_needed(one)]
    return 0 if any(one.kind is one.KEYWORD_ONLY for one in needed) else len(needed)


def _is_needed(one: inspect.Parameter) -> bool:
    return one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)


def _no_handler(function: Any) -> UsageError:
    return UsageError(
        "a handler takes the state and an event, found "
        f"{getattr(function, '__qualname__', show_value(function))}{inspect.signature(function)}"
    )


def _collect(events: Any, event: OwnEvent) -> None:
    """Collects the events for a projection that gets all of them at once."""
    events.append(dict(event))


def _started(init: Callable[[], Any], name: str) -> tuple[Map, bool]:
    """Returns the initial state, and whether it is a mapping itself."""
    try:
        value = init()
        is_mapping = isinstance(value, Mapping)
        op = tree.set_op((), value if is_mapping else {VALUE: value})
        return tree.apply(EMPTY, (op,), revision=None), is_mapping
    except Exception as error:
        raise UsageError(
            f'projection "{name}" has nothing to begin with: {show_error(error)}',
            hint="init is a function that returns plain data, such as dict or list",
        ) from error
