"""Functions that become runs and steps: the two decorators, and where they are found by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeGuard, TypeVar, cast, overload

from msgspec import Struct

from holdfast.core.arguments import check_duration, check_whole
from holdfast.core.intent import name_of, verifiers
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.names import check_name
from holdfast.runs.events import EFFECTS, Effect
from holdfast.runs.values import Signature, check_name_text

R = TypeVar("R")

ACTING = frozenset(("effect", "txn"))
"""The classes that are refused outside a run: without its journal nothing remembers them."""

CURRENT: ContextVar[Any] = ContextVar("holdfast_run", default=None)
"""The context of the block that is running here; None outside a run, and inside a step."""


class Retry(Struct, frozen=True):
    """How often a step is tried, and how long it waits: `wait_s`, then `factor` times it, …"""

    attempts: int = 3
    wait_s: float = 1.0
    factor: float = 2.0
    wait_max_s: float = 300.0
    on: tuple[type[Exception], ...] = (Exception,)

    def pause_us(self, attempt: int) -> int:
        """Returns how long to wait after that attempt failed."""
        longest = max(self.wait_max_s, self.wait_s)
        return round(min(self.wait_s * self.factor ** (attempt - 1), longest) * 1e6)


ONCE = Retry(attempts=1)


class Step(Generic[R]):
    """A function that runs journal. Called inside a run's body it is a step of that run.

    Its parameters are not typed here: a `ctx` that the function takes is not given by the caller.
    """

    def __init__(
        self,
        function: Callable[..., R],
        *,
        effect: Effect,
        name: str,
        verify: str | None,
        retry: Retry,
        not_done: tuple[type[Exception], ...],
        ignore: tuple[str, ...],
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.effect: Effect = effect
        self.name = name
        self.verify = verify
        self.retry = retry
        self.not_done = not_done
        self.signature = Signature(function, ignore)
        self.is_async = inspect.iscoroutinefunction(function)
        self.drop: Callable[[], None] | None = None  # ends a call that is on its way

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        context = CURRENT.get()
        if context is not None:
            return context.call_plainly(self, args, kwargs)
        if self.effect in ACTING:
            raise UsageError(
                f'step "{self.name}" has the class {self.effect} and was called outside a run, '
                "where nothing would remember that it was done",
                hint=f"call it from a run's body, or as {self.name}.outside(…) if that is meant",
            )
        return self.outside(*args, **kwargs)

    def outside(self, *args: Any, **kwargs: Any) -> R:
        """Calls the function as it is: nothing is journalled, whatever its class."""
        if self.signature.first == "ctx":
            return self.function(Outside(), *args, **kwargs)
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name}: {self.effect}>"


class Outside(Struct, frozen=True):
    """The context of a step that is called outside a run: no run, no key, one attempt."""

    run: str | None = None
    path: str | None = None
    key: str | None = None
    attempt: int = 1
    cancelled: bool = False


class RunFunction(Generic[R]):
    """A function whose executions are durable. Called inside a run it is a block of that run."""

    def __init__(self, function: Callable[..., R], name: str) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.signature = Signature(function)
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        context = CURRENT.get()
        if context is None:
            raise UsageError(
                f'run "{self.name}" was called like a function outside a run',
                hint="start it with store.start(…)",
            )
        return context.call_plainly(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<RunFunction {self.name}>"


def is_step(value: object) -> TypeGuard[Step[Any]]:
    """Says whether something is a step."""
    return isinstance(value, Step)


def is_run(value: object) -> TypeGuard[RunFunction[Any]]:
    """Says whether something is a run's function."""
    return isinstance(value, RunFunction)


_runs: dict[str, RunFunction[Any]] = {}


@overload
def run(function: Callable[..., R], /) -> RunFunction[R]: ...
@overload
def run(*, name: str | None = None) -> Callable[[Callable[..., R]], RunFunction[R]]: ...
def run(function: Any = None, /, *, name: str | None = None) -> Any:
    """Makes a function, `def` or `async def`, a run, known as `module:function` or by `name`."""

    def define(function: Any) -> Any:
        if not inspect.isroutine(function):
            raise UsageError(f"a run is a function, found {show_value(function)}")
        known_as = check_name(name_of(function) if name is None else name, "run name")
        defined = RunFunction(function, known_as)
        _runs[known_as] = defined
        return defined

    return define if function is None else define(function)


def find_run(name: str) -> RunFunction[Any]:
    """Returns the run of that name, or raises NotFoundError: stored names never import anything."""
    found = _runs.get(name)
    if found is None:
        raise NotFoundError(
            f'this process has no run "{name}"', hint="import the module that defines it"
        )
    return found


def has_run(name: str) -> bool:
    """Says whether this process has the code of a run."""
    return name in _runs


def step(
    function: Any = None,
    /,
    *,
    effect: Effect | None = None,
    verify: Any = None,
    retry: Retry | int | None = None,
    not_done: tuple[type[Exception], ...] | type[Exception] = (),
    name: str | None = None,
    ignore: tuple[str, ...] = (),
) -> Callable[[Callable[..., R]], Step[R]]:
    """Makes a function a step of the given class; there is no default.

    `pure` and `read` may run again; `idempotent` may run again with the same key; `effect` is never
    repeated unless `verify` says that it was not done; `txn` commits with its own record.
    `not_done` names the exceptions that prove that nothing was done; `ignore` the parameters that
    are no inputs, such as a client.
    """
    if function is not None or effect not in EFFECTS:
        raise UsageError(
            f"a step says what may happen to it after a crash: effect is one of "
            f"{', '.join(EFFECTS)}, found {show_value(effect)}",
            hint='write @holdfast.step(effect="pure") for one that touches nothing outside',
        )
    if verify is not None and effect != "effect":
        raise UsageError(f"verify belongs to the class effect, found {effect}")
    exceptions = _exceptions(not_done, "not_done")
    policy = _retry(retry)
    verifier = None if verify is None else verifiers.name(verify)

    def define(function: Callable[..., R]) -> Step[R]:
        if not callable(function):
            raise UsageError(f"a step is a function, found {show_value(function)}")
        known_as = getattr(function, "__name__", "") if name is None else name
        return Step(
            function,
            effect=effect,
            name=check_name_text(known_as, "a step's name"),
            verify=verifier,
            retry=policy,
            not_done=exceptions,
            ignore=ignore,
        )

    return define


def _retry(retry: object) -> Retry:
    if retry is None:
        return ONCE
    if isinstance(retry, int):
        return Retry(attempts=check_whole(retry, "retry", least=1))
    if not isinstance(retry, Retry):
        raise UsageError(f"retry is a Retry or a number of attempts, found {show_value(retry)}")
    check_whole(retry.attempts, "attempts", least=1)
    if retry.wait_s:
        check_duration(retry.wait_s, "wait_s")
    _exceptions(retry.on, "on")
    return retry


def _exceptions(found: object, what: str) -> tuple[type[Exception], ...]:
    classes = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (found,))
    for one in classes:
        if not inspect.isclass(one) or not issubclass(cast("type[Any]", one), Exception):
            raise UsageError(f"{what} holds classes of exceptions, found {show_value(one)}")
    return classes
