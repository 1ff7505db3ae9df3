"""`holdfast rewind`: what it prints, and what it asks."""

from __future__ import annotations

import json

import pytest

import holdfast
from holdfast.cli import main
from tests.git.conftest import Project


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    with holdfast.open(".holdfast") as hf:
        hf.conversation("c1").say("first")
    return project


def test_there_and_back(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewind", "mark", "start", "--scope", "conversation/c1"]) == 0
    assert "conversation/c1@1" in capsys.readouterr().out
    here.write("a.txt", "two\n")
    here.write("new.txt", "n\n")
    main(["say", "conversation/c1", "second"])
    capsys.readouterr()

    assert main(["rewind", "start", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "~ a.txt\n- new.txt\n" in shown
    assert "second" in shown
    assert main(["rewind", "start"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert here.read("a.txt") == "two\n"

    assert main(["rewind", "start", "--what", "files", "--yes"]) == 0
    assert "~ a.txt" in capsys.readouterr().out
    assert here.read("a.txt") == "one\n"

    assert main(["rewind", "undo", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["done"], document["what"]) == (False, "files")
    assert [one["path"] for one in document["files"]] == ["a.txt", "new.txt"]
    assert main(["rewind", "undo", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] is True
    assert here.read("a.txt") == "two\n"

    assert main(["rewind", "start", "--what", "conversation", "--yes"]) == 0
    with holdfast.open(".holdfast") as hf:
        assert [one.text for one in hf.conversation("c1").messages] == ["first"]
    capsys.readouterr()
    assert main(["rewind", "list"]) == 0
    assert "start" in capsys.readouterr().out


def test_errors(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewind", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"points": [], "interrupted": None}
    assert main(["rewind", "none", "--yes"]) == 3
    assert "holdfast rewind list" in capsys.readouterr().err
    assert main(["rewind", "undo", "--yes"]) == 3
    assert main(["rewind", "mark", "start", "--no-files"]) == 2
