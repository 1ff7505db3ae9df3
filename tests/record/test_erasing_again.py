"""Erasures that are cut off, repeated or exempt a scope, and what their receipts say (BOOT-93)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ERASED, ErasedError, NotFoundError, Store
from holdfast.core.retention import Retainer
from holdfast.erasure import BEYOND_EXEMPT, Erasure, ErasureReceipt
from holdfast.errors import KeyMissingError, UsageError
from tests.record.stores import new_url

WORD = "CANARY-7731"
GONE = b"-0"


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of this test alone: who was erased in another one does not come back."""
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "keys"))


def outcomes(receipt: ErasureReceipt) -> dict[str, tuple[str, int, int, str]]:
    return {
        one.scope: (one.outcome, one.events, one.bytes, one.revisions) for one in receipt.scopes
    }


class CutOff(BaseException):
    """Ends a call as a kill would."""


def cut_off(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[], Any]) -> None:
    """Does something that is ended when it calls a function, before that does anything."""

    def end(*_: object, **__: object) -> None:
        raise CutOff

    with monkeypatch.context() as broken:
        broken.setattr(where, name, end)
        with pytest.raises(CutOff):
            act()


def test_a_scope_that_is_not_there_is_not_erased(hf: Store) -> None:
    """A misspelt name is told as that, and nothing says that it was erased."""
    hf.team("red").set("n", WORD)
    for given in ({"scope": "team/rde"}, {"scope": hf.team("rde")}):
        with pytest.raises(NotFoundError, match='no scope "team/rde": nothing was erased'):
            hf.subjects.erase(**given)
        with pytest.raises(NotFoundError, match='no scope "team/rde"'):
            hf.subjects.erase(match=WORD, **given)
    with pytest.raises(NotFoundError, match="bad scope!"):
        hf.subjects.erase(match=WORD, scope="bad scope!")
    assert hf.subjects.receipts() == []
    assert hf.team("red").get("n") == WORD


def test_a_scope_that_was_erased_before_gives_the_receipt_of_then(hf: Store) -> None:
    for number in range(3):
        hf.team("red").set("n", [WORD, number])
    first = hf.subjects.erase(scope="team/red")
    again = hf.subjects.erase(scope="team/red")
    assert outcomes(again) == outcomes(first)
    assert again.erased_at == first.erased_at
    assert [one.where for one in again.left] == [one.where for one in first.left]
    assert len(hf.subjects.receipts()) == 1
    hf.team("red").set("n", "a new life")
    hf.team("red").remove()
    third = hf.subjects.erase(scope="team/red")
    assert [one.events for one in third.scopes] == [1]
    assert len(hf.subjects.receipts()) == 2


def test_what_was_let_go_of_before_cannot_be_erased(hf: Store) -> None:
    hf.team("red").set("n", WORD)
    hf.team("red").remove()
    hf.retention.run(grace_s=0)
    with pytest.raises(NotFoundError, match="let go of before"):
        hf.subjects.erase(scope="team/red")


