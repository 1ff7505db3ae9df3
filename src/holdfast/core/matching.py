"""Finds the parts of a stored payload that hold a text, and cuts them out (0075). Pure.

A payload is JSON text. The text is looked for in every string in it, unescaped: values, keys of
mappings, words of paths, bytes that are UTF-8. A part that matches is cut out, and a short word
takes its place (`[erased]`, or stars where that would be longer). Equal texts get equal words
everywhere: two events that named the same key still name the same key.

What the store itself wrote is not searched: names of fields and kinds, ids, digests, names of
scopes. With a part cut out they would mean something else.

A cut says where it begins, how long it is and what stands there now, and nothing of what was there.
So it can be recorded, and repeated on the same payload in a backup.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct

from holdfast.core import codec
from holdfast.core.keystore import is_pseudonym
from holdfast.errors import UsageError

INSTEAD = "[erased]"
LEAST = 3
"""The fewest characters that a text may have: a shorter one is found nearly everywhere."""
MOST = 10_000

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_BYTES = re.compile(rb'\{"\$bytes":"([A-Za-z0-9+/=]*)"\}')
_OF_CODEC = re.compile(
    rb'\{"\$(?:bytes|datetime|float)":"[^"]*"\}'
    rb'|\{"\$sealed":\{"of":"[^"]*","data":(?:"[^"]*"|\{"\$blob":[^}]*\}\})\}\}'
    rb'|\{"\$blob":\{[^}]*\}\}|"\$(?:text|pairs|erased)":'
)
"""What only looks like text: encoded values of other types, and references to blobs."""
_PIECE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u.{4}|\\.|[^\\]")


class Cut(Struct, frozen=True, array_like=True):
    """A part to cut out of a payload: where it begins, its bytes, and what takes its place."""

    begin: int
    length: int
    instead: str


def without(payload: bytes, cuts: Iterable[Cut]) -> bytes:
    """Returns a payload with the cuts made."""
    kept, end = bytearray(), 0
    for cut in sorted(cuts, key=lambda one: one.begin):
        kept += payload[end : cut.begin] + cut.instead.encode()
        end = cut.begin + cut.length
    return bytes(kept + payload[end:])


def shortened(payload: bytes, cuts: Iterable[Cut]) -> bytes:
    """Returns what is stored in place of a payload: a space after its first byte marks it."""
    shorter = without(payload, cuts)
    return shorter if shorter[1:2] == b" " else b"%b %b" % (shorter[:1], shorter[1:])


class Match:
    """A text that is looked for, in the forms in which it may be written."""

    def __init__(self, text: str, *, ignore_case: bool = False, names: Iterable[str] = ()) -> None:
        """`names` are names of streams: neither they nor references to them can be rewritten."""
        _check_text(text)
        forms = {text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))}
        wanted = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._pattern = re.compile(wanted, re.IGNORECASE if ignore_case else 0)
        self._forms = forms
        self._names = sorted(name for name in names if self.is_in(name))
        self._own = _vocabulary()

    def __repr__(self) -> str:
        return "<Match>"  # the text must appear in no log and in no message

    @property
    def names(self) -> list[str]:
        """The names of streams that hold the text."""
        return self._names

    def is_in(self, text: str | None) -> bool:
        """Returns whether a text holds the text that is looked for."""
        return text is not None and self._pattern.search(text) is not None

    def in_text(self, text: str) -> str:
        """Returns a text with what is looked for replaced."""
        return self._pattern.sub(lambda found: _instead(found[0]), text)

    def cuts(self, payload: bytes) -> list[Cut]:
        """Returns the cuts that take the text out of a payload."""
        text = payload.decode(errors="surrogateescape")
        if "\\" not in text and b'"$bytes"' not in payload and not self._pattern.search(text):
            return []
        return [*self._in_strings(payload), *self._in_numbers(payload), *self._in_bytes(payload)]

    def without(self, payload: bytes) -> bytes:
        """Returns a payload without the text."""
        return without(payload, self.cuts(payload))

    def _in_strings(self, payload: bytes) -> Iterator[Cut]:
        for begin, end in _strings(payload):
            raw = payload[begin:end].decode(errors="surrogateescape")
            pieces = _PIECE.findall(raw) if "\\" in raw else None
            whole = raw if pieces is None else "".join(map(_unescaped, pieces))
            if not self.is_in(whole) or self._is_of_the_store(whole):
                continue
            places = _places(raw if pieces is None else pieces)
            for found in self._pattern.finditer(whole):
                first, last = places[found.start()], places[found.end()]
                yield Cut(begin + first, last - first, _instead(found[0]))

    def _is_of_the_store(self, text: str) -> bool:
        """Returns whether a string is one that the store writes itself, or refers to a stream."""
        if text in self._own:
            return True
        if any(text == name or text.startswith((f"{name}@", f"{name}/")) for name in self._names):
            return True
        return is_pseudonym(text) and self._pattern.fullmatch(text) is None

    def _in_numbers(self, payload: bytes) -> Iterator[Cut]:
        """Yields the cuts of numbers that are the whole text, such as a telephone number."""
        if not any(_NUMBER.fullmatch(form.encode()) for form in self._forms if form.isascii()):
            return
        end = 0
        for string in (*_STRING.finditer(payload), None):
            begin = len(payload) if string is None else string.start()
            for found in _NUMBER.finditer(payload, end, begin):
                if found[0].decode() in self._forms:
                    yield Cut(found.start(), len(found[0]), "0")
            end = begin if string is None else string.end()

    def _in_bytes(self, payload: bytes) -> Iterator[Cut]:
        for found in _BYTES.finditer(payload):
            try:
                text = b64decode(found[1]).decode(errors="surrogateescape")
            except ValueError:
                continue
            if self.is_in(text):
                yield Cut(found.start(1), len(found[1]), "")


def _check_text(text: object) -> None:
    """Raises UsageError if a text cannot be looked for; the error does not repeat the text."""
    if not isinstance(text, str):
        raise UsageError(f"match is a text, found {type(text).__name__}")
    if len(text.strip()) < LEAST or len(text) > MOST:
        raise UsageError(
            f"match is a text of {LEAST} to {MOST} characters, found one of {len(text.strip())}",
            hint="a short text is a part of many words: give more of it",
        )
    if "\ufffd" in text or any("\ud800" <= one <= "\udfff" for one in text):
        raise UsageError("match is a text of whole characters, found half a pair")
    if text in _vocabulary():
        raise UsageError(
            "match is a word that the store itself writes into its events: nothing was erased",
            hint="give more of the text, or erase the scope",
        )


def _instead(found: str) -> str:
    """Returns the word that takes the place of a text: shorter, and always the same."""
    size = len(codec.encode_plain(found)) - 2
    return INSTEAD if size > len(INSTEAD) else "*" * min(size - 1, LEAST)


def _strings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yields where strings begin and end, without their quotes; skips encoded other values."""
    place = 0
    for apart in (*_OF_CODEC.finditer(payload), None):
        end = len(payload) if apart is None else apart.start()
        for found in _STRING.finditer(payload, place, end):
            yield found.start() + 1, found.end() - 1
        place = end if apart is None else apart.end()


