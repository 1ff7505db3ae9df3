"""A scope is removed, and its name begins again, on every backend (decision 0025)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store, aio
from holdfast.copy import copy
from holdfast.errors import (
    ConflictError,
    LeaseLostError,
    NotFoundError,
    RunCancelledError,
    UnavailableError,
    UsageError,
)
from holdfast.record import removal
from holdfast.record.context import RecordContext
from holdfast.scope import Scope
from holdfast.testing import FakeClock
from holdfast.workers import Lease
from tests.record.kills import kill_everywhere, open_dying
from tests.record.stores import new_url


def fill(chat: Scope) -> None:
    """Gives a scope something of everything."""
    chat.set("stage", "open", key="once", checkpoint="begun")
    chat.say("hello")
    chat.tasks.add("one")
    chat.facts.state("price", 7)
    with chat.decide("refund") as decision:
        decision.outcome("done")


def seen(chat: Scope) -> dict[str, Any]:
    """Returns all that a reader of a scope sees, but for revisions."""
    return {
        "state": chat.state.to_dict(),
        "messages": [message.content for message in chat.messages],
        "tasks": [task.title for task in chat.tasks.list()],
        "facts": [fact.name for fact in chat.facts.list()],
        "decisions": [decision.decision for decision in chat.decisions.recall().recent],
        "checkpoints": [checkpoint.name for checkpoint in chat.checkpoints()],
        "history": [event.type for event in chat.history()],
        "states": [dict(one.state) for one in chat.states()],
        "updated": chat.life.updated_at is not None,
        "closed": chat.life.is_closed,
        "parent": chat.parent,
    }


def names(hf: Store) -> list[str]:
    return [scope.name for scope in hf.scopes()]


def test_a_removed_scope_is_as_if_it_had_never_been(hf: Store, url: str) -> None:
    chat, never = hf.conversation("c"), seen(hf.conversation("never"))
    hf.conversation("b").set("n", 1)
    fill(chat)
    marks = len(hf._log.marks.list())
    removed_at = chat.remove()
    assert removed_at == chat.revision
    assert seen(chat) == never
    assert names(hf) == ["conversation/b"]
    assert [mark.index for mark in hf._log.marks.list()] == ["scope.removed"]
    assert marks > 1
    if url != "memory:":
        with holdfast.open(url) as other:
            assert seen(other.conversation("c")) == never
            assert names(other) == ["conversation/b"]
    with pytest.raises(NotFoundError, match="nothing to remove"):
        chat.remove()
    with pytest.raises(UsageError, match="nothing to fork"):
        chat.fork("d")
    assert hf.check().ok


def test_the_name_begins_again(hf: Store, url: str) -> None:
    chat = hf.conversation("c")
    fill(chat)
    old = seen(chat)
    chat.remove()
    fill(chat)
    assert seen(chat) == old
    assert names(hf) == ["conversation/c"]
    assert chat.set("stage", "open", key="once") == chat.life.revision_at("begun")
    with pytest.raises(NotFoundError, match="an earlier life"):
        chat.restore(1)
    if url != "memory:":
        with holdfast.open(url) as other:
            assert seen(other.conversation("c")) == old
    assert hf.check().ok


def test_an_undo_brings_everything_back_until_the_new_life_begins(hf: Store, url: str) -> None:
    team = hf.team("t")
    chat = hf.conversation("c", parent=team)
    fill(chat)
    before, marks = seen(chat), sorted(map(repr, hf._log.marks.list()))
    chat.remove()
    chat = hf.conversation("c")
    chat.undo()
    after = seen(chat)
    assert after["history"] == [*before["history"], "removed", "restored"]
    after["history"], after["states"] = before["history"], before["states"]
    assert after == before
    assert sorted(map(repr, hf._log.marks.list())) == marks
    assert chat.set("stage", "open", key="once") == 2  # after the event that gave it its parent
    chat.remove()
    chat.set("n", 1)
    chat.undo()
    assert chat.state.to_dict() == {}
    with pytest.raises(NotFoundError, match="no change to undo"):
        hf.conversation("d").undo()
    assert [event.type for event in chat.history()] == ["changed", "restored"]
    assert hf.check().ok


def test_a_closed_scope_is_removed_and_an_undo_leaves_it_closed(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.close()
    chat.remove()
    assert not chat.life.is_closed
    chat.undo()
    assert chat.life.is_closed
    hf._log.folds.states.clear()
    with pytest.raises(holdfast.ClosedError):
        chat.say("too late")
    chat.remove()
    chat.set("n", 2)
    assert chat.state.to_dict() == {"n": 2}


def test_a_late_write_of_the_old_life_never_fits(hf: Store, url: str) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    other = hf if url == "memory:" else holdfast.open(url)
    late = other.conversation("c")
    edit = late.edit()
    draft = edit.__enter__()
    draft["n"] = 2
    held = late.revision
    chat.remove()
    chat.set("n", 7)
    with pytest.raises(ConflictError):
        late.set("n", 2, expected=held)
    with pytest.raises(ConflictError):
        edit.__exit__(None, None, None)
    with pytest.raises(ConflictError):
        late.set("n", 2, expected=0)
    assert late.state.to_dict() == chat.state.to_dict() == {"n": 7}
    if other is not hf:
        other.close()


def test_a_read_of_the_old_life_guards_against_the_new_one(hf: Store) -> None:
    chat, target = hf.conversation("c"), hf.conversation("d")
    chat.set("n", 1)
    with pytest.raises(ConflictError), hf.commit() as tx:
        assert tx.scope(chat).get("n") == 1
        tx.scope(target).set("seen", 1)
        chat.remove()
        chat.set("n", 1)
    assert target.revision == 0


def test_a_key_of_the_old_life_is_free_for_a_writer_that_knows_only_that(
    hf: Store, url: str
) -> None:
    """Its commit is refused as a duplicate by the backend, and is made again in the new life."""
    chat = hf.conversation("c")
    other = hf if url == "memory:" else holdfast.open(url)
    late = other.conversation("c")
    late.set("n", 1, key="k")
    chat.remove()
    chat.set("m", 1)
    assert late.set("n", 2, key="k") == chat.revision
    assert chat.state.to_dict() == {"m": 1, "n": 2}
    assert [event.key for event in chat.history(removed=True)] == ["k", None, None, "k"]
    if other is not hf:
        other.close()


def test_a_joint_commit_is_of_the_life_that_it_is_made_in(hf: Store) -> None:
    chat = hf.conversation("c")

    def talk(text: str) -> None:
        with hf.commit(key="turn-1") as tx:
            tx.scope(chat).messages.add("user", text)
            tx.scope(chat).set("text", text)

    talk("one")
    talk("one")
    chat.remove()
    talk("two")
    talk("two")
    assert ([m.content for m in chat.messages], chat.state.to_dict()) == (["two"], {"text": "two"})
    assert hf.check().ok


def test_what_is_recorded_of_an_item_never_lands_in_another_life(hf: Store) -> None:
    """Its number is free there: it would count as an event of whatever has that number next."""
    chat = hf.conversation("c")

    def close_task() -> None:
        with hf.commit() as tx:
            tx.scope(chat).tasks.close("t1", "done")
            chat.remove()

    def close_decision() -> None:
        with hf.commit() as tx:
            tx.outcome("d@conversation/c", "done")
            chat.remove()

    def state_fact() -> None:
        with hf.commit() as tx:
            tx.scope(chat).facts.state("sky", "grey")
            chat.remove()

    for late in (close_task, close_decision, state_fact):
        chat.tasks.add("old")
        chat.decide("old", key="d", owner="ann", standing=True)
        chat.facts.state("sky", "blue")
        with pytest.raises(ConflictError, match="conversation/c"):
            late()
        assert chat.revision == hf._log.life(chat.name)
    with hf.commit() as tx:  # what the block itself began goes into the life that there is
        pending = tx.scope(chat)
        pending.tasks.close(pending.tasks.add("new").id, "done")
        chat.set("n", 1)
        chat.remove()
    assert [(task.id, task.status) for task in chat.tasks.list()] == [("t1", "completed")]
    assert hf.check().ok


def test_messages_are_not_rewound_into_an_earlier_life(hf: Store) -> None:
    chat = hf.conversation("c")
    old = chat.say("old")
    began = chat.remove()
    for moment in (old, old.revision):
        with pytest.raises(NotFoundError, match="earlier life"):
            chat.messages.rewind(moment)
    new = chat.say("new")
    chat.say("newer")
    chat.messages.rewind(new)
    assert [message.content for message in chat.messages] == ["new"]
    chat.messages.rewind(began)
    assert list(chat.messages) == []
    chat.say("newest")
    chat.messages.rewind(0)
    assert list(chat.messages) == []


@pytest.mark.parametrize(
    "act",
    [
        lambda chat, message: chat.messages.rewind(message),
        lambda chat, message: chat.messages.edit(message, content="edited"),
        lambda chat, message: chat.messages.delete(message),
    ],
)
def test_what_is_said_of_a_message_never_lands_in_another_life(
    hf: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[Any, Any], object]
) -> None:
    """The removal comes between the look at the message and the commit."""
    chat = hf.conversation("c")
    message = chat.say("old")
    commit = hf._log.commit

    def late(proposed: Any) -> Any:
        monkeypatch.undo()
        chat.remove()
        return commit(proposed)

    monkeypatch.setattr(hf._log, "commit", late)
    with pytest.raises(ConflictError, match="conversation/c"):
        act(chat, message)
    assert chat.revision == hf._log.life(chat.name)
    assert list(chat.messages) == []


def test_an_undo_of_the_return_removes_the_scope_again(hf: Store) -> None:
    """Whole: tasks, facts and decisions go with the state and the messages."""
    chat = hf.conversation("c")
    chat.update({"n": 1})
    chat.say("hello")
    chat.tasks.add("work")
    chat.facts.state("sky", "blue")
    chat.decide("order", key="d", owner="ann", standing=True)

    def seen() -> tuple[object, ...]:
        record = chat.tasks.list(), chat.facts.list(), hf.decisions.list(), hf.tasks.list()
        return (chat.state.to_dict(), len(chat.messages), *map(len, record), len(hf.scopes()))

    for _ in range(2):
        chat.remove()
        chat.undo()
        assert seen() == ({"n": 1}, 1, 1, 1, 1, 1, 1)
        chat.undo()
        assert seen() == ({}, 0, 0, 0, 0, 0, 0)
        chat.undo()
        assert seen() == ({"n": 1}, 1, 1, 1, 1, 1, 1)
    chat.say("more")
    with pytest.raises(NotFoundError, match="no change to undo since"):
        chat.undo()
    assert seen() == ({"n": 1}, 2, 1, 1, 1, 1, 1)


def test_the_answer_about_a_fact_whose_scope_was_removed_is_not_recorded(hf: Store) -> None:
    chat = hf.conversation("c")

    @holdfast.verifier
    def look_up_and_remove(_: object) -> bool:
        chat.remove()
        return False

    chat.facts.state("sky", "blue", verify=look_up_and_remove)
    assert chat.facts.check("sky").value == "blue"
    assert (chat.facts.list(), list(chat.history())) == ([], [])
    assert chat.revision == hf._log.life(chat.name)


def test_a_joint_commit_sees_the_tasks_of_a_life_that_was_brought_back(hf: Store) -> None:
    first = hf.conversation("a")
    first.tasks.add("inherited")
    chat = first.fork("c")
    chat.remove()
    assert chat.tasks.list() == []
    chat.undo()
    with hf.commit() as tx:
        assert [task.title for task in tx.scope(chat).tasks.list()] == ["inherited"]


def test_what_is_under_way_is_named(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    decision = chat.decide("refund")
    with pytest.raises(UsageError, match=f'decision "{decision.id}" is open'):
        chat.remove()
    decision.outcome("done")
    task = chat.tasks.add("one")
    chat.tasks.claim(task.id)
    with pytest.raises(UsageError, match=f'task "{task.id}" is in progress, by worker'):
        chat.remove()
    chat.tasks.close(task.id, "done")
    with chat.messages.turn() as turn:
        turn.add("user", "hello")
        with pytest.raises(UsageError, match="has a turn there"):
            chat.remove()
    with hf.workers.lease(chat.name), pytest.raises(UsageError, match="holds the lease"):
        chat.remove()
    assert chat.remove() == chat.revision
    with pytest.raises(UsageError, match="written by holdfast itself"):
        hf.conversation("x")._sibling("run/r").remove()


def test_nobody_takes_the_lease_between_the_look_and_the_commit(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He would hold the lease of what is gone, and believe that he alone writes there."""
    chat = hf.conversation("c")
    chat.set("n", 1)
    tries: list[str] = []
    looked = removal.check_nothing_under_way

    def look(context: RecordContext, stream: str) -> None:
        looked(context, stream)
        with pytest.raises(LeaseLostError, match=f"{hf.workers.own}.remove"):
            hf.workers.lease(stream)
        tries.append(stream)

    monkeypatch.setattr(removal, "check_nothing_under_way", look)
    chat.remove()
    assert tries == [chat.name]
    with hf.workers.lease(chat.name):
        chat.set("n", 2)


