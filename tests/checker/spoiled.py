"""Histories with one anomaly in them, each by a name and with the type that must be found.

Some take a correct history and change what a client saw. Others play an episode behind it, on its
own lists or on new ones: what two or three clients would have seen of a store with that fault.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.checker.histories import Line, correct


class Unfit(Exception):
    """This history has nothing that could be spoiled in this way: take another."""


class Spoil:
    """A correct history, and the means to spoil it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines = correct(random)
        self.finals = {line["stream"]: line for line in self.lines if line["op"] == "final"}
        self.now = max((line.get("start") or 0 for line in self.lines), default=0)
        self.now = max([self.now, *(line.get("end") or 0 for line in self.lines)]) + 100
        self.values = 10_000

    def pick(self, lines: list[Any]) -> Any:
        if not lines:
            raise Unfit
        return self.random.choice(lines)

    def of(self, op: str, *, ok: bool | None = True) -> list[Line]:
        return [line for line in self.lines if line["op"] == op and line["ok"] is ok]

    def visible(self) -> list[Line]:
        """Returns the acknowledged appends that no fork has inherited, so that one list tells."""
        inherited = {
            value
            for line in self.of("fork") + self.of("fork", ok=None)
            for value in self.finals.get(line["stream"], {"values": []})["values"]
        }
        return [line for line in self.of("append") if line["value"] not in inherited]

    # --- episodes --------------------------------------------------------------------------------

    def stream(self, name: str = "x") -> str:
        """Returns a list of the history, or a new one."""
        known = [stream for stream in self.finals if stream.startswith("s")]
        if known and self.random.random() < 0.5 and name == "x":
            return self.random.choice(known)
        self.finals[name] = {"op": "final", "stream": name, "values": []}
        self.lines.append(self.finals[name])
        return name

    def seen(self, stream: str, without: int = 0) -> list[int]:
        """Returns the list as it is now, without its last values."""
        values = self.finals[stream]["values"]
        return values[: len(values) - without]

    def put(self, stream: str, count: int = 1) -> list[int]:
        """Adds new values to a list, whoever is going to say that he did it."""
        self.finals[stream].pop("revision", None)
        new = list(range(self.values, self.values + count))
        self.values += count
        self.finals[stream]["values"] = [*self.finals[stream]["values"], *new]
        return new

    def say(self, client: str, *do: list[Any], at: int = 0, takes: int = 50, **more: Any) -> Line:
        """Adds a line: an operation that begins `at` behind now."""
        start = self.now + at + self.random.randrange(5)
        line: Line = {"client": client, "op": "txn", "start": start, "end": start + takes}
        line |= {"ok": True, "do": list(do), **more}
        self.lines.append(line)
        return line


def read(stream: str, values: list[int]) -> list[Any]:
    return ["r", stream, list(values), None]


def add(stream: str, value: int) -> list[Any]:
    return ["a", stream, value, None]


# --- what is in the lists ------------------------------------------------------------------------


def lost_append(spoil: Spoil) -> None:
    line = spoil.pick(spoil.visible())
    spoil.finals[line["stream"]]["values"].remove(line["value"])


def lost_tail(spoil: Spoil) -> None:
    values = {line["value"] for line in spoil.visible()}
    finals = [final["values"] for final in spoil.finals.values()]
    spoil.pick([list_ for list_ in finals if list_ and list_[-1] in values]).pop()


def half_of_a_commit_lost(spoil: Spoil) -> None:
    one, two = spoil.stream("x"), spoil.stream("y")
    spoil.say("a", add(one, spoil.put(one)[0]), add(two, 9_999))


def half_of_an_unknown_commit(spoil: Spoil) -> None:
    one, two = spoil.stream("x"), spoil.stream("y")
    spoil.say("a", add(one, spoil.put(one)[0]), add(two, 9_999), ok=None, end=None)


def duplicate_append(spoil: Spoil) -> None:
    line = spoil.pick(spoil.visible())
    values = spoil.finals[line["stream"]]["values"]
    values.insert(spoil.random.randint(values.index(line["value"]), len(values)), line["value"])


