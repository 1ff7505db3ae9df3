"""Sealed values in scopes of others: what is a value, what fits, what is damage (0067)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import ERASED, Settings
from holdfast.core import codec, tree
from holdfast.core.codec import SealedLeaf
from holdfast.core.keystore import SubjectKey
from holdfast.core.sealing import Seal
from holdfast.core.shape import Shape
from holdfast.core.tree.frozen import enter
from holdfast.erasure import Erasure
from holdfast.errors import CorruptError, ErasedError, SchemaError, UsageError
from holdfast.retention import RetentionPolicy
from holdfast.scope import Scope

CANARY = "CANARY-c0de"
KEY = SubjectKey("01j9zsubject0000000000000a", "ada", bytes(range(32)))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def red(tmp_path: Path, keys: Path) -> Iterator[Scope]:
    with holdfast.open(tmp_path / "one", keys=keys) as store:
        yield store.team("red")


def test_erased_is_a_value_of_its_own(red: Scope) -> None:
    assert repr(ERASED) == "ERASED"
    assert json.dumps({"a": ERASED}) == '{"a": "[erased]"}'
    red.set("again", {"a": [ERASED]})
    assert red.get(("again", "a", 0)) is ERASED
    assert codec.decode(codec.encode(ERASED)) is ERASED
    assert codec.encode(ERASED) == b'{"$erased":true}'


def test_what_is_not_one_value_is_refused(red: Scope) -> None:
    with pytest.raises(UsageError, match="whole state"):
        red.set((), {"a": 1}, subject="ada")
    red.set("a", {"b": 1}, subject="ada")
    for change in (
        lambda: red.set(("a", "b"), 2),
        lambda: red.append("a", 2),
        lambda: red.increment(("a", "b")),
        lambda: red.delete(("a", "b")),
    ):
        with pytest.raises(UsageError, match="sealed as a whole"):
            change()
    mine = red._like("team", "mine", None)
    red._log.give_to(mine.name, "bob")
    mine.set("n", 1, subject="bob")  # all of it is his
    with pytest.raises(UsageError, match="another subject's"):
        mine.set("n", 2, subject="ada")


class Customer(msgspec.Struct):
    plan: str
    age: int = 0
    mails: dict[str, str] = {}
    seen: list[int] = []


def test_no_path_enters_a_sealed_value(tmp_path: Path, red: Scope, keys: Path) -> None:
    red.set("a", {"b": 1}, subject="ada")
    with holdfast.open(tmp_path / "one", keys=keys) as store:
        team = store.team("red")
        assert team.get(("a", "b"), "nothing") == "nothing"
        assert tree.locate(store._log.newest(team.name).root, ("a", "b")) is holdfast.MISSING
        assert team.get("a") == {"b": 1}


def test_a_schema_checks_what_is_sealed_and_takes_what_was_erased(
    tmp_path: Path, keys: Path
) -> None:
    schema: Any = holdfast.schema("team", version=1)(Customer)
    with holdfast.open(tmp_path / "typed", keys=keys, schemas=[schema]) as hf:
        red: Any = hf.team("red")
        red.set("plan", "basic")
        with pytest.raises(SchemaError):
            red.set("age", "old", subject="ada")
        red.set("age", 41, subject="ada")
        red.set(("mails", "work"), CANARY, subject="ada")
        red.update({"seen": [1]})
        red.set(("seen", 0), 2, subject="ada")
        assert red.typed == Customer("basic", 41, {"work": CANARY}, [2])
        hf.subjects.erase("ada")
        red.set("plan", "gone")
        assert red.typed == Customer("gone", ERASED, {"work": ERASED}, [ERASED])  # pyright: ignore
        with pytest.raises(SchemaError):
            red.set("plan", 7)


def test_a_large_value_is_a_sealed_blob_and_secrets_go_before_it_is_sealed(
    tmp_path: Path, keys: Path
) -> None:
    with holdfast.open(tmp_path / "one", keys=keys, settings=Settings(secrets="redact")) as hf:
        red = hf.team("red")
        token = "gh" + "p_" + "a1B2" * 9
        red.set("small", f"token {token}", subject="ada")
        red.set("large", f"token {token} " + "x" * 70_000, subject="ada")
        assert "[redacted:" in red["small"]
        assert "[redacted:" in red["large"]
        red.record("met", {"a": "y" * 70_000}, unchecked=True, subject="ada")
        [name] = [event.record.payload for event in red.history(type="met")]
        assert codec.subjects_in(name) == {hf.subjects.get("ada").id}
        assert len(hf._log.blobs.names()) == 2


def test_copies_are_marked_and_never_refused_and_new_ones_are(tmp_path: Path, keys: Path) -> None:
    with holdfast.open("memory:", keys=keys) as hf:
        red = hf.team("red")
        red.set("a", CANARY, subject="ada")
        red.set("b", CANARY, subject="bob")
        red.delete("a")
        red.set("a", "clear")
        hf._kernel.part(Erasure)._begin(hf.subjects.get("ada").id, "told")
        red.restore(2)
        assert red["a"] == CANARY
        with pytest.raises(ErasedError):
            red.set("c", 1, subject="ada")
        red.set("b", 2, subject="bob", expected=5)
        hf.subjects.finish()
        red.restore(1)
        assert red.state.to_dict() == {"a": ERASED}


@pytest.mark.parametrize(
    "text",
    [
        b'{"$sealed":{"of":"x"}}',
        b'{"$sealed":{"of":"x","data":7}}',
        b'{"$sealed":{"of":7,"data":"x"}}',
        b'{"$sealed":{"of":"x","data":{"a":1}}}',
        b'{"$sealed":{"of":"x","data":{"$blob":7}}}',
        b'{"$sealed":{"of":"x","data":"a","more":1}}',
    ],
)
def test_damage_of_a_sealed_value_is_told(text: bytes) -> None:
    with pytest.raises(CorruptError):
        codec.decode(text, blob=lambda name, size: (name, size))
    with pytest.raises(CorruptError):
        enter(text, None, lambda name, size: b"").force()


def test_a_sealed_value_that_is_cut_or_changed_is_damage(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(CorruptError):
        codec.parse_reference(codec.SEALED_VALUE + b'x","data":"a')
    with holdfast.open("memory:", keys=keys) as hf:
        hf.team("red").set("a", 1, subject="ada")
        id = hf.subjects.get("ada").id
        for data in ("!!", "AAAA"):
            with pytest.raises(CorruptError):
                hf._log.blobs.read(f"sealed:{id}:{data}", 1)


def test_a_reference_is_put_together_as_it_was_taken_apart() -> None:
    seal = Seal(KEY)
    raw = seal.value(b"[1]")
    name = "0" * 64
    large = codec.sealed_value(KEY.id, codec.blob_ref(name, 70_000))
    for one in (raw, large, codec.blob_ref(name, 3)):
        reference = codec.parse_reference(one)
        assert reference is not None
        assert codec.reference(*reference) == one
        assert codec.parse_reference(msgspec.Raw(one)) == reference
    assert codec.parse_reference(b'"text that is not a reference at all, and long enough"') is None
    assert codec.decode(raw)["$sealed"]["of"] == KEY.id  # who cannot read blobs sees the tag
    assert codec.blobs_in(large) == [(name, 70_000)]
    assert codec.decode(b'{"$sealed":"AAAA"}') == {"$sealed": "AAAA"}


def test_what_stays_closed_is_stored_as_it_was() -> None:
    raw = Seal(KEY).value(b'"secret"')
    root = tree.apply(
        tree.EMPTY,
        [tree.raw_op("set", ("a",), enter(raw, None, None)), tree.set_op("b", {"c": 1})],
        revision=1,
        blobs=lambda name, size: b'"secret"',
    )
    assert root["a"] == "secret"
    assert "sealed value" in repr(root)
    with codec.kept_closed():
        closed = root.to_dict()
    leaf = closed["a"]
    assert (str(leaf), leaf.raw) == ("[sealed]", raw)
    assert codec.encode(closed["a"]) == raw
    assert pickle.loads(pickle.dumps(leaf)).raw == deepcopy(leaf).raw == raw
    assert pickle.loads(pickle.dumps(ERASED)) is ERASED is deepcopy(ERASED)
    assert tree.set_difference(root, tree.set_op((), closed))[0].kind == "set"
    same = tree.set_difference(root, tree.set_op("a", "[sealed]"))
    assert same == []
    other = tree.apply(root, [tree.set_op("a", {"x": 1})], revision=2)
    assert [op.path for op in tree.diff_ops(root, other)] == ["a"]
    assert [op.path for op in tree.diff_ops(other, root)] == ["a"]
    assert [change.path for change in tree.diff(root, other)] == [("a",)]
    without = tree.apply(
        tree.EMPTY, [tree.raw_op("set", ("a",), enter(raw, None, None))], revision=1
    )
    with pytest.raises(UsageError, match="made without blobs"):
        without["a"]


class Address(msgspec.Struct, forbid_unknown_fields=True):
    street: str = msgspec.field(name="Street")
    number: int = 0


def test_a_shape_takes_what_was_erased_in_any_place() -> None:
    shape = Shape(Address)
    assert shape.load({"Street": "x", "number": ERASED}) == Address("x", ERASED)  # pyright: ignore
    assert shape.misfits({"Street": ERASED, "number": "no"})
    assert shape.misfits({"Street": ERASED, "number": ERASED, "more": 1})
    assert shape.load(ERASED) is ERASED
    assert Shape(list[int]).load([1, SealedLeaf(b"x")]) == [1, "[sealed]"]
    assert Shape(dict[str, int]).load({"a": ERASED}) == {"a": ERASED}
    assert Shape(int | list[int]).load([ERASED]) == [ERASED]


class Told(ValueError):
    """What a model with validators of its own raises: it tells of each place."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": (name,), "msg": "no", "input": value} for name, value in self.args[0]]


