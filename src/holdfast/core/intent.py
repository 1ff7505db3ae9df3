"""Intents: an act is written down before it is done, so that after a crash somebody can ask.

Decisions and the steps of runs share this module. What is stored of an intent is its key and the
names of functions, never code: a verifier and an act are found by name among those that this
process has registered (guarantee 10). A verifier looks at the outside world and answers whether the
act was done. Whatever else it does (raises, is not registered, answers something else) means
`Unknown`: only a clear `NotDone` may ever lead to doing the act again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, overload

from msgspec import Struct

from holdfast.errors import ExistsError, NotFoundError, UsageError, show_error, show_value
from holdfast.names import check_name


class Done(Struct, frozen=True):
    """The act was done; `output` is what it gave."""

    output: Any = None


class NotDone(Struct, frozen=True):
    """The act was not done, and will not be done late either: it may be done again."""


class Unknown(Struct, frozen=True):
    """Nobody can say: a person, or the caller, must look."""

    reason: str = ""


Verdict = Done | NotDone | Unknown


class BegunAct(Protocol):
    """What a verifier or an act is called with: a decision, or a step that was begun."""

    @property
    def key(self) -> str:
        """The stable idempotency key that the act was done with, if it was."""
        ...


Verifier = Callable[[Any], object]
"""Answers `Done`, `NotDone` or `Unknown` of an act; of a fact `Holds`, `Contradicted`, a bool."""
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
            # All of a module have one name: the next would take the place of this one.
            raise UsageError(f"a {self._kind} without a name of its own needs name=")
        name = check_name(name or name_of(function), f"{self._kind} name")
        known = self._functions.get(name)
        # A module that is loaded again defines the same function once more: the new one counts.
        if known is not None and name_of(known) != name_of(function):
            raise ExistsError(f'{self._kind} "{name}" is registered already, as {name_of(known)}')
        self._functions[name] = function
        return name

    def name(self, function: object) -> str:
        """Returns the name of a registered function, given itself or its name."""
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
        """Returns the function of that name, None if this process has none."""
        return self._functions.get(name)


verifiers = Registry("verifier")
acts = Registry("act")


def name_of(function: object) -> str:
    """Returns `module:function`; for a program's main file, the file's stem stands for it."""
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
    """Registers a function that says whether an act was done: `Done`, `NotDone` or `Unknown`."""
    return _register(verifiers, function, name)


@overload
def act(function: Act, /) -> Act: ...
@overload
def act(*, name: str) -> Callable[[Act], Act]: ...
def act(function: Act | None = None, /, *, name: str | None = None) -> Any:
    """Registers a function that does an act again, after a verifier said that it was not done."""
    return _register(acts, function, name)


def _register(registry: Registry, function: Any, name: str | None) -> Any:
    def add(function: Any) -> Any:
        registry.add(function, name)
        return function

    return add if function is None else add(function)


def judge(name: str | None, intended: BegunAct) -> Verdict:
    """Asks the verifier of that name; never raises: what it cannot answer is `Unknown`."""
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
    text: str = ""  # the output, or why it is not known


class Recovery(Struct, frozen=True):
    """The report of `recover`: every act whose worker is dead, in the order they were found."""

    acts: Sequence[Recovered] = ()

    @property
    def open(self) -> list[Recovered]:
        """Returns what is left to a person."""
        return [found for found in self.acts if found.did == "left open"]


def verdict_name(verdict: Verdict) -> Literal["done", "not done", "unknown"]:
    """Returns the word that a report has for a verdict."""
    if isinstance(verdict, Done):
        return "done"
    return "not done" if isinstance(verdict, NotDone) else "unknown"
