"""why, plan, accept, invalidate."""

from __future__ import annotations

import functools
import math
import types

import pytest

from holdfast import Graph, NotFoundError, Store, UsageError, node
from holdfast.backends.protocol import START
from holdfast.nodes import Plan
from holdfast.testing import FakeClock
from tests.nodes.graphs import chain as chain_of
from tests.nodes.graphs import link
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
    assert verdicts(x=11) == {"base": "compute", "middle": "may compute", "top": "may compute"}
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


class Decides:
    """Skips the next node if a value is large, for whoever calls it with a context."""

    def __call__(self, ctx, x):
        if x > 1:
            ctx.skip("last")

    def by_name(self, ctx, x):
        self(ctx, x)


decides = Decides()
as_partial = functools.partial(decides)
module = types.SimpleNamespace(decides=decides.by_name)


@pytest.mark.parametrize("way", ["callable", "method", "partial", "attribute", "kept", "wrapped"])
def test_a_plan_knows_that_a_context_was_handed_on(mem: Store, way: str):
    def plain(ctx, x):
        if way == "kept":
            held = [ctx]
            if x > 1:
                getattr(held[0], "sk" + "ip")("last")
        return x

    def handed(ctx, x):
        {
            "callable": decides,
            "method": decides.by_name,
            "partial": as_partial,
            "attribute": module.decides,
        }[way](ctx, x)
        return x

    @functools.wraps(plain)
    def wrapped(*given, **named):
        decides(given[0], named["x"])
        return plain(*given, **named)

    @node
    def last(x):
        return x

    function = {"kept": plain, "wrapped": wrapped}.get(way, handed)
    graph = Graph("skips", [node(name="first", version="1")(function), last])
    mem.nodes.process(graph, "conversation/c", x=1)
    plan = mem.nodes.plan(graph, None, "conversation/c", x=2)
    assert {one.node: one.verdict for one in plan.nodes} == {
        "first": "compute",
        "last": "may compute",
    }
    walk = mem.nodes.process(graph, "conversation/c", x=2)
    assert walk.states["last"].status == "skipped"


def test_a_context_that_is_only_asked_leaves_a_plan_certain(mem: Store):
    @node
    def first(ctx, x):
        found = [ctx.read("conversation/c", name, 0) for name in ("a", "b")]
        low = min(found, key=lambda one: one + math.floor(x))
        ctx.setting("low", low)
        return math.floor(x) + low

    @node
    def last(x):
        return x

    graph = Graph("asks", [first, last])
    plan = mem.nodes.plan(graph, None, "conversation/c", x=1)
    assert [one.verdict for one in plan.nodes] == ["compute", "compute"]


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
        "never": "may compute",  # for `mode` may skip it, and each of those that follow
        "inner/fails@1": "may compute",
        "inner/fails@2": "may compute",
        "inner/fails@3": "may compute",
        "dynamic": "may compute",
    }
    mem.nodes.process(graph, "conversation/c")
    then = {one.node: one.verdict for one in mem.nodes.plan(graph, None, "conversation/c").nodes}
    assert then == {"mode": "hit", "never": "skipped", "inner/fails@1": "hit", "dynamic": "hit"}
    mem.nodes.invalidate(graph, "conversation/c", "mode")
    last = {one.node: one.verdict for one in mem.nodes.plan(graph, None, "conversation/c").nodes}
    assert (last["mode"], last["dynamic"]) == ("compute", "may compute")
    assert isinstance(mem.nodes.plan(graph, None, "conversation/c"), Plan)


def test_a_plan_says_at_least_and_at_most_how_many(mem: Store):
    graph = chain_of("long", 100)
    assert bounds(mem, graph, x=1) == (100, 100)
    mem.nodes.process(graph, "conversation/c", x=1)
    assert bounds(mem, graph, x=1) == (0, 0)
    assert bounds(mem, graph, x=2) == (1, 100)
    plan = mem.nodes.plan(graph, None, "conversation/c", x=2)
    assert (plan.computes, len(plan.may_compute)) == (("n0",), 99)
    assert 0 < plan.cost["seconds"] < plan.cost_at_most["seconds"]
    assert mem.nodes.process(graph, "conversation/c", x=2).counts["computed"] == 100


