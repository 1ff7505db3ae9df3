"""Completion: what a shell is offered, and which files of it are written."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from tests.skins.test_cli_process import environment

PROGRAM = Path(sys.executable).with_name("holdfast")


@pytest.fixture
def place(tmp_path: Path) -> str:
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        hf.team("red").set("stage", "triage", checkpoint="before refund")
        hf.team("rose").set("stage", "open")
        hf.conversation("c").set("stage", "open")
    return place


def offered(*words: str, home: Path | None = None) -> list[str]:
    done = subprocess.run(
        [PROGRAM, "__complete", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(HOME=str(home)) if home else environment(),
        check=True,
    )
    return done.stdout.split("\x1fbegin\n")[1].splitlines()


def test_scopes_and_checkpoints_are_offered(place: str):
    assert offered("show", "--store", place, "team/r") == ["team/red", "team/rose"]
    assert offered("--store", place, "show", "con") == ["conversation/c"]
    assert offered("restore", "--store", place, "team/red", "be") == ["before refund\trevision 1"]
    assert offered("show", "--store", place, "team/red", "--at", "b") == [
        "before refund\trevision 1"
    ]
    assert offered("restore", "--store", place, "team/rose", "") == []


def test_runs_are_offered(tmp_path: Path):
    place = str(tmp_path / "runs")

    @holdfast.run
    def nightly(ctx: holdfast.Context) -> int:
        return 1

    with holdfast.open(place) as hf:
        hf.runs.start(nightly, id="nightly-7").result()
    assert offered("runs", "show", "--store", place, "n") == ["nightly-7\tcompleted"]


def test_without_a_store_nothing_is_offered_and_none_is_made(tmp_path: Path):
    assert offered("show", "--store", str(tmp_path / "absent"), "team") == []
    assert not (tmp_path / "absent").exists()


def test_bash_offers_what_the_store_has(place: str, tmp_path: Path):
    script = tmp_path / "completion.bash"
    install = [PROGRAM, "--install-completion", "--shell", "bash", "--output", script]
    done = subprocess.run(install, env=environment(HOME=str(tmp_path)), capture_output=True)
    assert done.returncode == 0
    assert not (tmp_path / ".bashrc").exists()
    typed = f"""
source {script}
COMP_WORDS=({PROGRAM} show --store {place} team/r); COMP_CWORD=4; _holdfast
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    found = subprocess.run(
        ["bash", "--norc", "-c", typed], capture_output=True, text=True, env=environment()
    )
    assert found.stdout.splitlines() == ["team/red", "team/rose"], found.stderr


def test_the_files_of_a_shell_are_written_after_a_yes_only(tmp_path: Path):
    words = [PROGRAM, "--install-completion", "--shell", "bash"]
    env = environment(HOME=str(tmp_path))
    refused = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env
    )
    assert refused.returncode == 2
    assert "hint: add --yes" in refused.stderr
    for answer, code in (("\n", 1), ("y\n", 0)):
        assert not (tmp_path / ".bashrc").exists()
        terminal, inner = pty.openpty()
        os.write(terminal, answer.encode())
        done = subprocess.run(words, stdin=inner, capture_output=True, text=True, env=env)
        os.close(terminal)
        os.close(inner)
        assert done.returncode == code, done.stderr
        assert f"add a line to {tmp_path}/.bashrc? [y/N]" in done.stderr
    assert "holdfast" in (tmp_path / ".bashrc").read_text()


def test_yes_asks_nothing(tmp_path: Path):
    words = [PROGRAM, "--install-completion", "--shell", "fish", "--yes"]
    env = environment(HOME=str(tmp_path))
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    assert done.returncode == 0
    assert [path.name for path in tmp_path.rglob("holdfast.fish")] == ["holdfast.fish"]
