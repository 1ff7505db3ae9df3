"""Every change says who made it and where it came from; what a source wrote can be taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NodeContext, Store, UsageError, aio, node, provenance
from holdfast.cli import main
from holdfast.query.form import check_query
from holdfast.query.scan import scan
from holdfast.record.context import RecordContext
from holdfast.store import Meta
from tests.opening import settled


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has indexes that lie with a user's caches lie with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@holdfast.event("provenance_test_seen")
@dataclass
class Seen:
    """An event of this module's own."""

    what: str


def write_all(scope: holdfast.Scope) -> None:
    """Writes one of everything."""
    scope.set("answer", 42)
    scope.messages.add("tool", "the answer is 42")
    with scope.decide("believe it", key="believe") as decision:
        decision.outcome("done")
    scope.tasks.add("look again", id="t1")
    scope.facts.state("answer", 42)
    scope.record(Seen, {"what": "it"})


def said_of(hf: Store, scope: str) -> set[tuple[str, str | None, str | None]]:
    return {(one.actor, one.source, one.trust) for one in hf.events(scope=scope, limit=None)}


def test_a_block_is_said_of_everything_that_is_written_in_it(hf: Store) -> None:
    chat = hf.conversation("a")
    with provenance(source="tool", actor="search", trust="low"):
        write_all(chat)
    chat.set("mine", 1)
    events = list(chat.history())
    assert {(one.actor, one.source, one.trust) for one in events[:-1]} == {
        ("search", "tool", "low")
    }
    assert (events[-1].actor, events[-1].source, events[-1].trust) == ("ada", None, None)
    assert hf.check().ok


def test_what_was_written_is_handed_out_with_it(hf: Store) -> None:
    chat = hf.conversation("a")
    with provenance(source="model", actor="m-1", trust="low"):
        message = chat.messages.add("assistant", "hello")
        recorded = chat.record(Seen, {"what": "it"})
        task = chat.tasks.add("look")
        decision = chat.decide("try", key="try")
        with hf.commit() as tx:
            joint = tx.scope(chat).messages.add("assistant", "again")
    for one in (message, joint, recorded):
        assert (one.actor, one.source, one.trust) == ("m-1", "model", "low")
    assert (task.created_by, task.source, task.trust) == ("m-1", "model", "low")
    assert (decision.stored.actor, decision.stored.source) == ("m-1", "model")
    read = chat.tasks.get(task.id)
    assert (read.source, read.trust) == ("model", "low")


def test_an_inner_block_says_more_and_the_store_says_the_rest(url: str) -> None:
    with holdfast.open(url, actor="ada", source="human", trust="high") as hf:
        team = hf.team("red")
        team.set("a", 1)
        with provenance(source="tool", actor="outer"):
            team.set("a", 2)
            with provenance(trust="low"):
                team.set("a", 3)
                with hf.commit(meta=Meta(source="web")) as tx:
                    tx.scope(team).set("a", 4)
        found = [(one.actor, one.source, one.trust) for one in team.history()]
    assert found == [
        ("ada", "human", "high"),
        ("outer", "tool", "high"),
        ("outer", "tool", "low"),
        ("outer", "web", "low"),
    ]


def test_a_batch_of_many_writers_keeps_them_apart(hf: Store) -> None:
    """Whoever leads a batch prepares the commits of the others: each says what its caller said."""

    def write(number: int) -> None:
        with provenance(source="tool", actor=f"w{number}"):
            for _ in range(20):
                hf.team(f"t{number}").increment("n")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    for number in range(4):
        assert said_of(hf, f"team/t{number}") == {(f"w{number}", "tool", None)}


def test_tasks_of_a_loop_keep_theirs_apart(tmp_path: Path) -> None:
    async def write(hf: aio.AsyncStore, name: str) -> None:
        with provenance(source="model", actor=name):
            for _ in range(5):
                await hf.team(name).increment("n")
            with pytest.raises(UsageError):
                await hf.undo()

    async def both() -> None:
        async with await aio.open(str(tmp_path / "store")) as hf:
            await asyncio.gather(write(hf, "a"), write(hf, "b"))
            assert [one.actor async for one in hf.team("a").history(source="model")] == ["a"] * 5
            page = await hf.events(actor="b", source="model", limit=None)
            assert [one.stream for one in page] == ["team/b"] * 5

    asyncio.run(both())


@pytest.mark.parametrize("given", [{"source": "modle"}, {"actor": ""}, {"trust": 7}, {"actor": 1}])
def test_what_is_no_provenance_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        provenance(**given)
    with pytest.raises(UsageError):
        holdfast.open("memory:", **settled(given))


