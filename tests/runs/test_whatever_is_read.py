"""A run that reads a subject's scope is the subject's, however it reads, and if it was read before.

BOOT-32: a person can be forgotten. What is new here: much of what is read is kept in memory, and
an answer from memory counts as a read too. Whoever adds a way to read adds a row to `READS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Context, Store, aio
from holdfast.core.tree import Map
from holdfast.errors import RunFailedError
from holdfast.nodes import Graph, node, process_node
from tests.record.stores import new_url
from tests.record.test_subjects import stored

WORD = "CANARY-51be"
OPEN: dict[str, Any] = {}


@pytest.fixture(params=["files", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(new_url(request.param, tmp_path), keys=tmp_path / "keys") as store:
        OPEN["hf"] = store
        filled(store)
        yield store


@holdfast.projection(init=list, types=["noted_again"])
def words(found: list[str], event: Any) -> list[str]:
    return [*found, event.data["text"]]


@node
def theirs(ctx: Any) -> Any:
    return ctx.read(OPEN["scope"], "mail")


GRAPH = Graph("read-again", [theirs])


def filled(hf: Store) -> None:
    """Writes to a scope of ada's whatever a scope can hold; bob has one, too."""
    scope = OPEN["scope"] = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    scope.set("mail", WORD)
    scope.set("n", 1)
    scope.checkpoint(f"{WORD} point")
    OPEN["message"] = scope.say(f"{WORD} said").id
    scope.say(f"{WORD} and more")
    scope.messages.summarise(f"{WORD} in short")
    OPEN["task"] = scope.tasks.add(f"{WORD} to do").id
    scope.tasks.add(f"{WORD} to do first", priority="high")
    scope.facts.state("place", WORD)
    with scope.decide(f"{WORD} decided") as decision:
        decision.outcome("done")
    OPEN["decision"] = scope.decide(f"{WORD} open", owner="eve").id
    scope.decide(f"{WORD} stands", standing=True)
    scope.memory.notes.put("note", WORD, lifetime="session")
    scope.record("noted_again", {"text": WORD}, unchecked=True)
    OPEN["fork"] = scope.fork(hf.subjects.pseudonym("fork"))
    hf.conversation(hf.subjects.pseudonym("bob"), subject="bob").set("mail", "bob@x.org")
    hf.nodes.process(GRAPH, scope)
    hf.runs.start(its_own, id="theirs").result()


@holdfast.run(name="again.own")
def its_own(ctx: Context) -> Any:
    ctx.state.set("mail", OPEN["scope"].get("mail"))
    return OPEN["scope"].get("mail")


def in_view(read: Callable[[Any, Any], Any]) -> Callable[[Store, Any], Any]:
    def reads(hf: Store, s: Any) -> Any:
        return read(hf.view(), s)

    return reads


def in_commit(hf: Store, s: Any) -> Any:
    with hf.commit() as tx:
        return tx.scope(s).get("mail")


