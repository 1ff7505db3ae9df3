"""A SQLite store after its process was killed, its disk filled up, or its file system failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.backends.protocol import Receipt
from holdfast.backends.sqlite import SqliteBackend, opening
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError
from holdfast.testing import CrashPoints, FakeClock, RecordBuilder
from holdfast.testing.durable import check_links

_POINTS = ("sqlite.begun", "sqlite.inserted", "sqlite.committed")

_KILLED_AT = """
import sys
from holdfast.backends.protocol import Mark
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.testing import CrashPoints, RecordBuilder
path, point, nth = sys.argv[1:]
points = CrashPoints()
backend = SqliteBackend(path, clock=SystemClock(), reach=points.reach)
points.kill_at(point, int(nth))
build, heads = RecordBuilder(), [None, None]
for n in range(10):
    left = build.append("left", b'"1"', b'"2"', behind=heads[0], key=str(n), checkpoint="p")
    right = build.append("right", b'"' + b"x" * 50_000 + b'"', behind=heads[1])
    backend.commit([build.commit(left, right, marks=[Mark("i", str(n))])])
    print(n + 1, flush=True)
    heads = backend.heads(["left", "right"])
backend.close()
"""


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("nth", [1, 2, 10])
@pytest.mark.parametrize("point", [*_POINTS, "sqlite.closing", "sqlite.closed"])
def test_clause_02_killed_at_every_point_leaves_whole_commits(
    tmp_path: Path, point: str, nth: int
) -> None:
    if point.startswith("sqlite.clos"):
        nth = 1
    path = tmp_path / "state.db"
    done = _run(_KILLED_AT, str(path), point, str(nth))
    assert done.returncode == -signal.SIGKILL, done.stderr
    told = len(done.stdout.split())
    backend = SqliteBackend(path, clock=SystemClock())
    left, right = backend.read("left"), backend.read("right")
    expected = told + (point == "sqlite.committed")
    assert (len(left), len(right)) == (2 * expected, expected)
    assert len(backend.marks.list("i")) == len(backend.find("left")) == expected
    for n in range(10):
        assert len(backend.find("left", key=str(n))) == (n < expected)
    check_links(left)
    check_links(right)
    assert list(backend.inspect.verify(read_all=True)) == []
    build = RecordBuilder()
    heads = backend.heads(["left"])
    [outcome] = backend.commit([build.commit(build.append("left", behind=heads[0]))])
    assert isinstance(outcome, Receipt)
    backend.close()
    assert {path.name for path in tmp_path.iterdir()} == {"state.db", "state.db-witness"}


@pytest.mark.parametrize("point", _POINTS)
def test_an_exception_inside_a_commit_leaves_the_handle_usable(tmp_path: Path, point: str) -> None:
    points = CrashPoints()
    backend = SqliteBackend(tmp_path / "state.db", clock=FakeClock(), reach=points.reach)
    build = RecordBuilder()
    for n in range(3):
        points.raise_at(point, KeyboardInterrupt())
        [head] = backend.heads(["a"])
        with pytest.raises(KeyboardInterrupt):
            backend.commit([build.commit(build.append("a", key=f"lost {n}", behind=head))])
        [head] = backend.heads(["a"])
        [outcome] = backend.commit([build.commit(build.append("a", key=f"k{n}", behind=head))])
        assert isinstance(outcome, Receipt)
    check_links(backend.read("a"))
    assert len(backend.read("a")) == (6 if point == "sqlite.committed" else 3)
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_a_full_database_harms_nothing_and_works_again(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "state.db", clock=FakeClock())
    build = RecordBuilder()
    backend.commit([build.commit(build.append("a"))])
    before = backend.read_all(), backend.heads(["a", "b"])
    connection = vars(backend)["_checkout"].writer.connection
    pages = connection.pragma("page_count")
    connection.pragma("max_page_count", pages)
    commit = build.commit(build.append("b", b'"' + b"x" * 100_000 + b'"', key="k"))
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"full.*free some space") as caught:
            backend.commit([commit])
        assert caught.value.outcome_known
        assert isinstance(caught.value.__cause__, apsw.FullError)
        assert (backend.read_all(), backend.heads(["a", "b"])) == before
    with pytest.raises(UnavailableError, match="full"):
        backend.objects.put("blob", "ab/cd", b"x" * 100_000)
    connection.pragma("max_page_count", 1 << 30)
    [outcome] = backend.commit([commit])
    assert isinstance(outcome, Receipt)
    assert len(backend.read("b")) == 1
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_a_store_that_another_keeps_locked_is_unavailable_with_a_known_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SqliteBackend(tmp_path / "state.db", clock=FakeClock())
    build = RecordBuilder()
    backend.commit([build.commit(build.append("a"))])
    monkeypatch.setattr(opening, "_ASKED_MAX", 3)
    other = apsw.Connection(str(tmp_path / "state.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    other.execute("BEGIN IMMEDIATE")
    commit = build.commit(build.append("b"))
    with pytest.raises(UnavailableError, match="kept it locked") as caught:
        backend.commit([commit])
    assert caught.value.outcome_known
    assert len(backend.read("a")) == 1
    other.execute("ROLLBACK")
    other.close()
    [outcome] = backend.commit([commit])
    assert isinstance(outcome, Receipt)
    backend.close()


def _fail_commits(backend: SqliteBackend, error: apsw.Error) -> None:
    writer = vars(backend)["_checkout"].writer
    execute = writer.execute

    def failing(sql: str, bindings: tuple[object, ...] = ()) -> object:
        if sql == "COMMIT":
            raise error
        return execute(sql, bindings)

    writer.execute = failing


def test_a_disk_full_at_the_commit_point_is_a_known_outcome(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "state.db", clock=FakeClock())
    build = RecordBuilder()
    writer = vars(backend)["_checkout"].writer
    execute = writer.execute
    _fail_commits(backend, apsw.FullError("database or disk is full"))
    with pytest.raises(UnavailableError) as caught:
        backend.commit([build.commit(build.append("a"))])
    assert caught.value.outcome_known
    writer.execute = execute
    backend.commit([build.commit(build.append("a"))])
    assert len(backend.read("a")) == 1
    backend.close()


def test_a_failed_sync_ends_the_handle(tmp_path: Path) -> None:
    """Nobody tries a sync again on a descriptor that has failed one."""
    path, build = tmp_path / "state.db", RecordBuilder()
    backend = SqliteBackend(path, clock=FakeClock())
    backend.commit([build.commit(build.append("a"))])
    _fail_commits(backend, apsw.IOError("disk I/O error"))
    with pytest.raises(UnavailableError, match="open the store again") as caught:
        backend.commit([build.commit(build.append("b"))])
    assert not caught.value.outcome_known
    for call in (
        lambda: backend.commit([build.commit(build.append("b"))]),
        lambda: backend.read("a"),
        lambda: backend.heads(["a"]),
        lambda: backend.leases.acquire("l", "w1", ttl_s=10),
        lambda: backend.objects.get("blob", "ab/cd"),
    ):
        with pytest.raises(UnavailableError, match="open the store again"):
            call()
    backend.close()
    again = SqliteBackend(path, clock=FakeClock())
    assert (len(again.read("a")), len(again.read("b"))) == (1, 0)
    again.close()


_WITHOUT_SPACE = """
import resource, sys
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.errors import UnavailableError
from holdfast.testing import RecordBuilder
backend = SqliteBackend(sys.argv[1], clock=SystemClock())
build = RecordBuilder()
backend.commit([build.commit(build.append("a"))])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    backend.commit([build.commit(build.append("b", b'"' + b"x" * 500_000 + b'"'))])
except UnavailableError as error:
    assert not error.outcome_known
