"""Joint commits: records of every kind, beside the state of any scope, all or nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ConflictError, Store, UsageError, aio
from holdfast.backends.files.disk import Disk
from holdfast.core.event import JOINED
from holdfast.tasks import Tasks
from tests.record.kills import kill_everywhere, run_child
from tests.record.stores import new_url


def record_all(hf: Store, key: str | None = None, after: Callable[[int], object] = id) -> Any:
    """Records one of each kind in a joint commit; `after` is told how many calls were made."""
    chat, team = hf.conversation("c"), hf.team("t")
    with hf.commit(key=key) as tx:
        pending, calls = tx.scope(chat), iter(range(1, 100))
        pending.tasks.close("t1", "sent")
        after(next(calls))
        message = pending.messages.add("tool", "sent", tool_call_id="c1")
        after(next(calls))
        task = pending.tasks.add("thank them")
        after(next(calls))
        decision = pending.decide("thank them", because="polite")
        after(next(calls))
        tx.outcome("d@conversation/c", "sent", output={"id": 7})
        after(next(calls))
        pending.facts.state("sent", True)
        after(next(calls))
        with pending.turn() as turn:
            turn.add("user", "thanks")
        after(next(calls))
        pending.set("last", "t1")
        after(next(calls))
        tx.scope(team).increment("sent")
        after(next(calls))
        tx.mark("outbox", "m1")
        after(next(calls))
    return message, task, decision, turn


def prepared(url: str) -> str:
    """Returns a store with a task and an open decision."""
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        chat.tasks.claim(chat.tasks.add("send").id, owner="ana", lasts="1h")
        chat.decide("send", key="d")
    return url


def work_of(hf: Store) -> dict[str, Any]:
    """Returns what there is of a joint commit."""
    chat, team = hf.conversation("c"), hf.team("t")
    return {
        "messages": [(one.role, one.text) for one in chat.messages],
        "tasks": {one.id: one.status for one in chat.tasks.list()},
        "decisions": sorted((one.decision, one.status) for one in hf.decisions.list(scope=chat)),
        "facts": [(one.name, one.value) for one in chat.facts.list()],
        "turns": [one.status for one in chat.messages.turns()],
        "state": (chat.get("last"), team.get("sent")),
        "marks": [mark.key for mark in hf.workers.marks("outbox")],
    }


NOTHING = {
    "messages": [],
    "tasks": {"t1": "in_progress"},
    "decisions": [("send", "open")],
    "facts": [],
    "turns": [],
    "state": (None, None),
    "marks": [],
}
ALL = {
    "messages": [("tool", "sent"), ("user", "thanks")],
    "tasks": {"t1": "completed", "t2": "open"},
    "decisions": [("send", "closed"), ("thank them", "open")],
    "facts": [("sent", True)],
    "turns": ["completed"],
    "state": ("t1", 1),
    "marks": ["m1"],
}


@pytest.fixture
def begun(hf: Store) -> Store:
    chat = hf.conversation("c")
    chat.tasks.claim(chat.tasks.add("send").id, owner="ana", lasts="1h")
    chat.decide("send", key="d")
    return hf


def close(pending: Any) -> Any:
    return pending.tasks.close("t1", "sent", owner="ana")


@pytest.fixture(autouse=True)
def _as_ana(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the tasks of these tests be closed by their owner's name, in whichever process."""
    genuine = Tasks.close

    def closed(self: Any, task: Any, outcome: str, **options: Any) -> Any:
        return genuine(self, task, outcome, **{"owner": "ana", **options})

    monkeypatch.setattr(Tasks, "close", closed)


