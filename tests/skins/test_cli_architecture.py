"""What state is for: a row for each file of a project, and for each kind of thing in a store."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, UsageError
from holdfast.cli import main
from holdfast.contrib import architecture
from holdfast.contrib.architecture import COLUMNS, of_folder, of_store, to_markdown

FILES = {
    "AGENTS.md": "# Goals\n\n# Orders\n",
    "events.yaml": "events:\n  - date: 2026-03-04\n    type: L11\n  - date: 2026-03-05\n",
    "session-decisions-index.yaml": "orders:\n  - SD-266\n",
    ".keel-state": '{"head": "dd23fa3", "officer": "ada"}',
    "catch-log.tsv": "2026-03-04\treview\tnot written\tada\tfixed\t\n",
    "backlog.yaml": "- id: b1\n  title: one\n- id: b2\n- id: b3\n",
}


def git(folder: Path, *words: str) -> None:
    names = {
        f"GIT_{who}_{what}": "ada" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, check=True, capture_output=True
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def test_the_six_files_of_a_project(project: Path, capsys: pytest.CaptureFixture[str]):
    """BOOT-83: six rows, and for each file category, updates, content, what is lost, and more."""
    assert main(["architecture", str(project), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["kinds"]}
    assert set(rows) == set(FILES)
    assert {name: (row["category"], row["update"]) for name, row in rows.items()} == {
        "AGENTS.md": ("boot state", "full rewrite, seldom"),
        "events.yaml": ("event log", "append-only"),
        "session-decisions-index.yaml": ("decision index", "read-modify-write, curated"),
        ".keel-state": ("runtime state", "read-modify-write, often"),
        "catch-log.tsv": ("control log", "append-only"),
        "backlog.yaml": ("task tracking", "read-modify-write"),
    }
    assert rows["backlog.yaml"]["content"].endswith("(3 entries)")
    assert rows["AGENTS.md"]["content"].endswith("(2 sections)")
    assert rows[".keel-state"]["content"].endswith("(2 fields)")
    for row in rows.values():
        assert all(row[field] for field, _ in COLUMNS)
        assert "in no git repository" in row["recovery"]


def test_how_stale_each_gets(project: Path):
    """BOOT-84: a column for the risk of acting on what is no longer true."""
    risks = {kind.name: kind.stale.partition(":")[0] for kind in of_folder(str(project))}
    assert risks == {
        "AGENTS.md": "high", "session-decisions-index.yaml": "high", ".keel-state": "high",
        "backlog.yaml": "medium", "events.yaml": "low", "catch-log.tsv": "low",
    }  # fmt: skip


def test_what_git_would_bring_back(project: Path):
    git(project, "init", "-q")
    git(project, "add", "AGENTS.md", "backlog.yaml")
    git(project, "commit", "-qm", "first")
    (project / "backlog.yaml").write_text("- id: b9\n")
    recovery = {kind.name: kind.recovery for kind in of_folder(str(project))}
    assert recovery["AGENTS.md"].endswith(")")
    assert recovery["backlog.yaml"].endswith("not committed and would be lost")
    assert recovery["events.yaml"].endswith("git has no commit of it: it would be lost")


def test_other_files_are_judged_by_their_form(project: Path):
    for name in FILES:
        (project / name).unlink()
    (project / "docs").mkdir()
    for name, data in {
        "docs/todo.md": b"- [ ] one\n- [x] two\n",
        "notes.md": b"# one\n",
        "settings.toml": b"a = 1\n",
        "runs.jsonl": b"{}\n{}\n",
        "list.json": b"[1, 2, 3]",
        "one.json": b"7",
        "people.csv": b"name\nann\n",
        "broken.json": b"{",
        "odd.yaml": b"\xff",
        "program.py": b"pass",
    }.items():
        (project / name).write_bytes(data)
    (project / "list.json.lock").touch()
    (project / "away.md").symlink_to("/etc/hosts")
    os.mkfifo(project / "pipe.json")
    rows = {kind.where: kind for kind in of_folder(str(project))}
    assert "program.py" not in rows
    assert rows["docs/todo.md"].category == "task tracking"
    assert rows["docs/todo.md"].content.endswith("(2 boxes)")
    assert rows["notes.md"].category == "notes"
    assert rows["settings.toml"].category == "settings"
    assert rows["runs.jsonl"].update == "append-only"
    assert rows["list.json"].content.endswith("(3 values)")
    assert rows["list.json"].locking.startswith("list.json.lock is there")
    assert rows["one.json"].content.endswith("(1 value)")
    assert rows["people.csv"].content.endswith("(2 lines)")
    assert rows["broken.json"].content.startswith("cannot be read: no JSON")
    assert rows["odd.yaml"].content == "cannot be read: no UTF-8 at byte 0"
    assert rows["away.md"].content == "cannot be read: it is a link to /etc/hosts"
    assert rows["pipe.json"].content == "cannot be read: it is no plain file"


def test_the_kinds_of_state_in_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with holdfast.open(tmp_path / ".holdfast") as hf:
        hf.team("red").set("a", 1)
        chat = hf.conversation("c")
        chat.decide("be plain", standing=True)
        chat.tasks.add("one")
        before = sorted(os.listdir(tmp_path / ".holdfast"))
        rows = {kind.name: kind for kind in of_store(hf)}
        assert sorted(os.listdir(tmp_path / ".holdfast")) == before, "it only reads"
    assert rows["state of team scopes"].category == "persistent state"
    assert rows["state of conversation scopes"].category == "session state"
    assert "1 standing orders, 0 open" in rows["decisions"].content
    assert "1 not closed" in rows["tasks"].content
    assert main(["--store", str(tmp_path / ".holdfast"), "architecture", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(rows)
    assert all(line.count(" | ") == len(COLUMNS) - 1 for line in lines)
    (tmp_path / "AGENTS.md").write_text("# a | b\n")
    assert main(["architecture", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "AGENTS.md" in printed
    assert "index for questions" in printed


def test_the_store_beside_the_files_is_opened_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "key").write_text("ab" * 32)
    with holdfast.open(tmp_path / ".holdfast", store_key=f"file:{tmp_path}/key") as hf:
        hf.team("red").set("a", 1)
    monkeypatch.setenv("HOLDFAST_STORE_KEY", f"file:{tmp_path}/key")
    assert main(["architecture", str(tmp_path)]) == 0
    assert "state of team scopes" in capsys.readouterr().out


def test_what_cannot_be_told_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    with pytest.raises(NotFoundError, match="is no folder"):
        of_folder(str(tmp_path / "none"))
    assert main(["architecture", str(tmp_path)]) == 0
    (tmp_path / "a.md").touch()
    (tmp_path / "b.md").write_bytes(b"x" * 100)
    monkeypatch.setattr(architecture, "READ_BYTES_MAX", 10)
    [_, large] = of_folder(str(tmp_path))
    assert large.content == "cannot be read: 100 bytes are too many to look at"
    monkeypatch.setattr(architecture, "FILES_MAX", 1)
    with pytest.raises(UsageError, match="more than 1 files"):
        of_folder(str(tmp_path))


def test_a_cell_cannot_break_the_table():
    [kind] = of_kind("a|b\nc")
    assert "a\\|b c" in to_markdown([kind]).splitlines()[2]


def of_kind(text: str) -> list[architecture.StateKind]:
    names = [field for field, _ in COLUMNS]
    return [architecture.StateKind(**dict.fromkeys(names, text))]
