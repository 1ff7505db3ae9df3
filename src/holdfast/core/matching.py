"""Which parts of a stored payload hold a text, and the payload without them (0075). Pure.

A payload is JSON text. What is looked at is every text in it, as it was before it was escaped:
values, keys of mappings, words of paths, bytes that are UTF-8. A part that fits is cut out, and a
short word stands there instead (`[erased]`, or stars where that would be longer). The same text has
the same word in its place everywhere: what two events said of one key they still say of one key.

Not looked at is what the store itself has written there: names of fields and kinds, ids, digests,
names of scopes. Cut in half, they would say something else.

A cut says where it begins, how long it is and what stands there, and nothing of what was there. So
it can be noted, and done again to the same payload in a backup.
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
"""The fewest characters of a text that is looked for: a shorter one is in nearly everything."""
MOST = 10_000

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_BYTES = re.compile(rb'\{"\$bytes":"([A-Za-z0-9+/=]*)"\}')
_OF_CODEC = re.compile(
    rb'\{"\$(?:bytes|datetime|float)":"[^"]*"\}'
    rb'|\{"\$sealed":\{"of":"[^"]*","data":(?:"[^"]*"|\{"\$blob":[^}]*\}\})\}\}'
    rb'|\{"\$blob":\{[^}]*\}\}|"\$(?:text|pairs|erased)":'
)
"""What only looks like text: it is what stands for other values, and for what lies elsewhere."""
_PIECE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u.{4}|\\.|[^\\]")


class Cut(Struct, frozen=True, array_like=True):
    """A part of a payload: where it begins, how many bytes it has, what stands there instead."""

    begin: int
    length: int
    instead: str


def without(payload: bytes, cuts: Iterable[Cut]) -> bytes:
    """Returns a payload without some parts of it."""
    kept, end = bytearray(), 0
    for cut in sorted(cuts, key=lambda one: one.begin):
        kept += payload[end : cut.begin] + cut.instead.encode()
        end = cut.begin + cut.length
    return bytes(kept + payload[end:])


def shortened(payload: bytes, cuts: Iterable[Cut]) -> bytes:
    """Returns what is stored in place of a payload: it says so by a space after its first byte."""
    shorter = without(payload, cuts)
    return shorter if shorter[1:2] == b" " else b"%b %b" % (shorter[:1], shorter[1:])


class Match:
    """A text that is looked for, in the forms in which it may be written."""

    def __init__(self, text: str, *, ignore_case: bool = False, names: Iterable[str] = ()) -> None:
        """`names` are those of streams, which cannot be rewritten, nor what refers to them."""
        _check_text(text)
        forms = {text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))}
        wanted = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._pattern = re.compile(wanted, re.IGNORECASE if ignore_case else 0)
        self._forms = forms
        self._names = sorted(name for name in names if self.is_in(name))
        self._own = _vocabulary()

    def __repr__(self) -> str:
        return "<Match>"  # the text is in no log and in no message

    @property
    def names(self) -> list[str]:
        """The names of streams that hold the text."""
        return self._names

    def is_in(self, text: str | None) -> bool:
        """Says whether a text holds what is looked for."""
        return text is not None and self._pattern.search(text) is not None

    def in_text(self, text: str) -> str:
        """Returns a text without what is looked for."""
        return self._pattern.sub(lambda found: _instead(found[0]), text)

    def cuts(self, payload: bytes) -> list[Cut]:
        """Returns which parts of a payload hold the text."""
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
        """Says whether a whole text is what the store writes by itself, or refers to a stream."""
        if text in self._own:
            return True
        if any(text == name or text.startswith((f"{name}@", f"{name}/")) for name in self._names):
            return True
        return is_pseudonym(text) and self._pattern.fullmatch(text) is None

    def _in_numbers(self, payload: bytes) -> Iterator[Cut]:
        """Yields numbers that are the text as a whole: the number of a telephone, of a card."""
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
    """Raises UsageError that does not repeat the text."""
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
    """Returns what stands in the place of a text: shorter than it, and the same each time."""
    size = len(codec.encode_plain(found)) - 2
    return INSTEAD if size > len(INSTEAD) else "*" * min(size - 1, LEAST)


def _strings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yields where texts begin and end, without their quotes; none of what stands for others."""
    place = 0
    for apart in (*_OF_CODEC.finditer(payload), None):
        end = len(payload) if apart is None else apart.start()
        for found in _STRING.finditer(payload, place, end):
            yield found.start() + 1, found.end() - 1
        place = end if apart is None else apart.end()


def _places(pieces: str | list[str]) -> list[int]:
    """Returns at which byte each character begins, and where the last one ends."""
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


# --- what is told of it ---------------------------------------------------------------------------


class Shortening(Struct, frozen=True, array_like=True):
    """What was cut out of one payload: its digests before and after, in base64, and the cuts."""

    revision: int
    was: str
    now: str
    cuts: list[Cut]


def digest(payload: bytes) -> str:
    """Returns the digest of a payload as a shortening has it."""
    return b64encode(sha256(payload).digest()).decode()


def done_again(payload: bytes, steps: Iterable[Shortening]) -> bytes:
    """Returns a payload after shortenings that were told of it; those that are done do nothing."""
    for step in steps:
        if digest(payload) == step.was:
            payload = shortened(payload, step.cuts)
    return payload
