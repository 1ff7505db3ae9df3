"""The share of the torture programme that the tests try, and its counts.

`make test` tries a part of each row's share that moves on with each commit, for SECONDS_MAX at
most; `make test-all` tries the whole share. HOLDFAST_SEED chooses another seed. A failure prints
the one command that replays it.

Faults are planted, and must be found: only a programme that finds something can be believed when it
finds nothing. `make test` plants each once in any ten commits, on the first backend that has it;
`make test-all` plants all of them, on every backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.selection import RUNS_ALL, this_turn, turn
from tests.servers import postgresql
from tests.torture.programme import Programme, programmes

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = os.environ["HOLDFAST_SEED"]
ALL = 1_000_000_000
SECONDS_MAX = 60
"""How long a row may take in `make test`; on two idle processors all take less."""
PLANT_TURNS = 10
KNOWN = [one for one in programmes().values() if not one.needs_root or os.geteuid() == 0]


def parts(one: Programme) -> list[Any]:
    """Returns the tests of a row: the part whose turn it is, or the whole share in equal parts."""
    end = ALL if one.share is None else one.share
    if RUNS_ALL:
        return [
            pytest.param(one, f"{at}:{end}:{one.parts}", id=f"{one.name}-{at}")
            for at in range(one.parts)
        ]
    turns = min(one.turns, end)
    return [pytest.param(one, f"{turn() % turns}:{end}:{turns}", id=one.name)]


def torture(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs points in a process of their own: they fork, and pytest's worker has threads."""
    if "postgresql" in arguments[0]:
        postgresql.prepare()
    return subprocess.run(
        [sys.executable, "-m", "tests.torture", *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]),
            "TMPDIR": str(place),
        },
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("one", "points"), [part for one in KNOWN for part in parts(one)])
def test_share(
    one: Programme, points: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    limit = [] if RUNS_ALL else ["--seconds", str(SECONDS_MAX)]
    done = torture(tmp_path, one.name, "--seed", SEED, "--points", points, *limit)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["cases"] > 0, said
    record_property("torture", said)


def planted() -> list[Any]:
    """Returns every fault with the programme that must find it, and within how many points."""
    found: dict[tuple[str, ...], Any] = {}
    for one in KNOWN:
        row, _, backend = one.name.partition("-")
        for plant, within in one.plants.items():
            name = (row, plant, backend) if RUNS_ALL else (row, plant)
            found.setdefault(name, pytest.param(one, plant, within, id=f"{one.name}-{plant}"))
    return list(found.values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("one", "plant", "within"), this_turn(planted(), PLANT_TURNS))
def test_a_planted_fault_is_found(one: Programme, plant: str, within: int, tmp_path: Path) -> None:
    done = torture(tmp_path, one.name, "--seed", "1", "--points", f"0:{within}", "--plant", plant)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout[-2000:]}{done.stderr}"
    assert f"--plant {plant}" in done.stdout


def test_every_fault_is_planted_within_ten_commits_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = list(range(197))
    monkeypatch.setattr("tests.selection.RUNS_ALL", False)
    for first in (0, 7, 426):
        met: set[int] = set()
        for number in range(first, first + PLANT_TURNS):
            monkeypatch.setattr("tests.selection.turn", lambda number=number: number)
            met.update(this_turn(faults, PLANT_TURNS))
        assert met == set(faults)
