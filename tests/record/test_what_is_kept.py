"""What is worth keeping, and what is dropped (BOOT-35, BOOT-36, BOOT-94)."""

from __future__ import annotations

import asyncio
import os
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, Store, UsageError, aio
from holdfast.record import FileChange
from holdfast.record.history_repair import NO_RESULT
from tests.crash.children import Child
from tests.record.kills import open_dying
from tests.record.stores import new_url
from tests.record.witness import lines, note


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


# --- kept selectively ----------------------------------------------------------------------------


def test_boot_35_of_a_conversation_a_summary_and_the_key_messages(hf: Store) -> None:
    """The next prompt is short; the original messages stay readable."""
    chat = hf.conversation("c")
    for number in range(50):
        metadata = {"key": True} if number in (7, 30) else None
        chat.messages.add("user", f"message {number} " + "x" * 200, metadata=metadata)
    chat.messages.compact("fifty messages about a refund", keep_last=2)
    kept = texts(chat.messages)
    assert kept[0] == "fifty messages about a refund"
    assert [text.split()[1] for text in kept[1:]] == ["48", "49"]
    [summary] = chat.messages.summaries()
    assert summary.tokens_after * 10 < summary.tokens_before
    key = chat.messages.original().select(lambda message: bool(message.metadata.get("key")))
    assert [message.text.split()[1] for message in key] == ["7", "30"]
    assert len(chat.messages.original()) == 50


def test_boot_35_of_a_tool_call_the_fact_and_not_the_result(hf: Store) -> None:
    """A result that is only referred to is sound in the next request; one left out is marked."""
    chat = hf.conversation("c")
    output = os.urandom(500_000)
    digest = sha256(output).hexdigest()
    chat.messages.add("assistant", tool_calls=[{"id": "t1", "name": "read", "path": "a.bin"}])
    chat.messages.add(
        "tool", f"500000 bytes, sha256 {digest}", tool_call_id="t1", metadata={"sha256": digest}
    )
    chat.messages.add("assistant", tool_calls=[{"id": "t2", "name": "now"}])
    request = chat.messages.for_request()
    assert [item.get("tool_call_id") for item in request] == [None, "t1", None, "t2"]
    assert request[1]["content"].startswith("500000 bytes")
    assert request[3]["content"] == NO_RESULT
    assert sum(len(event.record.payload) for event in chat.history()) < 1000


STORES: list[Store] = []
PLACE = "HOLDFAST_TEST_PLACE"
DIES = "HOLDFAST_TEST_DIES"


def cheap(n: int) -> int:
    note(os.environ[PLACE], "cheap", str(n))
    return n + 1


@holdfast.step(effect="pure")
def expensive(n: int) -> int:
    note(os.environ[PLACE], "expensive", str(n))
    return n * 2


@holdfast.run(name="intermediates")
def intermediates(ctx: holdfast.Context) -> int:
    total = ctx.step(expensive, cheap(1))
    ctx.state.set("total", total)
    if os.environ.get(DIES):
        os.kill(os.getpid(), signal.SIGKILL)
    return total


def test_boot_35_of_intermediates_what_was_expensive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's result outlives the process that computed it; plain code is run again."""
    url = new_url("files", tmp_path)
    monkeypatch.setenv(PLACE, str(tmp_path))

    def live(_pipe: int, _stop: int) -> None:
        os.environ[DIES] = "1"
        open_dying(url).runs.start(intermediates, id="r").result()

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(url) as hf:
        assert hf.runs.resume("r").result() == 4
    assert lines(tmp_path, "cheap") == ["1", "1"]
    assert lines(tmp_path, "expensive") == ["2"]


# --- dropped -------------------------------------------------------------------------------------


def test_boot_36_what_is_transient_is_gone_with_its_turn(hf: Store) -> None:
    chat = hf.conversation("c")
    with chat.memory.turn():
        chat.memory.files.put("src/a.py", "being read just now", lifetime="turn")
        chat.memory.files.put("src/b.py", "being changed")
        assert len(chat.memory.files.list()) == 2
    assert [one.name for one in chat.memory.files.list()] == ["src/b.py"]
    assert "src/a.py" not in repr(chat.state.to_dict())


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_boot_36_what_is_there_already_is_referred_to(backend: str, tmp_path: Path) -> None:
    """The same large value twice, in state and in a message, and a fork of it all: one copy."""
    value = os.urandom(1_500_000).hex()
    with holdfast.open(new_url(backend, tmp_path)) as hf:
        chat = hf.conversation("c")
        chat.set("document", value)
        once = hf.status()["size_bytes"]
        chat.set("again", value)
        hf.team("t").set("shared", value)
        chat.messages.add("user", value)
        fork = chat.fork("f")
        fork.set("stage", "done")
        assert hf.status()["size_bytes"] - once < len(value) // 4
        assert fork.get("document") == chat.messages[-1].text == hf.team("t").get("shared") == value
        assert hf.check().ok


