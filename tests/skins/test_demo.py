"""The demo: it ends well, and the store backs every claim that it prints."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.contrib.demo import scenes
from holdfast.contrib.demo.agent import BEFORE_MISTAKE, DISPUTED, MORNING, REPLIES, SUBJECTS, TEAM
from holdfast.errors import UnavailableError

TITLES = [
    "shares",
    "killed",
    "missing",
    "resumes",
    "same line",
    "asked for twice",
    "conflict",
    "rewound",
    "walked",
    "a person's edit",
    "checked",
]


def facts_of(document: Any) -> list[dict[str, Any]]:
    assert document["ok"] is True
    for scene, word in zip(document["scenes"], TITLES, strict=True):
        assert word in scene["title"]
        assert all(claim["ok"] for claim in scene["claims"]), scene
        assert scene["commands"]
    return [scene["facts"] for scene in document["scenes"]]


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_the_data_back_every_claim(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
):
    monkeypatch.chdir(tmp_path)
    document = cli("demo", "--backend", backend, "--json").document
    facts = facts_of(document)
    _, killed, found, resumed, program, drafts, conflict, rewound, walked, shop, checked = facts
    assert drafts["asked_after"][0] == drafts["asked_before"][-1]
    assert drafts["answered"] + len(drafts["asked_after"]) == 4
    assert walked["computed"] == [2, 0, 1, 2]
    assert (shop["exit_code"], shop["done"]) == (-signal.SIGKILL, ["t2", "t3"])
    assert set(shop["tasks"].values()) == {"completed"}
    assert killed["exit_code"] == -signal.SIGKILL
    assert 0 < len(killed["acknowledged"]) < killed["wanted"]
    with holdfast.open(document["store"], create=False) as store:
        team, inbox = store.scope(TEAM), store.scope(killed["inbox"])
        mails = [mail["number"] for mail in inbox.state["mails"]]
        assert mails == list(range(1, killed["wanted"] + 1))
        assert set(killed["acknowledged"]) <= set(mails[: found["found"]])
        assert resumed["resumed_at"] == found["found"]
        # Every mail up to the kill is an event of the first bo, and the rest of the second.
        assert len(list(inbox.history())) == killed["wanted"]
        assert team.state["mails"] >= killed["wanted"]
        assert program["exit_code"] == -signal.SIGKILL
        assert program["sent"] == sorted(team.state["tickets"])
        assert set(program["said"]) <= set(program["sent"][: program["sent_before"]])
        assert program["sent_before"] < len(program["sent"])
        assert len(store.runs.get(REPLIES).journal.claims) == 2
        for name in ("ada", "cy"):
            for ticket in killed[name]:
                assert team.state["tickets"][ticket]["owner"] == name
        assert sorted(killed["ada"] + killed["cy"]) == sorted(team.state["tickets"])
        assert (conflict["actual"], conflict["expected"]) == (
            conflict["expected"] + 1,
            team.life.revision_at(conflict["expected"]),
        )
        events = {event.revision: event for event in team.history()}
        assert events[conflict["actual"]].actor == "cy"
        assert team.at(conflict["written"])["tickets"][DISPUTED]["priority"] == "urgent"
        mark = team.life.revision_at(BEFORE_MISTAKE)
        spam = team.at(mark + 1)["tickets"].values()
        assert {ticket["status"] for ticket in spam} == {"spam"}
        assert team.state == team.at(mark) == team.at(rewound["restored"])
        assert team.at(rewound["undone"]) == team.at(mark + 1)
        assert team.at(MORNING)["triaged"] == 0
        report = store.check()
        assert (report.ok, report.digest) == (True, checked["digest"])


def test_every_command_it_suggests_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any):
    monkeypatch.chdir(tmp_path)
    document = cli("demo", "--dir", "my demo", "--json").document
    suggested = [line for scene in document["scenes"] for line in scene["commands"]]
    assert len(suggested) > 10
    for line in suggested:
        program, *words = shlex.split(line)
        assert program == "holdfast"
        cli(*words, code=5 if "--expected" in words else 0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first scene and the last: no agents, for tests of what surrounds the story."""
    monkeypatch.setattr(scenes, "work_and_kill", lambda store, telling: ("", 0))
    skipped = ["find_what_is_there", "resume", "kill_a_run", "kill_a_program"]
    for name in (*skipped, "refuse_and_retry", "rewind"):
        monkeypatch.setattr(scenes, name, lambda *_: None)


def test_a_second_run_leaves_the_first_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: None, cli: Any
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-store").mkdir()
    (tmp_path / "demo-store" / "letter.txt").write_text("mine")
    told = cli("demo").out
    assert "The data is in demo-store-2" in told
    assert os.listdir("demo-store") == ["letter.txt"]
    before = cli("check", "--read-all", "--store", "demo-store-2").out
    assert cli("demo", "--json").document["store"] == "demo-store-3"
    assert cli("check", "--read-all", "--store", "demo-store-2").out == before


def test_the_story_is_told_with_real_values(tmp_path: Path):
    """As `make demo` does: a process of its own, read to its end."""
    source = str(Path(holdfast.__file__).parents[1])
    program = "import sys; from holdfast.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert f"{TEAM} has {len(SUBJECTS)} open tickets" in done.stdout
    assert "ConflictError: scope" in done.stdout
    assert "NOT SO" not in done.stdout
    assert "Done in" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be created"):
        scenes.make_folder(tmp_path / "file" / "demo")
    assert main(["demo", "--dir", str(tmp_path / "file" / "demo")]) == 8


def test_a_claim_that_is_not_so_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: None, cli: Any
):
    def lie(store: Any, telling: Any) -> None:
        telling.begin("Every byte is checked")
        telling.claim("pigs fly", False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scenes, "check_everything", lie)
    assert "NOT SO: pigs fly" in cli("demo", code=1).out
    assert json.loads(cli("demo", "--json", code=1).out)["ok"] is False
