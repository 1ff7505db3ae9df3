"""After a crash: what dead workers left open is judged, and done again at most once (BOOT-42, 43).

Every child here is a process of its own and ends by SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from tests.crash.children import Child, tell
from tests.record.kills import Kill, await_deaths, kill_everywhere, open_dying, run_child
from tests.record.stores import new_url
from tests.record.witness import break_down, lines, note, pay, raises, was_paid

WORKERS = 4
DECISIONS = 50


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_and_kill(work: Callable[[], object]) -> None:
    """Runs something in a child, which must end by SIGKILL."""
    child = Child(lambda _pipe, _stop: (work(), None)[1])
    child.end()
    assert child.trouble is None, child.trouble
    assert child.was_killed


def leave_open(url: str, place: Path, *, paid: bool, verify: object = was_paid, act: object = pay):
    """Lets a worker die between a decision and its outcome, before or after the act."""

    def work() -> None:
        store = open_dying(url)
        with store.conversation("c").decide(
            "pay", action=str(place), verify=verify, act=act, key="k"
        ) as d:
            if paid:
                note(place, "paid", d.key)
            die()

    run_and_kill(work)


@pytest.mark.parametrize("paid", [True, False])
def test_an_act_is_verified_and_done_exactly_once(durable: str, tmp_path: Path, paid: bool) -> None:
    """BOOT-42: crash between decide and act. BOOT-43: crash between act and outcome.

    BOOT-45: where log and world differ the log wins, and what was not done is done again.
    """
    url = new_url(durable, tmp_path)
    leave_open(url, tmp_path, paid=paid)
    with holdfast.open(url) as hf:
        [found] = hf.decisions.list(incomplete=True)
        assert (found.key, found.outcome) == ("k", None)
        await_deaths(hf)
        [found] = hf.decisions.list(incomplete=True)
        assert found.owner_alive is False
        report = hf.recover()
        [did] = report.acts
        assert (did.kind, did.id, did.owner) == ("decision", found.id, "conversation/c")
        assert (did.verdict, did.did) == (
            ("done", "closed") if paid else ("not done", "done again")
        )
        assert report.open == []
        closed = hf.decisions.get(found.id)
        assert closed.how == ("verified" if paid else "done again")
        assert closed.output == ({"paid": "k"} if paid else "paid by recovery")
        assert closed.closed_by == hf.workers.own
        assert closed.owner == (found.owner if paid else hf.workers.own)
        assert hf.recover().acts == hf.decisions.list(incomplete=True) == []
        assert hf.check().ok
    assert lines(tmp_path, "paid") == ["k"]
    assert lines(tmp_path, "asked") == ["k"]


def test_decisions_of_living_workers_are_not_judged(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf, holdfast.open(url) as other:
        hf.conversation("c").decide("pay", action=str(tmp_path), verify=was_paid, act=pay)
        assert hf.recover().acts == other.recover().acts == []
    assert lines(tmp_path, "asked") == lines(tmp_path, "paid") == []


@pytest.mark.parametrize(
    ("verify", "act", "verdict", "why"),
    [
        (None, pay, "unknown", "it has no verifier"),
        (raises, pay, "unknown", "raised OSError"),
        (was_paid, None, "not done", "it has no act"),
        (was_paid, break_down, "not done", "no network"),
    ],
)
def test_an_unclear_answer_leaves_the_decision_open(
    tmp_path: Path, verify: object, act: object, verdict: str, why: str
) -> None:
    url = new_url("sqlite", tmp_path)
    leave_open(url, tmp_path, paid=False, verify=verify, act=act)
    with holdfast.open(url) as hf:
        [did] = hf.recover().acts
        assert (did.verdict, did.did) == (verdict, "left open")
        assert why in did.text
        [left] = hf.decisions.list(incomplete=True)
        if act is break_down:
            assert (left.owner, left.error) == (hf.workers.own, "OSError: no network")
        assert hf.decisions.close(left.id, "looked: not paid").closed_by == hf.workers.own
    assert lines(tmp_path, "paid") == []


def test_a_decision_whose_functions_are_not_registered_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 10: what is stored names functions, and only registered ones are called."""
    url = new_url("sqlite", tmp_path)
    leave_open(url, tmp_path, paid=False)
    from holdfast.core import intent

    monkeypatch.setattr(intent.acts, "_functions", {})
    with holdfast.open(url) as hf:
        [did] = hf.recover().acts
        assert "not registered here" in did.text
        monkeypatch.setattr(intent.verifiers, "_functions", {})
        [did] = hf.recover().acts
        assert (did.verdict, did.did) == ("unknown", "left open")
        assert "not registered in this process" in did.text
    assert lines(tmp_path, "asked") == ["k"]


def test_many_workers_that_recover_at_once_act_once(durable: str, tmp_path: Path) -> None:
    """Every decision is done again by one of four processes, as the outside witness counts."""
    url = new_url(durable, tmp_path)
    keys = [f"k{number}" for number in range(12)]

    def decide() -> None:
        chat = open_dying(url).conversation("c")
        for key in keys:
            chat.decide("pay", action=str(tmp_path), verify=was_paid, act=pay, key=key)
        die()

    run_and_kill(decide)
    with holdfast.open(url) as hf:
        await_deaths(hf)

    def work(pipe: int, stop: int) -> None:
        with holdfast.open(url) as hf:
            tell(pipe, ready=True)
            os.read(stop, 1)
            tell(pipe, did=[found.did for found in hf.recover().acts])

    children = [Child(work) for _ in range(WORKERS)]
    for child in children:
        child.hear_until(lambda child=child: bool(child.lines))
    for child in children:
        child.tell_to_stop()
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble
    did = Counter(word for child in children for word in child.lines[-1]["did"])
    assert sorted(lines(tmp_path, "paid")) == sorted(keys)
    assert did["done again"] == len(keys)
    assert did["left open"] == 0
    with holdfast.open(url) as hf:
        assert hf.decisions.list(incomplete=True) == []
        assert {d.outcome for d in hf.decisions.list(scope="conversation/c")} == {
            "paid by recovery"
        }