def duplicate_of_an_unknown_append(spoil: Spoil) -> None:
    stream = spoil.stream()
    [value] = spoil.put(stream)
    spoil.say("a", add(stream, value), ok=None, end=None)
    spoil.put(stream, spoil.random.randint(0, 2))
    spoil.finals[stream]["values"].append(value)


def unknown_value(spoil: Spoil) -> None:
    values = spoil.pick(list(spoil.finals.values()))["values"]
    values.insert(spoil.random.randint(0, len(values)), 77_777)


def unknown_value_read(spoil: Spoil) -> None:
    spoil.pick(spoil.of("read"))["values"].append(77_777)


def wrong_stream(spoil: Spoil) -> None:
    line = spoil.pick(spoil.visible())
    names = [name for name in spoil.finals if name != line["stream"] and name[0] == "s"]
    spoil.finals[line["stream"]]["values"].remove(line["value"])
    spoil.finals[spoil.pick(names)]["values"].append(line["value"])


def read_in_another_order(spoil: Spoil) -> None:
    line = spoil.pick([line for line in spoil.of("read") if len(line["values"]) > 1])
    at = spoil.random.randrange(len(line["values"]) - 1)
    line["values"][at], line["values"][at + 1] = line["values"][at + 1], line["values"][at]


def read_with_a_gap(spoil: Spoil) -> None:
    line = spoil.pick([line for line in spoil.of("read") if len(line["values"]) > 1])
    del line["values"][spoil.random.randrange(len(line["values"]) - 1)]


def two_histories(spoil: Spoil) -> None:
    """Two clients read the same list with other values at the same place: a split brain."""
    stream = spoil.stream()
    before = spoil.seen(stream)
    [mine] = spoil.put(stream)
    [theirs] = spoil.put(stream)
    spoil.say("a", add(stream, mine), read(stream, [*before, mine]))
    spoil.say("b", add(stream, theirs), at=10)
    spoil.say("c", read(stream, [*before, theirs]), at=20)


def refused_value_kept(spoil: Spoil) -> None:
    line = spoil.pick(spoil.visible())
    line["ok"] = False


def refused_value_read(spoil: Spoil) -> None:
    stream = spoil.stream()
    spoil.say("a", add(stream, 9_999), ok=False)
    spoil.say("b", read(stream, [*spoil.seen(stream), 9_999]), at=20)


def intermediate_read(spoil: Spoil) -> None:
    stream = spoil.stream()
    one, two = spoil.put(stream, 2)
    spoil.say("a", add(stream, one), add(stream, two))
    spoil.say("b", read(stream, spoil.seen(stream, 1)), at=20)


def read_before_it_began(spoil: Spoil) -> None:
    stream = spoil.stream()
    [value] = spoil.put(stream)
    spoil.say("a", read(stream, spoil.seen(stream)))
    spoil.say("b", add(stream, value), at=100)


def unknown_append_before_it_began(spoil: Spoil) -> None:
    stream = spoil.stream()
    [value] = spoil.put(stream)
    spoil.say("a", read(stream, spoil.seen(stream)))
    spoil.say("b", add(stream, value), at=100, ok=None, end=None)


# --- circles -------------------------------------------------------------------------------------


def writes_in_two_orders(spoil: Spoil) -> None:
    one, two = spoil.stream("x"), spoil.stream("y")
    (a1,), (b1,) = spoil.put(one), spoil.put(one)
    (b2,), (a2,) = spoil.put(two), spoil.put(two)
    spoil.say("a", add(one, a1), add(two, a2))
    spoil.say("b", add(one, b1), add(two, b2), at=10)


def each_read_the_other(spoil: Spoil) -> None:
    one, two = spoil.stream("x"), spoil.stream("y")
    [a], [b] = spoil.put(one), spoil.put(two)
    spoil.say("a", add(one, a), read(two, spoil.seen(two)))
    spoil.say("b", add(two, b), read(one, spoil.seen(one)), at=10)


def lost_update(spoil: Spoil) -> None:
    stream = spoil.stream()
    before = spoil.seen(stream)
    [a], [b] = spoil.put(stream), spoil.put(stream)
    spoil.say("a", read(stream, before), add(stream, a))
    spoil.say("b", read(stream, before), add(stream, b), at=spoil.random.choice([10, 200]))


