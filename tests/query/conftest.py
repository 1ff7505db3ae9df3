"""Questions on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from tests.record.stores import ALL, DURABLE, new_url


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has indexes that lie with a user's caches lie with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture(params=DURABLE)
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that outlives its process."""
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Store]:
    with holdfast.open(url, actor="architect") as store:
        yield store
