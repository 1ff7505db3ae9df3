"""Rules, settings and constraints: stored as data, applied when a walk is resolved."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Graph, Store, UsageError, node, rule
from tests.nodes.witness import Calls

ruled = Calls()


@rule
def by_kind(flags, small="haiku"):
    ruled("by_kind")
    return {"model": "opus" if flags["kind"] == "riddle" else small, "budget": 10}


@rule(name="cheap")
def cheap(reason):
    ruled("cheap")
    return {"model": "tiny"}


@rule
def wrong():
    return 3


@node
def flags(ctx, thread):
    return {"kind": "riddle" if "riddle" in thread[-1] else "plan"}


@node
def picker(ctx):
    ctx.rule(by_kind, reads=("flags",), priority=1)
    ctx.setting("temperature", 0.2)
    ctx.message("system", "Be brief.")


def test_a_rule_stays_the_same_and_its_output_follows_what_it_reads(hf: Store):
    """NODE-16, NODE-20, NODE-21: applied on demand; the rule as stored does not change."""
    graph, chat = Graph("planner", [flags, picker]), hf.conversation("c")
    ruled.take()
    plain = hf.nodes.process(graph, chat, thread=["hi"])
    assert ruled.take() == []  # nothing is applied before it is asked for
    resolved = plain.resolve()
    assert (resolved.model, resolved.settings) == ("haiku", {"budget": 10, "temperature": 0.2})
    assert resolved.messages == [{"role": "system", "content": "Be brief."}]
    assert ruled.take() == ["by_kind"]
    riddle = hf.nodes.process(graph, chat, thread=["a riddle"])
    assert riddle.states["picker"].status == "hit"
    assert riddle.sequence == plain.sequence
    assert riddle.resolve().model == "opus"
    assert ruled.take() == ["by_kind"]
    for _ in range(2):  # its inputs stand: it is not called again
        assert hf.nodes.process(graph, chat, thread=["hi"]).resolve().model == "haiku"
    assert ruled.take() == []
    assert hf.nodes.process(graph, chat, cache=False, thread=["hi"]).resolve() == resolved
    [stored] = [one for one in plain.sequence if one.kind == "rule"]
    assert (stored.name, stored.value, stored.reads, stored.priority) == (
        "tests.nodes.test_rules:by_kind",
        {},
        ("flags",),
        1,
    )


def test_who_wins_and_what_is_a_conflict(mem: Store):
    """NODE-16: priority decides; equal rules that differ name each other; constraints limit."""

    @node
    def first(ctx):
        ctx.setting("temperature", 0.1)
        ctx.setting("model", "low", priority=-1)
        ctx.setting("top_p", 1, priority=5)
        ctx.tool("search", n=1)
        ctx.tool("grep")

    @node
    def second(ctx):
        ctx.setting("temperature", 0.9)
        ctx.setting("top_p", 2)
        ctx.tool("search", n=2)

    chat = mem.conversation("c")
    one = mem.nodes.process(Graph("a", [first, second]), chat).resolve()
    assert (one.model, one.settings) == ("low", {"temperature": 0.9, "top_p": 1})
    assert one.tools == [{"name": "grep"}, {"name": "search", "n": 2}]
    assert [(a.setting, a.by, a.priority) for a in one.applied] == [
        ("temperature", "second", 0),
        ("model", "first", -1),
        ("top_p", "first", 5),
    ]

    @node
    def clash(ctx):
        ctx.rule(by_kind, flags={"kind": "riddle"})
        ctx.rule(cheap, reason="money")

    @node
    def limit(ctx):
        ctx.constrain("model", one_of=["tiny", "small"])

    two = mem.nodes.process(Graph("b", [first, clash]), chat).resolve()
    assert two.model is None
    [conflict] = two.conflicts
    assert conflict.between == ("tests.nodes.test_rules:by_kind", "cheap")
    assert conflict.values == ("opus", "tiny")
    three = mem.nodes.process(Graph("c", [first, clash, limit]), chat).resolve()
    assert (three.model, three.conflicts) == ("tiny", [])

    @node
    def other(ctx):
        ctx.constrain("model", one_of=["huge"])

    four = mem.nodes.process(Graph("d", [first, limit, other]), chat).resolve()
    assert [(c.between, c.text) for c in four.conflicts] == [
        (("limit", "other"), "no value is within all constraints")
    ]
    five = mem.nodes.process(Graph("e", [first, other]), chat).resolve()
    assert five.conflicts[0].between == ("first", "other")


def test_rules_that_are_not_there_or_answer_nonsense(mem: Store):
    @node
    def one(ctx):
        ctx.rule(wrong)

    @node
    def two(ctx):
        ctx.rule("nobody")

    @node
    def three(ctx):
        ctx.rule(cheap, reads=("nobody",))

    @node
    def four(ctx):
        ctx.constrain("model", one_of=[])

    chat = mem.conversation("c")
    with pytest.raises(UsageError, match="returns a mapping"):
        mem.nodes.process(Graph("g", [one]), chat).resolve()
    for bad in (two, three, four):
        with pytest.raises(UsageError):
            mem.nodes.process(Graph("g", [bad]), chat)
    with pytest.raises(UsageError):
        holdfast.rule(3)
