"""Messages of a run's body are added once, however often the run is entered again (rule 3)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, UsageError, aio
from holdfast.record.messages import Messages
from tests.crash.children import Child
from tests.record.kills import open_dying
from tests.record.stores import new_url

DIES = "HOLDFAST_TEST_DIES"
STORES: list[Store] = []
"""The store that the run's body writes to, in whichever process it runs."""


@holdfast.run(name="talks")
def talks(ctx: holdfast.Context) -> int:
    chat = STORES[-1].conversation("c")
    chat.say("one")
    chat.messages.add_many([{"role": "user", "content": "two"}, {"role": "user", "content": "two"}])
    if os.environ.get(DIES):
        os.kill(os.getpid(), signal.SIGKILL)
    chat.say("three")
    return 3


def die_in(function: Any, url: str) -> None:
    """Starts a run in a process that is killed in its body."""

    def live(_pipe: int, _stop: int) -> None:
        os.environ[DIES] = "1"
        STORES.append(open_dying(url))
        STORES[-1].runs.start(function, id="r").result()

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_a_resumed_run_adds_no_message_twice(backend: str, tmp_path: Path) -> None:
    """On servers it is the same once the dead owner's lease has lapsed."""
    url = new_url(backend, tmp_path)
    die_in(talks, url)
    with holdfast.open(url) as hf:
        STORES.append(hf)
        assert hf.runs.resume("r").result() == 3
        said = list(hf.conversation("c").messages)
        assert [message.content for message in said] == ["one", "two", "two", "three"]
        assert len({message.id for message in said}) == 4
        assert hf.check().ok


def fill(hf: Store) -> None:
    hf.conversation("c").messages.add_many([{"role": "user", "content": text} for text in "abcd"])
    hf.conversation("other").say("other")


JUDGED: dict[str, Callable[[Messages], Any]] = {
    "pop": lambda messages: messages.pop(),
    "edit": lambda messages: messages.edit(messages[0], content="edited"),
    "delete": lambda messages: messages.delete(messages[1]),
    "rewind": lambda messages: messages.rewind(-1),
    "compact": lambda messages: messages.compact("all of it"),
    "summarise": lambda messages: messages.summarise("all of it"),
    "merge": lambda messages: messages.merge(STORES[-1].conversation("other")),
    "foreign": lambda messages: messages.add("user", "x", foreign_id="f"),
    "foreign batch": lambda messages: messages.add_many([{"role": "user", "foreign_id": "f"}]),
}
"""What is judged by the messages that are there, and they are others when the run is resumed."""


@holdfast.step(effect="idempotent")
def change(name: str) -> None:
    JUDGED[name](STORES[-1].conversation("c").messages)


@pytest.mark.parametrize("name", JUDGED)
def test_changes_that_depend_on_stored_messages_are_refused_in_a_body(hf: Store, name: str) -> None:
    """Rule 3: before, a run that was resumed found other messages there, and diverged."""
    STORES.append(hf)
    fill(hf)
    before = hf.conversation("c").revision

    @holdfast.run(name="changes")
    def changes(ctx: holdfast.Context) -> str:
        messages = hf.conversation("c").messages
        try:
            JUDGED[name](messages)
        except UsageError as refused:
            return f"{refused.message}; {refused.hint}"
        return "it was done"

    told = hf.runs.start(changes, id="r").result()
    assert "in the body of a run" in told
    assert told.endswith("do it in a step of the run")
    assert hf.conversation("c").revision == before

    @holdfast.run(name="steps")
    def steps(ctx: holdfast.Context) -> None:
        ctx.step(change, name)

    hf.runs.start(steps, id="s").result()
    assert hf.conversation("c").revision > before


def test_changes_that_depend_on_stored_messages_are_refused_in_an_async_body(
    tmp_path: Path,
) -> None:
    import asyncio

    @holdfast.run(name="changes-async")
    async def changes(ctx: holdfast.Context) -> str:
        try:
            await ASYNC[-1].conversation("c").messages.pop()
        except UsageError as refused:
            return refused.message
        return "it was done"

    async def main() -> str:
        async with await aio.open(new_url("sqlite", tmp_path)) as hf:
            ASYNC.append(hf)
            await hf.conversation("c").say("a")
            return await (await hf.runs.start(changes, id="r")).result()

    assert "in the body of a run" in asyncio.run(main())


ASYNC: list[aio.AsyncStore] = []


@holdfast.run(name="begins-anew")
def begins_anew(ctx: holdfast.Context) -> int:
    chat = STORES[-1].conversation("c")
    chat.say("to be forgotten")
    chat.messages.clear()
    chat.messages.add("user", "with a key", foreign_id="f", key="k")
    if os.environ.get(DIES):
        os.kill(os.getpid(), signal.SIGKILL)
    chat.say("the end")
    return 1


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_changes_that_are_the_same_each_time_happen_once_in_a_body(
    backend: str, tmp_path: Path
) -> None:
    url = new_url(backend, tmp_path)
    die_in(begins_anew, url)
    with holdfast.open(url) as hf:
        STORES.append(hf)
        chat = hf.conversation("c")
        said = chat.revision
        assert hf.runs.resume("r").result() == 1
        assert [message.content for message in chat.messages] == ["with a key", "the end"]
        assert chat.revision == said + 1, "neither was cleared nor said once more"
