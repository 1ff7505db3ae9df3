"""Tests that take turns all have one, and a file that is run by hand runs whole."""

from __future__ import annotations

from math import gcd

import pytest

from tests import selection
from tests.record import kills

NAMES = [f"tests/record/test_turns.py::test_{number}[redis]" for number in range(50)]


def test_each_test_has_a_turn_within_as_many_commits_in_a_row(monkeypatch: pytest.MonkeyPatch):
    turns = selection.IN_TURNS["tests/record/test_turns.py"]
    for first in (0, 7, 426):
        met: list[str] = []
        for number in range(first, first + turns):
            monkeypatch.setattr(selection, "turn", lambda number=number: number)
            met += filter(selection.has_its_turn, NAMES)
        assert sorted(met) == sorted(NAMES)


def test_all_others_run_at_every_commit():
    assert selection.has_its_turn("tests/record/test_messages.py::test_x[redis]")


def test_places_that_take_turns_exist():
    assert all((selection.ROOT / place).exists() for place in selection.IN_TURNS)


@pytest.mark.parametrize("turns", [kills.TURNS, kills.EVERY_CALL_TURNS])
def test_a_test_that_takes_turns_meets_every_place_of_a_kill(turns: int):
    """Or `make test` would never kill at some places, however many commits there are."""
    assert {gcd(turns, each) for each in selection.IN_TURNS.values()} == {1}
