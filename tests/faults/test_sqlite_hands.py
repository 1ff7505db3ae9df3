"""Hands laid on the files of a SQLite store: what was acknowledged is there, or somebody says so.

Every test works with real processes and real kills. What an unguarded handle does in each of them
is in the track record: it goes on acknowledging what nobody will ever read.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast import UsageError
from holdfast.errors import LostCommitsError
from tests.faults.hands_child import Hands
from tests.faults.mounts import may_mount

PATIENCE_S = 120.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def _items(path: Path, name: str = "a") -> list[str]:
    with holdfast.open(f"sqlite:{path}", read_only=True) as store:
        return list(store.team(name).state.get("log", []))


def _rescued(path: Path) -> list[Path]:
    return sorted(path.parent.glob("rescued/*/state.db"))


def _problems(path: Path) -> str:
    with holdfast.open(f"sqlite:{path}", read_only=True) as store:
        report = store.check()
    return " ".join(finding.problem for finding in report.findings if not finding.harmless)


def _remove(*suffixes: str) -> Callable[[Path], None]:
    def remove(path: Path) -> None:
        for suffix in suffixes:
            os.unlink(f"{path}{suffix}")

    return remove


def _replace(suffix: str) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        copy = f"{path}{suffix}.copy"
        shutil.copy(f"{path}{suffix}", copy)
        os.replace(copy, f"{path}{suffix}")

    return replace


def _move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def _truncate_wal(path: Path) -> None:
    with open(f"{path}-wal", "r+b") as wal:
        wal.truncate(40_000)


HANDS = {
    "rm -wal": _remove("-wal"),
    "rm -shm": _remove("-shm"),
    "rm -wal -shm": _remove("-wal", "-shm"),
    "rm": _remove(""),
    "rm all": _remove("", "-wal", "-shm"),
    "replace": _replace(""),
    "replace -wal": _replace("-wal"),
    "replace -shm": _replace("-shm"),
    "move": _move,
}


@pytest.mark.parametrize("before", [20, 300], ids=["few", "many"])
@pytest.mark.parametrize("hand", HANDS)
def test_nothing_is_acknowledged_after_a_file_was_taken(path: Path, hand: str, before: int) -> None:
    """RALPH-39: the next write is refused, and all that was acknowledged is in the rescued copy."""
    with Hands(f"sqlite:{path}") as worker:
        worker.must(f"write {before}")
        HANDS[hand](path)
        said = worker.ask("write 200")
        assert said["class"] == "FilesTakenError", said
        assert said["told"] == []
        # What befell the database's own name is found before the commit if the kernel tells of it.
        is_late = hand in ("rm", "replace", "move") and not said["outcome_known"]
        assert said["outcome_known"] or is_late
        assert "rescued" in said["text"]
        again = worker.ask("write 1")
        assert (again["class"], again["told"]) == ("FilesTakenError", [])
        [copy] = _rescued(path)
        assert worker.ask("close") == {}
    assert _items(copy)[: len(worker.told)] == worker.told
    assert len(_items(copy)) == len(worker.told) + is_late
    assert _problems(copy) == ""
    assert "What happened" in copy.with_name("report.txt").read_text()


@pytest.mark.parametrize("before", [20, 300], ids=["few", "many"])
def test_a_wal_that_was_cut_is_noticed_at_once_and_after_a_kill(path: Path, before: int) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must(f"write {before}")
        _truncate_wal(path)
        said = worker.ask("write 200")
        assert (said["class"], said["told"]) == ("FilesTakenError", []), said
    with pytest.raises(LostCommitsError):
        holdfast.open(f"sqlite:{path}")


@pytest.mark.parametrize("before", [20, 300], ids=["few", "many"])
def test_another_sqlite_library_in_the_same_process_is_noticed(path: Path, before: int) -> None:
    """Its close drops every POSIX lock of the process on the files, and removes the WAL."""
    with Hands(f"sqlite:{path}") as worker:
        worker.must(f"write {before}")
        worker.must("foreign")
        said = worker.ask("write 100")
        assert (said["class"], said["told"]) == ("FilesTakenError", [])
        assert "SQLite" in said["text"]
    assert _items(path) == worker.told
    assert _problems(path) == ""


def test_another_sqlite_library_takes_nothing_from_a_second_process(path: Path) -> None:
    with Hands(f"sqlite:{path}") as first, Hands(f"sqlite:{path}", "b") as second:
        first.must("write 250")
        second.must("write 250")
        first.must("foreign")
        said = first.ask("write 100")
        assert (said["class"], said["told"]) == ("FilesTakenError", [])
        second.must("write 50")
        first.ask("close")
        second.must("write 50")
        assert second.ask("close") == {}
    assert _items(path) == first.told
    assert _items(path, "b") == second.told
    assert _problems(path) == ""


@pytest.mark.parametrize("suffix", ["", "-shm"])
def test_a_file_closed_in_the_same_process_has_dropped_its_locks(path: Path, suffix: str) -> None:
    """A copy made by the same process is enough: closing a descriptor drops every lock."""
    with Hands(f"sqlite:{path}") as first, Hands(f"sqlite:{path}", "b") as second:
        first.must("write 250")
        second.must("write 10")
        first.must(f"touch {path}{suffix}")
        said = first.ask("write 100")
        assert (said["class"], said["told"]) == ("FilesTakenError", [])
        assert "locks" in said["text"]
        second.must("write 10")
    assert (_items(path), _items(path, "b")) == (first.told, second.told)


def test_a_second_process_that_opens_after_the_shared_memory_was_removed(path: Path) -> None:
    with Hands(f"sqlite:{path}") as first:
        first.must("write 100")
        os.unlink(f"{path}-shm")
        with Hands(f"sqlite:{path}", "b") as second:
            said = first.ask("write 200")
            assert (said["class"], said["told"]) == ("FilesTakenError", [])
            second.must("write 200")
            first.ask("close")
            second.must("write 200")
            assert second.ask("close") == {}
    assert (_items(path), _items(path, "b")) == (first.told, second.told)
    assert _problems(path) == ""


def test_a_second_process_that_opens_after_the_wal_was_removed(path: Path) -> None:
    """The shared memory still tells of frames that the new WAL does not have."""
    with Hands(f"sqlite:{path}") as first:
        first.must("write 100")
        first.signal(signal.SIGSTOP)  # else it looks by itself within a second
        os.unlink(f"{path}-wal")
        second = Hands(f"sqlite:{path}", "b")
        said = second.ask("open")
        assert said["class"] == "UnavailableError"
        assert "removed or cut" in said["text"]
        second.kill()
        first.signal(signal.SIGCONT)
        said = first.ask("write 200")
        assert (said["class"], said["told"]) == ("FilesTakenError", [])
        assert "saved in" in said["text"]
    [copy] = _rescued(path)
    assert _items(copy) == first.told


def test_an_idle_process_finds_out_by_itself(path: Path) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 30")
        os.unlink(f"{path}-wal")
        ends = time.monotonic() + PATIENCE_S
        while not _rescued(path):
            assert time.monotonic() < ends
            time.sleep(0.05)
    assert _items(_rescued(path)[0]) == worker.told


def test_a_loss_that_is_found_by_close_is_told(path: Path) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 30")
        os.unlink(f"{path}-wal")
        said = worker.ask("close")
        # Unless the look of an idle process was first, which then has saved everything already.
        assert said == {} or said["class"] == "FilesTakenError"
        [copy] = _rescued(path)
    assert _items(copy) == worker.told


def test_a_store_that_was_moved_whole_is_whole_in_its_new_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    with Hands(f"sqlite:{old / 'state.db'}") as worker:
        worker.must("write 30")
        old.rename(new)
        said = worker.ask("write 30")
        assert (said["class"], said["told"]) == ("FilesTakenError", [])
        worker.ask("close")
    assert _items(new / "state.db")[:30] == worker.told
    assert not (tmp_path / "old").exists()
    assert _problems(new / "state.db") == ""


# --- the witness ----------------------------------------------------------------------------------


def _older_copy(path: Path, worker: Hands) -> None:
    shutil.copy(f"{path}.old", path)
    os.unlink(f"{path}-wal")


def _wal_gone(path: Path, worker: Hands) -> None:
    os.unlink(f"{path}-wal")


def _wal_cut(path: Path, worker: Hands) -> None:
    os.truncate(f"{path}-wal", 60_000)


@pytest.mark.parametrize("hand", [_wal_gone, _wal_cut, _older_copy])
def test_after_a_kill_lost_commits_are_told(
    path: Path, hand: Callable[[Path, Hands], None]
) -> None:
    with holdfast.open(f"sqlite:{path}") as store:
        store.team("a").append("log", "first")
    shutil.copy(path, f"{path}.old")
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 20")
    hand(path, worker)
    with pytest.raises(LostCommitsError, match="21") as caught:
        holdfast.open(f"sqlite:{path}")
    assert "state.db-witness" in str(caught.value)
    assert "acknowledged" in _problems(path)
    # Whoever restored an older copy on purpose says so, and goes on.
    os.unlink(f"{path}-witness")
    with holdfast.open(f"sqlite:{path}") as store:
        store.team("a").append("log", "after")
        assert store.check(read_all=True).ok


def test_check_prints_what_is_lost(path: Path) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 20")
    os.unlink(f"{path}-wal")
    done = subprocess.run(
        ["holdfast", "--store", f"sqlite:{path}", "check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": os.pathsep.join([_scripts(), os.environ["PATH"]])},
    )
    assert done.returncode == 9, done
    assert "NOT OK" in done.stdout
    assert "acknowledged" in done.stdout
    assert "state.db-witness" in done.stdout


def _scripts() -> str:
    import sys

    return str(Path(sys.executable).parent)


def test_two_processes_that_are_killed_leave_no_false_alarm(path: Path) -> None:
    with Hands(f"sqlite:{path}") as first, Hands(f"sqlite:{path}", "b") as second:
        for _ in range(5):
            first.must("write 7")
            second.must("write 5")
    with holdfast.open(f"sqlite:{path}") as store:
        assert store.check(read_all=True).ok
    assert (_items(path), _items(path, "b")) == (first.told, second.told)


def test_a_live_copy_is_no_false_alarm(path: Path, tmp_path: Path) -> None:
    """A copied witness says where it was written: it does not speak for the copy."""
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 20")
        copy = tmp_path / "copy.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        worker.must("write 5")
        shutil.copy(f"{path}-witness", f"{copy}-witness")
    with holdfast.open(f"sqlite:{copy}") as store:
        assert list(store.team("a").state["log"]) == worker.told[:20]
        store.team("a").append("log", "goes on")
    assert _problems(copy) == ""


def test_a_store_moved_with_all_its_files_keeps_its_witness(path: Path, tmp_path: Path) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 20")
    (tmp_path / "new").mkdir()
    for suffix in ("", "-wal", "-shm", "-witness"):
        os.rename(f"{path}{suffix}", tmp_path / "new" / f"state.db{suffix}")
    moved = tmp_path / "new" / "state.db"
    os.unlink(f"{moved}-wal")
    with pytest.raises(LostCommitsError):
        holdfast.open(f"sqlite:{moved}")


# --- creating, and mounts -------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-witness"])
def test_a_store_is_not_created_beside_left_over_files(path: Path, suffix: str) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 20")
    if suffix == "-journal":
        shutil.copy(path, f"{path}-journal")
    os.unlink(path)
    for other in {"-wal", "-shm", "-journal", "-witness"} - {suffix}:
        Path(f"{path}{other}").unlink(missing_ok=True)
    before = Path(f"{path}{suffix}").read_bytes()
    with pytest.raises(UsageError, match=f"state.db{suffix}") as caught:
        holdfast.open(f"sqlite:{path}")
    assert caught.value.hint is not None
    assert "delete" in caught.value.hint
    assert not path.exists()
    assert Path(f"{path}{suffix}").read_bytes() == before
    os.unlink(f"{path}{suffix}")
    with holdfast.open(f"sqlite:{path}") as store:
        assert list(store.scopes()) == []


@pytest.mark.parametrize("kind", ["file"] if may_mount() else [])
def test_a_database_that_is_mounted_alone_is_refused(path: Path, tmp_path: Path, kind: str) -> None:
    """As a container does it: `-v state.db:/data/state.db`; each would have a WAL of its own."""
    with holdfast.open(f"sqlite:{path}") as store:
        store.team("a").append("log", "first")
    alone = tmp_path / "container" / "state.db"
    alone.parent.mkdir()
    alone.touch(0o600)
    subprocess.run(["mount", "--bind", str(path), str(alone)], check=True, capture_output=True)
    try:
        for read_only in (False, True):
            with pytest.raises(UsageError, match="mount") as caught:
                holdfast.open(f"sqlite:{alone}", read_only=read_only)
            assert "directory" in str(caught.value.hint)
    finally:
        subprocess.run(["umount", "--lazy", str(alone)], check=True, capture_output=True)
    assert _items(path) == ["first"]


def test_a_foreign_library_in_another_process_does_no_harm(path: Path) -> None:
    with Hands(f"sqlite:{path}") as worker:
        worker.must("write 250")
        for _ in range(3):
            with closing(sqlite3.connect(path)) as database:
                assert database.execute("SELECT count(*) FROM events").fetchone()[0] > 250
            worker.must("write 10")
        assert worker.ask("close") == {}
    assert _items(path) == worker.told
