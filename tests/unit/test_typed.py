"""Typed state: what is refused, what is stored, and what readers see of older data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import holdfast
from holdfast import Scope, Settings, Store
from holdfast.core import migrate
from holdfast.core.commit import NewEvent, ProposedCommit
from holdfast.core.log import scope_stream
from holdfast.core.tree import set_op
from holdfast.core.typed import Typed
from holdfast.errors import NewerSchemaError, UpgradeError
from holdfast.retention import Quota
from holdfast.schemas import Misfit
from holdfast.store import Meta
from holdfast.testing import FakeClock
from tests.opening import store_of_log


class Customer(msgspec.Struct):
    name: str
    mails: list[str] = []


class Ticket1(msgspec.Struct):
    stage: Literal["triage", "open", "closed"]
    customer: Customer | None = None
    notes: list[str] = []
    counts: dict[str, int] = {}
    people: dict[str, Customer] = {}
    free: Any = None


holdfast.schema("conversation", version=1)(Ticket1)


class Ticket2(Ticket1):
    sentiment: float | None = None
    result: str | None = None


holdfast.schema("conversation", version=2, aliases={"outcome": "result"})(Ticket2)


@holdfast.upgrade(Ticket2, 1)
def _add_sentiment(old: dict[str, Any]) -> dict[str, Any]:
    return old | {"sentiment": 0.5}


@holdfast.downgrade(Ticket2, 2)
def _take_sentiment(new: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in new.items() if name != "sentiment"}


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    low: int = 0


holdfast.schema("team", version=1)(Strict)


class Span(msgspec.Struct):
    low: int
    high: int

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low is above high")


class Flow(msgspec.Struct):
    span: Span | None = None
    spans: list[Span] = []


holdfast.schema("workflow", version=1)(Flow)


def run_as(store: Store, *schemas: type[Any], unchecked: bool = False) -> None:
    """Goes on as a program with other schemas would."""
    store._log.use_schemas(Typed(schemas, unchecked=unchecked))


@pytest.fixture
def hf() -> Iterator[Store]:
    with holdfast.open("memory:", schemas=[Ticket1, Strict, Flow]) as store:
        yield store


@pytest.fixture
def chat(hf: Store) -> Scope[Ticket1]:
    chat = hf.conversation("c1", Ticket1)
    chat.update({"stage": "open", "customer": {"name": "Ada"}, "notes": ["a"], "mine": {"x": 1}})
    return chat


def joint(chat: Scope, act: Callable[[Any], object]) -> None:
    with holdfast_of(chat).commit() as tx:
        act(tx.scope(chat))


def holdfast_of(chat: Scope) -> Any:
    store = store_of_log(chat._log, url="memory:", worker="w")
    return store


def edited(chat: Scope, act: Callable[[Any], object]) -> None:
    with chat.edit() as draft:
        act(draft)


WRONG: list[tuple[str, Callable[[Any], object], list[tuple[Any, ...]]]] = [
    ("set", lambda c: c.set("stage", "shut"), [("stage",)]),
    ("set inside", lambda c: c.set(("customer", "name"), 3), [("customer", "name")]),
    ("update", lambda c: c.update({"stage": 1, "notes": [2]}), [("stage",), ("notes", 0)]),
    ("delete", lambda c: c.delete("stage"), [("stage",)]),
    ("delete inside", lambda c: c.delete(("customer", "name")), [("customer", "name")]),
    ("append", lambda c: c.append("notes", 7), [("notes", 1)]),
    ("append anew", lambda c: c.append(("customer", "mails"), 7), [("customer", "mails", 0)]),
    ("increment", lambda c: c.increment(("counts", "a"), 0.5), [("counts", "a")]),
    (
        "default",
        lambda c: c.set("sum", 1, if_absent=True) and c.set("counts", 3, if_absent=True),
        [("counts",)],
    ),
    ("whole", lambda c: c.set((), {"stage": "open", "notes": 3}), [("notes",)]),
    ("replace", lambda c: c.update({"notes": []}, replace=True), [("stage",)]),
    ("new part", lambda c: c.set(("people", "bo", "mails"), []), [("people", "bo", "name")]),
    ("edit", lambda c: edited(c, lambda d: d.update({"stage": 2})), [("stage",)]),
    ("edit list", lambda c: edited(c, lambda d: d["notes"].extend([1, "b"])), [("notes", 1)]),
    (
        "edit both",
        lambda c: edited(c, lambda d: (d["notes"].append(1), d["notes"].pop(0))),
        [("notes", 0)],
    ),
    ("joint", lambda c: joint(c, lambda s: s.set("stage", "x")), [("stage",)]),
    (
        "merged",
        lambda c: edited(c, lambda d: d["customer"].update({"name": 3})),
        [("customer", "name")],
    ),
]


@pytest.mark.parametrize(("_", "act", "places"), WRONG, ids=[one[0] for one in WRONG])
def test_a_wrong_change_is_refused_whole(
    chat: Scope[Ticket1], _: str, act: Callable[[Any], object], places: list[tuple[Any, ...]]
):
    """VIC-28: the error lists every path, and the state stays as it was."""
    before, revision = chat.state.to_dict(), chat.revision
    with pytest.raises(holdfast.SchemaError, match="nothing was written") as caught:
        act(chat)
    assert [one.path for one in caught.value.misfits] == places
    assert {name: value for name, value in chat.state.to_dict().items() if name != "sum"} == before
    assert chat.revision - revision <= ("sum" in chat)


BO = {"name": "Bo"}
RIGHT: list[tuple[str, Callable[[Any], object]]] = [
    ("set", lambda c: c.set("stage", "closed")),
    ("unknown", lambda c: c.set("unknown", [{"a": 1}])),
    ("unknown inside", lambda c: c.set(("customer", "age"), 7)),
    ("anything", lambda c: c.set("free", {"a": [1]})),
    ("inside anything", lambda c: c.set("free", {}) and c.set(("free", "a"), 1)),
    ("optional", lambda c: c.delete("customer")),
    ("truncate", lambda c: edited(c, lambda d: d["notes"].clear())),
    ("append", lambda c: c.append("notes", "b")),
    ("increment", lambda c: c.increment(("counts", "a"))),
    ("part", lambda c: c.set(("people", "bo"), {"name": "Bo"})),
    ("inside a part", lambda c: c.set(("people", "a"), BO) and c.set(("people", "a", "name"), "C")),
    ("nothing left", lambda c: c.delete(())),
    ("set and gone", lambda c: edited(c, lambda d: (d["customer"].pop("name"), d.pop("customer")))),
    ("checkpoint", lambda c: c.checkpoint("here")),
    ("tagged", lambda c: c.set("notes", ["$x", "\ud800"])),
    ("large", lambda c: c.set("notes", ["x" * 1_000_000])),
    ("merge large", lambda c: edited(c, lambda d: d["customer"].update({"bio": "x" * 1_000_000}))),
    ("undone", lambda c: c.set("stage", "closed") and c.undo()),
]  # fmt: skip


@pytest.mark.parametrize(("_", "act"), RIGHT, ids=[one[0] for one in RIGHT])
def test_a_right_change_is_made_with_its_version(
    chat: Scope[Ticket1], _: str, act: Callable[[Any], object]
):
    act(chat)
    of_state = [one for one in chat.history() if one.type in ("changed", "restored")]
    assert {one.meta for one in of_state} == {Meta(schema=1)}
    assert chat._log.newest(chat.name).version == 1
    if chat.state:
        assert chat.typed.stage == chat["stage"]
    assert "mine" in chat or not chat.state


def test_the_first_write_must_be_whole(hf: Store):
    chat = hf.conversation("c2", Ticket1)
    with pytest.raises(holdfast.SchemaError) as caught:
        chat.append("notes", 3)
    assert caught.value.misfits == (
        Misfit(("stage",), "Literal['triage', 'open', 'closed']", "nothing"),
        Misfit(("notes", 0), "str", "3"),
    )
    assert chat.revision == 0


def test_what_was_written_before_there_was_a_schema_is_the_first_version(hf: Store):
    run_as(hf)
    old, wrong = hf.conversation("old"), hf.conversation("wrong")
    old.set("stage", "open")
    wrong.set("stage", 3)
    run_as(hf, Ticket1)
    assert old.typed.stage == "open"
    old.set("stage", "closed")
    assert [one.type for one in old.history()] == ["changed", "changed"]
    wrong.set("notes", ["a"])  # what is touched is checked
    for chat in (wrong, hf.conversation("none")):
        with pytest.raises(holdfast.SchemaError):
            _ = chat.typed
    run_as(hf, Ticket2)
    assert old["sentiment"] == 0.5


def test_a_type_that_looks_at_itself_is_asked_as_a_whole(hf: Store):
    flow = hf.workflow("w", Flow)
    flow.set("span", {"low": 1, "high": 2})
    with pytest.raises(holdfast.SchemaError) as caught:
        flow.set(("span", "low"), 3)
    [one] = caught.value.misfits
    assert (one.path, one.expected) == (("span",), "what fits (ValueError: low is above high)")
    flow.update({"span": None, "spans": [{"low": 1, "high": 1}]})
    with pytest.raises(holdfast.SchemaError):
        flow.append("spans", {"low": 3, "high": 2})


def test_a_closed_type_refuses_other_fields(hf: Store):
    team = hf.team("red", Strict)
    team.set("low", 3)
    with pytest.raises(holdfast.SchemaError, match="no such field"):
        team.set("high", 3)
    team.edit(lambda draft: (draft.update(high=1), draft.pop("high")))
    assert team.state.to_dict() == {"low": 3}


def test_messages_of_a_typed_scope_need_no_state(chat: Scope[Ticket1]):
    chat.say("hello")
    assert [one.meta for one in chat.history(type="message.added")] == [None]


def test_a_read_shows_what_is_older_as_this_program_has_it(hf: Store, chat: Scope[Ticket1]):
    """VIC-29, VIC-33: at(r) is the upgrade of what is stored at r; raw shows that."""
    chat.set("outcome", "sold")
    run_as(hf, Ticket2)
    new = hf.conversation("c1", Ticket2)
    assert (new.typed.sentiment, new.typed.result) == (0.5, "sold")
    assert new["sentiment"] == 0.5
    assert "outcome" not in new
    assert new.at(1)["sentiment"] == 0.5
    assert "sentiment" not in new.at(1, raw=True)
    assert [one.path for one in new.diff(1, 2)] == [("result",)]
    assert [one.path for one in new.diff(1, 2, raw=True)] == [("outcome",)]
    assert [one.state["sentiment"] for one in new.states()] == [0.5, 0.5]
    assert new["mine"] == {"x": 1}
    assert new.state is new.state  # computed once
    assert hf.view().get(new, "result") == "sold"
    assert new.revision == 2


def test_the_first_write_of_a_newer_version_is_led_by_a_migration(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    chat.append("notes", "b")
    assert [one.type for one in chat.history()] == ["changed", "migrated", "changed"]
    [migrated] = chat.history(type="migrated")
    assert migrated.data == {"from": 1, "to": 2, "ops": [["set", "sentiment", 0.5]]}
    assert migrated.meta == Meta(schema=2)
    assert chat.at(3, raw=True) == chat.state
    chat.append("notes", "c")
    assert [one.type for one in chat.history(after=3)] == ["changed"]


def test_a_renamed_field_is_renamed_by_the_first_write(hf: Store, chat: Scope):
    """BOOT-67: also where the version is the same."""
    run_as(hf, Ticket2)
    chat.set("outcome", "sold")
    assert chat["result"] == "sold"
    chat.edit(lambda draft: draft.update(result=draft["result"] + "!"))
    assert chat.at(-1, raw=True)["result"] == "sold"
    assert chat["result"] == "sold!"
    assert [one.type for one in chat.history(after=3)] == ["migrated", "changed"]
    chat.set("outcome", "both")
    assert (chat["result"], chat["outcome"]) == ("sold!", "both")
    assert hf.schemas.migrate(check=True).outdated[0].both == ("outcome",)
    hf.conversation("old").set("stage", "open")
    hf.conversation("older").update({"stage": "open", "outcome": "sold"})
    report = hf.check()
    assert report.ok
    [finding] = report.findings
    assert "which counts" in finding.problem
    assert finding.streams == (chat.name,)

    def damaged(_: Any) -> Any:
        raise holdfast.CorruptError("damaged")

    hf._log.newest_of = damaged  # type: ignore[method-assign]
    assert hf.check().findings == []


def test_what_goes_by_a_key_is_done_once_though_a_migration_leads_it(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    assert chat.set("stage", "closed", key="k") == 3
    assert chat.set("stage", "closed", key="k") == 3
    assert chat.set("notes", ["x"], diff=True, key="l") == 4
    assert chat.set("notes", ["x"], diff=True, key="l") == 4


def test_a_read_through_an_upgrade_guards_the_whole_state(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    with pytest.raises(holdfast.ConflictError), hf.commit() as tx:
        assert tx.scope(chat).get("sentiment") == 0.5
        chat.append("notes", "b")
        tx.scope(chat).set("stage", "closed")
    with hf.commit() as tx:
        assert tx.scope(chat).get("sentiment") == 0.5
        chat.append("notes", "c")
        tx.scope(chat).set("stage", "closed")


def test_what_differs_is_set_on_what_is_upgraded(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    new = chat.state.to_dict() | {"notes": ["a", "b"]}
    chat.update(new, replace=True)
    assert chat.at(3, raw=True) == new
    assert [one.type for one in chat.history()] == ["changed", "migrated", "changed"]
    assert chat.set("sentiment", 9.0, if_absent=True) == 3


def test_a_restore_goes_to_the_upgraded_target(hf: Store, chat: Scope):
    chat.set("stage", "closed")
    run_as(hf, Ticket2)
    chat.restore(1)
    assert chat.at(4, raw=True) == chat.state
    assert (chat["stage"], chat["sentiment"]) == ("open", 0.5)
    chat.set("sentiment", 0.9)
    chat.restore(1)
    assert chat["sentiment"] == 0.5


def test_a_migration_is_not_undone(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    assert hf.schemas.migrate().migrated == 1
    with pytest.raises(holdfast.UsageError, match="it cannot be undone"):
        chat.undo()
    chat.set("stage", "closed")
    chat.undo()
    assert chat["stage"] == "open"


def test_what_is_newer_is_read_and_not_written_over(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    chat.set("sentiment", 0.1)
    run_as(hf, Ticket1)
    assert chat["sentiment"] == 0.1
    assert hf.conversation("c1", Ticket1).typed.stage == "open"
    with pytest.raises(NewerSchemaError) as caught:
        chat.set("stage", "closed")
    assert (caught.value.stored, caught.value.known) == (2, 1)
    with pytest.raises(NewerSchemaError), hf.commit() as tx:
        tx.scope(chat).set("stage", "closed")
        tx.scope(hf.team("red")).set("low", 3)
    assert (chat.revision, hf.team("red").revision) == (3, 0)
    chat.say("hello")  # its messages are not of the schema
    assert not hf.schemas.migrate(check=True).ok
    assert not hf.schemas.migrate(dry_run=True).ok
    for to in (None, 1):
        [left] = hf.schemas.migrate(to=to).outdated
        assert (left.stored, left.version) == (2, 1)
        assert "never written over" in str(left.error)


def test_what_is_newer_and_does_not_fit_cannot_be_read_as_the_type(hf: Store, chat: Scope):
    class Later(msgspec.Struct):
        stage: int = 0

    holdfast.schema("conversation", version=2)(Later)
    holdfast.upgrade(Later, 1)(lambda old: old | {"stage": 1})
    run_as(hf, Later)
    chat.set("stage", 3)
    run_as(hf, Ticket1)
    with pytest.raises(NewerSchemaError):
        _ = chat.typed
    assert chat["stage"] == 3


def test_a_program_without_the_schema_does_not_write(hf: Store, chat: Scope):
    run_as(hf)
    assert chat["stage"] == "open"
    for act in (
        lambda: chat.set("stage", "x"),
        lambda: chat.append("notes", 3),
        lambda: chat.set("other", 3, if_absent=True),
    ):
        with pytest.raises(NewerSchemaError) as caught:
            act()
        assert caught.value.known == 0
    chat.say("hello")
    run_as(hf, unchecked=True)
    chat.set("other", "x")
    assert [one.meta for one in chat.history(type="changed")] == [Meta(schema=1)] * 2
    run_as(hf, Ticket2)
    chat.set("stage", "open")
    for unchecked in (False, True):
        run_as(hf, unchecked=unchecked)
        with pytest.raises(NewerSchemaError), hf.commit(meta=Meta(schema=1)) as tx:
            tx.scope(chat).set("stage", "y")


def test_a_commit_may_say_its_version_itself(hf: Store):
    team = hf.global_()
    for version in (1, 2):
        with hf.commit(meta=Meta(schema=version, source="s")) as tx:
            tx.scope(team).set("n", version)
    assert hf._log.newest("global").version == 2
    assert team.revision == 2


def test_a_version_falls_by_a_downgrade_alone(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    chat.update({"sentiment": 0.1, "unknown": 1})
    [one] = hf.schemas.migrate(check=True, to=1).outdated
    assert (one.stored, one.version) == (2, 1)
    [one] = hf.schemas.migrate(dry_run=True, to=1).outdated
    assert one.changes == 1
    assert hf.schemas.migrate(to=1).migrated == 1
    assert hf.schemas.migrate(to=1).migrated == 0
    run_as(hf, Ticket1)
    chat.set("stage", "closed")
    assert chat.state.to_dict()["unknown"] == 1
    assert "sentiment" not in chat
    [down] = list(chat.history(type="migrated"))[1:]
    assert down.data == {"from": 2, "to": 1, "ops": [["delete", "sentiment"]]}
    run_as(hf, Ticket2)
    assert chat["sentiment"] == 0.5


def test_a_removed_scope_comes_back_with_the_version_that_it_had(hf: Store, chat: Scope):
    chat.remove()
    run_as(hf, Ticket2)
    chat.undo()
    assert chat["sentiment"] == 0.5
    assert "sentiment" not in chat.at(3, raw=True)
    chat.remove()
    chat.set("stage", "open")  # a new life has the new version from its first event
    assert [one.type for one in chat.history()] == ["changed"]
    assert chat._log.newest(chat.name).version == 2


def test_a_fork_has_the_version_of_what_it_was_forked_from(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    fork = chat.fork("c2")
    assert fork["sentiment"] == 0.5
    fork.set("stage", "closed")
    assert [one.type for one in fork.history()] == ["changed", "forked", "migrated", "changed"]


def test_an_upgrade_that_fails_leaves_the_state_alone(hf: Store, chat: Scope):
    class Broken(msgspec.Struct):
        stage: str

    holdfast.schema("conversation", version=3)(Broken)
    run_as(hf, Broken)
    for act in (lambda: chat.state, lambda: chat.set("stage", "x"), lambda: chat.typed):
        with pytest.raises(UpgradeError, match="no upgrade from 1 to 2") as caught:
            act()
        assert 'scope "conversation/c1" at revision 1' in caught.value.where
    assert chat.at(1, raw=True)["stage"] == "open"
    [left] = hf.schemas.migrate().outdated
    assert "no upgrade" in str(left.error)
    [left] = hf.schemas.migrate(dry_run=True).outdated
    assert "no upgrade" in str(left.error)
    assert chat.revision == 1


def returns(what: Any) -> Any:
    """Returns a step that returns the same whatever it is given."""
    return lambda _: what


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda old: old["absent"], "failed: KeyError: 'absent'"),
        (returns(None), "returned None: expected a dict"),
        (returns({"stage": 3}), "['stage']: expected str, found 3"),
        (returns({"stage": "open", "by": object()}), "returned what cannot be stored: value at"),
    ],
)
def test_an_upgrade_that_is_wrong_names_its_event_and_stops_nothing_else(
    hf: Store, chat: Scope, step: Any, said: str
):
    """The state stays, so does all that a joint commit was to write; others are migrated."""

    class Broken(msgspec.Struct):
        stage: str

    class Right(msgspec.Struct):
        n: int = 0

    holdfast.schema("conversation", version=2)(Broken)
    holdfast.upgrade(Broken, 1)(step)
    holdfast.schema("team", version=2)(Right)
    holdfast.upgrade(Right, 1)(lambda old: old | {"n": 7})
    run_as(hf)
    hf.team("z").set("n", 1)
    run_as(hf, Broken, Right)

    def together() -> None:
        with hf.commit() as commit:
            commit.scope(hf.workflow("w")).set("n", 1)
            commit.scope(chat).set("stage", "x")

    for act in (lambda: chat.state, lambda: chat.set("stage", "x"), lambda: chat.typed, together):
        with pytest.raises(UpgradeError) as caught:
            act()
        assert said in str(caught.value)
        assert caught.value.where == 'scope "conversation/c1" at revision 1'
        assert (caught.value.start, caught.value.end) == (1, 2)
    for given in ({"dry_run": True}, {}):
        found = hf.schemas.migrate(**given)
        [left] = [one for one in found.outdated if one.error]
        assert left.scope == "conversation/c1"
        assert said in str(left.error)
        assert 'scope "conversation/c1" at revision 1' in str(left.error)
    assert hf.team("z").state.to_dict() == {"n": 7}
    assert [one.type for one in hf.team("z").history()] == ["changed", "migrated"]
    assert chat.at(1, raw=True)["stage"] == "open"
    assert (chat.revision, hf.workflow("w").revision) == (1, 0)


def test_a_downgrade_that_returns_what_cannot_be_stored(hf: Store, chat: Scope):
    class Broken(msgspec.Struct):
        stage: str

    holdfast.schema("conversation", version=2)(Broken)
    holdfast.upgrade(Broken, 1)(dict)
    holdfast.downgrade(Broken, 2)(returns({"stage": {1, 2}}))
    run_as(hf, Broken)
    hf.schemas.migrate()
    [left] = hf.schemas.migrate(to=1).outdated
    assert 'the downgrade of scope "conversation/c1" at revision 2 from version 2 to 1' in str(
        left.error
    )
    assert "cannot be stored: value at ['stage'] is of type set" in str(left.error)
    assert chat["stage"] == "open"


def test_subscribers_hear_of_a_migration(hf: Store, chat: Scope):
    heard: list[Any] = []
    told = chat.subscribe(heard.append)
    run_as(hf, Ticket2)
    chat.set("stage", "closed")
    assert told.drain()
    assert {one.path: one.new for one in heard} == {("stage",): "closed", ("sentiment",): 0.5}


def test_transforms_see_what_is_upgraded(hf: Store, chat: Scope):
    run_as(hf, Ticket2)
    remove = hf._log.add_transform(lambda root, _: holdfast.Map({"n": root["sentiment"]}))
    assert chat.state.to_dict() == {"n": 0.5}
    remove()
    assert chat["sentiment"] == 0.5


def test_a_closed_scope_is_read_upgraded_and_left_alone(hf: Store, chat: Scope):
    chat.close()
    run_as(hf, Ticket2)
    assert chat["sentiment"] == 0.5
    assert hf.schemas.migrate().migrated == 0
    dropped = hf.conversation("c3")
    dropped.set("stage", "open")
    dropped.close(keep=False)
    for read in (lambda: dropped.state, lambda: dropped.typed):
        with pytest.raises(holdfast.ClosedError):
            read()


def test_bad_schemas_are_refused(hf: Store):
    """Two schemas for one scope, one that is none, one of a layer's own streams."""

    class Other(msgspec.Struct):
        a: int = 0

    class Third(msgspec.Struct):
        a: int = 0

    class Run(msgspec.Struct):
        a: int = 0

    holdfast.schema("conversation/c*", version=1)(Other)
    holdfast.schema("conversation", version=1)(Third)
    holdfast.schema("run", version=1)(Run)
    for same in (Ticket1, Third):
        with pytest.raises(holdfast.UsageError, match=r"has two schemas.*leave one of them out"):
            holdfast.open("memory:", schemas=[Ticket1, same])
    with holdfast.open("memory:", schemas=[Ticket1, Other]) as store:
        with pytest.raises(holdfast.UsageError, match=r"has two schemas.*the patterns narrower"):
            store.conversation("c1").set("stage", "open")
        store.conversation("d").set("stage", "open")
    for wrong in ([int], [Run], "Ticket", 3):
        with pytest.raises(holdfast.UsageError):
            holdfast.open("memory:", schemas=wrong)  # type: ignore
    with pytest.raises(holdfast.UsageError, match="has no schema in this program"):
        hf.global_(Ticket1)
    with pytest.raises(holdfast.UsageError, match='has the schema "Ticket1"'):
        hf.conversation("x", Third)
    with pytest.raises(holdfast.UsageError, match="has no schema"):
        _ = hf.global_().typed


