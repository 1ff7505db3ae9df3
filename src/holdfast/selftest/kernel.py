"""What the processes of one host promise each other through files: the store stands on each."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable

from holdfast.backends.files.disk import Disk, replace_file
from holdfast.clock import Clock
from holdfast.selftest.judged import Judged
from holdfast.selftest.processes import Child, Children, Silent

RENAMES = 300
PAGE = 4096

Examination = Callable[[str, Clock, Disk, Children], Judged]


def examine_locks(place: str, clock: Clock, disk: Disk, children: Children) -> Judged:
    """Whether a lock keeps another process out, and is gone with the process that held it."""
    path = os.path.join(place, "lock")
    for name, lock in (("flock", disk.lock), ("fcntl locks", fcntl.lockf)):

        def hold(say: Callable[[object], None], wait: Callable[[], None]) -> None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            lock(fd, fcntl.LOCK_EX)  # noqa: B023
            say("held")
            wait()

        holder = children.start(hold)
        fd = -1
        try:
            holder.hear()
            fd = os.open(path, os.O_RDWR)
            if _can_lock(lock, fd):
                return _broken("locks", f"{name}: two processes had the same lock at once")
            holder.kill()
            if not _can_lock(lock, fd):
                return _broken("locks", f"{name}: a dead process still has its lock")
        except (OSError, Silent) as exc:
            return _broken("locks", f"{name}: {exc}")
        finally:
            children.end(holder)
            if fd >= 0:
                os.close(fd)
    return Judged("locks", "ok", "flock and fcntl: exclusive, and gone with a killed process")


def _can_lock(lock: Callable[[int, int], object], fd: int) -> bool:
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def examine_renames(place: str, clock: Clock, disk: Disk, children: Children) -> Judged:
    """Whether a reader of a file that is replaced finds the old bytes or the new, always."""
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    path = os.path.join(place, "renamed")
    contents = [bytes([letter]) * PAGE for letter in b"ab"]

    def replace(say: Callable[[object], None], wait: Callable[[], None]) -> None:
        for number in range(RENAMES):
            data = contents[number % 2]
            replace_file(disk, "renamed", data, at=folder, temp="renamed.new", durable=False)
            if not number:
                say("begun")
        say("done")

    reads = 0
    child = children.start(replace)
    try:
        child.hear()
        while True:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                reads += 1
                if file.read() in contents:
                    if _is_done(child):
                        break
                    continue
            return _broken("renames", f"a reader found a file missing or torn (read {reads})")
    except (OSError, Silent) as exc:
        return _broken("renames", str(exc))
    finally:
        children.end(child)
        os.close(folder)
    return Judged("renames", "ok", f"atomic: {RENAMES} renames seen by {reads} reads")


def _is_done(child: Child) -> bool:
    try:
        return child.hear(0) == "done"
    except Silent:
        if child.status is not None:
            raise
        return False


def examine_shared_pages(place: str, clock: Clock, disk: Disk, children: Children) -> Judged:
    """Whether what one process writes to a mapped page is what another one reads."""
    path = os.path.join(place, "page")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, PAGE)

    def write(say: Callable[[object], None], wait: Callable[[], None]) -> None:
        mine = os.open(path, os.O_RDWR)
        page = mmap.mmap(mine, PAGE)
        for letter in b"abcdef":
            page[0] = letter
            say(letter)
            wait()

    child = children.start(write)
    try:
        with mmap.mmap(fd, PAGE) as page:
            for letter in b"abcdef":
                child.hear()
                if page[0] != letter or os.pread(fd, 1, 0) != bytes([letter]):
                    return _broken("shared pages", "a mapped page of two processes differs")
                child.go()
    except (OSError, ValueError, Silent) as exc:
        return _broken("shared pages", f"files cannot be shared by mapping them: {exc}")
    finally:
        children.end(child)
        os.close(fd)
    return Judged("shared pages", "ok", "a mapped page is the same to two processes")


def examine_links(place: str, clock: Clock, disk: Disk, children: Children) -> Judged:
    """Whether a file can be given a second name only if that is free: how a database is made."""
    old, new = os.path.join(place, "old"), os.path.join(place, "new")
    try:
        os.close(os.open(old, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.link(old, new)
        try:
            os.link(old, new)
        except FileExistsError:
            return Judged("hard links", "ok", "made once, refused for a name that is taken")
        return _broken("hard links", "a name that is taken was given a second time")
    except OSError as exc:
        return _broken("hard links", f"{exc.strerror}: a SQLite store cannot be made there")


def _broken(check: str, found: str) -> Judged:
    return Judged(check, "failed", found, "put stores on a local file system, such as ext4 or xfs")


EXAMINATIONS: tuple[Examination, ...] = (
    examine_locks,
    examine_renames,
    examine_shared_pages,
    examine_links,
)
