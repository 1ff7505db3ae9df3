"""Random schemas, upgrades and histories: what is shown is the upgrade of what is stored."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

import holdfast
from holdfast.core.event import EMPTY, fold
from holdfast.core.schema import Schema
from holdfast.core.snapshot import Snapshots
from holdfast.core.typed import Typed
from tests.record.stores import ALL, new_url

FIELDS = ["a", "b", "c", "d"]
VALUES = st.one_of(st.integers(-5, 5), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=3))


class Open(msgspec.Struct):
    """Fields of any kind: what upgrades do to them is what is tried."""


Step = tuple[str, str, Any]
STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(FIELDS), VALUES),
    st.tuples(st.just("drop"), st.sampled_from(FIELDS), st.none()),
    st.tuples(st.just("rename"), st.sampled_from(FIELDS), st.sampled_from(FIELDS)),
    st.tuples(st.just("wrap"), st.sampled_from(FIELDS), st.none()),
)
WRITES = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(FIELDS), VALUES),
    st.tuples(st.just("delete"), st.sampled_from(FIELDS), st.none()),
    st.tuples(st.just("edit"), st.sampled_from(FIELDS), VALUES),
    st.tuples(st.just("restore"), st.integers(0, 20), st.none()),
    st.tuples(st.just("undo"), st.none(), st.none()),
    st.tuples(st.just("say"), st.none(), st.none()),
    st.tuples(st.just("raise"), st.none(), st.none()),
)


def upgraded(step: Step, data: dict[str, Any]) -> dict[str, Any]:
    """Returns data after one step, a pure function."""
    kind, field, value = step
    if kind == "add":
        return {**data, field: data.get(field, value)}
    if kind == "drop":
        return {name: one for name, one in data.items() if name != field}
    if kind == "rename" and field in data and value not in data:
        return {value if name == field else name: one for name, one in data.items()}
    if kind == "wrap" and field in data:
        return {**data, field: {"was": data[field]}}
    return dict(data)


def schema_of(version: int, steps: list[Step]) -> type[Any]:
    """Returns the class of a version, with the chain up to it."""
    made = type("Open", (Open,), {})
    holdfast.schema("team", version=version)(made)
    for at, step in enumerate(steps[: version - 1], 1):
        holdfast.upgrade(made, at)(lambda data, step=step: upgraded(step, data))
    return made


@given(st.lists(STEPS, min_size=1, max_size=5), st.dictionaries(st.sampled_from(FIELDS), VALUES))
@settings(max_examples=25, deadline=None)
def test_a_chain_composes(steps: list[Step], data: dict[str, Any]):
    """VIC-29: going in one walk is going step by step, from wherever one begins."""
    whole = len(steps) + 1
    one: Schema[Any] = schema_of(whole, steps).__holdfast_schema__  # type: ignore[attr-defined]
    by_steps = data
    for step in steps:
        by_steps = upgraded(step, by_steps)
    assert one.upgraded(data, 1, "it") == by_steps
    for middle in range(1, whole):
        part: Schema[Any] = schema_of(middle, steps).__holdfast_schema__  # type: ignore
        assert one.upgraded(part.upgraded(data, 1, "it"), middle, "it") == by_steps


def write(scope: Any, kind: str, field: Any, value: Any) -> None:
    if kind == "set":
        scope.set(field, value)
    elif kind == "delete" and field in scope:
        scope.delete(field)
    elif kind == "edit":
        scope.edit(lambda draft: draft.update({field: [draft.get(field), value]}))
    elif kind == "restore" and 0 < field <= scope.revision:
        scope.restore(field)
    elif kind == "say":
        scope.say("hello")
    elif kind == "undo":
        with suppress(holdfast.NotFoundError, holdfast.UsageError):
            scope.undo()


@cache
def store_of(backend: str, place: str) -> holdfast.Store:
    return holdfast.open(new_url(backend, Path(place)))


@pytest.mark.parametrize("backend", ALL)
def test_folds_and_upgrades_agree(backend: str, tmp_path_factory: pytest.TempPathFactory):
    """VIC-33, BOOT-67: at every revision, cached, replayed and from a snapshot."""
    place = str(tmp_path_factory.mktemp("schemas"))
    store, numbers = store_of(backend, place), iter(range(10_000))
    examples = 20 if backend == "memory" else 5

    @given(st.lists(STEPS, min_size=1, max_size=3), st.lists(WRITES, max_size=12))
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    def check(steps: list[Step], writes: list[Any]) -> None:
        compare(store, f"t{next(numbers)}", steps, writes)

    try:
        check()
    finally:
        store_of.cache_clear()
        store.close()


def test_an_upgrade_that_is_skipped_on_snapshots_is_caught(monkeypatch: pytest.MonkeyPatch):
    """A planted fault: what comes from a snapshot passes for the newest version."""
    read = Snapshots.read

    def skipping(self: Any, stream: str, revision: int) -> Any:
        return msgspec.structs.replace(read(self, stream, revision), version=2)

    steps: list[Step] = [("add", "d", 7)]
    writes = [("set", "a", 1), ("raise", None, None)]
    with holdfast.open("memory:") as store:
        compare(store, "right", steps, writes)
        monkeypatch.setattr(Snapshots, "read", skipping)
        with pytest.raises(AssertionError):
            compare(store, "planted", steps, writes)


def compare(store: holdfast.Store, name: str, steps: list[Step], writes: list[Any]) -> None:
    version = 1
    log, scope = store._log, store.team(name)
    log.use_schemas(Typed([schema_of(1, steps)]))
    for kind, field, value in writes:
        if kind == "raise":
            version = min(version + 1, len(steps) + 1)
            log.use_schemas(Typed([schema_of(version, steps)]))
        else:
            before = scope.state.to_dict()
            write(scope, kind, field, value)
            if kind == "set":
                assert scope.state.to_dict() == before | {field: value}
    schema = schema_of(version, steps)
    log.use_schemas(Typed([schema]))
    chain: Schema[Any] = schema.__holdfast_schema__  # type: ignore[attr-defined]
    records = log.records(scope.name)
    for revision in range(1, len(records) + 1):
        stored = fold(EMPTY, records[:revision], log.blobs.read)
        cached = log.at(scope.name, revision)
        assert (stored.root, stored.version) == (cached.root, cached.version)
        assert scope.at(revision, raw=True) == stored.root
        wanted = stored.root.to_dict()
        if wanted:
            wanted = chain.upgraded(wanted, stored.version, "it")
        assert scope.at(revision).to_dict() == wanted
    if scope.state:
        log.snapshots._write(scope.name, log.newest(scope.name), log.snapshots._begin(scope.name))
        log.folds.states.pop(scope.name)
        assert log.newest(scope.name).version == fold(EMPTY, records, log.blobs.read).version
        shown = scope.state.to_dict()
        scope.set("z", 1)
        assert scope.state.to_dict() == shown | {"z": 1}
        assert log.newest(scope.name).version == version
