"""The record in forks, at earlier revisions and in scopes that end: on every backend."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import ClosedError, ExistsError, NotFoundError, Store
from holdfast.record import facts


@holdfast.verifier(name="forks:never")
def never(fact: Any) -> bool:
    return False


def test_tasks_at_a_revision_within_the_commit_that_added_one(hf: Store) -> None:
    """The key of a commit is on its first event, which may be that of the scope's parent."""
    chat = hf.conversation("c", parent=hf.team("t"))
    chat.tasks.add("x")
    assert (chat.revision, chat.tasks.list(at=1)) == (2, [])
    assert chat.fork("early", at=1).tasks.list() == []
    chat.set("stage", 1)
    before = chat.revision
    chat.tasks.add("y")
    chat.restore(before)
    found = [len(chat.tasks.list(at=at)) for at in range(chat.revision + 1)]
    assert found == [0, 0, 1, 1, 2, 2, 1]
    with pytest.raises(NotFoundError, match="has no revision 99"):
        chat.tasks.list(at=99)


def test_a_fork_does_not_have_a_fact_stated_after_it(hf: Store) -> None:
    chat = hf.conversation("c", parent=hf.team("t"))
    chat.facts.state("x", 1)
    assert chat.fork("late").facts.get("x").value == 1
    early = chat.fork("early", at=1)
    assert early.facts.list() == []
    with pytest.raises(NotFoundError):
        early.facts.get("x")


def test_every_list_agrees_on_a_decision_that_a_fork_inherited(hf: Store) -> None:
    """It is one act in the world. Lists of all scopes had the fork's old view of it."""
    chat = hf.conversation("a")
    d = chat.decide("x")
    fork = chat.fork("b")
    d.outcome("done")
    for found in (
        hf.decisions.list(),
        hf.decisions.list(scope=fork),
        hf.decisions.list(scope=chat),
    ):
        assert [(entry.id, entry.status) for entry in found] == [(d.id, "closed")]


@pytest.mark.parametrize("again", [False, True])
def test_a_fork_keeps_what_it_inherited_when_its_origin_is_removed(hf: Store, again: bool) -> None:
    """Its facts and standing orders were found by marks, which a removal clears."""
    chat = hf.conversation("a")
    chat.facts.state("price", 7)
    chat.facts.state("size", 1)
    fork = chat.fork("b")
    chat.facts.state("late", 1)
    if again:  # the name has begun a new life, with facts of its own
        chat.remove()
        chat.facts.state("price", 8)
        chat.facts.state("other", 8)
    else:
        chat.remove()
    assert [(fact.name, fact.value) for fact in fork.facts.list()] == [("price", 7), ("size", 1)]
    fork.facts.withdraw("size")
    assert [fact.name for fact in fork.facts.list()] == ["price"]
    assert [fact.name for fact in fork.fork("c").facts.list()] == ["price"]


def test_a_fork_keeps_standing_orders_when_its_origin_is_removed(hf: Store) -> None:
    team = hf.team("a")
    first = team.decide("never promise a date", standing=True)
    second = team.decide("never shout", standing=True)
    fork = team.fork("b")
    team.decide("after the fork", standing=True)
    before = [entry.id for entry in fork.decisions.recall().orders]
    for one in hf.decisions.list(scope=team):
        assert one.status == "standing"
    team.remove()
    assert [entry.id for entry in fork.decisions.recall().orders] == before
    assert set(before) == {first.id, second.id}


def test_a_fork_keeps_the_standing_orders_of_its_past(hf: Store) -> None:
    """BOOT-38: nothing is forgotten at a fork."""
    team = hf.team("a")
    rule = team.decide("never promise a date", standing=True)
    fork = team.fork("what-if")
    team.decide("behind the fork", standing=True)
    assert [order.id for order in fork.decisions.recall().orders] == [rule.id]
    chat = hf.conversation("c", parent=fork)
    assert [order.id for order in chat.decisions.recall().orders] == [rule.id]
    newer = fork.decide("promise weeks", standing=True, supersedes=rule.id)
    assert [order.id for order in fork.decisions.recall().orders] == [newer.id]


