"""A result is computed once: by one thread, one process, one walk of a run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import Graph, Store, UsageError, aio, node
from holdfast.backends.protocol import START
from holdfast.testing import FakeClock
from holdfast.workers import Lease
from tests.nodes import cold
from tests.nodes.witness import Calls

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cold.Ledger:
    monkeypatch.setenv("HF_WITNESS", str(tmp_path / "witness"))
    monkeypatch.setattr(cold.ledger, "path", tmp_path / "witness")
    return cold.ledger


def start(url: str, what: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nodes.cold", url, what],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_compute_each_node_of_a_cold_graph_once(
    durable_url: str, ledger: cold.Ledger
):
    count = 200
    others = [start(durable_url, str(count)) for _ in range(8)]
    answers = {other.communicate()[0] for other in others}
    assert [other.returncode for other in others] == [0] * 8
    assert len(answers) == 1
    assert sorted(ledger.lines()) == sorted(f"n{number}" for number in range(count))


def test_threads_of_one_process_compute_once(hf: Store, calls: Calls):
    @node
    def slow(ctx, x):
        calls(f"slow {x}")
        time.sleep(0.05)
        return x

    graph, answers = Graph("threads", [slow]), []

    def walk(x: int) -> None:
        answers.append(hf.nodes.process(graph, "conversation/c", x=x).value("slow"))

    threads = [threading.Thread(target=walk, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0] * 4 + [1] * 4
    assert sorted(calls.take()) == ["slow 0", "slow 1"]


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_the_lease_of_a_dead_worker_passes_on(kind: str, tmp_path: Path, ledger: cold.Ledger):
    url = str(tmp_path / "store") if kind == "files" else f"sqlite:{tmp_path / 'store.db'}"
    holdfast.open(url).close()
    other = start(url, "hang", HF_HANG="1")
    while not ledger.lines():
        assert other.poll() is None
        time.sleep(0.01)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with holdfast.open(url) as hf:
        walk = hf.nodes.process(Graph("hang", [cold.hanging, cold.paid]), "conversation/c")
        assert walk.counts["computed"] == 2
        assert hf.check().ok
    assert ledger.lines() == ["begun", "begun", "paid"]


def test_an_old_result_is_served_while_another_computes(mem: Store, clock: FakeClock, calls: Calls):
    begun, go_on = threading.Event(), threading.Event()

    @node(ttl="1m", stale="serve")
    def slow(ctx):
        calls("slow")
        if begun.is_set():
            go_on.wait(60)
        begun.set()
        return len(calls.names)

    graph = Graph("serve", [slow])
    assert mem.nodes.process(graph, "conversation/c").value("slow") == 1
    clock.advance(60)
    other = threading.Thread(target=mem.nodes.process, args=(graph, "conversation/c"))
    other.start()
    while len(calls.names) < 2:
        time.sleep(0.001)
    walk = mem.nodes.process(graph, "conversation/c")
    assert (walk.value("slow"), walk.states["slow"].status) == (1, "stale")
    go_on.set()
    other.join()
    assert mem.nodes.process(graph, "conversation/c").value("slow") == 2


def test_a_result_is_not_stored_by_a_worker_that_lost_its_lease(mem: Store, calls: Calls):
    """What the worker that took over stores counts; the late one finds it."""

    @node
    def slow(ctx, x):
        calls("slow")
        if len(calls.names) == 1:
            [held] = [one for one in mem._log.leases.list(prefix="node/") if one.is_held]
            lease = Lease(held.name, held.owner, held.epoch, 0)
            mem._log.leases.release(lease)
            taken = mem._log.leases.acquire(held.name, "another", ttl_s=30)
            assert taken is not None
            mem._log.leases.release(taken)
        return len(calls.names)

    assert mem.nodes.process(Graph("lost", [slow]), "conversation/c", x=1).value("slow") == 2
    kept = [
        event.data["value"]
        for event in mem.follow(as_events=True, after=START, timeout_s=0)
        if event.type == "node.computed"
    ]
    assert kept == [2]


# --- runs -----------------------------------------------------------------------------------------


def flow(calls: Calls, *, scale: int = 1):
    @node
    def first(ctx, x):
        calls("first")
        ctx.message("system", f"x is {x}")
        return x * scale

    @node(effect="effect")
    def pay(ctx, first):
        calls("pay")
        return ctx.read(other) + first

    @node
    def other(ctx):
        calls("other")
        return 100

    return Graph("flow", [first, pay, other])


def test_a_walk_can_be_a_run(hf: Store, calls: Calls):
    graph, chat = flow(calls), hf.conversation("c")
    walk = hf.nodes.process(graph, chat, run="r1", x=1)
    assert calls.take() == ["first", "pay", "other"]
    assert walk.value("pay") == 101
    assert [one.value["content"] for one in walk.sequence] == ["x is 1"]
    entries = hf.runs.get("r1").journal.entries
    assert [(e.name, e.effect) for e in entries.values()] == [
        ("first", "pure"),
        ("pay", "effect"),
        ("other", "pure"),
    ]
    again = hf.nodes.process(graph, chat, run="r1", x=1)
    assert (again.value("pay"), calls.take()) == (101, [])
    before = len(
        [
            e
            for e in hf.follow(as_events=True, after=START, timeout_s=0)
            if e.stream.startswith("node/")
        ]
    )
    hit = hf.nodes.process(
        graph, chat, run="r2", x=1
    )  # hits are steps, and nothing is stored twice
    assert (hit.counts["hit"], calls.take()) == (3, [])
    assert len(hf.runs.get("r2").journal.entries) == 3
    assert (
        len(
            [
                e
                for e in hf.follow(as_events=True, after=START, timeout_s=0)
                if e.stream.startswith("node/")
            ]
        )
        == before
    )


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_walk_that_is_a_run_goes_on_after_a_kill(kind: str, tmp_path: Path, ledger: cold.Ledger):
    url = str(tmp_path / "store") if kind == "files" else f"sqlite:{tmp_path / 'store.db'}"
    holdfast.open(url).close()
    other = start(url, "run", HF_HANG="1")
    while "begun" not in ledger.lines():
        assert other.poll() is None
        time.sleep(0.01)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with holdfast.open(url) as hf:
        walk = hf.nodes.process(cold.RUN_GRAPH, "conversation/c", run="r")
        assert walk.value("paid") == "done"
        assert len(hf.runs.get("r").journal.claims) == 2
        assert hf.check().ok
    assert ledger.lines() == ["fast", "begun", "begun", "paid"]


def test_what_a_run_recorded_counts_more_than_changed_code(mem: Store, calls: Calls):
    chat = mem.conversation("c")
    assert mem.nodes.process(flow(calls), chat, run="r", x=1).value("first") == 1
    calls.take()
    changed = flow(calls, scale=5)
    assert mem.nodes.process(changed, chat, run="r", x=1).value("first") == 1
    assert mem.nodes.process(changed, chat, x=1).value("first") == 5
    with pytest.raises(UsageError, match="cache stays True"):
        mem.nodes.process(changed, chat, run="r3", cache=False, x=1)
    with pytest.raises(holdfast.ExistsError):
        mem.nodes.process(changed, "conversation/d", run="r", x=1)
    with pytest.raises(UsageError, match="another graph"):
        graph = flow(calls)
        flow(calls)
        mem.nodes.process(graph, chat, run="r4", x=1)


def test_a_graph_is_not_processed_in_the_body_of_a_run(mem: Store, calls: Calls):
    graph = flow(calls)

    @holdfast.run(name="tests:nodes body")
    def body(ctx):
        return mem.nodes.process(graph, "conversation/c", x=1).value("first")

    @holdfast.step(effect="pure")
    def one():
        return mem.nodes.process(graph, "conversation/c", x=1).value("first")

    @holdfast.run(name="tests:nodes step")
    def steps(ctx):
        return ctx.step(one)

    with pytest.raises(holdfast.RunFailedError, match="in the body of a run"):
        mem.runs.start(body).result()
    assert mem.runs.start(steps).result() == 1


# --- asyncio --------------------------------------------------------------------------------------


def test_nodes_for_asyncio(url: str, calls: Calls):
    @node
    async def fetch(ctx, x):
        calls("fetch")
        await asyncio.sleep(0)
        return ctx.read("conversation/c", "n", 0) + x

    @node
    def plain(ctx, fetch):
        ctx.setting("n", fetch)
        return fetch + 1

    graph = Graph("async", [fetch, plain])

    async def main() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            await chat.set("n", 10)
            walks = await asyncio.gather(*(hf.nodes.process(graph, chat, x=1) for _ in range(20)))
            assert {walk.value("plain") for walk in walks} == {12}
            assert calls.take() == ["fetch"]
            assert (await walks[0].resolve()).settings == {"n": 11}
            state = await aio.process_node(hf, graph, "plain", chat, inputs={"x": 1})
            assert state.value == 12
            assert (await hf.nodes.plan(graph, None, chat, x=2)).computes == ("fetch",)
            assert (await hf.nodes.why(graph, "fetch", chat)).cause.kind == "missing"
            await hf.nodes.invalidate(graph, chat, "fetch")
            walk = await hf.nodes.process(graph, chat, run="r", x=1)
            assert (walk["fetch"].status, calls.take()) == ("computed", ["fetch"])

    asyncio.run(main())


def test_an_async_node_needs_a_loop(mem: Store):
    @node
    async def fetch(ctx):
        return 1

    with pytest.raises(UsageError, match="is async"):
        mem.nodes.process(Graph("async", [fetch]), "conversation/c")