def test_an_import_says_so(hf: Store) -> None:
    then = datetime(2020, 1, 1, tzinfo=UTC)
    with hf.commit(time=then) as tx:
        tx.scope(hf.team("red")).set("n", 1)
    with hf.commit(time=then, meta=Meta(source="crm")) as tx:
        tx.scope(hf.team("blue")).set("n", 1)
    assert [one.source for one in hf.team("red").history()] == ["import"]
    assert [one.source for one in hf.team("blue").history()] == ["crm"]


def test_reads_and_questions_filter_on_it(hf: Store) -> None:
    chat = hf.conversation("a")
    write_all(chat)
    with provenance(source="tool", actor="search", trust="low"):
        write_all(hf.conversation("b"))
    assert {one.stream for one in hf.events(source="tool", limit=None)} == {"conversation/b"}
    assert not hf.events(source="tool", trust="high")
    assert not list(chat.history(source="tool"))
    assert len(list(hf.conversation("b").history(trust="low", type="changed"))) == 1
    for kind in ("message", "decision", "task", "fact", "state", "event", "log"):
        for asked in ({"source": "tool"}, {"trust": "low"}, {"source": "tool", "trust": "low"}):
            hits = hf.query(kind=kind, **asked, limit=None)
            assert {hit.scope for hit in hits} == {"conversation/b"}, kind
            assert {(hit.source, hit.trust) for hit in hits} == {("tool", "low")}
            query = check_query(hf._log.clock.now_us(), kind=kind, **asked, limit=None)
            assert list(hits) == list(scan(hf._kernel.part(RecordContext), query))
    assert not hf.query(source="human")
    for wrong in ({"source": 7}, {"trust": b"low"}):
        with pytest.raises(UsageError):
            hf.events(**wrong)  # pyright: ignore[reportArgumentType]


# --- taking back ----------------------------------------------------------------------------------


def by_tool(change: Callable[[], object]) -> None:
    with provenance(source="tool", actor="search"):
        change()


def test_a_path_goes_back_to_what_it_was_before_its_newest_writer(hf: Store) -> None:
    team = hf.team("red")
    team.update({"a": 1, "b": 1, "c": {"x": 1}, "list": [1], "gone": 1, "m": {"k": 1}})
    by_tool(lambda: team.set("a", 2))
    by_tool(lambda: team.set("a", 3))
    by_tool(lambda: team.set("b", 2))
    by_tool(lambda: team.set(("c", "y", "z"), 2))
    by_tool(lambda: team.append("list", 2))
    by_tool(lambda: team.delete("gone"))
    by_tool(lambda: team.set("new", {"deep": {"er": 1}}))
    by_tool(lambda: team.set("m", 7))
    team.set("b", 3)
    team.set("mine", 1)
    preview = hf.undo(source="tool", dry_run=True)
    assert preview.is_preview
    assert preview.taken_back[0].revision is None
    assert team["a"] == 3
    done = hf.undo(source="tool")
    assert team.state.to_dict() == {
        "a": 1, "b": 3, "c": {"x": 1}, "list": [1], "gone": 1, "m": {"k": 1}, "mine": 1,
    }  # fmt: skip
    [taken] = done.taken_back
    assert (taken.scope, taken.revision) == ("team/red", team.revision)
    assert [change.path for change in taken.changes] == [
        change.path for change in preview.taken_back[0].changes
    ]
    [stays] = done.not_taken_back
    assert (stays.path, stays.why) == (("b",), "ada wrote it at revision 10")
    assert hf.check().ok
    assert not hf.undo(source="tool").taken_back  # its own events are not the tool's


def test_what_others_wrote_between_is_what_it_goes_back_to(hf: Store) -> None:
    team = hf.team("red")
    for number in range(3):
        team.set("a", f"human {number}")
        by_tool(lambda number=number: team.set("a", f"tool {number}"))
    hf.undo(actor="search")
    assert team["a"] == "human 2"


def test_what_somebody_else_wrote_inside_stays(hf: Store) -> None:
    team = hf.team("red")
    team.set("p", 1)
    by_tool(lambda: team.set("p", {"x": 1}))
    team.set(("p", "y"), 2)
    team.set("q", {"k": 1})
    by_tool(lambda: team.set("q", 5))
    team.set("q", 6)
    done = hf.undo(source="tool")
    assert team.state.to_dict() == {"p": {"y": 2}, "q": 6}
    assert {one.path for one in done.not_taken_back} >= {("p",), ("q",)}


def test_since_and_scope_narrow_it(hf: Store) -> None:
    red, blue = hf.team("red"), hf.team("blue")
    by_tool(lambda: red.set("a", 1))
    by_tool(lambda: blue.set("a", 1))
    begun = list(red.history())[-1].time
    hf.undo(source="tool", since=begun + timedelta(hours=1))
    assert (red["a"], blue["a"]) == (1, 1)
    hf.undo(source="tool", scope="team/r*", since="1h")
    assert (red.state.to_dict(), blue["a"]) == ({}, 1)
    with pytest.raises(UsageError, match="source, an actor or a trust"):
        hf.undo(since="1h")


