"""Opening a SQLite store: whose file it is, what it is, and how the connections are set."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.backends.protocol import Durability
from holdfast.backends.sqlite import SqliteBackend, database_files
from holdfast.backends.sqlite import backend as sqlite
from holdfast.backends.sqlite.database_files import holders
from holdfast.clock import SystemClock
from holdfast.errors import FormatError, NotFoundError, UnavailableError, UsageError
from holdfast.testing import FakeClock, RecordBuilder


def _open(path: Path, **options: object) -> SqliteBackend:
    return SqliteBackend(path, clock=FakeClock(), **options)  # type: ignore[arg-type]


def _connections(backend: SqliteBackend) -> list[apsw.Connection]:
    checkout = vars(backend)["_checkout"]
    return [checkout.reader.connection, checkout.writer.connection]


def _bytes_below(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("durability", "synchronous"), [("full", 2), ("process", 1), ("none", 0)], ids=str
)
def test_durability_is_really_set(tmp_path: Path, durability: Durability, synchronous: int) -> None:
    """Guarantee 1: set on every connection, read back, never a driver's default."""
    backend = _open(tmp_path / "state.db", durability=durability)
    for connection in _connections(backend):
        assert connection.pragma("synchronous") == synchronous
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("fullfsync") == (durability == "full")
        assert connection.pragma("checkpoint_fullfsync") == (durability == "full")
    assert backend.durability == backend.inspect.describe()["durability"] == durability
    backend.close()


def test_connections_are_hardened_against_a_hostile_file(tmp_path: Path) -> None:
    backend = _open(tmp_path / "state.db")
    for connection in _connections(backend):
        for option, setting in (
            (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
            (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
            (apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0),
        ):
            assert connection.config(option, -1) == setting
        assert connection.pragma("cell_size_check") == 1
        assert connection.pragma("trusted_schema") == 0
        assert connection.pragma("page_size") == 16384
        assert connection.limit(apsw.SQLITE_LIMIT_ATTACHED) == 0
        with pytest.raises(apsw.SQLError):
            connection.execute("ATTACH ':memory:' AS other")
    backend.close()


def test_a_new_store_is_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        backend = _open(tmp_path / "state.db")
        build = RecordBuilder()
        backend.commit([build.commit(build.append("a"))])
        backend.leases.acquire("l", "w1", ttl_s=10)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {
        "state.db": 0o600,
        "state.db-wal": 0o600,
        "state.db-shm": 0o600,
        "state.db-witness": 0o600,
        "state.db.workers": 0o700,
    }
    backend.close()


def test_after_the_last_close_there_is_one_file_and_its_witness(tmp_path: Path) -> None:
    one, two = _open(tmp_path / "state.db"), _open(tmp_path / "state.db")
    build = RecordBuilder()
    one.commit([build.commit(build.append("a"))])
    one.close()
    assert len(two.read("a")) == 1
    two.close()
    assert {path.name for path in tmp_path.iterdir()} == {"state.db", "state.db-witness"}


@pytest.mark.parametrize("target", ["state.db", "state.db-wal"])
def test_a_symlink_is_refused(tmp_path: Path, target: str) -> None:
    _open(tmp_path / "real.db").close()
    if target != "state.db":
        _open(tmp_path / "state.db").close()
    (tmp_path / target).symlink_to(tmp_path / "real.db")
    before = (tmp_path / "real.db").read_bytes()
    with pytest.raises(UsageError, match="symbolic link"):
        _open(tmp_path / "state.db")
    assert (tmp_path / "real.db").read_bytes() == before


def test_a_symlink_above_the_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    backend = _open(tmp_path / "link" / "state.db")
    assert backend.inspect.describe()["path"] == str(tmp_path / "real" / "state.db")
    backend.close()


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    _open(tmp_path / "state.db").close()
    (tmp_path / "state.db").chmod(0o660)
    with pytest.raises(UsageError, match="written by others"):
        _open(tmp_path / "state.db")


def test_a_missing_store_is_created_only_on_request(tmp_path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFoundError):
            _open(tmp_path / "state.db", **options)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnavailableError, match="cannot be created"):
        _open(tmp_path / "no such directory" / "state.db")


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_foreign_database_is_refused_and_left_untouched(tmp_path: Path, mode: str) -> None:
    """Guarantee 8."""
    path = tmp_path / "state.db"
    path.touch(0o600)
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE events (ordinal INTEGER PRIMARY KEY)")
    connection.close()
    before = _bytes_below(tmp_path)
    with pytest.raises(FormatError, match="application id 0"):
        _open(path)
    with pytest.raises(FormatError, match="application id 0"):
        _open(path, read_only=True)
    assert _bytes_below(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"not a database at all, " * 100], ids=["empty", "text"])
