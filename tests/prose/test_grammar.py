"""The grammar and the parser are of one mind, and nothing that is typed brings the checker down."""

from __future__ import annotations

import random
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.prose import check, parser, tokens
from holdfast.prose.parser import read_program
from holdfast.prose.problems import CODES, show_problems
from tests.prose.corpus import read_samples
from tests.prose.grammar import GRAMMAR, RULES, WORDS, Maker

# What a program of the right form may still have wrong with the names and values in it.
NOT_OF_FORM = {
    "use-name",
    "duplicate-variable",
    "duplicate-property",
    "duplicate-parameter",
    "property-value",
}
SAMPLES = [sample.text for folder in ("valid", "invalid") for sample in read_samples(folder)]
PIECES = [*sorted(tokens.RESERVED), *'()[]{}:,.=|+-*/<>#"\\\n\t ', "->", "**", "***", '"""']
PIECES += ["\n  ", "\n    ", "name", "{name}", "5", '"text"', "**cond**", "é", "\x00", "\ud800"]


def check_whole(text: str) -> None:
    """Checks a text, whatever it is: problems have codes and places, and can be shown."""
    problems = check(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    for problem in problems:
        assert problem.code in CODES
        assert 1 <= problem.line <= lines + 1
        assert problem.column >= 1
    assert len(list(show_problems(problems, text, "a.prose"))) == len(problems)


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_every_program_of_the_grammar_is_read_without_an_error_of_form(seed: int):
    for number in range(seed, seed + 20):
        text = Maker(random.Random(number)).program()
        found = [
            one
            for one in read_program(text, "made.prose").problems
            if one.severity == "error" and one.code not in NOT_OF_FORM
        ]
        assert not found, f"seed {number}\n{text}"
        check_whole(text)


def test_the_grammar_has_every_reserved_word_and_no_other_unknown_one():
    said = set(re.findall(r'"([a-z][a-z_-]*)"', "\n".join(_without_comments())))
    assert tokens.RESERVED - said == set()
    free = {"input", "output", "assert", "from", "max", "max_depth", "on-fail", "map", "filter"}
    free |= {"pmap", "reduce", *parser.SESSION_PROPERTIES, *parser.AGENT_PROPERTIES}
    free |= {*parser.RULES, "project", "user"}
    assert said - tokens.RESERVED == free


def test_every_rule_of_the_grammar_is_reached_and_defined():
    used = set(re.findall(r"\b[a-z_]+\b", re.sub(r'"[^"]*"', "", "\n".join(_without_comments()))))
    assert used == RULES.keys()
    kinds = set(re.findall(r"\b[A-Z_]{4,}\b", "\n".join(_without_comments())))
    assert kinds == WORDS.keys() | {"LINE", "INDENT", "DEDENT"}


def _without_comments() -> list[str]:
    return [line for line in GRAMMAR.split("\n") if not line.startswith("#")]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_words_at_random_are_no_crash(pieces: list[str]):
    check_whole("".join(pieces))
    check_whole(" ".join(pieces))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_text_at_random_is_no_crash(text: str):
    check_whole(text)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_at_random_are_no_crash(data: bytes):
    assert all(one.code in CODES for one in check(data))


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_programs_with_parts_changed_are_no_crash(chance: random.Random):
    text = chance.choice(SAMPLES)
    for _ in range(chance.randint(1, 6)):
        at, end = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
        other = chance.choice(SAMPLES)
        put = chance.choice(
            ["", chance.choice(PIECES), text[at:end], other[: chance.randint(0, 80)]]
        )
        text = text[:at] + put + text[min(end, at + chance.randint(0, 12)) :]
    check_whole(text)


def test_programs_cut_anywhere_are_no_crash():
    for text in SAMPLES:
        for end in range(0, min(len(text), 400), 3):
            check_whole(text[:end])


LONG = 60_000


@pytest.mark.parametrize(
    "text",
    [
        *(
            piece * LONG
            for piece in ("(", "[", "{", ")", '"', "*", "|", "->", "\\", "#", "\n", " ")
        ),
        *(
            piece * LONG
            for piece in ("not ", "a.", "a[", "1+", "-", "a ", '""', "** ", "{a", "{{a")
        ),
        *(
            piece * LONG
            for piece in ("x = (\n", "let x = 1\n", "if a:\n", "(\nlet x = 1\n", "do:\n")
        ),
        *(
            piece * LONG
            for piece in ('"a" "b\n', '"""\n', "***\n", "else:\n", "a:\n  ", "|\n", "->\n")
        ),
        'session "' + "{a" * LONG + '"',
        'session "' + "{" * LONG + '"',
        'session "' + "{a+" * LONG + "}" + '"',
        'session "' + "\\q" * 5_000 + '"',
        'session """' + "\n {a" * LONG + '"""',
        "let x = [" + "1," * LONG + "]",
        "block b(" + ",".join(f"p{n}" for n in range(20_000)) + "):\n  p1",
        "parallel:\n" + "".join(f'  b{n} = session "a"\n' for n in range(30_000)),
        "".join(f"if **it is so**:\n  let x{n} = 1\n" for n in range(30_000)),
        "".join(f"try:\n  let x{n} = 1\ncatch:\n  let y{n} = 2\n" for n in range(5_000)),
        "\n".join(" " * depth + "do:" for depth in range(1_000)),
        "\n".join(" " * (depth % 7) + "do:" for depth in range(20_000)),
        "a" * LONG,
        "9" * LONG,
        "-a" * LONG,
        "let x = a" + "-" * LONG,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_long_programs_take_no_time_that_grows_with_the_square(text: str):
    """The bound is that of every test: with the square of their length these would take hours."""
    assert all(one.code in CODES for one in check(text))


def test_names_of_any_letters_are_judged():
    for letter in string.printable + "éß漢\u202e":
        check_whole(f"let a{letter}b = 1")
