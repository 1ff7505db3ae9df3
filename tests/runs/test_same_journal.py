"""One program, one journal: the same on every backend (guarantee 11, T13, differential)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.record.stores import DURABLE, new_url
from tests.runs.corpus import BY_NAME, PROGRAMS
from tests.runs.corpus_steps import Program
from tests.runs.cuts import Ended, differences, finish, opened, outcome
from tests.runs.journals import lines
from tests.runs.witness import fresh


def journal_on(program: Program, url: str) -> tuple[Any, Ended]:
    witness = fresh()
    store, _ = opened(url)
    with store:
        ended = outcome(store, program, finish(store, program), witness)
        return lines(store, program), ended


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_has_the_same_journal_on_every_backend(program: Program, tmp_path: Path):
    expected, ended = journal_on(program, "memory:")
    assert differences(program, ended) == []
    assert "run/p" in expected
    for backend in DURABLE:
        found, ended = journal_on(program, new_url(backend, tmp_path))
        assert differences(program, ended) == []
        assert found == expected, backend


def test_a_journal_that_differs_is_noticed():
    one, _ = journal_on(BY_NAME["effect_chain"], "memory:")
    other, _ = journal_on(BY_NAME["loop_each"], "memory:")
    again, _ = journal_on(BY_NAME["effect_chain"], "memory:")
    assert one == again
    assert one != other
