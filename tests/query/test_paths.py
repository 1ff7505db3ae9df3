"""Indexes on paths of the state: a question finds the same with them, and looks at fewer states."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import HoldfastError, Settings, Store, UsageError, aio
from holdfast.query import index, scan
from tests.query.test_query_model import scanned
from tests.record.stores import ALL, new_url

EXAMPLES = {"memory": 60, "files": 8, "sqlite": 8, "redis": 6, "postgresql": 6}
DECLARED = [holdfast.index("conversation", "a"), holdfast.index("conversation/s-*", "b.c")]
LONG = "x" * 150

_values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3),
    st.sampled_from((2.5, 10**400, -(10**400), 2**60)),
    st.sampled_from(("", "one", "two", LONG, LONG + "y", "Ä", "日", "a\0b", b"one")),
    st.just([1]), st.just({"d": 1}),
)  # fmt: skip
_scopes = st.sampled_from(("conversation/1", "conversation/s-2", "conversation/s-3", "team/t"))
_changes = st.one_of(
    st.tuples(_scopes, st.just("a"), _values),
    st.tuples(_scopes, st.just("b"), st.fixed_dictionaries({"c": _values})),
    st.tuples(_scopes, st.just(""), st.none()),
)
_comparisons = st.one_of(
    st.tuples(
        st.sampled_from(("a", "b.c")),
        st.sampled_from(("=", "!=", "<", "<=", ">", ">=")),
        st.one_of(_values, st.just(2**60 + 1)),
    ),
    st.tuples(st.sampled_from(("a", "b.c")), st.just("exists"), st.booleans()),
    st.tuples(st.sampled_from(("a", "b.c")), st.just("in"), st.lists(_values, max_size=3)),
)


def change(store: Store, scope: str, key: str, value: Any) -> None:
    one = store.scope(scope)
    if key:
        one.set(key, value)
    else:
        with suppress(HoldfastError):
            one.remove()


@pytest.mark.parametrize("backend", ALL)
def test_with_an_index_on_a_path_the_same_is_found(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BOOT-29: whenever it was declared, and whoever declared it."""
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", f"{place}/caches")

        @settings(
            max_examples=EXAMPLES[backend],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.lists(_changes, min_size=3, max_size=15),
            st.lists(_comparisons, min_size=4, max_size=8),
            st.integers(0, 15),
        )
        def check(history: list[Any], asked: list[Any], declared_at: int) -> None:
            url = new_url(backend, Path(place))
            with holdfast.open(url, actor="ada", settings=Settings(indexes=DECLARED)) as store:
                if backend != "memory" and declared_at:
                    with holdfast.open(url, actor="ada") as plain:
                        for one in history[:declared_at]:
                            change(plain, *one)
                        plain.query(limit=1)
                    history = history[declared_at:]
                for one in history:
                    change(store, *one)
                for one in asked:
                    expected = scanned(store, where=one)
                    assert list(store.query(where=one)) == expected
                    names = sorted(hit.scope for hit in expected)
                    assert [one.name for one in store.scopes(where=one)] == names

        check()


def filled(hf: Store, count: int) -> None:
    for number in range(count):
        hf.conversation(f"c{number}").set("customer", {"id": number % 50})


