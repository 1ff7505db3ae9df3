"""A run or node that reads sealed data is its subject's from there on, and goes with the subject.

BOOT-32: a person can be forgotten.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Context, Store, aio
from holdfast.errors import ErasedError, RunFailedError, StillRunningError, UsageError
from holdfast.nodes import Graph, node
from holdfast.runs.engine import Engine
from tests.record.stores import ALL, DURABLE, new_url
from tests.record.test_subjects import stored
from tests.runs.cuts import until

WORD = "CANARY-c3d9"
SECRET = WORD.encode()
ROOT = Path(__file__).parent.parent.parent
OPEN: dict[str, Store] = {}


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(url: str, tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(url, keys=tmp_path / "keys") as store:
        OPEN["hf"] = store
        filled(store)
        yield store


def filled(hf: Store) -> None:
    team = hf.team("red")
    team.set("mail", WORD, subject="ada")
    team.set("kept", {"n": 1})
    team.set(("kept", "mail"), WORD, subject="ada")
    team.set("bob", "bob@x.org", subject="bob")
    team.messages.add("user", WORD, subject="ada")
    team.facts.state("place", WORD, subject="ada")
    hf.conversation(own_id(hf), subject="ada").set("mail", WORD)


def own_id(hf: Store) -> str:
    return hf.subjects.pseudonym("ada")


def team() -> Any:
    return OPEN["hf"].team("red")


def own() -> Any:
    return OPEN["hf"].conversation(own_id(OPEN["hf"]))


@holdfast.step(effect="pure")
def looks(what: str) -> Any:
    return READS[what](None)


READS: dict[str, Callable[[Any], Any]] = {
    "ctx.read": lambda ctx: ctx.read(team(), "mail"),
    "ctx.read of a container": lambda ctx: ctx.read(team(), "kept")["mail"],
    "ctx.read of their scope": lambda ctx: ctx.read(own(), "mail"),
    "get": lambda ctx: team().get("mail"),
    "get in a step": lambda ctx: looks("get"),
    "their scope": lambda ctx: own().get("mail"),
    "their scope in a step": lambda ctx: looks("their scope"),
    "a message": lambda ctx: team().messages.last(1)[0].content,
    "a fact": lambda ctx: team().facts.get("place").value,
    "a container": lambda ctx: ctx.let("kept", team().get("kept")).value["mail"],
    "an older state": lambda ctx: team().at(1)["mail"],
}


@holdfast.step(effect="pure")
def doubles(text: str) -> str:
    return text * 2


@holdfast.step(effect="effect")
def fails(text: str) -> str:
    raise ValueError(f"wrong: {text}")


@holdfast.run(name="tainted.child")
def child(ctx: Context, text: str) -> str:
    ctx.state.set("text", text)
    return text


@holdfast.run(name="tainted.all")
def does_all(ctx: Context, how: str) -> Any:
    word = READS[how](ctx)
    assert word == WORD
    name = ctx.let("name", word)
    name.set(f"{word} again")
    ctx.const("large", word * 9000)
    ctx.state.set("name", word)
    ctx.state.set("large", word * 9000)
    doubled = doubles(word)
    heard = ctx.join(ctx.child(child, word))
    try:
        fails(word)
    except holdfast.StepError as error:
        ctx.let("wrong", str(error))
    for number in ctx.each([1]):
        ctx.let(f"n{number}", word)
    both = ctx.parallel(one=ctx.branch(doubles, word), two=ctx.branch(doubles, word))
    said = ctx.signal("go")
    return [word, doubled, heard, said, both, word * 9000]


@pytest.mark.parametrize("how", READS)
def test_all_that_follows_a_sealed_read_is_sealed(hf: Store, how: str) -> None:
    run = hf.runs.start(does_all, how, id="r")
    until(run, "waiting")
    hf.runs.signal("r", "go", f"{WORD} sent")
    run.result(timeout=60)
    assert_sealed_and_gone(hf, run)


def assert_sealed_and_gone(hf: Store, run: Any) -> None:
    found = stored(hf)
    assert SECRET not in found
    receipt = hf.subjects.erase("ada")
    assert {f"run/{run.id}", f"workflow/{run.id}"} <= {one.scope for one in receipt.scopes}
    for ask in (run.result, lambda: hf.runs.get(run.id), lambda: hf.runs.resume(run.id)):
        with pytest.raises(ErasedError, match=run.id):
            ask()
    assert list(hf.runs.list()) == []
    assert hf.check().findings == []


@holdfast.run(name="tainted.fails")
def fails_at_last(ctx: Context) -> None:
    raise ValueError(team().get("mail"))


def test_the_error_of_a_run_is_sealed(hf: Store) -> None:
    run = hf.runs.start(fails_at_last, id="r")
    with pytest.raises(RunFailedError, match=WORD):
        run.result()
    assert_sealed_and_gone(hf, run)


@holdfast.run(name="tainted.given")
def is_given(ctx: Context, given: Any) -> Any:
    ctx.let("given", given["mail"])
    return given


def test_a_run_that_is_given_sealed_values_is_the_subjects_from_the_start(hf: Store) -> None:
    run = hf.runs.start(is_given, team().get("kept"), id="r")
    assert run.result() == {"n": 1, "mail": WORD}
    with pytest.raises(UsageError, match="one run is one subject's"):
        hf.runs.start(is_given, {"a": team().get("kept"), "b": mixed(hf)}, id="both")
    with pytest.raises(UsageError, match="one run is one subject's"):
        hf.runs.start(is_given, team().get("kept"), id=hf.subjects.pseudonym("b"), subject="bob")
    assert_sealed_and_gone(hf, run)


def mixed(hf: Store) -> Any:
    hf.team("red").set("bobs", {})
    hf.team("red").set(("bobs", "mail"), "bob@x.org", subject="bob")
    return hf.team("red").get("bobs")


@holdfast.run(name="tainted.second")
def reads_a_second(ctx: Context) -> str:
    ctx.read(team(), "mail")
    return str(team().get("bob"))


def test_a_second_subject_is_refused_by_name(hf: Store) -> None:
    run = hf.runs.start(reads_a_second, id="r")
    with pytest.raises(RunFailedError, match="one run is one subject's"):
        run.result()
    names = [hf.subjects.get(one).id for one in ("ada", "bob")]
    with pytest.raises(RunFailedError, match=f"{names[0]}.*{names[1]}"):
        run.result()
    assert_sealed_and_gone(hf, run)


@holdfast.run(name="tainted.waits")
def waits(ctx: Context) -> Any:
    ctx.read(team(), "mail")
    return ctx.wait("go on")


def test_what_is_sent_later_is_sealed_by_whoever_sends_it(tmp_path: Path) -> None:
    url = new_url("files", tmp_path)
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        OPEN["hf"] = hf
        filled(hf)
        run = hf.runs.start(waits, id="r")
        while run.status != "waiting":
            pass
        with pytest.raises(UsageError, match="sealed for a subject"):
            hf.runs.send("r", "ambient", mixed(hf))
        hf.runs.send("r", "ambient", team().get("kept"))
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        OPEN["hf"] = hf
        fork = hf.runs.fork("r", at=3, id="f", signals="copy")
        hf.runs.answer("r", "go on", WORD)
        assert hf.runs.resume("r").result() == WORD
        hf.runs.resume(fork.id)
        while hf.runs.get("f").status != "waiting":
            pass
        assert SECRET not in stored(hf)
        hf.subjects.erase("ada")
        for id in ("r", "f"):
            with pytest.raises(ErasedError, match=id):
                hf.runs.get(id)


there, go = threading.Event(), threading.Event()


@holdfast.step(effect="pure")
def slow() -> None:
    there.set()
    go.wait()


@holdfast.run(name="tainted.slow")
def is_slow(ctx: Context) -> str:
    word = str(ctx.read(team(), "mail"))
    slow()
    ctx.let("word", word)
    return word


def test_an_unfinished_run_ends_with_its_subject_by_name(hf: Store) -> None:
    there.clear()
    go.clear()
    run = hf.runs.start(is_slow, id="r")
    there.wait()
    execution = hf._kernel.part(Engine).active["r"]
    hf.subjects.erase("ada")
    go.set()
    execution.over.wait()
    with pytest.raises(ErasedError):
        run.result(timeout=60)
    with pytest.raises(ErasedError, match='run "r"'):
        hf.runs.get("r")
    assert SECRET not in stored(hf)
    assert list(hf.runs.list()) == []
    assert hf.check().findings == []


KILLED = """
import os, sys
import holdfast
from holdfast.runs import engine
from holdfast.runs.execution import Execution
from tests.runs import test_tainted_runs as tainted