def test_what_decisions_and_messages_say_of_themselves():
    """Their version is that of the one schema of their kind which fits their scope."""

    @holdfast.schema("conversation", version=2, kind="decision")
    class Choice(msgspec.Struct):
        decision: str

    @holdfast.schema("conversation/c*", version=3, kind="decision")
    class Narrow(msgspec.Struct):
        decision: str

    typed = Typed([Ticket1, Choice, Narrow])
    assert [one.type for one in typed.all] == [Ticket1]
    assert typed.item_meta("decision", "conversation/d") == '{"schema":2}'
    assert typed.item_meta("message", "conversation/d") is None
    assert typed.item_meta("decision", "team/d") is None
    with pytest.raises(holdfast.UsageError, match="has two schemas"):
        typed.item_meta("decision", "conversation/c1")
    with pytest.raises(holdfast.UsageError, match="has two schemas"):
        Typed([Choice, Choice])
    with pytest.raises(holdfast.UsageError, match="kind of a schema is state, decision or message"):
        holdfast.schema("conversation", version=1, kind="task")  # type: ignore


def test_migrating_looks_at_what_there_is():
    """Scopes that expired, are empty, or are of their version already are passed over."""
    clock = FakeClock()
    with holdfast.open("memory:", schemas=[Ticket2], settings=Settings(clock=clock)) as store:
        store.conversation("expired", ttl_s=5).set("stage", "open")
        store.conversation("empty").say("hello")
        store.conversation("current").set("stage", "open")
        store.conversation("emptied").set("stage", "open")
        store.conversation("emptied").delete(())
        clock.advance(10)
        for given in ({"check": True}, {"dry_run": True}, {}):
            found = store.schemas.migrate(**given)
            assert (found.scopes, found.migrated, found.outdated, found.ok) == (4, 0, [], True)
        assert store.schemas.migrate(to=1).migrated == 2  # an emptied one has a version too