def count_states(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that grows by each scope whose state is compared."""
    looked: list[str] = []
    has_state = scan.has_state

    def counting(context: Any, query: Any, stream: str) -> bool:
        looked.append(stream)
        return has_state(context, query, stream)

    monkeypatch.setattr(index, "has_state", counting)
    return looked


def test_only_states_that_may_fit_are_looked_at(tmp_path: Path, monkeypatch: Any) -> None:
    declared = holdfast.index("conversation", "customer.id")
    looked = count_states(monkeypatch)
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        filled(hf, 100)
        assert len(hf.query(where=("customer.id", "=", 7))) == 2
        assert len(looked) == 100
    with holdfast.open(
        place, settings=Settings(indexes=[declared])
    ) as hf:  # declared when states were there
        looked.clear()
        assert [one.id for one in hf.scopes(where={"customer.id": 7})] == ["c57", "c7"]
        assert [one.id for one in hf.scopes("conversation", where={"customer.id": 7}, prefix="c5")]
        assert not hf.scopes("team", where={"customer.id": 7})
        first = hf.scopes(where={"customer.id": 7}, limit=1)
        assert first.more
        [second] = hf.scopes(where={"customer.id": 7}, limit=1, after=first.cursor)
        assert second.id == "c7"
        assert {*looked} == {"conversation/c7", "conversation/c57"}
    with holdfast.open(place, read_only=True) as hf:  # it declares nothing, and uses what is there
        looked.clear()
        assert len(hf.query(where=[("customer.id", ">=", 48), ("customer.id", "<", 49)])) == 2
        assert len(looked) <= 4


class Ticket(msgspec.Struct):
    customer: int
    stage: str = "open"


holdfast.schema("conversation", version=2)(Ticket)


@holdfast.upgrade(Ticket, 1)
def _(old: dict[str, Any]) -> dict[str, Any]:
    return {"customer": old["id"], "stage": old.get("stage", "open")}


def test_comparisons_are_of_what_the_program_shows(monkeypatch: Any) -> None:
    """A state of an older version is compared as its upgrade has it, with an index or without."""
    declared = holdfast.index("conversation", "customer")
    with holdfast.open(new_url("memory", Path()), settings=Settings(unchecked=True)) as store:
        backend = store._log._backend
        for number in range(10):
            store.conversation(f"old{number}").set("id", number)
        for indexes in ([], [declared]):
            hf = holdfast.open(backend, schemas=[Ticket], settings=Settings(indexes=indexes))
            hf.conversation("new").update({"customer": 3, "stage": "open"})
            found = [hit.scope for hit in hf.query(where={"customer": 3})]
            assert sorted(found) == ["conversation/new", "conversation/old3"]
            assert [one.id for one in hf.scopes(where={"customer": 3})] == ["new", "old3"]
            looked = count_states(monkeypatch)
            hf.schemas.migrate()
            assert len(hf.query(where={"customer": 3})) == 2
            assert len(looked) == (2 if indexes else 11)
            looked.clear()


class Person(msgspec.Struct):
    email: str = ""


class Order(msgspec.Struct):
    customer: Person


holdfast.schema("team", version=1, aliases={"customer.mail": "customer.email"})(Order)


def test_a_renamed_field_is_compared_by_its_new_name(tmp_path: Path) -> None:
    """VIC-29: also within another one; `check` names a scope that has both."""
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        hf.team("old").set("customer", {"mail": "ann"})
        hf.team("both").set("customer", {"mail": "ann", "email": "bob"})
    declared = [holdfast.index("team", "customer.email")]
    with holdfast.open(place, schemas=[Order], settings=Settings(indexes=declared)) as hf:
        assert hf.team("old").state == {"customer": {"email": "ann"}}
        assert [one.id for one in hf.scopes(where={"customer.email": "ann"})] == ["old"]
        assert [one.id for one in hf.scopes(where={"customer.email": "bob"})] == ["both"]
        [finding] = hf.check().findings
        assert "has customer.mail beside the new name" in str(finding)
        hf.schemas.migrate()
        assert hf.team("old").at(hf.team("old").revision, raw=True) == {
            "customer": {"email": "ann"}
        }
        assert [one.id for one in hf.scopes(where={"customer.email": "ann"})] == ["old"]


def test_a_state_that_cannot_be_upgraded_is_compared_as_it_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        hf.conversation("bad").set("customer", "none")
    with holdfast.open(place, schemas=[Ticket]) as hf:
        assert [hit.scope for hit in hf.query(where={"customer": "none"})] == ["conversation/bad"]
    assert "compared as it is stored" in caplog.text


def test_time_for_an_index_that_is_not_whole(tmp_path: Path, monkeypatch: Any) -> None:
    """It is not used before it is, and the question is answered all the same."""
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        filled(hf, 30)
        hf.query(limit=1)
    looked = count_states(monkeypatch)
    with holdfast.open(
        place, settings=Settings(indexes=[holdfast.index("conversation", "customer.id")])
    ) as hf:
        assert len(hf.query(where={"customer.id": 7}, timeout=0)) == 1
        assert len(looked) == 30
        looked.clear()
        assert len(hf.query(where={"customer.id": 7})) == 1
        assert len(looked) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("conversation/a", "x"), "level, or of a pattern"),
        (("Conversation", "x"), "level"),
        ((7, "x"), "level, or of a pattern"),
        (("conversation", ""), "path"),
        (("conversation", 7), "a path is text"),
    ],
)
def test_what_cannot_be_declared(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        holdfast.index(*given)


@pytest.mark.parametrize("given", ["conversation", 7, [("conversation", "x")]])
def test_what_is_no_list_of_indexes(given: Any) -> None:
    with pytest.raises(UsageError, match="indexes is a list"):
        holdfast.open("memory:", settings=Settings(indexes=given))


def test_asyncio() -> None:
    async def main() -> None:
        declared = holdfast.index("conversation", "stage")
        async with await aio.open("memory:", settings=Settings(indexes=[declared])) as hf:
            await hf.conversation("c").set("stage", "open")
            assert [one.id for one in await hf.scopes(where={"stage": "open"})] == ["c"]

    asyncio.run(main())


def test_a_level_is_a_pattern(hf: Store) -> None:
    hf.conversation("c").set("k", 1)
    hf.team("t").set("k", 1)
    hf.global_().set("k", 1)
    assert [hit.scope for hit in hf.query(scope="team")] == ["team/t"]
    assert [hit.scope for hit in hf.query(scope="global")] == ["global"]
    assert [hit.scope for hit in hf.query(scope="t*m/*")] == ["team/t"]