def counted(hf: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of commits of each call to the backend from here on."""
    calls: list[int] = []
    inner = hf._log._backend.commit

    def commit(commits: Any) -> Any:
        calls.append(len(commits))
        return inner(commits)

    monkeypatch.setattr(hf._log._backend, "commit", commit)
    return calls


def test_everything_is_one_commit(begun: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before, calls = begun.position, counted(begun, monkeypatch)
    message, task, decision, turn = record_all(begun)
    assert calls == [1]
    assert work_of(begun) == ALL
    written = {event.position for event in begun.events(after=before)}
    assert len(written) == 1
    chat = begun.conversation("c")
    assert chat.messages[0] == message
    assert message.id == chat.messages[0].id
    assert task.id == "t2"
    assert chat.tasks.get("t2").title == "thank them"
    # The handles go on after the block.
    assert decision.outcome("thanked").status == "closed"
    assert turn.id == chat.messages.turns()[0].id
    assert [found.problem for found in begun.check().findings] == []


def test_nothing_is_there_for_others_before_the_block_ends(begun: Store) -> None:
    seen: list[dict[str, Any]] = []
    record_all(begun, after=lambda _: seen.append(work_of(begun)))
    assert all(one == NOTHING for one in seen)
    assert len(seen) == 10


def test_the_block_sees_what_it_recorded(begun: Store) -> None:
    chat = begun.conversation("c")
    with begun.commit() as tx:
        pending = tx.scope(chat)
        first = pending.messages.add("user", "one")
        pending.messages.edit(first, content="two")
        pending.messages.add("user", "three")
        pending.messages.pop()
        assert [one.text for one in pending.messages] == ["two"]
        close(pending)
        assert [one.id for one in pending.tasks.list(status="completed")] == ["t1"]
        pending.facts.state("a", 1)
        pending.facts.state("a", 2)
        pending.facts.state("b", 3)
        pending.facts.withdraw("b")
        assert [(one.name, one.value) for one in pending.facts.list()] == [("a", 2)]
    assert [one.text for one in chat.messages] == ["two"]
    assert [(one.name, one.value) for one in chat.facts.list()] == [("a", 2)]


def test_a_block_that_raises_records_nothing(begun: Store) -> None:
    turns: list[Any] = []

    def fail(calls: int) -> None:
        if calls == 10:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        record_all(begun, after=fail)
    assert work_of(begun) == NOTHING
    chat = begun.conversation("c")
    with pytest.raises(RuntimeError), begun.commit() as tx:
        turns.append(tx.scope(chat).turn())
        turns[0].add("user", "one")
        raise RuntimeError("no")
    with pytest.raises(UsageError, match="has ended"):
        turns[0].add("user", "two")
    assert work_of(begun) == NOTHING


def test_what_a_recorder_refuses_it_refuses_in_the_block(begun: Store) -> None:
    chat = begun.conversation("c")
    with pytest.raises(ConflictError), begun.commit() as tx:
        tx.scope(chat).set("a", 1)
        close(tx.scope(chat))
        close(tx.scope(chat))
    assert chat.get("a") is None
    with pytest.raises(UsageError, match="not set by a recorder"), begun.commit() as tx:
        tx.scope(chat).messages.add("user", "hi", state={"a": 1})
    assert work_of(begun) == NOTHING


def test_a_merge_takes_part(begun: Store) -> None:
    chat, other = begun.conversation("c"), begun.conversation("other")
    other.messages.add("user", "first", foreign_id="f1")
    chat.messages.add("user", "second")
    other.messages.add("user", "third", foreign_id="f3")
    with pytest.raises(ValueError, match="mine"), begun.commit() as tx:
        tx.scope(chat).messages.merge(other)
        raise ValueError("mine")
    assert [one.content for one in chat.messages] == ["second"]
    position = begun.position
    with begun.commit() as tx:
        tx.scope(begun.team("t")).set("merged", 1)
        new = tx.scope(chat).messages.merge(other)
        tx.scope(chat).messages.add("user", "fourth")
    assert [one.content for one in new] == ["first", "third"]
    said = ["first", "second", "third", "fourth"]
    assert [one.content for one in chat.messages] == said
    assert (
        len({event.position for event in begun.follow(as_events=True, after=position, timeout_s=0)})
        == 1
    )
    assert chat.messages.merge(other) == []
    chat.messages.add("user", "first", foreign_id="f1")
    chat.messages.add_many([{"role": "user", "content": "third", "foreign_id": "f3"}])
    assert [one.content for one in chat.messages] == said


def test_another_writer_of_the_same_item_is_a_conflict(begun: Store) -> None:
    chat = begun.conversation("c")
    with pytest.raises(ConflictError), begun.commit() as tx:
        close(tx.scope(chat))
        tx.scope(chat).messages.add("user", "late")
        tx.scope(chat).set("a", 1)
        chat.tasks.update("t1", note="changed meanwhile")
    assert chat.tasks.get("t1").status == "in_progress"
    assert chat.get("a") is None
    assert len(chat.messages) == 0


def test_another_writer_of_something_else_is_none(begun: Store) -> None:
    chat = begun.conversation("c")
    with begun.commit() as tx:
        message = tx.scope(chat).messages.add("user", "mine")
        close(tx.scope(chat))
        chat.messages.add("user", "theirs")
        chat.set("b", 2)
    assert [one.text for one in chat.messages] == ["theirs", "mine"]
    assert chat.messages[1] == message, "it is told where it is in the end"
    assert chat.tasks.get("t1").status == "completed"


def test_what_names_a_revision_is_guarded(begun: Store) -> None:
    chat = begun.conversation("c")
    with pytest.raises(ConflictError), begun.commit() as tx:
        message = tx.scope(chat).messages.add("user", "mine")
        tx.scope(chat).messages.edit(message, content="mine, edited")
        chat.messages.add("user", "theirs")
    assert [one.text for one in chat.messages] == ["theirs"]


def test_what_another_process_adds_between_two_reads_of_a_block_is_no_conflict(
    begun: Store, url: str
) -> None:
    """The state is read at one revision, and a message is edited at the next: both still hold."""
    chat = begun.conversation("c")
    message = chat.say("one")
    chat.set("n", 1)
    other = begun if url == "memory:" else holdfast.open(url)
    with begun.commit() as tx:
        pending = tx.scope(chat)
        pending.set("n", pending["n"] + 1)
        other.conversation("c").say("two")
        pending.messages.edit(message, content="uno")
    assert ([m.content for m in chat.messages], chat["n"]) == (["uno", "two"], 2)
    if other is not begun:
        other.close()


def test_a_repetition_with_the_same_key_changes_nothing(begun: Store) -> None:
    first = record_all(begun, "once")
    position, state = begun.position, work_of(begun)
    again = record_all(begun, "once")
    assert begun.position == position
    assert work_of(begun) == state == ALL
    assert [again[0].id, again[1].id, again[2].id] == [first[0].id, first[1].id, first[2].id]
    assert again[0].revision == first[0].revision
    # The task's event has a key of its own, so the commit's is on an event before it.
    types = [event.type for event in begun.conversation("c").history()]
    assert types.count(JOINED) == 1
    with pytest.raises(UsageError, match="another change"), begun.commit(key="once") as tx:
        tx.scope(begun.conversation("c")).messages.add("user", "something else")


def test_a_key_that_another_used_meanwhile_is_a_repetition_too(begun: Store) -> None:
    chat = begun.conversation("c")

    def write() -> Any:
        return tx.scope(chat).messages.add("user", "hi")

    with begun.commit(key="k") as tx:
        mine = write()
        with begun.commit(key="k") as tx:
            theirs = write()
    assert len(chat.messages) == 1
    assert tx.result is not None
    assert mine.id != theirs.id or mine == theirs
    assert chat.messages[0] == theirs


def test_foreign_items_take_part_and_are_known(begun: Store) -> None:
    chat = begun.conversation("c")
    for _ in range(2):
        with begun.commit() as tx:
            items = [{"role": "user", "content": str(n), "foreign_id": f"f{n}"} for n in range(3)]
            assert len(tx.scope(chat).messages.add_many(items)) == 3
            tx.scope(chat).messages.add("user", "3", foreign_id="f3")
    assert [one.text for one in chat.messages] == ["0", "1", "2", "3"]


def test_a_decision_that_supersedes_one_of_another_scope(begun: Store) -> None:
    chat, team = begun.conversation("c"), begun.team("t")
    old = team.decide("be brief", standing=True)
    with begun.commit() as tx:
        tx.scope(chat).decide("be long", standing=True, supersedes=old.id)
        tx.scope(chat).set("a", 1)
    assert begun.decisions.get(old.id).status == "superseded"
    assert [one.decision for one in chat.decisions.recall().orders] == ["be long"]


def test_a_turn_from_outside_is_joined_and_ended(begun: Store) -> None:
    chat = begun.conversation("c")
    turn = chat.messages.turn()
    with pytest.raises(RuntimeError), begun.commit() as tx:
        tx.scope(chat).messages.add("user", "lost", turn=turn)
        raise RuntimeError("no")
    with begun.commit() as tx:
        tx.scope(chat).messages.add("user", "one", turn=turn)
    turn.add("assistant", "two")
    assert [one.status for one in chat.messages.turns()] == ["open"]
    with begun.commit() as tx:
        tx.scope(chat).messages.add("assistant", "three", turn=turn)
        tx.scope(chat).end_turn(turn)
    assert [one.status for one in chat.messages.turns()] == ["completed"]
    assert {one.turn for one in chat.messages} == {turn.id}
    with pytest.raises(UsageError, match="it has ended"), begun.commit() as tx:
        tx.scope(chat).end_turn(turn)


def test_a_turn_that_was_begun_in_a_commit_goes_on_after_it(begun: Store) -> None:
    chat = begun.conversation("c")
    with begun.commit() as tx:
        turn = tx.scope(chat).turn()
        turn.add("user", "one")
    turn.add("assistant", "two")
    turn.end()
    assert [one.status for one in chat.messages.turns()] == ["completed"]
    assert len(chat.messages) == 2


def test_it_is_refused_in_the_body_of_a_run_and_done_in_a_step(begun: Store) -> None:
    chat = begun.conversation("c")

    @holdfast.step(effect="idempotent")
    def inside() -> None:
        with begun.commit() as tx:
            tx.scope(chat).messages.add("user", "hi")
            close(tx.scope(chat))

    @holdfast.run
    def good() -> None:
        inside()

    @holdfast.run
    def bad() -> None:
        with begun.commit() as tx:
            tx.scope(chat).messages.add("user", "hi")

    begun.runs.start(good).result()
    assert len(chat.messages) == 1
    with pytest.raises(holdfast.RunFailedError, match="in the body of a run"):
        begun.runs.start(bad).result()


def test_submitted_joint_commits_keep_their_order(begun: Store) -> None:
    chat = begun.conversation("c")
    submitted = []
    for n in range(5):
        with begun.commit(waits=False) as tx:
            tx.scope(chat).messages.add("user", str(n))
            tx.scope(chat).set("n", n)
        submitted.append(tx)
    for tx in submitted:
        tx.wait()
    assert [one.text for one in chat.messages] == ["0", "1", "2", "3", "4"]


def test_asyncio(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with await aio.open(url) as hf:
            chat, team = hf.conversation("c"), hf.team("t")
            await chat.tasks.add("send")
            decision = await chat.decide("send", key="d")
            calls = counted(hf.sync, monkeypatch)
            for _ in range(2):
                async with hf.commit(key="k") as tx:
                    pending = tx.scope(chat)
                    await pending.messages.add("tool", "sent", tool_call_id="c1")
                    await pending.messages.add_many([{"role": "user", "content": "ok"}])
                    await pending.tasks.add("thank")
                    made = await pending.decide("thank")
                    await pending.facts.state("sent", True)
                    async with pending.turn() as turn:
                        await turn.add("user", "thanks")
                    pending.set("a", 1)
                    tx.scope(team).increment("n")
            async with hf.commit() as tx:
                await tx.outcome(decision, "sent")
                turn = tx.scope(chat).turn()
                await turn.add("user", "more")
            async with hf.commit() as tx:
                await tx.scope(chat).end_turn(turn)
            assert calls == [1, 1, 1, 1]
            assert await made.outcome("thanked")
            assert decision.stored.status == "closed"
            assert [one.text async for one in chat.messages] == ["sent", "ok", "thanks", "more"]
            assert await team.get("n") == 1
            assert [one.status for one in await chat.messages.turns()] == ["completed"] * 2
            with pytest.raises(RuntimeError):
                async with hf.commit() as tx:
                    lost = tx.scope(chat).turn()
                    await lost.add("user", "no")
                    raise RuntimeError
            with pytest.raises(UsageError, match="has ended"):
                await lost.add("user", "no")

    asyncio.run(body())


def test_a_mixed_store_refuses_what_it_keeps_apart(tmp_path: Path) -> None:
    levels = {"*": str(tmp_path / "files"), "conversation": f"sqlite:{tmp_path / 'c.db'}"}
    with holdfast.open(levels) as hf:
        chat, team = hf.conversation("c"), hf.team("t")
        with pytest.raises(UsageError, match="kept"), hf.commit() as tx:
            tx.scope(chat).messages.add("user", "hi")
            tx.scope(team).set("a", 1)
        assert len(chat.messages) == 0
        assert team.get("a") is None
        with hf.commit() as tx:
            tx.scope(chat).messages.add("user", "hi")
            tx.scope(chat).tasks.add("one")
            tx.scope(chat).set("a", 1)
        assert (len(chat.messages), len(chat.tasks.list()), chat.get("a")) == (1, 1, 1)


# --- kills ---------------------------------------------------------------------------------------


def _work(url: str) -> None:
    with holdfast.open(url) as hf:
        record_all(hf, "once")


def test_a_kill_before_or_after_the_commit_leaves_all_or_nothing(
    durable: str, tmp_path: Path
) -> None:
    for kill in kill_everywhere(_work, lambda: prepared(new_url(durable, tmp_path))):
        assert kill.commits == 2, "the worker's own lease, and the joint commit"
        with holdfast.open(kill.url) as hf:
            is_done = (kill.nth, kill.when) == (2, "after")
            assert work_of(hf) == (ALL if is_done else NOTHING)
            record_all(hf, "once")
            assert work_of(hf) == ALL


# What a block has gathered is in its own process, whatever the server is: three are enough there.
PLACES = [(kind, calls) for kind in ("files", "sqlite") for calls in range(1, 11)]
PLACES += [(kind, calls) for kind in ("redis", "postgresql") for calls in (1, 5, 10)]


@pytest.mark.parametrize(("kind", "calls"), PLACES)
def test_a_kill_between_any_two_calls_leaves_nothing(kind: str, tmp_path: Path, calls: int) -> None:
    def work(url: str) -> None:
        with holdfast.open(url) as hf:
            record_all(hf, after=lambda n: n == calls and os.kill(os.getpid(), signal.SIGKILL))

    url = prepared(new_url(kind, tmp_path))
    run_child(work, url, (0, "in the block"))
    with holdfast.open(url) as hf:
        assert work_of(hf) == NOTHING


def test_a_kill_between_any_two_calls_of_the_backend_leaves_all_or_nothing(
    durable: str, tmp_path: Path
) -> None:
    for kill in kill_everywhere(
        _work, lambda: prepared(new_url(durable, tmp_path)), every_call=True
    ):
        with holdfast.open(kill.url) as hf:
            assert work_of(hf) in (ALL, NOTHING), kill
            record_all(hf, "once")
            assert work_of(hf) == ALL
            assert hf.check().ok


# --- add_many ------------------------------------------------------------------------------------


def items(count: int) -> list[dict[str, Any]]:
    return [{"foreign": {"role": "user", "content": str(n)}, "foreign_id": f"f{n}"}
            for n in range(count)]  # fmt: skip


def test_a_hundred_foreign_items_and_state_are_one_commit(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, calls = hf.conversation("c"), counted(hf, monkeypatch)
    added = chat.messages.add_many(items(100), state={"synced": 100})
    assert calls == [1]
    assert [one.text for one in chat.messages] == [str(n) for n in range(100)]
    assert chat.get("synced") == 100
    assert added == list(chat.messages)
    # Sent again, with one more: that one is added, and only that one.
    again = chat.messages.add_many(items(101), state={"synced": 101})
    assert [one.revision for one in again[:100]] == [one.revision for one in added]
    assert len(chat.messages) == 101
    assert chat.get("synced") == 101
    revision = chat.revision
    assert len(chat.messages.add_many(items(101), state={"synced": 0})) == 101
    assert chat.revision == revision, "all of them are there: nothing is written"


def test_items_of_all_kinds_in_one_list(hf: Store) -> None:
    chat = hf.conversation("c")
    plain = {"role": "user", "content": "plain"}
    once = {"role": "user", "content": "once", "foreign_id": "f"}
    added = chat.messages.add_many([once, plain, once, plain])
    assert [one.text for one in added] == ["once", "plain", "once", "plain"]
    assert added[0] == added[2]
    assert [one.text for one in chat.messages] == ["once", "plain", "plain"]
    with pytest.raises(UsageError, match="another one"):
        chat.messages.add_many([plain, {**once, "content": "twice"}])
    assert len(chat.messages) == 3


def test_a_deleted_item_is_added_once_more(hf: Store) -> None:
    chat = hf.conversation("c")
    added = chat.messages.add_many(items(3))
    chat.messages.delete(added[1])
    assert [one.text for one in chat.messages.add_many(items(3))] == ["0", "1", "2"]
    assert [one.text for one in chat.messages] == ["0", "2", "1"]
    revision = chat.revision
    chat.messages.add_many(items(3))
    assert chat.revision == revision


def test_a_fork_knows_what_it_inherited(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.add_many(items(2))
    fork = chat.fork("d")
    fork.messages.add_many(items(4))
    assert [one.text for one in fork.messages] == ["0", "1", "2", "3"]
    fork.messages.add_many(items(4))
    assert len(fork.messages) == 4
    assert len(chat.messages) == 2


def test_a_stale_expectation_is_still_one(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.add_many(items(2))
    with pytest.raises(ConflictError):
        chat.messages.add_many(items(3), expected=0)
    assert len(chat.messages) == 2
    assert len(chat.messages.add_many(items(3), expected=chat.revision)) == 3


def _sync(url: str) -> None:
    with holdfast.open(url) as hf:
        hf.conversation("c").messages.add_many(items(20), state={"synced": 20})


def test_a_kill_never_leaves_the_state_ahead_of_the_items(durable: str, tmp_path: Path) -> None:
    for kill in kill_everywhere(_sync, lambda: new_url(durable, tmp_path)):
        with holdfast.open(kill.url) as hf:
            chat = hf.conversation("c")
            found = (len(chat.messages), chat.get("synced"))
            assert found == ((20, 20) if kill.when == "after" else (0, None))
            _sync(kill.url)
            assert (len(chat.messages), chat.get("synced")) == (20, 20)


def test_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    genuine = Disk.sync

    def counting(fd: int) -> None:
        syncs.append(fd)
        genuine(fd)

    monkeypatch.setattr(Disk, "sync", staticmethod(counting))
    with holdfast.open(prepared(str(tmp_path / "store"))) as hf:
        hf.conversation("c").messages.add("user", "the first write of a handle does more")
        assert syncs
        syncs.clear()
        with hf.commit() as tx:
            pending = tx.scope(hf.conversation("c"))
            close(pending)
            pending.messages.add("tool", "sent", tool_call_id="c1")
            pending.facts.state("sent", True)
            pending.set("a", 1)
            tx.scope(hf.team("t")).increment("n")
        assert len(syncs) == 1
        hf.conversation("d").messages.add_many(items(100), state={"synced": 100})
        assert len(syncs) == 2


# --- a backend of a third party ------------------------------------------------------------------


def test_a_backend_with_one_key_in_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.backends.memory import MemoryBackend
    from holdfast.clock import SystemClock

    monkeypatch.setattr(MemoryBackend, "record_keys", False)
    with holdfast.open(MemoryBackend(clock=SystemClock())) as hf:
        chat = hf.conversation("c")
        with hf.commit() as tx:
            tx.scope(chat).tasks.add("one")
            tx.scope(chat).messages.add("user", "hi")
            tx.scope(chat).set("a", 1)
        with pytest.raises(UsageError, match="one key"), hf.commit() as tx:
            tx.scope(chat).tasks.add("two")
            tx.scope(chat).facts.state("a", 1)
        assert [one.title for one in chat.tasks.list()] == ["one"]
        for _ in range(2):
            assert len(chat.messages.add_many(items(3))) == 3
            assert len(chat.messages.add_many(items(4), state={"n": 4})) == 4
        assert len(chat.messages) == 5
