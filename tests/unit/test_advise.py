"""The chooser of backends: every cell of the matrix, every step of the heuristic (BOOT-61, 64)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from holdfast.contrib.advise import MATRIX, SIMPLEST_FIRST, Needs, advise
from holdfast.errors import UsageError

# As the text has it; "partly" where it says "Partially" or "Trigger-based", and where it is no work
# of ours: a table of the user's own beside the state.
CELLS: dict[str, tuple[Any, str, str, str, str]] = {
    "no_server": (True, "yes", "yes", "no", "no"),
    "diffs": (True, "yes", "no", "no", "no"),
    "readable": (True, "yes", "no", "partly", "no"),
    "queries": (True, "no", "yes", "no", "yes"),
    "writers": (8, "yes", "yes", "yes", "yes"),
    "expiry": (True, "no", "no", "yes", "partly"),
    "machines": (3, "no", "no", "yes", "yes"),
    "embeddings": (True, "no", "no", "no", "partly"),
    "schema": (True, "no", "partly", "no", "partly"),
}


@pytest.mark.parametrize("requirement", CELLS)
def test_every_cell_of_the_matrix(requirement: str) -> None:
    value, *cells = CELLS[requirement]
    rule = MATRIX[requirement]
    for backend, cell in zip(SIMPLEST_FIRST, cells, strict=True):
        found = "yes" if backend in rule.met else "partly" if backend in rule.partly else "no"
        assert found == cell, backend
    advice = advise(Needs(**{requirement: value}))
    able = [name for name, cell in zip(SIMPLEST_FIRST, cells, strict=True) if cell == "yes"]
    able = able or [name for name in SIMPLEST_FIRST if name in rule.partly]
    expected = "postgresql" if able == ["redis", "postgresql"] else able[0]
    assert advice.backend == expected
    assert any(rule.requirement in reason for reason in advice.reasons)
    for backend, cell in zip(SIMPLEST_FIRST, cells, strict=True):
        if cell == "no":
            assert advice.rejected[backend] == f"does not meet: {rule.requirement}"
    assert rule.question.endswith("?")


def test_the_matrix_has_the_nine_rows() -> None:
    assert list(MATRIX) == list(CELLS)


def test_the_simplest_is_the_default() -> None:
    """BOOT-64, and step 1 of the heuristic."""
    advice = advise(Needs())
    assert (advice.backend, advice.open) == ("files", 'holdfast.open(".holdfast")')
    assert set(advice.rejected) == {"sqlite", "redis", "postgresql"}
    assert all("simpler" in reason for reason in advice.rejected.values())


@pytest.mark.parametrize(
    ("needs", "backend"),
    [
        (Needs(survive=False), "memory"),
        (Needs(survive=False, writers=2), "files"),
        (Needs(diffs=True, writers=4), "files"),
        (Needs(queries=True), "sqlite"),
        (Needs(schema=True, writers=4), "sqlite"),
        (Needs(machines=2), "postgresql"),
        (Needs(machines=2, has=("redis",)), "redis"),
        (Needs(machines=2, has=("redis", "postgresql")), "redis"),
        (Needs(has=("postgresql",)), "files"),
        (Needs(queries=True, has=("postgresql",)), "sqlite"),
        (Needs(expiry=True), "redis"),
        (Needs(machines=2, expiry=True), "redis"),
        (Needs(machines=2, expiry=True, has=("postgresql",)), "postgresql"),
        (Needs(queries=True, expiry=True), "postgresql"),
        (Needs(queries=True, machines=2), "postgresql"),
        (Needs(embeddings=True), "postgresql"),
        (Needs(diffs=True, expiry=True), "mixed"),
        (Needs(readable=True, expiry=True), "redis"),
    ],
    ids=repr,
)
def test_the_steps_of_the_heuristic(needs: Needs, backend: str) -> None:
    advice = advise(needs)
    assert advice.backend == backend
    assert advice.reasons
    assert advice.gives_up
    assert advice.move_on
    assert backend not in advice.rejected


def test_a_mix_is_a_literal_call() -> None:
    advice = advise(Needs(diffs=True, expiry=True))
    assert advice.stores == {"conversation": "redis://HOST:6379/0", "*": ".holdfast"}
    assert advice.open == 'holdfast.open({"conversation": "redis://HOST:6379/0", "*": ".holdfast"})'
    assert any("refused" in given for given in advice.gives_up)
    with pytest.raises(UsageError, match="no mix of two"):
        advise(Needs(diffs=True, expiry=True, no_server=True))
    with pytest.raises(UsageError, match="version-controlled diffs, distributed access"):
        advise(Needs(diffs=True, machines=2))


def test_prices_are_told() -> None:
    assert "only in part" in advise(Needs(queries=True, expiry=True)).warnings[0]
    assert "appendfsync always" in advise(Needs(expiry=True)).warnings[-1]
    assert advise(Needs()).warnings == ()
    assert "many commits" in advise(Needs(commits_per_second=5_000)).warnings[0]
    assert advise(Needs(queries=True, commits_per_second=5_000)).warnings
    assert advise(Needs(machines=2, commits_per_second=50_000)).warnings


def test_whatever_is_asked_for_is_met_or_refused() -> None:
    """Every set of requirements: no advice that breaks one, and none refused that one meets."""
    flags = [name for name in CELLS if name not in ("machines", "writers")]
    for count in range(len(flags) + 1):
        for chosen in combinations(flags, count):
            for machines in (1, 2):
                asked: dict[str, Any] = {**dict.fromkeys(chosen, True), "machines": machines}
                rows = [*chosen, *(["machines"] if machines > 1 else [])]
                able = [
                    backend
                    for n, backend in enumerate(SIMPLEST_FIRST, 1)
                    if all(CELLS[row][n] != "no" for row in rows)
                ]
                try:
                    advice = advise(Needs(**asked))
                except UsageError:
                    assert not able
                    continue
                if advice.backend == "mixed":
                    assert not able
                    [kept] = [n for n, b in enumerate(SIMPLEST_FIRST, 1) if b in _names(advice)][:1]
                    rest = [row for row in rows if row != "expiry"]
                    assert all(CELLS[row][kept] != "no" for row in rest)
                else:
                    assert advice.backend in able


def _names(advice: Any) -> list[str]:
    urls = {".holdfast": "files", "sqlite:state.db": "sqlite"}
    return [urls.get(advice.stores["*"], "")]


@pytest.mark.parametrize(
    "given",
    [
        {"machines": 0},
        {"machines": True},
        {"writers": "2"},
        {"commits_per_second": -1},
        {"queries": 1},
        {"has": "redis"},
        {"has": ("mysql",)},
    ],
    ids=repr,
)
def test_bad_needs_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        advise(Needs(**given))


def test_advise_takes_needs() -> None:
    with pytest.raises(UsageError, match="takes Needs"):
        advise({"machines": 2})  # type: ignore[arg-type]
