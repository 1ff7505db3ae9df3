"""The verbs that let go: retain, hold, unhold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.kernel import kernel_of

CANARY = "CANARY-5c1d"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "store")
    with holdfast.open("store") as store:
        for name in ("red", "blue", "green"):
            store.team(name).set("note", CANARY)
        store.team("red").remove()
        store.team("blue").remove()
    return tmp_path / "store"


def found(place: Path) -> int:
    return sum(one.read_bytes().count(CANARY.encode()) for one in place.rglob("*") if one.is_file())


def test_retain_says_what_would_go_and_then_lets_go(place: Path, cli: Any) -> None:
    assert "0 events" in cli("retain").out
    planned = cli("retain", "--now", "--dry-run")
    assert [row[0] for row in planned.rows[:2]] == ["team/blue", "team/red"]
    assert "would be let go of" in planned.out
    assert found(place) == 3
    cli("hold", "team/blue", "--reason", "a court")
    document = cli("retain", "--now", "--json").document
    assert [one["scope"] for one in document["scopes"]] == ["team/red"]
    assert (document["events"], document["held"], document["left"]) == (1, ["team/blue"], [])
    assert found(place) == 2
    cli("check", "--read-all")
    assert cli("get", "team/green", "note").out == f"{CANARY}\n"
    assert cli("retain", "--log").rows[0][:2] == ["team/red", "removed"]
    [told] = cli("retain", "--log", "--json").document["let_go"]
    assert (told["scope"], told["first"], told["last"]) == ("team/red", 1, 1)
    assert "let go of" in cli("show", "team/red", "--at", "1", code=3).err


def test_a_hold_is_shown_and_ended(place: Path, cli: Any) -> None:
    assert cli("hold", "team/red", "--json").document == {
        "scope": "team/red",
        "held": True,
        "reason": None,
    }
    assert cli("hold").rows[0][0] == "team/red"
    [hold] = cli("hold", "--json").document["holds"]
    assert hold["scope"] == "team/red"
    held = cli("retain", "--grace", "1h", "--dry-run")
    assert "0 events" in held.out
    assert ["held", "team/red"] in cli("retain", "--now", "--dry-run").rows
    assert "held no more" in cli("unhold", "team/red").out
    cli("hold", "team/red")
    assert cli("unhold", "team/red", "--json").document == {"scope": "team/red", "held": False}
    assert found(place) == 3


@pytest.mark.usefixtures("place")
def test_mistakes_are_named(cli: Any) -> None:
    assert "not held" in cli("unhold", "team/red", code=3).err
    assert "no scope" in cli("hold", "team/absent", code=3).err
    assert "one of --now and --grace" in cli("retain", "--now", "--grace", "1h", code=2).err
    assert "--grace" in cli("retain", "--grace", "soon", code=2).err


def test_events_that_were_let_go_of_are_listed_as_such(place: Path, cli: Any) -> None:
    del place
    cli("retain", "--now")
    cli("set", "team/red", "again", "1")
    rows = cli("log", "--limit", "100").rows
    assert any("let go of" in cell for row in rows for cell in row)
    events = cli("log", "--limit", "100", "--json").document["events"]
    gone = [event for event in events if event.get("let_go")]
    assert [event["data"] for event in gone] == [None, None]


def test_what_is_still_there_is_named(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:s.db")
    with holdfast.open("sqlite:s.db") as store:
        store.team("red").set("note", CANARY)
        store.team("red").remove()
    rows = cli("retain", "--now").rows
    assert [row[0] for row in rows if "--whole" in row[-1]] == ["still there"]
    assert cli("retain", "--now", "--whole", "--json").document["left"] == []
    assert found(tmp_path) == 0


def test_archive_moves_old_scopes_and_says_where(place: Path, cli: Any) -> None:
    planned = cli(
        "archive", "old", "team/gr*", "--older", "0.000001s", "--dry-run", "--json"
    ).document
    assert [one["scope"] for one in planned["scopes"]] == ["team/green"]
    assert not (place.parent / "old").exists()
    moved = cli("archive", "old", "team/gr*", "--older", "0.000001s")
    assert moved.rows[0][:2] == ["archived", "team/green"]
    assert CANARY in cli("get", "team/green", "note", "--store", "old").out
    assert "archived to" in cli("unretain").out
    cli("unretain", "team/green")
    assert CANARY in cli("get", "team/green", "note").out
    assert "is for no scope" in cli("archive", "old", "task/*", "--older", "90d", code=2).err


def test_an_archive_of_nothing_makes_no_store(place: Path, cli: Any) -> None:
    assert "is for no scope" in cli("archive", "new", "nobody/*", "--older", "1s", code=2).err
    assert "0 scopes, 0 events, archived" in cli("archive", "new", "team/*", "--older", "9d").out
    assert not Path("new").exists()


def test_a_grace_of_nothing_is_named(place: Path, cli: Any) -> None:
    assert "--now is a grace of nothing" in cli("retain", "--grace", "0s", code=2).err


def test_a_retain_waits_if_it_may(place: Path, cli: Any) -> None:
    with holdfast.open(place) as hf:
        lease = kernel_of(hf).leases.take("retention", ttl_s=600)
        refused = cli("retain", "--now", code=7).err
        assert "another retain is at work, or an erasure" in refused
        assert "--wait" in refused
        assert "at work" in cli("retain", "--now", "--wait", "0.01s", code=7).err
        kernel_of(hf).leases.give_back(lease)
    cli("retain", "--now", "--wait", "5m")
