"""SIGKILL at every boundary of a walk: a result is whole or absent, and is not computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.nodes import kills
from tests.selection import this_turn

KILLS = 125
PARTS = 4


@pytest.mark.parametrize("part", this_turn(range(PARTS), 2))
@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_walks_that_are_killed_at_every_boundary(kind: str, part: int, tmp_path: Path):
    """1,000 kills in two commits, in stores of their own: a worker takes one after the other."""
    url = str(tmp_path / "store") if kind == "files" else f"sqlite:{tmp_path / 'store.db'}"
    ledger = tmp_path / "ledger"
    boundaries = kills.kill_walks(url, ledger, KILLS)
    assert 20 < boundaries < KILLS  # every one of them was met
    assert kills.judge(ledger) == []
    with holdfast.open(url) as hf:
        assert hf.check().ok
        counts = [set(kills.stored(hf, x).values()) for x in range(KILLS - 1)]
        assert counts == [{1}] * (KILLS - 1)


def test_the_judge_of_kills_sees_a_result_that_is_computed_again(tmp_path: Path):
    ledger = tmp_path / "ledger"
    ledger.write_text("compute a 1\nfound a 1\ncompute b 1\ncompute a 2\n")
    assert kills.judge(ledger) == []
    ledger.write_text("compute a 1\nfound a 1\ncompute a 1\n")
    assert kills.judge(ledger) == ["compute a 1"]
