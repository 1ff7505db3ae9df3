"""A restore and its undo: state, messages and tasks go back and forth together (VIC-8, BOOT-70)."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, Scope, Store
from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.record import Difference


def seen(scope: Scope) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """Returns state, messages and tasks."""
    tasks = {task.title: task.status for task in scope.tasks.list()}
    return scope.state.to_dict(), [message.text or "" for message in scope.messages], tasks


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
                found = chat.state.to_dict(), [message.text for message in chat.messages]
                assert found == new, (trial, step, what)


# --- what a return reports ------------------------------------------------------------------------


def texts(difference: Difference) -> list[tuple[str | None, str | None]]:
    """Returns the messages that differ, each as it was and as it is."""
    return [
        (each.old and each.old.text, each.new and each.new.text) for each in difference.messages
    ]


def titles(difference: Difference) -> list[tuple[str | None, str | None]]:
    return [(each.old and each.old.title, each.new and each.new.title) for each in difference.tasks]


def test_a_restore_names_what_went_and_what_stays(chat: Scope):
    with chat.decide("send the mail") as decision:
        decision.outcome("sent")
    chat.facts.state("disk", "full")
    restored = chat.restore("early")
    assert restored == chat.revision
    assert restored.to == chat.life.revision_at("early")
    assert [change.path for change in restored.changes] == [("stage",)]
    assert texts(restored.changes) == [("two", None)]
    assert titles(restored.changes) == [("build", None)]
    assert [one.decision for one in restored.decisions] == ["send the mail"]
    assert [fact.name for fact in restored.facts] == ["disk"]
    assert pickle.loads(pickle.dumps(restored)) == restored
    undone = chat.undo()
    assert texts(undone.changes) == [(None, "two")]
    assert titles(undone.changes) == [(None, "build")]
    assert (undone.decisions, undone.facts) == ([], []), "nothing was recorded since"


def test_a_restore_of_tasks_alone_says_so(chat: Scope):
    chat.checkpoint("here")
    [_, build] = chat.tasks.list()
    chat.tasks.claim(build.id)
    chat.tasks.close(build.id, "built")
    restored = chat.restore("here")
    assert list(restored.changes) == []
    [change] = restored.changes.tasks
    assert change.old is not None
    assert change.new is not None
    assert (change.old.status, change.new.status) == ("completed", "open")


def test_a_diff_names_messages_and_tasks(chat: Scope):
    difference = chat.diff("early")
    assert texts(difference) == [(None, "two")]
    assert titles(difference) == [(None, "build")]
    assert texts(chat.diff(chat.revision, "early")) == [("two", None)], "backwards too"
    first = chat.messages[0]
    chat.messages.edit(first, content="ONE")
    assert texts(chat.diff("early")) == [("one", "ONE"), (None, "two")]
    chat.messages.delete(first)
    assert texts(chat.diff("early")) == [("one", None), (None, "two")]
    chat.messages.add("user", "three")
    chat.messages.compact("all of it")
    assert texts(chat.diff(-1)) == [("two", None), ("three", None), (None, "all of it")]
    with chat.decide("go"):
        pass
    assert [one.decision for one in chat.diff("early").decisions] == ["go"]
    chat.facts.state("here", 1)
    chat.facts.withdraw("here")
    assert chat.diff("early").facts == [], "it no longer counts"


def test_decisions_of_older_programs_stay_too(hf: Store):
    chat = hf.conversation("old")
    chat.set("n", 1)
    data = {"decision": "ship it", "rationale": "it works"}
    write = StreamWrite("conversation/old", (NewEvent("decision_made", codec.encode(data)),))
    hf._log.commit(ProposedCommit((write,)))
    assert [one.decision for one in chat.restore(1).decisions] == ["ship it"]


def test_a_removal_that_is_taken_back_and_again(chat: Scope):
    chat.remove()
    back = chat.undo()
    assert back.to == back - 2
    assert texts(back.changes) == [(None, "one"), (None, "two")]
    gone = chat.undo()
    assert texts(gone.changes) == [("one", None), ("two", None)]


def test_any_two_moments_differ_as_their_lists_do():
    """Of any history, what `diff` names is what a comparison of the two whole lists finds."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with holdfast.open("memory:") as hf:
        for trial in range(40):
            chat = hf.conversation(f"c{trial}")
            chat.set("n", 0)
            for step in range(14):
                play(chat, chance, step)
            for _ in range(8):
                old, new = (chance.randint(1, chat.revision) for _ in range(2))
                expected = compared(chat, old, new)
                assert texts(chat.diff(old, new)) == expected, (trial, old, new)


def play(chat: Scope, chance: random.Random, step: int) -> None:
    """Does one thing to a conversation."""
    what = chance.choice(["say", "say", "say", "edit", "delete", "restore", "undo", "compact"])
    some = list(chat.messages)
    if what == "say" or not some:
        chat.say(f"m{step}")
    elif what == "edit":
        chat.messages.edit(chance.choice(some), content=f"e{step}")
    elif what == "delete":
        chat.messages.delete(chance.choice(some))
    elif what == "restore":
        chat.restore(chance.randint(1, chat.revision - 1))
    elif what == "compact" and chance.random() < 0.3:
        chat.messages.compact(f"s{step}", keep_last=chance.randint(0, len(some) - 1))
    elif what == "undo":
        if chance.random() < 0.3:
            chat.set("n", step)
        chat.undo()


def compared(chat: Scope, old: int, new: int) -> list[tuple[str | None, str | None]]:
    """Returns what two moments of a conversation differ in, from both whole lists."""
    before = {message.revision: message.text for message in chat.messages.at(old)}
    after = {message.revision: message.text for message in chat.messages.at(new)}
    return [
        (before.get(at), after.get(at))
        for at in sorted({*before, *after})
        if before.get(at) != after.get(at)
    ]
