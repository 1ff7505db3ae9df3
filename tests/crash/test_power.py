"""Power loss needs root and tools: a run of the tests says what it left out, and why."""

from __future__ import annotations

from collections.abc import Callable

from tests.torture.power_disk import MKFS, missing
from tests.torture.t3_power import PROGRAMMES


def test_what_is_left_out_is_said(record_property: Callable[[str, object], None]) -> None:
    for kind in MKFS:
        problem = missing(kind)
        assert bool(problem) == (not any(one.name.endswith(kind) for one in PROGRAMMES))
        if problem:
            row = {"programme": f"t3-{kind}: {problem}", "points": 0, "cases": 0}
            record_property("torture", {**row, "seconds": 0.0, "seed": 0})