def test_many_workers_decide_at_once(durable: str, tmp_path: Path) -> None:
    """4 processes of 50 decisions each give 200, with distinct ids."""
    url = new_url(durable, tmp_path)

    def work(pipe: int, _stop: int) -> None:
        with holdfast.open(url) as hf:
            chat = hf.conversation("c")
            ids: list[str] = []
            for number in range(DECISIONS):
                with chat.decide(f"{hf.workers.own} {number}") as d:
                    ids.append(d.id)
            tell(pipe, ids=ids)

    children = [Child(work) for _ in range(WORKERS)]
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble
    ids = {id for child in children for id in child.lines[-1]["ids"]}
    with holdfast.open(url) as hf:
        found = hf.decisions.list(scope="conversation/c")
        assert len(ids) == len(found) == WORKERS * DECISIONS
        assert {d.id for d in found} == ids
        assert {d.status for d in found} == {"closed"}
        assert len({d.owner for d in found}) == WORKERS
        assert hf.check().ok


# --- killed between every two commits ------------------------------------------------------------


def judged(kill: Kill) -> Store:
    store = holdfast.open(kill.url)
    await_deaths(store)
    return store


def test_an_act_killed_anywhere_is_done_exactly_once(durable: str, tmp_path: Path) -> None:
    def fresh() -> str:
        place = tmp_path / f"trial-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        return new_url(durable, place)

    def work(url: str) -> None:
        place = newest(tmp_path)
        chat = open_dying(url).conversation("c")
        with chat.decide("pay", action=str(place), verify=was_paid, act=pay, key="k") as d:
            note(place, "paid", d.key)
            d.outcome("paid")

    for kill in kill_everywhere(work, fresh, in_turns=True):
        place = newest(tmp_path)
        with judged(kill) as hf:
            known = hf.decisions.list(scope="conversation/c")
            was_open = [d for d in known if d.is_open]
            acts = hf.recover().acts
            assert len(acts) == len(was_open), kill
            assert lines(place, "asked") == ["k"] * len(was_open), kill
            assert lines(place, "paid") == ["k"] * len(known), kill
            assert all(d.status == "closed" for d in hf.decisions.list(scope="conversation/c")), (
                kill
            )
            assert hf.workers.marks("decision") == []
            assert hf.check().ok, kill


def newest(place: Path) -> Path:
    return max(place.glob("trial-*"), key=lambda path: int(path.name.partition("-")[2]))


def test_a_recovery_killed_anywhere_is_finished_by_the_next(durable: str, tmp_path: Path) -> None:
    """The second crash is as harmless as the first: the act is done exactly once."""

    def fresh() -> str:
        place = tmp_path / f"trial-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        url = new_url(durable, place)
        leave_open(url, place, paid=False)
        with holdfast.open(url) as hf:
            await_deaths(hf)
        return url

    def work(url: str) -> None:
        open_dying(url).recover()

    for kill in kill_everywhere(work, fresh, in_turns=True):
        place = newest(tmp_path)
        with judged(kill) as hf:
            was_open = hf.decisions.list(incomplete=True)
            acts = hf.recover().acts
            assert len(acts) == len(was_open), kill
            assert lines(place, "paid") == ["k"], kill
            assert len(lines(place, "asked")) == 1 + len(was_open), kill
            assert hf.decisions.list(incomplete=True) == [], kill
            assert hf.check().ok, kill


def test_other_operations_killed_anywhere_leave_all_or_nothing(
    durable: str, tmp_path: Path
) -> None:
    """A failed block, a priority, and one order in place of another."""

    def work(url: str) -> None:
        chat = open_dying(url).conversation("c")
        order = chat.decide("never push", standing=True, key="old")
        chat.decide("never push at all", standing=True, key="new", supersedes=order.id)
        try:
            with chat.decide("divide", key="d") as d:
                d.prioritise("high")
                1 / 0  # noqa: B018
        except ZeroDivisionError:
            pass

    for kill in kill_everywhere(work, lambda: new_url(durable, tmp_path), in_turns=True):
        with judged(kill) as hf:
            chat = hf.conversation("c")
            hf.recover()
            found = {d.key: d for d in hf.decisions.list(scope=chat)}
            if "old" in found:
                # Never without an order: the older one counts until the newer one does.
                keys = {order.key for order in chat.decisions.recall().orders}
                assert keys == ({"new"} if "new" in found else {"old"}), kill
            marked = {mark.key.partition(":")[2] for mark in hf.workers.marks("decision")}
            assert marked == {key for key, d in found.items() if d.is_open}, kill
            assert hf.workers.marks("superseding") == [], kill
            assert [d.priority for d in hf.decisions.list(incomplete=True)] == [
                mark.priority for mark in hf.workers.marks("decision")
            ], kill
            assert hf.check().ok, kill


def test_the_harness_counts_and_kills(tmp_path: Path) -> None:
    def work(url: str) -> None:
        with holdfast.open(url) as hf:
            for number in range(3):
                hf.team("t").set("n", number)

    assert run_child(work, new_url("sqlite", tmp_path)) == 3
    kept: list[int | None] = []
    for kill in kill_everywhere(work, lambda: new_url("sqlite", tmp_path)):
        with holdfast.open(kill.url) as hf:
            kept.append(hf.team("t").get("n"))
    assert kept == [None, 0, 0, 1, 1, 2]
