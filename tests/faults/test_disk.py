"""A limit of file sizes, a read-only disk, no permission, no descriptors left.

Each is told by one of our errors with a remedy; nothing stored is harmed, nothing acknowledged is
missing, and when the trouble is over the store works again. The means work for any user; those
that need the right to mount are added where there is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.faults.child import NOBODY, play
from tests.faults.mounts import may_mount, mounted
from tests.faults.stores import BACKENDS, content, make, place_of, url_of


def check_told(place: Path, said: dict[str, Any]) -> None:
    """Asserts that what was acknowledged is there, and that the store works again."""
    for error in said["errors"]:
        assert error["class"] == "UnavailableError"
        assert error["hint"], f"no remedy: {error['text']}"
    if "items" in said["read"]:
        assert set(said["told"]) <= set(said["read"]["items"])
    with holdfast.open(url_of(place)) as store:
        scope = store.team("full")
        there = [item.split()[0] for item in scope.state.get("log", [])]
        assert set(said["told"]) <= set(there)
        assert len(there) == len(set(there)), "something is there twice"
        # What was refused with a known outcome is not there.
        unknown = sum(error["outcome_known"] is False for error in said["errors"])
        assert len(there) - len(said["told"]) <= unknown
        assert store.check().ok
        scope.append("log", "after")
        assert scope.state["log"][-1] == "after"
    with holdfast.open(url_of(place)) as store:
        assert store.team("full").state["log"][-1] == "after"
        assert store.check().ok


@pytest.mark.parametrize("kib", [1, 20, 70, 300, 1100, 1500, 2600])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_that_may_not_grow_is_like_a_full_disk(
    backend: str, kib: int, tmp_path: Path
) -> None:
    place = place_of(backend, tmp_path)
    said = play("limited", url_of(place), kib << 10)
    assert said["errors"], "the limit was never met"
    if place.exists():
        check_told(place, said)


# What a machine lends us decides which means there are; none is ever skipped.
MOUNTED = ["read-only"] if may_mount() else []


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that any user can reach; pytest's own is private to whoever runs it."""
    base = "/tmp" if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(dir=base, prefix="holdfast-faults-"))
    place.chmod(0o755)
    yield place
    for path in (place, *place.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(place)


def give_away(place: Path) -> None:
    """Gives a store to the user that the child will be, if it will be another one."""
    if os.geteuid() == 0:
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


def set_modes(place: Path, *, file: int, directory: int) -> None:
    below = sorted(place.rglob("*"), reverse=True) if place.is_dir() else []
    for path in (*below, place):
        path.chmod(directory if path.is_dir() else file)


def take_back(directory: Path, place: Path) -> None:
    for path in (directory, place):
        if path.is_dir():
            path.chmod(0o755 if path == directory else 0o700)
    for path in sorted(place.rglob("*")) if place.is_dir() else []:
        path.chmod(0o700 if path.is_dir() else 0o600)
    for path in place.parent.glob(f"{place.name}*") if place.is_file() else []:
        path.chmod(0o600)
    if os.geteuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, 0, 0)


def check_read(backend: str, said: dict[str, Any], expected: list[Any]) -> None:
    """Asserts that everything was read, or on SQLite that it was told why not.

    SQLite keeps an index of its write-ahead log beside the database, also for those who only read.
    """
    if backend == "sqlite" and "reading" in said:
        assert said["reading"]["class"] == "UnavailableError", said
        assert "directory" in said["reading"]["hint"]
        return
    assert said.get("content") == repr(expected), said.get("reading")
    assert said["is_whole"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_may_only_be_read_is_read(backend: str, open_directory: Path) -> None:
    place = place_of(backend, open_directory)
    expected = make(place)
    give_away(open_directory)
    set_modes(place, file=0o400, directory=0o500)
    open_directory.chmod(0o555)
    said = play("unprivileged", url_of(place))
    assert "wrote" not in said
    assert said["writing"]["class"] == "UnavailableError", said["writing"]
    assert said["writing"]["hint"]
    check_read(backend, said, expected)
    take_back(open_directory, place)
    with holdfast.open(url_of(place)) as store:
        assert content(store) == expected
        assert store.check().ok


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_may_not_be_touched_is_unavailable(backend: str, open_directory: Path) -> None:
    place = place_of(backend, open_directory)
    expected = make(place)
    give_away(open_directory)
    place.chmod(0)
    said = play("unprivileged", url_of(place))
    for attempt in ("writing", "reading"):
        assert said[attempt]["class"] == "UnavailableError", said
        assert said[attempt]["hint"], said
    take_back(open_directory, place)
    with holdfast.open(url_of(place)) as store:
        assert content(store) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_may_not_be_made_is_unavailable(backend: str, open_directory: Path) -> None:
    give_away(open_directory)
    open_directory.chmod(0o555)
    said = play("unprivileged", url_of(place_of(backend, open_directory)))
    assert said["writing"]["class"] == "UnavailableError", said
    assert said["writing"]["hint"]
    assert said["reading"]["class"] == "NotFoundError", said
    assert list(open_directory.iterdir()) == []


@pytest.mark.parametrize("means", MOUNTED or ["modes"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_only_disk_is_told_and_can_be_read(
    backend: str, means: str, tmp_path: Path, open_directory: Path
) -> None:
    if means == "modes":
        test_a_store_that_may_only_be_read_is_read(backend, open_directory)
        return
    with mounted(tmp_path / "disk", "size=8m") as disk:
        place = place_of(backend, disk)
        expected = make(place)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, capture_output=True)
        said = play("denied", url_of(place))
        assert said["writing"]["class"] == "UnavailableError", said
        assert said["writing"]["hint"]
        check_read(backend, said, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_descriptors_nothing_is_lost(backend: str, tmp_path: Path) -> None:
    place = place_of(backend, tmp_path)
    make(place)
    refused = 0
    for free in range(16):
        before = []
        with holdfast.open(url_of(place)) as store:
            before = list(store.team("few").state.get("log", []))
        said = play("descriptors", url_of(place), free)
        refused += bool(said["errors"])
        for error in said["errors"]:
            assert error["hint"], error
        added = said["there"][len(before) :]
        assert said["there"][: len(before)] == before
        assert added[: said["told"]] == list(range(said["told"]))
        unknown = any(error["outcome_known"] is False for error in said["errors"])
        assert len(added) <= said["told"] + unknown
        assert said["is_whole"]
    assert refused, "there were always descriptors enough"