def read_skew(spoil: Spoil) -> None:
    one, two = spoil.stream("x"), spoil.stream("y")
    [a], [b] = spoil.put(one), spoil.put(two)
    spoil.say("a", add(one, a), add(two, b))
    spoil.say("b", read(one, spoil.seen(one)), read(two, spoil.seen(two, 1)), at=10)


def write_skew(spoil: Spoil) -> None:
    one, two = spoil.stream("x"), spoil.stream("y")
    [a], [b] = spoil.put(one), spoil.put(two)
    spoil.say("a", read(two, spoil.seen(two, 1)), add(one, a))
    spoil.say("b", read(one, spoil.seen(one, 1)), add(two, b), at=10)


def skew_of_three(spoil: Spoil) -> None:
    names = [spoil.stream("x"), spoil.stream("y"), spoil.stream("z")]
    values = [spoil.put(name)[0] for name in names]
    for n, name in enumerate(names):
        other = names[(n + 1) % 3]
        spoil.say(f"c{n}", read(other, spoil.seen(other, 1)), add(name, values[n]), at=10 * n)


def stale_read(spoil: Spoil) -> None:
    stream = spoil.stream()
    spoil.say("a", add(stream, spoil.put(stream)[0]))
    spoil.say("b", read(stream, spoil.seen(stream, 1)), at=100)


def own_write_not_read(spoil: Spoil) -> None:
    """Times are missing, so that only the client's own order can tell."""
    stream = spoil.stream()
    line = spoil.say("a", add(stream, spoil.put(stream)[0]))
    again = spoil.say("a", read(stream, spoil.seen(stream, 1)), at=100)
    line["end"] = again["end"] = None


def reads_go_backwards(spoil: Spoil) -> None:
    stream = spoil.stream()
    spoil.say("w", add(stream, spoil.put(stream)[0]), takes=1000)
    spoil.say("a", read(stream, spoil.seen(stream)), at=50, takes=10)
    spoil.say("a", read(stream, spoil.seen(stream, 1)), at=100, takes=10)


def written_before_what_had_ended(spoil: Spoil) -> None:
    stream = spoil.stream()
    [late], [early] = spoil.put(stream), spoil.put(stream)
    spoil.say("a", add(stream, early))
    spoil.say("b", add(stream, late), at=100)


def own_writes_in_another_order(spoil: Spoil) -> None:
    stream = spoil.stream()
    [late], [early] = spoil.put(stream), spoil.put(stream)
    line = spoil.say("a", add(stream, early))
    line["end"] = None
    spoil.say("a", add(stream, late), at=100)["end"] = None


# --- forks, revisions ----------------------------------------------------------------------------


def _fork(spoil: Spoil, given: int, made: int) -> None:
    stream = spoil.stream("x")
    for value in spoil.put(stream, 5):
        spoil.say(f"c{value}", add(stream, value), takes=10)
    total = len(spoil.seen(stream))
    line = spoil.say("f", at=50, op="fork", stream="fx", revision=total - given)
    line |= {"from": stream, "length": total - given}
    del line["do"]
    name = spoil.stream("fx")
    spoil.finals[name]["values"] = spoil.seen(stream)[: total - made]
    if spoil.random.random() < 0.7:
        spoil.say("f", add(name, spoil.put(name)[0]), at=200)


def fork_with_one_too_many(spoil: Spoil) -> None:
    _fork(spoil, 2, 1)


def fork_with_one_too_few(spoil: Spoil) -> None:
    _fork(spoil, 2, 3)


def fork_sees_what_came_later(spoil: Spoil) -> None:
    _fork(spoil, 3, 0)


def revision_given_twice(spoil: Spoil) -> None:
    stream = spoil.stream("x")
    for n, value in enumerate(spoil.put(stream, 3)):
        spoil.say(f"c{n}", ["a", stream, value, min(n + 1, 2)], at=100 * n)


def revision_against_the_order(spoil: Spoil) -> None:
    stream = spoil.stream("x")
    for n, value in enumerate(spoil.put(stream, 3)):
        spoil.say(f"c{n}", ["a", stream, value, (1, 3, 2)[n]], at=20 * n)


