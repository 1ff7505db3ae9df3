"""Values of runs: inputs and results into stored bytes and back, their digests, their types."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import codec
from holdfast.errors import StepError, UsageError, ValueDomainError, show_value
from holdfast.names import NAME_BYTES_MAX
from holdfast.runs.events import ABSENT, Fault

KEPT_TYPES = (bytes, bytearray, datetime)
TEXT_MAX = 2000
_logger = logging.getLogger("holdfast.runs")
BlobReader = Callable[[str, int], bytes]


def encode(value: Any) -> bytes:
    """Returns the stored bytes of a value of the domain, or of Structs and dataclasses of such."""
    try:
        return codec.encode(value)
    except ValueDomainError:
        try:
            plain = msgspec.to_builtins(value, builtin_types=KEPT_TYPES)
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


def text_of(value: object) -> str:
    """Returns text that can be stored: surrogates escaped, not too long."""
    try:
        text = str(value)
    except Exception as error:
        text = f"a {type(value).__name__} that cannot be shown"
        _logger.debug("%s: its text raised %s", text, type(error).__name__)
    return text.encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]


def fault_of(error: BaseException, outcome: str = "unknown") -> Fault:
    """Returns what is stored of an exception."""
    data = ABSENT
    if (found := getattr(error, "data", None)) is not None:
        try:
            data = Raw(encode(found))
        except ValueDomainError as lost:
            _logger.debug("the data of a %s is not stored: %s", type(error).__name__, lost)
            data = ABSENT  # what it carried is lost, and not its text
    kind, text = type(error).__name__, text_of(error)
    if isinstance(error, StepError):
        kind, text, outcome = text_of(error.kind), text_of(error.text), error.outcome
    return Fault(kind, text, data, outcome)  # type: ignore[arg-type]


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
