"""T8: bytes flipped, zeroed, cut and files lost in a closed store; never wrong content.

HOLDFAST_DAMAGE raises the number of damages per backend. Each damaged copy either raises
CorruptError, FormatError or UnavailableError, or says exactly what was stored.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CorruptError, FormatError, HoldfastError, UnavailableError
from tests.faults.stores import BACKENDS, bytes_below, content, fill, make, place_of, url_of

DAMAGES = int(os.environ.get("HOLDFAST_DAMAGE", "150"))
SEED = int(os.environ.get("HOLDFAST_SEED", str(time.time_ns() % 1_000_000)))
HONEST = (CorruptError, FormatError, UnavailableError)
# Without head.json the end of the text is wherever the text ends; `check --expect` is for that.
TRUTHS = ("holdfast.json", "log/", "objects/blob/")


Damage = tuple[str, str, int, bytes]


def damages(files: dict[str, bytes], chance: random.Random, count: int) -> Iterator[Damage]:
    """Yields damages of every kind, every file getting its share, small ones too."""
    names = [name for name, data in files.items() if data]
    for number in range(count):
        name = names[number % len(names)]
        data = files[name]
        at = chance.randrange(len(data))
        kind = chance.choice(("flip", "flip", "flip", "zero", "cut", "byte"))
        if kind == "flip":
            changed = bytearray(data)
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == "byte":
            changed = bytearray(data)
            changed[at] = chance.randrange(256)
        elif kind == "zero":
            start = at // 512 * 512
            changed = bytearray(data)
            changed[start : start + 512] = bytes(len(data[start : start + 512]))
        else:
            changed = bytearray(data[:at])
        if bytes(changed) != data:
            yield name, kind, at, bytes(changed)


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


def put(place: Path, name: str, data: bytes) -> None:
    path = place if place.is_file() else place / name
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.timeout(120 + DAMAGES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_guarantee_6_and_7_no_damage_becomes_wrong_content(
    backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = place_of(backend, tmp_path)
    expected = make(place)
    files = bytes_below(place)
    outcomes: Counter[str] = Counter()
    chance = random.Random(f"{SEED} {backend}")
    (tmp_path / "copy").mkdir()
    copy = place_of(backend, tmp_path / "copy")
    for name, kind, at, changed in damages(files, chance, DAMAGES):
        copy_store(place, copy)
        put(copy, name, changed)
        try:
            outcomes[open_damaged(copy, expected)] += 1
        except Exception as error:
            raise AssertionError(
                f"{kind} at byte {at} of {name}: {type(error).__name__}: {error} "
                f"(HOLDFAST_SEED={SEED} HOLDFAST_DAMAGE={DAMAGES} replays it)"
            ) from error
    with capfd.disabled():
        print(f"\n{backend}, seed {SEED}: damages {dict(outcomes)}", file=sys.stderr)
    assert outcomes["CorruptError"], "a test that can find nothing proves nothing"


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
