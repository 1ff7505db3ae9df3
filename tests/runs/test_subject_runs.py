"""Runs of a subject are sealed whole, and go when the subject is erased.

BOOT-32: a person can be forgotten.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, aio
from holdfast.errors import ErasedError, HoldfastError, NotFoundError, UsageError
from holdfast.nodes import Graph, node
from holdfast.runs.engine import Engine
from tests.record.stores import ALL, DURABLE, new_url
from tests.record.test_subjects import stored

WORD = "CANARY-91ab"


@holdfast.step(effect="pure")
def greet(who: str) -> str:
    return f"hello {who}"


@holdfast.run(name="subject.child")
def child(ctx: Any, who: str) -> str:
    ctx.state.set("child of", who)
    return who


@holdfast.run(name="subject.asks")
def asks(ctx: Any, who: str) -> list[str]:
    ctx.state.set("who", who)
    ctx.state.set("large", who * 9000)
    said = greet(who)
    heard = ctx.join(ctx.child(child, who))
    return [said, heard, ctx.signal("go")]


@pytest.fixture(params=ALL)
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(new_url(request.param, tmp_path), keys=tmp_path / "keys") as store:
        yield store


def test_all_that_a_run_does_is_sealed_and_goes_with_the_subject(hf: Store) -> None:
    other = hf.runs.start(asks, "somebody", id="other")
    ended = hf.runs.start(asks, WORD, subject="ada")
    hf.runs.signal(ended.id, "go", f"{WORD} answer")
    assert ended.result() == [f"hello {WORD}", WORD, f"{WORD} answer"]
    waiting = hf.runs.start(asks, WORD * 9000, subject="ada", id=hf.subjects.pseudonym("r"))
    hf.runs.send(waiting.id, "steer", f"{WORD} sent")
    fork = hf.runs.fork(ended.id, at="greet", id=hf.subjects.pseudonym("f"), signals="copy")
    assert hf.workflow(ended.id).get("who") == WORD
    list(hf.query(text=WORD))
    assert WORD.encode() not in stored(hf)
    assert {name.split("/")[0] for name in hf.subjects.get("ada").scopes} == {
        "inbox",
        "run",
        "workflow",
    }
    receipt = hf.subjects.erase("ada")
    assert {one.outcome for one in receipt.scopes} == {"pending" if receipt.left else "deleted"}
    assert [one.id for one in hf.runs.list()] == ["other", "other/child.subject.child"]
    for id in (ended.id, waiting.id, fork.id):
        for ask in (hf.runs.get, hf.runs.resume):
            with pytest.raises(NotFoundError):
                ask(id)
        with pytest.raises(HoldfastError):
            hf.runs.signal(id, "go", "late")
    assert hf.check().findings == []
    hf.runs.signal("other", "go", "yes")
    assert other.result() == ["hello somebody", "somebody", "yes"]


def test_another_process_continues_it_sealed(tmp_path: Path) -> None:
    url = new_url("files", tmp_path)
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        queued = hf.runs.start(asks, WORD, subject="ada", queue="later").id
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        hf.runs.send(queued, "steer", f"{WORD} before it began")
        run = hf.runs.resume(queued)
        hf.runs.signal(queued, "go", WORD)
        assert run.result()[2] == WORD
        assert WORD.encode() not in stored(hf)
    with holdfast.open(url, keys=tmp_path / "others") as hf, pytest.raises(HoldfastError):
        hf.runs.get(queued).result()


def test_a_run_is_told_as_erased_also_while_a_hold_keeps_the_key(hf: Store) -> None:
    kept = hf.team(hf.subjects.pseudonym("kept"), subject="ada")
    kept.set("n", WORD)
    run = hf.runs.start(child, WORD, subject="ada")
    assert run.result() == WORD
    hf.retention.hold(kept, "court")

    def check_refused() -> None:
        for ask in (run.result, lambda: hf.runs.get(run.id).result()):
            with pytest.raises(ErasedError, match=run.id):
                ask()

    hf.subjects.erase("ada")
    check_refused()
    hf.retention.unhold(kept)
    hf.subjects.finish()
    check_refused()


there, go = threading.Event(), threading.Event()


@holdfast.step(effect="pure")
def slow(who: str) -> str:
    there.set()
    go.wait()
    return f"late {who}"


@holdfast.run(name="subject.slow")
def goes_on(ctx: Any, who: str) -> str:
    try:
        return slow(who)
    finally:
        ctx.state.set("late", who)


def test_a_step_that_is_under_way_has_no_result(hf: Store, caplog: Any) -> None:
    there.clear()
    go.clear()
    run = hf.runs.start(goes_on, WORD, subject="ada")
    there.wait()
    execution = hf._kernel.part(Engine).active[run.id]
    hf.subjects.erase("ada")
    go.set()
    execution.over.wait()
    with pytest.raises(NotFoundError):
        run.result(timeout=60)
    assert "is left by this process" in caplog.text
    assert WORD not in caplog.text
    assert WORD.encode() not in stored(hf)
    assert list(hf.runs.list()) == []
    assert hf.check().findings == []


def test_bad_input_begins_nothing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        with pytest.raises(UsageError, match="run id 'ada-run' may tell"):
            hf.runs.start(asks, WORD, subject="ada", id="ada-run")
        hf.runs.start(child, "x", id="nobody").result()
        with pytest.raises(UsageError, match="may tell"):
            hf.runs.start(child, "x", id="nobody", subject="ada", if_exists="attach")
        opaque = hf.subjects.pseudonym("r")
        hf.runs.start(child, "x", id=opaque).result()
        with pytest.raises(UsageError, match="nobody's"):
            hf.runs.start(child, "x", id=opaque, subject="ada", if_exists="attach")
        assert list(hf.subjects.list()) == []

        @holdfast.run(name="subject.named")
        def named(ctx: Any, subject: str) -> str:
            return subject

        with pytest.raises(UsageError, match='"subject" is a setting'):
            hf.runs.start(named, subject="a letter")
        assert hf.runs.start(named, "a letter").result() == "a letter"


@pytest.mark.parametrize("backend", ["memory", *DURABLE])
def test_results_of_nodes_for_a_subjects_scope_are_sealed(tmp_path: Path, backend: str) -> None:
    """They were stored in clear, in a stream of their own."""
    with holdfast.open(new_url(backend, tmp_path), keys=tmp_path / "keys") as hf:
        chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
        chat.set("who", WORD)

        @node
        def reads(ctx: Any) -> Any:
            return [ctx.read(chat, "who"), WORD * 9000]

        graph = Graph(f"sealed-{backend}", [reads])
        assert hf.nodes.process(graph, chat).states["reads"].value[0] == WORD
        assert hf.nodes.process(graph, chat).counts["hit"] == 1
        assert WORD.encode() not in stored(hf)
        hf.subjects.erase("ada")
        assert hf.check().findings == []
        assert not [one for one in hf._log.streams(prefix="node/") if not _is_removed(hf, one)]


def _is_removed(hf: Store, stream: str) -> bool:
    [head] = hf._log.heads([stream])
    return head is None or hf._log.life(stream, head.revision) == head.revision


def test_asyncio_starts_one_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
            run = await hf.runs.start(child, WORD, subject="ada")
            assert await run.result() == WORD
            receipt = await hf.subjects.erase("ada")
            assert receipt.events > 3
            await hf.conversation("c").set("n", f"x {WORD}")
            found = await hf.subjects.erase(match=WORD, dry_run=True)
            assert found.events == 1
            await hf.subjects.erase(match=WORD, scope="conversation/c", ignore_case=True)
            assert await hf.conversation("c").get("n") == "x [erased]"

    asyncio.run(main())
