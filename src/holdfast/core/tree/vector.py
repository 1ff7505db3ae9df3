"""A persistent vector: 32-way nodes and a tail. A change copies one path and shares the rest.

Items are in leaves of exactly 32, below branches of at most 32. The last 1 to 32 items are the
tail, which is empty only in the empty vector. An append copies the tail; one append in 32 moves it
into the tree.

A node may be made without its content, and gets it from a Source on first access. So a list of
100,000 references that came from a snapshot costs nothing until it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

WIDTH = 32
BITS = 5
_MASK = WIDTH - 1


class Source(Protocol):
    """Where unread nodes get their items."""

    def items(self, start: int, stop: int) -> tuple[Any, ...]:
        """Returns items[start:stop]; each call returns equal ones."""
        ...

    def plain(self, start: int, stop: int) -> list[Any]:
        """Returns plain copies of items[start:stop], without making the items themselves."""
        ...

    def spans(self, start: int, stop: int) -> Iterable[Any]:
        """Returns the spans of items[start:stop] that are in blocks (`item_copies.py`)."""
        ...

    def is_same(self, other: Source, start: int, stop: int) -> bool:
        """Whether items[start:stop] are known to be equal, if both are of the same stream."""
        ...


class Node(Struct, eq=False):
    """A leaf of items (shift 0) or a branch of nodes.

    The `content` of an unread node is filled in on first access. `memo` and `block` belong to the
    code that walks the tree. Every thread would fill in the same, so readers need no lock.
    """

    content: tuple[Any, ...] | None
    source: Source | None = None
    start: int = 0
    stop: int = 0
    memo: Any = None
    block: Any = None

    def load(self, shift: int) -> tuple[Any, ...]:
        """Returns the content, which is made from the source if it is not there yet."""
        content = self.content
        if content is None:
            source, start, stop = self.source, self.start, self.stop
            assert source is not None, "BUG: a vector node has neither content nor source"
            if shift:
                step = 1 << shift
                content = tuple(
                    Node(None, source, first, min(first + step, stop))
                    for first in range(start, stop, step)
                )
            else:
                content = source.items(start, stop)
            self.content = content
        return content


class Vector(Struct, eq=False):
    """An immutable sequence; methods that change something return another one."""

    count: int
    shift: int
    root: Node
    tail: tuple[Any, ...]

    def get(self, index: int) -> Any:
        """Returns an item; the index must be in range."""
        first = self.count - len(self.tail)
        if index >= first:
            return self.tail[index - first]
        shift, node = self.shift, self.root
        while shift:
            node = (node.content or node.load(shift))[index >> shift & _MASK]
            shift -= BITS
        return (node.content or node.load(0))[index & _MASK]

    def append(self, item: Any) -> Vector:
        tail = self.tail
        count = self.count
        if len(tail) < WIDTH:
            # Unpacking would build a list first and take twice as long.
            return Vector(count + 1, self.shift, self.root, tail + (item,))  # noqa: RUF005
        shift, root = _grow(self.shift, self.root, count - WIDTH, Node(tail))
        return Vector(count + 1, shift, root, (item,))

    def extend(self, items: Sequence[Any]) -> Vector:
        """Returns the vector with the items appended."""
        loose = (*self.tail, *items)
        kept = (len(loose) - 1) & ~_MASK if loose else 0
        shift, root, filled = self.shift, self.root, self.count - len(self.tail)
        for first in range(0, kept, WIDTH):
            leaf = Node(loose[first : first + WIDTH])
            shift, root = _grow(shift, root, filled + first, leaf)
        return Vector(self.count + len(items), shift, root, loose[kept:])

    def set(self, index: int, item: Any) -> Vector:
        """Returns the vector with one item replaced; the index must be in range."""
        first = self.count - len(self.tail)
        if index >= first:
            tail = list(self.tail)
            tail[index - first] = item
            return Vector(self.count, self.shift, self.root, tuple(tail))
        return Vector(self.count, self.shift, _set(self.root, self.shift, index, item), self.tail)

    def truncate(self, count: int) -> Vector:
        """Returns the first `count` items, which must not be more than there are."""
        if count == self.count:
            return self
        if not count:
            return EMPTY
        first = self.count - len(self.tail)
        if count > first:
            return Vector(count, self.shift, self.root, self.tail[: count - first])
        filled = (count - 1) & ~_MASK
        shift, root = self.shift, self.root
        tail = self._leaf(filled).load(0)[: count - filled]
        if not filled:
            return Vector(count, BITS, EMPTY.root, tail)
        root = _prune(root, shift, filled)
        while shift > BITS and len(root.load(shift)) == 1:
            root = root.load(shift)[0]
            shift -= BITS
        return Vector(count, shift, root, tail)

    def slice(self, start: int, stop: int) -> list[Any]:
        """Returns the items from start to stop, which must be in range, as a list."""
        items: list[Any] = []
        first = self.count - len(self.tail)
        for base in range(start & ~_MASK, min(stop, first), WIDTH):
            leaf = self._leaf(base).load(0)
            items.extend(leaf[max(start - base, 0) : stop - base])
        if stop > first:
            items.extend(self.tail[max(start - first, 0) : stop - first])
        return items

    def chunks(self) -> Iterator[tuple[Any, ...]]:
        """Yields the items in order, 32 or fewer at a time."""
        for base in range(0, self.count - len(self.tail), WIDTH):
            yield self._leaf(base).load(0)
        if self.tail:
            yield self.tail

    def plain(self, copy: Callable[[Any], Any]) -> list[Any]:
        """Returns plain copies of all items: `copy` makes those of items that were read.

        Unread items are copied by their source; neighbouring unread nodes take one call together.
        """
        found: list[Any] = []
        unread: Source | None = None
        start = stop = 0
        for node in _whole_nodes(self.root, self.shift) if self.count > len(self.tail) else ():
            if unread is not None and (node.content is not None or node.source is not unread):
                found += unread.plain(start, stop)
                unread = None
            if node.content is not None:
                found += map(copy, node.content)
                continue
            if unread is None:
                unread, start = node.source, node.start
            stop = node.stop
        if unread is not None:
            found += unread.plain(start, stop)
        found += map(copy, self.tail)
        return found

    def _leaf(self, index: int) -> Node:
        shift, node = self.shift, self.root
        while shift:
            node = node.load(shift)[index >> shift & _MASK]
            shift -= BITS
        return node


EMPTY = Vector(0, BITS, Node(()), ())


def from_items(items: Sequence[Any]) -> Vector:
    """Returns a vector of the items."""
    count = len(items)
    if count <= WIDTH:
        return Vector(count, BITS, EMPTY.root, tuple(items)) if count else EMPTY
    filled = (count - 1) & ~_MASK
    nodes = [Node(tuple(items[i : i + WIDTH])) for i in range(0, filled, WIDTH)]
    shift = BITS
    while len(nodes) > WIDTH:
        nodes = [Node(tuple(nodes[i : i + WIDTH])) for i in range(0, len(nodes), WIDTH)]
        shift += BITS
    return Vector(count, shift, Node(tuple(nodes)), tuple(items[filled:]))


def from_source(source: Source, count: int) -> Vector:
    """Returns a vector that gets its items from a source on access; only the tail is made now."""
    if not count:
        return EMPTY
    filled = (count - 1) & ~_MASK
    shift = BITS
    while filled > WIDTH << shift:
        shift += BITS
    root = Node(None, source, 0, filled) if filled else EMPTY.root
    return Vector(count, shift, root, source.items(filled, count))


def changed_indexes(old: Vector, new: Vector, *, is_same_stream: bool = False) -> Iterator[int]:
    """Yields the indexes that both have and whose items are not the same object.

    Nodes that both share are skipped. With `is_same_stream`, so are unread nodes that refer to the
    same events.
    """
    filled = min(old.count - len(old.tail), new.count - len(new.tail))
    a, b = _descend(old, new.shift), _descend(new, old.shift)
    yield from _changed_nodes(a, b, min(old.shift, new.shift), 0, filled, is_same_stream)
    for index in range(filled, min(old.count, new.count)):
        if old.get(index) is not new.get(index):
            yield index


def _whole_nodes(node: Node, shift: int) -> Iterator[Node]:
    """Yields, in order, the leaves below a node; an unread branch is yielded itself."""
    if node.content is None or not shift:
        yield node
    else:
        for child in node.content:
            yield from _whole_nodes(child, shift - BITS)


def _descend(vector: Vector, shift: int) -> Node:
    # All indexes that a lower tree can have are in the first child of a taller one.
    node = vector.root
    for level in range(vector.shift, shift, -BITS):
        node = node.load(level)[0]
    return node


def _changed_nodes(
    a: Node, b: Node, shift: int, base: int, stop: int, is_same_stream: bool
) -> Iterator[int]:
    if a is b or base >= stop or _is_same_unread(a, b, is_same_stream):
        return
    pairs = zip(a.load(shift), b.load(shift), strict=False)
    if shift:
        for child, (x, y) in enumerate(pairs):
            first = base + (child << shift)
            yield from _changed_nodes(x, y, shift - BITS, first, stop, is_same_stream)
    else:
        for index, (x, y) in enumerate(pairs, base):
            if x is not y:
                yield index


def _is_same_unread(a: Node, b: Node, is_same_stream: bool) -> bool:
    if a.content is not None or b.content is not None or a.start != b.start or a.stop != b.stop:
        return False
    x, y = a.source, b.source
    assert x is not None, "BUG: a vector node has neither content nor source"
    assert y is not None, "BUG: a vector node has neither content nor source"
    return x is y or (is_same_stream and x.is_same(y, a.start, a.stop))


def _grow(shift: int, root: Node, filled: int, leaf: Node) -> tuple[int, Node]:
    """Returns shift and root of the tree with one more leaf after its `filled` items."""
    if filled == WIDTH << shift:
        return shift + BITS, Node((root, _spine(shift, leaf)))
    return shift, _push(root, shift, filled, leaf)


def _spine(shift: int, node: Node) -> Node:
    for _ in range(0, shift, BITS):
        node = Node((node,))
    return node


def _push(node: Node, shift: int, filled: int, leaf: Node) -> Node:
    content = node.load(shift)
    if shift == BITS:
        return Node((*content, leaf))
    place = filled >> shift & _MASK
    if place == len(content):
        return Node((*content, _spine(shift - BITS, leaf)))
    return Node((*content[:place], _push(content[place], shift - BITS, filled, leaf)))


def _set(node: Node, shift: int, index: int, item: Any) -> Node:
    content = list(node.load(shift))
    place = index >> shift & _MASK
    content[place] = _set(content[place], shift - BITS, index, item) if shift else item
    return Node(tuple(content))


def _prune(node: Node, shift: int, filled: int) -> Node:
    """Returns the node with its first `filled` items, a multiple of 32 and not 0."""
    content = node.load(shift)
    whole, rest = divmod(filled, 1 << shift)
    if not rest:
        return Node(content[:whole])
    return Node((*content[:whole], _prune(content[whole], shift - BITS, rest)))
