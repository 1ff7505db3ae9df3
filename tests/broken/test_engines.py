"""Every engine that is broken on purpose is caught by the corpus (T13, T23)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import HoldfastError
from tests.broken.engines import ENGINES
from tests.runs import cuts
from tests.runs.corpus import BY_NAME
from tests.runs.corpus_steps import Program
from tests.runs.cuts import cut_everywhere

IN_PROCESS = [name for name, one in ENGINES.items() if not one.needs_two_owners]


def found(program: Program) -> str:
    """Returns what is not as the corpus says, uncut or cut anywhere; "" if nothing is."""
    try:
        cut_everywhere(program, "memory", lambda: "memory:")
    except (AssertionError, HoldfastError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", IN_PROCESS)
def test_the_corpus_finds_a_broken_engine(name: str, monkeypatch: pytest.MonkeyPatch):
    def put(target: Any, attribute: Any, value: Any) -> None:
        if isinstance(target, dict):
            monkeypatch.setitem(target, attribute, value)
        else:
            monkeypatch.setattr(target, attribute, value)

    programs = [BY_NAME[one] for one in ENGINES[name].programs]
    assert [found(program) for program in programs] == ["" for _ in programs]
    monkeypatch.setattr(cuts, "PATIENCE_S", 3.0)  # a broken one may hang
    ENGINES[name].plant(put)
    wrong = [found(program) for program in programs]
    assert any(wrong), f"{name}: {ENGINES[name].broken}, and nobody noticed"
    # The fault was found, not a plant that no longer fits what it is planted in.
    assert "TypeError" not in str(wrong)
    assert "AttributeError" not in str(wrong)
