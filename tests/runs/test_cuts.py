"""Every program of the corpus, cut everywhere, on every backend (T13, OP-25, BOOT-87)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.record.stores import ALL, new_url
from tests.runs.corpus import PROGRAMS
from tests.runs.corpus_steps import Program
from tests.runs.cuts import Ended, Place, cut, differences, uncut

MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A place in memory, where there is one: a cut handle leaves the same there as on a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-cuts-", dir=MEMORY) as name:
        yield Path(name)


def places(backend: str, whole: Ended) -> list[Place]:
    """Returns where to cut: every boundary of the journal.

    Behind one commit and before the next the journal is the same: what lies between is an act, done
    or not. Memory is cut at both, and around every act; the others at one of the two, by turns.
    """
    numbers = range(1, whole.commits + 1)
    if backend != "memory":
        return [Place("commit", n, "before" if n % 2 else "after") for n in numbers]
    found = [Place("commit", n, when) for n in numbers for when in ("before", "after")]
    acts = range(1, whole.act_count + 1)
    return found + [Place("act", n, when) for n in acts for when in ("before", "after")]


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_cut_anywhere_ends_as_if_never_cut(program: Program, backend: str, place: Path):
    whole = uncut(program, new_url(backend, place))
    assert differences(program, whole) == []
    assert whole.uncertain == []
    for where in places(backend, whole):
        ended = cut(program, new_url(backend, place), where)
        assert differences(program, ended) == [], f"cut {where} of {whole.commits}"


def test_the_corpus_is_large_and_every_program_has_a_name_of_its_own():
    assert len(PROGRAMS) >= 40
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
