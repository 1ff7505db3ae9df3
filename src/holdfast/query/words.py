"""Text as words: how what is recorded, and what is looked for, is split. Pure.

Both sides are split here and nowhere else, and the words are stored for a tokeniser that splits at
spaces only. So every backend finds the same, whatever its own idea of a word is.

A word is a run of letters, digits and underscores, in compatibility form and without case; each
character of a script that has no spaces is a word of its own. A text is kept in chunks of
`CHUNK_WORDS` words: what a server keeps in one entry has limits of size and of number. Phrases are
found within a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast
from unicodedata import normalize

from msgspec import Struct

from holdfast.core.codec import Thawable
from holdfast.core.tree import List, Map
from holdfast.errors import UsageError, show_value

CHUNK_WORDS = 2_000
WORD_CHARACTERS_MAX = 100
REPEATED_MAX = 250
"""A server remembers at most 255 places of one word in an entry."""
_SPACELESS = "぀-ヿ㐀-䶿一-鿿豈-﫿가-힯"
_WORD = re.compile(f"[{_SPACELESS}]|[^\\W{_SPACELESS}]+")
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
_TERM = re.compile(r'"([^"]*)"|(\S+)')


class Term(Struct, frozen=True):
    """What a text must have: a word, or several next to each other; the last may be a beginning."""

    words: tuple[str, ...]
    is_prefix: bool = False


def split_words(text: str) -> list[str]:
    """Returns the words of a text, in order."""
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
    else:
        words = _WORD.findall(normalize("NFKC", text).casefold())
    if len(text) > WORD_CHARACTERS_MAX:
        words = [word[:WORD_CHARACTERS_MAX] for word in words]
    return words


def chunks_of(texts: Iterable[str]) -> list[list[str]]:
    """Returns the words of some texts in chunks; no phrase reaches from one text to the next.

    A chunk ends before it has more words, or one word more often, than a server can number.
    """
    words: list[str] = []
    for text in texts:
        if found := split_words(text):
            words += [GAP, *found] if words else found
    if len(words) <= REPEATED_MAX:
        return [words] if words else []
    chunks: list[list[str]] = [[]]
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
        if len(chunks[-1]) >= CHUNK_WORDS or counts[word] > REPEATED_MAX:
            chunks.append([])
            counts = {word: 1}
        chunks[-1].append(word)
    return chunks


GAP = "_"
"""A word that stands between two texts of one item, so that no phrase reaches over."""


def parse_text(text: object) -> tuple[Term, ...]:
    """Returns what is looked for: words, "a phrase" in quotes, and beginnings such as `manag*`."""
    if not isinstance(text, str):
        raise UsageError(f"text is words to look for, found {show_value(text)}")
    if text.count('"') % 2:
        raise UsageError(f"a quote in {show_value(text)} is not closed", hint='write "two words"')
    terms: list[Term] = []
    for phrase, word in _TERM.findall(text):
        found = tuple(split_words(phrase or word))
        if found:
            terms.append(Term(found, is_prefix=word.endswith("*")))
    if not terms:
        raise UsageError(
            f"text has no word to look for, found {show_value(text)}",
            hint="leave text out to find everything",
        )
    return tuple(terms)


def has_term(chunks: Sequence[Sequence[str]], term: Term) -> bool:
    """Says whether chunks of words have a term: what every index must answer too."""
    wanted, count = list(term.words), len(term.words)
    for chunk in chunks:
        for at in range(len(chunk) - count + 1):
            part = list(chunk[at : at + count])
            if part == wanted:
                return True
            if term.is_prefix and part[:-1] == wanted[:-1] and part[-1].startswith(wanted[-1]):
                return True
    return False


def texts_in(value: Any) -> Iterator[str]:
    """Yields every text among the values of a document, in order of keys where they have one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | Map):
        for key in sorted(cast("dict[str, Any]", value)):
            yield from texts_in(cast("dict[str, Any]", value)[key])
    elif isinstance(value, list | tuple | List):
        for item in cast("list[Any]", value):
            yield from texts_in(item)
    elif isinstance(value, Thawable):
        yield from texts_in(value.thaw())
