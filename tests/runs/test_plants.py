"""The tests find what they are for: each engine that is broken on purpose is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import holdfast
from holdfast import Store
from tests.record.stores import new_url
from tests.runs import test_changes, test_flow, test_owners, test_steps
from tests.runs.corpus import BY_NAME
from tests.runs.cuts import Place, cut, differences, uncut
from tests.runs.plants import PLANTS, Plant, planted
from tests.runs.witness import fresh


def on_memory(test: Callable[[Store], None]) -> Callable[[Path], None]:
    def run(place: Path) -> None:
        with holdfast.open("memory:") as hf:
            test(hf)

    return run


def paused_owner(place: Path) -> None:
    test_owners.GATE.clear()
    test_owners.ENTERED.clear()
    try:
        test_owners.test_a_paused_owner_that_wakes_is_refused(new_url("sqlite", place), fresh())
    finally:
        test_owners.GATE.set()


def patience(place: Path) -> None:
    test_steps.test_a_long_back_off_holds_no_thread_and_outlives_the_process()


WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")
SWALLOWED = test_flow.test_a_swallowed_control_exception_does_not_count_and_is_named
RULES: dict[str, Callable[[Path], None]] = {
    "a paused owner": paused_owner,
    "changed inputs": on_memory(
        lambda hf: test_changes.test_changed_inputs_of_an_act_park(hf, fresh())
    ),
    "swallowed control": on_memory(lambda hf: SWALLOWED(hf, "returns")),
    "live and replay": on_memory(test_steps.test_live_equals_replay),
    "a long back-off": patience,
}


def cut_everywhere(name: str, plant: Plant | None) -> None:
    """Cuts a program at every commit and in every act, with the engine broken for the trials."""
    program = BY_NAME[name]
    whole = uncut(program, "memory:")
    places = [Place("commit", nth, when) for nth in range(1, whole.commits + 1) for when in WHEN]
    places += [Place("act", nth, when) for nth in range(1, whole.act_count + 1) for when in WHEN]
    for place in places:
        if plant is None:
            ended = cut(program, "memory:", place)
        else:
            with planted(plant):
                ended = cut(program, "memory:", place)
        assert differences(program, ended) == [], str(place)


def judge(caught_by: str, plant: Plant | None, place: Path) -> None:
    if caught_by not in RULES:
        cut_everywhere(caught_by, plant)
    elif plant is None:
        RULES[caught_by](place)
    else:
        with planted(plant):
            RULES[caught_by](place)


@pytest.mark.parametrize("caught_by", sorted(set(PLANTS.values())))
def test_the_engine_as_it_is_passes(caught_by: str, tmp_path: Path):
    judge(caught_by, None, tmp_path)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_broken_engine_is_caught(plant: Plant, tmp_path: Path):
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        judge(PLANTS[plant], plant, tmp_path)
    # A plant that no longer fits the engine fails by itself, and proves nothing.
    assert not isinstance(caught.value, TypeError | AttributeError | NameError), caught.value
