"""The persistent vector, against a plain list."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core.tree import vector
from holdfast.core.tree.vector import EMPTY, Vector, changed_indexes, from_items, from_source

SIZES = [0, 1, 31, 32, 33, 64, 65, 1023, 1024, 1025, 1056, 1057, 2080, 32 * 1024 + 33]


class Squares:
    """A source that counts how many items it was asked for."""

    def __init__(self) -> None:
        self.made = 0

    def items(self, start: int, stop: int) -> tuple[Any, ...]:
        self.made += stop - start
        return tuple(i * i for i in range(start, stop))

    def is_same(self, other: vector.Source, start: int, stop: int) -> bool:
        return isinstance(other, Squares)


def content(items: Vector) -> list[Any]:
    return [item for chunk in items.chunks() for item in chunk]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("more", [0, 1, 31, 32, 33, 2000])
def test_extended_equals_built_at_once(size: int, more: int) -> None:
    items = list(range(size + more))
    first = from_items(items[:size])
    extended = first.extend(items[size:])
    built = from_items(items)
    assert content(extended) == items
    assert content(first) == items[:size]
    assert (extended.count, extended.shift, len(extended.tail)) == (
        built.count,
        built.shift,
        len(built.tail),
    )
    assert content(extended.append(-1)) == [*items, -1]


@pytest.mark.parametrize("size", SIZES)
def test_built_at_once_equals_appended(size: int) -> None:
    grown = EMPTY
    for i in range(size):
        grown = grown.append(i)
    built = from_items(list(range(size)))
    assert content(grown) == content(built) == list(range(size))
    assert (grown.count, grown.shift, len(grown.tail)) == (
        built.count,
        built.shift,
        len(built.tail),
    )
    assert [built.get(i) for i in range(size)] == list(range(size))


@pytest.mark.parametrize("size", SIZES[1:])
def test_truncated_vector_goes_on(size: int) -> None:
    whole = from_items(list(range(size)))
    for count in {0, 1, size // 2, size // 32 * 32, size - 1, size}:
        cut = whole.truncate(count)
        assert content(cut) == list(range(count))
        again = from_items(list(range(count)))
        assert (cut.count, cut.shift, len(cut.tail)) == (again.count, again.shift, len(again.tail))
        for i in range(count, count + 40):
            cut = cut.append(i)
        assert content(cut) == list(range(count + 40))
    assert content(whole) == list(range(size))


def test_random_steps_leave_older_versions_alone() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    items, model = EMPTY, list[int]()
    held: list[tuple[Vector, list[int]]] = []
    for step in range(4000):
        kind = chance.random()
        if kind < 0.7 or not model:
            items, model = items.append(step), [*model, step]
        elif kind < 0.98:
            index = chance.randrange(len(model))
            items = items.set(index, -step)
            model = [*model[:index], -step, *model[index + 1 :]]
        else:
            count = chance.randrange(len(model) // 2, len(model))
            items, model = items.truncate(count), model[:count]
        if step % 100 == 0:
            held.append((items, model))
    for version, expected in [*held, (items, model)]:
        assert content(version) == expected


def test_slice() -> None:
    items = from_items(list(range(1100)))
    for start, stop in [(0, 0), (0, 1), (5, 40), (31, 33), (1000, 1100), (1088, 1090), (0, 1100)]:
        assert items.slice(start, stop) == list(range(start, stop))


@pytest.mark.parametrize("size", SIZES)
def test_vector_from_a_source_equals_one_from_items(size: int) -> None:
    source = Squares()
    items = from_source(source, size)
    assert source.made <= 32
    assert items.shift == from_items(list(range(size))).shift
    assert content(items) == [i * i for i in range(size)]


def test_unread_items_are_made_only_where_somebody_looks() -> None:
    source = Squares()
    items = from_source(source, 100_000)
    longer = items.append(-1).append(-2)
    assert longer.get(100_001) == -2
    assert longer.get(50_000) == 50_000**2
    assert longer.set(70_000, 0).get(70_000) == 0
    assert longer.get(70_000) == 70_000**2
    assert source.made <= 32 * 3
    for i in range(100):
        longer = longer.append(i)
    assert source.made <= 32 * 3


def test_changed_indexes_skips_what_is_shared() -> None:
    source = Squares()
    old = from_source(source, 100_000)
    made = source.made
    new = old.append(1).append(2)
    assert list(changed_indexes(old, new)) == []
    assert source.made == made
    new = new.set(40_000, "x").set(99_999, "y")
    assert list(changed_indexes(old, new)) == [40_000, 99_999]
    assert list(changed_indexes(new, old)) == [40_000, 99_999]
    assert source.made <= made + 64


def test_changed_indexes_of_unread_vectors_of_one_stream() -> None:
    a, b = Squares(), Squares()
    old, new = from_source(a, 50_000), from_source(b, 60_000)
    changed = list(changed_indexes(old, new, is_same_stream=True))
    assert a.made + b.made < 3000
    assert all(index >= 49_000 for index in changed)


@pytest.mark.parametrize(("small", "large"), [(0, 5000), (20, 40), (33, 2000), (1024, 40_000)])
def test_changed_indexes_of_vectors_of_different_height(small: int, large: int) -> None:
    numbers = [object() for _ in range(large)]
    old, new = from_items(numbers[:small]), from_items(numbers)
    assert list(changed_indexes(old, new)) == []
    assert list(changed_indexes(new, old)) == []
    if small:
        other = old.set(small // 2, "x")
        assert list(changed_indexes(other, new)) == [small // 2]
        assert list(changed_indexes(new, other)) == [small // 2]
