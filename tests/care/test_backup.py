"""Backups: made while others write, restored at each of their points (BOOT-53, RALPH-53)."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store, interchange
from holdfast import backup as backups
from holdfast.backends.protocol import Mark
from holdfast.backends.memory import MemoryBackend
from holdfast.backup import backup, drill, find_point, points, prune, restore
from holdfast.core.check import content_of
from holdfast.errors import (
    ConflictError,
    CorruptError,
    ExistsError,
    FormatError,
    NotFoundError,
    OtherStoreError,
    UnavailableError,
    UsageError,
)
from holdfast.testing import FakeClock
from holdfast.transfer import source
from tests.crash.children import Child
from tests.record.stores import ALL, DURABLE, _postgresql, new_url


def change(hf: Store, random: Random) -> None:
    """Writes something of every kind: state, a large value, records, marks, forks."""
    chat = hf.conversation(f"c{random.randrange(4)}")
    chat.set("n", random.random())
    chat.messages.add("user", f"hello {random.random()}")
    match random.randrange(5):
        case 0:
            chat.set("text", "large " * 12_000 + str(random.random()))
        case 1:
            task = chat.tasks.add(f"task {random.random()}")
            if random.random() < 0.5:
                chat.tasks.close(task.id, "done")
        case 2:
            chat.decide(f"act {random.random()}")
        case 3:
            chat.fork(f"f{random.randrange(1 << 30)}").set("forked", True)
        case _:
            with hf.commit() as tx:
                tx.scope(chat).increment("count")
                tx.mark("own", f"m{random.randrange(3)}", due=random.randrange(1000))


def look(hf: Store) -> tuple[str, list[Mark]]:
    """Returns what two stores must have in common to be the same."""
    marks = hf._log.marks.list(limit=1 << 40)
    return content_of(hf._log).digest, sorted(marks, key=lambda mark: (mark.index, mark.key))


@pytest.mark.parametrize("kind", ALL)
def test_every_point_is_restored_as_it_was(kind: str, tmp_path: Path) -> None:
    random = Random(7)
    seen: list[tuple[str, list[Mark]]] = []
    with holdfast.open(new_url(kind, tmp_path)) as hf:
        for _ in range(4):
            for _ in range(12):
                change(hf, random)
            point = backup(hf, tmp_path / "backup")
            assert point.marks_exact
            assert not point.damaged
            seen.append(look(hf))
    assert [point.name for point in points(tmp_path / "backup")] == ["p1", "p2", "p3", "p4"]
    for point, wanted in zip(points(tmp_path / "backup"), seen, strict=True):
        with holdfast.open("memory:") as target:
            restored = restore(tmp_path / "backup", target, at=point.name)
            assert look(target) == wanted
            assert restored.digest == point.digest == wanted[0]
            assert target.check().ok
    assert drill(tmp_path / "backup").digest == seen[-1][0]
    assert sorted(os.listdir(tmp_path / "backup")) == [
        *("backup.json", "drills", "lock", "marks", "points.jsonl", "store"),
    ]


@pytest.mark.parametrize("kind", DURABLE)
def test_a_restored_store_goes_on(kind: str, tmp_path: Path) -> None:
    """BOOT-33: in any kind of store the task can be claimed, the decision closed, the state set."""
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation("c1")
        chat.set("stage", "triage")
        task = chat.tasks.add("write it")
        backup(hf, tmp_path / "backup")
    with holdfast.open(new_url(kind, tmp_path)) as hf:
        restore(tmp_path / "backup", hf)
        assert [one.id for one in hf.tasks.list()] == [task.id]
        chat = hf.conversation("c1")
        chat.tasks.claim(task.id)
        chat.set("stage", "open")
        assert chat.at(1)["stage"] == "triage"
        assert hf.check().ok


def test_a_later_backup_reads_only_what_is_new(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:{tmp_path / 'store.db'}") as hf:
        for n in range(50):
            hf.conversation("c1").set("n", n)
        assert backup(hf, tmp_path / "backup").new_events == 50
        hf.conversation("c1").set("n", 50)
        backend: Any = hf._log._backend
        read: list[int] = []
        sound_all, sound = backend.read_all, backend.read

        def read_all(**asked: Any) -> Any:
            found = sound_all(**asked)
            read.extend(record.revision for record in found)
            return found

        def read_stream(*words: Any, **asked: Any) -> Any:
            found = sound(*words, **asked)
            read.extend(record.revision for record in found)
            return found

        backend.read_all, backend.read = read_all, read_stream
        point = backup(hf, tmp_path / "backup")
        assert (point.new_events, point.events, read) == (1, 51, [51])
        # Nothing is new: there is a point all the same.
        assert backup(hf, tmp_path / "backup").new_events == 0
        assert read == [51]


def test_a_time_and_a_label_name_a_point(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(tmp_path / "store", settings=Settings(clock=clock)) as hf:
        times: list[datetime] = []
        for n in range(3):
            hf.team("t").set("n", n)
            clock.advance(60)
            times.append(backup(hf, tmp_path / "backup", label=f"day-{n}").at)
    folder = tmp_path / "backup"
    assert find_point(folder, None).name == "p3"
    assert find_point(folder, "day-1").name == find_point(folder, "p2").name == "p2"
    assert find_point(folder, times[1]).name == "p2"
    assert find_point(folder, times[1] + timedelta(seconds=59)).name == "p2"
    assert find_point(folder, datetime(2100, 1, 1, tzinfo=UTC)).name == "p3"
    with pytest.raises(NotFoundError, match=r"no point at .* or before; the first is p1"):
        find_point(folder, times[0] - timedelta(seconds=1))
    with pytest.raises(NotFoundError, match='no point "day-7"; it has p1, p2, p3'):
        find_point(folder, "day-7")
    with pytest.raises(UsageError, match="at is the name of a point, a time or None"):
        find_point(folder, 3)  # type: ignore[arg-type]
    with holdfast.open("memory:") as target:
        restore(folder, target, at=times[1])
        assert target.team("t")["n"] == 1


def test_the_clock_of_the_target_says_what_has_ended(tmp_path: Path) -> None:
    """A server judges its scopes by its own clock, and this host's may be ahead."""
    host, servers = FakeClock(), FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=host)) as hf:
        hf.conversation("c", ttl_s=60).set("n", 1)
        backup(hf, tmp_path / "backup")
    host.advance(61)
    target = MemoryBackend(clock=servers)
    with holdfast.open(target, settings=Settings(clock=host)) as restored:
        restore(tmp_path / "backup", restored)
        assert restored.conversation("c")["n"] == 1


