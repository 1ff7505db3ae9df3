"""Where a store may be: on a local file system, private to the user who runs the process.

What the kernel promises of locks, mapped pages and syncs holds only on a local file system. Over a
network two hosts could each believe that they hold the lock, and both would write.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from holdfast.errors import NotFoundError, UnavailableError, UsageError

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_REMOTE = frozenset(
    (
        *("9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2"),
        *("smb2", "smb3", "smbfs", "vboxsf"),
    )
)
# A FUSE mount names its program in its subtype; these reach over a network.
_REMOTE_FUSE = frozenset(
    (
        *("blobfuse", "ceph", "cephfs", "curlftpfs", "davfs2", "gcsfuse", "glusterfs", "goofys"),
        *("juicefs", "mount-s3", "rclone", "s3fs", "seaweedfs", "smbnetfs", "sshfs"),
    )
)
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def refuse_network(path: str | os.PathLike[str], *, mountinfo: str | None = None) -> None:
    """Raises UsageError if `path`, which need not exist yet, lies on a network file system.

    `mountinfo` is the text of /proc/self/mountinfo; a host without that file is not judged.
    """
    if mountinfo is None:
        mountinfo = read_mountinfo()
    real = os.path.realpath(path)
    kind, mount_point = _file_system(real, mountinfo)
    name, _, subtype = kind.partition(".")
    if name in _REMOTE or (name.startswith("fuse") and subtype in _REMOTE_FUSE):
        raise UsageError(
            f'"{os.fspath(path)}" lies on a network file system ({kind} at "{mount_point}"): '
            "expected a local one, because its locks and syncs do not hold between hosts",
            hint="choose a local directory, or a redis:// or postgresql:// store for many hosts",
        )


def read_mountinfo() -> str:
    """Returns the host's table of mounts, "" if it cannot be read."""
    try:
        return _MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:
        return ""


def refuse_mounted_alone(path: str, *, mountinfo: str) -> None:
    """Raises UsageError if the file itself is a mount point, as `-v state.db:/x/state.db` makes it.

    A container then sees other files beside it than the host does. Two containers would each have
    their own write-ahead log and locks for one database.
    """
    real = os.path.realpath(path)
    if _file_system(real, mountinfo)[1] == real and not os.path.isdir(real):
        raise UsageError(
            f'"{path}" is a mount point: the file is mounted without the files beside it, which '
            "belong to it",
            hint="mount the directory that it lies in",
        )


def _file_system(real: str, mountinfo: str) -> tuple[str, str]:
    """Returns type and mount point of the mount of `real`: the longest, of equals the last."""
    kind, longest = "", ""
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields = head.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount_point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
        below = mount_point.rstrip("/") + "/"
        if (real == mount_point or real.startswith(below)) and len(mount_point) >= len(longest):
            kind, longest = tail.split(" ", 1)[0], mount_point
    return kind, longest


def check_private(path: str | os.PathLike[str]) -> os.stat_result:
    """Returns the lstat result of a file or directory; raises unless only this user can write it.

    With a symlink, another owner or a mode that lets others write, somebody else could change the
    store. Letting others read it is the owner's choice.
    """
    name = os.fspath(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError as exc:
        raise NotFoundError(f'"{name}" does not exist') from exc
    except OSError as exc:
        raise UnavailableError(f'"{name}" cannot be examined: {exc.strerror}') from exc
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(
            f'"{name}" is a symbolic link: a store is never reached through one',
            hint="name the place that it points to",
        )
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise UsageError(
            f'"{name}" is neither a file nor a directory', hint="name a place on a disk"
        )
    if found.st_uid != os.geteuid():
        raise UsageError(
            f'"{name}" belongs to user {found.st_uid}: expected {os.geteuid()}, who runs this',
            hint="run as its owner, or change the owner",
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise UsageError(
            f'"{name}" can be written by others (mode {stat.S_IMODE(found.st_mode):04o}): '
            "anyone of them could change what the store says",
            hint=f"chmod go-w {name}",
        )
    return found