def test_what_was_said_and_decided_stays_and_is_listed_with_what_depends(hf: Store) -> None:
    team = hf.team("red")

    @node
    def double(ctx: NodeContext) -> int:
        return 2 * ctx.read(team, "a", 0)

    graph = holdfast.Graph("sums", [double])

    with provenance(source="tool", actor="search"):
        team.set("a", 1)
        team.messages.add("tool", "a is 1")
        with team.decide("use a", key="use") as decision:
            decision.outcome("done")
    hf.nodes.process(graph, team)
    team.decide("build on it", key="build", links=["decision:use"]).outcome("done")
    copy = team.fork("copy")
    done = hf.undo(source="tool")
    assert team.get("a") is None
    assert copy["a"] == 1
    assert {one.type for one in done.not_taken_back} >= {"message.added", "decision.opened"}
    assert {(one.kind, one.scope, one.of) for one in done.dependents} == {
        ("decision", "team/red", "decision:use"),
        ("decision", "team/copy", "decision:use"),
        ("fork", "team/copy", f"team/red@{copy.revision - 1}"),
        ("node", "team/red", "team/red: a"),
    }


def test_closed_and_removed_scopes_are_not_written_to(hf: Store) -> None:
    for name in ("closed", "removed"):
        by_tool(lambda name=name: hf.team(name).set("a", 1))
    hf.team("closed").close()
    hf.team("removed").remove()
    done = hf.undo(source="tool")
    assert not done.taken_back
    assert [one.scope for one in done.not_taken_back if "closed" in one.why] == ["team/closed"]


def test_another_writer_in_between_is_seen(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned on an older state is planned again."""
    team = hf.team("red")
    team.set("a", 1)
    by_tool(lambda: team.set("a", 2))
    by_tool(lambda: team.set("b", 2))
    real, raced = holdfast.undo.Undoing._write, []

    def write(self: Any, stream: str, way: Any) -> int:
        if not raced:
            raced.append(1)
            team.set("a", 3)
        return real(self, stream, way)

    monkeypatch.setattr(holdfast.undo.Undoing, "_write", write)
    done = hf.undo(source="tool")
    assert team.state.to_dict() == {"a": 3}
    assert [one.path for one in done.not_taken_back] == [("a",)]


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line_says_filters_and_takes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store")
    holdfast.open(url).close()

    def run(*words: str, code: int = 0) -> str:
        assert main([*words, "--store", url]) == code
        return capsys.readouterr().out

    run("set", "team/red", "a", "1")
    monkeypatch.setenv("HOLDFAST_SOURCE", "tool")
    monkeypatch.setenv("HOLDFAST_TRUST", "low")
    run("set", "team/red", "a", "2")
    monkeypatch.delenv("HOLDFAST_SOURCE")
    monkeypatch.delenv("HOLDFAST_TRUST")
    found = json.loads(run("log", "--source", "tool", "--trust", "low", "--json"))
    assert [one["meta"] for one in found["events"]] == [{"source": "tool", "trust": "low"}]
    hits = json.loads(run("query", "--kind", "state", "--source", "tool", "--json"))["hits"]
    assert [(one["scope"], one["source"], one["trust"]) for one in hits] == [
        ("team/red", "tool", "low")
    ]
    plan = json.loads(run("undo", "--source", "tool", "--since", "1d", "--dry-run", "--json"))
    assert plan["preview"] is True
    assert plan["taken_back"][0]["changes"][0]["new"] == 1
    assert "would be taken back" in run("undo", "--trust", "low", "--dry-run")
    run("undo", "--source", "tool", code=2)  # nobody can be asked here
    assert json.loads(run("get", "team/red", "a", "--json"))["value"] == 2
    assert "1 paths in 1 scopes were taken back" in run("undo", "--source", "tool", "--yes")
    assert json.loads(run("get", "team/red", "a", "--json"))["value"] == 1
    assert "0 paths" in run("undo", "--by", "nobody", "--since", "2020-01-01", "--yes")
    for verb in (("undo", "--dry-run"), ("log",), ("query",)):  # misspelt, it would match nothing
        assert main([*verb, "--source", "tol", "--store", url]) == 2
        assert "source is one of human, model, tool" in capsys.readouterr().err
    run("undo", code=2)
    run("undo", "team/red", "--since", "1d", code=2)
    run("undo", "team/red")
    assert json.loads(run("get", "team/red", "a", "--json"))["value"] == 2
