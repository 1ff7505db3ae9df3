"""An index equals the plain scan, for random histories and questions, everywhere (BOOT-29)."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store
from holdfast.query import index
from holdfast.query.form import Hit, check_query
from holdfast.query.scan import scan
from holdfast.record.context import RecordContext
from holdfast.testing import FakeClock
from tests.query.histories import actions, perform, questions
from tests.record.stores import ALL, new_url

EXAMPLES = {"memory": 40, "files": 8, "sqlite": 8, "redis": 6, "postgresql": 6}
BEGIN = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000


def scanned(store: Store, **question: Any) -> list[Any]:
    query = check_query(store._log.clock.now_us(), **question)
    return list(scan(store._kernel.part(RecordContext), query))


@pytest.mark.parametrize("backend", ALL)
def test_index_equals_plain_scan(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", f"{place}/caches")

        @settings(
            max_examples=EXAMPLES[backend],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.lists(actions, max_size=30),
            st.lists(questions, min_size=4, max_size=8),
            st.sampled_from((1, 3, 2000)),
        )
        def check(history: list[Any], asked: list[dict[str, Any]], batch: int) -> None:
            monkeypatch.setattr(index, "BATCH_EVENTS", batch)
            with holdfast.open(new_url(backend, Path(place)), actor="ada") as store:
                for action in history:
                    perform(store, action)
                for question in ({}, {"kind": "log"}, *asked):
                    assert list(store.query(**question)) == scanned(store, **question)

        check()


def told(hit: Hit) -> Hit:
    """Returns a hit without the id of a message, which is made by chance."""
    return replace(hit, id="") if hit.kind == "message" else hit


@settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(actions, min_size=10, max_size=25), st.lists(questions, min_size=6, max_size=6))
def test_five_backends_answer_alike(history: list[Any], asked: list[dict[str, Any]]) -> None:
    answers: list[Any] = []
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", f"{place}/caches")
        for backend in ALL:
            clock = FakeClock(start_us=BEGIN)
            url = new_url(backend, Path(place))
            with holdfast.open(url, actor="ada", settings=Settings(clock=clock)) as store:
                for action in history:
                    clock.advance(1)
                    perform(store, action)
                answers.append([list(map(told, store.query(**one))) for one in ({}, *asked)])
    assert all(answer == answers[0] for answer in answers)
