"""What a store lets go of leaves its backups, too, or they say so (BOOT-35, BOOT-53, 0044)."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast import backup as backups
from holdfast.backup import backup, drill, points, prune, restore
from holdfast.core.check import content_of
from holdfast.errors import LetGoError, NotFoundError, UnavailableError
from holdfast.testing import FakeClock
from tests.crash.children import Child
from tests.record.stores import ALL, new_url

CANARY = "CANARY-5b2e"
LARGE = f"{CANARY} large " * 8_000


def write(hf: Store, name: str) -> None:
    chat = hf.conversation(name)
    chat.set("note", f"{CANARY} in {name}")
    chat.set("text", LARGE + name)
    chat.say(f"{CANARY} said")


def fill(hf: Store, folder: Path) -> None:
    """Makes three points: with all, after a retention, and after an erasure."""
    for name in ("kept", "retained", "erased"):
        write(hf, name)
    backup(hf, folder)
    hf.conversation("retained").remove()
    hf.retention.run(grace_s=0)
    second = backup(hf, folder)
    hf.subjects.erase(scope="conversation/erased")
    hf.team("t").set("n", 1)
    third = backup(hf, folder)
    assert (second.let_go, third.let_go) == (3, 3)


def raw(place: Path) -> bytes:
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ALL)
def test_a_point_after_a_letting_go_does_not_bring_it_back(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with holdfast.open(new_url(kind, tmp_path)) as hf:
        fill(hf, folder)
        assert [one.let_go for one in points(folder)] == [0, 3, 3]
    for point, has_retained in (("p1", True), ("p2", False), ("p3", False)):
        with holdfast.open(tmp_path / point) as target:
            restored = restore(folder, target, at=point)
            assert restored.digest == restored.point.digest
            assert target.check().findings == []
            assert target.conversation("kept")["text"] == LARGE + "kept"
            if has_retained:
                assert target.conversation("retained")["text"] == LARGE + "retained"
            else:
                with pytest.raises(LetGoError):
                    target.conversation("retained").at(2)
            with pytest.raises(LetGoError):  # of every point: the backup knows of the erasure
                target.conversation("erased").at(2)
            assert ("conversation/erased", "erased") in {
                (one.scope, one.why) for one in target.retention.past()
            }
            again = restore(folder, target, at=point)  # as after a kill at the very end
            assert again.digest == restored.digest
        stored = raw(tmp_path / point)
        assert (f"{CANARY} in retained".encode() in stored) is has_retained
        assert f"{CANARY} in erased".encode() not in stored


def test_a_backup_is_pruned_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with holdfast.open(tmp_path / "store") as hf:
        fill(hf, folder)
        before = [(one.name, one.digest) for one in points(folder)]
        assert f"{CANARY} in erased".encode() in raw(folder)
        done = prune(folder)
        assert (done.events, done.blobs) == (6, 2)
        assert done.bytes > 0
        assert done.left == []
        again = prune(folder)
        assert (again.events, again.bytes, again.blobs) == (0, 0, 0)
        for name in ("retained", "erased"):
            assert f"{CANARY} in {name}".encode() not in raw(folder)
        assert f"{CANARY} in kept".encode() in raw(folder)
        assert [(one.name, one.digest) for one in points(folder)] == before
        for name, digest in before:
            assert drill(folder, at=name).digest == digest
        hf.conversation("kept").set("n", 2)
        assert backup(hf, folder).digest == content_of(hf._log).digest
    with holdfast.open("memory:") as target:
        restore(folder, target, at="p1", scope="conversation/retained")
        assert target.check().findings == []
        with pytest.raises(LetGoError):
            target.conversation("retained").at(2)


def test_a_prune_is_killed_at_every_boundary(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "backup"
    with holdfast.open(tmp_path / "store") as hf:
        fill(hf, made)

    def killed(fatal: int) -> None:
        passed, sound_open = 0, backups.open_store

        def step(*words: Any) -> None:
            nonlocal passed
            passed += 1
            if passed == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        def opened(*words: Any, **options: Any) -> Store:
            store = sound_open(*words, **options)
            backend: Any = store._log._backend
            backend.opened._reach = step
            sound_delete = backend.objects.delete

            def delete(*words: Any) -> None:
                step()
                sound_delete(*words)
                step()

            backend.objects.delete = delete
            sound_purge = backend.purge

            def purge(**options: Any) -> Any:
                step()
                return sound_purge(**options)

            backend.purge = purge
            return store

        backups.open_store = opened
        prune(folder)

    fatal, status = 0, 1
    while status:
        fatal += 1
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
        child = Child(lambda p, s, fatal=fatal: killed(fatal))
        status = child.end()
        assert child.trouble is None, child.trouble
        for point in points(folder):
            with holdfast.open("memory:") as target:
                restore(folder, target, at=point.name)
                assert target.check().findings == []
        prune(folder)
        assert f"{CANARY} in erased".encode() not in raw(folder)
        assert f"{CANARY} in kept".encode() in raw(folder)
    assert fatal > 5


def test_what_cannot_be_pruned(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is no backup"):
        prune(tmp_path)
    with holdfast.open(tmp_path / "store") as hf:
        backup(hf, tmp_path / "backup")
    with (
        backups._alone(tmp_path / "backup"),
        pytest.raises(UnavailableError, match="another backup"),
    ):
        prune(tmp_path / "backup")


def test_what_was_erased_goes_although_something_had_ended_before_the_first_point(
    tmp_path: Path,
) -> None:
    clock, folder = FakeClock(), tmp_path / "backup"
    with holdfast.open(tmp_path / "s", settings=Settings(clock=clock)) as hf:
        hf.conversation("ended", ttl_s=60).set("n", 1)
        clock.advance(61)
        hf.retention.run(grace_s=0)
        write(hf, "erased")
        backup(hf, folder)
        hf.subjects.erase(scope="conversation/erased")
        backup(hf, folder)
    assert CANARY.encode() in raw(folder)
    prune(folder)
    assert CANARY.encode() not in raw(folder)
