"""Every program of the corpus, cut everywhere, in process and by SIGKILL (OP-7, OP-25, OP-26)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prose.cutting import assert_ends, cut, go_on, opened, places, uncut
from tests.prose.samples import SAMPLES, Sample
from tests.record.stores import new_url
from tests.runs.cuts import Place
from tests.runs.test_cuts import place
from tests.selection import this_turn

ROOT = Path(__file__).parents[2]
__all__ = ["place"]


def test_the_corpus_is_large_and_every_program_has_a_name_of_its_own():
    assert len(SAMPLES) >= 40
    assert len({sample.name for sample in SAMPLES}) == len(SAMPLES)


@pytest.mark.parametrize("backend", ["memory", "files", "sqlite"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_program_cut_anywhere_ends_as_if_never_cut(sample: Sample, backend: str, place: Path):
    commits, acts = uncut(sample, new_url(backend, place))
    for where in places(backend, commits, acts):
        cut(sample, new_url(backend, place), where)


def killed(sample: Sample, url: str, where: Place) -> bool:
    """Runs a program in a process that kills itself at a place; says whether it did."""
    words = [sys.executable, "-m", "tests.prose.cutting", url, sample.name]
    words += [where.what, str(where.nth), where.when]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=lambda n: SAMPLES[n].name)
def test_a_program_that_is_killed_goes_on(number: int, place: Path):
    """Each program once, by turns: before or after a commit, before or after a session."""
    sample = SAMPLES[number]
    backend = ("files", "sqlite")[number % 2]
    commits, acts = uncut(sample, new_url("memory", place))
    what = "act" if number % 3 == 2 and acts else "commit"
    most = acts if what == "act" else commits
    when = "before" if number % 4 < 2 else "after"
    where = Place(what, 1 + number % most, when)
    url = new_url(backend, place)
    assert killed(sample, url, where)
    store, _, watched = opened(url, sample)
    with store:
        assert_ends(store, sample, go_on(store, sample, watched))


PARTS = [(sample, part) for sample in SAMPLES for part in range(3)]
"""Each program in three parts: every third place where it can be cut."""


def on_servers(kind: str, new: Callable[[], str]) -> None:
    """A share of the parts: all of them have their turn within 18 commits, and in test-all."""
    for sample, part in this_turn(PARTS, 18):
        commits, acts = uncut(sample, new())
        for where in places(kind, commits, acts)[part::3]:
            cut(sample, new(), where)


@pytest.mark.parametrize("backend", ["postgresql", "redis"])
def test_programs_cut_on_servers(backend: str, tmp_path: Path):
    on_servers(backend, lambda: new_url(backend, tmp_path))