def dies(self):
    self.push()
    self.in_flight.wait()
    os._exit(9)

engine.LEASE_S = 0.3
Execution._begin_sealed = dies
hf = tainted.OPEN["hf"] = holdfast.open(sys.argv[1], keys=sys.argv[2])
tainted.filled(hf)
hf.runs.start(tainted.copies, id="r").result()
"""


@holdfast.run(name="tainted.copies")
def copies(ctx: Context) -> Any:
    ctx.state.set("phase", "begun")
    word = ctx.read(team(), "mail")
    ctx.state.set("copy", word)
    return [word, ctx.signal("go")]


@pytest.mark.parametrize("backend", DURABLE)
def test_what_a_killed_process_did_not_seal_is_sealed_by_who_resumes(
    backend: str, tmp_path: Path
) -> None:
    url, keys = new_url(backend, tmp_path), str(tmp_path / "keys")
    killed = subprocess.run([sys.executable, "-c", KILLED, url, keys], cwd=ROOT, check=False)
    assert killed.returncode == 9
    with holdfast.open(url, keys=keys) as sender, holdfast.open(url, keys=keys) as hf:
        OPEN["hf"] = hf
        ada = hf._log.subject_of("run/r")
        assert (ada is not None, hf._log.subject_of("workflow/r")) == (True, None)
        run = hf.runs.get("r")
        with pytest.raises(StillRunningError):
            run.result(timeout=0)  # it is resumed as soon as the lease of the dead is over
        until(run, "waiting")
        sender.runs.signal("r", "go", f"{WORD} sent")
        assert run.result(timeout=60) == [WORD, f"{WORD} sent"]
        assert SECRET not in stored(hf)
        receipt = hf.subjects.erase("ada")
        assert {"run/r", "workflow/r", "inbox/run/r"} <= {one.scope for one in receipt.scopes}


def test_asyncio_seals_too(tmp_path: Path) -> None:
    @holdfast.run(name="tainted.async")
    async def asks(ctx: Any, scope: Any) -> str:
        word = await ctx.read(shared, "mail")
        ctx.let("word", word)
        await ctx.step(doubles, word)
        return str(word)

    async def main() -> None:
        nonlocal shared
        async with await aio.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
            shared = hf.team("red")
            await shared.set("mail", WORD, subject="ada")
            run = await hf.runs.start(asks, 1)
            assert await run.result() == WORD
            assert SECRET not in stored(hf.sync)
            await hf.subjects.erase("ada")
            with pytest.raises(ErasedError):
                await run.result()

    shared: Any = None
    asyncio.run(main())


def four_forms(hf: Store) -> Graph:
    """Returns a graph whose nodes store what they read in each form that there is."""

    @node
    def inline(ctx: Any) -> Any:
        return [ctx.read(team(), "mail")]

    @node
    def large(ctx: Any) -> Any:
        return ctx.read(team(), "mail") * 9000

    @node
    def artifact(ctx: Any) -> int:
        ctx.message("user", team().get("mail"))
        return 1

    @node(keep_failures="1h")
    def fault(ctx: Any) -> int:
        raise ValueError(own().get("mail"))

    return Graph(f"forms-{id(hf)}", [inline, large, artifact, fault])


def test_results_of_nodes_are_the_subjects_in_every_form(hf: Store) -> None:
    graph = four_forms(hf)
    blue = hf.team("blue")
    blue.set("n", 1)
    with pytest.raises(Exception, match=WORD):
        hf.nodes.process(graph, blue)
    assert SECRET not in stored(hf)
    receipt = hf.subjects.erase("ada")
    assert any(one.scope.startswith("node/") for one in receipt.scopes)
    assert hf.check().findings == []


def test_a_node_that_reads_a_second_subject_is_refused(hf: Store) -> None:
    @node
    def one(ctx: Any) -> Any:
        return ctx.read(team(), "mail")

    @node
    def two(ctx: Any, one: Any) -> Any:
        return ctx.read(team(), "bob")

    graph = Graph(f"second-{id(hf)}", [one, two])
    with pytest.raises(UsageError, match="one key seals them"):
        hf.nodes.process(graph, hf.team("blue"))
    assert SECRET not in stored(hf)
