"""Causes that refer to other results: long chains, diamonds, the tree of `why`, results of old."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

import holdfast
from holdfast import Graph, Store, UsageError, node
from holdfast.cli import main
from holdfast.core import codec
from holdfast.errors import NodeError
from holdfast.nodes import Cause, process_node
from holdfast.nodes.causes import DEEP, NESTED_MAX, told, unnested
from holdfast.render.nodes import why_document, why_lines
from tests.fixtures import content_nodes as old
from tests.nodes.graphs import chain, lattice, link, reading_chain
from tests.nodes.witness import Calls
from tests.record.stores import new_url

FIXTURE = Path(__file__).parent.parent / "fixtures/nodes-1.tar.zst"
SCOPE = "conversation/c"


@pytest.fixture
def usual_stack() -> Iterator[None]:
    """Python's own limit on its stack: prose programs that ran before have raised it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def size(hf: Store, graph: Graph) -> int:
    """Returns how many bytes the results of a graph have."""
    return sum(len(one.payload) for one in hf._log.records(f"node/{graph.name}/{SCOPE}"))


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_chain_longer_than_the_stack_is_computed_read_and_explained(kind: str, tmp_path: Path):
    """NODE-5, NODE-13: a chain of 260 nodes whose head changes, and a hit in another handle."""
    graph, url = chain("long", 260), new_url(kind, tmp_path)
    with holdfast.open(url, durability="process") as hf:
        hf.nodes.process(graph, SCOPE, x=1)
        before = size(hf, graph)
        walk = hf.nodes.process(graph, SCOPE, x=10)
        assert (walk.counts["computed"], walk.value("n259")) == (260, 270)
        assert size(hf, graph) < 2.2 * before  # as much again, and a few words for each cause
        assert hf.nodes.process(graph, SCOPE, x=10).counts["hit"] == 260
        why = hf.nodes.why(graph, "n259", SCOPE)
        lines = [*why_lines(why)]
        assert lines[-2:] == ["  and 471 more", "  it began with input x: 1 -> 10"]
        assert codec.decode(codec.encode(why_document(why)))["more"] == 471
        assert hf.check().ok
    with holdfast.open(url, durability="process") as hf:
        assert process_node(hf, graph, "n259", SCOPE, inputs={"x": 10}).status == "hit"
        assert process_node(hf, graph, "n259", SCOPE, inputs={"x": 20}).value == 280


def test_a_lattice_has_as_many_bytes_as_it_has_edges(mem: Store):
    """Each of 400 nodes has two before it: there are 2^200 ways from the last one to the input."""
    graph = lattice("lattice", 200)
    mem.nodes.process(graph, SCOPE, x=1)
    before = size(mem, graph)
    assert mem.nodes.process(graph, SCOPE, x=10).counts["computed"] == 400
    assert size(mem, graph) < 2.2 * before
    why = mem.nodes.why(graph, "a199", SCOPE, limit=None)
    assert [(one.name, one.old, one.new) for one in why.roots] == [("x", "1", "10")]
    [first, second] = why.cause.causes
    assert [first.name, second.name] == ["a198", "b198"]
    assert second.causes[0].causes[0].text == "as said already"


def test_the_tree_of_causes_ends_at_a_bound_and_counts_the_rest(mem: Store):
    graph = chain("bound", 20)
    mem.nodes.process(graph, SCOPE, x=1)
    mem.nodes.process(graph, SCOPE, x=2)

    def depth(cause: Cause) -> int:
        return 1 + max(map(depth, cause.causes), default=0)

    whole = mem.nodes.why(graph, "n19", SCOPE)
    assert (whole.more, depth(whole.cause)) == (0, 40)
    assert not [line for line in why_lines(whole) if "more" in line or "began" in line]
    for limit in (1, 2, 9, 39):
        found = mem.nodes.why(graph, "n19", SCOPE, limit=limit)
        assert (found.more, depth(found.cause)) == (39 - limit, limit + 1)
        assert found.roots == whole.roots
    with pytest.raises(UsageError):
        mem.nodes.why(graph, "n19", SCOPE, limit=0)


def test_what_was_not_looked_at_is_said_to_be_more(monkeypatch: pytest.MonkeyPatch, mem: Store):
    monkeypatch.setattr("holdfast.nodes.causes.LOOKED_AT", 10)
    graph = chain("many", 30)
    mem.nodes.process(graph, SCOPE, x=1)
    mem.nodes.process(graph, SCOPE, x=2)
    why = mem.nodes.why(graph, "n29", SCOPE, limit=5)
    assert (why.more, why.more_is_exact) == (16, False)
    assert [*why_lines(why)][-1] == "  and at least 16 more"


