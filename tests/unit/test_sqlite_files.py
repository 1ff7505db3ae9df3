"""What a SQLite handle does when its files or its locks are taken, in one process."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw
import pytest

from holdfast.backends import file_watch, rescue
from holdfast.backends.protocol import Mark
from holdfast.backends.sqlite import SqliteBackend, database_files
from holdfast.backends.sqlite import connection as driver
from holdfast.backends.sqlite import rescue as sqlite_rescue
from holdfast.backends.sqlite.connection import SqliteCheckout
from holdfast.errors import FilesTakenError, UnavailableError, UsageError
from holdfast.testing import FakeClock, RecordBuilder
from tests.descriptors import descriptors


def _open(path: Path, **options: Any) -> SqliteBackend:
    return SqliteBackend(path, clock=FakeClock(), **options)


def _checkout(backend: SqliteBackend) -> SqliteCheckout:
    return vars(backend)["_checkout"]


def _write(backend: SqliteBackend, count: int = 1) -> None:
    build = RecordBuilder()
    for _ in range(count):
        [head] = backend.heads(["a"])
        backend.commit([build.commit(build.append("a", behind=head))])


def _elsewhere(code: str, path: Path) -> None:
    """Runs code in another process: closing a file in this one would drop its locks."""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def _notify_now(backend: SqliteBackend) -> None:
    watch = _checkout(backend).files.watch
    vars(watch)["_left"] = 0
    watch.look()
    assert watch.is_notified


@pytest.fixture(autouse=True)
def _no_looks_while_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks by itself would find first what a test is about."""
    monkeypatch.setattr(file_watch.IdleLooks, "begin", lambda self, store: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.mark.parametrize("notified", [False, True])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_file_without_a_name_ends_the_handle(path: Path, suffix: str, notified: bool) -> None:
    backend = _open(path)
    _write(backend, 3)
    if notified:
        _notify_now(backend)
        _write(backend)
    os.unlink(f"{path}{suffix}")
    with pytest.raises(FilesTakenError, match="deleted, moved or replaced") as caught:
        _write(backend)
    assert caught.value.outcome_known or (suffix == "" and not notified)
    for call in (lambda: backend.read("a"), lambda: backend.heads(["a"]), lambda: _write(backend)):
        with pytest.raises(FilesTakenError) as again:
            call()
        assert again.value.rescued == caught.value.rescued
    backend.close()
    assert caught.value.rescued is not None
    copy = _open(Path(caught.value.rescued) / "state.db")
    assert len(copy.read("a")) >= 3 + notified
    assert list(copy.inspect.verify(read_all=True)) == []
    copy.close()


def test_status_tells_what_was_rescued(path: Path) -> None:
    backend, other = _open(path), _open(path.with_name("other.db"))
    _write(backend)
    os.unlink(f"{path}-wal")
    with pytest.raises(FilesTakenError):
        _write(backend)
    backend.close()
    assert other.inspect.describe()["reports"] == []
    other.close()
    os.unlink(f"{path}-witness")
    opened = _open(path)
    [report] = opened.inspect.describe()["reports"]
    assert f"{path}: its write-ahead log was deleted" in report
    assert "see rescued/" in report
    opened.close()


@pytest.mark.parametrize("notified", [False, True])
def test_a_lock_that_another_library_took_over_is_gone(path: Path, notified: bool) -> None:
    backend = _open(path)
    _write(backend)
    if notified:
        _notify_now(backend)
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(FilesTakenError, match="its locks are gone") as caught:
            _write(backend)
    assert caught.value.rescued is None
    assert "what was committed is in its place" in str(caught.value)
    backend.close()
    opened = _open(path)
    assert len(opened.read("a")) in (1, 2)
    opened.close()


def test_a_wal_that_was_cut_ends_the_handle(path: Path) -> None:
    backend = _open(path)
    _write(backend, 5)
    build = RecordBuilder()
    [head] = backend.heads(["a"])
    _elsewhere("import os, sys; os.truncate(sys.argv[1] + '-wal', 50_000)", path)
    with pytest.raises(FilesTakenError, match="was cut") as caught:
        backend.commit([build.commit(build.append("a", behind=head))])
    assert caught.value.outcome_known
    backend.close()


def test_a_wal_that_was_emptied_by_a_checkpoint_is_no_loss(path: Path) -> None:
    backend = _open(path)
    _write(backend, 5)
    code = """import apsw, sys
database = apsw.Connection(sys.argv[1])
print(database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())"""
    _elsewhere(code, path)
    assert os.stat(f"{path}-wal").st_size == 0
    _write(backend, 2)
    backend.close()
    opened = _open(path)
    assert len(opened.read("a")) == 7
    opened.close()


def test_a_wal_that_is_emptied_between_two_questions_is_asked_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = _open(path)
    _write(backend, 5)
    connection = _checkout(backend).writer.connection
    real, sizes = os.stat, [0, 0]

    class Short:
        st_size = 0

    def stat(name: Any, **named: Any) -> Any:
        return Short() if sizes and str(name).endswith("-wal") and not sizes.pop() else real(name)

    monkeypatch.setattr(database_files.os, "stat", stat)
    assert not database_files.lacks_frames(connection, str(path))
    sizes[:] = [0, 0, 0]
    assert database_files.lacks_frames(connection, str(path))
    monkeypatch.undo()
    backend.close()
    assert not database_files.lacks_frames(connection, str(path))  # closed: nothing is known


def test_a_commit_under_way_when_the_wal_goes_is_not_acknowledged(path: Path) -> None:
    def reach(point: str) -> None:
        if point == "sqlite.inserted" and (path.parent / "now").exists():
            os.unlink(f"{path}-wal")

    backend = _open(path, reach=reach)
    _write(backend, 2)
    (path.parent / "now").touch()
    with pytest.raises(FilesTakenError) as caught:
        _write(backend)
    assert not caught.value.outcome_known
    assert caught.value.rescued is not None
    backend.close()


def test_a_loss_before_close_is_found_by_close(path: Path) -> None:
    backend = _open(path)
    _write(backend)
    os.unlink(f"{path}-wal")
    with pytest.raises(FilesTakenError):
        backend.close()
    backend.close()
    assert descriptors(path.parent) == []


def test_locks_that_are_gone_before_close_have_cost_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = _open(path)
    _write(backend)
    path.open("rb").close()
    backend.close()
    assert "its locks are gone" in caplog.text
    assert (path.parent / "state.db-wal").exists()
    opened = _open(path)
    assert len(opened.read("a")) == 1
    opened.close()


def test_a_store_moved_whole_needs_no_rescue(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    backend = _open(old / "state.db")
    _write(backend)
    old.rename(new)
    with pytest.raises(FilesTakenError, match=r"went with it to .*new/state\.db") as caught:
        _write(backend)
    assert caught.value.rescued is None
    backend.close()
    opened = _open(new / "state.db")
    assert len(opened.read("a")) >= 1
    opened.close()


def test_where_links_of_descriptors_cannot_be_read_everything_is_rescued(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_files, "_LINKS", "/proc/nothing")
    backend = _open(path)
    _write(backend)
    path.rename(path.with_name("moved.db"))
    with pytest.raises(FilesTakenError) as caught:
        _write(backend)
    assert caught.value.rescued is not None
    backend.close()


def test_what_cannot_be_saved_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sqlite_rescue, "rescue", refuse)
    backend = _open(path)
    _write(backend)
    os.unlink(f"{path}-wal")
    with pytest.raises(FilesTakenError, match=r"could not be saved .*No space left") as caught:
        _write(backend)
    assert caught.value.rescued is None
    backend.close()
    assert not list(path.parent.glob("*.new"))
    assert rescue.reports(str(path.parent)) == []


def test_a_waiting_thread_is_told(path: Path) -> None:
    backend = _open(path)
    _write(backend)
    checkout = _checkout(backend)
    errors: list[BaseException] = []

    def follow() -> None:
        try:
            backend.wait(backend.moment().position, timeout_s=60)
        except FilesTakenError as error:
            errors.append(error)

    thread = Thread(target=follow)
    thread.start()
    while not checkout.changed.gates:
        pass
    os.unlink(f"{path}-wal")
    with pytest.raises(FilesTakenError):
        _write(backend)
    thread.join()
    assert len(errors) == 1
    backend.close()


def test_nobody_is_told_before_everything_is_saved(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends at the error would end the thread that saves."""
    backend = _open(path)
    _write(backend)
    checkout = _checkout(backend)
    saving, go_on = Event(), Event()
    real = driver.rescue_database

    def rescue_slowly(*arguments: Any) -> Any:
        saving.set()
        go_on.wait()
        return real(*arguments)

    monkeypatch.setattr(driver, "rescue_database", rescue_slowly)
    os.unlink(f"{path}-wal")
    looking = Thread(target=checkout.look_while_idle)
    looking.start()
    saving.wait()
    errors: list[FilesTakenError] = []

    def read() -> None:
        try:
            backend.read("a")
        except FilesTakenError as error:
            errors.append(error)

    reading = Thread(target=read)
    reading.start()
    reading.join(0.05)
    assert not errors
    go_on.set()
    looking.join()
    reading.join()
    [error] = errors
    assert error.rescued is not None
    backend.close()


def test_a_call_that_waited_for_a_handle_that_died_is_told_why(path: Path) -> None:
    backend = _open(path)
    _write(backend)
    checkout = _checkout(backend)
    os.unlink(f"{path}-wal")
    with pytest.raises(FilesTakenError):
        _write(backend)
    with pytest.raises(FilesTakenError, match="deleted"), checkout.errors:
        checkout.reader.execute("SELECT 1")
    backend.close()
    with pytest.raises(UsageError, match="store is closed"), checkout.errors:
        checkout.reader.execute("SELECT 1")


# --- looks while nobody commits -------------------------------------------------------------------


def test_an_idle_handle_looks(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend, reading = _open(path), _open(path, read_only=True)
    _write(backend)
    checkout = _checkout(backend)
    checkout.look_while_idle()
    _checkout(reading).look_while_idle()
    os.unlink(f"{path}-wal")
    with checkout.writer.lock:  # a commit is under way
        looker = Thread(target=checkout.look_while_idle)
        looker.start()
        looker.join()
    checkout.check_open()
    with caplog.at_level(logging.ERROR):
        checkout.look_while_idle()
    assert "deleted, moved or replaced" in caplog.text
    with pytest.raises(FilesTakenError):
        backend.read("a")
    checkout.look_while_idle()
    backend.close()
    reading.close()


def test_the_thread_that_looks_is_asked_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr(file_watch.IdleLooks, "begin", lambda self, store: begun.append(store))
    backend, reading = _open(path), _open(path, read_only=True)
    assert begun == [_checkout(backend)]
    backend.close()
    reading.close()


# --- where the system tells less ------------------------------------------------------------------


def test_without_a_list_of_locks_only_names_are_watched(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_files, "_FDINFO", "/proc/nothing")
    backend = _open(path)
    _write(backend)
    path.open("rb").close()
    _write(backend)
    os.unlink(f"{path}-shm")
    with pytest.raises(FilesTakenError):
        _write(backend)
    backend.close()


def test_without_o_path_the_descriptors_of_sqlite_are_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_files, "_O_PATH", 0)
    backend = _open(path)
    _write(backend)
    os.unlink(f"{path}-wal")
    with pytest.raises(FilesTakenError):
        _write(backend)
    backend.close()


def test_a_descriptor_that_is_gone_leads_to_an_exact_look(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> os.stat_result:
        raise OSError(errno.EBADF, "Bad file descriptor")

    backend = _open(path)
    with monkeypatch.context() as patch:
        patch.setattr(database_files.os, "fstat", refuse)
        assert _checkout(backend).files.is_suspect()
    _write(backend)
    backend.close()


def test_a_descriptor_that_was_closed_by_somebody_has_no_lock(path: Path) -> None:
    backend = _open(path)
    lock = vars(_checkout(backend).files)["_locks"][0]
    assert lock.is_held()
    backend.close()
    reader, writer = os.pipe()
    gone = database_files._Lock(reader, (128, 128))  # pyright: ignore[reportPrivateUsage]
    assert not gone.is_held()
    os.close(reader)
    os.close(writer)
    assert not gone.is_held()
    gone.close()


@pytest.mark.parametrize(
    ("line", "held"),
    [
        (b"lock:\t1: POSIX  ADVISORY  READ 7 fe:00:9 128 128\n", True),
        (b"lock:\t1: POSIX  ADVISORY  READ 7 fe:00:9 124 128\n", True),
        (b"lock:\t1: POSIX  ADVISORY  WRITE 7 fe:00:9 0 EOF\n", True),
        (b"lock:\t1: POSIX  ADVISORY  READ 7 fe:00:9 129 EOF\n", False),
        (b"lock:\t1: POSIX  ADVISORY  READ 7 fe:00:9 120 127\n", False),
        (b"lock:\t1: FLOCK  ADVISORY  WRITE 7 fe:00:9 0 EOF\n", False),
        (b"pos:\t128\nflags:\t02\n", False),
    ],
)
def test_a_lock_is_found_in_what_the_kernel_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, held: bool
) -> None:
    monkeypatch.setattr(database_files, "_FDINFO", str(tmp_path))
    (tmp_path / "3").write_bytes(b"pos:\t0\n" + line)
    lock = database_files._Lock(3, (128, 128))  # pyright: ignore[reportPrivateUsage]
    assert (lock.is_held(), lock.is_held()) == (held, held)
    lock.close()


# --- opening --------------------------------------------------------------------------------------


def test_a_file_that_is_replaced_while_it_is_opened_is_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _open(path).close()
    monkeypatch.setattr(database_files, "_open_inodes", dict)
    before = descriptors(path.parent)
    with pytest.raises(UnavailableError, match="replaced while it was being opened"):
        _open(path)
    assert descriptors(path.parent) == before
    monkeypatch.undo()
    _open(path).close()


def test_a_wal_that_lacks_what_the_shared_memory_tells_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has the store open, and somebody took the WAL from under it."""
    code = """import sys
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.testing import RecordBuilder
from holdfast.backends import file_watch
file_watch.IdleLooks.begin = lambda self, store: None
backend, build = SqliteBackend(sys.argv[1], clock=SystemClock()), RecordBuilder()
for stream in "abc":
    backend.commit([build.commit(build.append(stream, b'"' + b"x" * 20_000 + b'"'))])
print("ready", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    os.unlink(f"{path}-wal")
    with pytest.raises(UnavailableError, match="removed or cut while other processes"):
        _open(path)
    other.kill()
    other.communicate()


def test_a_forked_child_gives_up_what_it_inherited(path: Path) -> None:
    backend = _open(path)
    _write(backend)
    reading = _open(path, read_only=True)
    pid = os.fork()
    if pid == 0:
        left = [name for name in os.listdir("/proc/self/fdinfo") if _is_path_only(name)]
        os._exit(len(left))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    _write(backend)
    backend.close()
    reading.close()


def _is_path_only(name: str) -> bool:
    try:
        info = Path(f"/proc/self/fdinfo/{name}").read_text()
    except OSError:
        return False
    flags = int(info.split("flags:\t")[1].split()[0], 8)
    return bool(flags & os.O_PATH)


def test_other_calls_of_a_handle_notice_it_too(path: Path) -> None:
    """A lease, a mark and an object are commits as well."""
    for call in (
        lambda backend: backend.leases.acquire("l", "w", ttl_s=10),
        lambda backend: backend.objects.put("blob", "b", b"1"),
        lambda backend: backend.commit([RecordBuilder().commit(marks=[Mark("i", "k")])]),
    ):
        backend = _open(path)
        _write(backend)
        os.unlink(f"{path}-wal")
        with pytest.raises(FilesTakenError):
            call(backend)
        backend.close()
        os.unlink(f"{path}-witness")


def test_a_wal_found_too_short_after_opening_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _open(path).close()
    monkeypatch.setattr(database_files, "lacks_frames", lambda connection, path: True)
    with pytest.raises(UnavailableError, match="removed or cut"):
        _open(path)


def test_the_descriptor_that_a_lock_was_taken_through_is_found_among_others(path: Path) -> None:
    """Descriptors of one file in any order: only that of SQLite's first connection has the lock."""
    first = _open(path)
    fds = [os.open(path, os.O_PATH) for _ in range(3)]
    files = _checkout(first).files
    held = vars(files)["_locks"]
    before = len(held)
    files._keep_lock((0x40000002, 0x400001FF), fds)  # pyright: ignore[reportPrivateUsage]
    assert len(held) == before
    inodes = database_files._open_inodes()  # pyright: ignore[reportPrivateUsage]
    status = os.stat(path)
    every = inodes[status.st_dev, status.st_ino]
    files._keep_lock((0x40000002, 0x400001FF), sorted(every, reverse=True))  # pyright: ignore[reportPrivateUsage]
    assert len(held) == before + 1
    for fd in fds:
        os.close(fd)
    first.close()


def test_a_wal_that_another_process_is_at_work_on_is_looked_at_after_the_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> int:
        raise apsw.BusyError("database is locked")

    backend = _open(path)
    monkeypatch.setattr(database_files, "_frames_end", busy)
    assert not _checkout(backend).files.is_suspect()
    _write(backend)
    backend.close()