def _places(pieces: str | list[str]) -> list[int]:
    """Returns the byte at which each character begins, and the byte after the last one."""
    places, at = list[int](), 0
    for piece in pieces:
        places.append(at)
        at += len(piece.encode(errors="surrogateescape"))
    return [*places, at]


def _unescaped(piece: str) -> str:
    if piece[0] != "\\":
        return piece
    try:
        return cast("str", msgspec.json.decode(f'"{piece}"'))
    except msgspec.MsgspecError:
        return "\ufffd"  # half a pair: no text that is looked for has one


_words: set[str] = set()
_LITERAL = re.compile(r"Literal\[([^\]]*)\]")
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']")


def _vocabulary() -> set[str]:
    """Returns the words that layers write into payloads: names of fields, and kinds of things."""
    if not _words:
        waiting: list[Any] = [Struct]
        while waiting:
            one = waiting.pop()
            waiting += cast("Callable[[], list[Any]]", one.__subclasses__)()
            if one.__module__.partition(".")[0] == "holdfast":
                _words.update(one.__struct_encode_fields__)
                annotations = cast("dict[str, object]", vars(one).get("__annotations__", {}))
                for words in _LITERAL.findall(" ".join(map(str, annotations.values()))):
                    _words.update(_QUOTED.findall(words))
        _words.update(_MORE_WORDS)
    return _words


_MORE_WORDS = (
    "set", "delete", "append", "increment", "merge", "truncate", "until", "user", "assistant",
    "system", "tool", "open", "done", "failed", "running", "cancelled", "ended", "waiting", "text",
    "true", "false", "null", "nan", "inf", "-inf",
)  # fmt: skip


# --- what is recorded of it -----------------------------------------------------------------------


class Shortening(Struct, frozen=True, array_like=True):
    """What was cut out of one payload: its base64 digests before and after, and the cuts."""

    revision: int
    was: str
    now: str
    cuts: list[Cut]


def digest(payload: bytes) -> str:
    """Returns the digest of a payload in the form that a shortening holds."""
    return b64encode(sha256(payload).digest()).decode()


def done_again(payload: bytes, steps: Iterable[Shortening]) -> bytes:
    """Returns a payload after its recorded shortenings; those already done change nothing."""
    for step in steps:
        if digest(payload) == step.was:
            payload = shortened(payload, step.cuts)
    return payload
