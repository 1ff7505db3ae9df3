"""Every program of the corpus, cut at every commit, on every backend (T13, OP-25, BOOT-87)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.record.stores import ALL, new_url
from tests.runs.corpus import PROGRAMS, Program
from tests.runs.cuts import cut, uncut


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_cut_anywhere_ends_as_if_never_cut(
    program: Program, backend: str, tmp_path: Path
):
    whole = uncut(program, new_url(backend, tmp_path))
    assert whole.commits > 1
    # Memory is cut at every commit; elsewhere a share of them, another one for each program.
    step = {"memory": 1, "files": 3, "sqlite": 3}.get(backend, 5)
    for nth in range(1 + sum(map(ord, program.name)) % step, whole.commits + 1, step):
        for when in ("before", "after"):
            ended = cut(program, new_url(backend, tmp_path), nth, when)
            place = f"{program.name} cut {when} commit {nth} of {whole.commits}"
            assert ended.result == whole.result, place
            assert ended.states == whole.states, place
            assert ended.acts == whole.acts, place