def test_a_scope_that_cannot_be_migrated_stops_no_other(monkeypatch: pytest.MonkeyPatch):
    """One takes no more events, and one ends while it is migrated: the last is migrated."""
    clock = FakeClock()
    quota = Quota("conversation/full", events=1)
    settings = Settings(clock=clock, quotas=[quota])
    with holdfast.open("memory:", schemas=[Ticket1], settings=settings) as store:
        store.conversation("ends", ttl_s=5).set("stage", "open")
        for id in ("full", "last"):
            store.conversation(id).set("stage", "open")
        run_as(store, Ticket2)
        sound = store._log.submit_all

        def late(proposed: Any) -> Any:
            clock.advance(10)
            return sound(proposed)

        monkeypatch.setattr(store._log, "submit_all", late)
        found = store.schemas.migrate()
        assert (found.scopes, found.migrated, found.ok) == (3, 1, False)
        [full] = found.outdated
        assert full.scope == "conversation/full"
        assert "1 events" in (full.error or "")
        assert store.conversation("last").state["sentiment"] == 0.5


def test_a_secret_in_one_scope_stops_no_other_from_being_migrated(tmp_path: Path):
    """The value that an upgrade renames is a secret, stored before secrets were refused."""
    with holdfast.open(tmp_path, schemas=[Ticket1]) as store:
        for id, outcome in (("a", "sold"), ("b", f"ghp_{'aB3dE6gH9' * 4}"), ("c", "sold")):
            store.conversation(id).update({"stage": "open", "outcome": outcome})
    settings = Settings(secrets="refuse")
    with holdfast.open(tmp_path, schemas=[Ticket2], settings=settings) as store:
        found = store.schemas.migrate()
        assert (found.scopes, found.migrated, found.ok) == (3, 2, False)
        [left] = found.outdated
        assert left.scope == "conversation/b"
        assert "secret" in (left.error or "") or "github-token" in (left.error or "")
        assert "ghp_" not in (left.error or "")
        assert [store.conversation(id).revision for id in "abc"] == [2, 1, 2]


