"""`holdfast selftest`: what it says of a sound disk, of one in memory, and of broken ones.

Each fault was planted, and is found: a sync that does nothing, a lock that keeps nobody out, a
rename that is a copy, a disk that forgets writes, a library that takes syncs away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import NotFoundError, UnavailableError, UsageError, selftest
from holdfast.backends.files.disk import Disk
from holdfast.clock import SystemClock
from holdfast.selftest import examinations, trials
from holdfast.selftest.examinations import CheckResult
from holdfast.selftest.processes import Children, Silent
from holdfast.selftest.trials import Trouble

ROOT = Path(__file__).resolve().parents[2]
EXT4 = "29 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
SHORT = 0.5


def by_name(report: selftest.SelftestReport) -> dict[str, CheckResult]:
    return {each.check: each for each in report.checks}


def examine_with(
    disk: type[Disk], tmp_path: Path, seconds: float = SHORT
) -> dict[str, CheckResult]:
    report = selftest.run(tmp_path, seconds=seconds, seed=1, make_disk=disk)
    assert os.listdir(tmp_path) == []
    return by_name(report)


# What it finds of real disks.


def test_a_disk_is_judged_and_left_as_it_was(tmp_path: Path, cli: Any) -> None:
    """Every check ran on both backends, with counts; what lay there lies there still."""
    (tmp_path / "mine").write_text("mine")
    ran = cli("selftest", "--disk", tmp_path, "--seconds", "2", "--seed", "7", "--json")
    found = ran.document
    assert found["ok"] is True
    assert found["seed"] == 7
    assert found["verdict"].startswith("sound")
    checks = {each["check"]: each for each in found["checks"]}
    for backend in ("files", "sqlite"):
        for what in ("kills", "disk errors", "full disk"):
            check = checks[f"{what} on {backend}"]
            assert check["verdict"] == "ok", check
            assert check["numbers"]["trials"] >= 2
    for what in ("locks", "renames", "shared pages", "hard links", "preload", "limits"):
        assert checks[what]["verdict"] in ("ok", "warning"), checks[what]
    assert checks["sync"]["numbers"]["samples"] >= examinations.SAMPLES_MIN
    assert any("make powerloss" in text for text in found["unproven"])
    assert os.listdir(tmp_path) == ["mine"]


def test_it_reads_as_lines(tmp_path: Path, cli: Any) -> None:
    rows = cli("selftest", "--disk", tmp_path, "--seconds", SHORT).rows
    marks = {row[0] for row in rows if len(row) == 3}
    assert marks <= {"ok", "info", "warning"}
    assert rows[-1][0] == "verdict"
    assert any(row[0] == "unproven" and "power loss" in row[1] for row in rows)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield place
    shutil.rmtree(place)


def test_a_file_system_in_memory_is_named(in_memory: Path, cli: Any) -> None:
    """It is not sound, whatever its syncs cost; where there is none, an ordinary disk is sound."""
    mount = examinations.find_mount(str(in_memory), examinations.MOUNTINFO.read_text())
    is_tmpfs = mount is not None and mount.kind == "tmpfs"
    ran = cli("selftest", "--disk", in_memory, "--seconds", SHORT, "--json", code=int(is_tmpfs))
    check = next(each for each in ran.document["checks"] if each["check"] == "file system")
    assert ("in memory" in check["found"]) == is_tmpfs
    assert os.listdir(in_memory) == []


# What the kernel says, planted.


def judge_mount(line: str, check: str) -> CheckResult:
    return {each.check: each for each in examinations.examine("/", mountinfo=line, maps="")}[check]


@pytest.mark.parametrize(
    ("line", "check", "verdict", "word"),
    [
        (EXT4, "file system", "ok", "ext4"),
        (EXT4, "mount options", "ok", "discard"),
        (EXT4.replace("ext4", "tmpfs"), "file system", "failed", "in memory"),
        (EXT4.replace("ext4", "overlay"), "file system", "warning", "container"),
        (EXT4.replace("ext4", "fuse.bindfs"), "file system", "warning", "program"),
        (EXT4.replace("ext4", "nfs4"), "network", "failed", "flock"),
        (EXT4.replace("ext4", "9p"), "network", "failed", "mapped page"),
        (EXT4.replace("ext4", "cifs"), "network", "failed", "server's memory"),
        (EXT4.replace("ext4", "fuse.sshfs"), "network", "failed", "sshfs"),
        (EXT4.replace("discard", "nobarrier"), "mount options", "failed", "drive's own cache"),
        (EXT4.replace("discard", "barrier=0"), "mount options", "failed", "barrier=0"),
        (EXT4.replace("discard", "data=writeback"), "mount options", "warning", "old bytes"),
    ],
)
def test_what_a_mount_means(line: str, check: str, verdict: str, word: str) -> None:
    found = judge_mount(line, check)
    assert found.verdict == verdict
    assert word in found.found
    assert (found.fix is not None) == (verdict != "ok")


def test_the_innermost_mount_counts() -> None:
    inner = EXT4.replace(" / / ", " / /a\\040b ").replace("ext4", "xfs")
    found = examinations.find_mount("/a b/c", EXT4 + inner + "nonsense\n")
    assert found == examinations.Mount("/a b", "xfs", "/dev/vda", ("rw", "relatime", "discard"))
    assert examinations.examine_kind(None).verdict == "info"


def test_a_library_that_takes_syncs_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert examinations.examine_preload("7f00-7f01 r-xp 0 fe:0 1 /lib/libc.so.6\n").verdict == "ok"
    loaded = examinations.examine_preload("7f00-7f01 r-xp 0 fe:0 1 /usr/lib/libeatmydata.so\n")
    assert loaded.verdict == "failed"
    assert "libeatmydata.so" in loaded.found
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libeatmydata.so")
    assert examinations.examine_preload("").verdict == "failed"


@pytest.mark.parametrize(
    ("writes", "syncs", "verdict"),
    [
        ([5] * 100, [300] * 100, "ok"),
        ([5] * 100, [2] * 100, "warning"),
        ([50] * 100, [40] * 100, "warning"),
        ([5] * 100, [14] * 100, "warning"),
        ([5] * 100, [20] * 99 + [9000], "ok"),
    ],
)
def test_a_sync_is_judged_by_what_it_costs(writes: list[int], syncs: list[int], verdict: str):
    found = examinations.judge_sync(writes, syncs)
    assert found.verdict == verdict
    assert found.numbers["sync_p99_us"] == syncs[-1]


def test_little_space_and_low_limits_are_warnings() -> None:
    assert examinations.examine_space(1 << 20).verdict == "warning"
    program = (
        "import resource\nfrom holdfast.selftest import examinations\n"
        "_, hard = resource.getrlimit(resource.{0})\n"
        "resource.setrlimit(resource.{0}, ({1}, hard))\n"
        "print(examinations.examine_limits().verdict)"
    )
    for limit, value in (("RLIMIT_FSIZE", 1 << 20), ("RLIMIT_NOFILE", 32)):
        done = subprocess.run(
            [sys.executable, "-c", program.format(limit, value)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert done.stdout == "warning\n", done.stderr


# Broken disks, planted.


class LyingDisk(Disk):
    """Says that it has synced."""

    sync = staticmethod(lambda fd: None)  # type: ignore[assignment]

    def sync_directory(self, fd: int) -> None:
        pass


class LocklessDisk(Disk):
    """Gives a lock to everyone."""

    lock = staticmethod(lambda fd, how: None)  # type: ignore[assignment]


class CopyingDisk(Disk):
    """Renames by taking the old away first, as some network file systems do."""

    def rename(self, old: str, new: str, *, at: int) -> None:
        try:
            os.unlink(new, dir_fd=at)
        except FileNotFoundError:
            super().rename(old, new, at=at)
            return
        SystemClock().sleep(0.002)
        super().rename(old, new, at=at)


class ForgetfulDisk(Disk):
    """Says that it has written, and has not, every fifth time."""

    def __init__(self) -> None:
        self.writes = 0
        self.pwrite = self._forget  # type: ignore[method-assign]

    def _forget(self, fd: int, data: bytes, offset: int) -> int:
        self.writes += 1
        return len(data) if self.writes % 5 == 0 else os.pwrite(fd, data, offset)


class FailingDisk(Disk):
    """Cannot be synced at all."""

    @staticmethod
    def sync(fd: int) -> None:  # type: ignore[override]
        raise OSError(5, "Input/output error")


def test_a_sync_that_does_nothing_is_suspicious(tmp_path: Path) -> None:
    found = examine_with(LyingDisk, tmp_path)["sync"]
    assert found.verdict == "warning"
    assert "too quick" in found.found
    assert found.fix is not None


def test_a_lock_that_keeps_nobody_out_is_found(tmp_path: Path) -> None:
    found = examine_with(LocklessDisk, tmp_path)["locks"]
    assert found.verdict == "failed"
    assert "two processes" in found.found


def test_a_rename_that_is_not_atomic_is_found(tmp_path: Path) -> None:
    found = examine_with(CopyingDisk, tmp_path)["renames"]
    assert found.verdict == "failed"
    assert "missing or torn" in found.found


def test_a_disk_that_cannot_sync_is_found(tmp_path: Path) -> None:
    assert examine_with(FailingDisk, tmp_path)["sync"].verdict == "failed"


def test_lost_writes_make_it_fail(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch):
    """A disk that forgets what it acknowledged ends with exit code 1, and says what was lost."""
    real = selftest.run
    monkeypatch.setattr(selftest, "run", lambda *a, **k: real(*a, **k, make_disk=ForgetfulDisk))
    ran = cli("selftest", "--disk", tmp_path, "--seconds", SHORT, "--seed", "1", code=1)
    failed = [row for row in ran.rows if row[0] == "FAILED"]
    assert any(row[1] == "kills on files" for row in failed), ran.out
    assert ran.rows[-1][1].startswith("not sound")
    assert any(row[0] == "fix kills on files" for row in ran.rows)
    assert os.listdir(tmp_path) == []


def test_a_store_on_a_network_is_not_even_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(EXT4.replace("ext4", "nfs4"))
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr("holdfast.backends.local_path._MOUNTINFO", mounts)
    report = selftest.run(disk, seconds=SHORT, seed=1)
    assert report.verdict == "not sound"
    assert not any("kills" in each.check for each in report.checks)


@pytest.mark.parametrize("backend", trials.BACKENDS)
def test_what_a_judge_says(tmp_path: Path, backend: str) -> None:
    with Children() as children:
        setup = trials.TrialSetup(str(tmp_path), SystemClock(), 1, Disk, children, lambda _: None)
        url = setup.url(backend, "judged")

        def write() -> bool:
            with trials.open_store(url) as store:
                for number in range(3):
                    store.team(trials.SCOPE).append(trials.LOG, trials.item(number))
            return True

        children.ask(write)
        assert trials.judge(url, 3, 0) == ("", 3)
        assert trials.judge(url, 2, 1) == ("", 3)
        assert "4 writes were acknowledged, 3 are there" in trials.judge(url, 4, 0)[0]
        assert "of which 2 were acknowledged" in trials.judge(url, 2, 0)[0]
        with trials.open_store(url) as store:
            store.team(trials.SCOPE).append(trials.LOG, "somebody else's")
        assert "not what was written" in trials.judge(url, 3, 1)[0]
        setup.remove(url)
        assert os.listdir(tmp_path) == []


def test_trouble_comes_at_the_call_it_was_planned_for() -> None:
    trouble = Trouble("EIO", 2)
    assert trouble.run(lambda: 1) == 1
    with pytest.raises(OSError, match="Input/output"):
        trouble.run(lambda: 1)
    assert trouble.run(lambda: 1) == 1
    quota = Trouble("quota", 10)
    assert quota.write(lambda data, _: len(data), bytes(8), 0, lambda: 8) == 8
    with pytest.raises(OSError, match="No space"):
        quota.write(lambda data, _: len(data), bytes(8), 8, lambda: 8)


def test_a_session_that_hangs_without_an_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other checks go on."""
    session = trials._session

    def hanging(setup: Any, backend: str, url: str, kind: str, at: int) -> Any:
        if kind == "none" and backend == "files":
            raise Silent("a process said nothing for 60 s")
        return session(setup, backend, url, kind, at)  # type: ignore[arg-type]

    monkeypatch.setattr(trials, "_session", hanging)
    found = {one.check: one for one in selftest.run(tmp_path, seconds=SHORT, seed=1).checks}
    assert found["disk errors on files"].verdict == "failed"
    assert "said nothing" in found["disk errors on files"].found
    assert found["disk errors on sqlite"].verdict == "ok"
    assert found["full disk on files"].verdict == "ok"