@pytest.mark.parametrize("where", ["before", "removed", "told", "rewritten", "purged"])
@pytest.mark.parametrize("way", ["again", "finish"])
def test_the_erasure_of_a_scope_is_finished_with_a_whole_receipt(
    hf: Store, where: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was killed: the receipt has all that went, also what went before the kill."""
    for name in ("red", "blue"):
        for number in range(3):
            hf.team(name).set("n", [WORD, number])
    retainer, backend = hf._kernel.part(Retainer), type(hf._log._backend)
    whole = hf.subjects.erase(scope="team/blue")
    places: dict[str, tuple[Any, str]] = {
        "before": (holdfast.Scope, "_remove_at"),
        "removed": (retainer, "erase_scopes"),
        "told": (backend, "rewrite"),
        "rewritten": (backend, "purge"),
        "purged": (retainer, "tell_erased"),
    }
    cut_off(monkeypatch, *places[where], lambda: hf.subjects.erase(scope="team/red"))
    assert hf.retention.preview().left or where in ("before", "removed", "purged")
    if way == "again":
        receipt = hf.subjects.erase(scope="team/red")
    else:
        [receipt] = hf.subjects.finish()
    [(outcome, events, size, revisions)] = outcomes(receipt).values()
    [(_, *expected)] = outcomes(whole).values()
    assert [events, size, revisions] == expected
    assert outcome == ("pending" if receipt.left else "deleted")
    assert hf.subjects.finish() == []
    said = hf.subjects.receipts()[-1]
    assert said["scopes"][0][:5] == ["team/red", outcome, events, size, revisions]
    assert all(one.payload == GONE for one in hf._log._backend.read("team/red", until=3))
    assert hf.check().findings == []


def test_what_somebody_writes_under_the_name_meanwhile_stays(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    retainer = hf._kernel.part(Retainer)
    sound = retainer.erase_scopes
    hf.team("red").set("n", WORD)

    def write_first(streams: Any, **given: Any) -> Any:
        hf.team("red").set("n", "a new life")
        return sound(streams, **given)

    with monkeypatch.context() as patched:
        patched.setattr(retainer, "erase_scopes", write_first)
        receipt = hf.subjects.erase(scope="team/red")
    assert [one.events for one in receipt.scopes] == [1]
    assert hf.team("red").state.to_dict() == {"n": "a new life"}
    hf.team("blue").set("n", WORD)
    cut_off(monkeypatch, retainer, "erase_scopes", lambda: hf.subjects.erase(scope="team/blue"))
    hf.team("blue").set("n", "a new life")
    [receipt] = hf.subjects.finish()
    assert [one.events for one in receipt.scopes] == [1]
    assert hf.team("blue").state.to_dict() == {"n": "a new life"}
    assert hf.check().findings == []


def test_a_scope_that_cannot_be_removed_is_not_half_erased(hf: Store) -> None:
    hf.team("red").set("n", WORD)
    with hf.workers.lease("team/red"), pytest.raises(UsageError, match="cannot be removed"):
        hf.subjects.erase(scope="team/red")
    assert hf.subjects.finish() == []
    assert hf.team("red").get("n") == WORD


def test_a_held_scope_whose_erasure_has_begun_waits_for_the_end_of_the_hold(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.team("red").set("n", WORD)
    cut_off(
        monkeypatch,
        hf._kernel.part(Retainer),
        "erase_scopes",
        lambda: hf.subjects.erase(scope="team/red"),
    )
    hf.retention.hold("team/red", "case 7")
    assert hf.subjects.finish() == []
    assert hf._log._backend.read("team/red", until=1)[0].payload != GONE
    hf.retention.unhold("team/red")
    [receipt] = hf.subjects.finish()
    assert [one.events for one in receipt.scopes] == [1]


def test_a_text_whose_erasure_was_cut_off_is_in_the_receipt_of_the_next_call(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.team("red").set("n", [WORD, 1])
    cut_off(
        monkeypatch,
        type(hf._log._backend),
        "purge",
        lambda: hf.subjects.erase(match=WORD),
    )
    receipt = hf.subjects.erase(match=WORD)
    assert [(one.scope, one.events) for one in receipt.scopes] == [("team/red", 1)]
    assert hf.subjects.finish() == []
    assert hf.team("red").get("n") == ["[erased]", 1]


def sealed(hf: Store, *names: str) -> list[Any]:
    """Scopes of ada's, a value of hers beside others, and one large value in two of them."""
    scopes = [hf.team(hf.subjects.pseudonym(name), subject="ada") for name in names]
    for scope in scopes:
        scope.set("n", WORD)
        scope.set("large", WORD * 9000)
    hf.team("shared").set("mail", WORD, subject="ada")
    hf.team("shared").set("plan", "ours")
    return scopes


@pytest.mark.parametrize("way", ["again", "finish"])
def test_a_hold_on_one_scope_exempts_that_scope_and_not_the_subject(hf: Store, way: str) -> None:
    kept, gone, origin = sealed(hf, "kept", "gone", "origin")
    fork = origin.fork(hf.subjects.pseudonym("fork"))
    hf.retention.hold(kept, "case 7")
    hf.retention.hold(fork)
    before = [one.state.to_dict() for one in (kept, fork)]
    for _ in range(2):
        receipt = hf.subjects.erase("ada")
        rows = {one.scope: (one.outcome, one.reason) for one in receipt.scopes}
        assert rows[kept.name] == ("exempt", "held: case 7")
        assert rows[fork.name] == ("exempt", "held")
        assert rows[origin.name] == ("exempt", f'"{fork.name}" is a fork of it, and held')
        assert rows[gone.name] == ("pending" if receipt.left else "deleted", "")
        assert rows["team/shared"][0] == "pending"
        assert "the key stays" in rows["team/shared"][1]
        assert receipt.beyond[0] == BEYOND_EXEMPT
        assert [one.events for one in receipt.scopes if one.scope == gone.name] == [2]
        assert [one.state.to_dict() for one in (kept, fork)] == before
        assert gone.state.to_dict() == {}
        assert all(one.payload == GONE for one in hf._log._backend.read(gone.name, until=2))
    for scope in (kept, gone):
        with pytest.raises(ErasedError):
            scope.set("n", "late")
    hf.retention.run(grace_s=0, whole=True)
    [said] = hf.subjects.receipts()
    assert {row[0]: row[1] for row in said["scopes"]}["team/shared"] == "pending"
    assert hf.check().findings == []
    hf.retention.unhold(kept)
    hf.retention.unhold(fork)
    last = hf.subjects.erase("ada") if way == "again" else hf.subjects.finish()[0]
    ends = {one.scope: (one.outcome, one.events) for one in last.scopes}
    done = "pending" if last.left else "deleted"
    assert ends[kept.name] == ends[gone.name] == (done, 2)
    assert ends["team/shared"] == ("unreadable", 0)
    assert BEYOND_EXEMPT not in last.beyond
    assert kept.state.to_dict() == {}
    assert hf.team("shared").state.to_dict() == {"mail": ERASED, "plan": "ours"}
    assert hf._log.blobs.names() == set()
    assert (hf.subjects.finish(), hf.subjects.list()) == ([], [])
    assert hf.check().findings == []


def test_a_hold_of_a_scope_with_one_value_of_the_subject_keeps_the_key(hf: Store) -> None:
    [own] = sealed(hf, "own")
    hf.retention.hold("team/shared", "case 8")
    receipt = hf.subjects.erase("ada")
    rows = {one.scope: one.outcome for one in receipt.scopes}
    assert rows["team/shared"] == "exempt"
    assert own.state.to_dict() == {}
    assert hf.team("shared").get("mail") == WORD
    hf.team("shared").set("plan", "goes on")
    hf.retention.unhold("team/shared")
    assert len(hf.subjects.finish()) == 1
    assert hf.team("shared").state.to_dict() == {"mail": ERASED, "plan": "goes on"}


def test_an_erasure_whose_key_another_store_destroyed_is_finished(
    durable: str, tmp_path: Path
) -> None:
    """Without the key no state is folded and nothing is sealed; what is left is still removed."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        [own] = sealed(hf, "own")
        bob = hf.team(hf.subjects.pseudonym("bob"), subject="bob")
        bob.set("n", WORD)
        for scope, name in ((own, "ada"), (bob, "bob")):
            hf.retention.hold(scope, "court")
            hf.subjects.erase(name)
    with holdfast.open("memory:") as other:
        other.team("red").set("n", WORD, subject="ada")
        other.subjects.erase("ada")
        other.subjects.readmit("ada")
        other.team("red").set("m", "new", subject="ada")
        with holdfast.open(url) as hf:
            back = hf.team(hf.subjects.pseudonym("back"), subject="ada")
            back.set("n", WORD)
            for scope in (own, bob):
                hf.retention.unhold(scope.name)
            done = {row.scope: row.outcome for one in hf.subjects.finish() for row in one.scopes}
            assert {done[own.name], done[bob.name]} <= {"deleted", "pending"}
            assert hf.subjects.finish() == []
            for name in (own.name, bob.name):
                assert hf.scope(name).state.to_dict() == {}
                assert all(one.payload == GONE for one in hf._log._backend.read(name, until=1))
            assert back.get("n") == WORD
            assert hf.check().findings == []
        assert other.team("red").get("m") == "new"


def test_who_came_back_is_erased_also_where_the_old_erasure_is_kept_open(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s") as hf, holdfast.open("memory:") as other:
        [own] = sealed(hf, "own")
        hf.retention.hold(own, "court")
        first = hf.subjects.erase("ada").subject
        other.team("red").set("n", WORD, subject="ada")
        other.subjects.erase("ada")
        other.subjects.readmit("ada")
        back = hf.team(hf.subjects.pseudonym("back"), subject="ada")
        back.set("n", WORD)
        receipt = hf.subjects.erase("ada")
        assert receipt.subject != first
        assert [one.scope for one in receipt.scopes] == [back.name]
        assert (back.state.to_dict(), own.state.to_dict()) == ({}, {})
        assert hf.subjects.finish() == []
        with pytest.raises(ErasedError, match="readmit"):
            other.team("red").set("n", "late", subject="ada")


def test_one_erasure_that_cannot_be_finished_keeps_no_other_open(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [hf.team(hf.subjects.pseudonym(name), subject=name) for name in ("ada", "bob", "eve")]
    for scope, name in zip(scopes, ("ada", "bob", "eve"), strict=True):
        scope.set("n", WORD)
        hf.retention.hold(scope)
        hf.subjects.erase(name)
        hf.retention.unhold(scope)
    erasure = hf._kernel.part(Erasure)
    sound, failed = erasure._remove, list[str]()

    def remove(id: str) -> Any:
        if not failed:
            failed.append(id)
            raise KeyMissingError(id, "the keys")
        return sound(id)

    monkeypatch.setattr(erasure, "_remove", remove)
    with pytest.raises(KeyMissingError):
        hf.subjects.finish()
    assert sorted(len(one.state) for one in scopes) == [0, 0, 1]
    assert [one.subject for one in hf.subjects.finish()] == failed


def test_a_hold_that_ends_during_the_erasure_leaves_nothing_without_a_key(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left alone because of the hold is removed before the key goes, or waits for it."""
    kept, gone = sealed(hf, "kept", "gone")
    hf.retention.hold(kept, "court")
    erasure = hf._kernel.part(Erasure)
    sound = erasure._remove_some

    def remove_some(streams: list[str]) -> bool:
        monkeypatch.setattr(erasure, "_remove_some", sound)
        done = sound(streams)
        hf.retention.unhold(kept)
        return done

    monkeypatch.setattr(erasure, "_remove_some", remove_some)
    receipt = hf.subjects.erase("ada")
    rows = outcomes(receipt)
    for scope in (kept, gone):
        assert rows[scope.name][:2] == ("pending" if receipt.left else "deleted", 2)
        assert scope.state.to_dict() == {}
        assert scope.name not in [one.name for one in hf.scopes()]
    assert hf.subjects.finish() == []
    assert hf.check().findings == []


def test_a_hold_that_ends_before_the_key_would_go_is_noticed_by_the_next_call(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [kept] = sealed(hf, "kept")
    hf.retention.hold(kept, "court")
    erasure = hf._kernel.part(Erasure)
    sound = erasure._remove

    def remove(id: str) -> Any:
        exempt = sound(id)
        hf.retention.unhold(kept)
        return exempt

    with monkeypatch.context() as patched:
        patched.setattr(erasure, "_remove", remove)
        assert outcomes(hf.subjects.erase("ada"))[kept.name][0] == "exempt"
    assert kept.get("n") == WORD
    assert len(hf.subjects.finish()) == 1
    assert kept.state.to_dict() == {}
    assert kept.name not in [one.name for one in hf.scopes()]


def test_a_hold_after_the_key_went_exempts_nothing(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [own] = sealed(hf, "own")
    cut_off(monkeypatch, hf._kernel.part(Retainer), "erase", lambda: hf.subjects.erase("ada"))
    hf.retention.hold(own, "too late")
    [receipt] = hf.subjects.finish()
    assert {one.outcome for one in receipt.scopes} <= {"deleted", "pending", "unreadable"}


def test_the_receipt_of_a_subject_has_what_went_before_a_kill(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [own] = sealed(hf, "own")
    cut_off(monkeypatch, type(hf._log._backend), "purge", lambda: hf.subjects.erase("ada"))
    [receipt] = hf.subjects.finish()
    [row] = [one for one in receipt.scopes if one.scope == own.name]
    assert (row.events, row.bytes > 0, row.revisions) == (2, True, "1-3")
