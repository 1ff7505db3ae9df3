"""The dependent tasks of the examples (BOOT-85 to 88): killed at every boundary, one result."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["files", "sqlite"]

PROGRAM = """
import json, os, signal, sys
sys.path[:0] = sys.argv[1:3]
import tasks

kind, place, count, dies_at, when, witness = sys.argv[3:]
real = tasks.process


def process(task, previous):
    with open(witness, "a") as file:
        file.write(f"{task['id']}\\n")
    if (task["id"], when) == (int(dies_at), "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(task, previous)
    if (task["id"], when) == (int(dies_at), "after"):
        os.kill(os.getpid(), signal.SIGKILL)
    return result


tasks.process = process
print(json.dumps(tasks.VARIANTS[kind](tasks.make_tasks(int(count)), place)))
"""


@pytest.fixture(scope="module")
def tasks() -> Any:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import tasks  # pyright: ignore[reportMissingImports]

        return tasks
    finally:
        sys.path.remove(str(ROOT / "examples"))


def do(
    kind: str, place: Path, count: int, witness: Path, dies_at: int = 0, when: str = ""
) -> tuple[int, Any, list[int]]:
    """Processes tasks in a process of its own; returns its end, its result, what it worked on."""
    source = str(Path(holdfast.__file__).parents[1])
    witness.write_text("")
    words = [kind, str(place), str(count), str(dies_at), when, str(witness)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "examples"), source, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    said = json.loads(done.stdout) if done.returncode == 0 else None
    return done.returncode, said, [int(line) for line in witness.read_text().split()]


def expected(tasks: Any, count: int) -> list[Any]:
    results: list[Any] = [None]
    for task in tasks.make_tasks(count):
        results.append(tasks.process(task, results[-1]))
    return results


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_boundary(kind: str, when: str, tmp_path: Path, tasks: Any):
    """BOOT-87. Killed before a task's work, or after it and before it is recorded: one process a
    boundary, each going on where the last one was killed."""
    results, place = expected(tasks, 5), tmp_path / "state"
    for dies_at in range(1, 6):
        code, _, worked = do(kind, place, 5, tmp_path / "witness", dies_at, when)
        assert code == -signal.SIGKILL
        # Every process begins at the task at which the one before it was killed, at no other.
        assert worked == list(range(max(dies_at - 1, 1), dies_at + 1))
    code, said, worked = do(kind, place, 5, tmp_path / "witness")
    assert (code, said, worked) == (0, results[-1], [5])
    code, said, worked = do(kind, place, 5, tmp_path / "witness")
    assert (code, said, worked) == (0, results[-1], [])  # a further call does nothing at all
    if kind == "files":
        for number in range(1, 6):
            assert json.loads(tasks.result_path(place, number).read_text()) == results[number]
        assert not list(place.glob("*.tmp"))
    else:
        assert [tasks.result_of(place, number) for number in range(1, 6)] == results[1:]


def test_results_and_what_is_incomplete_after_a_kill(tmp_path: Path, tasks: Any):
    """BOOT-85, BOOT-86."""
    results, wanted = expected(tasks, 5), tasks.make_tasks(5)
    do("sqlite", tmp_path / "db", 5, tmp_path / "witness", 4, "before")
    assert tasks.incomplete(wanted, tmp_path / "db") == [4, 5]
    assert tasks.result_of(tmp_path / "db", 3) == results[3]
    with pytest.raises(KeyError):
        tasks.result_of(tmp_path / "db", 4)
    do("files", tmp_path / "state", 5, tmp_path / "witness", 4, "before")
    files = sorted(path.name for path in (tmp_path / "state").glob("*.json"))
    assert files == [f"task_{number}_result.json" for number in (1, 2, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_five_hundred_tasks_killed_in_the_middle(kind: str, tmp_path: Path, tasks: Any):
    """BOOT-88: 5 and 500 here; 50,000 is a benchmark (`make bench ONLY=tasks`)."""
    code, _, worked = do(kind, tmp_path / "state", 500, tmp_path / "witness", 321, "after")
    assert (code, worked[-1]) == (-signal.SIGKILL, 321)
    code, said, worked = do(kind, tmp_path / "state", 500, tmp_path / "witness")
    assert (code, said) == (0, expected(tasks, 500)[-1])
    assert worked == list(range(321, 501))
