"""Programs with and without errors: each rule and each form of the language, with places.

The language of OP-28: session, let, const, context, repeat, reduce, parallel with named branches,
retry.
"""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.prose import check, load, parse
from holdfast.prose.problems import ERRORS, WARNINGS, show_problems
from holdfast.prose.syntax import statement_keys
from tests.prose.corpus import Sample, read_samples

VALID = read_samples("valid")
INVALID = read_samples("invalid")


def found_in(sample: Sample) -> list[str]:
    return [f"{one.line}:{one.column} {one.code}" for one in check(sample.text)]


@pytest.mark.parametrize("sample", INVALID, ids=lambda sample: sample.title)
def test_every_error_is_found_at_its_place(sample: Sample):
    assert found_in(sample) == sample.problems
    assert any(one.severity == "error" for one in check(sample.text))


@pytest.mark.parametrize("sample", VALID, ids=lambda sample: sample.title)
def test_a_program_without_errors_can_be_loaded(sample: Sample):
    load(sample.text)
    assert found_in(sample) == sample.problems


def test_there_are_enough_of_both_and_no_two_are_equal():
    assert len(VALID) >= 150
    assert len(INVALID) >= 150
    for samples in (VALID, INVALID):
        assert Counter(sample.text for sample in samples).most_common(1)[0][1] == 1
        assert Counter(sample.title for sample in samples).most_common(1)[0][1] == 1


def test_every_code_is_in_the_corpora():
    """`encoding` is about bytes; test_cli_prose.py has it."""
    said = {line.split()[1] for sample in INVALID for line in sample.problems}
    assert ERRORS.keys() - said == {"encoding"}
    warned = {line.split()[1] for sample in VALID for line in sample.problems}
    assert WARNINGS.keys() - warned == set()


@pytest.mark.parametrize("sample", INVALID, ids=lambda sample: sample.title)
def test_every_problem_can_be_shown(sample: Sample):
    problems = check(sample.text)
    for problem, shown in zip(
        problems, show_problems(problems, sample.text, "a.prose"), strict=True
    ):
        place, _line, caret = shown.split("\n")
        assert place.startswith(f"a.prose:{problem.line}:{problem.column}: {problem.severity}: ")
        assert place.endswith(f"[{problem.code}]")
        assert caret.strip() == "^"


def test_blank_lines_and_comments_change_no_tree_but_places():
    """What the journal is keyed by is the same, wherever a statement stands."""
    for sample in VALID:
        before = statement_keys(parse(sample.text).body)
        after = statement_keys(parse(f"# a comment\n\n\n{sample.text}\n   # another").body)
        assert before == after, sample.title


def test_op_8_and_op_9_let_is_assigned_again_and_const_is_not():
    """OP-8: `let` may be assigned again. OP-9: assigning a `const` is an error."""
    assert check('let x = session "a"\nx = session "b"\n') == []
    (problem,) = check('const y = session "a"\ny = session "b"\n')
    assert (problem.line, problem.severity, problem.code) == (2, "error", "not-assignable")
