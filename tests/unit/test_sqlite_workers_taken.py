"""SQLite: a worker whose file was taken passes for dead; its handle ends before it has a lease."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import FilesTakenError


def remove_file(workers: Path) -> None:
    [file] = [path for path in workers.iterdir() if len(path.name) == 32]
    file.unlink()


def remove_folder(workers: Path) -> None:
    shutil.rmtree(workers)


def replace_folder(workers: Path) -> None:
    shutil.copytree(workers, workers.with_name("copy"))
    shutil.rmtree(workers)
    workers.with_name("copy").rename(workers)


@pytest.mark.parametrize("hand", [remove_file, remove_folder, replace_folder])
def test_no_two_workers_have_one_lease_after_a_hand(
    tmp_path: Path, hand: Callable[[Path], None]
) -> None:
    url = f"sqlite:{tmp_path}/state.db"
    with holdfast.open(url) as store, holdfast.open(url) as other:
        store.workers.lease("seat")
        hand(tmp_path / "state.db.workers")
        with pytest.raises(FilesTakenError, match="workers"):
            store.workers.lease("chair")
        with pytest.raises(FilesTakenError):
            store.team("a").set("x", 1)
        other.workers.lease("chair")
