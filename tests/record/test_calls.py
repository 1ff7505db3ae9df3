"""Decisions of tool calls, claims that wait, links of any kind, and what a prompt shows."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ExistsError, Store, UsageError, aio
from holdfast.record import repair
from tests.record.kills import await_deaths, kill_everywhere, open_dying
from tests.record.stores import new_url

CALL = {"id": "c1", "name": "send", "arguments": {"to": "ana"}}
seen: list[Any] = []


@holdfast.verifier(name="calls.was_sent")
def was_sent(decision: holdfast.Decision) -> Any:
    seen.append(("verify", decision.call, decision.arguments))
    return holdfast.NotDone()


@holdfast.act(name="calls.send")
def send(decision: holdfast.Decision) -> Any:
    seen.append(("act", decision.call, decision.arguments))
    return {"id": 7}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


def results(hf: Store) -> list[tuple[str | None, str]]:
    chat = hf.conversation("c")
    return [(one.tool_call_id, one.text) for one in chat.messages if one.role == "tool"]


def test_the_outcome_is_the_result_of_the_call_in_one_commit(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.add("assistant", tool_calls=[CALL])
    with chat.decide("send it", call="c1", arguments=CALL["arguments"]) as decision:
        assert results(hf) == []
        decision.outcome("sent", output={"id": 7})
    assert results(hf) == [("c1", '{"id":7}')]
    closed = hf.decisions.get(decision.id)
    assert (closed.call, closed.arguments, closed.outcome) == ("c1", {"to": "ana"}, "sent")
    newest = list(chat.history())[-2:]
    assert [one.type for one in newest] == ["decision.closed", "message.added"]
    assert newest[0].position == newest[1].position
    assert repair(chat.messages.items()).mended == []


def test_each_call_is_decided_once(hf: Store) -> None:
    chat = hf.conversation("c")
    first = chat.decide("send it", call="c1")
    with pytest.raises(ExistsError):
        chat.decide("send it", call="c1")
    assert chat.decide("send it", call="c1", if_exists="attach").id == first.id
    for odd in ("a@b", "x" * 2000, "é\n"):
        assert chat.decide("send it", call=odd).outcome("sent").call == odd
    assert results(hf) == [("a@b", "sent"), ("x" * 2000, "sent"), ("é\n", "sent")]
    assert first.outcome("sent").status == "closed"
    assert len(results(hf)) == 4


def test_what_is_left_without_an_outcome_has_a_result_too(hf: Store) -> None:
    chat = hf.conversation("c")
    with chat.decide("send it", call="c1"):
        pass
    assert results(hf) == [("c1", "no outcome stated")]
    with pytest.raises(RuntimeError), chat.decide("send it", call="c2"):
        raise RuntimeError("no network")
    assert len(results(hf)) == 1, "it is open, and nobody knows its result"
    chat.close()
    assert len(results(hf)) == 1, "what was abandoned has none"


def test_a_large_result_is_kept_whole(hf: Store) -> None:
    large = "x" * 2_000_000
    hf.conversation("c").decide("read it", call="c1").outcome("read", output=large)
    assert results(hf) == [("c1", large)]


def test_arguments_and_calls_are_checked(hf: Store) -> None:
    chat = hf.conversation("c")
    for wrong in ({"arguments": [1]}, {"call": ""}, {"call": 7}):
        with pytest.raises(UsageError):
            chat.decide("send it", **wrong)  # pyright: ignore
    assert chat.revision == 0


def test_the_outcome_joins_a_commit(hf: Store) -> None:
    chat = hf.conversation("c")
    decision = chat.decide("send it", call="c1")
    task = chat.tasks.claim(chat.tasks.add("send").id)
    before = hf.position
    with hf.commit() as tx:
        tx.outcome(decision, "sent")
        tx.scope(chat).tasks.close(task, "sent")  # pyright: ignore
    assert results(hf) == [("c1", "sent")]
    assert {one.position for one in chat.history() if one.position > before} == {hf.position}


def _act(url: str) -> None:
    with open_dying(url) as hf:
        chat = hf.conversation("c")
        chat.messages.add("assistant", tool_calls=[CALL], key="m")
        decide = {"verify": "calls.was_sent", "act": "calls.send", "if_exists": "attach"}
        with chat.decide("send it", call="c1", arguments=CALL["arguments"], **decide) as decision:  # pyright: ignore
            decision.outcome("sent", output=send(decision.stored))


def test_a_recovered_call_has_its_result(durable: str, tmp_path: Path) -> None:
    for kill in kill_everywhere(_act, lambda: new_url(durable, tmp_path), in_turns=True):
        seen.clear()
        with holdfast.open(kill.url) as hf:
            await_deaths(hf)
            hf.recover()
            chat = hf.conversation("c")
            decided = hf.decisions.list(scope=chat)
            assert all(one.status == "closed" for one in decided)
            assert results(hf) == [("c1", '{"id":7}')] * len(decided), (kill.nth, kill.when)
            assert all(one[1:] == ("c1", {"to": "ana"}) for one in seen)


# --- claims that wait ----------------------------------------------------------------------------


def test_a_claim_waits_for_the_next_task(hf: Store) -> None:
    chat = hf.conversation("c")
    assert chat.tasks.claim(wait_s=0.01) is None
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(chat.tasks.claim(wait_s=60)))
    thread.start()
    chat.tasks.add("one")
    thread.join()
    assert [one.id for one in found] == ["t1"]
    chat.tasks.add("two", depends_on=["t1"])
    thread = threading.Thread(target=lambda: found.append(chat.tasks.claim(wait_s=60)))
    thread.start()
    chat.tasks.close(found[0], "done")
    thread.join()
    assert [one.id for one in found] == ["t1", "t2"]
    for wrong in (0, -1, "soon", True):
        with pytest.raises(UsageError):
            chat.tasks.claim(wait_s=wrong)  # pyright: ignore
    with pytest.raises(UsageError, match="the next task"):
        chat.tasks.claim("t1", wait_s=1)
    with pytest.raises(UsageError, match="joint commit"), hf.commit() as tx:
        tx.scope(chat).tasks.claim(wait_s=1)


def test_many_claims_wait_in_asyncio_without_a_thread_each(url: str) -> None:
    async def body() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            assert await chat.tasks.claim(wait_s=0.01) is None
            waiting = [asyncio.create_task(chat.tasks.claim(wait_s=60)) for _ in range(20)]
            await asyncio.sleep(0)
            for n in range(20):
                await chat.tasks.add(str(n))
            claimed = await asyncio.gather(*waiting)
            assert sorted(one.title for one in claimed if one) == sorted(map(str, range(20)))
            assert (await chat.tasks.claim()) is None

    asyncio.run(body())


# --- links, roles, prompts -----------------------------------------------------------------------


def test_link_kinds_are_open(hf: Store) -> None:
    chat = hf.conversation("c")
    made = chat.decide("go", links=["ticket:7", ("pull-request", "12"), "file:a.py"]).stored
    assert [str(link) for link in made.links] == ["ticket:7", "pull-request:12", "file:a.py"]
    for wrong in ("ticket", ":7", "Ticket:7", "a b:7", ("x" * 65, "7")):
        with pytest.raises(UsageError, match="a link is"):
            chat.decide("go", links=[wrong])


def test_a_foreign_item_needs_no_role(hf: Store) -> None:
    chat = hf.conversation("c")
    item = {"type": "reasoning", "id": "r1", "summary": []}
    added = chat.messages.add(foreign=item, foreign_id="r1")
    assert (added.role, added.item) == ("", item)
    assert chat.messages.items() == [item]
    assert chat.messages.edit(added, metadata={"seen": True}).role == ""
    assert chat.messages.edit(added, role="assistant").role == "assistant"
    with pytest.raises(UsageError, match="needs a role"):
        chat.messages.add(content="hi")


def test_a_prompt_shows_calls_and_results(hf: Store) -> None:
    chat = hf.conversation("c")
    add = chat.messages.add
    add("user", "write to ana")
    add("assistant", "I look her up.", tool_calls=[CALL])
    add("tool", "sent", tool_call_id="c1")
    function = {"name": "send", "arguments": '{"to": "bo"}'}
    add("assistant", tool_calls=[{"id": "c2", "type": "function", "function": function}])
    add(
        "assistant",
        parts=[
            {"type": "text", "text": "now"},
            {"type": "tool_use", "id": "c3", "name": "send", "input": {"to": "cy"}},
        ],
    )
    add("user", parts=[{"type": "tool_result", "tool_use_id": "c3", "content": "sent"}])
    add(foreign={"type": "function_call", "call_id": "c4", "name": "stop", "arguments": "{}"})
    add(foreign={"type": "function_call_output", "call_id": "c4", "output": "stopped"})
    add("assistant", tool_calls=[{"id": "c5"}])
    assert chat.messages.render(20).splitlines() == [
        "user: write to ana",
        "assistant: I look her up.",
        'assistant: send({"to":"ana"}) [c1]',
        "tool [c1]: sent",
        'assistant: send({"to": "bo"}) [c2]',
        "assistant: now",
        'assistant: send({"to":"cy"}) [c3]',
        "tool [c3]: sent",
        "assistant: stop({}) [c4]",
        "tool [c4]: stopped",
        "assistant: ",
    ]  # fmt: skip


def test_said_at_is_untouched(hf: Store) -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    chat = hf.conversation("c")
    [added] = chat.messages.add_many(
        [{"role": "user", "content": "x", "said_at": at, "foreign_id": "f"}]
    )
    assert added.time == at
