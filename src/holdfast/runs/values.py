"""Values of runs: inputs and results into stored bytes and back, their digests, their types."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable
from datetime import datetime
from hashlib import blake2b, sha256
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from holdfast.core import codec
from holdfast.errors import StepError, UsageError, ValueDomainError, show_value
from holdfast.names import NAME_BYTES_MAX
from holdfast.runs.events import ABSENT, Fault

_REBUILT = (Struct, enum.Enum, set, frozenset, tuple)
_KEPT = (bytes, bytearray, datetime)
TEXT_MAX = 2000
BlobReader = Callable[[str, int], bytes]


def encode(value: Any) -> bytes:
    """Returns the stored bytes of a value of the domain, or of Structs and dataclasses of such."""
    try:
        return codec.encode(value)
    except ValueDomainError:
        try:
            plain = msgspec.to_builtins(value, builtin_types=_KEPT)
        except (TypeError, ValueError, RecursionError):
            plain = None
        if plain is None:
            raise
        return codec.encode(plain)


def decode(raw: Raw | bytes, blobs: BlobReader) -> Any:
    """Returns the value of stored bytes, blobs loaded."""
    if not raw:
        return None
    data = bytes(raw)
    reference = codec.parse_blob_ref(data)
    return codec.decode(blobs(*reference) if reference is not None else data)


def digest(encoded: bytes) -> str:
    """Returns what two equal inputs have in common."""
    return blake2b(encoded, digest_size=16).hexdigest()


class Signature:
    """What a function takes and returns, looked at once."""

    def __init__(self, function: Callable[..., Any], ignore: tuple[str, ...] = ()) -> None:
        self._function = function
        self._hints: dict[str, Any] | None = None
        self._rebuilt: dict[str, bool] = {}
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
        """Raises UsageError if a setting of a call may be meant for a parameter of that name.

        It is not when the parameter was given by position.
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
        """Returns the stored form of a call's arguments, by name, those ignored left out."""
        named: dict[str, Any] = {}
        for place, value in enumerate(args[: len(self.names)]):  # a third of what zip costs
            named[self.names[place]] = value
        if len(args) > len(self.names):
            named["*"] = list(args[len(self.names) :])
        named |= kwargs
        for name in self._ignore:
            named.pop(name, None)
        try:
            # Sorted, so that a(x=1, y=2) and a(y=2, x=1) are one and the same call.
            return codec.encode_sorted(named) if named else b"{}"
        except ValueDomainError:
            return codec.encode_sorted(codec.decode(encode(named)))

    def arguments(self, inputs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns stored inputs as arguments, rebuilt as the parameters are annotated."""
        rest = dict(inputs)
        extra = rest.pop("*", [])
        by_position = self.names if extra else [name for name in self._nameless if name in rest]
        args = [self.rebuild(name, rest.pop(name)) for name in by_position] + list(extra)
        return args, {name: self.rebuild(name, value) for name, value in rest.items()}

    def rebuild(self, name: str, value: Any) -> Any:
        """Returns a stored value as the annotation of that parameter, or "return", wants it."""
        hint = self._hint(name)
        if hint is None or value is None:
            return value  # None: an act that a dry fork left out, or that a person settled
        try:
            return msgspec.convert(value, hint, builtin_types=_KEPT)
        except msgspec.ValidationError as error:
            raise UsageError(
                f'"{name}" of {self._shown} does not fit its annotation: {error}'
            ) from error

    def _hint(self, name: str) -> Any:
        """Returns the annotation if values must be rebuilt for it, else None."""
        if self._hints is None:
            try:
                self._hints = typing.get_type_hints(self._function)
            except Exception:  # names that are only there for a type checker
                self._hints = {}
            self._rebuilt = {name: is_rebuilt(hint) for name, hint in self._hints.items()}
        return self._hints[name] if self._rebuilt.get(name) else None


def is_rebuilt(hint: Any) -> bool:
    """Says whether a type has parts that plain values must be turned into."""
    if isinstance(hint, type) and not typing.get_args(hint):
        kind = cast("type[Any]", hint)
        return issubclass(kind, _REBUILT) or dataclasses.is_dataclass(kind)
    origin = typing.get_origin(hint)
    if origin in (set, frozenset, tuple):
        return True
    return any(is_rebuilt(part) for part in typing.get_args(hint))


def text_of(value: object) -> str:
    """Returns text that can be stored: surrogates escaped, not too long."""
    try:
        text = str(value)
    except Exception:
        text = f"a {type(value).__name__} that cannot be shown"
    return text.encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]


def fault_of(error: BaseException, outcome: str = "unknown") -> Fault:
    """Returns what is stored of an exception."""
    data = ABSENT
    if (found := getattr(error, "data", None)) is not None:
        try:
            data = Raw(encode(found))
        except ValueDomainError:
            data = ABSENT  # what it carried is lost, and not what it said
    kind, said = type(error).__name__, text_of(error)
    if isinstance(error, StepError):
        kind, said, outcome = text_of(error.kind), text_of(error.text), error.outcome
    return Fault(kind, said, data, outcome)  # type: ignore[arg-type]


def error_of(fault: Fault, path: str) -> StepError:
    """Returns the error that a fault is raised as, the same live and replayed."""
    data = codec.decode(fault.data) if fault.data else None
    return StepError(fault.kind, fault.message, data, path=path, outcome=fault.outcome)


def check_name_text(value: object, what: str) -> str:
    """Returns a name of an operation, or raises UsageError."""
    if not isinstance(value, str) or not value or len(value) > 200:
        raise UsageError(f"{what} is text of 1 to 200 characters, found {show_value(value)}")
    return str.__str__(value)


def commit_key(key: str) -> str:
    """Returns a key that fits into a commit, whatever the path's length."""
    size = len(key.encode())
    return key if size <= NAME_BYTES_MAX else f"run-{sha256(key.encode()).hexdigest()}"
