"""Where test servers live, as whom they run, and who ends them when a test run dies.

Servers run as an ordinary user, also when the tests are root: PostgreSQL refuses root, and a test
must not prove what only root can do. Their directories lie in one private directory of this
process, in a temporary directory whose parents that user may pass. No parent's permissions are
ever changed: a place that cannot be passed is not used, and programs that cannot be reached are
copied.

One keeper process per test process reads a pipe that only the test process holds open, and its
children. Through it, it is told of each server when it starts: the number of its process, and when
that began, because numbers come back. However the test process ends, by SIGKILL too, the pipe ends
then, and the keeper kills every server that it was told of, with the processes that the server has
started, and removes the directory. It needs no file for that: a server whose directory was deleted
under it ends like any other. It is no child in the terminal's session, so an interrupt there
leaves it alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

USERS = ("postgres", "redis", "nobody")
_started: list[subprocess.Popen[bytes]] = []


@cache
def user() -> str | None:
    """Returns the user that servers run as, None for the one who runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise AssertionError(f"expected one of the users {', '.join(USERS)}, found none of them")


def ground() -> Path:
    """Returns this process's directory of servers, which its keeper removes."""
    return _kept()[0]


@cache
def _kept() -> tuple[Path, subprocess.Popen[bytes]]:
    place = Path(tempfile.mkdtemp(prefix="hf-", dir=_passable_directory()))
    place.chmod(0o711)
    keeper = subprocess.Popen(
        [sys.executable, "-S", __file__, str(place)], stdin=subprocess.PIPE, start_new_session=True
    )
    atexit.register(_end, keeper, os.getpid())
    return place, keeper


def new_directory(name: str) -> Path:
    """Returns a new directory for one server, owned by the user that it runs as."""
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=ground()))
    give(place)
    return place


def give(path: Path) -> None:
    """Makes the server's user the owner of one file or directory."""
    name = user()
    if name is not None:
        entry = pwd.getpwnam(name)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def reachable(path: Path) -> bool:
    """Returns whether the server's user may read `path` and pass every directory above it."""
    if user() is None:
        return os.access(path, os.R_OK)
    path = path.resolve()
    passable = all(parent.stat().st_mode & 0o001 for parent in path.parents)
    return passable and path.stat().st_mode & 0o004 != 0


def run(*command: str | Path, **environment: str) -> str:
    """Runs a program as the server's user and returns what it said."""
    done = subprocess.run(
        [str(word) for word in command],
        user=user(),
        group=_group(),
        extra_groups=[] if user() else None,
        cwd=ground(),
        env={"PATH": os.defpath, "LC_ALL": "C", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def start(directory: Path, *command: str | Path) -> subprocess.Popen[bytes]:
    """Starts a server as its user; the keeper ends it if nobody else does."""
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            user=user(),
            group=_group(),
            extra_groups=[] if user() else None,
            cwd=directory,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _started.append(process)
    _, keeper = _kept()
    assert keeper.stdin is not None
    # One write of a few bytes: those of several processes do not mix.
    os.write(keeper.stdin.fileno(), f"{process.pid} {_began(process.pid)}\n".encode())
    return process


def free_port() -> int:
    """Returns a port of the loopback address that nobody listened at a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(parents: list[int]) -> list[int]:
    """Returns the processes that these have started and that run now."""
    asked = ["ps", "-A", "-o", "pid=,ppid="]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, parent in pairs if int(parent) in parents]


def _group() -> int | None:
    name = user()
    return None if name is None else pwd.getpwnam(name).pw_gid


def _passable_directory() -> str:
    # Short, too: the path of a Unix socket has at most 107 bytes.
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        path = Path(name).resolve()
        passable = all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))
        if (passable or user() is None) and os.access(path, os.W_OK) and len(str(path)) < 50:
            return str(path)
    raise AssertionError("expected a temporary directory that every user may pass, found none")


def _end(keeper: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked and ended like its parent
        keeper.communicate(timeout=60)
        for process in _started:  # killed by the keeper, waited for by whom they belong to
            process.wait(60)


def _keep(place: Path) -> None:
    """The keeper's whole life."""
    told = dict(line.rstrip("\n").split(" ", 1) for line in sys.stdin)
    alive = [int(pid) for pid, began in told.items() if began and _began(int(pid)) == began]
    # Stopped first: nothing that is about to be killed starts another process.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in [*alive, *children(alive)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    shutil.rmtree(place, ignore_errors=True)


def _began(pid: int) -> str:
    """Returns when a process began, by the kernel's count; "" if there is none."""
    try:
        # After the name, which may hold anything: state, ppid, …, the 22nd of all.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except ProcessLookupError:
        return ""  # it ended while we looked
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
