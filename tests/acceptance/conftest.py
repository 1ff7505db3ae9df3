"""The public API on every embedded backend."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store

BACKENDS = ["memory", "files", "sqlite"]
DURABLE = ["files", "sqlite"]


def _url_of(backend: str, place: Path) -> str:
    return {
        "memory": "memory:",
        "files": str(place / "store"),
        "sqlite": f"sqlite:{place / 'store.db'}",
    }[backend]


@pytest.fixture
def url_of() -> Callable[[str, Path], str]:
    return _url_of


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(backend: str, tmp_path: Path) -> str:
    return _url_of(backend, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Store]:
    with holdfast.open(url) as store:
        yield store


@pytest.fixture(params=DURABLE)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens one durable store again and again; a handle that is still open stays open."""
    stores: list[Store] = []

    def opened() -> Store:
        stores.append(holdfast.open(_url_of(request.param, tmp_path)))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()