READS: dict[str, Callable[[Store, Any], Any]] = {
    "get": lambda hf, s: s.get("mail"),
    "lookup": lambda hf, s: s.lookup("mail"),
    "state": lambda hf, s: s.state.to_dict(),
    "at the newest": lambda hf, s: s.at(s.revision)["mail"],
    "at an older": lambda hf, s: s.at(3)["mail"],
    "diff": lambda hf, s: repr(s.diff(0)),
    "history": lambda hf, s: [one.data for one in s.history()],
    "states": lambda hf, s: [one.state.to_dict() for one in s.states()],
    "states, newest first": lambda hf, s: [
        one.state.to_dict() for one in s.states(newest_first=True)
    ],
    "checkpoints": lambda hf, s: [one.name for one in s.checkpoints()],
    "messages": lambda hf, s: [one.content for one in s.messages],
    "the last messages": lambda hf, s: s.messages[-1:][0].content,
    "last": lambda hf, s: s.messages.last(1)[0].content,
    "a message": lambda hf, s: s.messages.get(OPEN["message"]).content,
    "messages, a page": lambda hf, s: [one.content for one in s.messages.page().messages],
    "messages, rendered": lambda hf, s: s.messages.render(),
    "messages, as items": lambda hf, s: s.messages.items(),
    "messages, for a request": lambda hf, s: s.messages.for_request(),
    "messages at an older": lambda hf, s: [one.content for one in s.messages.at(s.revision)],
    "original messages": lambda hf, s: [one.content for one in s.messages.original()],
    "summaries": lambda hf, s: [one.text for one in s.messages.summaries()],
    "tasks": lambda hf, s: [one.title for one in s.tasks.list()],
    "tasks at an older": lambda hf, s: [one.title for one in s.tasks.list(at=s.revision)],
    "a task": lambda hf, s: s.tasks.get(OPEN["task"]).title,
    "ready tasks": lambda hf, s: s.tasks.ready(limit=1)[0].title,
    "tasks of the store": lambda hf, s: [one.title for one in hf.tasks.list()],
    "facts": lambda hf, s: [one.value for one in s.facts.list()],
    "a fact": lambda hf, s: s.facts.get("place").value,
    "facts of the store": lambda hf, s: [one.value for one in hf.facts.list()],
    "decisions": lambda hf, s: [one.decision for one in s.decisions.list()],
    "a decision": lambda hf, s: hf.decisions.get(OPEN["decision"]).decision,
    "decisions of the store": lambda hf, s: [one.decision for one in hf.decisions.list()],
    "open decisions": lambda hf, s: [one.decision for one in hf.decisions.list(incomplete=True)],
    "standing decisions": lambda hf, s: repr(s.decisions.recall()),
    "memory": lambda hf, s: [one.value for one in s.memory.notes.list()],
    "a note": lambda hf, s: s.memory.notes.get("note").value,
    "a session": lambda hf, s: s.session.export(),
    "a context": lambda hf, s: str(hf.context(s)),
    "a view": in_view(lambda view, s: view.get(s, "mail")),
    "a view of many": in_view(lambda view, s: view.states([s])[s.name]["mail"]),
    "a joint commit": in_commit,
    "a fork": lambda hf, s: OPEN["fork"].get("mail"),
    "a fork's messages": lambda hf, s: [one.content for one in OPEN["fork"].messages],
    "a fork's tasks": lambda hf, s: [one.title for one in OPEN["fork"].tasks.list()],
    "a fork's facts": lambda hf, s: [one.value for one in OPEN["fork"].facts.list()],
    "events": lambda hf, s: [one.data for one in hf.events(scope=s)],
    "events of the store": lambda hf, s: [
        one.data for one in hf.events(limit=5, type="noted_again")
    ],
    "a projection": lambda hf, s: repr(hf.projections.of(words, over=s).state),
    "the result of a run": lambda hf, s: hf.runs.get("theirs").result(),
    "the state of a run": lambda hf, s: hf.workflow("theirs").get("mail"),
}


IN_STEPS: dict[str, Callable[[Store, Any], Any]] = {
    "results": lambda hf, s: hf.nodes.process(GRAPH, s).states["theirs"].value,
    "a result": lambda hf, s: process_node(hf, GRAPH, "theirs", s).value,
}
"""Those that the body of a run refuses."""


@holdfast.step(effect="pure")
def looks(how: str) -> Any:
    return {**READS, **IN_STEPS}[how](OPEN["hf"], OPEN["scope"])


@holdfast.run(name="again.body")
def reads(ctx: Context, how: str) -> str:
    return repr(READS[how](OPEN["hf"], OPEN["scope"]))


@holdfast.run(name="again.step")
def steps(ctx: Context, how: str) -> str:
    return repr(looks(how))


PLACES = {"body": reads, "step": steps}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_is_told_of_what_is_in_memory(hf: Store, place: str) -> None:
    ada, found = hf.subjects.get("ada").id, dict[str, Any]()
    rows = {**READS, **IN_STEPS} if place == "step" else READS
    for how, read in rows.items():
        id = f"r{len(found)}"
        try:
            for _ in range(3):
                read(hf, OPEN["scope"])
            assert WORD in hf.runs.start(PLACES[place], how, id=id).result()
            found[how] = hf._log.subject_of(f"run/{id}")
        except Exception as error:
            found[how] = repr(error)
    assert {how: of for how, of in found.items() if of != ada} == {}
    assert WORD.encode() not in stored(hf)