def test_a_file_that_is_no_database_is_refused_and_left_untouched(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "state.db"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(FormatError):
        _open(path)
    assert _bytes_below(tmp_path) == {"state.db": content}


def test_read_only_reads_and_refuses_to_write(tmp_path: Path) -> None:
    path, build = tmp_path / "state.db", RecordBuilder()
    first = _open(path)
    first.commit([build.commit(build.append("a", checkpoint="p"))])
    second = _open(path, read_only=True)
    assert second.read("a") == first.read("a")
    assert second.heads(["a"]) == first.heads(["a"])
    assert len(second.find("a")) == 1
    assert list(second.inspect.verify(read_all=True)) == []
    for write in (
        lambda: second.commit([build.commit(build.append("b"))]),
        lambda: second.objects.put("blob", "ab/cd", b""),
        lambda: second.objects.delete("blob", "ab/cd"),
        lambda: second.leases.acquire("l", "w1", ttl_s=10),
        lambda: second.marks.claim("i", "w1", n=1, ttl_s=10),
    ):
        with pytest.raises(UsageError, match="read-only"):
            write()
    first.close()
    assert len(second.read("a")) == 1
    second.close()


_CREATE_AT_ONCE = """
import sys
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
print("ready", flush=True)
sys.stdin.readline()
backend = SqliteBackend(sys.argv[1], clock=SystemClock())
print(backend.inspect.describe()["store"])
backend.close()
"""


def test_processes_that_create_a_store_at_once_get_the_same_one(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CREATE_AT_ONCE, str(tmp_path / "state.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    answers = {child.communicate("go\n")[0] for child in children}
    assert len(answers) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"state.db", "state.db-witness"}


_TOUCH = "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.pragma('journal_mode'); c.close()"


def test_opening_a_second_handle_drops_no_lock_of_the_first(tmp_path: Path) -> None:
    """A descriptor closed beside SQLite would drop its locks: then a stranger would be the last
    one out, and would take the WAL away under our feet."""
    path, build = tmp_path / "state.db", RecordBuilder()
    first = SqliteBackend(path, clock=SystemClock())
    first.commit([build.commit(build.append("a"))])
    second = SqliteBackend(path, clock=SystemClock())
    list(second.inspect.verify(read_all=True))
    second.close()
    subprocess.run([sys.executable, "-c", _TOUCH, str(path)], check=True)
    assert (tmp_path / "state.db-wal").stat().st_size > 0
    [head] = first.heads(["a"])
    first.commit([build.commit(build.append("a", behind=head))])
    assert len(first.read("a")) == 2
    first.close()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-witness"])
def test_a_new_store_is_not_made_over_what_an_old_one_left(tmp_path: Path, suffix: str) -> None:
    path, left = tmp_path / "state.db", tmp_path / f"state.db{suffix}"
    left.write_bytes(b"frames of another time")
    with pytest.raises(UsageError, match=f"state.db{suffix}.* is left over") as caught:
        _open(path)
    assert f"delete {path}-*" in str(caught.value.hint)
    assert _bytes_below(tmp_path) == {left.name: b"frames of another time"}
    left.unlink()
    _open(path).close()


def test_what_another_process_just_made_is_not_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that create a store at once, one may see the WAL of the other before its database."""
    path = tmp_path / "state.db"
    _open(path).close()
    answers = [False]
    real = os.path.lexists

    def lexists(name: str) -> bool:
        return answers.pop() if answers and str(name) == str(path) else real(name)

    monkeypatch.setattr(os.path, "lexists", lexists)
    _open(path).close()
    assert not answers


# --- the WAL of an earlier process ----------------------------------------------------------------

_HOLDS = """
import sys
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
backend = SqliteBackend(sys.argv[1], clock=SystemClock())
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths whose WAL was written over itself."""
    paths: list[str] = []
    monkeypatch.setattr(sqlite, "rewrite_wal", lambda _, path: paths.append(path))
    return paths


def _left_over(path: Path) -> None:
    """Makes a store that a killed process left with its WAL."""
    script = f"""
import os
from holdfast.backends.sqlite import SqliteBackend
from holdfast.testing import FakeClock, RecordBuilder
backend, build = SqliteBackend({str(path)!r}, clock=FakeClock()), RecordBuilder()
backend.commit([build.commit(build.append("a", b"1"))])
os._exit(0)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert path.with_name(path.name + "-wal").stat().st_size > 0


def test_only_the_first_one_in_writes_a_left_over_wal_again(
    tmp_path: Path, rewritten: list[str]
) -> None:
    path = tmp_path / "state.db"
    _left_over(path)
    first = _open(path)
    assert rewritten == [str(path)]
    second = _open(path)  # of this process, where the first one is open
    assert rewritten == [str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"open\n"
    second.close()
    first.close()
    assert holders(str(path)) == {other.pid}
    third = _open(path)  # of this process, where only another one has it open
    assert rewritten == [str(path)]
    assert holders(str(path)) == {other.pid, os.getpid()}
    third.close()
    other.kill()
    other.communicate()
    _open(path).close()
    assert rewritten == [str(path)] * 2


def test_who_came_or_went_while_we_opened_does_not_count(
    tmp_path: Path, rewritten: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    _left_over(path)
    answers = [frozenset({7}), frozenset({8, os.getpid()})]
    monkeypatch.setattr(sqlite, "holders", lambda _: answers.pop(0))
    _open(path).close()
    assert rewritten == [str(path)]


def test_where_locks_are_not_listed_every_open_writes_it_again(
    tmp_path: Path, rewritten: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    monkeypatch.setattr(database_files, "_LOCKS", str(tmp_path / "none"))
    first, second = _open(path), _open(path)
    assert rewritten == [str(path)] * 2
    second.close()
    first.close()


def test_of_the_listed_locks_only_those_of_the_shared_memory_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    backend = _open(path)
    found = os.stat(f"{path}-shm")
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    listed = tmp_path / "locks"
    monkeypatch.setattr(database_files, "_LOCKS", str(listed))
    listed.write_text(
        f"1: POSIX  ADVISORY  READ 11 {place} 128 128\n"
        f"1: -> POSIX  ADVISORY  WRITE 12 {place} 128 128\n"
        f"2: POSIX  ADVISORY  READ 13 {place}1 128 128\n"
        f"3: POSIX  ADVISORY  READ 14 {place} 124 124\n"
        f"4: FLOCK  ADVISORY  READ 15 {place} 128 EOF\n"
        "\n"
    )
    assert holders(str(path)) == {11}
    backend.close()
    assert holders(str(path)) == frozenset()
