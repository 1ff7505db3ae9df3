"""Backups, archives and copies of what is sealed need no key, and take none along (0045)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings
from holdfast.archive import archive
from holdfast.backends.protocol import Cleared, Commit
from holdfast.backup import backup, restore
from holdfast.copy import copy, salvage
from holdfast.core.sealing import BESIDE
from holdfast.errors import UsageError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.scope import Scope
from holdfast.transfer.sink import Sink
from tests.record.stores import ALL, new_url


def filled(hf: holdfast.Store, name: str = "c") -> Scope:
    """Returns a subject's scope with a large value, whose fork has more."""
    chat = hf.conversation(name, subject="ada")
    chat.set("large", "x" * 100_000)
    fork = chat.fork(f"{name} fork")
    fork.set("n", 1)
    hf.team("red").set("large", "y" * 100_000, subject="ada")
    return fork


def test_a_backup_needs_no_key_of_a_subject(tmp_path: Path) -> None:
    """Forks and large values are verified as they are stored, also in the second point."""
    with holdfast.open(
        tmp_path / "s", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        filled(hf)
        backup(hf, tmp_path / "backup")
        filled(hf, "d")
        hf.scope("conversation/c fork").set("n", 2)
        backup(hf, tmp_path / "backup")
    with holdfast.open(tmp_path / "t") as hf:
        restore(tmp_path / "backup", hf)
        assert hf.check().ok
    with holdfast.open(tmp_path / "t", keys=tmp_path / "keys") as hf:
        assert hf.scope("conversation/c fork").get("n") == 2
        assert hf.scope("conversation/d").get("large") == "x" * 100_000
        assert hf.team("red").get("large") == "y" * 100_000


def test_what_was_sealed_is_archived_and_let_go_of_without_its_key(tmp_path: Path) -> None:
    with holdfast.open(
        tmp_path / "s", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        filled(hf)
        filled(hf, "d").remove()
    with holdfast.open(tmp_path / "s", keys=tmp_path / "none") as hf:
        assert [one.scope for one in hf.retention.run(grace_s=0).scopes] == ["conversation/d fork"]
        assert hf.check().ok
    with (
        holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf,
        holdfast.open(tmp_path / "t", keys=tmp_path / "none") as target,
    ):
        assert archive(hf, target, "conversation/c fork", older_than=1e-6).refused == {}
        assert target.check().ok
    with holdfast.open(tmp_path / "t", keys=tmp_path / "keys") as hf:
        assert hf.scope("conversation/c fork").get("n") == 1
        assert len(hf.scope("conversation/c fork").get("large")) == 100_000


def test_a_store_restored_from_before_an_erasure_lists_what_is_left(tmp_path: Path) -> None:
    """The marks and events of the erased came back with it; nobody else's lists fail for that."""
    with holdfast.open(
        tmp_path / "s", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        for scope in (hf.team("own", subject="ada"), hf.team("red")):
            scope.decide("what?", key="one")
            scope.decide("always", key="two", standing=True)
            scope.tasks.claim(scope.tasks.add("work").id)
            scope.facts.state("place", 1)
            scope.say("hello")
        backup(hf, tmp_path / "backup")
        hf.subjects.erase("ada")
    with holdfast.open(tmp_path / "t", keys=tmp_path / "keys") as hf:
        restore(tmp_path / "backup", hf)
        assert {one.scope for one in hf.decisions.list()} == {"team/red"}
        assert {one.scope for one in hf.decisions.list(incomplete=True)} == {"team/red"}
        assert {one.scope for one in hf.tasks.list()} == {"team/red"}
        assert {one.scope for one in hf.stale()} <= {"team/red"}
        assert list(hf.query(text="hello"))
        hf.recover()
        assert hf.check().ok


def exported(hf: holdfast.Store, target: holdfast.Store, place: Path) -> None:
    with (place / "file").open("wb") as file:
        export_scopes(hf, ["team/red"], file)
    import_scopes(target, place / "file")


def restored(hf: holdfast.Store, target: holdfast.Store, place: Path) -> None:
    backup(hf, place / "backup")
    restore(place / "backup", target, scope="team/red")


def copied(hf: holdfast.Store, target: holdfast.Store, place: Path) -> None:
    copy(hf, target)


def salvaged(hf: holdfast.Store, target: holdfast.Store, place: Path) -> None:
    salvage(hf, target)


def team_of(hf: holdfast.Store) -> None:
    team = hf.team("red")
    team.set("c", {"n": 1})
    team.set(("c", "name"), "Ada", subject="ada")
    hf.team("blue").set("c", 1)


@pytest.mark.parametrize("move", [exported, restored, copied, salvaged])
@pytest.mark.parametrize("has_mark", [True, False])
def test_what_is_sealed_stays_sealed_where_scopes_are_taken_to(
    tmp_path: Path, move: Callable[[holdfast.Store, holdfast.Store, Path], None], has_mark: bool
) -> None:
    """Also from a store of before, which has no mark."""
    keys = tmp_path / "keys"
    with (
        holdfast.open(tmp_path / "s", keys=keys) as hf,
        holdfast.open(tmp_path / "t", keys=keys) as target,
    ):
        team_of(hf)
        if not has_mark:
            unmark(hf)
        move(hf, target, tmp_path)
        if not has_mark:
            unmark(target)  # as if it had been taken by an older version: doing it again mends it
        move(hf, target, tmp_path)
        assert len(target._log.find_marks(BESIDE)) == 1
    with (
        holdfast.open(tmp_path / "t", keys=keys) as hf,
        pytest.raises(UsageError, match="sealed"),
    ):
        hf.team("red").set("c", {"name": "Eve", "n": 2})
    with holdfast.open(tmp_path / "t", keys=keys) as hf:
        hf.team("red").set("c", {"name": "Ada", "n": 2})
        hf.subjects.erase("ada")
        assert hf.team("red").get(("c", "name")) is holdfast.ERASED


def unmark(hf: holdfast.Store) -> None:
    log = hf._log
    gone = tuple(Cleared(mark.index, mark.key) for mark in log.find_marks(BESIDE))
    log._backend.commit([Commit(log.clock.now_us(), log.actor, marks=gone)])


@pytest.mark.parametrize("kind", ALL)
def test_a_copy_that_is_killed_has_said_that_values_are_sealed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        holdfast.open("memory:", keys=tmp_path / "keys") as hf,
        holdfast.open(new_url(kind, tmp_path), keys=tmp_path / "keys") as target,
    ):
        hf.team("blue").set("c", 1)
        copy(hf, target)
        assert target._log.find_marks(BESIDE) == []
        team_of(hf)

        def killed(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Sink, "_write_part", killed)
            copy(hf, target)
        assert len(target._log.find_marks(BESIDE)) == 1
        assert target._log.head("team/red") is None
        copy(hf, target)
        assert target.team("red").get(("c", "name")) == "Ada"
