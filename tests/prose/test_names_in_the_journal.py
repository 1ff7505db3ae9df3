"""How statements, branches and operations are named in the journal of a program."""

from __future__ import annotations

from holdfast.prose import syntax

NO_SETTINGS = syntax.Settings(1, 1)


def session(line: int = 1, name: str | None = None) -> syntax.Session:
    return syntax.Session(line, 1, syntax.Text(line, 9, ("hello",)), None, name, NO_SETTINGS)


def test_statements_are_keyed_by_the_name_that_they_bind():
    body = (
        syntax.Bind(1, 1, "x", session(), is_const=False),
        syntax.Assign(2, 1, "x", session()),
        syntax.Input(3, 1, "topic", syntax.Text(3, 14, ("?",))),
        syntax.Unpack(4, 1, ("a", "b"), syntax.Name(4, 14, "x")),
        session(5, name="kept"),
        syntax.Output(6, 1, "x", syntax.Name(6, 12, "x")),
    )
    assert syntax.statement_keys(body) == ("x", "x#2", "topic", "a+b", "kept", "x#3")


def test_statements_without_a_name_are_keyed_by_kind_and_number():
    call = syntax.BlockCall(4, 1, "review", ())
    body = (session(), session(), syntax.Do(3, 1, (session(),)), call, syntax.Throw(5, 1, None))
    assert syntax.statement_keys(body) == ("session.1", "session.2", "do.1", "do.2", "throw.1")
    value = syntax.Name(1, 1, "x")
    assert syntax.statement_keys((value, syntax.Output(2, 1, None, value))) == (
        "value.1",
        "output.1",
    )


def test_a_new_statement_shifts_only_unnamed_ones_of_its_kind():
    throw = syntax.Throw(5, 1, None)
    bound = syntax.Bind(1, 1, "session", session(), is_const=True)
    before = syntax.statement_keys((bound, throw, session()))
    after = syntax.statement_keys((session(), bound, throw, session()))
    assert before == ("session", "throw.1", "session.1")
    assert after == ("session.1", "session", "throw.1", "session.2")


def test_branches_are_keyed_by_name_or_by_their_number_among_the_unnamed():
    branches = tuple(syntax.Branch(1, 1, name, session()) for name in (None, "b", None))
    assert syntax.branch_keys(branches) == ("1", "b", "2")


def test_the_value_of_a_statement_is_what_it_evaluates():
    bound = syntax.Bind(1, 1, "x", syntax.Arrow(1, 9, (session(), session())), is_const=False)
    assert syntax.value_of(bound) is bound.value
    assert syntax.value_of(syntax.Throw(1, 1, None)) is None
    assert syntax.value_of(bound.value) is bound.value


def test_parts_are_those_of_the_head_and_not_of_bodies():
    ask = syntax.Condition(1, 4, ("ok",))
    chosen = syntax.If(1, 1, (syntax.Arm(1, 1, ask, (session(),)),), (session(),))
    assert syntax.parts(chosen) == (ask,)
    assert [key for key, _ in syntax.bodies(chosen)] == ["arm.1", "else"]


def test_bodies_have_keys():
    body = (session(),)
    caught = syntax.Try(1, 1, body, syntax.Catch(2, 1, None, body), body)
    assert [key for key, _ in syntax.bodies(caught)] == ["try", "catch", "finally"]
    assert [key for key, _ in syntax.bodies(syntax.Try(1, 1, body, None, body))] == [
        "try",
        "finally",
    ]
    options = tuple(syntax.Option(1, 1, syntax.Text(1, 1, (text,)), body) for text in "ab")
    chosen = syntax.Choice(1, 1, syntax.Condition(1, 1, ("which",)), options)
    assert [key for key, _ in syntax.bodies(chosen)] == ["option.1", "option.2"]
    assert syntax.bodies(syntax.Do(1, 1, body)) == (("body", body),)
    assert syntax.bodies(session()) == ()


def test_parts_stand_in_the_order_in_which_they_are_written():
    one, two = syntax.Name(1, 1, "x"), syntax.Name(1, 3, "y")
    assert syntax.parts(syntax.Index(1, 1, one, two)) == (one, two)
    assert syntax.parts(syntax.Member(1, 1, one, "m")) == (one,)
    assert syntax.parts(syntax.Object(1, 1, (syntax.Entry(1, 1, "a", two),))) == (two,)
    assert syntax.parts(syntax.ProgramCall(1, 1, "p", (syntax.Entry(1, 1, "a", two),))) == (two,)
    assert syntax.parts(syntax.Pipe(1, 1, one, "map", (), (two,))) == (one,)
    assert syntax.parts(syntax.Loop(1, 1, "until", one, None, None, (two,))) == (one,)
    assert syntax.parts(syntax.Loop(1, 1, None, None, 3, None, (two,))) == ()
    assert syntax.parts(one) == ()
