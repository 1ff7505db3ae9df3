"""Tasks on the command line (RALPH-16, BOOT-70)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main

SCOPE = "team/red"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_ACTOR", "ada")
    cli("init")
    return tmp_path / ".holdfast"


def task(cli: Any, *words: str) -> dict[str, Any]:
    return cli("task", *words, "--json").document["task"]


def test_a_task_from_its_beginning_to_its_end(place: Path, cli: Any) -> None:
    first = task(cli, "add", SCOPE, "design", "--tag", "ui", "--tag", "slow", "--epic", "v2")
    assert (first["id"], first["tags"], first["epic"]) == ("t1", ["ui", "slow"], "v2")
    task(cli, "add", SCOPE, "build", "--priority", "high", "--depends-on", "t1", "--id", "b")
    claimed = task(cli, "claim", SCOPE)
    assert (claimed["id"], claimed["owner"], claimed["worker"]) == ("t1", "ada", None)
    assert cli("task", "claim", SCOPE, "--json").document == {"scope": SCOPE, "task": None}
    noted = task(cli, "update", SCOPE, "t1", "--note", "half done", "--lasts", "9h")
    assert (noted["note"], noted["until"] > claimed["until"]) == ("half done", True)
    assert task(cli, "close", SCOPE, "t1", "two fields")["status"] == "completed"
    listed = cli("task", "list", "--json").document
    assert [(one["id"], one["scope"]) for one in listed["tasks"]] == [("b", SCOPE)]
    with holdfast.open(place) as hf:
        names = [one.id for one in hf.scope(SCOPE).tasks.list()]
    of_scope = cli("task", "list", SCOPE, "--json").document["tasks"]
    assert [one["id"] for one in of_scope] == names == ["b", "t1"], "as in Python"
    left = cli("task", "list", SCOPE, "--open", "--json").document["tasks"]
    assert [one["id"] for one in left] == ["b"]
    assert task(cli, "close", SCOPE, "b", "no use", "--cancelled")["status"] == "cancelled"
    assert task(cli, "update", SCOPE, "b", "--status", "open", "--why", "after all")["why"]
    assert task(cli, "update", SCOPE, "b", "--status", "blocked")["status"] == "blocked"
    assert task(cli, "update", SCOPE, "b", "--status", "open")["status"] == "open"
    task(cli, "claim", SCOPE, "b", "--owner", "bob")
    released = task(cli, "update", SCOPE, "b", "--status", "open", "--owner", "bob")
    assert released["owner"] is None
    with holdfast.open(place) as hf:
        assert hf.check().ok
        assert {event.actor for event in hf.scope(SCOPE).history()} == {"ada"}


def test_tables_and_notes(place: Path, cli: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "list"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["task", "add", SCOPE, "design"]) == 0
    assert capsys.readouterr().out == "id\tt1\nstatus\topen\ntitle\tdesign\n"
    assert main(["task", "claim", SCOPE, "--lasts", "0.000001s"]) == 0
    capsys.readouterr()
    assert main(["task", "list", "--suspect"]) == 0
    shown = capsys.readouterr().out
    assert shown == "team/red\tt1\tin_progress (silent)\t0\tada\tdesign\n"
    assert main(["stale", "--json"]) == 0
    assert '"kind":"task"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["add", SCOPE, "x", "--id", "t1"], 4),
        (["add", SCOPE, "x", "--depends-on", "z"], 3),
        (["add", SCOPE, "x", "--priority", "urgent"], 2),
        (["update", SCOPE, "t1"], 2),
        (["update", SCOPE, "t1", "--depends-on", "t1"], 2),
        (["update", SCOPE, "t2", "--note", "x"], 3),
        (["update", SCOPE, "t1", "--lasts", "1h", "--owner", "eve"], 7),
        (["claim", SCOPE, "t1", "--owner", "eve"], 7),
        (["close", SCOPE, "t1", "done", "--owner", "eve"], 7),
        (["list", "team/none"], 3),
        (["list", "--status", "done"], 2),
        (["frobnicate"], 2),
    ],
)
def test_what_is_refused(place: Path, words: list[str], code: int, cli: Any) -> None:
    task(cli, "add", SCOPE, "design")
    task(cli, "claim", SCOPE)
    assert main(["task", *words]) == code
