"""A step of the class txn records with everything that a joint commit has."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import START
from holdfast.errors import RunFailedError, UsageError
from holdfast.store import JointCommit, JointScope

KEPT: list[JointScope] = []
CHATS: list[holdfast.Scope] = []


@holdfast.run
def reply(ctx: holdfast.Context, text: str) -> str:
    def answer(tx: JointCommit) -> str:
        desk = tx.scope(CHATS[-1])
        KEPT.append(desk)
        desk.messages.add("assistant", text)
        desk.tasks.close("t1", "answered")
        desk.set("stage", "answered")
        if text == "fail":
            raise ValueError("no")
        return desk.messages.last(1)[0].content

    return ctx.txn(answer)


def test_state_messages_and_tasks_are_one_commit_with_the_steps_record(hf: Store):
    chat = hf.conversation("c")
    CHATS.append(chat)
    chat.tasks.add("answer", id="t1")
    chat.tasks.claim("t1")
    run = hf.runs.start(reply, "hello", id="r")
    assert run.result() == "hello"
    assert [one.content for one in chat.messages] == ["hello"]
    assert chat.tasks.get("t1").status == "completed"
    followed = list(hf.follow(as_events=True, after=START, timeout_s=0))
    [said] = [event for event in followed if event.type == "message.added"]
    [done] = [event for event in followed if event.type == "run.done"]
    assert said.position == done.position


def test_nothing_of_a_txn_that_raises_is_there(hf: Store):
    chat = hf.conversation("c")
    CHATS.append(chat)
    chat.tasks.add("answer", id="t1")
    chat.tasks.claim("t1")
    with pytest.raises(RunFailedError, match="no"):
        hf.runs.start(reply, "fail", id="r").result()
    assert len(chat.messages) == 0
    assert chat.tasks.get("t1").status == "in_progress"
    with pytest.raises(UsageError, match="has ended"):
        KEPT[-1].messages.add("user", "too late")
