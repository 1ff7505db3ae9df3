"""A child of a process whose threads commit can open the same store: forked, spawned or served."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.derived_file import SideFile
from holdfast.backends.derived_tables import SelectLimits
from holdfast.backends.files import FilesBackend
from holdfast.backends.files.catalog import Catalog
from holdfast.backends.forking import Forking, forking
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.testing.records import RecordBuilder
from tests.record.stores import DURABLE, new_url

CHILDREN = {"files": 4, "sqlite": 6, "redis": 2, "postgresql": 2}


@pytest.mark.parametrize(
    ("backend", "method"),
    [*((one, "fork") for one in DURABLE), ("sqlite", "spawn"), ("sqlite", "forkserver")],
)
def test_children_of_a_process_in_commits_use_the_store(
    backend: str, method: str, tmp_path: Path
) -> None:
    url = new_url(backend, tmp_path)
    children = str(CHILDREN[backend] if method == "fork" else 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.forks", url, method, children],
        capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def in_a_child(test: str, *arguments: str) -> str:
    code = f"from tests.faults.test_forks import {test}; {test}(*{arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def forked_within_a_commit(path: str) -> None:
    """Forks in the middle of a commit, as user code in a commit might."""
    children: list[int] = []

    def reach(point: str) -> None:
        if point == "sqlite.inserted" and not children:
            children.append(os.fork())
            if children[0] == 0:
                try:
                    holdfast.open(f"sqlite:{path}")
                except UsageError as error:
                    print(error.message, error.hint, flush=True)
                    os._exit(0)
                os._exit(1)

    with holdfast.open(SqliteBackend(path, clock=SystemClock(), reach=reach)) as hf:
        hf.team("red").set("a", 1)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        hf.team("red").set("a", 2)
        assert not hf.check().findings


def test_a_child_forked_within_a_commit_is_told_how_to_start(tmp_path: Path) -> None:
    said = in_a_child("forked_within_a_commit", str(tmp_path / "s.db"))
    assert "in the middle of a transaction" in said
    assert "spawn" in said


def forked_beside_a_busy_thread(path: str) -> None:
    """Forks while a thread stays in a commit for longer than a fork waits."""
    inside, leave = threading.Event(), threading.Event()

    def reach(point: str) -> None:
        if point == "sqlite.inserted" and threading.current_thread().name == "slow":
            inside.set()
            leave.wait()

    forking.wait_s = 0.2
    with holdfast.open(SqliteBackend(path, clock=SystemClock(), reach=reach)) as hf:
        hf.team("red").set("a", 0)
        thread = threading.Thread(target=lambda: hf.team("red").set("a", 1), name="slow")
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            try:
                holdfast.open(f"sqlite:{path}")
            except UsageError as error:
                print(error.message, flush=True)
                with holdfast.open(f"sqlite:{path}-other") as other:
                    other.team("red").set("a", 1)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        leave.set()
        thread.join()
        assert hf.team("red").get("a") == 1


def test_a_fork_waits_for_a_limited_time(tmp_path: Path) -> None:
    said = in_a_child("forked_beside_a_busy_thread", str(tmp_path / "s.db"))
    assert "in the middle of a transaction" in said


def is_free(lock: Any) -> bool:
    """Whether a thread that comes now gets the lock."""
    found: list[bool] = []

    def look() -> None:
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_the_hooks_of_a_fork_leave_sqlite_alone(tmp_path: Path) -> None:
    """A thread that a child lacks may have a mutex of SQLite's that every call of it takes."""
    forks = Forking()
    inherited = forks.connect(str(tmp_path / "a.db"))
    forks.before()
    forks.after_in_child()
    assert not inherited.in_transaction  # an error, were it closed
    forks.connect(str(tmp_path / "b.db")).close()
    with pytest.raises(apsw.ConnectionClosedError):
        assert inherited.in_transaction


def test_a_file_with_the_name_of_a_refused_one_is_opened(tmp_path: Path) -> None:
    """What is refused is a file under its name, not whatever has the name or the inode later."""
    path, other = tmp_path / "a.db", tmp_path / "b.db"
    forks = Forking()
    inherited = forks.connect(str(path))
    inherited.execute("BEGIN IMMEDIATE; CREATE TABLE a (a)")
    os.rename(path, other)
    other.with_name("b.db-journal").touch()
    forks.before()
    forks.after_in_child()
    forks.connect(str(path)).close()
    os.replace(other, path)
    with pytest.raises(UsageError, match="in the middle of a transaction"):
        forks.connect(str(path))


