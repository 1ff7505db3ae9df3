"""Turns, and histories that a crash left incomplete: the next request is always sound.

Every child here is a process of its own and ends by SIGKILL.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, UnavailableError, UsageError
from holdfast.record.history_repair import NO_RESULT
from holdfast.record.sessions import INDEX_TURN
from tests.crash.children import Child, tell
from tests.record.kills import Kill, await_deaths, kill_everywhere, open_dying, open_watched
from tests.record.stores import new_url


def test_a_turn_groups_messages(hf: Store) -> None:
    chat = hf.conversation("c")
    with chat.messages.turn() as turn:
        user = turn.add("user", "hi")
        [open_] = chat.messages.turns()
        assert (open_.status, open_.worker, open_.id) == ("open", hf.workers.own, turn.id)
        assert [mark.group for mark in hf.workers.marks(INDEX_TURN)] == ["conversation/c"]
        turn.add_many([{"role": "assistant", "content": "ho"}, {"role": "user", "content": "ok"}])
    assert user.turn == turn.id
    assert {message.turn for message in chat.messages} == {turn.id}
    with pytest.raises(ValueError, match="broken"), chat.messages.turn() as failed:
        failed.add("user", "again", foreign={"role": "user", "content": "again"})
        raise ValueError("broken")
    newest, oldest = chat.messages.turns()
    assert (oldest.status, oldest.error) == ("completed", None)
    assert (newest.status, newest.error) == ("failed", "ValueError: broken")
    assert newest.ended_at is not None
    assert chat.messages.turns(1) == [newest]
    assert hf.workers.marks(INDEX_TURN) == []
    with pytest.raises(UsageError, match="has ended"):
        turn.add("user", "late")
    with pytest.raises(UsageError, match="same conversation"):
        hf.conversation("d").messages.add("user", "x", turn=turn)
    turn.end()
    with chat.messages.turn():
        pass
    assert len(chat.messages.turns()) == 2, "a turn in which nothing is said leaves nothing"


def test_a_turn_that_was_open_at_a_fork_or_a_restore_is_interrupted_there(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.say("before")
    with chat.messages.turn() as turn:
        turn.add("user", "hi")
        fork = chat.fork("d")
        assert [one.status for one in fork.messages.turns()] == ["interrupted"]
        assert [one.status for one in chat.messages.turns()] == ["open"]
        chat.restore(chat.revision)
        assert [one.status for one in chat.messages.turns()] == ["interrupted"]
    assert [one.status for one in chat.messages.turns()] == ["completed"]


def lose_answers(hf: Store, monkeypatch: pytest.MonkeyPatch, type: str) -> None:
    """Loses the result of the next commit with an event of that type."""
    commit = hf._log._backend.commit

    def lost(commits: Any) -> Any:
        answers = commit(commits)
        if any(r.type == type for one in commits for a in one.appends for r in a.records):
            monkeypatch.undo()
            raise UnavailableError("no answer", outcome_known=False)
        return answers

    monkeypatch.setattr(hf._log._backend, "commit", lost)


@pytest.mark.parametrize("tries", [1, 2])
def test_a_turn_whose_first_result_was_lost_is_ended(
    hf: Store, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """It is there, though nobody here knows: it would read as open for as long as this worker
    lives. Said again without a key it is begun a second time, and is one turn all the same."""
    chat = hf.conversation("c")
    lose_answers(hf, monkeypatch, "turn.begun")
    turn = chat.messages.turn()
    with pytest.raises(UnavailableError):
        turn.add("user", "hi")
    for _ in range(tries - 1):
        turn.add("user", "hi")
    assert [one.status for one in chat.messages.turns()] == ["open"]
    turn.end()
    assert [one.status for one in chat.messages.turns()] == ["completed"]
    assert len(chat.messages) == tries
    assert hf.workers.marks(INDEX_TURN) == []


def test_a_turn_that_could_not_be_ended_is_ended_by_the_next_try(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.conversation("c")
    turn = chat.messages.turn()
    turn.add("user", "hi")
    monkeypatch.setattr(hf._log._backend, "commit", refuse)
    with pytest.raises(UnavailableError):
        turn.end()
    monkeypatch.undo()
    turn.end()
    assert [one.status for one in chat.messages.turns()] == ["completed"]
    turn.end()
    assert (chat.revision, hf.workers.marks(INDEX_TURN)) == (3, [])


def refuse(_: Any) -> None:
    raise UnavailableError("no way")


def test_an_open_turn_of_a_dead_worker_is_interrupted(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    holdfast.open(url).close()

    def live(pipe: int, stop: int) -> None:
        store = open_watched(url)
        with store.conversation("c").messages.turn() as turn:
            turn.add("user", "what time is it?")
            turn.add("assistant", tool_calls=[{"id": "t1", "name": "clock"}])
            tell(pipe, worker=store.workers.own)
            os.read(stop, 1)

    child = Child(live)
    child.hear_until(lambda: bool(child.lines))
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        [turn] = chat.messages.turns()
        assert turn.status == "open"
        os.kill(child.pid, signal.SIGKILL)
        child.end()
        await_deaths(hf)
        [turn] = chat.messages.turns()
        assert turn.status == "interrupted"
        assert [message.role for message in chat.messages] == ["user", "assistant"]
        request = chat.messages.for_request()
        assert request[-1] == {"role": "tool", "tool_call_id": "t1", "content": NO_RESULT}
        assert len(chat.messages) == 2, "what is stored was not touched"
        assert len(hf.workers.marks(INDEX_TURN)) == 1


ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": f"item {number}", "foreign_id": f"f{number}"} for number in range(3)
]


def say_one(url: str) -> None:
    with open_dying(url) as hf:
        hf.conversation("c").messages.add(**ITEMS[0])
        hf.conversation("c").messages.add("user", "keyed", key="k")


def say_many(url: str) -> None:
    with open_dying(url) as hf:
        hf.conversation("c").messages.add_many(ITEMS)


def take_a_turn(url: str) -> None:
    with open_dying(url) as hf, hf.conversation("c").messages.turn() as turn:
        turn.add("user", "q", foreign_id="q")
        turn.add("assistant", tool_calls=[{"id": "t"}], foreign_id="a")
        turn.add("tool", "result", tool_call_id="t", foreign_id="r")


def change(url: str) -> None:
    with open_dying(url) as hf:
        messages = hf.conversation("c").messages
        messages.edit(messages[0], content="edited")
        messages.delete(messages[1])
        messages.pop()
        messages.compact("summary", keep_last=1)
        messages.merge(hf.conversation("other"))
        messages.clear()


def prepared(durable: str, place: Path, *, filled: bool) -> str:
    url = new_url(durable, place)

    def live(_pipe: int, _stop: int) -> None:
        with holdfast.open(url) as hf:
            if filled:
                items = [{"role": "user", "content": text} for text in "abcde"]
                hf.conversation("c").messages.add_many(items)
                hf.conversation("other").say("other")

    child = Child(live)  # the process that forks later must have no store open
    child.end()
    assert child.trouble is None, child.trouble
    return url


def kills(work: Any, durable: str, place: Path, *, filled: bool = False) -> list[Kill]:
    return list(kill_everywhere(work, lambda: prepared(durable, place, filled=filled)))


def judged(kill: Kill, judge: Any) -> Any:
    with holdfast.open(kill.url) as hf:
        assert hf.check().ok
        return judge(hf)


def texts(hf: Store) -> list[str]:
    return [message.text for message in hf.conversation("c").messages]


def test_killed_while_adding_one_message(durable: str, tmp_path: Path) -> None:
    """Acknowledged or not there at all; sent again, it is there once."""
    for kill in kills(say_one, durable, tmp_path):
        found = judged(kill, texts)
        assert found in ([], ["item 0"], ["item 0", "keyed"]), kill
        say_one_again(kill.url)
        assert judged(kill, texts) == ["item 0", "keyed"], kill


def say_one_again(url: str) -> None:
    child = Child(lambda _pipe, _stop: say_one(url))
    child.end()
    assert child.trouble is None, child.trouble


def test_killed_while_adding_many(durable: str, tmp_path: Path) -> None:
    """What a crash leaves is a beginning; sent again, the rest is added and nothing twice."""
    said = [item["content"] for item in ITEMS]
    for kill in kills(say_many, durable, tmp_path):
        found = judged(kill, texts)
        assert found == said[: len(found)], kill
        child = Child(lambda _pipe, _stop, url=kill.url: say_many(url))
        child.end()
        assert child.trouble is None, child.trouble
        assert judged(kill, texts) == said, kill


def test_killed_in_a_turn(durable: str, tmp_path: Path) -> None:
    """A turn is completed, interrupted, or never was; no call lacks its result (BOOT-90)."""

    def judge(hf: Store) -> None:
        await_deaths(hf)
        chat = hf.conversation("c")
        statuses = [turn.status for turn in chat.messages.turns()]
        if len(chat.messages) == 0:
            assert statuses == []
        else:
            assert statuses in (["interrupted"], ["completed"])
        assert (statuses == ["interrupted"]) == (len(hf.workers.marks(INDEX_TURN)) == 1)
        calls = [one for item in chat.messages.for_request() for one in item.get("tool_calls", ())]
        results = [item for item in chat.messages.for_request() if item["role"] == "tool"]
        assert len(calls) == len(results)

    found = kills(take_a_turn, durable, tmp_path)
    assert len(found) >= 8
    for kill in found:
        judged(kill, judge)


def test_killed_while_changing(durable: str, tmp_path: Path) -> None:
    """Each change is there or not: every kill leaves one of the states in between."""
    states = [
        ["a", "b", "c", "d", "e"],
        ["edited", "b", "c", "d", "e"],
        ["edited", "c", "d", "e"],
        ["edited", "c", "d"],
        ["summary", "d"],
        ["other", "summary", "d"],
        [],
    ]
    found = [judged(kill, texts) for kill in kills(change, durable, tmp_path, filled=True)]
    seen = [states.index(one) for one in found]
    assert seen == sorted(seen), found
    assert set(seen) == set(range(len(states)))


def merge(url: str) -> None:
    with open_dying(url) as hf:
        hf.conversation("c").messages.merge(hf.conversation("other"))


def test_killed_while_merging_no_item_is_added_twice(durable: str, tmp_path: Path) -> None:
    """The next process sends the items again, merges again, or both, in either order."""

    def fresh() -> str:
        url = new_url(durable, tmp_path)

        def live(_pipe: int, _stop: int) -> None:
            with holdfast.open(url) as hf:
                hf.conversation("c").say("mine")
                hf.conversation("other").messages.add_many(ITEMS)

        child = Child(live)
        child.end()
        assert child.trouble is None, child.trouble
        return url

    def judge(hf: Store) -> None:
        chat = hf.conversation("c")
        for name, steps in (("add", "aam"), ("merge", "mam")):
            fork = chat.fork(name)
            for step in steps:
                if step == "a":
                    fork.messages.add_many(ITEMS)
                else:
                    fork.messages.merge(hf.conversation("other"))
                found = [message.text for message in fork.messages]
                assert sorted(found) == ["item 0", "item 1", "item 2", "mine"], (kill, steps)

    trials = 0
    for kill in kill_everywhere(merge, fresh):
        trials += 1
        judged(kill, judge)
    assert trials >= 2, "before the merge, and after it"


def test_an_item_added_during_a_merge_that_adds_it_is_there_once(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the keys of a merge and the merge itself another writer is faster."""
    chat = hf.conversation("c")
    hf.conversation("other").messages.add_many(ITEMS)
    messages = chat.messages
    guarded = messages._commit_at  # pyright: ignore[reportPrivateUsage]

    def slower(*given: Any) -> Any:
        monkeypatch.setattr(messages, "_commit_at", guarded)
        hf.conversation("c").messages.add(**ITEMS[1])
        return guarded(*given)

    monkeypatch.setattr(messages, "_commit_at", slower)
    assert [one.text for one in messages.merge(hf.conversation("other"))] == ["item 0", "item 2"]
    messages.add_many(ITEMS)
    assert sorted(texts(hf)) == ["item 0", "item 1", "item 2"]
    messages.edit(messages.get("f0"), content="edited")
    messages.add(**ITEMS[0])
    assert len(messages) == 3, "an edited item is known by its id too"
    with pytest.raises(UsageError, match="another change"):
        messages.add("user", "something else", foreign_id="f2")
