"""Splits texts into words, both what is recorded and what is searched for. Pure functions.

Words are split here and nowhere else, and are stored for a tokeniser that splits only at spaces. So
every backend finds the same, whatever its own rules for words are.

A word is a run of letters, digits and underscores, normalised (NFKC) and case-folded. In scripts
without spaces, each character is one word. A text is stored in chunks of `CHUNK_WORDS` words,
because a server limits the size and the number of words in one entry. Phrases are found only
within a chunk.
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
"""How often one word may be in a chunk. PostgreSQL keeps at most 255 positions of a word (0039)."""
_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Written as escapes, because some of these characters change when a text is normalised."""
_WORD = re.compile(f"[{_SPACELESS}]|[^\\W{_SPACELESS}]+")
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
_TERM = re.compile(r'"([^"]*)"|(\S+)')


class Term(Struct, frozen=True):
    """What a text must contain: a word, or adjacent words; the last may be only a prefix."""

    words: tuple[str, ...]
    is_prefix: bool = False


def plain(text: str) -> str:
    """Returns a text that every database can store, without lone surrogates and zero characters."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "�")


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
    """Returns the words of some texts in chunks. A phrase never spans two texts.

    A chunk ends before it has more words, or one word more often, than a server can index.
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
"""A word put between two texts of one document, so that no phrase spans them."""


def parse_text(text: object) -> tuple[Term, ...]:
    """Parses a search text: words, "a phrase" in quotes, and prefixes such as `manag*`."""
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
    """Returns whether chunks of words contain a term; every index must agree with this."""
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
    """Yields every text among the values of a document, sorted by key within mappings."""
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