def test_a_child_that_breaks_or_hangs_is_told() -> None:
    def break_down(say: Callable[[Any], None], wait: Callable[[], None]) -> None:
        raise ValueError("planted")

    with Children() as children:
        with pytest.raises(Silent, match="planted"):
            children.start(break_down).hear()
        with pytest.raises(Silent, match="said nothing"):
            children.start(lambda say, wait: wait()).hear(0.01)
        with pytest.raises(Silent, match="ended with status 0"):
            children.start(lambda say, wait: None).hear()


# Where it cannot run.


def test_a_place_that_is_none_is_refused(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "file").write_text("")
    assert "no directory" in cli("selftest", "--disk", tmp_path / "none", code=3).err
    assert "not a directory" in cli("selftest", "--disk", tmp_path / "file", code=2).err
    assert "disk" in cli("selftest", code=2).err
    for seconds in ("0", "-1", "nan", "1e9"):
        assert cli("selftest", "--disk", tmp_path, f"--seconds={seconds}", code=2).err
    with pytest.raises(NotFoundError):
        selftest.run(tmp_path / "none")
    with pytest.raises(UsageError):
        selftest.run(tmp_path, seconds=True)
    assert os.listdir(tmp_path) == ["file"]


def test_a_place_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> str:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", refuse)
        with pytest.raises(UnavailableError, match="nothing can be written"):
            selftest.run(tmp_path)
    monkeypatch.setattr(selftest, "FREE_BYTES_MIN", 1 << 62)
    with pytest.raises(UnavailableError, match="free"):
        selftest.run(tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group: no child lives on, and the scratch directory is gone."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "selftest", "--disk", str(tmp_path), "--seconds", "600"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ok\thard links"):
            break
    for _ in range(5):
        # Python drops an interrupt that comes within a hook of `fork`, of which `logging` has one:
        # then a person types Ctrl-C again.
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        raise AssertionError("it goes on after five interrupts")
    assert process.returncode == 130, err
    assert os.listdir(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


_MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from holdfast.cli import main
sys.exit(main())
"""


def test_no_child_outlives_a_killed_parent() -> None:
    """It would write for ever into a pipe that only it reads, and hold what it has open."""
    parent = subprocess.Popen([sys.executable, "-c", _TALKS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    try:
        parent.communicate(timeout=60)  # the child has the pipe, too: its end is that of both
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


_TALKS = """
import time
from holdfast.selftest.processes import Children

def talk(say, wait):
    while True:
        say("word")

with Children() as children:
    print(children.start(talk).pid, flush=True)
    time.sleep(600)
"""


def test_it_needs_nothing_but_the_package() -> None:
    """Neither pytest nor Hypothesis is imported by what a user runs."""
    program = "import sys, holdfast.selftest; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert not {"pytest", "hypothesis", "tests"} & set(done.stdout.split())
