"""Small programs at the edges of the language, with what each gives (OP-8..OP-22).

`meanings.json` has them: a program, its script and inputs, and either the value that it gives, the
kind that it fails with, or the codes of its errors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError
from holdfast.agents import Scripted
from holdfast.prose import check
from holdfast.prose.program import gather_text, start
from tests.prose.test_interpreter import FAST

MEANINGS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("meanings.json").read_text())


def test_there_are_many_and_no_two_are_equal():
    assert len(MEANINGS) >= 200
    assert len({json.dumps(one, sort_keys=True) for one in MEANINGS}) == len(MEANINGS)


@pytest.mark.parametrize("part", range(10))
def test_a_program_means_what_it_says(part: int):
    for one in MEANINGS[part::10]:
        text, found = one["program"], dict[str, Any]()
        if errors := sorted({p.code for p in check(text) if p.severity == "error"}):
            found["errors"] = errors
        else:
            with holdfast.open("memory:") as store:
                store.runs.use_executor(Scripted(one.get("script", {})))
                run = start(store, gather_text(text), one.get("inputs", {}), settings=FAST)
                try:
                    found["gives"] = run.result(timeout=60)
                except RunFailedError as error:
                    found["fails"] = error.kind
        expected = {key: one[key] for key in ("errors", "gives", "fails") if key in one}
        assert found == expected, text