def test_a_plan_counts_rounds_and_graphs_that_may_follow(mem: Store):
    @node
    def seed(ctx, x):
        return x % 10

    @node
    def add(ctx, seed, previous):
        return seed + (previous["add"] if previous else 0)

    inner = Graph("sums", [add]).until("add", lambda value: value >= 6, most=5)
    after = node(version="1")(lambda ctx, sums: sums["add"])
    after.name = "after"
    graph = Graph("rounds", [seed, inner, after])
    mem.nodes.process(graph, "conversation/c", x=3)  # two rounds
    assert bounds(mem, graph, x=13) == (1, 7)  # five rounds at most, if the seed is another one
    assert mem.nodes.process(graph, "conversation/c", x=13).counts["computed"] == 1
    walk = mem.nodes.process(graph, "conversation/c", x=2)
    assert walk.counts["computed"] == 4  # the sum of three rounds is 6, as before
    assert walk.value("after") == 6


def test_a_path_that_is_not_known_yet_makes_a_plan_unsure(mem: Store, calls: Calls):
    @node
    def which(ctx, x):
        return x

    @node
    def odd(ctx, x):
        calls("odd")
        return x

    @node
    def even(ctx, x):
        calls("even")
        return x

    def path(inputs, values):
        return ["which", "odd" if values.get("which", 0) % 2 else "even"]

    graph = Graph("ways", [which, odd, even], path=path)
    mem.nodes.process(graph, "conversation/c", x=1)
    plan = mem.nodes.plan(graph, None, "conversation/c", x=2)
    assert (plan.computes, plan.may_compute) == (("which",), ("odd", "even"))
    calls.take()
    mem.nodes.process(graph, "conversation/c", x=2)
    assert calls.take() == ["even"]


def test_only_what_was_cut_off_is_said_to_be(mem: Store):
    """A node whose dependency goes back to an older value has a hit, and nothing was cut off."""
    one = node(version="1", keep=1)(link("one", "x").function)
    two = node(version="1")(lambda ctx, one: one)
    two.name = "two"
    graph = Graph("back", [one, two])
    for x in (1, 2):
        mem.nodes.process(graph, "conversation/c", x=x)
    walk = mem.nodes.process(graph, "conversation/c", x=1)
    assert [state.status for state in walk.states.values()] == ["computed", "hit"]
    walk = mem.nodes.process(graph, "conversation/c", x=1, force=["one"])
    assert [state.status for state in walk.states.values()] == ["computed", "hit"]
    mem.nodes.process(graph, "conversation/c", x=3)
    walk = mem.nodes.process(graph, "conversation/c", x=3, force=["one"])
    assert [state.status for state in walk.states.values()] == ["computed", "cut off"]


def test_a_long_walk_says_how_far_it_is_and_goes_on_after_ctrl_c(
    mem: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    pressed = [50]

    def stops(ctx, n49):
        if pressed:
            pressed.pop()
            raise KeyboardInterrupt
        return n49

    nodes = chain_of("inner", 50).members
    last = node(version="1")(stops)
    graph = Graph("stopped", [*nodes.values(), last])
    monkeypatch.setattr("holdfast.nodes.walk.PROGRESS_S", 0.0)
    with caplog.at_level("INFO", logger="holdfast.nodes"), pytest.raises(KeyboardInterrupt):
        mem.nodes.process(graph, "conversation/c", x=1)
    assert 'graph "stopped": 50 of 51 nodes are done, 50 were computed' in caplog.messages
    assert mem.nodes.process(graph, "conversation/c", x=1).counts["computed"] == 1


def bounds(hf: Store, graph: Graph, **inputs: object) -> tuple[int, int]:
    plan = hf.nodes.plan(graph, None, "conversation/c", **inputs)
    return plan.at_least, plan.at_most
