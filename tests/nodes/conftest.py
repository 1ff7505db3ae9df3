"""Nodes on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.testing import FakeClock
from tests.nodes.witness import Calls
from tests.record.stores import ALL, DURABLE, new_url


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture(params=DURABLE)
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def hf(url: str) -> Iterator[Store]:
    with holdfast.open(url, actor="ada") as store:
        yield store


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def mem(clock: FakeClock) -> Iterator[Store]:
    """A store in memory, under a clock that the test moves."""
    with holdfast.open("memory:", actor="ada", settings=Settings(clock=clock)) as store:
        yield store
