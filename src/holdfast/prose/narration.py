"""Writes and reads the transcript of a program.

Without a store, the transcript is the state. Every change of the state is one line:

    prose transcript 1 3f7c…
    prose 1 bound ["draft",{"value":"Dear Ada,\\nit works."}] 8b1a…
    prose 2 ended ["session.1",{}] 55d0…

A line has a number, the kind of event, a JSON array of the journal path and the data, and a digest
that is keyed with the nonce of the first line. Values are JSON in ASCII, so that no text of a
session can begin a line. The nonce is never passed to a session, so that no session can forge a
line. Other lines in between are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from msgspec import Struct

from holdfast.errors import UsageError

FIRST = "prose transcript 1 "
_LINE = re.compile(r"prose ([0-9]{1,15}) ([a-z][a-z_]*) (\[.*\]) ([0-9a-f]{32})")
_FIRST = re.compile(r"prose transcript 1 ((?:[0-9a-f]{2}){16,64})")


class Told(Struct, frozen=True):
    """One event of a transcript."""

    number: int
    kind: str
    path: str
    data: Any


class Transcript(Struct, frozen=True):
    """The content of a transcript: its events in order, and what is wrong with it.

    `forged` has the numbers of lines in the form of narration that the narrator did not write; they
    are ignored. `missing` is the first event that is not there although a later one is; `events`
    ends before it. `is_torn` is set if the last line is incomplete.
    """

    events: tuple[Told, ...]
    forged: tuple[int, ...] = ()
    missing: int | None = None
    is_torn: bool = False
    nonce: str | None = None

    @property
    def has_nonce(self) -> bool:
        """Whether there is a first line; without it no line can be verified."""
        return self.nonce is not None


class Narrator:
    """Writes the events of one execution, one line each.

    `nonce` is 16 to 64 unpredictable bytes in hexadecimal digits. To go on with a transcript, pass
    the number of its last event as `last`.
    """

    def __init__(self, nonce: str, last: int = 0) -> None:
        if _FIRST.fullmatch(f"{FIRST}{nonce}") is None:
            raise UsageError("a nonce has 16 to 64 bytes, written as lower-case hexadecimal digits")
        self._nonce = nonce
        self._last = last

    def begin(self) -> str:
        """Returns the first line, without its end."""
        return f"{FIRST}{self._nonce}"

    def tell(self, kind: str, path: str, data: Any) -> str:
        """Returns the line of the next event, without its end."""
        self._last += 1
        body = json.dumps([path, data], ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return f"prose {self._last} {kind} {body} {_digest(self._nonce, self._last, kind, body)}"


def read_transcript(text: str) -> Transcript:
    """Returns the events of a transcript, in order, up to the first that is missing.

    The first nonce in the text counts. A session cannot know it, so a later first line that a
    session printed is ignored.
    """
    nonce: str | None = None
    found: dict[int, Told] = {}
    forged: list[int] = []
    is_torn = False
    for number, line, is_whole in _lines(text):
        if nonce is None:
            first = _FIRST.fullmatch(line) if is_whole else None
            nonce = first[1] if first else None
        elif line.startswith("prose ") and not line.startswith(FIRST):
            told = _read_line(nonce, line)
            if told is not None:
                found.setdefault(told.number, told)
            elif is_whole:
                forged.append(number)
            else:
                is_torn = True
        elif not is_whole and line and "prose ".startswith(line[:6]):
            is_torn = True
    events: list[Told] = []
    while (after := found.get(len(events) + 1)) is not None:
        events.append(after)
    missing = len(events) + 1 if len(events) < len(found) else None
    return Transcript(tuple(events), tuple(forged), missing, is_torn, nonce)


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields each line with its number, and whether it has a line end."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\r"), number < len(lines)


def _read_line(nonce: str, line: str) -> Told | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    number, kind, body = int(found[1]), found[2], found[3]
    if not compare_digest(_digest(nonce, number, kind, body), found[4]):
        return None
    path, data = json.loads(body)
    return Told(number, kind, path, data)


def _digest(nonce: str, number: int, kind: str, body: str) -> str:
    said = f"{number} {kind} {body}".encode()
    return blake2b(said, key=bytes.fromhex(nonce), digest_size=16).hexdigest()