def test_a_node_is_told_of_what_is_in_memory(hf: Store) -> None:
    ada, found = hf.subjects.get("ada").id, dict[str, Any]()
    for number, (how, read) in enumerate(READS.items()):
        read(hf, OPEN["scope"])

        @node
        def looks_up(ctx: Any, how: str) -> str:
            return repr(READS[how](OPEN["hf"], OPEN["scope"]))

        graph, blue = Graph(f"node-{number}", [looks_up]), hf.team(f"blue-{number}")
        blue.set("n", 1)
        try:
            assert WORD in hf.nodes.process(graph, blue, how=how).states["looks_up"].value
            [stream] = hf._log.streams(prefix=f"node/node-{number}/")
            found[how] = hf._log.subject_of(stream)
        except Exception as error:
            found[how] = repr(error)
    assert {how: of for how, of in found.items() if of != ada} == {}
    assert WORD.encode() not in stored(hf)


ASYNC_READS: dict[str, Callable[[Any, Any], Any]] = {
    "get": lambda hf, s: s.get("mail"),
    "state": lambda hf, s: s.state,
    "at": lambda hf, s: s.at(1),
    "messages": lambda hf, s: s.messages,
    "the last messages": lambda hf, s: s.messages.last(1),
    "tasks": lambda hf, s: s.tasks.list(),
    "tasks of the store": lambda hf, s: hf.tasks.list(),
    "facts": lambda hf, s: s.facts.list(),
    "decisions": lambda hf, s: s.decisions.list(),
    "events": lambda hf, s: hf.events(scope=s),
}


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_what_an_async_run_awaits_counts(tmp_path: Path, backend: str) -> None:
    async def read(how: str) -> str:
        found = ASYNC_READS[how](OPEN["aio"], OPEN["their scope"])
        many = [one async for one in found] if hasattr(found, "__aiter__") else await found
        if isinstance(many, str | Map):
            return repr(many)
        return repr([getattr(one, "content", None) or getattr(one, "data", one) for one in many])

    @holdfast.step(effect="pure")
    async def looks_async(how: str) -> str:
        return await read(how)

    @holdfast.run(name="again.async.body")
    async def reads_async(ctx: Any, how: str) -> str:
        return await read(how)

    @holdfast.run(name="again.async.step")
    async def steps_async(ctx: Any, how: str) -> Any:
        return await ctx.step(looks_async, how)

    async def main() -> None:
        async with await aio.open(new_url(backend, tmp_path), keys=tmp_path / "keys") as hf:
            await asyncio.to_thread(filled, hf.sync)
            OPEN["hf"], OPEN["aio"] = hf.sync, hf
            OPEN["their scope"] = hf.scope(OPEN["scope"].name)
            ada, found = hf.sync.subjects.get("ada").id, dict[str, Any]()
            for how in ASYNC_READS:
                for body in (reads_async, steps_async):
                    await read(how)
                    run = await hf.runs.start(body, how, id=f"r{len(found)}")
                    try:
                        assert WORD in await run.result()
                        of = hf.sync._log.subject_of(f"run/{run.id}")
                        found[f"{how} {body.name}"] = of
                    except Exception as error:
                        found[f"{how} {body.name}"] = repr(error)
            assert {how: of for how, of in found.items() if of != ada} == {}
            assert WORD.encode() not in stored(hf.sync)

    asyncio.run(main())


@holdfast.run(name="again.bobs")
def reads_of_bob(ctx: Context) -> str:
    hf = OPEN["hf"]
    mail = hf.conversation(hf.subjects.pseudonym("bob"), subject="bob").get("mail")
    tasks = [*OPEN["scope"].tasks.list(), *hf.tasks.list(tag="none"), *hf.tasks.list()]
    return f"{mail} {len(tasks)} {len(hf.events(actor='nobody'))}"


def test_a_run_of_somebody_else_is_refused_only_what_it_is_given(hf: Store) -> None:
    with pytest.raises(RunFailedError, match="one run is one subject's"):
        hf.runs.start(reads_of_bob).result()
    hf.tasks.list()
    hf.subjects.erase("ada")
    assert hf.runs.start(reads_of_bob).result() == "bob@x.org 0 0"
