"""The ground on which hostile cases run: a canary tree around the store, time and memory limits.

Whatever a case does, it may change the store and nothing else: every other file below the place is
compared before and after, and the file that hostile code would make must never appear.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import holdfast
from holdfast import HoldfastError
from tests.torture.programme import Broken

CASE_S = 60.0
MEMORY_BYTES = 3 << 29
BACKENDS = ("files", "sqlite")


class TooLong(BaseException):
    """A case took longer than any case may."""


class Ground:
    """A place with a store in the middle of things that are nobody's business."""

    def __init__(self, place: Path, backend: str) -> None:
        self.place = place
        self.backend = backend
        self.mark = place / "code-was-run"
        self.home = place / "a" / "b"
        self.home.mkdir(parents=True)
        for folder in (place, place / "a", self.home):
            (folder / "canary").write_text("untouched")
            (folder / "passwd").write_text("untouched")
            (folder / "etc").mkdir()
            (folder / "etc" / "passwd").write_text("untouched")
        self.path = self.home / ("store" if backend == "files" else "store.db")
        self.url = str(self.path) if backend == "files" else f"sqlite:{self.path}"
        self._before = self._around()

    def remember(self) -> None:
        """Takes what is there now for how it must stay."""
        self._before = self._around()

    def remove(self) -> None:
        """Takes everything away, whatever its modes are."""
        for root, folders, _ in os.walk(self.place):
            for name in folders:
                path = os.path.join(root, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(self.place, ignore_errors=True)

    def _around(self) -> dict[str, Any]:
        """Returns everything but the store, with its content."""
        found: dict[str, Any] = {}
        for root, folders, files in os.walk(self.place):
            folders[:] = [name for name in folders if not self._is_ours(os.path.join(root, name))]
            for name in (*folders, *files):
                path = os.path.join(root, name)
                if self._is_ours(path):
                    continue
                what = os.lstat(path)
                text = Path(path).read_bytes() if name in ("canary", "passwd") else b""
                found[os.path.relpath(path, self.place)] = (what.st_mode, text)
        return found

    def _is_ours(self, path: str) -> bool:
        own = str(self.path)
        beside = ("", "-wal", "-shm", "-journal", "-witness", ".workers", ".query")
        suffixes = ("",) if self.backend == "files" else beside
        return any(path == own + suffix for suffix in suffixes)

    def check(self, what: str) -> None:
        """Raises Broken if anything around the store changed, or code was run."""
        if self.mark.exists():
            raise Broken(f"{what}: code from data was run")
        after = self._around()
        if after != self._before:
            new = sorted(after.keys() - self._before.keys())
            gone = sorted(self._before.keys() - after.keys())
            changed = [key for key in after.keys() & self._before.keys()]
            changed = [key for key in changed if after[key] != self._before[key]]
            raise Broken(
                f"{what}: something outside the store changed: new {new}, gone {gone}, "
                f"changed {changed}"
            )


@contextlib.contextmanager
def timed(what: str, seconds: float = CASE_S) -> Generator[None]:
    """Ends a case that takes too long, also one that waits in the kernel."""

    def ring(*_: object) -> None:
        raise TooLong

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TooLong as exc:
        raise Broken(f"{what}: not done after {seconds} s\n{traceback.format_exc()}") from exc
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def only_ours(
    what: str, call: Callable[[], Any], allowed: tuple[type[BaseException], ...] = ()
) -> HoldfastError | None:
    """Runs a call; returns our error if it raised one, and raises Broken for any other."""
    with timed(what):
        try:
            call()
        except HoldfastError as error:
            if not str(error) or "BUG" in str(error):
                raise Broken(f"{what}: {error}") from error
            return error
        except allowed:
            return None
        except Broken:
            raise
        except Exception as error:
            name = type(error).__name__
            raise Broken(f"{what}: {name} instead of one of our errors: {error}") from error
    return None


def apart(what: str, work: Callable[[Callable[[str], None]], Any]) -> None:
    """Does work in a child with little memory; it calls what it is given before each case.

    A child that is ended by the kernel or by a signal, that runs out of memory, or that takes too
    long with one case is a broken promise.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _be_the_child(what, work, writer)
    os.close(writer)
    said = _hear(reader, pid)
    _, status = os.waitpid(pid, 0)
    *cases, last = said.split(b"\n")
    if last != b"done":
        case = cases[-1].decode() if cases else what
        code = os.waitstatus_to_exitcode(status)
        raise Broken(json.loads(last) if last else f"{case}: the process ended with {code}")


def _be_the_child(what: str, work: Callable[[Callable[[str], None]], Any], pipe: int) -> None:
    status = 1
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    case = what

    def begin(name: str) -> None:
        nonlocal case
        case = name
        os.write(pipe, ascii(name).encode() + b"\n")

    try:
        work(begin)
        os.write(pipe, b"done")
        status = 0
    except Broken as exc:
        os.write(pipe, json.dumps(str(exc)).encode())
    except BaseException:
        os.write(pipe, json.dumps(f"{case}: {traceback.format_exc()}").encode())
    finally:
        os._exit(status)


def _hear(reader: int, pid: int) -> bytes:
    """Returns what a child said; one that says nothing for too long is ended.

    Only the parent can do that: a library may begin a call again that a signal interrupted.
    """
    said = b""
    with open(reader, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], 2 * CASE_S)[0]:
                os.kill(pid, signal.SIGKILL)
            data = pipe.read(1 << 16)
            if not data:
                return said
            said += data


def shown(value: object) -> str:
    """Returns what a case is called in a message: short, and without what could drive a screen."""
    try:
        text = ascii(value)
    except Exception as exc:
        text = f"<{type(value).__name__} that raises {type(exc).__name__}>"
    return text if len(text) < 120 else f"{text[:100]}… ({len(text)} characters)"


def check_store(what: str, url: str) -> None:
    """Raises Broken unless the store opens and every byte of it verifies."""
    with timed(what), holdfast.open(url, create=False) as store:
        report = store.check()
        if not report.ok:
            raise Broken(f"{what}: the store is damaged: {report.findings}")


def batches(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