def test_what_is_known_of_scopes_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.core.typed.KNOWN_MAX", 2)
    monkeypatch.setattr("holdfast.core.typed.SHOWN_MAX", 1)
    with holdfast.open("memory:", schemas=[Ticket1]) as store:
        chats = [store.conversation(f"c{n}") for n in range(4)]
        for chat in chats:
            chat.set("stage", "open")
        run_as(store, Ticket2)
        assert [chat["sentiment"] for chat in chats] == [0.5] * 4
        assert len(store._log.typed._shown) == 1


def test_a_snapshot_holds_the_stored_state_and_its_version(tmp_path: Path):
    with holdfast.open(str(tmp_path / "s"), schemas=[Ticket1]) as store:
        chat = store.conversation("c1")
        chat.update({"stage": "open", **{f"n{n}": "x" * 1000 for n in range(300)}})
        assert store._log.snapshots.revisions(chat.name) == [1]
    with holdfast.open(str(tmp_path / "s"), schemas=[Ticket2]) as store:
        chat = store.conversation("c1")
        snapshot = store._log.snapshots.read(chat.name, 1)
        assert snapshot.version == 1
        assert "sentiment" not in snapshot.root
        assert chat["sentiment"] == 0.5
        chat.set("stage", "closed")
    with holdfast.open(str(tmp_path / "s")) as store:
        assert store._log.newest("conversation/c1").version == 2
        chat = store.conversation("c1")
        with pytest.raises(NewerSchemaError):
            chat.set("stage", "x")


