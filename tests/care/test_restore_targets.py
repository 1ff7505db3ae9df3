"""Into which stores a backup is restored: none loses what was set there since (0044)."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backup import backup, restore
from holdfast.core.check import content_of
from holdfast.core.retention import Retainer
from holdfast.errors import ConflictError, CorruptError, UsageError
from holdfast.transfer.sink import Sink
from tests.care.test_backup import look
from tests.record.stores import DURABLE, new_url


def fill(hf: Store, folder: Path) -> None:
    for n in range(2):
        hf.conversation("c").set("n", n)
        hf.conversation("d").tasks.add(f"task {n}")
        hf.retention.hold("conversation/c")
        backup(hf, folder)


@pytest.mark.parametrize("kind", DURABLE)
@pytest.mark.parametrize("asked", [{"at": "p1"}, {}, {"scope": "conversation/d"}])
def test_the_store_that_goes_on_is_no_target(
    kind: str, asked: dict[str, str], tmp_path: Path
) -> None:
    """What was held since stays held, and nothing else changes either."""
    with holdfast.open(new_url(kind, tmp_path)) as hf:
        fill(hf, tmp_path / "backup")
        with hf.commit() as tx:
            tx.mark("own", "set since", due=7)
        wanted = look(hf)
        with pytest.raises(UsageError, match="cannot be restored into the store that it was made"):
            restore(tmp_path / "backup", hf, **asked)
        assert look(hf) == wanted
        assert sorted(hf._kernel.part(Retainer).held()) == ["conversation/c"]


def test_the_backups_own_store_is_no_target(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store") as hf:
        fill(hf, tmp_path / "backup")
    with (
        holdfast.open(tmp_path / "backup" / "store") as own,
        pytest.raises(UsageError, match="nor into its own"),
    ):
        restore(tmp_path / "backup", own)


@pytest.mark.parametrize("kind", DURABLE)
def test_an_earlier_restore_is_brought_further_and_never_back(kind: str, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "source") as hf:
        hf.conversation("c").set("n", 0)
        hf.conversation("c").tasks.add("one")
        backup(hf, tmp_path / "backup")
        hf.conversation("c").set("n", 1)
        hf.retention.hold("conversation/c")
        backup(hf, tmp_path / "backup")
        wanted = look(hf)
    with holdfast.open(new_url(kind, tmp_path)) as target:
        restore(tmp_path / "backup", target, at="p1")
        restore(tmp_path / "backup", target, at="p2")
        assert look(target) == wanted
        for scope in (None, "conversation/c"):
            with pytest.raises(ConflictError, match="it is ahead of the point"):
                restore(tmp_path / "backup", target, at="p1", scope=scope)
        assert look(target) == wanted
        assert restore(tmp_path / "backup", target).copied.marks == 0


def test_the_marks_of_other_scopes_stay(tmp_path: Path) -> None:
    """Of a restore of one scope only the marks about it are those of the point."""
    with holdfast.open(tmp_path / "source") as hf:
        hf.conversation("c").tasks.add("of c")
        hf.conversation("d").tasks.add("of d")
        hf.retention.hold("conversation/d")
        hf.conversation("short", ttl_s=3600).set("n", 1)
        hf.retention.hold("conversation/short")
        backup(hf, tmp_path / "backup")
        wanted = look(hf)
    with holdfast.open("memory:") as target:
        restore(tmp_path / "backup", target)
        restore(tmp_path / "backup", target, scope="conversation/c")
        assert look(target) == wanted
        assert sorted(target._kernel.part(Retainer).held()) == [
            "conversation/d",
            "conversation/short",
        ]
        assert len(list(target.tasks.list())) == 2


def test_marks_are_cleared_after_the_digest_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that turns out to be wrong keeps its marks."""
    with holdfast.open(tmp_path / "source") as hf:
        hf.conversation("c").set("n", 0)
        backup(hf, tmp_path / "backup")
    with holdfast.open("memory:") as target:
        with target.commit() as tx:
            tx.mark("own", "set before", due=7)
        monkeypatch.setattr(Sink, "take", lambda *_: None)
        with pytest.raises(CorruptError, match="is not what it was at p1"):
            restore(tmp_path / "backup", target)
        assert [mark.key for mark in target.workers.marks("own")] == ["set before"]
        assert content_of(target._log).events == 0
