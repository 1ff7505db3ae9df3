"""Counts the tokens of a text, exactly with a tokenizer, or as an estimate that is named so.

Every model has its own tokenizer, so the caller may pass the right one. If none is given, the
library `tiktoken` is used where it is installed and has its vocabulary on this machine. Nothing is
ever downloaded for it.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from typing import Any, cast

from msgspec import Struct

from holdfast.errors import UsageError, show_error, show_value
from holdfast.record.messages import BYTES_PER_TOKEN

_logger = logging.getLogger("holdfast.context")

ENCODING = "o200k_base"
_VOCABULARY = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
"""The URL of the vocabulary; `tiktoken` names its cached copy after the digest of this."""
VARIABLE = "HOLDFAST_TOKENIZER"
"""The environment variable with an encoding of tiktoken to use if the caller gives none."""


class TokenCounter(Struct, frozen=True):
    """Counts the tokens of a text."""

    name: str
    is_exact: bool
    count: Callable[[str], int]


def estimate(text: str) -> int:
    """Estimates the tokens of a text: one for every `BYTES_PER_TOKEN` bytes, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


ESTIMATE = TokenCounter("estimate", False, estimate)


def find_counter(tokenizer: object = None) -> TokenCounter:
    """Returns the counter for a tokenizer, an encoding's name or a function.

    Without one, it returns that of an installed tiktoken, or else the estimate.
    """
    if tokenizer is None:
        return _installed()
    if isinstance(tokenizer, str):
        if tokenizer == ESTIMATE.name:
            return ESTIMATE
        return _named(tokenizer)
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise UsageError(
            "a tokenizer is the name of an encoding, an object with encode, or a function that "
            f"counts, found {show_value(tokenizer)}"
        )
    name = getattr(tokenizer, "name", None) or type(tokenizer).__name__
    # `encode` of tiktoken refuses texts that look like special tokens; here any text is plain.
    plain = getattr(tokenizer, "encode_ordinary", encode)
    return TokenCounter(str(name), True, lambda text: _length(plain(text)))


def _length(answer: object) -> int:
    """Counts the tokens in a tokenizer's answer: a number, a list, or an object with `ids`."""
    ids = getattr(answer, "ids", answer)
    if isinstance(ids, int) and not isinstance(ids, bool) and ids >= 0:
        return ids
    if isinstance(ids, Sequence) and not isinstance(ids, str):
        return len(cast("Sequence[Any]", ids))
    raise UsageError(f"a tokenizer answers with a number or with tokens, found {show_value(ids)}")


def _named(name: str) -> TokenCounter:
    """Returns the counter of an encoding of tiktoken, or raises UsageError."""
    try:
        library: Any = importlib.import_module("tiktoken")
    except ImportError as missing:
        raise UsageError(
            f"the encoding {show_value(name)} needs the library tiktoken, which is not installed",
            hint="pip install 'holdfast[tokens]', or hand over a tokenizer of your own",
        ) from missing
    try:
        encoding: Any = library.get_encoding(name)
    except Exception as failed:
        raise UsageError(
            f"tiktoken has no encoding {show_value(name)} here: {show_error(failed)[:200]}",
            hint='name one that is on this machine, or "estimate"',
        ) from failed
    return find_counter(encoding)


@cache
def _installed() -> TokenCounter:
    """Returns the default counter of this machine, which is looked up once."""
    name = os.environ.get(VARIABLE, "")
    if not name and not _has_vocabulary():
        return ESTIMATE
    try:
        return find_counter(name or ENCODING)
    except UsageError as failed:
        if name:
            raise
        _logger.info("tokens are estimated: %s", failed)
        return ESTIMATE


def _has_vocabulary() -> bool:
    """Returns whether tiktoken has its vocabulary in a local cache, and would not download it."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = folder or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    return os.path.isfile(os.path.join(folder, sha1(_VOCABULARY.encode()).hexdigest()))