class Model:
    """A class with the methods of such models."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    @classmethod
    def model_validate(cls, data: dict[str, Any]) -> Model:
        raise Told([one for one in data.items() if not isinstance(one[1], int)])

    @classmethod
    def model_construct(cls, **fields: Any) -> Model:
        return cls(**fields)


def test_a_model_with_validators_of_its_own_takes_what_was_erased() -> None:
    assert Shape(Model).load({"a": 1, "b": ERASED}).fields == {"a": 1, "b": ERASED}
    with pytest.raises(Told):
        Shape(Model).load({"a": "no", "b": ERASED})


def test_messages_and_facts_stay_closed_where_copies_are_kept(keys: Path) -> None:
    with holdfast.open("memory:", keys=keys) as hf:
        red = hf.team("red")
        red.messages.add("user", CANARY, subject="ada")
        red.facts.state("place", CANARY, subject="ada")
        with codec.kept_closed():
            assert red.messages.last(1)[0].content == "[sealed]"
            assert red.facts.get("place").value == "[sealed]"
        assert red.messages.last(1)[0].content == CANARY


def test_a_schema_that_is_elsewhere_looks_at_no_sealed_value(tmp_path: Path, keys: Path) -> None:
    schema: Any = holdfast.schema("workflow", version=1)(type("W", (msgspec.Struct,), {}))
    with holdfast.open("memory:", keys=keys, schemas=[schema]) as hf:
        hf.team("red").set("a", 1, subject="ada")
        assert hf.team("red").get("a") == 1


def test_a_commit_over_scopes_seals_each_value_for_its_subject(tmp_path: Path, keys: Path) -> None:
    """In a scope of the subject's own nothing is sealed twice; large values are sealed blobs."""
    with holdfast.open(tmp_path / "two", keys=keys, settings=Settings(clear_ids=True)) as hf:
        own, red = hf.team("own", subject="ada"), hf.team("red")
        with hf.commit() as tx:
            tx.scope(own).set("n", "mine", subject="ada")
            tx.scope(red).set("small", "mine", subject="ada")
            tx.scope(red).set("middle", "mine" * 15_000, subject="ada")
            tx.scope(red).set("large", "mine" * 20_000, subject="bob")
            tx.scope(red).append("list", "open")
            tx.scope(red).set("default", 1, if_absent=True, subject="bob")
        assert own.state.to_dict() == {"n": "mine"}
        assert (red.state["middle"], red.state["large"]) == ("mine" * 15_000, "mine" * 20_000)
        assert len(hf._log.blobs.names()) == 1
        [record] = hf._log._backend.read("team/red")
        assert len(set(codec.subjects_in(record.payload))) == 2
        with pytest.raises(UsageError, match="another subject's"), hf.commit() as tx:
            tx.scope(own).update({"n": 1}, subject="bob")
        mark = hf._log.find_marks("subject.erasing")
        assert hf._log.closed_marks("team/red", tuple(mark), None) == ()