try:
    backend.read("a")
except UnavailableError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = SqliteBackend(sys.argv[1], clock=SystemClock())
assert (len(again.read("a")), len(again.read("b"))) == (1, 0)
again.commit([build.commit(build.append("b"))])
assert list(again.inspect.verify(read_all=True)) == []
again.close()
backend.close()
"""


def test_a_write_that_fails_for_real_is_survived(tmp_path: Path) -> None:
    done = _run(_WITHOUT_SPACE, str(tmp_path / "state.db"))
    assert done.returncode == 0, done.stderr
    assert "open the store again" in done.stdout


_FORKS = """
import os, sys, threading
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.testing import RecordBuilder
backend = SqliteBackend(sys.argv[1], clock=SystemClock())
build, stop = RecordBuilder(), threading.Event()

def write():
    while not stop.is_set():
        [head] = backend.heads(["a"])
        backend.commit([build.commit(build.append("a", behind=head))])

writer = threading.Thread(target=write)
writer.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        stop.set()
        sys.exit(0)  # ends the interpreter, which must not wait for a lock of the parent
    assert os.waitpid(child, 0)[1] == 0
stop.set()
writer.join()
assert list(backend.inspect.verify(read_all=True)) == []
backend.close()
"""


def test_clause_13_a_forked_child_ends_in_peace(tmp_path: Path) -> None:
    done = _run(_FORKS, str(tmp_path / "state.db"))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"state.db", "state.db-witness"}


def test_a_wal_with_zeros_after_its_end_is_replayed(tmp_path: Path) -> None:
    """The WAL is kept ahead of what is written to it; recovery does not mistake zeros for data."""
    path, build = tmp_path / "state.db", RecordBuilder()
    backend = SqliteBackend(path, clock=FakeClock())
    wal = b""
    while not wal.endswith(bytes(10_000)):
        [head] = backend.heads(["a"])
        assert head is None or head.revision < 200, "the WAL was never ahead"
        backend.commit([build.commit(build.append("a", b'"' + b"x" * 9000 + b'"', behind=head))])
        wal = (tmp_path / "state.db-wal").read_bytes()
    for suffix in ("", "-wal"):
        # As if power had been lost now. Another process copies: if this one closed a descriptor of
        # the database, it would drop the locks of its own open store.
        (tmp_path / f"copy.db{suffix}").touch(0o600)
        code = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"
        done = _run(code, f"{path}{suffix}", str(tmp_path / f"copy.db{suffix}"))
        assert done.returncode == 0, done.stderr
    copy = SqliteBackend(tmp_path / "copy.db", clock=FakeClock())
    assert copy.read("a") == backend.read("a")
    assert list(copy.inspect.verify(read_all=True)) == []
    copy.close()
    backend.close()
