"""The judge of T13 by itself: nothing is called a fault that is allowed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.runs.corpus import BY_NAME
from tests.runs.witness import Witness
from tests.torture import runs_world
from tests.torture.programme import Point


def test_an_owner_whose_lease_lapsed_may_report_what_it_was_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 4: a machine on which a heart gets no processor is slow, and the engine sound."""
    act: Any = vars(Witness)["_act"]

    def slow(witness: Witness, *args: Any, **options: Any) -> Any:
        done = act(witness, *args, **options)
        time.sleep(2 * runs_world.LEASE_S)
        return done

    monkeypatch.setattr(Witness, "_act", slow)
    monkeypatch.setattr(runs_world, "LEASE_S", 0.05)
    monkeypatch.setattr("holdfast.core.leases.LeaseKeeper.tend", lambda _lease_keeper: 60.0)
    point = Point(1, 0, tmp_path)
    with runs_world.World(point, "files", BY_NAME["unverified"]) as world:
        said = world.last()
    assert said["uncertain"]
    assert len(said["uncertain"]) <= said["lapsed"]
