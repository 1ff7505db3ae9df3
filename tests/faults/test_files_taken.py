"""An operator's hand on a files store that processes have open: real git, real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import CorruptError
from holdfast.errors import FilesTakenError

WRITER = """
import sys
import holdfast
from holdfast.errors import FilesTakenError

store = holdfast.open(sys.argv[1])
team = store.team("t")
n = 0
try:
    while True:
        n += 1
        team.set(f"{sys.argv[2]}{n}", n)
        print(n, flush=True)
except FilesTakenError as error:
    print("taken", error.rescued, flush=True)
    store.close()
"""

IDLE = """
import sys, time
import holdfast
from holdfast.errors import FilesTakenError

store = holdfast.open(sys.argv[1], read_only=sys.argv[2] == "reader")
print(store.team("t").get("n"), flush=True)
try:
    while True:
        store.team("t").get("n")
        time.sleep(0.05)
except FilesTakenError as error:
    print("taken", error.rescued, flush=True)
store.close()
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str], least: int) -> list[str]:
    """Waits for so many lines of a process; returns them."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(least)]


def rest(process: subprocess.Popen[str]) -> list[str]:
    """Waits for the end of a process; returns what it said until then."""
    found, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return found.splitlines()


def git(place: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(("git", *identity, *words), cwd=place, check=True, capture_output=True)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store in a git repository, closed and committed."""
    path = tmp_path / "repository" / "store"
    with holdfast.open(str(path)) as hf:
        hf.team("t").set("n", 1)
    git(path.parent, "init", "-q")
    git(path.parent, "add", "-A")
    git(path.parent, "commit", "-qm", "the store")
    return path


def hand(store: Path, name: str) -> None:
    log = store / "log"
    [segment] = log.iterdir()
    match name:
        case "git stash":
            git(store.parent, "stash")
        case "rename":
            shutil.copy(segment, store / "copy")
            (store / "copy").rename(segment)
        case "rm log":
            segment.unlink()
        case "rm -r":
            shutil.rmtree(store)
        case _:
            git(store.parent, "clean", "-fdXq")


@pytest.mark.parametrize("name", ["git stash", "rename", "rm log", "rm -r", "git clean -X"])
def test_what_a_writer_was_told_is_there_or_rescued(store: Path, name: str) -> None:
    """At most the commit under way is unknown; all that was acknowledged is found again."""
    writer = start(WRITER, str(store), "k")
    first = told(writer, 20)
    hand(store, name)
    lines = [*first, *rest(writer)]
    assert lines[-1].startswith("taken")
    last = int(lines[-2])
    rescued = Path(lines[-1].removeprefix("taken "))
    # What was stashed comes back from the ring; what `clean` took did not hold the text.
    place = rescued if name in ("rename", "rm log", "rm -r") else store
    with holdfast.open(str(place)) as hf:
        state = hf.team("t").state
        assert all(state[f"k{n}"] == n for n in range(1, last + 1))
        assert hf.check().ok


def test_without_its_lock_a_store_has_no_two_writers(store: Path) -> None:
    first = start(WRITER, str(store), "a")
    lines = told(first, 20)
    (store / "lock").unlink()
    for _ in range(3):  # each is refused, or finds that the first has ended
        with_lock = start(WRITER, str(store), "b")
        assert with_lock.stdout is not None
        if with_lock.stdout.readline():
            with_lock.kill()
        with_lock.communicate()
    lines += rest(first)
    assert lines[-1].startswith("taken")
    with holdfast.open(str(store)) as hf:
        state = hf.team("t").state
        assert all(state[f"a{n}"] == n for n in range(1, int(lines[-2]) + 1))
        assert hf.check().ok


@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_an_idle_process_notices_by_itself(store: Path, kind: str) -> None:
    """It answers from memory until its own look, about a second later; not for ever."""
    idle = start(IDLE, str(store), kind)
    assert told(idle, 1) == ["1"]
    hand(store, "rm log")
    lines = rest(idle)
    assert lines[-1].startswith("taken")
    assert (store.parent / "rescued").exists() == (kind == "writer")


def test_a_store_that_is_moved_keeps_its_workers(store: Path, tmp_path: Path) -> None:
    """Two workers held one lease: the first one's file had gone to the new store."""
    old = holdfast.open(str(store))
    old.team("t").set("n", 2)
    store.rename(tmp_path / "moved")
    with holdfast.open(str(store)) as new, holdfast.open(str(tmp_path / "moved")) as moved:
        with pytest.raises(FilesTakenError):
            old.workers.lease("job")
        assert moved.workers.lease("job") is not None
        new.team("t").set("new", True)
        assert new.team("t").state == {"new": True}
    old.close()


def test_a_union_merge_is_not_cut(store: Path) -> None:
    """Both copies were closed cleanly, and both had acknowledged what they wrote."""
    repository = store.parent
    (repository / ".gitattributes").write_text("*.jsonl merge=union\nhead.json merge=ours\n")
    git(repository, "config", "merge.ours.driver", "true")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "merge lines")
    git(repository, "branch", "other")
    with holdfast.open(str(store)) as hf:
        hf.team("t").set("ours", 1)
    git(repository, "commit", "-qam", "ours")
    git(repository, "checkout", "-q", "other")
    with holdfast.open(str(store)) as hf:
        hf.team("t").set("theirs", 1)
    git(repository, "commit", "-qam", "theirs")
    git(repository, "checkout", "-q", "-")
    git(repository, "merge", "-q", "other", "-m", "both")
    [segment] = (store / "log").iterdir()
    text = segment.read_bytes()
    assert text.count(b"\n") == 3
    with pytest.raises(CorruptError, match="1 whole line"):
        holdfast.open(str(store))
    with pytest.raises(CorruptError, match="1 whole line"):
        holdfast.open(str(store), read_only=True)
    program = "import sys; from holdfast.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "--store", str(store), "check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == CorruptError.exit_code
    assert "1 whole line, written by another copy" in checked.stderr
    assert segment.read_bytes() == text
    assert not (store / "torn").exists()
