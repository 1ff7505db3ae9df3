"""Runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from tests.record.stores import ALL, DURABLE, new_url
from tests.runs.witness import Witness, fresh


@pytest.fixture
def witness() -> Witness:
    return fresh()


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture(params=DURABLE)
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Store]:
    with holdfast.open(url, actor="ada") as store:
        yield store