def test_a_cold_write_finds_the_version_at_the_end_of_its_stream(tmp_path: Path):
    """Without a fold where the newest event says it, with one where it says nothing of it."""
    place = str(tmp_path / "s")
    with holdfast.open(place, schemas=[Ticket1]) as store:
        store.conversation("a").set("stage", "open")
        store.conversation("b").set("stage", "open")
        store.conversation("b").say("hello")
        store.conversation("d").say("hello")
        store.conversation("e").set("stage", "open")
        store.conversation("e").remove()
    with holdfast.open(place) as store:
        for name in ("a", "b"):
            chat = store.conversation(name)
            with pytest.raises(NewerSchemaError):
                chat.set("stage", "x")
        assert store.conversation("d").set("n", 1) == 2
        assert store.conversation("e").set("n", 1) == 3
        assert store.conversation("d").set("n", 1, key="k") == 3
    with holdfast.open(place) as store:
        assert store.conversation("d")._change((), None, "l", None) == 4
    with holdfast.open(place) as store:
        assert store.conversation("d").set("n", 2) == 5


def test_a_neighbour_that_was_not_folded_is_waited_for(tmp_path: Path):
    """A message and a change in one batch: the end that the message leaves says no version."""
    with holdfast.open(str(tmp_path / "s")) as store:
        store.conversation("a").say("one")
    with holdfast.open(str(tmp_path / "s")) as store:
        log, chat = store._log, store.conversation("a")
        say = scope_stream(chat).write((NewEvent("message.noted", b"null"),))
        change = scope_stream(chat).change_write((set_op("n", 1),), None, None, None)
        commits = [ProposedCommit((one,)) for one in (say, change)]
        assert [log.wait(one).revision for one in log.submit_all(commits)] == [2, 3]


