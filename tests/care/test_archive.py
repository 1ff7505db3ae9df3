"""Archives: old scopes moved into another store, verified, and read there by its path (0049)."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast import archive as archives
from holdfast.archive import archive
from holdfast.core.check import content_of
from holdfast.core.tree import thaw
from holdfast.errors import (
    ConflictError,
    CorruptError,
    LetGoError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.testing import FakeClock
from tests.crash.children import Child
from tests.record.stores import ALL, new_url

LARGE = "large " * 20_000
DAY_S = 24 * 3600
NOW = 1e-6


def fill(hf: Store) -> None:
    for name in ("old", "older"):
        chat = hf.conversation(name)
        chat.set("text", LARGE + name)
        chat.say(f"hello {name}")
    hf.conversation("old").fork("forked").set("n", 1)


def states(hf: Store) -> dict[str, Any]:
    return {one: thaw(hf.scope(one).state) for one in hf._scopes.names()}


def age(clock: FakeClock) -> None:
    clock.advance(100 * DAY_S)


@pytest.mark.parametrize("kind", ALL)
def test_old_scopes_are_moved_and_read_by_path(kind: str, tmp_path: Path) -> None:
    """On every backend, with a large value, a message and a fork whose past comes along."""
    with holdfast.open(new_url(kind, tmp_path)) as hf, holdfast.open(tmp_path / "old") as old:
        fill(hf)
        planned = archive(hf, old, "conversation/*", older_than=NOW, dry_run=True)
        names = ["conversation/forked", "conversation/old", "conversation/older"]
        assert [one.scope for one in planned.scopes] == names
        assert (planned.dry_run, hf.retention.bin(), old._scopes.names()) == (True, [], [])
        hf.retention.hold("conversation/older")
        hf.conversation("busy").set("n", 1)
        hf.conversation("busy").decide("wait")
        moved = archive(hf, old, "conversation/*", older_than=NOW)
        assert [one.scope for one in moved.scopes] == names[:2]
        assert moved.held == ["conversation/older"]
        assert list(moved.refused) == ["conversation/busy"]
        assert moved.events == 6
        assert "archived to" in hf.retention.bin()[0].policy
        hf.retention.bring_back("conversation/old")
        assert hf.conversation("old")["text"] == LARGE + "old"
        assert hf.check().findings == []
    with holdfast.open(tmp_path / "old", create=False, read_only=True) as old:
        assert old.conversation("old")["text"] == LARGE + "old"
        assert [one.content for one in old.conversation("old").messages] == ["hello old"]
        assert old.conversation("forked")["n"] == 1
        assert old.check().findings == []


def test_only_what_was_not_written_to_for_so_long(tmp_path: Path) -> None:
    clock = FakeClock()
    with (
        holdfast.open("memory:", settings=Settings(clock=clock)) as hf,
        holdfast.open(tmp_path / "old") as old,
    ):
        fill(hf)
        age(clock)
        hf.conversation("new").set("n", 1)
        moved = archive(hf, old, "conversation/*", older_than="90d")
        assert len(moved.scopes) == 3
        assert hf.conversation("new")["n"] == 1
        age(clock)
        assert (
            hf.retention.run(grace_s=7 * DAY_S).events > 0
        )  # the bytes go when their grace is over
        with pytest.raises(LetGoError):
            hf.conversation("old").at(1)
        again = archive(hf, old, "conversation/new", older_than="90d")
        assert [one.scope for one in again.scopes] == ["conversation/new"]
    shutil.rmtree(tmp_path / "old")
    with pytest.raises(NotFoundError):
        holdfast.open(tmp_path / "old", create=False)


def test_one_that_is_written_to_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open("memory:") as hf, holdfast.open(tmp_path / "old") as old:
        chat = hf.conversation("c")
        chat.set("n", 1)
        sound = archives._verify

        def late(*words: Any) -> None:
            sound(*words)
            chat.set("n", 2)

        monkeypatch.setattr(archives, "_verify", late)
        moved = archive(hf, old, "conversation/*", older_than=NOW)
        assert (moved.scopes, list(moved.refused)) == ([], ["conversation/c"])
        assert chat["n"] == 2
        monkeypatch.setattr(archives, "_verify", sound)
        assert len(archive(hf, old, "conversation/*", older_than=NOW).scopes) == 1
        assert old.conversation("c")["n"] == 2


def test_an_archive_that_lost_what_was_written_keeps_the_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open("memory:") as hf, holdfast.open(tmp_path / "old") as old:
        hf.conversation("c").set("n", 1)
        monkeypatch.setattr(archives, "_copy", lambda *_: None)
        with pytest.raises(CorruptError, match="the scope stays"):
            archive(hf, old, "conversation/*", older_than=NOW)
        assert (hf.conversation("c")["n"], hf.retention.bin()) == (1, [])


def test_a_full_disk_keeps_the_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise UnavailableError("the archive cannot be written: No space left on device")

    with holdfast.open("memory:") as hf, holdfast.open(tmp_path / "old") as old:
        hf.conversation("c").set("n", 1)
        monkeypatch.setattr(archives, "take_scopes", full)
        with pytest.raises(UnavailableError, match="No space left"):
            archive(hf, old, "conversation/*", older_than=NOW)
        assert (hf.conversation("c")["n"], hf.retention.bin()) == (1, [])


def test_what_is_refused(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store") as hf, holdfast.open(tmp_path / "old") as old:
        hf.conversation("c").set("n", 1)
        with pytest.raises(UsageError, match="its own archive"):
            archive(hf, hf, "conversation/*", older_than=NOW)
        with pytest.raises(UsageError, match="is for no scope"):
            archive(hf, old, "team/*", older_than=NOW)
        with pytest.raises(UsageError):
            archive(hf, old, "*", older_than=NOW)
        mix = {"*": str(tmp_path / "store"), "team": str(tmp_path / "teams")}
        with holdfast.open(mix) as mixed, pytest.raises(UsageError, match="its own archive"):
            archive(mixed, hf, "conversation/*", older_than=NOW)
        old.conversation("c").set("n", 2)  # another scope of the same name
        with pytest.raises(ConflictError):
            archive(hf, old, "conversation/*", older_than=NOW)
        assert (hf.conversation("c")["n"], hf.retention.bin()) == (1, [])


def test_killed_at_every_boundary(tmp_path: Path) -> None:
    """A scope is whole in the store, or in the archive and in the bin; the next run ends it."""
    made, url, place = tmp_path / "made", tmp_path / "store", tmp_path / "old"
    with holdfast.open(made) as hf:
        fill(hf)
        wanted = states(hf)

    def killed(fatal: int) -> None:
        passed = 0

        def stepping(work: Any) -> Any:
            def call(*words: Any, **options: Any) -> Any:
                nonlocal passed
                passed += 1
                if passed == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return work(*words, **options)

            return call

        with holdfast.open(url) as hf, holdfast.open(place) as old:
            for store in (hf, old):
                backend: Any = store._log._backend
                backend.commit = stepping(backend.commit)
                backend.objects.put = stepping(backend.objects.put)
            archives._verify = stepping(archives._verify)
            archive(hf, old, "conversation/*", older_than=NOW)

    fatal, status = 0, 1
    while status:
        fatal += 1
        shutil.rmtree(url, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, url)
        child = Child(lambda p, s, fatal=fatal: killed(fatal))
        status = child.end()
        assert child.trouble is None, child.trouble
        with holdfast.open(url) as hf, holdfast.open(place) as old:
            left = set(hf._scopes.names())
            for name, state in wanted.items():
                assert states(hf if name in left else old)[name] == state
            if left:
                archive(hf, old, "conversation/*", older_than=NOW)
            assert states(old) == wanted
            assert (hf.check().findings, old.check().findings) == ([], [])
            assert content_of(old._log).events == 6
    assert fatal > 8
