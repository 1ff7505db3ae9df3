"""A restore and its undo: state, messages and tasks go back and forth together (VIC-8, BOOT-70)."""

from __future__ import annotations

import random
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, Scope, Store


def seen(scope: Scope) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """Returns state, messages and tasks."""
    tasks = {task.title: task.status for task in scope.tasks.list()}
    return scope.to_dict(), [message.text or "" for message in scope.messages], tasks


@pytest.fixture
def chat(hf: Store) -> Scope:
    chat = hf.conversation("c")
    chat.set("stage", "first")
    chat.say("one")
    chat.tasks.add("plan")
    chat.checkpoint("early")
    chat.set("stage", "second")
    chat.say("two")
    chat.tasks.add("build")
    return chat


def test_undo_takes_a_restore_back_whole_and_again(chat: Scope):
    late = seen(chat)
    chat.restore("early")
    early = seen(chat)
    assert early == ({"stage": "first"}, ["one"], {"plan": "open"})
    for expected in (late, early, late):
        chat.undo()
        assert seen(chat) == expected


def test_a_restore_that_changes_no_state_is_the_newest_change(chat: Scope):
    chat.checkpoint("here")
    chat.say("three")
    chat.tasks.add("test")
    late = seen(chat)
    chat.restore("here")
    assert seen(chat)[1:] == (["one", "two"], {"plan": "open", "build": "open"})
    chat.undo()
    assert seen(chat) == late, "and not the change of the state before it"
    chat.undo()
    assert seen(chat)[1] == ["one", "two"]


def test_what_was_said_and_done_since_stays(chat: Scope):
    chat.restore("early")
    chat.say("after")
    chat.tasks.add("sweep")
    plan = next(task for task in chat.tasks.list() if task.title == "plan")
    chat.tasks.close(plan.id, "drawn")
    chat.undo()
    assert seen(chat) == (
        {"stage": "second"},
        ["one", "two", "after"],
        {"plan": "completed", "build": "open", "sweep": "open"},
    )
    chat.undo()
    assert seen(chat)[:2] == ({"stage": "first"}, ["one", "after"])


def test_an_undo_of_a_change_leaves_messages_and_tasks_alone(chat: Scope):
    state, said, tasks = seen(chat)
    chat.undo()
    assert seen(chat) == ({"stage": "first"}, said, tasks)
    chat.undo()
    assert seen(chat) == (state, said, tasks)


def test_a_fork_and_another_handle_see_the_same(chat: Scope, hf: Store):
    chat.restore("early")
    chat.say("after")
    chat.undo()
    fork = chat.fork("other")
    assert seen(fork) == seen(chat)
    chat.say("later")
    assert [m.text for m in hf.conversation("c").messages] == ["one", "two", "after", "later"]
    assert [m.text for m in chat.messages.at(chat.revision - 1)] == ["one", "two", "after"]


def test_nothing_to_undo(hf: Store):
    chat = hf.conversation("new")
    chat.say("hello")
    with pytest.raises(NotFoundError, match="no change to undo"):
        chat.undo()


def test_any_history_against_a_model():
    """Restores, undos and messages in any order: what is there is what a plain list would have."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with holdfast.open("memory:") as hf:
        for trial in range(60):
            chat = hf.conversation(f"c{trial}")
            chat.set("n", 0)
            model: list[tuple[dict[str, Any], list[str]]] = [({"n": 0}, [])]
            revisions = [chat.revision]
            undo: tuple[dict[str, Any], list[str]] | None = None
            for step in range(12):
                state, said = model[-1]
                what = chance.choice(["say", "set", "restore", "undo"])
                if what == "say":
                    chat.say(f"m{step}")
                    new = (state, [*said, f"m{step}"])
                    undo = None  # compared only where nothing was said between
                elif what == "set":
                    chat.set("n", step + 1)
                    new, undo = ({"n": step + 1}, said), (state, said)
                elif what == "restore":
                    place = chance.randrange(len(model))
                    chat.restore(revisions[place])
                    new, undo = model[place], (state, said)
                elif undo is not None:
                    chat.undo()
                    new, undo = undo, (state, said)
                else:
                    continue
                model.append(new)
                revisions.append(chat.revision)
                found = chat.to_dict(), [message.text for message in chat.messages]
                assert found == new, (trial, step, what)