def test_a_cause_whose_result_is_no_longer_kept_says_so(mem: Store):
    """The result that a cause refers to is one of `keep` only while few others came since."""
    few = node(keep=2, version="1")(link("few", "x").function)
    alone = node(version="1")(link("alone", "few", "y").function)
    graph = Graph("kept", [few, alone])
    for x in (1, 2):
        mem.nodes.process(graph, SCOPE, x=x, y=0)
    for x in (3, 4):
        process_node(mem, graph, "few", SCOPE, inputs={"x": x, "y": 0})
    [cause] = mem.nodes.why(graph, "alone", SCOPE).cause.causes
    assert cause.text == "its result is no longer kept"
    assert cause.causes[0].causes[0].new == "2"  # the store still has it
    [unknown] = mem.nodes.why("kept", "alone", SCOPE).cause.causes
    assert unknown.text == ""  # without the code, nobody knows how many are kept


def test_a_cause_whose_result_is_gone_or_damaged_says_so():
    cause = Cause("dependency", "n1", result=5)
    top = Cause("dependency", "n2", causes=(cause,))
    found = told(top, lambda _: (None, "its result was let go of"), 10)
    [below] = found.cause.causes
    assert (below.text, below.causes, found.roots) == ("its result was let go of", (), ())


def test_a_cause_refers_to_what_was_computed_since_and_not_to_an_older_result(hf: Store):
    """What another walk has computed, such as one that was killed, explains this one's result."""
    one = node(version="1")(link("one", "x").function)
    two = node(version="1", keep=1)(link("two", "one").function)
    graph = Graph("since", [one, two])
    hf.nodes.process(graph, SCOPE, x=1)
    process_node(hf, graph, "one", SCOPE, inputs={"x": 2})  # and then the walk was killed
    hf.nodes.process(graph, SCOPE, x=2)
    [cause] = hf.nodes.why(graph, "two", SCOPE).cause.causes
    assert [one.name for one in cause.causes[0].causes] == ["x"]
    hf.nodes.process(graph, SCOPE, x=1)  # `one` has its first result again
    [cause] = hf.nodes.why(graph, "two", SCOPE).cause.causes
    assert (cause.kind, cause.name, cause.causes) == ("dependency", "one", ())


def test_acceptances_may_stand_on_each_other(mem: Store):
    graph = Graph("accepted", [link("one", "x"), link("two", "one")])
    mem.nodes.process(graph, SCOPE, x=0)
    for x in range(1, 80):
        mem.nodes.accept(graph, "one", SCOPE, author=f"a{x}", x=x)
    assert mem.nodes.process(graph, SCOPE, x=79).counts["hit"] == 2
    cause = mem.nodes.why(graph, "one", SCOPE, limit=None).cause
    said = [cause, cause.causes[0], cause.causes[0].causes[0]]
    assert [one.name for one in said] == ["a79", "a78", "a77"]


