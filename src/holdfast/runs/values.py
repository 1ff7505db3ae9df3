"""Values of runs: encodes and decodes inputs, results and errors."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from traceback import StackSummary, TracebackException
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core import codec
from holdfast.errors import (
    HoldfastError,
    StepError,
    UsageError,
    ValueDomainError,
    show_value,
)
from holdfast.names import NAME_BYTES_MAX
from holdfast.runs.events import ABSENT, Fault

KEPT_TYPES = (bytes, bytearray, datetime)
TEXT_MAX = 2000
TRACEBACK_MAX = 6000
CHAIN_MAX = 8
"""How many exceptions of a chain of causes a stored traceback shows."""
_logger = logging.getLogger("holdfast.runs")
BlobReader = Callable[[str, int], bytes]


def encode(value: Any) -> bytes:
    """Returns the stored bytes of a value, which may contain Structs and dataclasses."""
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
    """Returns the value of stored bytes, with blobs loaded and sealed values opened."""
    if not raw:
        return None
    data = bytes(raw)
    reference = codec.parse_blob_ref(data)
    stored = blobs(*reference) if reference is not None else data
    return codec.decode(stored, blob=lambda id, size: codec.decode(blobs(id, size)))


def text_of(value: object) -> str:
    """Returns a value as text that can be stored: surrogates escaped, length limited."""
    try:
        text = str(value)
    except Exception as error:
        text = f"a {type(value).__name__} that cannot be shown"
        _logger.debug("%s: its text raised %s", text, type(error).__name__)
    return text.encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]


def fault_of(error: BaseException, outcome: str = "unknown") -> Fault:
    """Returns the stored form of an exception."""
    data = ABSENT
    if (found := getattr(error, "data", None)) is not None:
        try:
            data = Raw(encode(found))
        except ValueDomainError as lost:
            _logger.debug("the data of a %s is not stored: %s", type(error).__name__, lost)
            data = ABSENT  # its data is lost, but not its text
    kind, text = type(error).__name__, text_of(error)
    if isinstance(error, StepError):
        kind, text, outcome = text_of(error.kind), text_of(error.text), error.outcome
    return Fault(kind, text, data, outcome, traceback_of(error))  # type: ignore[arg-type]


def error_of(fault: Fault, path: str) -> StepError:
    """Returns the StepError for a fault, the same one live and in a replay."""
    data = codec.decode(fault.data) if fault.data else None
    return StepError(
        fault.kind,
        fault.message,
        data,
        path=path,
        outcome=fault.outcome,
        traceback=fault.traceback,
    )


# --- tracebacks -----------------------------------------------------------------------------------
#
# A run fails in one process and is examined in another, so the traceback is stored as text, as
# Python prints it, with the frames of the user's code only. Values of variables are never stored,
# because they may be secrets.

_OWN_CODE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def traceback_of(error: BaseException) -> str:
    """Returns the traceback of an exception and of its causes as text that can be stored."""
    parts: list[str] = []
    found: BaseException | None = error
    joint = ""
    for _ in range(CHAIN_MAX):
        if found is None:
            break
        parts.insert(0, _traceback_of_one(found) + joint)
        if isinstance(found, StepError) and found.traceback:
            # The traceback of the step's failure. In a replay there is no exception but this text,
            # so it is used live too, and both show the same.
            parts.insert(0, found.traceback + _CAUSE)
            break
        joint = _CAUSE
        earlier = found.__cause__
        if earlier is None and not found.__suppress_context__:
            earlier, joint = found.__context__, _CONTEXT
        found = earlier
    text = "".join(parts).encode("utf-8", "backslashreplace").decode()
    if len(text) > TRACEBACK_MAX:
        # The end says what happened, and the beginning says where it came from.
        first, last = TRACEBACK_MAX // 4, TRACEBACK_MAX - TRACEBACK_MAX // 4
        left_out = len(text) - first - last
        text = f"{text[:first]}\n… {left_out:,} characters are left out …\n{text[-last:]}"
    return text


def _traceback_of_one(error: BaseException) -> str:
    """Returns the traceback of one exception without its causes."""
    told = TracebackException(type(error), error, error.__traceback__, compact=True)
    _keep_user_frames(told, is_ours=isinstance(error, HoldfastError))
    return "".join(told.format(chain=False))


def _keep_user_frames(told: TracebackException, *, is_ours: bool) -> None:
    """Drops our own frames, unless a foreign error would have no frames left."""
    frames = [frame for frame in told.stack if not frame.filename.startswith(_OWN_CODE)]
    if frames or is_ours:
        told.stack = StackSummary.from_list(frames)
    for one in told.exceptions or ():
        _keep_user_frames(one, is_ours=is_ours)


def check_name_text(value: object, what: str) -> str:
    """Returns the name if it can name an operation, or raises UsageError."""
    if not isinstance(value, str) or not value or len(value) > 200:
        raise UsageError(f"{what} is text of 1 to 200 characters, found {show_value(value)}")
    if not value.isascii() and _LONE_SURROGATE.search(value):
        raise UsageError(f"{what} is text without lone surrogates, found {show_value(value)}")
    return str.__str__(value)


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def commit_key(key: str) -> str:
    """Returns the key, or a digest of it if it is too long for a commit."""
    size = len(key.encode())
    return key if size <= NAME_BYTES_MAX else f"run-{sha256(key.encode()).hexdigest()}"
