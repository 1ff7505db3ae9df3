"""The decorators that make functions runs and steps, and the table of runs by name."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import logging
import typing
from collections.abc import Callable
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeGuard,
    TypeVar,
    cast,
    overload,
)

import msgspec
from msgspec import Struct

from holdfast.core import codec
from holdfast.core.arguments import check_duration, check_whole
from holdfast.core.intent import name_of, verifiers
from holdfast.errors import NotFoundError, UsageError, ValueDomainError, show_value
from holdfast.names import check_name
from holdfast.runs.events import EFFECTS, Effect
from holdfast.runs.values import KEPT_TYPES, check_name_text, encode
from holdfast.thumbprint import definition_thumb

if TYPE_CHECKING:
    from holdfast.joint_commit import JointCommit
    from holdfast.runs.steps import StepContext

_REBUILT_TYPES = (Struct, enum.Enum, set, frozenset, tuple)


class Signature:
    """The parameters and annotations of a function, inspected once."""

    def __init__(self, function: Callable[..., Any], ignore: tuple[str, ...] = ()) -> None:
        self._function = function
        self._rebuilt: dict[str, Any] | None = None  # annotations that need values rebuilt
        self._signature: inspect.Signature | None = None
        try:
            self._signature = inspect.signature(function)
            parameters = list(self._signature.parameters.values())
        except (TypeError, ValueError):
            parameters = []
        self.first = parameters[0].name if parameters else ""
        if self.first in ("ctx", "tx"):
            parameters = parameters[1:]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.names = [p.name for p in parameters if p.kind in positional]
        self._nameless = [p.name for p in parameters if p.kind is positional[0]]
        self._ignore = frozenset(ignore)
        self._known = frozenset([p.name for p in parameters])
        unknown = self._ignore - self._known
        if unknown:
            raise UsageError(
                f"ignore names parameters of the function, found {', '.join(sorted(unknown))}"
            )

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises UsageError if the function cannot be called with these arguments."""
        if self._signature is None:
            return
        first = (None,) if self.first in ("ctx", "tx") else ()
        try:
            self._signature.bind(*first, *args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self._shown} cannot be called like this: {error}") from error

    def check_settings(self, call: str, args: tuple[Any, ...], **settings: Any) -> None:
        """Raises UsageError if a setting has the name of a parameter and may be meant for it.

        It cannot be meant for a parameter that was given by position.
        """
        for name, value in settings.items():
            if value is not None and name in self._known and name not in self.names[: len(args)]:
                raise UsageError(
                    f'"{name}" is a setting of {call} and a parameter of {self._shown}',
                    hint=f'give the parameter "{name}" by position, or another name',
                )

    @property
    def _shown(self) -> str:
        return getattr(self._function, "__qualname__", str(self._function))

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Returns the stored form of a call's arguments, by name, without ignored ones."""
        named: dict[str, Any] = {}
        for place, value in enumerate(args[: len(self.names)]):  # three times as fast as zip
            named[self.names[place]] = value
        if len(args) > len(self.names):
            named["*"] = list(args[len(self.names) :])
        named |= kwargs
        for name in self._ignore:
            named.pop(name, None)
        try:
            # Sorted, so that a(x=1, y=2) and a(y=2, x=1) are the same call.
            return codec.encode_sorted(named) if named else b"{}"
        except ValueDomainError:
            return codec.encode_sorted(codec.decode(encode(named)))

    def arguments(self, inputs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns stored inputs as arguments, converted to the annotated types."""
        rest = dict(inputs)
        extra = rest.pop("*", [])
        by_position = self.names if extra else [name for name in self._nameless if name in rest]
        args = [self.rebuild(name, rest.pop(name)) for name in by_position] + list(extra)
        return args, {name: self.rebuild(name, value) for name, value in rest.items()}

    def rebuild(self, name: str, value: Any) -> Any:
        """Converts a stored value to the annotated type of a parameter, or of "return"."""
        if self._rebuilt is None:
            self._rebuilt = self._read_annotations()
        if name not in self._rebuilt or value is None:
            # None stands for an act that a dry fork left out or a person settled without a value.
            return value
        try:
            return msgspec.convert(value, self._rebuilt[name], builtin_types=KEPT_TYPES)
        except msgspec.ValidationError as error:
            raise UsageError(
                f'"{name}" of {self._shown} does not fit its annotation: {error}'
            ) from error

    def _read_annotations(self) -> dict[str, Any]:
        """Returns the annotations, by parameter, that plain values must be converted for."""
        try:
            hints = typing.get_type_hints(self._function)
        except Exception as error:  # names that exist for type checkers only
            _logger.debug("%s: its values are not rebuilt as annotated: %s", self._shown, error)
            return {}
        return {name: hint for name, hint in hints.items() if is_rebuilt(hint)}


def is_rebuilt(hint: Any) -> bool:
    """Returns whether a type, or a part of it, is one that plain values must be converted to."""
    if isinstance(hint, type) and not typing.get_args(hint):
        kind = cast("type[Any]", hint)
        return issubclass(kind, _REBUILT_TYPES) or dataclasses.is_dataclass(kind)
    origin = typing.get_origin(hint)
    if origin in (set, frozenset, tuple):
        return True
    return any(is_rebuilt(part) for part in typing.get_args(hint))


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_logger = logging.getLogger("holdfast.runs")

ACTING = frozenset(("effect", "txn"))
"""The classes that are refused outside a run, where no journal would record the act."""

CURRENT: ContextVar[Any] = ContextVar("holdfast_run", default=None)
"""The context of the block that this code runs in; None outside a run, and inside a step."""


class Retry(Struct, frozen=True):
    """How often a step is tried, and how long it waits: `wait_s`, then `factor` times that, …"""

    attempts: int = 3
    wait_s: float = 1.0
    factor: float = 2.0
    wait_max_s: float = 300.0
    on: tuple[type[Exception], ...] = (Exception,)

    def pause_us(self, attempt: int) -> int:
        """Returns how long to wait after the attempt with that number failed."""
        longest = max(self.wait_max_s, self.wait_s)
        return round(min(self.wait_s * self.factor ** (attempt - 1), longest) * 1e6)


ONCE = Retry(attempts=1)


class Step(Generic[P, R_co]):
    """A function whose calls a run records in its journal: the result of `@step`.

    Called in a run's body it is a step of that run. The caller does not give `ctx` or `tx`.
    """

    def __init__(
        self,
        function: Callable[..., R_co],
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
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.drop: Callable[[], None] | None = None  # ends a call that is under way

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        context = CURRENT.get()
        if context is not None:
            return context._call_step(self, args, kwargs)
        if self.effect in ACTING:
            raise UsageError(
                f'step "{self.name}" has the class {self.effect} and was called outside a run, '
                "where nothing would remember that it was done",
                hint=f"call it from a run's body, or as {self.name}.outside(…) if that is meant",
            )
        return self.outside(*args, **kwargs)

    def outside(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the plain function; nothing is journalled, whatever its class."""
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


class RunFunction(Generic[P, R_co]):
    """A function whose executions are durable: the result of `@run`.

    Called in a run's body it is a block of that run. The caller does not give `ctx`.
    """

    def __init__(self, function: Callable[..., R_co], name: str) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.signature = Signature(function)
        self.is_async = inspect.iscoroutinefunction(function)

    @functools.cached_property
    def code(self) -> str | None:
        """The thumbprint of the function's definition; None if its source is not known."""
        function = inspect.unwrap(self.function)
        return definition_thumb(function) if inspect.isfunction(function) else None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        context = CURRENT.get()
        if context is None:
            raise UsageError(
                f'run "{self.name}" was called like a function outside a run',
                hint="start it with store.runs.start(…)",
            )
        return context._enter_run(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<RunFunction {self.name}>"


def is_step(value: object) -> TypeGuard[Step[..., Any]]:
    """Returns whether a value is a step."""
    return isinstance(value, Step)


def is_run(value: object) -> TypeGuard[RunFunction[..., Any]]:
    """Returns whether a value is a run's function."""
    return isinstance(value, RunFunction)


_runs: dict[str, RunFunction[..., Any]] = {}


# The functions that the decorators accept, for type checkers. The first parameter is matched by its
# name, as it is in a call: a function without `ctx` takes all of its arguments from the caller.


class TakesRunContext(Protocol[P, R_co]):
    """A function whose first parameter is the `ctx` of a run."""

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class TakesStepContext(Protocol[P, R_co]):
    """A function whose first parameter is the `ctx` of a step."""

    def __call__(self, ctx: StepContext, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class TakesTransaction(Protocol[P, R_co]):
    """A function whose first parameter is the `tx` of a step of the class txn."""

    def __call__(self, tx: JointCommit, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class RunDecorator(Protocol):
    """What `run(name=…)` returns."""

    @overload
    def __call__(self, function: TakesRunContext[P, R], /) -> RunFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> RunFunction[P, R]: ...
    def __call__(self, function: Any, /) -> Any: ...


class StepDecorator(Protocol):
    """What `step(effect=…)` returns."""

    @overload
    def __call__(self, function: TakesStepContext[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: TakesTransaction[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Any, /) -> Any: ...


@overload
def run(function: TakesRunContext[P, R], /) -> RunFunction[P, R]: ...
@overload
def run(function: Callable[P, R], /) -> RunFunction[P, R]: ...
@overload
def run(*, name: str | None = None) -> RunDecorator: ...
def run(function: Any = None, /, *, name: str | None = None) -> Any:
    """Makes a function, `def` or `async def`, a run; its name is `name` or `module:function`."""

    def define(function: Any) -> Any:
        if not inspect.isroutine(function):
            raise UsageError(f"a run is a function, found {show_value(function)}")
        known_as = check_name(name_of(function) if name is None else name, "run name")
        defined = RunFunction(function, known_as)
        _runs[known_as] = defined
        return defined

    return define if function is None else define(function)


def find_run(name: str) -> RunFunction[..., Any]:
    """Returns the run of that name, or raises NotFoundError; it never imports by stored names."""
    found = _runs.get(name)
    if found is None:
        raise NotFoundError(
            f'this process has no run "{name}"', hint="import the module that defines it"
        )
    return found


def has_run(name: str) -> bool:
    """Returns whether this process has the code of a run."""
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
) -> StepDecorator:
    """Makes a function a step of an effect class, which says what may happen after a crash.

    There is no default class. `pure` and `read` may run again. `idempotent` may run again with the
    same key. `effect` is never repeated unless `verify` says that it was not done. `txn` commits
    its writes together with the record that it was done.

    `not_done` has the exceptions that prove that nothing was done. `ignore` names parameters that
    are not inputs, such as a client.
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
    policy = check_retry(retry)
    verifier = None if verify is None else verifiers.name(verify)

    def define(function: Any) -> Any:
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


def check_retry(retry: object) -> Retry:
    """Returns the retry policy that `retry` means, or raises UsageError."""
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
