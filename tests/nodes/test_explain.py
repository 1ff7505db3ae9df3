"""why, plan, accept, invalidate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Graph, NotFoundError, Store, UsageError, node
from holdfast.backends.protocol import START
from holdfast.nodes import Plan
from holdfast.testing import FakeClock
from tests.nodes.witness import Calls


def chain(calls: Calls, *, scale: int = 2):
    @node
    def base(ctx, x):
        calls("base")
        ctx.cost(tokens=100)
        return [x // 10, ctx.read("conversation/c", "noise", 0)]

    @node
    def middle(ctx, base):
        calls("middle")
        return base[0] * scale

    @node
    def top(ctx, middle):
        calls("top")
        return middle

    return Graph("chain", [base, middle, top])


def kinds(cause):
    return [(one.kind, one.name) for one in cause.causes]


def test_every_result_says_why_it_was_computed(hf: Store, calls: Calls):
    chat = hf.conversation("c")
    hf.nodes.process(chain(calls), chat, x=10)
    assert kinds(hf.nodes.why("chain", "top", chat).cause) == [("missing", "top")]
    hf.nodes.process(chain(calls), chat, x=20)
    why = hf.nodes.why("chain", "top", "conversation/c")
    [dependency] = why.cause.causes
    assert (dependency.kind, dependency.name) == ("dependency", "middle")
    [base] = dependency.causes[0].causes
    assert (base.kind, base.name) == ("dependency", "base")
    [input_] = base.causes[0].causes
    assert (input_.kind, input_.name, input_.old, input_.new) == ("input", "x", "10", "20")
    chat["noise"] = 1
    hf.nodes.process(chain(calls), chat, x=20)
    assert kinds(hf.nodes.why("chain", "base", chat).cause) == [
        ("input", "state conversation/c noise")
    ]
    hf.nodes.process(chain(calls, scale=3), chat, x=20)
    code = hf.nodes.why("chain", "middle", chat)
    assert code.cause.kind == "code"
    assert "value scale" in code.cause.causes[0].name
    hf.nodes.process(chain(calls, scale=3), chat, force=["middle"], x=20)
    assert kinds(hf.nodes.why("chain", "middle", chat).cause) == [("forced", "middle")]
    assert hf.nodes.why("chain", "base", chat).toggles == (
        "code",
        "x",
        "state conversation/c noise",
    )
    assert any(
        "object of type Calls" in one for one in hf.nodes.why("chain", "base", chat).untracked
    )
    with pytest.raises(NotFoundError):
        hf.nodes.why("chain", "nobody", chat)


def test_a_plan_says_what_a_walk_would_do_and_writes_nothing(hf: Store, calls: Calls):
    chat, graph = hf.conversation("c"), chain(calls)

    def verdicts(**inputs):
        before = len(list(hf.follow(as_events=True, after=START, timeout_s=0)))
        plan = hf.nodes.plan(graph, None, chat, **inputs)
        assert len(list(hf.follow(as_events=True, after=START, timeout_s=0))) == before
        assert calls.take() == []
        return {one.node: one.verdict for one in plan.nodes}

    assert verdicts(x=10) == dict.fromkeys(("base", "middle", "top"), "compute")
    hf.nodes.process(graph, chat, x=10)
    calls.take()
    assert verdicts(x=10) == dict.fromkeys(("base", "middle", "top"), "hit")
    assert verdicts(x=11) == {"base": "compute", "middle": "cut off", "top": "cut off"}
    plan = hf.nodes.plan(graph, "base", chat, x=11)
    assert plan.computes == ("base",)
    assert plan.cost["tokens"] == 100
    assert kinds_of(plan.nodes[0].causes) == [("input", "x")]
    walk = hf.nodes.process(graph, chat, x=11)
    assert {n: s.status for n, s in walk.states.items()} == {
        "base": "computed",
        "middle": "cut off",
        "top": "hit",
    }


def kinds_of(causes):
    return [(one.kind, one.name) for one in causes]


def test_a_change_can_be_accepted_by_name(hf: Store, calls: Calls):
    chat = hf.conversation("c")
    hf.nodes.process(chain(calls), chat, x=10)
    calls.take()
    changed = chain(calls, scale=3)
    state = hf.nodes.accept(
        changed, "middle", chat, author="grace", because="same for all we use", x=10
    )
    assert state.value == 2
    walk = hf.nodes.process(changed, chat, x=10)
    assert (walk.counts["hit"], calls.take()) == (3, [])
    why = hf.nodes.why("chain", "middle", chat)
    assert (why.cause.kind, why.cause.name) == ("accepted", "grace")
    assert why.cause.text == "same for all we use"
    assert hf.nodes.accept(changed, "middle", chat, x=10).revision == state.revision
    chat["noise"] = 5
    hf.nodes.accept(changed, "base", chat, x=10)
    assert hf.nodes.process(changed, chat, x=10).counts["hit"] == 3
    chat["noise"] = 6
    hf.nodes.process(changed, chat, x=10)
    assert calls.take() == ["base", "middle", "top"]
    with pytest.raises(NotFoundError):
        hf.nodes.accept(changed, "nobody", chat, x=10)
    with pytest.raises(NotFoundError, match="no result"):
        hf.nodes.accept(changed, "base", "conversation/other", x=10)


def test_results_can_be_invalidated(hf: Store, calls: Calls):
    chat, graph = hf.conversation("c"), chain(calls)
    hf.nodes.process(graph, chat, x=10)
    hf.nodes.process(graph, chat, x=10)
    calls.take()
    hf.nodes.invalidate(graph, chat, "middle", because="a bug in the model")
    assert hf.nodes.why("chain", "middle", chat).invalidated
    with pytest.raises(UsageError, match="invalidated"):
        hf.nodes.accept(graph, "middle", chat, x=10)
    hf.nodes.process(graph, chat, x=10)
    assert calls.take() == ["middle"]
    assert hf.nodes.why("chain", "middle", chat).cause.causes[0].text == "invalidated"
    hf.nodes.invalidate(graph, chat)
    hf.nodes.process(graph, chat, x=10)
    assert calls.take() == ["base", "middle", "top"]
    with pytest.raises(NotFoundError):
        hf.nodes.invalidate(graph, chat, "nobody")


def test_what_is_too_old_cannot_be_accepted(mem: Store, clock: FakeClock):
    @node(ttl="1m")
    def one(ctx, x):
        return x

    graph = Graph("old", [one])
    mem.nodes.process(graph, "conversation/c", x=1)
    clock.advance(60)
    with pytest.raises(UsageError, match="too old"):
        mem.nodes.accept(graph, "one", "conversation/c", x=2)


def test_a_plan_of_paths_groups_and_failures(mem: Store, calls: Calls):
    @node
    def mode(ctx):
        ctx.skip("never")
        return "m"

    @node
    def never(ctx):
        return 1

    @node
    def fails(ctx):
        calls("fails")
        return 1

    @node
    def dynamic(ctx):
        return ctx.read(mode)

    inner = Graph("inner", [fails]).until("fails", lambda value: value >= 1, most=3)
    graph = Graph("paths", [mode, never, inner, dynamic])
    first = {one.node: one.verdict for one in mem.nodes.plan(graph, None, "conversation/c").nodes}
    assert first == {
        "mode": "compute",
        "never": "compute",
        "inner/fails@1": "compute",
        "dynamic": "compute",
    }
    mem.nodes.process(graph, "conversation/c")
    then = {one.node: one.verdict for one in mem.nodes.plan(graph, None, "conversation/c").nodes}
    assert then == {"mode": "hit", "never": "skipped", "inner/fails@1": "hit", "dynamic": "hit"}
    mem.nodes.invalidate(graph, "conversation/c", "mode")
    last = {one.node: one.verdict for one in mem.nodes.plan(graph, None, "conversation/c").nodes}
    assert (last["mode"], last["dynamic"]) == ("compute", "cut off")
    assert isinstance(mem.nodes.plan(graph, None, "conversation/c"), Plan)


def numbered(rows: int, wide: int) -> Graph:
    """Rows of nodes; each depends on all of the row above, the first on the input."""
    names: dict[str, object] = {}
    nodes: list[object] = []
    for row in range(rows):
        for place in range(wide):
            above = [f"n{row - 1}_{one}" for one in range(wide)] if row else ["seed"]
            exec(
                f"def n{row}_{place}(ctx, {', '.join(above)}): return {' + '.join(above)} + 1",
                names,
            )
            nodes.append(node(version="1")(names[f"n{row}_{place}"]))  # type: ignore[arg-type]
    return Graph("numbered", nodes)  # type: ignore[arg-type]


@pytest.fixture
def alone() -> Iterator[Store]:
    """In memory alone: what is stored is the same everywhere."""
    with holdfast.open("memory:") as store:
        yield store


def test_a_long_chain_is_computed_again_when_its_head_changes(alone: Store):
    """What each result repeats of the causes before it is bounded: it can be read back."""
    graph, chat = numbered(400, 1), alone.conversation("c")
    for seed in (1, 2, 3):
        walk = alone.nodes.process(graph, chat, seed=seed)
        assert walk.counts["computed"] == 400
        assert walk.states["n399_0"].value == seed + 400
    assert alone.nodes.process(graph, chat, seed=3).counts["hit"] == 400
    why = alone.nodes.why(graph, "n399_0", chat)
    depth, cause = 0, why.cause
    while cause.causes:
        depth, cause = depth + 1, cause.causes[0]
    assert 16 <= depth <= 18
    assert cause.text == "its why tells more"
    first = alone.nodes.why(graph, "n0_0", chat).cause
    assert [one.name for one in first.causes] == ["seed"]


def test_a_lattice_stores_as_much_in_each_row(alone: Store):
    graph, chat = numbered(14, 2), alone.conversation("c")
    for seed in (1, 2):
        assert alone.nodes.process(graph, chat, seed=seed).counts["computed"] == 28
    records = alone._log._backend.read(f"node/numbered/{chat.name}")
    sizes = [len(one.payload) for one in records if one.checkpoint and "n13_" in one.checkpoint]
    assert sizes
    assert max(sizes) < 20_000
