"""Workers when files come and go under them, or cannot be had at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends import liveness, local_path
from holdfast.backends.liveness import Workers
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from tests.descriptors import descriptors


def test_a_worker_whose_file_was_removed_while_it_took_it_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that looked before the lock was taken may remove the file after it was opened."""
    real, removed = os.open, []

    def racing_open(name: Any, flags: int, *rest: Any, **named: Any) -> int:
        fd = real(name, flags, *rest, **named)
        if flags & os.O_CREAT and not removed:
            removed.append(name)
            os.unlink(name, dir_fd=named["dir_fd"])
        return fd

    monkeypatch.setattr(liveness.os, "open", racing_open)
    mine, other = Workers(tmp_path / "workers"), Workers(tmp_path / "workers")
    before = descriptors(tmp_path)
    mine.hold("w1")
    monkeypatch.undo()
    assert len(removed) == 1
    assert other.is_alive("w1")
    mine.close()
    other.close()
    assert descriptors(tmp_path) == before


def test_a_worker_that_cannot_lock_its_file_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    mine = Workers(tmp_path / "workers")
    with monkeypatch.context() as patch:
        patch.setattr(liveness.fcntl, "flock", flock)
        with pytest.raises(UnavailableError, match="cannot be examined: No locks"):
            mine.hold("w1")
        with pytest.raises(UnavailableError, match="cannot be examined: No locks"):
            mine.is_alive("w1")
    assert not mine.is_alive("w1")
    mine.close()


def test_an_owner_that_another_thread_has_just_held_is_held_once(tmp_path: Path) -> None:
    mine = Workers(tmp_path / "workers")
    fd = mine._lock_file(liveness._file_name("w1"))  # pyright: ignore[reportPrivateUsage]

    class Waited:
        """A mutex that another thread had until now."""

        def __enter__(self) -> None:
            vars(mine)["_held"]["w1"] = fd

        def __exit__(self, *error: object) -> None: ...

    real, vars(mine)["_mutex"] = vars(mine)["_mutex"], Waited()
    mine.hold("w1")
    assert vars(mine)["_held"] == {"w1": fd}
    vars(mine)["_mutex"] = real
    mine.close()


def test_a_reader_tells_the_living_from_the_dead_and_leaves_no_trace(tmp_path: Path) -> None:
    mine = Workers(tmp_path / "workers")
    reader = Workers(tmp_path / "workers", read_only=True)
    assert not reader.is_alive("w1")
    mine.hold("w1")
    files = sorted(os.listdir(tmp_path / "workers"))
    assert reader.is_alive("w1")
    vars(mine)["_held"].clear()  # as if it had died: its file stays, and nobody has it locked
    for fd in list(map(int, os.listdir("/proc/self/fd"))):
        _close_if_in(fd, tmp_path / "workers", keep=vars(reader)["_directory_fd"])
    assert not reader.is_alive("w1")
    assert sorted(os.listdir(tmp_path / "workers")) == files
    reader.close()


def _close_if_in(fd: int, folder: Path, keep: int) -> None:
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return
    if found.startswith(f"{folder}/") and fd != keep:
        os.close(fd)


# --- places --------------------------------------------------------------------------------------


def test_a_host_that_shows_no_mounts_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_path, "_MOUNTINFO", tmp_path / "none")
    local_path.refuse_network(tmp_path)
    (tmp_path / "mounts").write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 host:/ rw\n")
    monkeypatch.setattr(local_path, "_MOUNTINFO", tmp_path / "mounts")
    with pytest.raises(UsageError, match="network file system"):
        local_path.refuse_network(tmp_path / "store")


def test_what_cannot_be_looked_at_is_unavailable_and_not_absent(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        local_path.check_private(tmp_path / "none")
    with pytest.raises(UnavailableError, match="cannot be examined: File name too long"):
        local_path.check_private(tmp_path / ("x" * 300))
