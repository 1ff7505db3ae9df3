"""How many results of a node are kept: numbers, sizes, what is counted, and who is told."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import holdfast
from holdfast import Graph, Store, node
from holdfast.core.commit import Record
from holdfast.core.log import Log
from holdfast.nodes import Node, process_node
from tests.nodes.witness import Calls

SCOPE = "conversation/c"


def padded(calls: Calls, keep: int | str) -> tuple[Graph, Node]:
    @node(version="1", keep=keep)
    def one(ctx, n):
        calls("one")
        return {"n": n, "pad": "x" * 1000}

    return Graph("kept", [one]), one


def go_round(hf: Store, graph: Graph, count: int) -> None:
    for n in range(count):
        found = process_node(hf, graph, "one", SCOPE, inputs={"n": n})
        assert found.value["n"] == n


@pytest.mark.parametrize("keep", [120, "1MB"])
def test_as_many_results_are_kept_as_somebody_wants(tmp_path: Path, calls: Calls, keep: int | str):
    graph, _ = padded(calls, keep)
    url = f"sqlite:{tmp_path / 'store.db'}"
    with holdfast.open(url, durability="process") as hf:
        go_round(hf, graph, 100)
        go_round(hf, graph, 100)
        assert len(calls.take()) == 100
    with holdfast.open(url) as hf:
        go_round(hf, graph, 100)
        assert calls.take() == []


def test_a_size_keeps_the_newest_results_that_have_it(mem: Store, calls: Calls):
    graph, _ = padded(calls, "16kB")
    go_round(mem, graph, 50)
    calls.take()
    for n in reversed(range(50)):
        process_node(mem, graph, "one", SCOPE, inputs={"n": n})
    found = len(calls.take())
    assert 36 <= found <= 41  # each has between 1.2 and 1.6 kB
    small, _ = padded(calls, 1)
    tiny, _ = padded(calls, "1B")  # the newest is kept whatever its size
    for graph in (small, tiny):
        process_node(mem, graph, "one", SCOPE, inputs={"n": 99})
        calls.take()
        process_node(mem, graph, "one", SCOPE, inputs={"n": 99})
        assert calls.take() == []


def test_a_size_does_not_read_the_stored_results_again(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    graph, _ = padded(calls, "200kB")
    read: list[int] = []
    real = Log.record

    def record(log: Log, stream: str, revision: int) -> Record:
        read.append(revision)
        return real(log, stream, revision)

    url = f"sqlite:{tmp_path / 'store.db'}"
    with holdfast.open(url, durability="process") as hf:
        go_round(hf, graph, 180)
        monkeypatch.setattr(Log, "record", record)
        for n in range(180, 185):
            process_node(hf, graph, "one", SCOPE, inputs={"n": n})
            hf.nodes.list("kept")
        assert read == []
    monkeypatch.setattr("holdfast.nodes.results.WHOLE_MAX", 50)
    with holdfast.open(url, durability="process") as hf:
        go_round_again = [process_node(hf, graph, "one", SCOPE, inputs={"n": n}) for n in (184, 90)]
        assert [one.status for one in go_round_again] == ["hit", "hit"]
        assert 120 < len(read) < 175, "no more than the size and one, and each of them once"
    assert len(calls.take()) == 185


def test_a_node_with_a_size_is_cut_off(mem: Store):
    @node(version="1")
    def first(x):
        return x // 10

    @node(version="1", keep="4KB")
    def second(first):
        return first

    graph = Graph("cut", [first, second])
    for x in range(0, 1000, 10):
        mem.nodes.process(graph, SCOPE, x=x)
    walk = mem.nodes.process(graph, SCOPE, x=991)
    assert {name: one.status for name, one in walk.states.items()} == {
        "first": "computed",
        "second": "cut off",
    }


def test_large_values_count_with_their_blobs(mem: Store, calls: Calls):
    @node(version="1", keep="150kB")
    def one(ctx, n):
        calls("one")
        return {"n": n, "pad": f"{n:05}" * 14_000}

    graph = Graph("blobs", [one])
    go_round(mem, graph, 5)
    calls.take()
    for n in (4, 3, 2):
        process_node(mem, graph, "one", SCOPE, inputs={"n": n})
    assert calls.take() == ["one"]


def test_who_keeps_more_than_before_finds_what_is_stored(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    """With a stream that is read as a whole, and with one whose results are looked up by name."""
    url = f"sqlite:{tmp_path / 'store.db'}"
    few, _ = padded(calls, 2)
    with holdfast.open(url, durability="process") as hf:
        go_round(hf, few, 100)
        calls.take()
        many, _ = padded(calls, 100)  # 64 are in memory
        go_round(hf, many, 100)
        assert calls.take() == []
    monkeypatch.setattr("holdfast.nodes.results.WHOLE_MAX", 50)
    with holdfast.open(url, durability="process") as hf:
        go_round(hf, many, 100)
        assert calls.take() == []
        again, _ = padded(calls, 200)
        go_round(hf, again, 100)
        assert calls.take() == []
        process_node(hf, again, "one", SCOPE, inputs={"n": 7}, force=True)
        process_node(hf, again, "one", SCOPE, inputs={"n": 7}, force=True)
        assert len(calls.take()) == 2


def test_a_node_that_keeps_too_few_is_said_once(
    tmp_path: Path, calls: Calls, caplog: pytest.LogCaptureFixture
):
    """30 values go round: with 8 kept, none of them is ever a hit."""
    graph, _ = padded(calls, 8)

    def said() -> list[str]:
        return [one.message for one in caplog.records if one.levelno == logging.WARNING]

    url = str(tmp_path / "store")
    with holdfast.open(url, durability="process") as hf:
        for _ in range(3):
            go_round(hf, graph, 30)
        [found] = hf.nodes.list("kept")
        assert (found.computed, found.hits, found.evicted, found.hit_rate) == (90, 0, 60, 0.0)
        [text] = said()
        assert text.startswith('node "one" of "node/kept/conversation/c" keeps 8 results, which is')
        assert "16 results were computed again that it had let go of, and 0 were hits" in text
    with holdfast.open(url, durability="process") as hf:
        go_round(hf, graph, 30)
        [found] = hf.nodes.list("kept")
        assert (found.computed, found.evicted) == (120, 90)
    assert len(said()) == 1
    assert len(calls.take()) == found.computed


def test_hits_are_counted_and_noted_with_the_next_result(tmp_path: Path, calls: Calls):
    graph, _ = padded(calls, 8)
    url = f"sqlite:{tmp_path / 'store.db'}"
    with holdfast.open(url) as hf:
        for n in (1, 1, 1, 1, 2, 2):
            process_node(hf, graph, "one", SCOPE, inputs={"n": n})
            hf.nodes.process(graph, SCOPE, n=n)
        [found] = hf.nodes.list("kept")
        assert (found.computed, found.hits, found.evicted) == (2, 10, 0)
        assert found.hit_rate == pytest.approx(10 / 12)
    with holdfast.open(url) as hf:
        [found] = hf.nodes.list("kept")
        assert (found.computed, found.hits) == (2, 7)  # those after the last result are not noted
        process_node(hf, graph, "one", SCOPE, inputs={"n": 1}, force=True)
        [found] = hf.nodes.list("kept")
        assert (found.computed, found.hits, found.evicted) == (3, 7, 0)
