"""The syntax tree of programs: forms, places, and what continues a line."""

from __future__ import annotations

import inspect
import sys

import pytest

from holdfast.errors import ProgramError
from holdfast.prose import check, parse, syntax


def only(text: str) -> syntax.Statement:
    (statement,) = parse(text).body
    return statement


def test_a_binding_holds_a_session_with_its_place():
    bound = only('\n# a comment\nlet draft = session "Write {topic}"\n  model: opus\n')
    assert isinstance(bound, syntax.Bind)
    assert (bound.line, bound.column, bound.name, bound.is_const) == (3, 1, "draft", False)
    session = bound.value
    assert isinstance(session, syntax.Session)
    assert (session.line, session.column, session.settings.model) == (3, 13, "opus")
    assert session.text is not None
    plain, hole = session.text.parts
    assert plain == "Write "
    assert isinstance(hole, syntax.Interpolation)
    assert (hole.line, hole.column, hole.source) == (3, 28, "{topic}")


@pytest.mark.parametrize(
    "text",
    [
        'session "a"\n-> session "b"\n-> session "c"',
        'session "a" ->\nsession "b" ->\n  session "c"',
        'session "a"\n->\nsession "b"\n  ->\n  session "c"',
        'session "a" -> session "b" -> session "c"',
    ],
)
def test_arrows_continue_a_statement(text: str):
    arrow = only(text)
    assert isinstance(arrow, syntax.Arrow)
    said = [
        one.text.parts for one in arrow.operands if isinstance(one, syntax.Session) and one.text
    ]
    assert said == [("a",), ("b",), ("c",)]


def test_a_pipe_after_an_inline_body_applies_to_the_whole():
    pipe = only('xs | map: session "a" -> session "b" | filter: session "c"')
    assert isinstance(pipe, syntax.Pipe)
    assert pipe.kind == "filter"
    inner = pipe.source
    assert isinstance(inner, syntax.Pipe)
    assert isinstance(inner.body[0], syntax.Arrow)


def test_a_long_text_loses_its_first_line_end_and_common_indentation():
    text = only('let x = """\n    one\n      two {x}\n\n    three\n    """')
    assert isinstance(text, syntax.Bind)
    value = text.value
    assert isinstance(value, syntax.Text)
    assert value.parts[0] == "one\n  two "
    hole = value.parts[1]
    assert isinstance(hole, syntax.Interpolation)
    assert (hole.line, hole.column) == (3, 11)
    assert value.parts[2] == "\n\nthree\n"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"""a""""', ('a"',)),
        ('""""a"""', ('"a',)),
        ('""""""', ()),
        ('"""""""', ('"',)),
        (r'"""a\"""', ("a\\",)),
        (r'"\\ \" \n \t \r \{ \} \#"', ('\\ " \n \t \r { } #',)),
        ('"{} { \\"json\\": 1 } {one, two}"', ('{} { "json": 1 } {one, two}',)),
    ],
)
def test_texts(written: str, meant: tuple[str, ...]):
    bound = only(f"let x = {written}")
    assert isinstance(bound, syntax.Bind)
    assert isinstance(bound.value, syntax.Text)
    assert bound.value.parts == meant


def test_operators_bind_as_the_grammar_says():
    def shape(node: syntax.Node) -> object:
        match node:
            case syntax.Binary():
                return (shape(node.left), node.operator, shape(node.right))
            case syntax.Not():
                return ("not", shape(node.operand))
            case syntax.Name():
                return node.name
            case _:
                return getattr(node, "value", None)

    value = only("not a == b and c + 1 - d * 2 < e or f")
    assert shape(value) == (
        (
            ("not", ("a", "==", "b")),
            "and",
            ((("c", "+", 1), "-", ("d", "*", 2)), "<", "e"),
        ),
        "or",
        "f",
    )
    assert shape(only("a-1 - 1")) == ("a-1", "-", 1)


def test_a_program_with_errors_is_refused_with_all_of_them():
    with pytest.raises(ProgramError) as caught:
        parse('let = 1\nsession "a"\nlet x 2\nif **fine**:\n', "p.prose")
    places = [(one.line, one.column, one.code) for one in caught.value.problems]
    assert places == [(1, 5, "syntax"), (3, 7, "syntax"), (4, 1, "empty-body")]
    assert "p.prose:3:7: error:" in str(caught.value)
    assert "    let x 2\n          ^" in str(caught.value)


def test_line_ends_of_other_systems_and_a_byte_order_mark_change_nothing():
    text = 'session """\n  a\n  b\n  """\n  model: opus\nlet x = 1\n'
    for other in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), f"\ufeff{text}"):
        assert parse(other) == parse(text)


def test_a_program_may_be_given_as_bytes():
    assert parse('session "Grüße"'.encode()) == parse('session "Grüße"')
    with pytest.raises(ProgramError) as caught:
        parse(b'session "a"\n session "\xff"')
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.code) == (2, 11, "encoding")


def test_inside_brackets_a_session_has_no_properties_of_its_own():
    both = only('let x = [session "a",\n  session "b"]')
    assert isinstance(both, syntax.Bind)
    assert isinstance(both.value, syntax.Array)
    assert len(both.value.items) == 2


def test_in_heads_of_for_and_loop_a_name_before_a_bracket_is_no_call():
    loop = only('loop until done (max: 3):\n  session "a"')
    assert isinstance(loop, syntax.Loop)
    assert isinstance(loop.condition, syntax.Name)
    assert loop.max == 3


def test_the_parser_works_from_a_stack_that_is_nearly_full():
    """Where the limits on nesting do not suffice, the end of the stack is a problem, no crash."""
    text = "let x = " + "(" * 60 + "1" + ")" * 60

    def deep(left: int) -> set[str]:
        return deep(left - 1) if left else {one.code for one in check(text)}

    frames = len(inspect.stack())
    found = [deep(sys.getrecursionlimit() - frames - left) for left in (40, 60, 100)]
    assert {"too-deep"} in found


@pytest.mark.parametrize(
    ("text", "meant"),
    [('sesion "a"', "session"), ("agnet a:\n  model: opus", "agent"), ('thrwo "a"', "throw")],
)
def test_a_misspelt_word_is_named(text: str, meant: str):
    (problem,) = check(text)
    assert problem.code == "syntax"
    assert f'(is "{meant}" meant?)' in problem.message
