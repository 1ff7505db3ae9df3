"""A persistent map for wide levels: a hash trie for the values, a vector of keys for their order.

A node is a dict of at most 64 entries, or a list of 64 nodes chosen by six bits of the key's hash.
Nodes are shared between versions and never changed, except that an entry's value may be replaced by
an equal one (a decoded one).

A replaced value keeps its place in the order. A new key is appended to the order. A deleted key
stays there as a dead place until more than half of the places are dead; then the trie is built
anew. If a key was deleted and set again, the last of its places counts. Hashes differ between
processes, so nothing that leaves this module may depend on the order of nodes.
"""

# Nodes are told apart by type(), which narrows to list[Unknown]; a cast would cost a call each.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from msgspec import Struct

from holdfast.core.tree import vector
from holdfast.core.tree.vector import Vector

_LEAF_MAX = 64
_BITS = 6
_FANOUT = 1 << _BITS
_MASK = _FANOUT - 1
# Hashes have 64 bits; keys that agree in all of them share one leaf, however large.
_SHIFT_MAX = 60

Leaf = dict[str, Any]
TrieNode = Any  # Leaf | list[TrieNode]

_NO_ENTRIES: Leaf = {}


class Trie(Struct, eq=False):
    """An immutable map in insertion order; `set` and `delete` return another one."""

    root: TrieNode
    order: Vector
    count: int

    def get(self, key: str, default: Any) -> Any:
        node = self.root
        bits = hash(key)
        while type(node) is list:
            node = node[bits & _MASK]
            bits >>= _BITS
        return node.get(key, default)

    def leaf(self, key: str) -> Leaf:
        """Returns the leaf that a key belongs to, whether or not the key is there."""
        node = self.root
        bits = hash(key)
        while type(node) is list:
            node = node[bits & _MASK]
            bits >>= _BITS
        return node

    def set(self, key: str, value: Any) -> Trie:
        node = self.root
        bits = hash(key)
        way: list[Any] = []
        while type(node) is list:
            place = bits & _MASK
            way += (place, node)
            node = node[place]
            bits >>= _BITS
        changed: TrieNode = node.copy()
        changed[key] = value
        is_new = len(changed) > len(node)
        if is_new and len(changed) > _LEAF_MAX and _BITS * len(way) // 2 <= _SHIFT_MAX:
            changed = _build(changed.items(), _BITS * len(way) // 2)
        while way:
            nodes = way.pop().copy()
            nodes[way.pop()] = changed
            changed = nodes
        if is_new:
            return Trie(changed, self.order.append(key), self.count + 1)
        return Trie(changed, self.order, self.count)

    def delete(self, key: str) -> Trie:
        """Returns the map without a key, which must be in it."""
        root = _remove(self.root, hash(key), key)
        count = self.count - 1
        if self.order.count > 2 * count:
            return from_entries({name: value for name, value in self.items() if name != key})
        return Trie(root, self.order, count)

    def __iter__(self) -> Iterator[str]:
        keys = chain.from_iterable(self.order.chunks())
        if self.order.count == self.count:
            return keys
        return iter(self._live(list(keys)))

    def _live(self, places: list[str]) -> list[str]:
        # A dict keeps the first place of each key. The places are reversed, so it keeps the last.
        last = list(dict.fromkeys(reversed(places)))
        last.reverse()
        return [key for key in last if key in self.leaf(key)]

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields keys and values in order."""
        for key in self:
            yield key, self.leaf(key)[key]


def from_entries(entries: Leaf) -> Trie:
    """Returns a trie with the entries of a dict."""
    root = _build(list(entries.items()), 0)
    return Trie(root, vector.from_items(list(entries)), len(entries))


def changed_keys(old: Trie, new: Trie) -> set[str]:
    """Returns the keys whose values are not the same object, or that only one of the two has.

    Nodes that both share are skipped.
    """
    found: set[str] = set()
    _compare(old.root, new.root, found)
    return found


def _compare(a: TrieNode, b: TrieNode, found: set[str]) -> None:
    if a is b:
        return
    if type(a) is list and type(b) is list:
        for x, y in zip(a, b, strict=True):
            if x is not y:
                _compare(x, y, found)
        return
    left, right = _flatten(a), _flatten(b)
    for key, value in left.items():
        if key not in right or right[key] is not value:
            found.add(key)
    found.update(right.keys() - left.keys())


def _flatten(node: TrieNode) -> Leaf:
    if type(node) is not list:
        return node
    entries: Leaf = {}
    for child in node:
        entries.update(_flatten(child))
    return entries


def _build(items: Iterable[tuple[str, Any]], shift: int) -> TrieNode:
    entries = list(items)
    if len(entries) <= _LEAF_MAX or shift > _SHIFT_MAX:
        return dict(entries)
    parts: list[list[tuple[str, Any]]] = [[] for _ in range(_FANOUT)]
    for entry in entries:
        parts[hash(entry[0]) >> shift & _MASK].append(entry)
    return [_build(part, shift + _BITS) if part else _NO_ENTRIES for part in parts]


def _remove(node: TrieNode, bits: int, key: str) -> TrieNode:
    if type(node) is list:
        nodes = node.copy()
        place = bits & _MASK
        nodes[place] = _remove(nodes[place], bits >> _BITS, key)
        return nodes
    entries = node.copy()
    del entries[key]
    return entries
