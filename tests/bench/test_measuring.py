"""The harness measures what it says: ratios, percentiles, marks in a trace, sizes of messages."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from bench.counts import MARK, parse
from bench.harness import Block, Loop, interleave, percentile, ratio, ratio_of_totals
from bench.messages import messages


def blocks(*seconds: float) -> list[Block]:
    return [Block(one, [one]) for one in seconds]


def test_a_ratio_is_the_median_of_neighbouring_blocks():
    drifting = blocks(*(1.0 * 1.02**n for n in range(80)))
    twice = blocks(*(2.0 * 1.02**n for n in range(80)))
    found = ratio(twice, drifting)
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_one_disturbed_block_does_not_move_a_ratio():
    found = ratio(blocks(*[2.0] * 40, 500.0), blocks(*[1.0] * 41))
    assert found.value == pytest.approx(2.0)


def test_a_ratio_of_totals_weighs_the_slow_blocks():
    found = ratio_of_totals(blocks(1.0, 9.0), blocks(1.0, 1.0))
    assert found.value == pytest.approx(5.0)


def test_contenders_take_turns_in_alternating_order():
    order: list[str] = []
    contenders = [
        Loop(name, lambda name=name: order.append(name), lambda: None) for name in ("a", "b")
    ]
    taken = interleave(contenders, blocks=3, operations=2, warm_up=1)
    assert "".join(order) == "aabb" + "bbaa" + "aabb" + "bbaa"
    assert {name: len(some) for name, some in taken.items()} == {"a": 3, "b": 3}


def test_percentiles():
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100


def test_a_trace_is_divided_by_its_marks():
    operation = [
        '10 pwrite64(5, ""..., 1024, 0) = 1024',
        "10 fdatasync(5 <unfinished ...>",
        '11 write(6, ""..., 8) = 8',
        "10 <... fdatasync resumed>) = 0",
        "11 futex(0x7f, FUTEX_WAIT <unfinished ...>",
        '10 openat(AT_FDCWD, "x", O_RDONLY) = -1 ENOENT (No such file or directory)',
    ]
    mark = f'10 access("{MARK}", F_OK) = -1 ENOENT (No such file or directory)'
    opening = ['10 write(1, ""..., 99) = 99']
    found = parse([*opening, mark, *operation, mark, *operation, mark, *opening])
    assert (found.calls, found.syncs, found.bytes) == (5, 1, 1032)


@pytest.mark.parametrize("size", [100, 900, 1_000, 1_100])
def test_a_message_has_the_size_it_was_asked_for(size: int):
    for message in islice(messages(size), 50):
        assert len(json.dumps(message, separators=(",", ":"))) == size


def test_messages_are_the_same_in_every_process():
    assert next(messages()) == next(messages())
    assert next(messages(seed=1)) != next(messages(seed=2))
