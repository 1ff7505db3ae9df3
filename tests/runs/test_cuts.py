"""Every program of the corpus, cut everywhere, in process (T13; OP-7, 16, 21, 25; BOOT-87).

The same on servers is part of the torture programme: `t13-postgresql-cuts`, `t13-redis-cuts`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.record.stores import new_url
from tests.runs.corpus import PROGRAMS
from tests.runs.corpus_steps import Program
from tests.runs.cuts import cut_everywhere

MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A place in memory, where there is one: a cut handle leaves the same there as on a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-cuts-", dir=MEMORY) as name:
        yield Path(name)


@pytest.mark.parametrize("backend", ["memory", "files", "sqlite"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_cut_anywhere_ends_as_if_never_cut(program: Program, backend: str, place: Path):
    assert cut_everywhere(program, backend, lambda: new_url(backend, place)) > 1


def test_the_corpus_is_large_and_every_program_has_a_name_of_its_own():
    assert len(PROGRAMS) >= 40
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