def test_a_walk_over_many_nodes_reads_a_long_stream_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A search for each of 26,000 nodes took minutes, where to read two results of each takes one.

    One node of them is looked up by its name.
    """
    monkeypatch.setattr("holdfast.nodes.results.WHOLE_MAX", 10)
    graph, url = chain("whole", 20), new_url("sqlite", tmp_path)
    with holdfast.open(url, durability="process") as hf:
        for x in (1, 2):
            hf.nodes.process(graph, SCOPE, x=x)
    with holdfast.open(url, durability="process") as hf:
        searched: list[object] = []
        find = hf._log.find
        monkeypatch.setattr(hf._log, "find", lambda *a, **k: searched.append(a) or find(*a, **k))
        assert process_node(hf, graph, "n1", SCOPE, inputs={"x": 2}).status == "hit"
        assert len(searched) == 3  # two nodes, and what invalidates all of them
        assert hf.nodes.process(graph, SCOPE, x=2).counts["hit"] == 20
        assert hf.nodes.process(graph, SCOPE, x=3).counts["computed"] == 20
        assert len(searched) == 3


# --- depth ----------------------------------------------------------------------------------------


def test_nodes_that_read_each_other_are_checked_without_recursion(mem: Store):
    """Results of nodes that read each other, in an order in which each finds the next unknown."""
    nodes = reading_chain(700, "team/t")
    up, down = Graph("read", nodes), Graph("read", reversed(nodes))
    assert mem.nodes.process(up, SCOPE).counts["computed"] == 700
    assert mem.nodes.process(down, SCOPE).counts["hit"] == 700
    mem.team("t").set("k", 5)
    assert mem.nodes.process(down, SCOPE).value("n699") == 705
    assert process_node(mem, up, "n699", SCOPE).status == "hit"


@pytest.mark.usefixtures("usual_stack")
def test_functions_that_wait_for_each_other_too_deep_are_refused_by_name(mem: Store):
    graph = Graph("waits", reversed(reading_chain(400, "team/t")))
    with pytest.raises(UsageError, match=r'read each other \d+ deep .*, from "n398" to "n\d+"'):
        mem.nodes.process(graph, SCOPE)
    assert mem.nodes.process(Graph("waits", reading_chain(400, "team/t")), SCOPE)

    def own(ctx, depth=0):
        return own(ctx, depth + 1)

    with pytest.raises(NodeError, match="RecursionError"):
        mem.nodes.process(Graph("own", [node(version="1")(own)]), SCOPE)


def test_a_long_cycle_is_named_and_deep_graphs_are_refused(calls: Calls):
    nodes = [link(f"n{n}", f"n{n - 1}" if n else "n1999") for n in range(2000)]
    with pytest.raises(UsageError, match=r"has a cycle: n0 -> n1999 -> n1998 .* n1 -> n0"):
        Graph("cycle", nodes)
    graph = Graph("g0", [link("n", "x")])
    for depth in range(1, 64):
        graph = Graph(f"g{depth}", [graph])
    with holdfast.open("memory:") as hf:
        walk = hf.nodes.process(graph, SCOPE, x=1)
        assert walk.counts["computed"] == 1
        assert hf.nodes.plan(graph, None, SCOPE, x=1).nodes[0].verdict == "hit"
    with pytest.raises(UsageError, match='"g64" is nested 65 deep: graphs nest at most 64 deep'):
        Graph("g64", [graph])


# --- results of old -------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """A store whose results nest the causes of their inputs; some too deep for Python to decode."""
    packed = zstandard.ZstdDecompressor().decompress(FIXTURE.read_bytes(), max_output_size=1 << 26)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path, filter="data")
    return f"sqlite:{tmp_path / 'store.db'}"


def test_results_that_nest_their_causes_are_hits_and_say_why(stored: str):
    with holdfast.open(stored) as hf:
        for graph in old.GRAPHS:
            walk = hf.nodes.process(graph, SCOPE, x=10)
            assert walk.counts["hit"] == len(graph.members), graph.name
        why = hf.nodes.why(old.SHORT, "n11", SCOPE)
        assert (why.more, [one.name for one in why.roots]) == (0, ["x"])
        assert [*why_lines(why)][-1].endswith("input x: 1 -> 10")
        diamonds = hf.nodes.why(old.LATTICE, "a7", SCOPE)
        assert diamonds.more > 0
        assert len([*why_lines(diamonds)]) < 120
        before = size(hf, old.SHORT)
        assert hf.nodes.process(old.SHORT, SCOPE, x=11).counts["computed"] == 12
        assert size(hf, old.SHORT) - before < 12 * 1000
        assert [one.new for one in hf.nodes.why(old.SHORT, "n11", SCOPE).roots] == ["11"]


@pytest.mark.usefixtures("usual_stack")
def test_results_that_nest_deeper_than_python_reads_are_read(stored: str):
    with holdfast.open(stored) as hf:
        assert hf.check().ok
        deepest = hf._log.records(f"node/deep/{SCOPE}")[-1].payload
        assert deepest.count(b'"causes"') > 500
        with pytest.raises(holdfast.CorruptError):
            codec.decode(deepest)
        assert len(hf.nodes.list("deep", limit=None)) == 280
        why = hf.nodes.why(old.DEEP, "n279", SCOPE)
        assert why.more + len([*why_lines(why)]) > 500
        walk = hf.nodes.process(old.DEEP, SCOPE, run="r1", x=10)  # a journal can hold them
        assert walk.counts["hit"] == 280
        assert hf.nodes.process(old.DEEP, SCOPE, x=11).counts["computed"] == 280
        late = hf.nodes.why(old.DEEP, "n279", SCOPE)
        assert [(one.old, one.new) for one in late.roots] == [("10", "11")]


@pytest.mark.usefixtures("usual_stack")
def test_results_that_nest_deeper_are_backed_up_copied_salvaged_and_shown(
    stored: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files, saved = str(tmp_path / "files"), str(tmp_path / "saved")
    assert main(["backup", str(tmp_path / "backup"), "--store", stored]) == 0
    assert main(["copy", stored, files]) == 0
    assert main(["salvage", stored, saved]) == 0
    capsys.readouterr()
    for url in (stored, files, saved):
        with holdfast.open(url, read_only=True) as hf:
            report = hf.check(read_all=True)
            assert report.ok
            assert report.digest.startswith("3ea2effa4f82")
        assert main(["log", f"node/deep/{SCOPE}", "--limit", "1", "--store", url]) == 0
        shown = capsys.readouterr().out
        assert '"causes":[{"kind"' in shown
        assert shown.endswith("…\n")
        words = ["log", f"node/deep/{SCOPE}", "--limit", "1", "--json", "--store", url]
        assert main(words) == 0
        assert capsys.readouterr().out.count('"causes"') > 500


def test_cutting_nested_causes_looks_at_nothing_else():
    inner = b'{"kind":"input","name":"]]\\"}","text":"causes"}'
    for count in (0, 3, NESTED_MAX, 5 * NESTED_MAX):
        nested = b'{"kind":"dependency","causes":[' * count + inner + b"]}" * count
        value = b"[" * 300 + b'{"cause":{"causes":[[]]}}' + b"]" * 300
        payload = b'{"value":%b,"cause":%b,"parts":{"cause":[{}]}}' % (value, nested)
        cut = unnested(payload)
        if count < NESTED_MAX // 2 - 1:
            assert cut == payload
            continue
        found = codec.decode(cut)
        assert found["parts"] == {"cause": [{}]}
        cause, shown = found["cause"], 1
        while cause["causes"]:
            [cause] = cause["causes"]
            shown += 1
        assert (cause["more"], cut.count(value)) == (count + 1 - shown, 1)
    assert NESTED_MAX // 2 > DEEP
