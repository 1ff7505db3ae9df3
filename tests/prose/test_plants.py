"""Each planted fault is caught: a const without its guard, forged narration, arms out of order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import plants
from tests.prose.cutting import uncut
from tests.prose.samples import BY_NAME
from tests.prose.test_transcript import forgery_counts
from tests.prose.test_views_run import const_is_guarded


@pytest.mark.parametrize("plant", [plants.const_guard_off, plants.const_guard_by_digest])
def test_a_const_without_its_guard_is_caught(plant: plants.Plant, tmp_path: Path):
    assert const_is_guarded(tmp_path / "whole")
    with plant():
        assert not const_is_guarded(tmp_path / "broken")


def test_forged_narration_is_caught():
    assert not forgery_counts()
    with plants.narration_without_digests():
        assert forgery_counts()


@pytest.mark.parametrize("name", ["arms_assign_in_order", "parallel_for", "nested_arms"])
def test_arms_in_the_wrong_order_are_caught(name: str):
    uncut(BY_NAME[name], "memory:")
    with plants.arms_in_wrong_order(), pytest.raises(AssertionError):
        uncut(BY_NAME[name], "memory:")