def test_a_key_decides_once_in_a_fork_too(hf: Store) -> None:
    """The key is what the act was done with outside: a second decision would be mistaken for it."""
    chat = hf.conversation("a")
    d = chat.decide("refund", key="order-7")
    fork = chat.fork("b")
    late = chat.decide("behind the fork", key="order-8")
    d.outcome("refunded")
    with pytest.raises(ExistsError, match="order-7@conversation/a"):
        fork.decide("refund", key="order-7")
    attached = fork.decide("refund", key="order-7", if_exists="attach")
    assert (attached.id, attached.stored.outcome) == (d.id, "refunded")
    assert fork.decide("refund", key="order-8").id != late.id


def test_a_restore_undoes_no_decision_and_no_fact(hf: Store) -> None:
    """The world is not restored: an act that was decided may have been done."""
    chat = hf.conversation("c")
    chat.set("stage", 1)
    before = chat.revision
    d = chat.decide("refund")
    chat.facts.state("branch", "main")
    chat.restore(before)
    assert [entry.id for entry in hf.decisions.list(incomplete=True)] == [d.id]
    assert chat.facts.get("branch").value == "main"
    d.outcome("refunded")
    assert hf.decisions.list(incomplete=True) == []


@pytest.mark.parametrize("keep", [True, False])
def test_facts_of_a_closed_scope_are_no_longer_verified(hf: Store, keep: bool) -> None:
    """`stale` raised ClosedError because of one such fact, and listed none of the others."""
    chat, open_ = hf.conversation("c"), hf.conversation("d")
    chat.facts.state("x", 1, verify=never)
    open_.facts.state("y", 1, verify=never)
    chat.close(keep=keep)
    assert [(one.id, one.why) for one in hf.stale()] == [("y", "contradicted")]
    assert [mark.group for mark in hf.workers.marks(facts.INDEX)] == ["conversation/d"]
    if keep:
        assert [fact.name for fact in chat.facts.list()] == ["x"]
        assert chat.facts.check("x").stale
        assert not chat.facts.get("x").stale, "a closed scope takes no writes"
    else:
        assert hf.workers.marks(facts.INDEX_KEPT) == []
        with pytest.raises(ClosedError):
            chat.facts.list()


@pytest.mark.parametrize("what", ["decision", "order", "task"])
def test_nothing_is_opened_while_a_scope_is_being_closed(
    hf: Store, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could never be closed: a closed scope takes no writes. Its mark would stay for ever."""
    chat = hf.conversation("c")
    chat.say("hello")
    late = hf.conversation("c")
    opens = {
        "decision": lambda: late.decide("late"),
        "order": lambda: late.decide("late", standing=True),
        "task": lambda: late.tasks.add("late"),
    }
    marks_at_close, calls = facts.marks_at_close, [opens[what]]

    def slow(*args: Any, **kwargs: Any) -> Any:
        if calls:
            calls.pop()()
        return marks_at_close(*args, **kwargs)

    monkeypatch.setattr("holdfast.scope.marks_at_close", slow)
    chat.close()
    assert chat.life.is_closed
    assert (
        hf.decisions.list(incomplete=True),
        hf.tasks.list(),
        chat.decisions.recall().orders,
    ) == ([], [], [])
    for index in ("decision", "order", "task"):
        assert hf.workers.marks(index) == []


def test_check_finds_a_missing_blob_of_a_fact_or_a_message(hf: Store) -> None:
    """Guarantee 6."""
    chat = hf.conversation("c")
    large = "x" * 100_000
    chat.facts.state("log", large)
    chat.messages.add("user", large + "y")
    assert hf.check().ok
    objects = hf._log.routes.objects_of(chat.name)
    for name in objects.names("blob"):
        objects.delete("blob", name)
    report = hf.check()
    assert not report.ok
    assert len(report.findings) == 2, report.findings
