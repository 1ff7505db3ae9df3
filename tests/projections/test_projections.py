"""Projections on every backend: folded once, kept, folded again when the code changes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Change, ExistsError, Settings, Store, UsageError, aio
from holdfast.core import own_event
from holdfast.errors import ProjectionError
from holdfast.projections import define, fold, projected, stored
from holdfast.testing import FakeClock
from tests.projections import seeds
from tests.record.stores import new_url


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own as far as declarations go, and keeps folds early."""
    monkeypatch.setattr(define, "_known", {})
    monkeypatch.setattr(own_event, "_types", {})
    monkeypatch.setattr(own_event, "_by_class", {})
    monkeypatch.setattr(projected, "KEPT_EVENTS_MIN", 3)
    monkeypatch.setattr(projected, "CLOSED_EVENTS_MIN", 1)


def add(scope: Any, *names: str) -> None:
    for name in names:
        scope.record("added", {"name": name}, unchecked=True)


def names() -> Any:
    @holdfast.projection(init=list, name="names")
    class Names:
        def added(self, names: Any, event: Any) -> None:
            names.append(event.data["name"])

    return Names


def kept(hf: Store) -> list[str]:
    return hf._log.routes.objects_of("global").names("snapshot", prefix=stored.PREFIX)


def fault(error: pytest.ExceptionInfo[ProjectionError]) -> tuple[str, str, int]:
    return error.value.projection, error.value.stream, error.value.revision


# --- what a projection is -------------------------------------------------------------------------


def test_a_class_of_handlers(hf: Store) -> None:
    @holdfast.event("ticket_opened")
    class TicketOpened(msgspec.Struct):
        id: str
        title: str

    @holdfast.event("ticket_closed")
    class TicketClosed(msgspec.Struct):
        id: str

    @holdfast.projection(init=dict, version=1)
    class Tickets:
        """What became of each ticket."""

        def ticket_opened(self, tickets: Any, event: Any) -> None:
            tickets[event.data.id] = {"title": event.data.title, "status": "open"}

        @staticmethod
        def ticket_closed(tickets: Any, event: Any) -> Any:
            tickets[event.data.id]["status"] = "closed"
            tickets[event.data.id]["by"] = event.actor
            return tickets

    assert Tickets.name == "Tickets"
    assert Tickets.__doc__ == "What became of each ticket."
    chat = hf.conversation("c")
    tickets = hf.projections.of(Tickets)
    assert tickets.state == {}
    chat.record(TicketOpened("t1", "write"))
    chat.set("x", 1)
    before = tickets.state
    chat.record(TicketClosed("t1"))
    assert tickets.state == {"t1": {"title": "write", "status": "closed", "by": "ada"}}
    assert before == {"t1": {"title": "write", "status": "open"}}, "what was handed out stays"
    assert (tickets.events, tickets.verify()) == (2, [])
    assert repr(tickets) == "<Projected Tickets over *>"


def test_over_a_scope_a_pattern_and_the_store(hf: Store) -> None:
    one, two, team = hf.conversation("one"), hf.conversation("two"), hf.team("red")
    add(one, "a")
    add(team, "b")
    add(two, "c")
    add(one, "d")
    fork = one.fork("fork")
    add(fork, "e")
    add(one, "f")
    Names = names()
    assert hf.projections.of(Names).state == ["a", "b", "c", "d", "e", "f"]
    assert hf.projections.of(Names, "conversation/*").state == ["a", "c", "d", "e", "f"]
    assert hf.projections.of(Names, "conversation/*o*").state == ["a", "c", "d", "e", "f"]
    assert hf.projections.of(Names, "*/t*").state == ["c"]
    assert hf.projections.of(Names, "conversation/[ot]*").state == []
    assert hf.projections.of(Names, "conversation").state == ["a", "c", "d", "e", "f"]
    assert hf.projections.of(Names, one).state == ["a", "d", "f"]
    assert hf.projections.of(Names, "conversation/fork").state == ["a", "d", "e"], (
        "a fork has its past"
    )
    assert hf.projections.of(Names, "team/none").state == []
    for over in (None, "conversation/*", one, "conversation/fork"):
        assert hf.projections.of(Names, over).verify() == []


