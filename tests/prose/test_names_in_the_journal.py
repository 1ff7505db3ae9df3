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


def test_operations_inside_a_statement_are_keyed_in_the_order_they_are_written():
    both = syntax.Array(1, 9, (session(1), syntax.Condition(1, 20, ("ok",)), session(1)))
    keys = [key for key, _ in syntax.operations(syntax.Bind(1, 1, "x", both, is_const=False))]
    assert keys == ["session.1", "condition.1", "session.2"]


def test_the_value_of_a_statement_has_the_key_of_the_statement():
    bound = syntax.Bind(1, 1, "x", syntax.Arrow(1, 9, (session(), session())), is_const=False)
    assert [key for key, _ in syntax.operations(bound)] == ["session.1", "session.2"]
    assert syntax.operations(syntax.Bind(1, 1, "x", session(), is_const=False)) == ()
    assert syntax.value_of(bound) is bound.value
    assert syntax.value_of(syntax.Throw(1, 1, None)) is None
    assert syntax.value_of(bound.value) is bound.value


def test_operations_of_a_block_are_those_of_its_head():
    ask = syntax.Condition(1, 4, ("ok",))
    chosen = syntax.If(1, 1, (syntax.Arm(1, 1, ask, (session(),)),), (session(),))
    assert syntax.operations(chosen) == (("condition.1", ask),)
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


def test_operations_are_found_at_any_depth_of_an_expression():
    deep = syntax.Name(1, 1, "x")
    for _ in range(3):
        deep = syntax.Not(1, 1, syntax.Index(1, 1, syntax.Member(1, 1, deep, "m"), deep))
    call = syntax.ProgramCall(1, 1, "helper", (syntax.Entry(1, 1, "topic", deep),))
    whole = syntax.Binary(1, 1, "+", syntax.Object(1, 1, (syntax.Entry(1, 1, "a", call),)), deep)
    assert syntax.operations(syntax.Assign(1, 1, "y", whole)) == (("call.1", call),)
