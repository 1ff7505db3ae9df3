"""The layers above the log, in one table: what each of them owns in a store.

A layer registers itself once, when its package is imported; `store` imports every layer, so the
table is complete before a store is opened. Code that must treat all layers alike asks the table:
which streams users may not write, which marks are useless once a scope has ended, what is stale,
and which copies of a scope's data exist beside its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.errors import ExistsError


class Layer(Struct, frozen=True, kw_only=True):
    """What one layer owns. Everything but the name may be empty."""

    name: str
    prefixes: tuple[str, ...] = ()
    """The first words of streams that it alone writes, such as `run` of `run/r1`."""
    removable: tuple[str, ...] = ()
    """Of these words, those whose streams it can remove, as users remove scopes (0025)."""
    kept_with: Mapping[str, str | None] = {}
    """By first word, where a mixed store keeps these streams: with the scopes of that level, or, if
    it is None, with the stream whose name follows the word, as `inbox/run/r1` with `run/r1`."""
    levels: tuple[str, ...] = ()
    """The levels of scopes that the layer adds."""
    indexes: tuple[str, ...] = ()
    """The indexes of its marks. The `group` of such a mark names the scope that it is about, unless
    the index is about the layer's own streams."""
    swept: tuple[str, ...] = ()
    """Of its indexes, those whose marks are cleared when the scope that they are about ends."""
    named: tuple[str, ...] = ()
    """Of its indexes, those whose marks have in their keys names that people chose, after the
    digest of a stream: in a subject's scope these names are sealed (`sealed_marks.py`)."""
    holds: Callable[[Any, str], Iterable[str]] | None = None
    """Given the context of a store's record and a scope's name, yields the names of what is under
    way there: while there is anything, the scope is not removed."""
    along: Callable[[Any, str], Iterable[str]] | None = None
    """Given the context of a store's record and a scope's name, yields the layer's streams that are
    removed with the scope."""
    copies: Callable[[Any, str], Iterable[str]] | None = None
    """Given the context of a store's record and a scope's name, yields the layer's streams that
    have copies of the scope's data, removed ones too: they are erased with the scope."""
    erased: Callable[[str], Iterable[tuple[str, str]]] | None = None
    """Given the name of a stream that is erased, yields the index and key of marks that go with it,
    beside those that are grouped by its name."""
    stale: Callable[[Any, bool], Iterable[Any]] | None = None
    """Given the context of a store's record, and whether to ask verifiers now, yields what is
    stale."""


_table: dict[str, Layer] = {}


def register_layer(layer: Layer) -> Layer:
    """Adds a layer, or raises ExistsError if its name, a prefix, level or index of it is taken."""
    for other in _table.values():
        if other.name == layer.name:
            if other == layer:
                return layer  # its module was imported again
            raise ExistsError(f'layer "{layer.name}" is registered already')
        for taken in (
            {*other.prefixes} & {*layer.prefixes},
            {*other.levels} & {*layer.levels},
            {*other.indexes} & {*layer.indexes},
        ):
            if taken:
                raise ExistsError(
                    f'layer "{layer.name}" cannot have "{min(taken)}": layer "{other.name}" has it'
                )
    _table[layer.name] = layer
    return layer


def layers() -> list[Layer]:
    """Returns the registered layers, in the order in which they were registered."""
    return list(_table.values())


def reserved_prefixes() -> frozenset[str]:
    """Returns the first words of all streams that only layers write; users can read them."""
    return frozenset(prefix for layer in _table.values() for prefix in layer.prefixes)


def lasting_prefixes() -> frozenset[str]:
    """Returns the first words of streams that are never removed."""
    return reserved_prefixes() - removable_prefixes()


def removable_prefixes() -> frozenset[str]:
    """Returns the first words of streams of layers that can be removed."""
    return frozenset(word for layer in _table.values() for word in layer.removable)


def kept_with() -> dict[str, str | None]:
    """Returns where a mixed store keeps the streams of layers, by first word."""
    return {word: level for layer in _table.values() for word, level in layer.kept_with.items()}


def owned_indexes() -> frozenset[str]:
    """Returns the indexes of all layers: any other one is a user's own."""
    return frozenset(index for layer in _table.values() for index in layer.indexes)


def swept_indexes() -> Iterator[str]:
    """Yields the indexes whose marks are cleared when the scope that they are about ends."""
    for layer in _table.values():
        yield from layer.swept


def named_indexes() -> frozenset[str]:
    """Returns the indexes whose marks have in their keys names that people chose."""
    return frozenset(index for layer in _table.values() for index in layer.named)


def held_by(context: Any, stream: str) -> Iterator[str]:
    """Yields the names of what is under way in a scope, of every layer."""
    for layer in _table.values():
        if layer.holds is not None:
            yield from layer.holds(context, stream)


def along_with(context: Any, stream: str) -> Iterator[str]:
    """Yields the streams of layers that are removed with a scope."""
    for layer in _table.values():
        if layer.along is not None:
            yield from layer.along(context, stream)


def copies_of(context: Any, stream: str) -> Iterator[str]:
    """Yields the streams of all layers that have copies of a scope's data."""
    for layer in _table.values():
        if layer.copies is not None:
            yield from layer.copies(context, stream)


def erased_with(stream: str) -> Iterator[tuple[str, str]]:
    """Yields the index and key of the marks that go when a stream is erased, of every layer."""
    for layer in _table.values():
        if layer.erased is not None:
            yield from layer.erased(stream)


def stale_sources() -> Iterator[Callable[[Any, bool], Iterable[Any]]]:
    """Yields the functions that list what is stale, of every layer."""
    for layer in _table.values():
        if layer.stale is not None:
            yield layer.stale