def test_states_that_are_no_mapping_and_handlers_that_return(hf: Store) -> None:
    @holdfast.projection(init=int, types=["added"])
    def count(number: int, event: Any) -> int:
        return number + len(event.data["name"])

    @holdfast.projection(init=lambda: {"last": None}, types=["added"])
    def last(state: Any, event: Any) -> Any:
        return {**state, "last": event.data["name"], event.data["name"]: True}

    add(hf.team("red"), "a", "bb")
    hf.team("red").record("other", {}, unchecked=True)
    assert hf.projections.of(count).state == 3
    assert hf.projections.of(last).state == {"last": "bb", "a": True, "bb": True}
    assert count(5, hf.events(type="added")[0]) == 6, "it is still the function"


def test_the_task_projector_runs_unchanged(hf: Store) -> None:
    """BOOT-79: open, in progress, completed, each with its time; and the result."""
    tasks = holdfast.projection(init=dict)(seeds.task_projector)
    log = hf.workflow("tasks")
    created = log.record("task_created", {"task_id": "T1", "title": "Review PR"}, unchecked=True)
    started = log.record("task_started", {"task_id": "T1"}, unchecked=True)
    assert hf.projections.of(tasks).state["T1"]["status"] == "in_progress"
    done = log.record("task_completed", {"task_id": "T1", "result": 42}, unchecked=True)
    log.record("task_started", {"task_id": "none"}, unchecked=True)
    assert hf.projections.of(tasks).state == {
        "T1": {
            "title": "Review PR",
            "status": "completed",
            "created_at": created.at.isoformat(),
            "agent": "ada",
            "started_at": started.at.isoformat(),
            "completed_at": done.at.isoformat(),
            "result": 42,
        }
    }


def test_the_mixed_version_decision_projector_runs_unchanged(hf: Store) -> None:
    """BOOT-68: events of two versions project to one view."""
    decisions = holdfast.projection()(seeds.project_decisions)
    log = hf.workflow("decisions")
    shown = hf.projections.of(decisions, log)
    log.record("decision_made", {"text": "Use approach A"}, unchecked=True)
    log.record("decision_outcome", {"decision_id": 1, "outcome": "success"}, unchecked=True)
    assert shown.state == {1: {"text": "Use approach A", "result": "success", "priority": "normal"}}
    log.record("decision_prioritized", {"decision_id": 1, "priority": "high"}, unchecked=True)
    log.record("decision_made", {"text": "Use approach B"}, unchecked=True)
    log.record("decision_result", {"decision_id": 2, "result": "failed"}, unchecked=True)
    assert shown.state == {
        1: {"text": "Use approach A", "result": "success", "priority": "high"},
        2: {"text": "Use approach B", "result": "failed", "priority": "normal"},
    }
    assert (shown.events, shown.verify()) == (5, [])


# --- what ends and comes back ---------------------------------------------------------------------


def test_what_was_removed_is_not_there(hf: Store) -> None:
    one, two = hf.conversation("one"), hf.conversation("two")
    add(one, "a")
    add(two, "b")
    Names = names()
    every, pattern, own = (
        hf.projections.of(Names),
        hf.projections.of(Names, "conv*"),
        hf.projections.of(Names, one),
    )
    assert (every.state, own.state) == (["a", "b"], ["a"])
    one.remove()
    assert (every.state, pattern.state, own.state) == (["b"], ["b"], [])
    one.undo()
    assert (every.state, pattern.state, own.state) == (["a", "b"], ["a", "b"], ["a"])
    one.remove()
    add(one, "c")
    assert (every.state, pattern.state, own.state) == (["b", "c"], ["b", "c"], ["c"])
    hf.team("red").set("x", 1)
    hf.team("red").remove()  # it had no events of the projection
    assert every.state == ["b", "c"]
    assert [one.verify() for one in (every, pattern, own)] == [[], [], []]


def test_a_removal_that_is_taken_back_after_the_fold_was_kept(durable: str, tmp_path: Path) -> None:
    """The fold that is kept says nothing of lives; what comes back is handled all the same."""
    Names = names()
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        add(hf.team("red"), "a")
        add(hf.team("blue"), "b")
        hf.team("red").remove()
        assert hf.projections.of(Names).state == ["b"]
        assert hf.projections.of(Names, "team/red").state == []
    with holdfast.open(url) as hf:
        assert hf.projections.of(Names).state == ["b"]
        hf.team("red").undo()
        assert hf.projections.of(Names).state == ["a", "b"]
        assert hf.projections.of(Names, "team/red").state == ["a"]