def test_two_that_are_stored_alike_are_one_with_or_without_the_key(red: Scope) -> None:
    """An item of a list is read from its event, and one of a base from the base: no difference."""
    for n in range(3):
        red.append("list", {"n": n}, subject="ada")
        red.set("single", f"s{n}", subject="ada")
        red.set("plain", n)
    state = red._log.newest("team/red").root
    ops, read = tree.diff_ops(tree.Map(), state), red._log.blobs.read
    again = tree.apply(tree.Map(), ops, revision=None, blobs=read)
    assert tree.diff(state, again) == []
    assert tree.diff_ops(state, again) == []
    red.set("single", "s3", subject="ada")
    other = red._log.newest("team/red").root
    assert [one.path for one in tree.diff(state, other)] == [("single",)]
    policies = [RetentionPolicy("team/*", types=["state"], count=1)]
    with holdfast.open("memory:", keys=red._log.sealing.keys) as store:
        team = store.team("red")
        for n in range(3):
            team.append("list", {"n": n}, subject="ada")
            team.set("plain", n)
        done = store.retention.run(policies=policies, grace_s=0)
        assert [(one.scope, one.why) for one in done.scopes] == [("team/red", "compacted")]
        assert team.get("list").to_list() == [{"n": n} for n in range(3)]
