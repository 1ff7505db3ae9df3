"""The order in which values came into each list, and what is wrong with lists before any graph.

No search is needed: every value is unique, so the longest list read is the order (as in Elle).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.checker.history import Added, BadHistory, Fork, History, Operation, Read, Value


class Finding(NamedTuple):
    """An anomaly: its type, and in words what was seen."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type}: {self.text}"


@dataclass
class Chain:
    """One list: its values, and for each place the operation that put the value there."""

    stream: str
    values: list[Value]
    fork: Fork | None = None
    maker: int = -1
    """The operation that forked it."""

    def __post_init__(self) -> None:
        self.begin = 0 if self.fork is None else self.fork.length
        self.places = {value: n for n, value in reversed(list(enumerate(self.values, 1)))}
        self.writers: list[int] = []

    def writer(self, length: int) -> int:
        """Returns the operation that made the list so long, -1 if none is known."""
        if length < self.begin or length <= 0 or length > len(self.writers):
            return -1
        return self.maker if length == self.begin else self.writers[length - 1]

    def next_writer(self, length: int) -> int:
        """Returns the operation that ended the list's being so long, -1 if none did."""
        return self.maker if length < self.begin else self.writer(length + 1)


class Order:
    """Every list of a history, who wrote what, and which operations took effect."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.operations = history.operations
        self.owner: dict[Value, tuple[int, str]] = {}
        """The operation and the stream of each value."""
        makers: dict[str, int] = {}
        for index, operation in enumerate(self.operations):
            for added in operation.adds:
                if added.value in self.owner:
                    raise BadHistory(f"value {added.value} is appended by two operations")
                self.owner[added.value] = index, added.stream
            fork = operation.fork
            if fork is not None and operation.ok is not False:
                if fork.stream in makers and operation.ok:
                    raise BadHistory(f"{fork.stream} is forked twice")
                makers.setdefault(fork.stream, index)
        self.chains: dict[str, Chain] = {}
        for stream, values in self._longest().items():
            maker = makers.get(stream, -1)
            fork = self.operations[maker].fork if maker >= 0 else None
            self.chains[stream] = Chain(stream, values, fork, maker)
        for chain in self.chains.values():
            chain.writers = [self.owner.get(value, (-1, ""))[0] for value in chain.values]
        for index, operation in enumerate(self.operations):
            for read in operation.reads:
                read.length = self._length(index, read)

    def _longest(self) -> dict[str, list[Value]]:
        longest = {stream: read.values for stream, read in self.history.finals.items()}
        for operation in self.operations:
            for read in operation.reads:
                if read.stream not in self.history.finals and read.after == 0:
                    known = longest.setdefault(read.stream, [])
                    if len(read.values) > len(known):
                        longest[read.stream] = read.values
        return longest

    def place(self, added: Added) -> int:
        """Returns where a value came to stand, from 1; 0 if nowhere."""
        chain = self.chains.get(added.stream)
        return 0 if chain is None else chain.places.get(added.value, 0)

    def took_effect(self, operation: Operation) -> bool:
        """Says whether it is known to have happened."""
        if operation.ok is None:
            fork = operation.fork
            made = fork is not None and bool(self.chains.get(fork.stream, _NONE).values)
            return made or any(self.place(added) for added in operation.adds)
        return operation.ok

    def _length(self, index: int, read: Read) -> int:
        """Returns how long the list was that a read saw, without what the reader itself added."""
        values, chain = read.values, self.chains.get(read.stream, _NONE)
        if chain.values[read.after : read.after + len(values)] != values:
            return -1
        own = 0
        while own < len(values) and self.owner.get(values[-1 - own], (-1, ""))[0] == index:
            own += 1
        return read.after + len(values) - own

    # --- what is wrong ---------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        for chain in self.chains.values():
            yield from self._chain(chain)
        for operation in self.operations:
            yield from self._appends(operation)
        for index, operation in enumerate(self.operations):
            for read in operation.reads:
                yield from self._read(index, operation, read)
        yield from self._too_early()
        yield from self._revisions()

    def _chain(self, chain: Chain) -> Iterator[Finding]:
        if chain.fork is not None:
            parent = self.chains.get(chain.fork.parent, _NONE).values
            if chain.values[: chain.begin] != parent[: chain.begin]:
                yield self._wrong_base(chain, "does not begin with them")
        seen: set[Value] = set()
        for value in chain.values:
            if value in seen:
                yield Finding("duplicate-append", f"{value} is in {chain.stream} more than once")
            seen.add(value)
        for place, value in enumerate(chain.values, 1):
            if place > chain.begin or value not in self.owner:
                yield from self._value(chain, value, "its final list")

    def _wrong_base(self, chain: Chain, how: str) -> Finding:
        fork = chain.fork
        assert fork is not None
        text = f"{fork.stream} was forked from the first {fork.length} values of {fork.parent}, "
        return Finding("fork-base", f"{text}and {how}: {chain.values[: chain.begin + 2]}")

    def _value(self, chain: Chain, value: Value, where: str) -> Iterator[Finding]:
        index, stream = self.owner.get(value, (-1, ""))
        if index < 0:
            yield Finding("unknown-value", f"{value} in {chain.stream} ({where}) was never written")
        elif stream != chain.stream:
            if chain.fork is not None and value in self.chains.get(chain.fork.parent, _NONE).places:
                yield self._wrong_base(chain, f"has {value} of {stream} too")
            else:
                yield Finding("wrong-stream", f"{value} is in {chain.stream}, not in {stream}")
        elif self.operations[index].ok is False:
            yield Finding("G1a", f"{self.operations[index]}, yet {value} was seen in {where}")

    def _appends(self, operation: Operation) -> Iterator[Finding]:
        missing = [added for added in operation.adds if not self.place(added)]
        if operation.ok:
            for added in missing:
                text = f"{operation} was acknowledged, but {added.value} is not in {added.stream}"
                yield Finding("lost-append", text)
        if operation.ok is not False and 0 < len(missing) < len(operation.adds):
            values = [added.value for added in missing]
            yield Finding("half-commit", f"{operation} was kept without its {values}")

    def _read(self, index: int, operation: Operation, read: Read) -> Iterator[Finding]:
        chain = self.chains.get(read.stream) or Chain(read.stream, [])
        if read.length < 0:
            bad = [
                finding
                for value in set(read.values) - chain.places.keys()
                for finding in self._value(chain, value, str(operation))
            ]
            if len(set(read.values)) < len(read.values):
                bad.append(Finding("duplicate-append", f"{operation} saw a value twice"))
            yield from bad
            if not bad:
                seen = f"{operation} saw {read.values[-5:]} at its end behind {read.after}"
                there = chain.values[read.after : read.after + len(read.values)][-5:]
                yield Finding("not-a-prefix", f"{seen}, where the list has {there}")
            return
        writer = chain.writer(read.length)
        if writer not in (-1, index) and chain.next_writer(read.length) == writer:
            text = f"{operation} saw half of what {self.operations[writer]} added to {read.stream}"
            yield Finding("G1b", text)

    def _too_early(self) -> Iterator[Finding]:
        """Yields what was seen before the operation that wrote it had begun."""
        seen: dict[str, dict[int, Operation]] = {}
        for operation in self.operations:
            for read in operation.reads if operation.end is not None else ():
                firsts = seen.setdefault(read.stream, {})
                known = firsts.get(read.length)
                if known is None or operation.end < (known.end or 0):
                    firsts[read.length] = operation
        for stream, firsts in seen.items():
            chain = self.chains.get(stream, _NONE)
            first: Operation | None = None
            for length in range(len(chain.values), chain.begin, -1):
                candidate = firsts.get(length)
                if candidate and (first is None or (candidate.end or 0) < (first.end or 0)):
                    first = candidate
                writer = chain.writers[length - 1]
                if first is None or first.end is None or writer < 0:
                    continue
                start = self.operations[writer].start
                if start is not None and first.end < start:
                    text = f"{first} saw what {self.operations[writer]} had not begun to write"
                    yield Finding("before-begun", text)

    def _revisions(self) -> Iterator[Finding]:
        """Yields where revisions and lists disagree: both only grow, an append's by itself."""
        known: dict[str, list[tuple[int, int, int, bool]]] = {}

        def note(stream: str, revision: int | None, length: int, index: int, adds: bool) -> None:
            if revision is not None and length:
                known.setdefault(stream, []).append((revision, length, index, adds))

        for stream, final in self.history.finals.items():
            note(stream, final.revision, len(final.values), -1, False)
        for index, operation in enumerate(self.operations):
            ends: dict[str, tuple[int | None, int]] = {}
            for added in operation.adds if operation.ok else ():
                ends[added.stream] = added.revision, self.place(added)
            for stream, (revision, place) in ends.items():
                note(stream, revision, place, index, True)
            for read in operation.reads:
                note(read.stream, read.revision, max(read.length, 0), index, False)
        for stream, notes in known.items():
            for one, two in pairwise(sorted(notes)):
                yield from self._disagreement(stream, one, two)

    def _disagreement(
        self, stream: str, one: tuple[int, int, int, bool], two: tuple[int, int, int, bool]
    ) -> Iterator[Finding]:
        first, second = (
            str(self.operations[note[2]]) if note[2] >= 0 else "the final read"
            for note in (one, two)
        )
        if one[0] == two[0] and one[3] and two[3]:
            yield Finding("revision-reused", f"{first} and {second} both got {one[0]} of {stream}")
        elif one[0] == two[0] and one[1] != two[1]:
            text = f"{stream}@{one[0]} has {one[1]} values for {first}, {two[1]} for {second}"
            yield Finding("revision-order", text)
        elif one[0] < two[0] and (one[1] > two[1] or (two[3] and one[1] == two[1])):
            text = (
                f"{first} has {one[1]} values at {stream}@{one[0]}, {second} {two[1]} at {two[0]}"
            )
            yield Finding("revision-order", text)


_NONE = Chain("", [])
