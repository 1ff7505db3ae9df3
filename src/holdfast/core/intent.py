"""Intents: an act is recorded before it is done, so that after a crash its outcome can be verified.

Decisions and the steps of runs share this module. An intent is stored as a key and the names of
functions, never as code: a verifier or an act is looked up by name among those that this process
has registered (guarantee 10). A verifier looks at the outside world and answers whether the act was
done. If it raises, is not registered or answers anything else, that means `Unknown`: only a clear
`NotDone` may ever lead to doing the act again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, overload

from msgspec import Struct

from holdfast.errors import ExistsError, NotFoundError, UsageError, show_error, show_value
from holdfast.names import check_name


class Done(Struct, frozen=True):
    """The act was done; `output` is its result."""

    output: Any = None


class NotDone(Struct, frozen=True):
    """The act was not done, and will not be done late either: it may be done again."""


class Unknown(Struct, frozen=True):
    """It is not known whether the act was done: a person, or the caller, must look."""

    reason: str = ""


Verdict = Done | NotDone | Unknown


class BegunAct(Protocol):
    """The argument of a verifier or an act: a decision, or a step that was begun."""

    @property
    def key(self) -> str:
        """The idempotency key of the act; each attempt uses the same one."""
        ...


Verifier = Callable[[Any], object]
"""Returns `Done`, `NotDone` or `Unknown` for an act; for a fact `Holds`, `Contradicted`, a bool."""
Act = Callable[[Any], Any]


class Registry:
    """Functions by name. One name is one function for as long as the process lives."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._functions: dict[str, Callable[[Any], Any]] = {}

    def add(self, function: object, name: str | None = None) -> str:
        """Registers a function, by default as `module:function`; returns its name."""
        if not callable(function):
            raise UsageError(f"a {self._kind} is a function, found {show_value(function)}")
        if name is None and "<lambda>" in name_of(function):
            # All lambdas of a module have the same name, so another one would replace this one.
            raise UsageError(f"a {self._kind} without a name of its own needs name=")
        name = check_name(name or name_of(function), f"{self._kind} name")
        known = self._functions.get(name)
        # A module that is reloaded defines the same function again: then the new one counts.
        if known is not None and name_of(known) != name_of(function):
            raise ExistsError(f'{self._kind} "{name}" is registered already, as {name_of(known)}')
        self._functions[name] = function
        return name

    def name(self, function: object) -> str:
        """Returns the name of a registered function, given the function or its name."""
        if isinstance(function, str):
            name = function
        else:
            names = [name for name, known in self._functions.items() if known is function]
            name = names[0] if names else ""
        if name not in self._functions:
            raise NotFoundError(
                f"no {self._kind} {show_value(function)} is registered in this process",
                hint=f"put @holdfast.{self._kind} above the function, and import its module",
            )
        return name

    def find(self, name: str) -> Callable[[Any], Any] | None:
        """Returns the function of that name; None if this process has none."""
        return self._functions.get(name)


verifiers = Registry("verifier")
acts = Registry("act")


def name_of(function: object) -> str:
    """Returns `module:function`; for the main file of a program, `module` is the file's stem."""
    module = getattr(function, "__module__", None) or "?"
    if module == "__main__":
        code = getattr(function, "__code__", None)
        path = code.co_filename if code is not None else "__main__"
        module = path.rsplit("/", 1)[-1].removesuffix(".py")
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


@overload
def verifier(function: Verifier, /) -> Verifier: ...
@overload
def verifier(*, name: str) -> Callable[[Verifier], Verifier]: ...
def verifier(function: Verifier | None = None, /, *, name: str | None = None) -> Any:
    """Registers a function that returns whether an act was done: `Done`, `NotDone`, `Unknown`."""
    return _register(verifiers, function, name)


@overload
def act(function: Act, /) -> Act: ...
@overload
def act(*, name: str) -> Callable[[Act], Act]: ...
def act(function: Act | None = None, /, *, name: str | None = None) -> Any:
    """Registers a function that repeats an act, after a verifier returned `NotDone`."""
    return _register(acts, function, name)


def _register(registry: Registry, function: Any, name: str | None) -> Any:
    def add(function: Any) -> Any:
        registry.add(function, name)
        return function

    return add if function is None else add(function)


def judge(name: str | None, intended: BegunAct) -> Verdict:
    """Calls the verifier of that name. If it cannot answer, or raises, returns `Unknown`."""
    if name is None:
        return Unknown("it has no verifier")
    function = verifiers.find(name)
    if function is None:
        return Unknown(f'verifier "{name}" is not registered in this process')
    try:
        verdict = function(intended)
    except Exception as exc:
        return Unknown(f'verifier "{name}" raised {show_error(exc)[:200]}')
    if not isinstance(verdict, Verdict):
        return Unknown(
            f'verifier "{name}" answered {show_value(verdict)}, not Done, NotDone or Unknown'
        )
    return verdict


class Recovered(Struct, frozen=True):
    """What `recover` found of one act, and what it did about it."""

    kind: Literal["decision", "step"]
    id: str  # a decision's id; a step's path
    owner: str  # the stream it was found in: "conversation/c1", "run/r1"
    verdict: Literal["done", "not done", "unknown"]
    did: Literal["closed", "done again", "left open"]
    text: str = ""  # the output, or why the outcome is not known


class Recovery(Struct, frozen=True):
    """The report of `recover`: every act whose worker is dead, in the order they were found."""

    acts: Sequence[Recovered] = ()

    @property
    def open(self) -> list[Recovered]:
        """The acts that were left open, for a person to look at."""
        return [found for found in self.acts if found.did == "left open"]


def verdict_name(verdict: Verdict) -> Literal["done", "not done", "unknown"]:
    """Returns the word for a verdict in a report."""
    if isinstance(verdict, Done):
        return "done"
    return "not done" if isinstance(verdict, NotDone) else "unknown"