def test_migrating_passes_over_what_others_did(hf: Store, chat: Scope):
    """Somebody else's write migrates a scope between the look at it and the commit."""
    run_as(hf, Ticket2)
    log, told = hf._log, []
    newest_of = log.newest_of

    def meanwhile(names: list[str]) -> Any:
        found = newest_of(names)
        chat.set("stage", "closed")
        return found

    log.newest_of = meanwhile  # type: ignore[method-assign]
    done = hf.schemas.migrate(progress=lambda *so_far: told.append(so_far))
    assert (done.scopes, done.migrated, done.outdated, told) == (1, 0, [], [(1, 1)])
    assert done.ok


def test_migrating_is_tried_again_where_others_are_faster(
    hf: Store, chat: Scope, monkeypatch: pytest.MonkeyPatch
):
    run_as(hf, Ticket2)
    monkeypatch.setattr("holdfast.core.migrate.RETRIES", 3)
    log, new_event = hf._log, migrate._new_event
    old, new = Typed([Ticket1]), hf._log.typed
    others = {"left": 1}

    def slow(*given: Any) -> Any:
        """Another program, of the older version, writes between the look and the commit."""
        found = new_event(*given)
        if others["left"]:
            others["left"] -= 1
            log.typed = old
            chat.append("notes", "x")
            log.typed = new
        return found

    monkeypatch.setattr(migrate, "_new_event", slow)
    assert hf.schemas.migrate().migrated == 1
    assert [one.type for one in chat.history()] == ["changed", "changed", "migrated"]
    hf.schemas.migrate(to=1)
    others["left"] = 3
    assert hf.schemas.migrate().migrated == 1
    hf.schemas.migrate(to=1)
    others["left"] = 9
    [left] = hf.schemas.migrate().outdated
    assert "expected revision" in str(left.error)
    assert log.newest(chat.name).version == 1


def test_migrating_needs_right_arguments(hf: Store):
    for wrong in ({"to": 0}, {"check": 1}, {"dry_run": 1}, {"progress": 3}):
        with pytest.raises(holdfast.UsageError):
            hf.schemas.migrate(**wrong)  # type: ignore


def test_a_pattern_names_some_scopes():
    @holdfast.schema("conversation/support-*", version=1)
    class Support(msgspec.Struct):
        n: int = 0

    with holdfast.open("memory:", schemas=[Support, Strict]) as store:
        store.global_().set("n", "x")
        store.conversation("other").set("n", "x")
        with pytest.raises(holdfast.SchemaError):
            store.conversation("support-1").set("n", "x")
        store.conversation("support-1").set("n", 1)
        assert store.schemas.migrate().scopes == 1


def test_a_global_schema():
    @holdfast.schema("global", version=1)
    class Settings(msgspec.Struct):
        model: str = "small"

    with holdfast.open("memory:", schemas=[Settings]) as store:
        assert store.schemas.migrate().scopes == 0
        store.global_(Settings).set("model", "large")
        assert store.global_(Settings).typed == Settings("large")
        assert store.schemas.migrate().scopes == 1
