"""Where a store may lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.backends.local_path import check_private, refuse_mounted_alone, refuse_network
from holdfast.errors import NotFoundError, UsageError

_MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:41 / /srv/team\\040share rw,relatime - nfs4 host:/export rw,vers=4.2
31 22 0:42 / /home/ada/remote rw,nosuid - fuse.sshfs ada@host: rw,user_id=0
32 22 0:43 / /home/ada/photos rw,nosuid - fuse.ext2 /dev/sdb rw
33 30 254:1 / /srv/team\\040share/local rw - xfs /dev/vdb rw
34 22 0:44 / /over rw - ext4 /dev/vdc rw
35 34 0:45 / /over rw - cifs //host/share rw
a line that is not one
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/team share/state.db", "nfs4"),
        ("/srv/team share", "nfs4"),
        ("/home/ada/remote/x/y", "fuse.sshfs"),
        ("/over/state.db", "cifs"),
    ],
)
def test_a_network_file_system_is_refused_by_name(path: str, kind: str) -> None:
    """BOOT-73: locks hold on one host only."""
    with pytest.raises(UsageError, match=f"network file system \\({kind} at"):
        refuse_network(path, mountinfo=_MOUNTS)


@pytest.mark.parametrize(
    "path", ["/state.db", "/srv/team sharer/a", "/home/ada/photos/a", "/srv/team share/local/a"]
)
def test_a_local_file_system_is_accepted(path: str) -> None:
    refuse_network(path, mountinfo=_MOUNTS)


def test_a_host_without_mounts_is_not_judged() -> None:
    refuse_network("/anywhere", mountinfo="")


def test_this_host_is_asked_when_nothing_is_given(tmp_path: Path) -> None:
    refuse_network(tmp_path / "not there yet")


def test_private_means_ours_and_written_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with pytest.raises(NotFoundError):
        check_private(path)
    path.write_bytes(b"x")
    path.chmod(0o644)
    assert check_private(path).st_size == 1
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"mode {mode:04o}"):
            check_private(path)


def test_a_symlink_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="symbolic link"):
        check_private(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="neither"):
        check_private(tmp_path / "pipe")


def test_a_foreign_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match=f"belongs to user {owner}"):
        check_private(tmp_path)


_ALONE = _MOUNTS + "36 22 254:0 /srv/state.db /data/state\\040one.db rw - ext4 /dev/vda rw\n"


def test_a_file_that_is_mounted_without_what_lies_beside_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a mount point") as caught:
        refuse_mounted_alone("/data/state one.db", mountinfo=_ALONE)
    assert caught.value.hint == "mount the directory that it lies in"
    refuse_mounted_alone("/data/other.db", mountinfo=_ALONE)
    refuse_mounted_alone("/data/state one.db", mountinfo="")
    own = f"37 22 254:0 / {tmp_path} rw - ext4 /dev/vdb rw\n"
    refuse_mounted_alone(str(tmp_path), mountinfo=own)  # a directory has everything with it
