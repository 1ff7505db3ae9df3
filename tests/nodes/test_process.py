"""Processing graphs: what is taken as it was, what is computed, and what is stored of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import Graph, Store, UsageError, node
from holdfast.backends.protocol import START
from holdfast.copy import copy
from holdfast.errors import NodeError, ValueDomainError
from holdfast.nodes import process_node, results
from holdfast.nodes.walk import Nodes
from holdfast.testing import FakeClock
from tests.nodes.witness import Calls


def pair(calls: Calls):
    @node
    def flags(ctx, thread):
        calls("flags")
        return {"kind": "riddle" if "riddle" in thread[-1] else "plan"}

    @node
    def picker(ctx, flags):
        calls("picker")
        ctx.setting("model", "big" if flags["kind"] == "riddle" else "small")
        return flags["kind"]

    return Graph("planner", [picker, flags])


def test_state_of_earlier_walks_is_found_again_per_node(url: str, calls: Calls):
    """NODE-2, NODE-3, NODE-9: stored state is looked for before work, and found by another handle.

    On memory the store is gone with its handle, so the same handle is asked there.
    """
    graph = pair(calls)
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        first = hf.nodes.process(graph, chat, thread=["hi"])
        assert calls.take() == ["flags", "picker"]
        assert first.counts["computed"] == 2
        again = hf.nodes.process(graph, chat, thread=["hi"])
        assert again.counts["hit"] == 2
    if url != "memory:":
        with holdfast.open(url) as hf:
            again = hf.nodes.process(graph, hf.conversation("c"), thread=["hi"])
            assert again.counts["hit"] == 2
            assert hf.check().ok
    assert calls.take() == []
    assert again.states["flags"].value == first.states["flags"].value
    assert again.sequence == first.sequence


def test_nodes_run_in_order_and_artifacts_follow_the_nodes(hf: Store, calls: Calls):
    """NODE-1, NODE-8, NODE-14, NODE-15: order of the graph, several artifacts of one node."""

    @node
    def system(ctx):
        ctx.message("system", "Be brief.")
        ctx.setting("temperature", 0.2)
        ctx.tool("search", description="searches")
        return None

    @node
    def second(ctx, system):
        ctx.message("user", "hello")

    graph = Graph("order", [second, system])
    assert graph.order == ("system", "second")
    walk = hf.nodes.process(graph, hf.conversation("c"))
    kinds = [(one.node, one.kind, one.name) for one in walk.sequence]
    assert kinds == [
        ("system", "message", "system"),
        ("system", "setting", "temperature"),
        ("system", "tool", "search"),
        ("second", "message", "user"),
    ]
    assert [*walk.states] == ["system", "second"]


def test_process_node_alone_does_the_same(hf: Store, calls: Calls):
    """NODE-13, NODE-22: fetch, compare, replace or return; what it depends on comes first."""
    graph, chat = pair(calls), hf.conversation("c")
    state = process_node(hf, graph, "picker", chat, inputs={"thread": ["hi"]})
    assert calls.take() == ["flags", "picker"]
    assert (state.status, state.value) == ("computed", "plan")
    same = process_node(hf, graph, "picker", chat, inputs={"thread": ["hi"]})
    assert (same.status, same.value, calls.take()) == ("hit", "plan", [])
    assert same.computed_at == state.computed_at
    new = process_node(hf, graph, "picker", chat, inputs={"thread": ["riddle"]})
    assert (new.value, calls.take()) == ("riddle", ["flags", "picker"])
    forced = process_node(hf, graph, "picker", chat, inputs={"thread": ["riddle"]}, force=True)
    assert (forced.status, calls.take()) == ("computed", ["picker"])
    with pytest.raises(holdfast.NotFoundError):
        process_node(hf, graph, "nobody", chat, inputs={"thread": ["hi"]})


def test_a_change_reaches_what_depends_on_it_and_stops_where_nothing_changed(
    hf: Store, calls: Calls
):
    """NODE-5: a change in one node invalidates those after it, and only those; with cut-off."""
    graph, chat = pair(calls), hf.conversation("c")
    hf.nodes.process(graph, chat, thread=["hi"])
    calls.take()
    walk = hf.nodes.process(graph, chat, thread=["ho"])
    assert calls.take() == ["flags"]  # its value is the same: the picker is not asked
    assert walk.states["picker"].status == "cut off"
    hf.nodes.process(graph, chat, thread=["a riddle"])
    assert calls.take() == ["flags", "picker"]


def test_going_back_is_a_hit_as_far_as_results_are_kept(hf: Store, calls: Calls):
    @node(keep=2)
    def one(ctx, x):
        calls(str(x))
        return x

    graph, chat = Graph("back", [one]), hf.conversation("c")
    for x in (1, 2, 1, 2, 1):
        hf.nodes.process(graph, chat, x=x)
    assert calls.take() == ["1", "2"]
    hf.nodes.process(graph, chat, x=3)
    hf.nodes.process(graph, chat, x=2)
    assert calls.take() == ["3"]
    hf.nodes.process(graph, chat, x=1)
    assert calls.take() == ["1"]  # two others are newer


def test_a_state_names_what_affects_it(hf: Store, tmp_path: Path):
    """NODE-6, NODE-7: the digest, and the toggles: code, inputs, edges, and global state read."""
    file = tmp_path / "prompt.md"
    file.write_text("hello")

    @node
    def first(ctx):
        return 1

    @node
    def second(ctx, first, x):
        ctx.read("global", "api_status")
        ctx.read(hf.conversation("c"), ("a", "b"))
        ctx.file(file)
        ctx.env("HOME")
        ctx.clock("1d")
        return 2

    state = hf.nodes.process(Graph("g", [first, second]), "conversation/c", x=5).states["second"]
    assert state.toggles == (
        "code",
        "x",
        "first",
        "state global api_status",
        "state conversation/c a.b",
        f"file {file}",
        "env HOME",
        "clock 1d",
    )
    assert len(state.in_thumb) == len(state.out_thumb) == len(state.full_thumb) == 64


def test_what_a_node_reads_counts_and_nothing_else_does(hf: Store, calls: Calls):
    """NODE-10: valid only if neither the node nor the state it used has changed."""
    chat, world = hf.conversation("c"), hf.global_()

    @node
    def one(ctx):
        calls("one")
        return [ctx.read(chat, "a"), ctx.read(world, ("b", 0), "none"), ctx.read("team/t")]

    graph = Graph("reads", [one])
    assert hf.nodes.process(graph, chat).states["one"].value == [None, "none", {}]
    for _ in range(3):
        hf.nodes.process(graph, chat)
    chat["other"] = 1
    world["c"] = 2
    hf.nodes.process(graph, chat)
    assert calls.take() == ["one"]
    for change in (
        lambda: chat.set("a", 1),
        lambda: world.set("b", [5]),
        lambda: hf.team("t").set("x", 1),
        lambda: world.append("b", 6),
    ):
        change()
        hf.nodes.process(graph, chat)
    assert calls.take() == ["one"] * 3
    assert hf.nodes.process(graph, chat).states["one"].value == [1, 5, {"x": 1}]


def test_the_trace_is_checked_in_order_up_to_the_first_change(hf: Store, calls: Calls):
    """A later read may exist only because of an earlier one: it is not asked for."""
    chat = hf.conversation("c")

    @node
    def left(ctx):
        calls("left")
        return ctx.read(chat, "l", 0)

    @node
    def right(ctx):
        calls("right")
        return ctx.read(chat, "r", 0)

    @node
    def chooser(ctx):
        calls("chooser")
        return ctx.read(left if ctx.read(chat, "mode") == "left" else right)

    graph = Graph("dynamic", [chooser, left, right])
    chat["mode"] = "left"
    assert hf.nodes.process(graph, chat).states["chooser"].value == 0
    assert sorted(calls.take()) == ["chooser", "left", "right"]
    chat["r"] = 5  # not an edge now
    hf.nodes.process(graph, chat)
    assert calls.take() == ["right"]
    chat.update({"mode": "right", "l": 7})
    assert process_node(hf, graph, "chooser", chat).value == 5
    assert calls.take() == ["chooser"]  # left is not asked: the mode changed before it was read
    chat["r"] = 6
    assert hf.nodes.process(graph, chat).states["chooser"].value == 6
    assert calls.take() == ["right", "chooser", "left"]


def test_a_part_of_a_nodes_value_is_an_edge_of_its_own(hf: Store, calls: Calls):
    chat = hf.conversation("c")

    @node
    def config(ctx):
        calls("config")
        return {"model": ctx.read(chat, "model", "a"), "noise": ctx.read(chat, "noise", 0)}

    @node
    def user(ctx):
        calls("user")
        return ctx.read(config, "model")

    graph = Graph("parts", [config, user])
    hf.nodes.process(graph, chat)
    calls.take()
    chat["noise"] = 1
    hf.nodes.process(graph, chat)
    assert calls.take() == ["config"]
    chat["model"] = "b"
    assert hf.nodes.process(graph, chat).states["user"].value == "b"
    assert calls.take() == ["config", "user"]


def test_files_count_by_stamp_and_then_by_digest(hf: Store, calls: Calls, tmp_path: Path):
    file = tmp_path / "prompt.md"

    @node
    def one(ctx):
        calls("one")
        return ctx.file(file)

    graph, chat = Graph("files", [one]), hf.conversation("c")

    def value():
        return hf.nodes.process(graph, chat).states["one"].value

    assert value() is None
    file.write_text("a")
    os.utime(file, (1, 1))
    assert value() == "a"
    assert calls.take() == ["one", "one"]
    os.utime(file)
    assert value() == "a"
    file.write_text("a")
    assert value() == "a"
    assert calls.take() == []
    for text in "bcdefgh":  # the same size, within one tick of the clock
        file.write_text(text)
        assert value() == text
    assert len(calls.take()) == 7
    file.unlink()
    assert value() is None


def test_what_cannot_be_looked_at_is_not_as_it_was(mem: Store, calls: Calls, tmp_path: Path):
    place = tmp_path / "place"
    place.write_text("text")

    @node
    def one(ctx):
        calls("one")
        return ctx.file(place)

    graph = Graph("odd", [one])
    mem.nodes.process(graph, "conversation/c")
    place.unlink()
    place.mkdir()
    with pytest.raises(NodeError, match="IsADirectoryError"):
        mem.nodes.process(graph, "conversation/c")
    place.rmdir()
    assert mem.nodes.process(graph, "conversation/c").value("one") is None
    short = mem.conversation("short")

    @node
    def two(ctx):
        return ctx.read(short, "a", 0)

    graph = Graph("closed", [two])
    short["a"] = 1
    mem.nodes.process(graph, "conversation/c")
    mem.nodes.process(graph, "conversation/c")
    mem.nodes.process(graph, "conversation/c")
    short.close(keep=False)
    with pytest.raises(holdfast.ClosedError):
        mem.nodes.process(graph, "conversation/c")


def test_the_order_of_keys_counts_where_a_node_can_see_it(mem: Store, calls: Calls):
    chat = mem.conversation("c")

    @node
    def keys(ctx, given):
        calls("keys")
        return [*ctx.read(chat, "table"), *given]

    graph = Graph("order", [keys])
    chat["table"] = {"a": 1, "b": 2}
    assert mem.nodes.process(graph, chat, given={"x": 1, "y": 2}).value("keys") == [
        "a",
        "b",
        "x",
        "y",
    ]
    chat["table"] = {"b": 2, "a": 1}
    assert mem.nodes.process(graph, chat, given={"y": 2, "x": 1}).value("keys") == [
        "b",
        "a",
        "x",
        "y",
    ]
    chat["other"] = 1
    mem.nodes.process(graph, chat, given={"x": 1, "y": 2})
    assert calls.take() == ["keys", "keys"]


def test_the_environment_and_messages_count(hf: Store, calls: Calls, monkeypatch):
    chat = hf.conversation("c")

    @node
    def one(ctx):
        calls("one")
        return [ctx.env("HF_MODE", "unset"), [m.text for m in ctx.messages(chat, last=2)]]

    graph = Graph("env", [one])
    monkeypatch.delenv("HF_MODE", raising=False)
    assert hf.nodes.process(graph, chat).states["one"].value == ["unset", []]
    monkeypatch.setenv("HF_MODE", "on")
    chat.say("hello")
    assert hf.nodes.process(graph, chat).states["one"].value == ["on", ["hello"]]
    chat["elsewhere"] = 1
    hf.nodes.process(graph, chat)
    assert calls.take() == ["one", "one"]
    stored = [
        event.data
        for event in hf.follow(as_events=True, after=START, timeout_s=0)
        if event.type == "node.computed"
    ]
    assert "on" not in str(
        [read for one in stored for read in one["reads"] if read["kind"] == "env"]
    )


fetched: Calls = Calls()


class _Server:
    tag = 1
    text = "one"


server = _Server()


def etag(name):
    fetched("etag")
    return server.tag


def fetch(name):
    fetched("fetch")
    return f"{name}:{server.text}"


@node
def download(ctx):
    return ctx.source("api", stamp=etag, read=fetch, args=("x",))


def test_a_source_is_asked_for_its_stamp_first(mem: Store):
    graph, chat = Graph("sources", [download]), mem.conversation("c")
    server.tag, server.text = 1, "one"
    fetched.take()
    assert mem.nodes.process(graph, chat).states["download"].value == "x:one"
    fetched.take()
    assert mem.nodes.process(graph, chat).counts["hit"] == 1
    assert fetched.take() == ["etag"]
    server.tag = 2  # another stamp, the same content
    assert mem.nodes.process(graph, chat).counts["hit"] == 1
    assert fetched.take() == ["etag", "fetch"]
    assert mem.nodes.process(graph, chat).counts["hit"] == 1
    assert fetched.take() == ["etag"]
    server.tag, server.text = 3, "two"
    assert mem.nodes.process(graph, chat).states["download"].value == "x:two"

    @node
    def local(ctx):
        return ctx.source("api", read=lambda: 1)

    with pytest.raises(UsageError, match="does not name"):
        mem.nodes.process(Graph("sources", [local]), chat)


def test_time_is_an_input(mem: Store, clock: FakeClock, calls: Calls):
    """NODE-4: an expired state is computed again; its dependents see only a changed value."""

    @node(ttl="1h")
    def hourly(ctx):
        calls("hourly")
        return 1

    @node
    def daily(ctx):
        calls("daily")
        return str(ctx.clock("1d"))

    @node
    def soon(ctx):
        calls("soon")
        ctx.valid_until(datetime.fromtimestamp(clock.now_us() / 1e6, UTC) + timedelta(minutes=1))

    @node
    def after(ctx, hourly):
        calls("after")

    graph, chat = Graph("time", [hourly, daily, soon, after]), mem.conversation("c")
    clock.set(1_700_006_400_000_000)  # 0:00 of a day
    mem.nodes.process(graph, chat)
    assert calls.take() == ["hourly", "daily", "soon", "after"]
    clock.advance(59)
    mem.nodes.process(graph, chat)
    mem.nodes.process(graph, chat)
    assert calls.take() == []
    clock.advance(1)
    walk = mem.nodes.process(graph, chat)
    assert calls.take() == ["soon"]
    assert walk.states["soon"].cause.kind == "time"
    clock.advance(3540)
    mem.nodes.process(graph, chat)
    assert calls.take() == ["hourly", "soon"]
    clock.advance(82800)
    mem.nodes.process(graph, chat)
    assert calls.take() == ["hourly", "daily", "soon"]


def test_always_passes_every_cache_and_is_cut_off_all_the_same(hf: Store, calls: Calls):
    @node(always=True)
    def now(ctx):
        calls("now")
        return 1

    @node
    def after(ctx, now):
        calls("after")

    graph, chat = Graph("always", [now, after]), hf.conversation("c")
    for _ in range(3):
        hf.nodes.process(graph, chat)
    assert calls.take() == ["now", "after", "now", "now"]


def test_equal_decides_what_is_news(hf: Store, calls: Calls):
    chat = hf.conversation("c")

    @node(equal=lambda old, new: old.lower() == new.lower())
    def model(ctx):
        calls("model")
        return ctx.read(chat, "text")

    @node
    def after(ctx, model):
        calls("after")
        return model

    graph = Graph("equal", [model, after])
    for text in ("Yes", "yes", "YES", "no"):
        chat["text"] = text
        walk = hf.nodes.process(graph, chat)
        assert walk.states["model"].value == text
    assert calls.take() == ["model", "after", "model", "model", "model", "after"]


def test_a_missing_file_that_a_node_writes_computes_it(hf: Store, calls: Calls, tmp_path: Path):
    out = tmp_path / "out.txt"

    @node(writes=out)
    def writer(ctx):
        calls("writer")
        out.write_text("x")

    graph, chat = Graph("writes", [writer]), hf.conversation("c")
    for _ in range(3):
        hf.nodes.process(graph, chat)
    assert calls.take() == ["writer"]
    out.unlink()
    walk = hf.nodes.process(graph, chat)
    assert calls.take() == ["writer"]
    assert walk.states["writer"].cause.causes[0].kind == "missing"


def test_the_cache_can_be_off_and_a_node_forced(hf: Store, calls: Calls):
    """NODE-12, NODE-23: rebuilt from scratch, the same artifacts, and nothing written."""
    graph, chat = pair(calls), hf.conversation("c")
    on = hf.nodes.process(graph, chat, thread=["hi"])
    events = len(list(hf.follow(as_events=True, after=START, timeout_s=0)))
    off = hf.nodes.process(graph, chat, cache=False, thread=["hi"])
    assert off.sequence == on.sequence
    assert calls.take() == ["flags", "picker"] * 2
    assert len(list(hf.follow(as_events=True, after=START, timeout_s=0))) == events
    hf.nodes.process(graph, chat, force=["picker"], thread=["hi"])
    assert calls.take() == ["picker"]
    hf.nodes.process(graph, chat, force=True, thread=["hi"])
    assert calls.take() == ["flags", "picker"]
    with pytest.raises(holdfast.NotFoundError):
        hf.nodes.process(graph, chat, force=["nobody"], thread=["hi"])


def test_a_hit_writes_nothing(hf: Store, calls: Calls):
    graph, chat = pair(calls), hf.conversation("c")
    hf.nodes.process(graph, chat, thread=["hi"])
    events = list(hf.follow(as_events=True, after=START, timeout_s=0))
    for _ in range(3):
        hf.nodes.process(graph, chat, thread=["hi"])
    assert len(list(hf.follow(as_events=True, after=START, timeout_s=0))) == len(events)
    results = [event for event in events if event.stream.startswith("node/")]
    assert [event.stream for event in results] == ["node/planner/conversation/c"] * 2
    assert [event.type for event in results] == ["node.computed"] * 2
    for event in results:
        data = event.data
        assert event.key == f"{data['node']}:{data['in_thumb']}:1"


def test_failures_are_kept_only_if_asked(mem: Store, clock: FakeClock, calls: Calls):
    chat = mem.conversation("c")

    @node(keep_failures="30s")
    def kept(ctx):
        calls("kept")
        raise ValueError(f"no {ctx.read(chat, 'x')}")

    @node
    def loose(ctx):
        calls("loose")
        raise KeyError("k")

    for _ in range(2):
        with pytest.raises(NodeError) as caught:
            mem.nodes.process(Graph("failing", [kept]), chat)
        assert (caught.value.kind, caught.value.text) == ("ValueError", "no None")
        with pytest.raises(NodeError, match='node "loose" of graph "loose" failed'):
            mem.nodes.process(Graph("loose", [loose]), chat)
    assert calls.take() == ["kept", "loose", "loose"]
    chat["x"] = 1
    with pytest.raises(NodeError, match="no 1"):
        mem.nodes.process(Graph("failing", [kept]), chat)
    clock.advance(30)
    with pytest.raises(NodeError, match="no 1"):
        mem.nodes.process(Graph("failing", [kept]), chat)
    assert calls.take() == ["kept", "kept"]


def test_paths_and_skips(hf: Store, calls: Calls):
    """NODE-1: only nodes of the current path run; who depends on a skipped one is given None."""

    @node
    def mode(ctx, wanted):
        calls("mode")
        if wanted == "brief":
            ctx.skip("long")
        return wanted

    @node
    def long(ctx, mode):
        calls("long")
        ctx.message("system", "at length")
        return "long"

    @node
    def end(ctx, long):
        calls("end")
        return [long]

    graph, chat = Graph("skips", [mode, long, end]), hf.conversation("c")
    walk = hf.nodes.process(graph, chat, wanted="brief")
    assert calls.take() == ["mode", "end"]
    assert (walk.states["long"].status, walk.value("end")) == ("skipped", [None])
    assert hf.nodes.process(graph, chat, wanted="brief").counts == {
        "hit": 2,
        "cut off": 0,
        "computed": 0,
        "stale": 0,
        "skipped": 1,
    }
    walk = hf.nodes.process(graph, chat, wanted="all")
    assert calls.take() == ["mode", "long", "end"]
    assert [one.name for one in walk.sequence] == ["system"]
    assert not hf.nodes.process(graph, chat, wanted="brief").sequence
    assert calls.take() == []

    routed = Graph(
        "routed",
        [mode, long, end],
        path=lambda inputs, values: ["mode", "end"] + ["long"] * (values.get("mode") == "all"),
    )
    assert hf.nodes.process(routed, chat, wanted="other").value("end") == [None]
    assert hf.nodes.process(routed, chat, wanted="all").value("end") == ["long"]
    with pytest.raises(UsageError, match='names "nobody"'):
        hf.nodes.process(Graph("bad", [mode], path=lambda i, v: ["nobody"]), chat, wanted="x")


def test_a_graph_can_be_a_node(hf: Store, calls: Calls):
    @node
    def base(ctx, x):
        calls("base")
        return x

    @node
    def inner(ctx, base, y):
        calls("inner")
        return base + y

    @node
    def last(ctx, part):
        calls("last")
        return part

    graph, chat = Graph("whole", [last, Graph("part", [inner]), base]), hf.conversation("c")
    assert graph.order == ("base", "part", "last")
    walk = hf.nodes.process(graph, chat, x=1, y=2)
    assert walk.value("last") == {"inner": 3}
    assert [*walk.states] == ["base", "part/inner", "last"]
    assert calls.take() == ["base", "inner", "last"]
    assert hf.nodes.process(graph, chat, x=1, y=2).counts["hit"] == 3
    assert hf.nodes.process(graph, chat, x=2, y=1).states["last"].status == "cut off"
    assert calls.take() == ["base", "inner"]
    assert process_node(hf, graph, "part/inner", chat, inputs={"x": 1, "y": 2}).value == 3


def test_a_part_is_repeated_until_it_is_good_enough(hf: Store, calls: Calls):
    """NODE-26: the flow cycles until a quality bar is met; each round is kept."""

    @node
    def write(ctx, topic, previous):
        calls("write")
        return topic if previous is None else previous["write"] + "!"

    @node
    def grade(ctx, write, round):
        calls("grade")
        ctx.message("grader", f"round {round}")
        return write.count("!")

    @node
    def publish(ctx, review):
        return review["write"]

    def graph(most):
        review = Graph("review", [write, grade]).until("grade", lambda g: g >= 2, most=most)
        return Graph("flow", [review, publish])

    chat = hf.conversation("c")
    walk = hf.nodes.process(graph(5), chat, topic="owls")
    assert walk.value("publish") == "owls!!"
    assert [*walk.states][:2] == ["review/write@1", "review/grade@1"]
    assert walk["review/write"].value == "owls!!"
    assert [one.value["content"] for one in walk.sequence] == ["round 1", "round 2", "round 3"]
    assert walk.exhausted == ()
    calls.take()
    assert hf.nodes.process(graph(5), chat, topic="owls").counts["hit"] == 7
    short = hf.nodes.process(graph(2), chat, topic="owls")
    assert (short.exhausted, short.value("publish")) == (("review",), "owls!")
    assert calls.take() == []
    alone = Graph("review", [write, grade]).until("grade", lambda g: g >= 1, most=3)
    assert hf.nodes.process(alone, chat, topic="x")["write"].value == "x!"


def test_what_is_handed_out_is_a_copy_of_ones_own(hf: Store):
    """A node, a dependent or a caller that changes what it was given changes nothing else."""
    thread = ["hi"]

    @node
    def first(ctx, thread):
        thread.append("changed by first")
        value = {"a": [1]}
        ctx.message("system", value)
        value["a"].append(2)
        return value

    @node
    def second(ctx, first, thread):
        first["a"].append(3)
        return [first, thread]

    @node
    def third(ctx, first, thread):
        return [first, thread]

    graph, chat = Graph("copies", [first, second, third]), hf.conversation("c")
    walk = hf.nodes.process(graph, chat, thread=thread)
    assert thread == ["hi"]
    assert walk.value("third") == [{"a": [1, 2]}, ["hi"]]
    assert walk.sequence[0].value["content"] == {"a": [1]}
    walk.states["first"].value["a"].append(9)
    walk.sequence[0].value["content"]["a"].append(9)
    again = hf.nodes.process(graph, chat, thread=thread)
    assert again.value("first") == {"a": [1, 2]}
    assert again.sequence == walk.sequence


def test_large_values_are_blobs(hf: Store, calls: Calls):
    @node
    def large(ctx, n):
        calls("large")
        ctx.message("system", "y" * 100_000)
        return ["x" * 100_000, n]

    @node
    def size(ctx, large):
        return len(large[0])

    graph, chat = Graph("large", [large, size]), hf.conversation("c")
    for _ in range(3):
        walk = hf.nodes.process(graph, chat, n=1)
        assert walk.value("size") == 100_000
        assert len(walk.sequence[0].value["content"]) == 100_000
    [event] = [
        e
        for e in hf.follow(as_events=True, after=START, timeout_s=0)
        if e.type == "node.computed" and e.data["node"] == "large"
    ]
    assert len(event.record.payload) < 4000
    assert hf.check().ok


def test_inputs_that_are_ignored_and_inputs_with_defaults(hf: Store, calls: Calls):
    @node(ignore=("client",))
    def one(ctx, client, text, style="plain"):
        calls("one")
        return client.upper(text) + style

    class Client:
        def upper(self, text):
            return text.upper()

    graph, chat = Graph("ignored", [one]), hf.conversation("c")
    for _ in range(2):
        assert hf.nodes.process(graph, chat, client=Client(), text="a").value("one") == "Aplain"
    hf.nodes.process(graph, chat, client=Client(), text="a", style="bold")
    assert calls.take() == ["one", "one"]


# --- bad input ------------------------------------------------------------------------------------


def test_a_graph_that_cannot_be_walked_is_refused():
    @node
    def a(ctx, b):
        return b

    @node
    def b(ctx, a):
        return a

    @node(name="a")
    def other(ctx):
        return 1

    @node
    def own(ctx, own):
        return own

    with pytest.raises(UsageError, match="cycle: a -> b -> a"):
        Graph("g", [a, b])
    with pytest.raises(UsageError, match="cycle: own -> own"):
        Graph("g", [own])
    with pytest.raises(UsageError, match='two nodes of the name "a"'):
        Graph("g", [a, other])
    with pytest.raises(UsageError, match="has no nodes"):
        Graph("g", [])
    with pytest.raises(UsageError, match="made of nodes"):
        Graph("g", [len])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="has no bound"):
        Graph("g", [other]).until("a", bool)
    with pytest.raises(UsageError, match="no node"):
        Graph("g", [other]).until("b", bool, most=2)
    with pytest.raises(UsageError, match="separates names"):
        Graph("g/h", [other])
    with pytest.raises(UsageError, match="a setting of process"):

        @node
        def wrong(ctx, force):
            return 1

        Graph("g", [wrong])


@pytest.mark.parametrize(
    "how",
    [
        {"effect": "txn"},
        {"track": "all"},
        {"stale": "never"},
        {"version": 1},
        {"keep": 0},
        {"keep": "some"},
        {"keep": "0MB"},
        {"ttl": "soon"},
        {"equal": 3},
        {"always": 1},
        {"ignore": ("nobody",)},
        {"name": ""},
    ],
)
def test_settings_of_a_node_are_checked(how):
    with pytest.raises(UsageError):

        @node(**how)
        def one(ctx):
            return 1


def test_nothing_is_written_of_a_walk_that_is_refused(hf: Store):
    chat = hf.conversation("c")

    @node
    def one(ctx, x):
        return x

    @node
    def unstorable(ctx, x):
        return {"a": object()}

    @node
    def unruly(ctx, x):
        ctx.rule(len)

    @node
    def skips(ctx, x):
        ctx.skip("nobody")

    graph = Graph("one", [one])
    for inputs in ({}, {"x": 1, "y": 2}):
        with pytest.raises(UsageError, match="input"):
            hf.nodes.process(graph, chat, **inputs)
    with pytest.raises(ValueDomainError) as caught:
        hf.nodes.process(graph, chat, x=[object()])
    assert caught.value.path == (0,)
    for bad, error in ((unstorable, ValueDomainError), (unruly, UsageError), (skips, UsageError)):
        with pytest.raises(error):
            hf.nodes.process(Graph("bad", [bad]), chat, x=1)
    with pytest.raises(UsageError):
        hf.nodes.process("one", chat, x=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        hf.nodes.process(graph, "nowhere/x", x=1)
    assert not [
        event
        for event in hf.follow(as_events=True, after=START, timeout_s=0)
        if event.stream.startswith("node/")
    ]
    with pytest.raises(UsageError, match="no level"):
        hf.scope("node/one/conversation/c")


def test_damaged_state_is_an_error_of_its_node_alone(mem: Store, calls: Calls):
    graph, chat = pair(calls), mem.conversation("c")
    two = Graph("planner", [*graph.members.values(), _lone(calls)])
    mem.nodes.process(two, chat, thread=["hi"])
    calls.take()
    table = mem._kernel.part(Nodes).table("planner", "conversation/c")
    newest = table.entries("flags")[0]
    broken = holdfast.Event(newest.record).record
    newest.record, newest._content, newest.hit = _damaged(broken), None, None
    mem._kernel.part(Nodes).idle.clear()
    with pytest.raises(holdfast.CorruptError, match='state of node "flags"') as caught:
        mem.nodes.process(two, chat, force=["lone"], thread=["hi"])
    assert caught.value.hint == "process it with force to replace it"
    assert calls.take() == ["lone"]  # the others go on
    walk = mem.nodes.process(two, chat, force=["flags"], thread=["hi"])
    assert (walk.states["flags"].status, calls.take()) == ("computed", ["flags"])
    assert mem.nodes.process(two, chat, thread=["hi"]).counts["hit"] == 3


def _lone(calls: Calls):
    @node
    def lone(ctx):
        calls("lone")

    return lone


def _damaged(record):
    from msgspec.structs import replace

    return replace(record, payload=b'{"node":1}')


def test_a_long_stream_is_not_read_as_a_whole(hf: Store, calls: Calls, monkeypatch):
    """The results of a node are found by its name, among however many others."""
    graph, chat = pair(calls), hf.conversation("c")
    for number in range(20):
        hf.nodes.process(graph, chat, thread=[f"{number}"])
    calls.take()
    monkeypatch.setattr(results, "WHOLE_MAX", 3)
    monkeypatch.setattr(hf.nodes, "_nodes", Nodes(hf._kernel))  # as a new process would begin
    table = hf.nodes._nodes.table("planner", "conversation/c")
    assert hf.nodes.process(graph, chat, thread=["19"]).counts["hit"] == 2
    assert not table._is_whole
    assert hf.nodes.process(graph, chat, thread=["12"]).counts["hit"] == 2
    assert calls.take() == []
    hf.nodes.process(graph, chat, thread=["0"])  # twenty others are newer: it is not kept
    assert calls.take() == ["flags"]
    assert hf.nodes.process(graph, chat, thread=["0"]).states["flags"].status == "hit"
    assert table.names() == ["flags", "picker"]
    hf.nodes.invalidate(graph, chat)
    hf.nodes.process(graph, chat, thread=["0"])
    assert calls.take() == ["flags", "picker"]
    keys = [
        event.key
        for event in hf.follow(as_events=True, after=START, timeout_s=0)
        if event.type == "node.computed"
    ]
    assert len(keys) == len({*keys}) == 24
    monkeypatch.setattr(hf.nodes, "_nodes", Nodes(hf._kernel))
    hf.nodes.invalidate(graph, chat, "picker")
    assert hf.nodes.process(graph, chat, thread=["0"]).states["picker"].status == "computed"
    assert calls.take() == ["picker"]


def test_results_travel_with_a_copy(hf: Store, calls: Calls, tmp_path: Path):
    graph, chat = pair(calls), hf.conversation("c")
    hf.nodes.process(graph, chat, thread=["hi"])
    calls.take()
    with holdfast.open(tmp_path / "copy") as other:
        copy(hf, other)
        walk = other.nodes.process(graph, other.conversation("c"), thread=["hi"])
        assert (walk.counts["hit"], calls.take()) == (2, [])
