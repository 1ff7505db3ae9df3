"""What a project is refused for, and in which words: nothing is lost, and the remedy is said."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.skins.test_cli_project import shop

__all__ = ["shop"]  # a fixture


def trusted(shop: Path, cli: Any, program: str, **more: Any) -> None:
    """Lets a program of Python answer for the agents of the project."""
    lines = [f"command = {json.dumps([sys.executable, '-c', program])}"]
    lines += [f"{name} = {value}" for name, value in more.items()]
    (shop / "holdfast.toml").write_text("[agents]\n" + "\n".join(lines) + "\n")
    cli("trust", "holdfast.toml", "--yes")


def test_a_foreign_folder_and_a_newer_format_are_left_alone(shop: Path, cli: Any):
    cli("project", "do", "write it", "--script", "script.json")
    mark = shop / ".holdfast" / "holdfast.json"
    known = mark.read_text()
    mark.write_text(known.replace('"format":', '"format":9'))
    for words in (["status"], ["do", "x", "--script", "script.json"], ["recover", "--from-files"]):
        err = cli("project", *words, code=10).err
        assert "this holdfast reads up to" in err
        assert "hint: upgrade holdfast" in err
    mark.write_text(known)
    assert cli("project", "tasks", "--all").rows[0][0] == "t1"
    shutil.move(shop / ".holdfast", shop / "kept")
    (shop / ".holdfast").mkdir()
    (shop / ".holdfast" / "letter").write_text("dear")
    for words in (["status"], ["do", "x", "--script", "script.json"], ["recover", "--from-files"]):
        err = cli("project", *words, code=10).err
        assert "is not a holdfast store" in err
        assert "hint: " in err
    assert os.listdir(shop / ".holdfast") == ["letter"]


def test_a_file_of_the_project_that_leads_out_of_it(shop: Path, cli: Any, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("not yours\n")
    (shop / "RALPH_TASKS.md").symlink_to(secret)
    for words in (["status"], ["do", "x", "--script", "script.json"], ["doctor"]):
        err = cli("project", *words, code=2).err
        assert f'RALPH_TASKS.md" leads out of the project, to "{secret}"' in err
        assert "hint: put a file in the place of the link" in err
    assert secret.read_text() == "not yours\n"


def test_an_id_that_two_directories_have(shop: Path, cli: Any, monkeypatch: pytest.MonkeyPatch):
    cli("project", "do", "write it", "--script", "script.json")
    other = shop.parent / "other"
    other.mkdir()
    (other / "holdfast.toml").write_text('[project]\nid = "shop"\n')
    monkeypatch.chdir(other)
    place = str(shop / ".holdfast")
    words = ("do", "x", "--script", str(shop / "script.json"), "--store", place)
    err = cli("project", *words, code=2).err
    assert f'the id "shop" is used twice: by "{shop}" and by "{other}"' in err
    assert "hint: give one of them another id" in err
    assert [row[0] for row in cli("project", "tasks", "--all", "--store", place).rows] == ["t1"]


@pytest.mark.parametrize("name", ["agents", "depth", "children", "turns"])
def test_a_limit_of_zero(shop: Path, cli: Any, name: str):
    (shop / "holdfast.toml").write_text(f"[project.limits]\n{name} = 0\n")
    err = cli("project", "status", code=2).err
    assert f"project.limits.{name} is a whole number from 1" in err


def test_an_agent_that_is_not_there_fails_hangs_or_never_stops_to_print(shop: Path, cli: Any):
    """The task is blocked with the reason, and the next one is done."""
    (shop / "holdfast.toml").write_text('[agents]\ncommand = ["/no/such/agent"]\n')
    assert "trust" in cli("project", "do", "first", code=2).err
    cli("trust", "holdfast.toml", "--yes")
    assert "/no/such/agent" in cli("project", "do", "first", code=12).out
    trusted(shop, cli, "import time; time.sleep(600)", timeout_s=0.3)
    assert "longer than 0.3 s" in cli("project", "do", "second", code=12).out
    trusted(shop, cli, "import sys\nwhile True: sys.stdout.write('x' * (1 << 16))", timeout_s=0.5)
    assert "longer than 0.5 s" in cli("project", "do", "third", code=12).out
    prints = "import sys\nfor _ in range(160): sys.stdout.write('x' * (1 << 16))\nprint('end')"
    trusted(shop, cli, prints)
    told = cli("project", "do", "fourth", "--json").document
    assert told["status"] == "done"
    assert told["answer"].endswith("end")
    assert len(told["answer"]) <= 1 << 20
    rows = cli("project", "tasks", "--all").rows
    assert sorted((row[0], row[1]) for row in rows) == [
        ("t1", "blocked"),
        ("t2", "blocked"),
        ("t3", "blocked"),
        ("t4", "completed"),
    ]


def test_a_directory_that_may_not_be_read_or_git_that_is_broken(shop: Path, cli: Any):
    (shop / ".git").mkdir()
    (shop / ".git" / "HEAD").write_text("broken")
    done = cli("project", "do", "write it", "--script", "script.json")
    assert done.out == "ok: Task: write it\n"
    [row] = cli("project", "doctor", code=1).rows
    assert (row[0], "not a git repository" in row[2]) == ("git", True)
    assert "git fsck" in row[3]