# --- registers and leases ------------------------------------------------------------------------


def stale_register(spoil: Spoil) -> None:
    for n, (op, value) in enumerate((("put", 1), ("put", 2), ("get", 1))):
        spoil.say(f"c{n}", op=op, register="x", value=value, at=100 * n)


def both_swapped(spoil: Spoil) -> None:
    spoil.say("a", op="put", register="x", value=1)
    for n in range(2):
        spoil.say(f"c{n}", op="cas", register="x", expected=1, value=2 + n, at=100 + 10 * n)


def swap_refused_for_nothing(spoil: Spoil) -> None:
    spoil.say("a", op="put", register="x", value=1)
    spoil.say("b", op="cas", register="x", expected=1, value=2, ok=False, at=100)


def held_by_two(spoil: Spoil) -> None:
    for n in range(2):
        spoil.say(f"c{n}", op="acquire", lease="x", owner=f"w{n}", epoch=n + 1, at=10 * n)


def epoch_given_again(spoil: Spoil) -> None:
    spoil.say("a", op="acquire", lease="x", owner="w1", epoch=7)
    spoil.say("a", op="release", lease="x", owner="w1", epoch=7, at=100)
    spoil.say("b", op="acquire", lease="x", owner="w2", epoch=7, at=200)


def late_writer_let_in(spoil: Spoil) -> None:
    spoil.say("a", op="acquire", lease="x", owner="w1", epoch=7)
    spoil.say("a", op="lapse", lease="x", owner="w1", epoch=7, at=100, ok=None, end=None)
    spoil.say("b", op="acquire", lease="x", owner="w2", epoch=8, at=200)
    spoil.say("a", op="under", lease="x", owner="w1", epoch=7, at=300)


def expired_lease_let_in(spoil: Spoil) -> None:
    spoil.say("a", op="acquire", lease="x", owner="w1", epoch=7)
    spoil.say("a", op="lapse", lease="x", owner="w1", epoch=7, at=100)
    spoil.say("a", op="under", lease="x", owner="w1", epoch=7, at=200)


SPOILS: dict[Callable[[Spoil], None], str] = {
    lost_append: "lost-append",
    lost_tail: "lost-append",
    half_of_a_commit_lost: "half-commit",
    half_of_an_unknown_commit: "half-commit",
    duplicate_append: "duplicate-append",
    duplicate_of_an_unknown_append: "duplicate-append",
    unknown_value: "unknown-value",
    unknown_value_read: "unknown-value",
    wrong_stream: "wrong-stream",
    read_in_another_order: "not-a-prefix",
    read_with_a_gap: "not-a-prefix",
    two_histories: "not-a-prefix",
    refused_value_kept: "G1a",
    refused_value_read: "G1a",
    intermediate_read: "G1b",
    read_before_it_began: "before-begun",
    unknown_append_before_it_began: "before-begun",
    writes_in_two_orders: "G0",
    each_read_the_other: "G1c",
    lost_update: "G-single",
    read_skew: "G-single",
    write_skew: "G2",
    skew_of_three: "G2",
    stale_read: "G-single-realtime",
    own_write_not_read: "G-single-session",
    reads_go_backwards: "G-single-session",
    written_before_what_had_ended: "G0-realtime",
    own_writes_in_another_order: "G0-session",
    fork_with_one_too_many: "fork-base",
    fork_with_one_too_few: "fork-base",
    fork_sees_what_came_later: "fork-base",
    revision_given_twice: "revision-reused",
    revision_against_the_order: "revision-order",
    stale_register: "not-linearisable",
    both_swapped: "not-linearisable",
    swap_refused_for_nothing: "not-linearisable",
    held_by_two: "not-linearisable",
    epoch_given_again: "not-linearisable",
    late_writer_let_in: "not-linearisable",
    expired_lease_let_in: "not-linearisable",
}
"""Every way to spoil a history, and the type of anomaly that must be found then."""


def spoil(random: Random, how: Callable[[Spoil], None]) -> list[Line]:
    """Returns a history that is spoiled in that way, and in no other."""
    while True:
        spoiled = Spoil(random)
        try:
            how(spoiled)
        except Unfit:
            continue
        return spoiled.lines
