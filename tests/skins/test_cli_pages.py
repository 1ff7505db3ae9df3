"""The command that a list ends with, if there is more: it goes on as the list was asked for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import holdfast

LISTS = [
    ["log", "--limit", "2"],
    ["log", "team/a", "--limit", "2", "--type", "changed"],
    ["log", "--limit", "2", "--after", "2", "--actor", "tester"],
    ["event", "list", "--limit", "1"],
    ["event", "list", "team/a", "--limit", "1", "--trust", "low"],
    ["query", "--limit", "2", "--stale-ok", "--timeout", "7"],
    ["query", "--limit", "1", "--text", "hello", "--explain"],
    ["scopes", "--limit", "1"],
    ["scopes", "team", "--prefix", "a", "--limit", "1"],
    ["checkpoints", "team/a", "--limit", "1"],
    ["catch", "list", "--limit", "1"],
    ["task", "list", "team/a", "--limit", "1"],
    ["decisions", "--limit", "1"],
]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pages") / "store"
    with holdfast.open(place, actor="tester", durability="none") as hf:
        for name in ("a", "ab", "b"):
            team = hf.team(name)
            for number in range(3):
                team.set("n", number, checkpoint=f"p{number}")
                with holdfast.provenance(source="tool", trust="low"):
                    team.record("seen", {"n": number}, unchecked=True)
                team.say(f"hello {number}")
                team.tasks.add(f"task {number}")
                team.decisions.catch(f"this {number}")
            for number in range(2):
                with team.decide(f"decision {number}") as decision:
                    decision.outcome("done")
    return place


@pytest.fixture(autouse=True)
def _named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(filled))


@pytest.mark.parametrize("asked", LISTS, ids=" ".join)
def test_the_command_that_goes_on_shows_the_rest_in_pages_as_long(
    asked: list[str], cli: Any
) -> None:
    options = [one for one in asked if one.startswith("--")]
    limit = int(asked[asked.index("--limit") + 1])
    at = asked.index("--limit")
    whole = cli(*asked[:at], "--limit", "1000", *asked[at + 2 :]).rows
    assert len(whole) > limit
    rows, words, turns = [], asked, 0
    while words:
        told = cli(*words)
        page, words = told.rows, []
        assert 0 < len(page) <= limit
        rows += page
        for line in told.err.splitlines():
            if "there is more: " in line:
                _, *words = shlex.split(line.partition("there is more: ")[2])
                assert not [one for one in options if one not in words], line
        turns += 1
    assert rows == whole
    assert turns >= len(whole) // limit


def test_catches_of_one_scope_say_that_there_are_more(cli: Any) -> None:
    assert "there is more" in cli("catch", "list", "team/a", "--limit", "1").err
    assert "there is more" not in cli("catch", "list", "team/a").err
