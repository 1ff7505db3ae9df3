"""Backups, archives and copies of what is sealed need no key, and take none along (0045)."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast import Settings
from holdfast.archive import archive
from holdfast.backup import backup, restore
from holdfast.scope import Scope


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
