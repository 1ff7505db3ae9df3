"""Results are forgotten, alone or with their scope, on every backend (decision 0025)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import Graph, NotFoundError, Store, aio, node
from holdfast.nodes import results
from holdfast.nodes.walk import Nodes
from tests.nodes.witness import Calls


def graph_of(calls: Calls, name: str = "planner") -> Graph:
    @node
    def flags(ctx, text):
        calls("flags")
        return text.upper()

    @node
    def picker(ctx, flags):
        calls("picker")
        return f"{flags}!"

    return Graph(name, [picker, flags])


def test_forgotten_results_are_computed_again(hf: Store, url: str, calls: Calls) -> None:
    graph, chat, other = graph_of(calls), hf.conversation("c"), hf.conversation("d")
    for _ in range(3):
        hf.nodes.process(graph, chat, text="a")
        assert calls.take() == ["flags", "picker"]
        assert hf.nodes.process(graph, chat, text="a").counts["hit"] == 2
        hf.nodes.process(graph, other, text="a")
        calls.take()
        hf.nodes.forget(graph, chat)
        assert hf.nodes.list("planner", chat) == []
        with pytest.raises(NotFoundError, match="has no result"):
            hf.nodes.forget("planner", chat)
    assert len(hf.nodes.list("planner")) == 2
    hf.nodes.process(graph, chat, text="a")
    hf.nodes.invalidate(graph, chat)
    hf.nodes.process(graph, chat, text="a")
    assert calls.take() == ["flags", "picker"] * 2
    if url != "memory:":
        with holdfast.open(url) as later:
            assert later.nodes.process(graph, later.conversation("c"), text="a").counts["hit"] == 2
            assert calls.take() == []
    assert hf.check().ok


def test_a_long_stream_is_not_read_for_what_was_forgotten(
    hf: Store, url: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the results are looked up by name, and those of an earlier life do not count."""
    monkeypatch.setattr(results, "WHOLE_MAX", 1)
    monkeypatch.setattr(results, "EACH", 0)
    graph, chat = graph_of(calls), hf.conversation("c")
    hf.nodes.process(graph, chat, text="a")
    hf.nodes.forget(graph, chat)
    hf._kernel.part(Nodes)._tables.clear()
    assert hf.nodes.list("planner", chat) == []
    calls.take()
    hf.nodes.process(graph, chat, text="a")
    assert calls.take() == ["flags", "picker"]
    hf._kernel.part(Nodes)._tables.clear()
    assert [one.state.node for one in hf.nodes.list("planner", chat)] == ["flags", "picker"]
    assert hf.nodes.process(graph, chat, text="a").counts["hit"] == 2


def test_the_removal_of_a_scope_takes_its_results_along(hf: Store, calls: Calls) -> None:
    one, two = graph_of(calls, "a"), graph_of(calls, "a-b")
    chat, other = hf.conversation("c"), hf.conversation("c/d")
    for scope in (chat, other):
        scope.set("n", 1)
        for graph in (one, two):
            hf.nodes.process(graph, scope, text="x")
    calls.take()
    removed_at = chat.remove()
    assert removed_at == chat.revision
    assert {found.scope for found in hf.nodes.list()} == {other.name}
    assert hf.nodes.process(one, other, text="x").counts["hit"] == 2
    assert calls.take() == []
    hf.nodes.process(one, chat, text="x")
    assert calls.take() == ["flags", "picker"]
    assert hf.check().ok


def test_results_that_another_backend_keeps_stay(tmp_path: Path, calls: Calls) -> None:
    """No commit reaches both; they are forgotten by themselves."""
    apart = {"*": f"file:{tmp_path}/a", "conversation": f"sqlite:{tmp_path}/b.db"}
    with holdfast.open(apart) as hf:
        graph, chat = graph_of(calls), hf.conversation("c")
        chat.set("n", 1)
        hf.nodes.process(graph, chat, text="x")
        chat.remove()
        assert len(hf.nodes.list("planner", chat)) == 2
        hf.nodes.forget(graph, chat)
        assert hf.nodes.list("planner", chat) == []


def test_a_store_of_asyncio_forgets_too(url: str, calls: Calls) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            graph, chat = graph_of(calls), hf.conversation("c")
            await hf.nodes.process(graph, chat, text="x")
            await hf.nodes.forget(graph, chat.name)
            assert await hf.nodes.list("planner") == []

    asyncio.run(main())