def test_a_fork_of_a_signal_handler_within_a_fork_releases_what_it_took() -> None:
    lock, forks = threading.RLock(), Forking()
    forks.wait_for(lock)
    forks.before()
    forks.before()
    forks.after_in_parent()
    assert not is_free(lock)
    forks.after_in_parent()
    assert is_free(lock)
    thread = threading.Thread(target=lambda: forks.wait_for(threading.RLock()), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


class Asked:
    """A lock that says when somebody waits for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.asked = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.asked.set()
        return self.lock.acquire(blocking, timeout)

    def release(self) -> None:
        self.lock.release()


def test_a_fork_waits_for_a_thread_that_adds_a_lock_meanwhile() -> None:
    """As the thread of a commit does that opens its index."""
    forks = Forking(wait_s=30)
    first, second, inside = Asked(), threading.RLock(), threading.Event()
    forks.wait_for(first)

    def open_more() -> None:
        with first.lock:
            inside.set()
            first.asked.wait()
            forks.wait_for(second)

    thread = threading.Thread(target=open_more)
    thread.start()
    inside.wait()
    forks.before()
    assert not is_free(first.lock)
    assert not is_free(second)
    forks.after_in_parent()
    thread.join()
    assert is_free(first.lock)
    assert is_free(second)


def test_nothing_is_opened_while_a_process_forks() -> None:
    forks = Forking(wait_s=30)
    stop, begun = threading.Event(), threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            with forks.opening(), forks.opening():
                begun.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    begun.wait()
    forks.before()
    begun.clear()
    assert not begun.wait(0.2)
    forks.after_in_parent()
    assert begun.wait()
    stop.set()
    thread.join()


def forked_under_interrupts() -> None:
    """A Ctrl-C ends the first of the hooks after a fork, before its first line."""
    import _thread
    import importlib

    assert "holdfast.backends.forking" in sys.modules
    os.register_at_fork(after_in_parent=_thread.interrupt_main)
    late = importlib.reload(sys.modules["holdfast.backends.forking"])  # its hooks run after that
    lock = threading.RLock()
    late.forking.wait_for(lock)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert is_free(lock)
    print("free")


def test_an_interrupt_in_a_hook_leaves_no_lock_taken() -> None:
    assert "free" in in_a_child("forked_under_interrupts")


def closed_by_number(path: str) -> None:
    """A child that closes all that it inherited, as a daemon does, keeps what it opens itself."""
    with holdfast.open(f"sqlite:{path}") as hf:
        hf.team("red").set("a", 1)
        child = os.fork()
        if child == 0:
            os.closerange(3, 1024)
            own = [os.open(path + "-own", os.O_RDWR | os.O_CREAT) for _ in range(64)]
            try:
                holdfast.open(f"sqlite:{path}")
            except UsageError as error:
                print(error.message, flush=True)
                for one in own:
                    os.fstat(one)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hf.team("red").set("a", 2)


def test_a_child_closes_no_number_that_is_its_own_by_now(tmp_path: Path) -> None:
    assert "were closed after the fork" in in_a_child("closed_by_number", str(tmp_path / "s.db"))


class Slow(SelectLimits, frozen=True):
    """Limits that say when a statement is about to run, and keep it until they are told."""

    inside: threading.Event
    leave: threading.Event

    def __getattribute__(self, name: str) -> Any:
        if name == "timeout_s":
            self.inside.set()
            self.leave.wait()
        return super().__getattribute__(name)


def test_a_fork_waits_for_a_statement_of_a_user(tmp_path: Path) -> None:
    side = SideFile(str(tmp_path / "side"))
    side.write(lambda session: session.ask("CREATE TABLE a (a)"))
    limits = Slow(30, 10, 1000, threading.Event(), threading.Event())
    asking = threading.Thread(target=lambda: side.select("SELECT a FROM a", limits))
    asking.start()
    limits.inside.wait()
    held, go_on = threading.Event(), threading.Event()

    def fork() -> None:
        forking.before()
        held.set()
        go_on.wait()
        forking.after_in_parent()

    forker = threading.Thread(target=fork)
    forker.start()
    was_early = held.wait(0.2)
    limits.leave.set()
    go_on.set()
    asking.join()
    forker.join()
    side.close()
    assert held.is_set()
    assert not was_early


def test_tables_in_memory_can_be_used_while_they_are_filled() -> None:
    """So a fork, which waits for who uses them, does not wait until they are full."""
    side = SideFile(None)
    with side.claim():
        thread = threading.Thread(target=lambda: side.read(side.is_empty), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    side.close()


def fill(path: str) -> int:
    """Makes a files store that has an index; returns how many records it has."""
    clock = SystemClock()
    backend = FilesBackend(path, clock=clock)
    builder, last = RecordBuilder(clock.now_us()), None
    for _ in range(300):
        append = builder.append("a", b'"' + b"q" * 1000 + b'"', behind=last)
        backend.commit([builder.commit(append)])
        last = append.records[-1]
    backend.close()
    assert os.path.exists(os.path.join(path, "index.sqlite"))
    return 300


def forked_beside_an_index_in_use(path: str) -> None:
    """Forks while a transaction on the index goes on, which the store does without."""
    count = fill(path)
    backend = FilesBackend(path, clock=SystemClock())
    index = forking.connect(os.path.join(path, "index.sqlite"))
    index.execute("BEGIN IMMEDIATE")
    child = os.fork()
    if child == 0:
        again = FilesBackend(path, clock=SystemClock())
        assert len(again.read("a")) == count
        again.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    index.execute("ROLLBACK")
    index.close()
    backend.close()
    print("read")


def test_a_child_that_may_not_open_the_index_opens_the_store(tmp_path: Path) -> None:
    assert "read" in in_a_child("forked_beside_an_index_in_use", str(tmp_path / "s"))


def test_an_index_that_is_refused_stays_and_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s")
    count = fill(path)
    before = (tmp_path / "s" / "index.sqlite").read_bytes()
    connect = forking.connect

    def refuse(name: str, **options: Any) -> Any:
        if name.endswith("index.sqlite"):
            raise UsageError(f'"{name}" cannot be opened in this process')
        return connect(name, **options)

    monkeypatch.setattr(forking, "connect", refuse)
    backend = FilesBackend(path, clock=SystemClock())
    assert len(backend.read("a")) == count
    assert not list(backend.inspect.verify(read_all=True))
    assert isinstance(backend.catalog, Catalog)
    backend.catalog.flush()
    assert len(backend.read("a")) == count
    assert not backend.catalog.reports
    backend.close()
    assert (tmp_path / "s" / "index.sqlite").read_bytes() == before