def test_one_scope_is_restored_with_what_it_needs(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store") as hf:
        hf.conversation("other").set("n", 1)
        chat = hf.conversation("c1")
        chat.set("text", "large " * 20_000)
        chat.tasks.add("mine")
        hf.conversation("other").tasks.add("not mine")
        chat.fork("f").set("k", 1)
        chat.set("later", 1)
        backup(hf, tmp_path / "backup")
        wanted = hf.conversation("f").state.to_dict()
    with holdfast.open("memory:") as target:
        restore(tmp_path / "backup", target, scope="conversation/f")
        assert [scope.name for scope in target.scopes()] == ["conversation/c1", "conversation/f"]
        assert target.conversation("f").state == wanted
        assert [task.title for task in target.tasks.list()] == ["mine"]
        assert target.check().ok
    with (
        holdfast.open("memory:") as target,
        pytest.raises(NotFoundError, match='no scope "conversation/none"'),
    ):
        restore(tmp_path / "backup", target, scope="conversation/none")


def test_several_backends_are_one_backup(tmp_path: Path) -> None:
    mix = {"*": str(tmp_path / "files"), "conversation": f"sqlite:{tmp_path / 'c.db'}"}
    with holdfast.open(mix) as hf:
        for n in range(3):
            hf.team("t").set("n", n)
            hf.conversation("c").tasks.add(f"task {n}")
            backup(hf, tmp_path / "backup")
        wanted = look(hf)
    with holdfast.open("memory:") as target:
        restore(tmp_path / "backup", target)
        assert look(target) == wanted
    with holdfast.open("memory:") as target:
        restore(tmp_path / "backup", target, at="p2")
        assert target.team("t")["n"] == 1
        assert len(list(target.tasks.list())) == 2


def test_what_has_expired_is_not_restored(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(tmp_path / "store", settings=Settings(clock=clock)) as hf:
        hf.conversation("short", ttl_s=60).set("n", 1)
        hf.conversation("long").set("n", 1)
        backup(hf, tmp_path / "backup")
        clock.advance(61)
        hf.conversation("long").set("n", 2)
        assert backup(hf, tmp_path / "backup").new_events == 1
    with holdfast.open("memory:", settings=Settings(clock=clock)) as target:
        assert restore(tmp_path / "backup", target, at="p2").copied.events == 2
        assert [scope.name for scope in target.scopes()] == ["conversation/long"]


# --- killed (beside writers: T24) ----------------------------------------------------------------


def boundaries_of(store: Store) -> Iterator[tuple[Any, str]]:
    backend: Any = store._log._backend
    yield backend, "commit"
    yield backend.objects, "put"


def killed_backup(url: str, folder: Path, fatal: int) -> None:
    """Makes a backup, and kills this process at one of the boundaries of it."""
    passed = 0

    def reach() -> None:
        nonlocal passed
        passed += 1
        if passed == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(function: Any) -> Any:
        def call(*words: Any, **options: Any) -> Any:
            reach()
            answer = function(*words, **options)
            reach()
            return answer

        return call

    sound_open = backups.open_store

    def open_watched(*words: Any, **options: Any) -> Store:
        store = sound_open(*words, **options)
        for owner, name in boundaries_of(store):
            setattr(owner, name, watched(getattr(owner, name)))
        return store

    backups.open_store = open_watched
    for name in ("_write", "_write_about", "_sync_folder"):
        setattr(backups, name, watched(getattr(backups, name)))
    os.replace = watched(os.replace)
    with holdfast.open(url) as hf:
        backup(hf, folder)


def test_killed_at_every_boundary(tmp_path: Path) -> None:
    """A point is whole or absent, and the next backup goes on from what there is."""
    url = str(tmp_path / "store")
    folder = tmp_path / "backup"
    fatal, survived = 0, 0
    random = Random(3)
    while survived < 2:  # the first backup, which makes the folder; then one that goes on
        fatal += 1
        with holdfast.open(url) as hf:
            change(hf, random)
            wanted = look(hf)
        if not survived:
            shutil.rmtree(folder, ignore_errors=True)
        child = Child(lambda p, s, fatal=fatal: killed_backup(url, folder, fatal))
        status = child.end()
        assert child.trouble is None, child.trouble
        if (folder / "backup.json").exists():
            for point in points(folder):
                with holdfast.open("memory:") as target:
                    restore(folder, target, at=point.name)
        if status == 0:
            fatal, survived = 0, survived + 1
            with holdfast.open("memory:") as target:
                restore(folder, target)
                assert look(target) == wanted
    with holdfast.open(url) as hf:
        assert backup(hf, folder).digest == content_of(hf._log).digest
    drill(folder)


def test_a_killed_restore_goes_on(tmp_path: Path) -> None:
    random = Random(5)
    with holdfast.open(tmp_path / "store") as hf:
        for _ in range(10):
            change(hf, random)
        backup(hf, tmp_path / "backup")
        wanted = look(hf)

    def live(fatal: int) -> None:
        with holdfast.open(tmp_path / "new") as target:
            backend: Any = target._log._backend
            sound, calls = backend.commit, 0

            def commit(*words: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return sound(words[0][:2]) + sound(words[0][2:])

            backend.commit = commit
            restore(tmp_path / "backup", target)

    for fatal in (1, 2, 0):
        child = Child(lambda p, s, fatal=fatal: live(fatal))
        child.end()
        assert child.trouble is None, child.trouble
    with holdfast.open(tmp_path / "new") as target:
        assert look(target) == wanted


# --- damage --------------------------------------------------------------------------------------


def test_a_damaged_stream_does_not_stop_the_others(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'store.db'}"
    with holdfast.open(url) as hf:
        for n in range(6):
            hf.team("sound").set("n", n)
            hf.team("hurt").set("n", n)
        hf.team("hurt").tasks.add("left open")
    import apsw

    damage = apsw.Connection(str(tmp_path / "store.db"))
    damage.execute(
        "UPDATE events SET payload = CAST('[[]]' AS BLOB) WHERE revision = 4 AND stream = "
        "(SELECT id FROM streams WHERE name = 'team/hurt')"
    )
    damage.close()
    with holdfast.open(url) as hf:
        point = backup(hf, tmp_path / "backup")
        assert list(point.damaged) == ["team/hurt"]
        hf.team("sound").set("n", 7)
        hf.team("hurt").messages.add("user", "after the damage: nothing leads there")
        assert list(backup(hf, tmp_path / "backup").damaged) == ["team/hurt"]
    with holdfast.open("memory:") as target:
        restore(tmp_path / "backup", target)
        assert target.team("sound")["n"] == 7
        assert target.team("hurt")["n"] == 2  # up to the damage
        assert target.check().ok


def test_a_backup_keeps_what_the_store_has_lost_since(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'store.db'}"
    with holdfast.open(url) as hf:
        for n in range(6):
            hf.team("hurt").set("n", n)
        backup(hf, tmp_path / "backup")
        hf.team("sound").set("n", 1)
    import apsw

    damage = apsw.Connection(str(tmp_path / "store.db"))
    damage.execute("UPDATE events SET payload = CAST('[]' AS BLOB) WHERE revision = 3")
    damage.close()
    with holdfast.open(url) as hf:
        backup(hf, tmp_path / "backup")
    with holdfast.open("memory:") as target:
        restore(tmp_path / "backup", target)
        assert target.team("hurt")["n"] == 5
        assert target.team("sound")["n"] == 1


# --- bad input -----------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A backup with two points."""
    with holdfast.open(tmp_path / "store") as hf:
        for n in range(2):
            hf.team("t").set("n", n)
            backup(hf, tmp_path / "backup", label=f"l{n}")
    return tmp_path / "backup"


def test_folders_that_are_something_else(tmp_path: Path, made: Path) -> None:
    with holdfast.open(tmp_path / "store") as hf:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes.txt").write_text("mine")
        with pytest.raises(ExistsError, match="is not empty, and is no backup"):
            backup(hf, tmp_path / "full")
        with pytest.raises(UnavailableError, match="cannot be read: Not a directory"):
            backup(hf, tmp_path / "full" / "notes.txt")
        assert os.listdir(tmp_path / "full") == ["notes.txt"]
        with pytest.raises(ExistsError, match='has a point "l1" already'):
            backup(hf, made, label="l1")
    with (
        holdfast.open(tmp_path / "another") as hf,
        pytest.raises(OtherStoreError, match="is a backup of another store"),
    ):
        backup(hf, made)
    with pytest.raises(NotFoundError, match=r"is no backup: it has no backup\.json"):
        points(tmp_path / "full")


def test_what_is_no_backup_is_not_drilled(tmp_path: Path, made: Path) -> None:
    """And nothing is written there: a folder of somebody's, a file, a name that is not there."""
    foreign, file = tmp_path / "foreign", tmp_path / "file"
    foreign.mkdir()
    file.touch()
    for place in (foreign, file, tmp_path / "absent"):
        with pytest.raises(
            (NotFoundError, UnavailableError), match=r"is no backup|Not a directory"
        ):
            drill(place)
    assert list(foreign.iterdir()) == []
    with pytest.raises(NotFoundError, match="no point"):
        drill(made, at="p9")
    assert list(made.glob("drill*")) == []
    for name, work in (("lock", prune), ("drills", drill)):
        (made / name).unlink(missing_ok=True)
        (made / name).mkdir()
        with pytest.raises(UnavailableError, match=f'{name}" cannot be opened: Is a directory'):
            work(made)
        (made / name).rmdir()
    assert drill(made).digest == points(made)[-1].digest


def test_a_drill_that_was_killed_leaves_no_copy_for_ever(tmp_path: Path, made: Path) -> None:
    """The next drill removes it, and so does a prune, unless another drill is at work."""

    def killed(_pipe: int, _stop: int) -> None:
        drill(made, progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    for work in (drill, prune):
        Child(killed).end()
        assert len(list(made.glob("drill-*"))) == 1
        work(made)
        assert list(made.glob("drill-*")) == []
    left: list[str] = []
    drill(made, progress=lambda *_: left.extend(one.remedy for one in prune(made).left))
    assert [one for one in left if one.startswith("a drill is under way")]


def test_a_store_that_is_older_than_its_backup(tmp_path: Path, made: Path) -> None:
    shutil.copytree(tmp_path / "store", tmp_path / "older")
    with holdfast.open(tmp_path / "store") as hf:
        hf.team("t").set("n", 3)
        backup(hf, made)
    with (
        holdfast.open(tmp_path / "older") as hf,
        pytest.raises(ConflictError, match="the store is older than its backup"),
    ):
        backup(hf, made)
    assert len(points(made)) == 3


def test_two_backups_at_once(tmp_path: Path, made: Path) -> None:
    with holdfast.open(tmp_path / "store") as hf, open(made / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match=r"another backup into .* is under way"):
            backup(hf, made)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert backup(hf, made).name == "p3"


def damage_line(made: Path) -> None:
    path = made / "points.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"label":"l0"', b'"label":"xx"'))


def damage_text(made: Path) -> None:
    path = made / "points.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"name"', b"{name", 1))


def damage_marks(made: Path) -> None:
    (made / "marks" / "p2.jsonl").write_text('{"index":"i","key":"k"}\n')


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (damage_line, 'line 1 of ".*" is damaged: it was changed since it was written'),
        (damage_text, 'line 1 of ".*" is damaged'),
        (damage_marks, "the marks of p2, .*: it was changed"),
        (lambda made: (made / "marks" / "p2.jsonl").unlink(), "the marks of p2, .*: it is gone"),
        (lambda made: shutil.rmtree(made / "store"), "has points, but its store is gone"),
        (lambda made: (made / "backup.json").write_text("{"), "backup.json.* cannot be read"),
    ],
)
def test_a_damaged_backup_says_so(harm: Any, told: str, made: Path) -> None:
    harm(made)
    with holdfast.open("memory:") as target, pytest.raises(CorruptError, match=told):
        restore(made, target)


def test_a_backup_of_a_newer_format(made: Path) -> None:
    (made / "backup.json").write_text('{"format":3,"stores":["x"]}')
    with pytest.raises(FormatError, match="format 3: this holdfast reads up to 2"):
        points(made)


def test_events_that_were_changed_are_found(tmp_path: Path, made: Path) -> None:
    """The digest of the point says what was there: one more event than it knows is noticed."""
    with holdfast.open(made / "store") as other:
        other.team("t").set("n", 7)
    for path in (made / "points.jsonl", made / "backup.json"):
        lines = path.read_bytes().replace(b'"position":2', b'"position":3').splitlines()
        bare = [line.rpartition(b',"sha256"')[0] + b"}" for line in lines]
        path.write_bytes(b"".join(digested(line) + b"\n" for line in bare))
    with (
        holdfast.open("memory:") as target,
        pytest.raises(CorruptError, match="is not what it was"),
    ):
        restore(made, target)
    with pytest.raises(CorruptError, match="is not what it was"):
        drill(made)
    assert [name for name in os.listdir(made) if name.startswith("drill-")] == []


def digested(line: bytes) -> bytes:
    """Returns a line with the digest of itself, as somebody would who makes one up."""
    return line[:-1] + b',"sha256":"' + sha256(line).hexdigest().encode() + b'"}'


def test_a_target_that_holds_something_else(made: Path) -> None:
    with holdfast.open("memory:") as target:
        target.team("t").set("mine", 1)
        with pytest.raises(ConflictError):
            restore(made, target)
        assert target.team("t").state == {"mine": 1}


def test_a_backup_without_a_point(tmp_path: Path) -> None:
    backups._begin(tmp_path / "backup", ["x"])
    assert points(tmp_path / "backup") == []
    with pytest.raises(NotFoundError, match="has no point yet"):
        find_point(tmp_path / "backup", None)


def test_a_transaction_that_holds_back_what_has_to_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a stranger's open transaction does so: the backup says what to end."""
    import psycopg

    monkeypatch.setattr(source, "HELD_BACK_S", 0.2)
    url = new_url("postgresql", tmp_path)
    with holdfast.open(url) as hf:
        hf.team("t").set("n", 1)
        with psycopg.connect(_postgresql().url("record")) as stranger:
            stranger.execute("CREATE TEMPORARY TABLE unrelated (n int)")
            hf.team("t").set("n", 2)
            with pytest.raises(UnavailableError, match="a transaction that is open on the server"):
                backup(hf, tmp_path / "backup")
            with pytest.raises(UnavailableError, match="a transaction that is open on the server"):
                interchange.export_scopes(hf, [], io.BytesIO())
        assert backup(hf, tmp_path / "backup").events == 2


def test_a_backup_of_what_is_sealed_asks_for_no_key(tmp_path: Path) -> None:
    """It has none: what it copied is compared with its name, as it is stored."""
    with holdfast.open(
        tmp_path / "store", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.team("red").set("letters", "x" * 100_000, subject="ada")
        hf.team("blue", subject="ada").set("letters", "y" * 100_000)
        point = backup(hf, tmp_path / "backup")
        assert not point.damaged
    with holdfast.open(
        tmp_path / "again", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        restore(tmp_path / "backup", hf)
        assert hf.team("red").state["letters"] == "x" * 100_000
        assert hf.team("blue", subject="ada").state["letters"] == "y" * 100_000
