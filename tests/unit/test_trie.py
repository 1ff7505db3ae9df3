"""The persistent wide map, against a plain dict."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core.tree import trie
from holdfast.core.tree.trie import Trie, changed_keys, from_entries


class Clashing(str):
    """A key whose hash is that of every other one."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 77


def content(entries: Trie) -> list[tuple[str, Any]]:
    return list(entries.items())


@pytest.mark.parametrize("size", [0, 1, 64, 65, 300, 5000])
def test_built_at_once_equals_set_one_by_one(size: int) -> None:
    table = {f"key {i}": i for i in range(size)}
    grown = from_entries({})
    for key, value in table.items():
        grown = grown.set(key, value)
    assert content(grown) == content(from_entries(table)) == list(table.items())
    assert grown.count == size
    assert all(grown.get(key, None) == value for key, value in table.items())
    assert grown.get("absent", "default") == "default"


def test_random_steps_leave_older_versions_alone() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    model = {f"k{i}": i for i in range(200)}
    entries = from_entries(model)
    held: list[tuple[Trie, dict[str, int]]] = []
    for step in range(5000):
        key = f"k{chance.randrange(400)}"
        if chance.random() < 0.5:
            entries, model = entries.set(key, step), {**model, key: step}
        elif key in model:
            entries = entries.delete(key)
            model = {name: value for name, value in model.items() if name != key}
        if step % 100 == 0:
            held.append((entries, model))
    for version, expected in [*held, (entries, model)]:
        assert content(version) == list(expected.items())
        assert version.count == len(expected)


def test_key_that_was_deleted_and_set_again_comes_last() -> None:
    entries = from_entries({f"k{i}": i for i in range(100)}).delete("k3").set("k3", "again")
    keys = list(entries)
    assert keys[-1] == "k3"
    assert keys.count("k3") == 1
    assert len(keys) == 100


def test_dead_places_are_swept() -> None:
    entries = from_entries({f"k{i}": i for i in range(1000)})
    for i in range(990):
        entries = entries.delete(f"k{i}")
    assert list(entries) == [f"k{i}" for i in range(990, 1000)]
    assert entries.order.count <= 20
    for i in range(1000):
        entries = entries.delete("k999").set("k999", i)
    assert entries.order.count <= 2 * entries.count


def test_keys_with_equal_hashes() -> None:
    table = {Clashing(f"k{i}"): i for i in range(200)}
    entries = from_entries(dict(table))
    assert content(entries) == list(table.items())
    entries = entries.set(Clashing("k7"), "x").set(Clashing("new"), 1).delete(Clashing("k9"))
    assert entries.get(Clashing("k7"), None) == "x"
    assert entries.count == 200


def test_changed_keys_skips_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    old = from_entries({f"k{i}": i for i in range(20_000)})
    new = old.set("k5", "x").delete("k6").set("new", 1)
    visited = 0
    compare = trie._compare  # pyright: ignore[reportPrivateUsage]

    def counting(a: Any, b: Any, found: set[str]) -> None:
        nonlocal visited
        visited += 1
        compare(a, b, found)

    monkeypatch.setattr(trie, "_compare", counting)
    assert changed_keys(old, new) == {"k5", "k6", "new"}
    assert visited < 20


def test_changed_keys_of_maps_of_different_shape() -> None:
    small = from_entries({f"k{i}": str(i) for i in range(10)})
    large = small
    for i in range(500):
        large = large.set(f"x{i}", i)
    assert changed_keys(small, large) == {f"x{i}" for i in range(500)}
    assert changed_keys(large, small) == {f"x{i}" for i in range(500)}
