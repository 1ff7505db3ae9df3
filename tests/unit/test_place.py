"""A copy beside its original is told; a store that moved is not taken for one (issue of copies)."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CorruptError, Store
from holdfast.backends import place

BACKENDS = ("files", "sqlite")


def url(backend: str, folder: Path) -> str:
    return f"{folder}/store" if backend == "files" else f"sqlite:{folder}/store.db"


def note_of(backend: str, folder: Path) -> Path:
    return folder / ("store/workers/place" if backend == "files" else "store.db.workers/place")


def told(where: str) -> list[str]:
    with holdfast.open(where, create=False) as store:
        return [report for report in store.status()["reports"] if "is a copy" in report]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def first(backend: str, tmp_path: Path) -> Path:
    """A folder with a store in it."""
    folder = tmp_path / "first"
    folder.mkdir(0o700)
    with holdfast.open(url(backend, folder)) as store:
        store.team("a").set("x", 1)
        store.workers.release(store.workers.lease("first"))
    with holdfast.open(url(backend, folder)):
        pass  # now there is a folder for the note, on SQLite too
    return folder


def copied(folder: Path, name: str) -> Path:
    other = folder.with_name(name)
    subprocess.run(["cp", "-r", folder, other], check=True)
    for path in (other, *other.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return other


def test_a_copy_is_told_as_long_as_its_original_is_there(
    backend: str, first: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(url(backend, first)) == []
    second = copied(first, "second")
    with caplog.at_level(logging.WARNING, "holdfast.backends"):
        [report] = told(url(backend, second))
    assert str(first) in report
    assert str(second) in report
    assert report in caplog.text
    assert len(told(url(backend, second))) == 1, "also the next time"
    assert told(url(backend, first)) == [], "the original is none"
    [report] = told(url(backend, copied(second, "third")))
    assert str(second) in report, "a copy of a copy"
    shutil.rmtree(first)
    assert told(url(backend, second)) == []
    with holdfast.open(url(backend, first.parent / "second"), read_only=True) as store:
        assert store.status()["reports"] == []


def test_a_reader_is_told_and_leaves_no_trace(backend: str, first: Path) -> None:
    second = copied(first, "second")
    before = note_of(backend, second).read_bytes()
    with holdfast.open(url(backend, second), read_only=True) as store:
        assert store.status()["reports"] == [], "nobody has opened the copy to write yet"
    assert note_of(backend, second).read_bytes() == before
    assert told(url(backend, second))
    with holdfast.open(url(backend, second), read_only=True) as store:
        assert "is a copy" in store.status()["reports"][0]


def test_what_moved_is_no_copy(backend: str, first: Path) -> None:
    moved = first.with_name("moved")
    first.rename(moved)
    assert told(url(backend, moved)) == []
    with holdfast.open(url(backend, moved.with_name("moved"))) as store:
        assert store.team("a").get("x") == 1
    elsewhere = copied(moved, "elsewhere")  # to another file system: copied, and removed there
    shutil.rmtree(moved)
    assert told(url(backend, elsewhere)) == []
    moved.mkdir(0o700)
    with holdfast.open(url(backend, moved)):
        pass  # another store in the old place, perhaps with the inode that the first one had
    assert told(url(backend, elsewhere)) == []
    assert told(url(backend, moved)) == []


def test_what_was_put_back_is_no_copy(backend: str, first: Path) -> None:
    backup = copied(first, "backup")
    shutil.rmtree(first)
    backup.rename(first)
    assert told(url(backend, first)) == []


def test_the_same_store_by_another_name_is_no_copy(backend: str, first: Path) -> None:
    (first.parent / "link").symlink_to(first)
    if backend == "files":
        with holdfast.open(url(backend, first.parent / "link")) as store:
            assert store.status()["reports"] == []
    assert told(url(backend, first)) == []


def test_a_clone_is_no_copy(first: Path, backend: str) -> None:
    if backend == "sqlite":
        return
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
    store = first / "store"
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "state"]):
        subprocess.run([*git, *words], cwd=store, check=True)
    clone = first.with_name("clone")
    subprocess.run([*git, "clone", "-q", store, clone], check=True)
    for path in (clone, *clone.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert told(str(clone)) == []


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"null\n", b'{"name":1}'])
def test_a_note_that_cannot_be_read_is_none(backend: str, first: Path, content: bytes) -> None:
    note_of(backend, first).write_bytes(content)
    assert told(url(backend, first)) == []
    assert told(url(backend, copied(first, "second"))), "and it was written again"


def test_a_note_that_cannot_be_written_is_no_harm(
    backend: str, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_of(backend, first).unlink()
    note_of(backend, first).mkdir()
    assert told(url(backend, first)) == []
    monkeypatch.setattr(place, "_place", fails)
    assert told(url(backend, first)) == []


def fails(path: str) -> Any:
    raise PermissionError(13, "not allowed", path)


def test_no_note_is_written_through_a_link(tmp_path: Path) -> None:
    """A store that somebody else laid could have one written into any folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with holdfast.open(f"sqlite:{tmp_path}/store.db") as store:
        store.team("a").set("x", 1)
    shutil.rmtree(tmp_path / "store.db.workers", ignore_errors=True)
    (tmp_path / "store.db.workers").symlink_to(elsewhere)
    with holdfast.open(f"sqlite:{tmp_path}/store.db") as store:
        assert store.team("a").get("x") == 1
    assert list(elsewhere.iterdir()) == []


def test_an_original_that_cannot_be_looked_at_is_not_there(
    backend: str, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = copied(first, "second")
    assert told(url(backend, second))
    real = place._place

    def look(path: str) -> place.Place:
        return fails(path) if "first" in path else real(path)

    monkeypatch.setattr(place, "_place", look)
    assert told(url(backend, second)) == []


def test_each_part_of_a_mixed_store_is_looked_at(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a"), holdfast.open(tmp_path / "b"):
        pass
    subprocess.run(["cp", "-rp", tmp_path / "b", tmp_path / "c"], check=True)
    with holdfast.open({"team": str(tmp_path / "a"), "*": str(tmp_path / "c")}) as mixed:
        [report] = mixed.status()["reports"]
    assert report.startswith(f'"{tmp_path / "c"}" is a copy')


def lose_blob(store: Store, folder: Path) -> None:
    store.team("a").set("document", os.urandom(50_000).hex())
    [blob] = (folder / "store" / "objects" / "blob").glob("*/*")
    blob.unlink()


def test_a_missing_blob_names_the_likely_cause(tmp_path: Path) -> None:
    """A live `cp -r` lacks blobs: `check` says what to do instead."""
    with holdfast.open(url("files", tmp_path)) as store:
        lose_blob(store, tmp_path)
        [finding] = store.check().findings
    assert "cp or tar" in finding.problem
    assert "holdfast copy" in finding.problem
    with holdfast.open(url("files", tmp_path)) as store, pytest.raises(CorruptError, match="copy"):
        _ = store.team("a").state["document"]
