"""Schemas: a type, its version, the steps between versions, and what does not fit (VIC-28, 29)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NewType, Required, TypedDict

import attrs
import msgspec
import pydantic
import pytest

import holdfast
from holdfast.core.schema import Schema, attach, is_schema, schema_of
from holdfast.core.shape import Misfit, Shape, check_type, show_type
from holdfast.errors import NewerSchemaError, UpgradeError

Name = NewType("Name", str)


class Customer(msgspec.Struct):
    name: Name
    tags: list[str] = []


class Struct(msgspec.Struct):
    stage: Literal["triage", "open"]
    customer: Customer | None = None
    scores: dict[str, float] = {}


@dataclasses.dataclass
class Data:
    stage: Literal["triage", "open"]
    customer: Customer | None = None
    scores: dict[str, float] = dataclasses.field(default_factory=dict)


class Typed(TypedDict, total=False):
    stage: Required[Literal["triage", "open"]]
    customer: Customer | None
    scores: dict[str, float]


@attrs.define
class Attrs:
    stage: Literal["triage", "open"]
    customer: Customer | None = None
    scores: dict[str, float] = attrs.Factory(dict)


class PydanticCustomer(pydantic.BaseModel):
    name: str
    tags: list[str] = []


class Model(pydantic.BaseModel):
    stage: Literal["triage", "open"]
    customer: PydanticCustomer | None = None
    scores: dict[str, float] = {}


KINDS = [Struct, Data, Typed, Attrs, Model]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_type_lists_every_misfit(kind: type[Any]):
    """VIC-28."""
    shape = check_type(kind)
    assert shape.misfits({"stage": "open", "scores": {"a": 1.5}, "unknown": 3}) == []
    wrong = {"stage": "shut", "customer": {"name": 3, "tags": ["a", 7]}, "scores": {"b": "x"}}
    found = shape.misfits(wrong)
    places = {("stage",), ("customer", "name"), ("customer", "tags", 1), ("scores", "b")}
    assert {one.path for one in found} == places
    [missing] = shape.misfits({})
    assert missing.path == ("stage",)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_type_is_loaded_and_dumped(kind: type[Any]):
    one = Schema(kind, "conversation", version=1)
    data = {"stage": "open", "customer": {"name": "Ada", "tags": ["x"]}, "scores": {"a": 1.5}}
    value = one.load(data, "it")
    assert one.dump(value) == data
    with pytest.raises(holdfast.SchemaError) as caught:
        one.load({"stage": "shut"}, "it")
    assert [misfit.path for misfit in caught.value.misfits] == [("stage",)]
    assert "it does not fit" in str(caught.value)


def test_a_misfit_says_path_expectation_and_finding():
    found = Shape(Struct).misfits({"stage": "shut", "scores": {"a": None}})
    assert list(map(str, found)) == [
        "['stage']: expected Literal['triage', 'open'], found 'shut'",
        "['scores']['a']: expected float, found None",
    ]
    assert Shape(int).misfits("x") == [Misfit((), "int", "'x'")]
    assert str(Misfit((), "int", "'x'")) == "the whole: expected int, found 'x'"
    assert Shape(Annotated[int, msgspec.Meta(ge=0)]).misfits(-1) == [Misfit((), "int >= 0", "-1")]
    assert show_type(int) == "int"
    assert show_type(dict[str, Any]) == "dict[str, Any]"


def test_a_type_that_looks_at_itself_is_checked_as_a_whole():
    class Span(msgspec.Struct):
        low: int
        high: int

        def __post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    class Tagged(msgspec.Struct, tag=True):
        low: int

    @attrs.define
    class Checked:
        low: int = attrs.field(validator=attrs.validators.ge(3))

    assert Shape(Span).is_whole
    assert Shape(Tagged).is_whole
    assert Shape(Checked).is_whole
    assert Shape(int | str).is_whole
    assert Shape(Model).is_whole
    assert not Shape(Struct | None).is_whole
    [found] = Shape(Span).misfits({"low": 3, "high": 2})
    assert found.expected == "what fits (ValueError: low is above high)"
    assert not Shape(Sequence[int]).is_whole
    assert not Shape(tuple[int, ...]).is_whole
    assert Shape(tuple[int, str]).is_whole
    assert Shape(dict[int, str]).is_whole
    assert Shape(Any).misfits(object()) == []
    assert Shape(Name).is_whole


def test_a_closed_type_refuses_unknown_fields():
    class Closed(msgspec.Struct, forbid_unknown_fields=True):
        a: int = 0

    assert Shape(Closed).misfits({"a": 1, "b": 2}) == [Misfit(("b",), "no such field", "2")]


def test_what_is_no_type_is_refused():
    class Array(msgspec.Struct, array_like=True):
        a: int

    class Unknown(msgspec.Struct):
        a: Missing  # noqa: F821  # pyright: ignore

    class Whole(msgspec.Struct):
        a: Missing  # noqa: F821  # pyright: ignore

        def __post_init__(self): ...

    for wrong in (3, "Ticket", int, list[int], Array):
        with pytest.raises(holdfast.UsageError, match="a schema is a class with named fields"):
            holdfast.schema("conversation", version=1)(wrong)  # type: ignore
    for wrong in (Unknown, Whole, attrs.make_class("Bare", ["a"])):
        with pytest.raises(holdfast.UsageError, match="cannot be a schema"):
            holdfast.schema("conversation", version=1)(wrong)


def chain() -> Schema[Any]:
    class Ticket(msgspec.Struct):
        stage: str
        result: str | None = None
        tags: list[str] = []

    one = Schema(Ticket, "conversation", version=3, aliases={"outcome": "result"})
    one.upgrade(1)(lambda old: old | {"stage": old.pop("step")})
    one.upgrade(2)(lambda old: old | {"tags": []})
    one.downgrade(3)(lambda new: {k: v for k, v in new.items() if k != "tags"})
    return one


def test_upgrades_compose_and_leave_the_data_alone():
    """VIC-29, BOOT-65, BOOT-67: each step in turn, renamed fields, unknown ones kept."""
    one, old = chain(), {"step": "open", "outcome": "sold", "mine": 1}
    new = {"stage": "open", "result": "sold", "mine": 1, "tags": []}
    assert one.upgraded(old, 1, "it") == new
    assert one.upgraded(old, 0, "it") == new
    assert old == {"step": "open", "outcome": "sold", "mine": 1}
    assert one.upgraded({"stage": "a"}, 2, "it") == {"stage": "a", "tags": []}
    assert list(one.upgraded({"outcome": "x", "stage": "a"}, 3, "it")) == ["result", "stage"]
    assert one.downgraded(new, 3, 2, "it") == {"stage": "open", "result": "sold", "mine": 1}
    assert (one.upgrades, one.downgrades) == ([1, 2], [3])


def test_the_new_name_of_a_field_wins():
    """BOOT-67: where both names are there, the old one is another field that nobody knows."""
    one, both = chain(), {"stage": "a", "outcome": "old", "result": "new"}
    assert one.upgraded(both, 3, "it") == both
    assert one.doubled_in(both) == ["outcome"]
    assert one.is_current(both, 3)
    assert not one.is_current({"outcome": "x"}, 3)
    assert not one.is_current({}, 2)


def test_what_was_never_versioned_is_the_first_version_unless_there_is_a_step_for_it():
    one = chain()
    assert one.stored_version(0) == 1
    one.upgrade(0)(lambda old: old)
    assert one.stored_version(0) == 0


def test_a_missing_step_names_from_to_and_place():
    one = Schema(Struct, "conversation", version=3)
    with pytest.raises(UpgradeError, match="no upgrade from 2 to 3") as caught:
        one.upgraded({}, 2, 'scope "conversation/c1"')
    error = caught.value
    assert (error.schema, error.start, error.end) == ("conversation", 2, 3)
    assert error.where == 'scope "conversation/c1"'
    with pytest.raises(UpgradeError, match="no downgrade from 3 to 2"):
        one.downgraded({}, 3, 1, "it")


def test_a_step_that_fails_is_named():
    one = Schema(Struct, "conversation", version=2)
    one.upgrade(1)(lambda old: old["absent"])
    with pytest.raises(UpgradeError, match="KeyError: 'absent'"):
        one.upgraded({}, 1, "it")
    other = Schema(Struct, "conversation", version=2)
    other.upgrade(1)(lambda old: None)
    with pytest.raises(UpgradeError, match="returned None: expected a dict"):
        other.upgraded({}, 1, "it")
    third = Schema(Struct, "conversation", version=2)
    third.upgrade(1)(lambda old: {"stage": 3})
    with pytest.raises(UpgradeError, match="does not fit") as caught:
        third.upgraded({}, 1, "it")
    assert [one.path for one in caught.value.misfits] == [("stage",)]
    fourth = Schema(Struct, "conversation", version=2)
    fourth.upgrade(1)(lambda old: {"stage": "open", 7: "a key that is no text"})
    with pytest.raises(UpgradeError, match="the whole: expected str as every key"):
        fourth.upgraded({}, 1, "it")


def test_newer_data_is_not_upgraded():
    one = Schema(Struct, "conversation", version=2)
    with pytest.raises(NewerSchemaError) as caught:
        one.upgraded({}, 3, "it")
    assert (caught.value.stored, caught.value.known, caught.value.name) == (3, 2, "it")


def test_steps_are_registered_once_and_within_the_versions():
    one = Schema(Struct, "conversation", version=2)
    with pytest.raises(holdfast.UsageError, match="no upgrade from 2"):
        one.upgrade(2)
    with pytest.raises(holdfast.UsageError, match="no downgrade from 3"):
        one.downgrade(3)
    one.upgrade(1)(dict)
    with pytest.raises(holdfast.ExistsError, match="from version 1 already"):
        one.upgrade(1)(dict)


def test_an_alias_leads_from_a_former_name_to_a_field():
    for wrong in ({"stage": "scores"}, {"a": "b"}):
        with pytest.raises(holdfast.UsageError, match="expected a former name"):
            Schema(Struct, "conversation", version=1, aliases=wrong)


class Person(msgspec.Struct):
    email: str = ""


class Order(msgspec.Struct):
    customer: Person
    notes: dict[str, Any] = {}


def test_aliases_of_fields_within_others():
    """VIC-29: a field that was renamed inside another one, and one inside a field that was."""
    aliases = {"customer.mail": "customer.email", "client": "customer", "notes.a": "notes.b"}
    aliases["notes.x.a"] = "notes.x.b"
    one = Schema(Order, "conversation", version=1, aliases=aliases)
    old = {"client": {"mail": "x", "phone": 7}, "notes": {"a": 1, "c": 2}}
    assert one.upgraded(old, 1, "it") == {
        "customer": {"email": "x", "phone": 7}, "notes": {"b": 1, "c": 2}
    }  # fmt: skip
    assert old == {"client": {"mail": "x", "phone": 7}, "notes": {"a": 1, "c": 2}}
    for data, renamed, doubled in (
        ({"customer": {"mail": "x"}}, ["customer.mail"], []),
        ({"customer": {"mail": "x", "email": "y"}}, [], ["customer.mail"]),
        ({"customer": {"email": "y"}, "notes": 7}, [], []),
        ({"client": {}, "notes": {"a": 1}}, ["client", "notes.a"], []),
    ):
        assert one.renamed_in(data) == renamed
        assert one.doubled_in(data) == doubled
        assert one.is_current(data, 1) == (not renamed)
    assert one.renames(("customer", "email", 0))
    assert one.renames(("client",))
    assert not one.renames(("notes", "c"))
    for wrong in ({"mail": "customer.email"}, {"customer.mail": "customer.none"}, {"x.a": "x.b"}):
        with pytest.raises(holdfast.UsageError, match="expected a former name"):
            Schema(Order, "conversation", version=1, aliases=wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_stays_itself_and_gets_the_decorators(kind: type[Any]):
    made: Any = TypedDict("made", {"stage": str})
    if kind is not Typed:
        made = type("made", (kind,), {})
    assert holdfast.schema("conversation", version=2)(made) is made
    step = made.upgrade(1)(dict)
    assert step is dict
    assert holdfast.downgrade(made, 2)(dict) is dict
    assert schema_of(made).upgrades == [1]
    with pytest.raises(holdfast.ExistsError, match="already"):
        attach(Schema(made, "team", version=1))


def test_a_field_named_upgrade_stays_a_field():
    @holdfast.schema("conversation", version=2)
    class Plan(msgspec.Struct):
        upgrade: str

    holdfast.upgrade(Plan, 1)(dict)
    assert Plan("x").upgrade == "x"
    assert schema_of(Plan).upgrades == [1]
    assert repr(schema_of(Plan)) == '<Schema Plan of state "conversation", version 2>'


def test_a_class_with_a_schema_is_known():
    @holdfast.schema("conversation", version=2)
    class Plan(msgspec.Struct):
        n: int = 0

    holdfast.upgrade(Plan, 1)(dict)
    assert (is_schema(Plan), is_schema(Struct), is_schema(3)) == (True, False, False)
    assert schema_of(Plan).upgrade_functions == [dict]


def test_what_has_no_schema_is_refused():
    for wrong in (3, Struct):
        with pytest.raises(holdfast.UsageError, match="expected a class with a schema"):
            holdfast.upgrade(wrong, 1)  # type: ignore


def test_a_type_that_cannot_say_what_is_wrong():
    """A type may raise once and then not again: it is not taken for right."""
    times = []

    class Odd(msgspec.Struct):
        a: int = 0

        def __post_init__(self):
            times.append(1)
            if len(times) == 1:
                raise ValueError("once")

    with pytest.raises(holdfast.SchemaError, match="cannot be read"):
        Schema(Odd, "conversation", version=1).load({}, "it")
