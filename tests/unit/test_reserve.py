"""Space that is kept free beside a store, for letting go on a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast import Settings, UsageError
from holdfast.core import reserve
from holdfast.retention import DiskWatch

WATCH = DiskWatch(warn=None, no_blobs=None, no_commits=None, reserve="2MB")


def held(place: Path) -> int:
    path = Path(reserve.folder_of(str(place)), "space")
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_store_keeps_it_beside_itself(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "state"
    url = str(place) if kind == "files" else f"sqlite:{place}"
    with holdfast.open(url) as hf:
        hf.team("a").set("x", 1)
    assert held(place) == 0, "only who asks for it has it"
    with holdfast.open(url, settings=Settings(disk_watch=WATCH)) as hf:
        assert held(place) == 2_000_000
        hf.team("a").remove()
        hf.retention.run(grace_s=0)
        assert held(place) == 2_000_000
        assert not hf.check().findings
    again = DiskWatch(reserve="1MB")
    with holdfast.open(url, settings=Settings(disk_watch=again)):
        assert held(place) == 1_000_000
    with holdfast.open(url, read_only=True, settings=Settings(disk_watch=WATCH)):
        assert held(place) == 1_000_000
    with holdfast.open(url):
        assert held(place) == 1_000_000, "who says nothing of the disk changes nothing"
    with holdfast.open(url, settings=Settings(disk_watch=DiskWatch())):
        assert not Path(reserve.folder_of(str(place))).exists()


@pytest.mark.parametrize(("size", "is_kept"), [(1_000, True), (2_000, False)])
def test_processes_that_open_a_store_at_once_share_it(
    size: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins and ends while the first one writes."""
    place = str(tmp_path / "state")
    real = os.fsync

    def fsync(fd: int) -> None:
        monkeypatch.setattr(reserve.os, "fsync", real)
        assert reserve.keep(place, size)
        real(fd)

    monkeypatch.setattr(reserve.os, "fsync", fsync)
    assert reserve.keep(place, 1_000) == is_kept
    assert held(tmp_path / "state") == size
    assert sorted(os.listdir(reserve.folder_of(place))) == [".gitignore", "space"]


def test_what_a_killed_process_left_is_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(tmp_path / "state")
    assert reserve.keep(place, 1_000)
    left = Path(reserve.folder_of(place), "space.7-abc")
    left.write_bytes(b"0")
    assert reserve.keep(place, 1_000)
    assert not left.exists()
    mine = left.with_name("notes")
    mine.touch()
    reserve.drop(place)
    assert os.listdir(left.parent) == ["notes"]
    assert "stays" in caplog.text
    mine.unlink()
    reserve.drop(place)
    reserve.drop(place)
    assert not left.parent.exists()


def test_a_file_that_another_process_takes_away_first_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "state")
    assert reserve.keep(place, 1_000)
    monkeypatch.setattr(reserve.os, "listdir", lambda _: ["space", "space.7-abc"])
    assert reserve.keep(place, 1_000)


def test_a_server_or_memory_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open("memory:", settings=Settings(disk_watch=WATCH)) as hf:
        hf.team("a").set("x", 1)
        assert hf.retention.run(grace_s=0).events == 0
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_means_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="reserve"):
        DiskWatch(reserve="much")


def test_it_takes_no_more_than_half_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "state")
    monkeypatch.setattr(reserve, "disk_space", lambda _: (3_000_000, 1 << 40))
    assert reserve.keep(place, 1_500_000)
    assert not reserve.keep(place, 1_500_001), "one of another size is made anew"
    assert held(tmp_path / "state") == 0
    assert not reserve.use(place)


@pytest.mark.parametrize("step", ["makedirs", "fsync", "replace"])
def test_a_disk_that_fails_leaves_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(reserve.os, step, fails)
        assert not reserve.keep(str(tmp_path / "state"), 1_000)
    assert [name for _, _, names in os.walk(tmp_path) for name in names] in ([], [".gitignore"])
    assert reserve.keep(str(tmp_path / "state"), 1_000)


def test_it_is_used_only_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "state"
    reserve.keep(str(place), 1_000)
    reserve.keep_all(None)
    facts = [str(place), str(tmp_path / "another")]
    monkeypatch.setattr(reserve, "disk_space", lambda _: (reserve.FULL_BYTES, 1 << 40))
    assert not reserve.use_if_full(facts)
    monkeypatch.setattr(reserve, "disk_space", lambda _: (reserve.FULL_BYTES - 1, 1 << 40))
    assert reserve.use_if_full(facts)
    assert not reserve.use_if_full(facts)
    reserve.keep_all(SimpleNamespace(reserves=lambda: [(str(place), 0)]))  # type: ignore[arg-type]