def test_a_removal_whose_lease_has_lapsed_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paused longer than its lease lasts, and somebody took the scope's name meanwhile."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c")
        chat.set("n", 1)
        looked = removal.check_nothing_under_way

        def pause(context: RecordContext, stream: str) -> None:
            looked(context, stream)
            clock.advance(removal.LEASE_S + 1)
            hf.workers.lease(stream, ttl_s=3600)

        monkeypatch.setattr(removal, "check_nothing_under_way", pause)
        with pytest.raises(UsageError, match="holds the lease"):
            chat.remove()
        assert chat.get("n") == 1


def test_a_removal_inside_another_lease_has_the_fence_of_that(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    with hf.workers.lease("nightly") as lease:
        hf._log.leases.release(lease)
        with pytest.raises(LeaseLostError, match="nightly"):
            chat.remove()
    assert chat.get("n") == 1
    with hf.workers.lease("nightly"):
        chat.remove()
    assert chat.get("n") is None


def test_a_lease_that_cannot_be_given_back_lapses(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)

    def fail(lease: Lease) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(hf._log.leases, "release", fail)
    chat.remove()
    assert chat.get("n") is None


@holdfast.run(name="removal.waits")
def waits(ctx: Any) -> int:
    return ctx.signal("go")


def test_an_unfinished_run_keeps_its_scope(hf: Store) -> None:
    handle = hf.runs.start(waits, id="r")
    scope = hf.workflow("r")
    scope.set("n", 1)
    with pytest.raises(UsageError, match='run "r" is'):
        scope.remove()
    handle.cancel()
    with pytest.raises(RunCancelledError):
        handle.result(timeout=60)
    assert scope.remove() == scope.revision


def test_the_old_life_is_read_by_its_revisions(hf: Store) -> None:
    chat = hf.conversation("c")
    for n in range(3):
        chat.set("n", n)
    chat.say("hello")
    task = chat.tasks.add("one")
    fork = chat.fork("kept")
    last = chat.revision
    chat.remove()
    chat.set("m", 1)
    assert chat.at(2) == {"n": 1}
    assert [m.content for m in chat.messages.at(last)] == ["hello"]
    types = ["changed"] * 3 + ["message.added", "task.added", "removed", "changed"]
    assert [event.type for event in chat.history(removed=True)] == types
    assert [one.state.get("n") for one in chat.states(removed=True)][:3] == [0, 1, 2]
    assert fork.state.to_dict() == {"n": 2}
    assert [one.id for one in fork.tasks.list()] == [task.id]
    later = chat.fork("later", at=2)
    later.set("n", 9)
    assert later.state.to_dict() == {"n": 9}
    forked = chat.fork("forked")
    assert (forked.state.to_dict(), [e.type for e in forked.history()]) == (
        {"m": 1},
        ["changed", "forked"],
    )
    assert forked.tasks.list() == []
    forked.remove()
    assert (forked.state.to_dict(), forked.tasks.list(), list(forked.history())) == ({}, [], [])
    assert hf.check().ok


def test_removal_and_revival_over_and_over(hf: Store) -> None:
    chat = hf.conversation("c")
    for life in range(4):
        assert chat.set("life", life, key="begin") == chat.revision
        task = chat.tasks.add(f"task {life}")
        assert task.id == "t1" or life
        assert [one.title for one in chat.tasks.list()] == [f"task {life}"]
        assert chat.remove(expected=chat.revision) == chat.revision
    with pytest.raises(NotFoundError):
        chat.remove(expected=3)
    assert len(list(chat.history(type="removed", removed=True))) == 4


def test_subscribers_hear_what_went_and_what_came_back(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    heard: list[tuple[Any, Any]] = []
    chat.subscribe(lambda change: heard.append((change.old, change.new)))
    chat.remove()
    chat.undo()
    assert hf._log.dispatcher.drain()
    assert heard == [(1, holdfast.MISSING), (holdfast.MISSING, 1)]


def test_the_same_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            await chat.set("n", 1)
            removed_at = await chat.remove()
            assert await chat.revision == removed_at
            assert (await chat.state, await chat.life.updated_at) == ({}, None)
            assert [event async for event in chat.history()] == []
            assert [one async for one in chat.states()] == []
            assert len([event async for event in chat.history(removed=True)]) == 2
            assert len([one async for one in chat.states(removed=True)]) == 2
            await chat.undo()
            assert await chat.state == {"n": 1}
            with pytest.raises(ConflictError):
                await chat.remove(expected=1)

    asyncio.run(main())


def test_scopes_of_a_store_over_several_backends(tmp_path: Path) -> None:
    places = {"conversation": f"sqlite:{tmp_path}/c.db", "*": f"{tmp_path}/rest"}
    with holdfast.open(places) as hf:
        chat, team = hf.conversation("c"), hf.team("t")
        for scope in (chat, team):
            fill(scope)
            scope.remove()
        assert names(hf) == []
        chat.undo()
        team.set("n", 1)
        assert names(hf) == ["conversation/c", "team/t"]
        assert (chat.state.to_dict(), team.state.to_dict()) == ({"stage": "open"}, {"n": 1})
        assert hf.check().ok


def test_a_copy_has_the_same_lives(hf: Store, tmp_path: Path) -> None:
    chat, gone = hf.conversation("c"), hf.conversation("gone")
    fill(chat)
    chat.remove()
    fill(chat)
    gone.set("n", 1)
    gone.remove()
    with holdfast.open(f"sqlite:{tmp_path}/copy.db") as other:
        copy(hf, other)
        assert seen(other.conversation("c")) == seen(chat)
        assert names(other) == names(hf) == ["conversation/c"]
        assert other.conversation("c").set("stage", "open", key="once")
        other.conversation("gone").undo()
        assert other.conversation("gone").state.to_dict() == {"n": 1}


# --- kills ----------------------------------------------------------------------------------------


def _removes(url: str) -> None:
    with open_dying(url) as hf:
        chat = hf.conversation("c")
        chat.remove()
        chat.set("n", 2)
        chat.remove()
        chat.undo()


def test_a_kill_between_any_two_commits_leaves_one_life_or_the_other(
    durable: str, tmp_path: Path
) -> None:
    def fresh() -> str:
        url = new_url(durable, tmp_path)
        with holdfast.open(url) as hf:
            fill(hf.conversation("c"))
        return url

    allowed = [{"stage": "open"}, {}, {"n": 2}, {}, {"n": 2}]
    for kill in kill_everywhere(_removes, fresh, in_turns=True):
        done = kill.nth - (kill.when == "before")
        with holdfast.open(kill.url) as hf:
            chat = hf.conversation("c")
            assert chat.state.to_dict() == allowed[done], kill
            assert bool(names(hf)) == bool(allowed[done]), kill
            has_marks = any(mark.group == chat.name for mark in hf._log.marks.list("task"))
            assert has_marks == (done == 0), kill
            assert hf.check().ok


def _removes_once(url: str) -> None:
    with open_dying(url) as hf:
        hf.conversation("c").remove()


def test_a_kill_between_any_two_calls_of_a_removal(durable: str, tmp_path: Path) -> None:
    """Of the backend: leases, marks, heads, reads and the commit. Then it is removed again."""

    def fresh() -> str:
        url = new_url(durable, tmp_path)
        with holdfast.open(url) as hf:
            fill(hf.conversation("c"))
        return url

    for kill in kill_everywhere(_removes_once, fresh, every_call=True):
        assert kill.commits > 8, "calls were not counted"
        with holdfast.open(kill.url) as hf:
            chat = hf.conversation("c")
            is_there = chat.state.to_dict() == {"stage": "open"}
            assert bool(names(hf)) == is_there, kill
            assert any(mark.group == chat.name for mark in hf.workers.marks("task")) == is_there, (
                kill
            )
            chat.set("n", 2)
            assert chat.state.to_dict() == ({"stage": "open", "n": 2} if is_there else {"n": 2})
            said = ""
            try:
                chat.remove()
            except UsageError as error:  # of a killed remover a server learns in time
                said = str(error)
            if said:
                assert "try again in 10 s" in said
                assert durable in ("redis", "postgresql"), kill
            else:
                assert names(hf) == []
            assert hf.check().ok


Act = Callable[[Scope], object]


@pytest.mark.parametrize("first", [Scope.remove, lambda chat: chat.set("n", 2, expected=1)])
@pytest.mark.parametrize("second", [Scope.remove, lambda chat: chat.set("n", 3, expected=1)])
def test_of_two_writers_off_one_parent_one_is_refused(url: str, first: Act, second: Act) -> None:
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        chat.set("n", 1)
        other = hf if url == "memory:" else holdfast.open(url)
        late = other.conversation("c")
        assert late.state.to_dict() == {"n": 1}
        first(chat)
        if second is Scope.remove and first is not Scope.remove:
            late.remove()  # it removes what is there now: it was not told which revision
            assert chat.state.to_dict() == {}
        else:
            with pytest.raises((ConflictError, NotFoundError)):
                second(late)
        assert chat.revision == late.revision
        if other is not hf:
            other.close()