def test_boot_36_a_file_is_named_by_its_digest_and_not_copied(hf: Store) -> None:
    before, after = b"a" * 300_000, b"b" * 300_000
    chat = hf.conversation("c")
    change = FileChange.of("src/a.py", before, after)
    chat.messages.add("assistant", "changed it", files=[change])
    [(_, found)] = chat.messages.file_changes("src/a.py")
    assert (found.before, found.after) == (sha256(before).hexdigest(), sha256(after).hexdigest())
    assert sum(len(event.record.payload) for event in chat.history()) < 1000


# --- the strategies of a conversation's memory ---------------------------------------------------


def talk(hf: Store) -> Any:
    chat = hf.conversation("c")
    for text in (
        "Ada ordered a lamp",
        "the weather is fine",
        "Adam asked for C++ help",
        "ada lives in London, says Ada",
        "the lamp arrived broken",
        "goodbye",
    ):
        chat.say(text)
    return chat


def test_boot_94_full_window_summary(hf: Store) -> None:
    chat = talk(hf)
    assert len(chat.messages.render(len(chat.messages)).splitlines()) == 6
    assert chat.messages.render(2) == "user: the lamp arrived broken\nuser: goodbye"
    chat.messages.compact("Ada's lamp broke", keep_last=1)
    assert chat.messages.render() == "system: Ada's lamp broke\nuser: goodbye"


def test_boot_94_by_entity(hf: Store) -> None:
    """RALPH-47: messages that mention a name, and the facts about it; a stale one says so."""
    chat = talk(hf)
    assert texts(chat.messages.select(["Ada"])) == [
        "Ada ordered a lamp",
        "ada lives in London, says Ada",
    ]
    assert texts(chat.messages.select(["Ada"], 1)) == ["ada lives in London, says Ada"]
    assert texts(chat.messages.select("C++")) == ["Adam asked for C++ help"]
    assert texts(chat.messages.select(["lamp", "Adam"], 2)) == [
        "Adam asked for C++ help",
        "the lamp arrived broken",
    ]
    assert chat.messages.select(["Grace"]) == chat.messages.select(["Ada"], 0) == []
    chat.facts.state("city", "London", about="Ada")
    chat.facts.state("ada.email", "ada@example.org", valid_for=1e-6)
    chat.facts.state("branch", "main")
    rendered = chat.messages.render(1, select=iter(["Ada"])).splitlines()
    assert rendered[0] == "Known:"
    assert rendered[1].startswith("  - ada.email: ada@example.org (stale: ")
    assert rendered[2:] == ["  - city: London", "user: ada lives in London, says Ada"]


def test_boot_94_by_retrieval(hf: Store) -> None:
    """RALPH-47: scored by whatever the caller has; of equals the newest, in their order."""
    chat = talk(hf)
    words = {"lamp", "broken", "order"}

    def score(message: Message) -> float:
        return len(words.intersection(message.text.split()))

    assert texts(chat.messages.select(score, 1)) == ["the lamp arrived broken"]
    assert texts(chat.messages.select(score)) == ["Ada ordered a lamp", "the lamp arrived broken"]
    assert texts(chat.messages.select(lambda message: 1, 2)) == texts(chat.messages.last(2))
    chat.decide("replace it")
    assert chat.messages.render(1, select=score) == (
        "user: the lamp arrived broken\nDecisions made this session:\n  - replace it"
    )
    for bad in (3, [], ["a", 1], [""], None):
        with pytest.raises(UsageError, match="messages are chosen by"):
            chat.messages.select(bad)
    for found in ("much", None, float("nan")):
        with pytest.raises(UsageError, match="a score is a number"):
            chat.messages.select(lambda message, found=found: found)


def test_boot_94_for_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(new_url("sqlite", tmp_path)) as hf:
            chat = hf.conversation("c")
            await chat.say("about Ada")
            await chat.say("about nobody")
            assert texts(await chat.messages.select(["Ada"])) == ["about Ada"]
            assert await chat.messages.render(select=["Ada"]) == "user: about Ada"

    asyncio.run(main())
