"""Files lost and payloads changed in a closed store: never an empty one, never wrong content.

Flipped, zeroed and cut bytes are those of the torture programme t8.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CorruptError, HoldfastError, UnavailableError
from holdfast.errors import FormatError
from tests.faults.stores import BACKENDS, bytes_below, content, fill, make, place_of, url_of

HONEST = (CorruptError, FormatError, UnavailableError)
# Without head.json the end of the text is wherever the text ends; `check --expect` is for that.
TRUTHS = ("holdfast.json", "log/", "objects/blob/")


def open_damaged(place: Path, expected: list[Any]) -> str:
    """Opens, reads and checks a damaged store; returns what became of it, or fails."""
    try:
        with holdfast.open(url_of(place), create=False) as store:
            report = store.check()
            *found, marks, events = content(store)
    except HONEST as error:
        return type(error).__name__
    assert (found, events) == (expected[:-2], expected[-1]), "wrong content, and nobody said so"
    if marks != expected[-2]:
        # A row that SQLite loses is missed where numbers have no gaps, which marks have not: there
        # it takes a check.
        assert not report.ok, "wrong marks, and nobody said so"
        return "marks found wrong by check"
    return "reported" if report.findings else "harmless"


def copy_store(place: Path, copy: Path) -> None:
    """Makes a fresh copy, of nothing but the store's own files."""
    if copy.is_dir():
        shutil.rmtree(copy)
    for left in copy.parent.glob(f"{copy.name}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    if place.is_dir():
        shutil.copytree(place, copy, symlinks=True)
        copy.chmod(0o700)
    else:
        shutil.copyfile(place, copy)
        copy.chmod(0o600)


@pytest.mark.parametrize("backend", BACKENDS)
def test_guarantee_7_a_lost_file_is_never_an_empty_store(backend: str, tmp_path: Path) -> None:
    place = place_of(backend, tmp_path)
    expected = make(place)
    (tmp_path / "copy").mkdir()
    copy = place_of(backend, tmp_path / "copy")
    for name in bytes_below(place):
        copy_store(place, copy)
        (copy if copy.is_file() else copy / name).unlink()
        if backend == "sqlite":
            with pytest.raises(HoldfastError):
                holdfast.open(url_of(copy), create=False)
            continue
        outcome = open_damaged(copy, expected)
        if name.startswith(TRUTHS):
            assert outcome in ("CorruptError", "FormatError"), name
        else:
            assert outcome in ("harmless", "reported"), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_guarantee_6_check_names_what_is_damaged(backend: str, tmp_path: Path) -> None:
    """A store that opens in spite of a flipped payload byte: check finds it and reading raises."""
    place = place_of(backend, tmp_path)
    with holdfast.open(url_of(place)) as store:
        fill(store)
        for n in range(400):
            store.workflow("long").append("log", f"item {n}")
    path = next(place.glob("log/*.jsonl")) if place.is_dir() else place
    data = path.read_bytes()
    assert b'"item 7"' in data
    path.write_bytes(data.replace(b'"item 7"', b'"item 8"'))
    with pytest.raises(CorruptError), holdfast.open(url_of(place)) as store:
        report = store.check()
        assert not report.ok
        assert any("long" in f"{one.where} {one.problem}" for one in report.findings)
        list(store.workflow("long").history())