def test_what_expired_is_not_there() -> None:
    clock = FakeClock()
    Names = names()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        add(hf.conversation("short", ttl_s=10), "a")
        add(hf.team("red"), "b")
        every = hf.projections.of(Names)
        assert every.state == ["a", "b"]
        clock.advance(11)
        assert every.state == ["b"]
        add(hf.team("red"), "c")
        assert (every.state, every.verify()) == (["b", "c"], [])


# --- what is kept ---------------------------------------------------------------------------------


def test_a_fold_is_kept_and_gone_on_with(
    durable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[int] = []
    handle = fold.Fold._handled
    monkeypatch.setattr(
        fold.Fold,
        "_handled",
        lambda self, draft, record: handled.append(record.revision) or handle(self, draft, record),
    )
    Names = names()
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        add(hf.team("red"), "a", "b", "c", "d")
        assert hf.projections.of(Names).state == ["a", "b", "c", "d"]
        assert len(kept(hf)) == 1
        add(hf.team("red"), "e")
        assert hf.projections.of(Names, "team/red").state == ["a", "b", "c", "d", "e"]
        handled.clear()
    with holdfast.open(url) as hf:
        assert hf.projections.of(Names).state == ["a", "b", "c", "d", "e"]
        assert handled == [5], "it went on from what was kept"
        assert hf.projections.of(Names, "team/red").state == ["a", "b", "c", "d", "e"]
        assert handled == [5], "that one was kept at the close"
        assert hf.projections.of(Names).verify() == []
        assert hf.check().ok
    with holdfast.open(url, read_only=True) as hf:
        assert hf.projections.of(Names).state == ["a", "b", "c", "d", "e"]


def test_what_cannot_be_kept_is_shown_all_the_same(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        add(hf.team("red"), "a", "b", "c", "d")
    with holdfast.open(url, read_only=True) as hf:
        assert hf.projections.of(names()).state == ["a", "b", "c", "d"]
        assert kept(hf) == []
        assert any("was not kept" in text for text in hf.status()["reports"])


def test_a_removal_while_a_replay_is_compared(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is removed between the two looks of `verify` is no difference."""
    add(hf.team("red"), "a")
    add(hf.team("blue"), "b")
    shown = hf.projections.of(names())
    assert shown.state == ["a", "b"]
    again = fold.Fold.again
    removals = iter([hf.team("red").remove])

    def late(self: fold.Fold) -> fold.Fold:
        begun = again(self)
        for remove in removals:
            remove()
            break
        return begun

    monkeypatch.setattr(fold.Fold, "again", late)
    assert shown.verify() == []
    assert shown.state == ["b"]


def declare(text: str, folder: Path, **options: Any) -> Any:
    """Declares a projection from a file with that handler: code of another version of a program."""
    path = folder / f"code_{len(list(folder.iterdir()))}.py"
    path.write_text(f"def handle(state, event):\n    {text}\n")
    space: dict[str, Any] = {"__name__": "code"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return holdfast.projection(name="p", types=["added"], **options)(space["handle"])


def test_another_code_or_version_is_folded_again(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    first = declare("state[event.data['name']] = 1", code)
    with holdfast.open(url) as hf:
        add(hf.team("red"), "a", "b", "c")
        assert hf.projections.of(first).state == {"a": 1, "b": 1, "c": 1}
    second = declare("state[event.data['name']] = 2", code)
    with holdfast.open(url) as hf:
        assert hf.projections.of(second).state == {"a": 2, "b": 2, "c": 2}
        assert hf.projections.of(first).state == {"a": 1, "b": 1, "c": 1}, (
            "both can be used by turns"
        )
        assert len(kept(hf)) == 2
    third = declare("state[event.data['name']] = 2", code, version=2)
    assert third.thumb() != second.thumb()
    other = declare("state[event.data['name']] = 2", code, init=lambda: {"x": 0})
    assert other.thumb() != second.thumb()
    with holdfast.open(url) as hf:
        assert hf.projections.of(other).state == {"x": 0, "a": 2, "b": 2, "c": 2}
        for number in range(6):
            hf.projections.of(declare(f"state['x'] = {number}", code)).state  # noqa: B018
        assert len(kept(hf)) == 1 + stored.OTHERS_MAX, "those of older code are let go"


def test_a_planted_fault_a_fold_of_older_code_is_found_by_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the code no part of what a fold is named by, its state would be that of older code."""
    monkeypatch.setattr(define.Projection, "thumb", lambda _self: "0" * 64)
    url = str(tmp_path / "store")
    code = tmp_path / "code"
    code.mkdir()
    with holdfast.open(url) as hf:
        add(hf.team("red"), "a", "b", "c")
        assert hf.projections.of(declare("state['n'] = 1", code)).state == {"n": 1}
    with holdfast.open(url) as hf:
        stale = hf.projections.of(declare("state['n'] = 2", code))
        assert stale.state == {"n": 1}, "the plant"
        [found] = stale.verify()
        assert (found.path, found.old, found.new) == (("n",), 1, 2)
        assert stale.state == {"n": 2}
        assert any("differed from its replay" in one for one in hf.status()["reports"])


def test_what_an_event_is_read_with_is_part_of_the_code(hf: Store) -> None:
    @holdfast.projection(init=list)
    class Titles:
        def added(self, titles: Any, event: Any) -> None:
            titles.append(getattr(event.data, "name", None) or event.data["name"])

    add(hf.team("red"), "a")
    assert hf.projections.of(Titles).state == ["a"]
    plain = Titles.thumb()

    @holdfast.event("added", version=2)
    class Added(msgspec.Struct):
        name: str

    declared = Titles.thumb()
    assert declared != plain

    @holdfast.upgrade(Added, 1)
    def _(old: dict[str, Any]) -> dict[str, Any]:
        return old | {"name": old["name"].upper()}

    assert Titles.thumb() not in (plain, declared)
    assert hf.projections.of(Titles).state == ["A"], "it was folded again"


def test_code_without_source_is_not_kept(hf: Store) -> None:
    space: dict[str, Any] = {"__name__": "typed"}
    exec("def handle(state, event):\n    state[event.data['name']] = 1\n", space)
    typed = holdfast.projection(types=["added"])(space["handle"])
    add(hf.team("red"), "a", "b", "c", "d")
    assert hf.projections.of(typed).state == dict.fromkeys("abcd", 1)
    assert (typed.thumb(), kept(hf)) == (None, [])


@pytest.mark.parametrize("damage", ["torn", "empty", "other", "ahead"])
def test_a_damaged_fold_is_folded_again(damage: str, durable: str, tmp_path: Path) -> None:
    Names = names()
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        add(hf.team("red"), "a", "b", "c")
        assert hf.projections.of(Names).state == ["a", "b", "c"]
        [name] = kept(hf)
        objects = hf._log.routes.objects_of("global")
        data = objects.get("snapshot", name)
        assert data is not None
        wrong = {"torn": data[:-3], "empty": b""}
        if damage in wrong:
            objects.put("snapshot", name, wrong[damage])
        elif damage == "other":
            add(hf.team("blue"), "x", "y", "z")
            hf.projections.of(Names, "team/blue").state  # noqa: B018
            [other] = [one for one in kept(hf) if one != name]
            found = objects.get("snapshot", other)
            assert found is not None
            objects.put("snapshot", name, found)
        else:  # as if the store had come back from a backup, and gone another way
            place = name.rpartition("-")[0]
            objects.put(
                "snapshot", f"{place}-{9:020d}", data.replace(b'"team/red",3', b'"team/red",4')
            )
    with holdfast.open(url) as hf:
        expected = ["a", "b", "c"] + (["x", "y", "z"] if damage == "other" else [])
        assert hf.projections.of(Names).state == expected
        if damage != "ahead":
            assert any("is not used" in one for one in hf.status()["reports"])
        assert hf.projections.of(Names).verify() == []


def test_a_fold_of_another_history_is_not_used(tmp_path: Path) -> None:
    """A link that the log does not have says that the events are others than those folded."""
    Names = names()
    with holdfast.open("memory:") as one, holdfast.open("memory:") as two:
        add(one.team("red"), "a", "b", "c")
        add(two.team("red"), "x", "y", "z")
        assert one.projections.of(Names).state == ["a", "b", "c"]
        [name] = kept(one)
        data = one._log.routes.objects_of("global").get("snapshot", name)
        assert data is not None
        two._log.routes.objects_of("global").put("snapshot", name, data)
        assert two.projections.of(Names).state == ["x", "y", "z"]
        assert any("disagrees with the log" in text for text in two.status()["reports"])


# --- who is told ----------------------------------------------------------------------------------


def test_subscribers_hear_of_changes(hf: Store) -> None:
    Names = names()
    add(hf.team("red"), "a")
    told: list[Change] = []
    enough = threading.Event()

    def tell(change: Change) -> None:
        told.append(change)
        if len(told) >= 2:
            enough.set()

    stop = hf.projections.of(Names).subscribe(tell)
    add(hf.team("red"), "b", "c")
    assert enough.wait(60)
    assert [(one.scope, one.revision, one.path, one.new) for one in told] == [
        ("names", 2, (1,), "b"),
        ("names", 3, (2,), "c"),
    ]
    assert told[0].position is not None
    stop()
    add(hf.team("red"), "d")
    assert [one.new for one in hf.projections.of(Names).follow(timeout_s=0)] == []


def test_a_close_waits_until_all_is_told(url: str) -> None:
    Names = names()
    told: list[Any] = []
    failed: list[Exception] = []

    def tell(change: Change) -> None:
        told.append(change.new)
        if change.new == "a":
            raise ValueError(change.new)

    def on_error(error: Exception, _change: Change) -> None:
        failed.append(error)
        raise error

    with holdfast.open(url) as hf:
        hf.projections.of(Names).subscribe(tell, on_error=on_error)
        for one in "abc":
            add(hf.team("red"), one)
    assert told == ["a", "b", "c"]
    assert [str(error) for error in failed] == ["a"]


def test_followers_hear_of_other_handles_and_of_removals(durable: str, tmp_path: Path) -> None:
    Names = names()
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf, holdfast.open(url) as other:
        add(hf.team("red"), "a")
        add(hf.team("blue"), "b")
        changes = hf.projections.of(Names).follow(timeout_s=60)
        add(other.team("red"), "c")
        first = next(changes)
        assert (first.path, first.new) == ((2,), "c")
        other.team("red").remove()
        found = [next(changes) for _ in range(3)]
        assert found[0].new == "b"
        assert [one.path for one in found] == [(0,), (1,), (2,)]
        assert hf.projections.of(Names).state == ["b"]


def test_for_asyncio(url: str) -> None:
    Names = names()

    async def main() -> None:
        async with await aio.open(url) as hf:
            red = hf.team("red")
            shown = hf.projections.of(Names, red)
            await red.record("added", {"name": "a"}, unchecked=True)
            assert (await shown.state, await shown.events) == (["a"], 1)
            assert await shown.verify() == []
            assert repr(shown) == "<AsyncProjected names over team/red>"
            told: asyncio.Queue[Any] = asyncio.Queue()
            stop = await shown.subscribe(lambda change: told.put_nowait(change.new))
            changes = shown.follow(timeout_s=60)
            first = asyncio.ensure_future(anext(changes))
            while not (first.done()):
                await red.record("added", {"name": "b"}, unchecked=True)
                await asyncio.sleep(0)
            assert (await first).new == "b"
            assert await told.get() == "b"
            stop()
            nothing = [one async for one in shown.follow(timeout_s=0)]
            assert nothing == []

    asyncio.run(main())


# --- bad input ------------------------------------------------------------------------------------


def test_a_handler_that_raises_names_the_event_and_changes_nothing(hf: Store) -> None:
    @holdfast.projection(init=list, name="picky")
    class Picky:
        def added(self, names: Any, event: Any) -> None:
            names.append(event.data["name"])
            if event.data["name"] == "bad":
                raise ValueError("not this one")

    red = hf.team("red")
    add(red, "a")
    assert hf.projections.of(Picky).state == ["a"]
    with hf.commit() as tx:
        add(tx.scope(red), "b", "bad", "c")
    for over in (None, red):
        with pytest.raises(ProjectionError, match="not this one") as error:
            hf.projections.of(Picky, over).state  # noqa: B018
        assert fault(error) == ("picky", "team/red", 3)

    @holdfast.projection(init=list, name="other")
    class Corrected:
        def added(self, names: Any, event: Any) -> None:
            names.append(event.data["name"])

    assert hf.projections.of(Corrected).state == ["a", "b", "bad", "c"]
    # What was folded before the failure is there, once, for the corrected handler of that name.
    monkey = pytest.MonkeyPatch()
    monkey.setattr(Picky, "_handlers", Corrected._handlers)
    assert hf.projections.of(Picky).state == ["a", "b", "bad", "c"]
    monkey.undo()


@pytest.mark.parametrize(
    ("result", "said"), [("7", "expected the state"), ("{1: 2}", "key"), ("{'x': {1, 2}}", "set")]
)
def test_states_that_cannot_be_kept(result: str, said: str, hf: Store, tmp_path: Path) -> None:
    add(hf.team("red"), "a")
    with pytest.raises(ProjectionError, match=said):
        hf.projections.of(declare(f"return {result}", tmp_path)).state  # noqa: B018


def test_what_is_no_projection(hf: Store) -> None:
    for wrong in (7, dict, None, "names"):
        with pytest.raises(UsageError, match="expected a projection"):
            hf.projections.of(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="a project is a directory"):
        hf.project("names")
    with pytest.raises(UsageError, match="a scope is a scope or its name"):
        hf.projections.of(names(), 7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="has no handler"):
        holdfast.projection()(type("Empty", (), {"_hidden": len, "constant": 7}))
    with pytest.raises(UsageError, match="takes the state and an event"):
        holdfast.projection()(lambda: None)
    with pytest.raises(UsageError, match="takes the state and an event"):
        holdfast.projection()(lambda _state, _event, *, named: None)
    with pytest.raises(UsageError, match="has no handler"):
        holdfast.projection(name="x")(type)
    with pytest.raises(UsageError, match="a projection is a function"):
        holdfast.projection()(7)
    with pytest.raises(UsageError, match="types is empty"):
        holdfast.projection(types=[])(lambda state, _event: state)
    with pytest.raises(UsageError, match="types are a list"):
        holdfast.projection(types="added")(lambda state, _event: state)
    with pytest.raises(UsageError, match=r"events of your own, found .changed"):
        holdfast.projection(types=["changed"])(lambda state, _event: state)
    with pytest.raises(UsageError, match="nothing to begin with"):
        holdfast.projection(init=set)(lambda state, _event: state)
    with pytest.raises(UsageError, match="version"):
        holdfast.projection(version=0)
    with pytest.raises(UsageError, match="a subscriber is a function"):
        hf.projections.of(names()).subscribe(7)  # pyright: ignore[reportArgumentType]


def test_bad_classes() -> None:
    class Many:
        def added(self, state: Any, event: Any, more: Any) -> None: ...

    class Capital:
        def Added(self, state: Any, event: Any) -> None: ...

    with pytest.raises(UsageError, match="takes the state and an event"):
        holdfast.projection()(Many)
    with pytest.raises(UsageError, match="an event type is a lower-case letter"):
        holdfast.projection()(Capital)
    with pytest.raises(UsageError, match="types says it"):
        holdfast.projection(types=["added"])(Many)


def test_two_of_one_name_are_refused_and_the_same_one_again_is_not() -> None:
    first, second = names(), names()
    assert first is not second
    with pytest.raises(ExistsError, match='"names" is declared already, by'):
        holdfast.projection(name="names")(seeds.task_projector)


def test_a_mixed_store_has_no_order_over_several_scopes(tmp_path: Path) -> None:
    urls = {"team": "memory:", "*": str(tmp_path / "rest")}
    with holdfast.open(urls) as hf:
        add(hf.team("red"), "a")
        assert hf.projections.of(names(), "team/red").state == ["a"]
        for over in (None, "team/*"):
            with pytest.raises(UsageError, match="one order of events"):
                hf.projections.of(names(), over)
