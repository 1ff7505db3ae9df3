"""What fails once is run again, alone and twice: a run tells what is flaky from what is broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.selection import ROOT, seed
from tools import run_tests

FAILS = """
import pathlib

@pytest.mark.parametrize("which", [{which}])
def test_x(which):
    runs = pathlib.Path({place!r}, which)
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) {passes}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "BUILD", tmp_path / "build")
    monkeypatch.setattr(run_tests, "flaky", [])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run(place: Path, *, passes: str, names: list[str]) -> None:
    text = FAILS.format(which=str(names)[1:-1], place=str(place), passes=passes)
    (place / "test_it.py").write_text(f"import pytest\n{text}\ndef test_y(): pass\n")
    run_tests.pytest(Path(sys.executable), "test_it.py", workers=1, quiet=True)


def times(place: Path, name: str) -> int:
    return len((place / name).read_text())


def test_what_passes_twice_alone_is_flaky_and_the_run_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
):
    run(place, passes="> 1", names=["a b"])
    assert times(place, "a b") == 3
    run_tests.tell_flaky()
    line = f"flaky: test_it.py::test_x[a b], seed {seed()}\n"
    assert (place / "build/flaky.txt").read_text() == line
    assert capsys.readouterr().out.endswith(line)


@pytest.mark.parametrize("passes", ["> 2", "== 2", "> 9"])
def test_what_fails_again_is_red(place: Path, passes: str):
    with pytest.raises(run_tests.GroupFailed):
        run(place, passes=passes, names=["a"])
    assert run_tests.flaky == []


def test_more_than_two_in_a_run_are_red_and_not_tried_again(place: Path):
    run(place, passes="> 1", names=["a", "b"])
    assert len(run_tests.flaky) == 2
    with pytest.raises(run_tests.GroupFailed):
        run(place, passes="> 1", names=["c"])
    assert times(place, "c") == 1


def test_what_fails_before_any_test_is_red(place: Path):
    (place / "test_it.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(run_tests.GroupFailed):
        run_tests.pytest(Path(sys.executable), "test_it.py", workers=1, quiet=True)


def test_green_is_noted_of_a_clean_commit_only(place: Path):
    run_tests.BUILD.mkdir()
    run_tests.note_green()
    assert not (place / "build/green").exists()  # there is no repository
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@y")
    (place / ".gitignore").write_text("build/\n")
    run_tests.run("git", "init", "-q", quiet=True)
    run_tests.run("git", "add", ".", quiet=True)
    run_tests.run(*git, "commit", "-qm", "x", quiet=True)
    run_tests.note_green()
    assert (place / "build/green").read_text().strip() == run_tests.git("rev-parse", "HEAD")
    (place / "build/green").unlink()
    (place / "new.py").touch()
    run_tests.note_green()
    assert not (place / "build/green").exists()
