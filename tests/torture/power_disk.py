"""A file system that loses its power: made in an image, mounted by a loop device, shut down.

The ioctl is the file systems' own for this purpose (ext4 and XFS share its number). It stops all
writing at once: what was not on the device is gone, as in a power cut. With `flush` the journal in
memory is written first, without it that is lost too. The next mount replays the journal.

Mounts live in a namespace of this process and its children: whatever becomes of them, the kernel
takes the mounts and loop devices away when the last one has ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-K"],
}
SIZES = {"ext4": 96 << 20, "xfs": 300 << 20}
"""XFS refuses to be smaller."""
MEMORY = Path("/dev/shm")

_GOING_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
_LOG_FLUSH, _NO_LOG_FLUSH = 1, 2
_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_CAP_SYS_ADMIN = 21
_PATHS = "/usr/sbin:/sbin:"


def missing(kind: str) -> str:
    """Returns why power cannot be lost on that file system here; "" if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    if not _is_admin() or not Path("/dev/loop-control").exists():
        return "this root may not mount loop devices"
    if shutil.which(MKFS[kind][0], path=_PATHS + os.environ.get("PATH", "")) is None:
        return f"{MKFS[kind][0]} is not installed"
    return ""


def _is_admin() -> bool:
    status = Path("/proc/self/status").read_text().splitlines()
    [effective] = [line.split()[1] for line in status if line.startswith("CapEff:")]
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


class Volume:
    """A file system whose power can be cut; a context that takes everything away."""

    def __init__(self, kind: str, place: Path, *, size: int = 0) -> None:
        self.mount = place / "mount"
        self.mount.mkdir()
        self._kind = kind
        self._size = size or SIZES[kind]
        # Whether the image itself is on a disk changes nothing: the mounted file system is what
        # loses its unwritten pages.
        ground = MEMORY if os.access(MEMORY, os.W_OK) else place
        self._image = ground / f"holdfast-power-{os.getpid()}-{kind}.image"
        self._is_mounted = False

    def __enter__(self) -> Volume:
        enter_namespace()
        with open(self._image, "wb") as image:
            image.truncate(self._size)
        _run(*MKFS[self._kind], str(self._image))
        self._mount()
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_mounted:
            self._unmount()
        self._image.unlink()

    def cut(self, *, flush: bool) -> None:
        """Cuts the power, while anybody may be writing."""
        fd = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flags = struct.pack("I", _LOG_FLUSH if flush else _NO_LOG_FLUSH)
            fcntl.ioctl(fd, _GOING_DOWN, flags)
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Mounts it again, which replays the journal; nobody has anything open there."""
        self._unmount()
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-t", self._kind, "-o", "loop", str(self._image), str(self.mount))
        self._is_mounted = True

    def _unmount(self) -> None:
        _run("umount", str(self.mount))
        self._is_mounted = False


@cache
def enter_namespace() -> None:
    """Gives this process mounts of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC_PRIVATE, None):
        problem = ctypes.get_errno()
        raise OSError(problem, f"a namespace for mounts: {os.strerror(problem)}")


def _run(*command: str) -> None:
    environment = {**os.environ, "PATH": _PATHS + os.environ.get("PATH", "")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
