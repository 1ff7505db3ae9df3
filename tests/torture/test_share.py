"""The share of the torture programme that every run of the tests does, and its counts.

HOLDFAST_SEED chooses another seed. A failure prints the one command that replays it. Every fault
that can be planted is planted, and must be found: a programme that finds nothing is able to. One
that a row can have on several backends is planted on the first; HOLDFAST_PLANTS=all plants each.
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

from tests.servers import postgresql
from tests.torture.programme import Programme, programmes

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = os.environ["HOLDFAST_SEED"]
PLANTS = os.environ.get("HOLDFAST_PLANTS", "once")
ALL = 1_000_000_000
KNOWN = [one for one in programmes().values() if not one.needs_root or os.geteuid() == 0]


def parts(one: Programme) -> list[Any]:
    """Cuts a share into tests of about the same size: every nth point each."""
    end = ALL if one.share is None else one.share
    return [
        pytest.param(one, f"{at}:{end}:{one.parts}", id=f"{one.name}-{at}")
        for at in range(one.parts)
    ]


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("one", "points"), [part for one in KNOWN for part in parts(one)])
def test_share(
    one: Programme, points: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done = torture(tmp_path, one.name, "--seed", SEED, "--points", points)
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
            name = (row, plant, backend) if PLANTS == "all" else (row, plant)
            found.setdefault(name, pytest.param(one, plant, within, id=f"{one.name}-{plant}"))
    return list(found.values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("one", "plant", "within"), planted())
def test_a_planted_fault_is_found(one: Programme, plant: str, within: int, tmp_path: Path) -> None:
    done = torture(tmp_path, one.name, "--seed", "1", "--points", f"0:{within}", "--plant", plant)
    assert done.returncode == 1, f"{plant} was not found: {done.stdout[-2000:]}{done.stderr}"
    assert f"--plant {plant}" in done.stdout
