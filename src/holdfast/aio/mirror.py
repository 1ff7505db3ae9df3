"""Makes methods for asyncio from the synchronous ones, so that the two cannot drift apart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from holdfast.aio.loop import Loop

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
F = TypeVar("F", bound=Callable[..., Any])
T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from types import CoroutineType
    from typing import TypeAlias

    Awaited: TypeAlias = Callable[Concatenate[Any, P], CoroutineType[Any, Any, T]]


class Mirror(Generic[T_co]):
    """An object of an async store: it wraps the synchronous one for use in an event loop."""

    def __init__(self, loop: Loop, sync: T_co) -> None:
        self._loop = loop
        self.sync = sync

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"


class _Mirrors(Protocol):
    """Makes a method of a mirror; `give` converts what the synchronous method returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], T], /) -> Awaited[P, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], T], give: Callable[[Loop, T], U], /
    ) -> Awaited[P, U]: ...


def _made(hop: attrgetter[Any], function: Any, give: Any = None) -> Any:
    """Returns a method that calls the synchronous one of `self.sync` in a thread.

    It has the same name, parameters and documentation. An argument that is a mirror is replaced by
    the object that it wraps.
    """
    name = function.__name__

    @wraps(function)
    async def call(self: Mirror[Any], /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.sync, name)
        given = {key: plain(value) for key, value in kwargs.items()}
        found = await hop(self._loop)(method, *map(plain, args), **given)
        return found if give is None else give(self._loop, found)

    return call


def plain(value: Any) -> Any:
    """Returns the synchronous object of a mirror, and any other argument unchanged."""
    return cast("Mirror[Any]", value).sync if isinstance(value, Mirror) else value


mirror: _Mirrors = partial(_made, attrgetter("hop_shielded"))
"""Makes a method whose caller waits until the outcome is known, even if it is cancelled."""

mirror_read: _Mirrors = partial(_made, attrgetter("hop"))
"""Makes a method that only reads, so that a cancelled caller need not wait for it."""


def mirror_steps(
    function: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Makes an async iterator of a synchronous one, with one call in a thread for many items."""

    @wraps(function)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._loop.steps(lambda: function(self.sync, *args, **kwargs))

    return call


def shown_as(function: Callable[..., Any]) -> Callable[[F], F]:
    """Gives a method the parameters and documentation of the synchronous one, at run time only."""
    return cast("Any", wraps(function))


def like(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[..., Any]], Awaited[P, T]]:
    """Gives a method the parameters and documentation of the synchronous one, and its types."""

    def named(method: Callable[..., Any]) -> Awaited[P, T]:
        return cast("Any", wraps(function)(method))

    return named
