"""Backends of others: opened as an instance, and by a scheme that an entry point adds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
import holdfast.aio
from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import renew_many
from holdfast.backends.registry import BUILT_IN, open_backend
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.testing import FaultyBackend
from tests.opening import settled

Install = Callable[..., None]


class Wrapped(FaultyBackend):
    """A backend that is none of ours: it forwards to one, and says whether it was closed."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend(clock=SystemClock()), plan={})
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


def test_a_store_is_opened_on_a_backend_and_closes_it():
    backend = Wrapped()
    with holdfast.open(backend) as store:
        store.team("red").set("n", 1)
        assert store.team("red").get("n") == 1
        assert store.check().ok
        assert store.url == "memory:"
        assert backend.commits == 1
        assert not backend.is_closed
    assert backend.is_closed


def test_the_options_of_a_store_are_not_those_of_its_backend():
    levels = {"desk": "team"}
    with holdfast.open(
        Wrapped(), actor="ada", settings=Settings(levels=levels, heartbeat_s=60)
    ) as store:
        store.scope("desk", "1").set("n", 1)
        assert [event.actor for event in store.scope("desk", "1").history()] == ["ada"]


def test_an_asyncio_store_is_opened_on_a_backend():
    async def main() -> object:
        async with await holdfast.aio.open(Wrapped()) as store:
            await store.team("red").set("n", 1)
            return await store.team("red").get("n")

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize(
    "options", [{"durability": "none"}, {"create": False}, {"read_only": True}, {"reach": print}]
)
def test_options_of_a_backend_are_refused_for_one_that_is_open(options: dict[str, Any]):
    with pytest.raises(UsageError, match=next(iter(options))):
        holdfast.open(Wrapped(), **settled(options))


def test_what_is_no_backend_is_told_what_it_lacks():
    with pytest.raises(UsageError, match=r"or an open backend, found <object object at"):
        holdfast.open(object())
    with pytest.raises(UsageError, match="a class: make an object of it"):
        holdfast.open(Wrapped)  # type: ignore[arg-type]

    backend = Wrapped()
    backend.wait = None  # type: ignore[assignment]
    backend.leases = object()  # type: ignore[assignment]
    lacks = "has no wait, leases.acquire, leases.renew, leases.release, leases.holder, leases.list;"
    with pytest.raises(UsageError, match=lacks):
        holdfast.open(backend)


class OlderLeases:
    """Leases as they were before `renew_many` was in the protocol."""

    def __init__(self, leases: Any) -> None:
        for name in ("acquire", "renew", "release", "holder", "list"):
            setattr(self, name, getattr(leases, name))


def test_a_backend_from_before_many_leases_were_renewed_at_once_still_works():
    backend = Wrapped()
    backend.leases = OlderLeases(backend.leases)  # type: ignore[assignment]
    with holdfast.open(backend) as store:
        lease = store.workers.lease("desk")
        assert lease is not None
        renewed, lost = renew_many(
            backend.leases, [lease, replace(lease, epoch=lease.epoch + 1)], ttl_s=30
        )
        assert renewed is not None
        assert lost is None


def test_a_durability_that_nobody_knows_is_refused():
    backend = Wrapped()
    backend.durability = "eventual"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="durability 'eventual': expected one of full"):
        holdfast.open(backend)


# --- by entry point -------------------------------------------------------------------------------

MODULE = """
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import renew_many

opened = []


def wrapped(url, *, clock, durability, create, read_only):
    opened.append((url, durability, create, read_only))
    return MemoryBackend(clock=clock)


def nothing(url, **options):
    return None


number = 7
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution with entry points, and a module that they may lead to."""
    (tmp_path / "foreign_backend.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str = "foreign", **schemes: str) -> None:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{scheme} = {value}" for scheme, value in schemes.items()]
        text = "\n".join(["[holdfast.backends]", *lines, ""])
        (folder / "entry_points.txt").write_text(text)

    yield make
    sys.modules.pop("foreign_backend", None)


def test_an_entry_point_adds_a_scheme(install: Install):
    install(shelf="foreign_backend:wrapped")
    with holdfast.open("shelf://ada:secret@host/1", durability="process") as store:
        store.team("red").set("n", 1)
        assert store.team("red").get("n") == 1
        assert store.url == "shelf://ada@host/1"
    [call] = sys.modules["foreign_backend"].opened
    assert call == ("shelf://ada:secret@host/1", "process", True, False)


def test_a_level_is_routed_to_a_backend_of_others(install: Install):
    install(shelf="foreign_backend:wrapped")
    with holdfast.open({"team": "shelf:1", "*": "memory:"}) as store:
        store.team("red").set("n", 1)
        assert store.status()["levels"]["team"]["kind"] == "memory"
        assert len(sys.modules["foreign_backend"].opened) == 1


def test_an_entry_point_is_loaded_only_when_its_scheme_is_asked_for(install: Install):
    install(shelf="foreign_backend:wrapped")
    holdfast.open("memory:").close()
    assert "foreign_backend" not in sys.modules


@pytest.mark.parametrize("scheme", BUILT_IN)
def test_a_scheme_of_ours_cannot_be_taken_over(install: Install, scheme: str, tmp_path: Path):
    install(**{scheme: "foreign_backend:wrapped"})
    options = {"clock": SystemClock(), "read_only": False, "create": False}
    with pytest.raises(holdfast.HoldfastError):
        open_backend(f"{scheme}:not-there", **options)
    assert "foreign_backend" not in sys.modules


def test_an_entry_point_that_cannot_be_loaded_is_named(install: Install):
    install(gone="not_installed:Backend", other="foreign_backend:absent")
    with pytest.raises(UsageError, match=r'"gone = not_installed:Backend".* ModuleNotFoundError'):
        holdfast.open("gone:1")
    with pytest.raises(UsageError, match=r'"other = foreign_backend:absent".* AttributeError'):
        holdfast.open("other:1")


def test_an_entry_point_that_leads_to_no_backend_is_named(install: Install):
    install(number="foreign_backend:number", nothing="foreign_backend:nothing")
    with pytest.raises(UsageError, match="leads to 7: expected a class or a function"):
        holdfast.open("number:1")
    with pytest.raises(UsageError, match=r'"nothing = foreign_backend:nothing".* is not a backend'):
        holdfast.open("nothing:1")


def test_two_packages_for_one_scheme_are_refused(install: Install):
    install("one", shelf="foreign_backend:wrapped")
    install("other", shelf="foreign_backend:nothing")
    with pytest.raises(UsageError, match="several packages offer a backend"):
        holdfast.open("shelf:1")


def test_a_scheme_that_nobody_offers_is_refused():
    with pytest.raises(
        UsageError,
        match='"shelf" is not a backend that is installed, found in "shelf://ada@host/1"',
    ):
        holdfast.open("shelf://ada:secret@host/1")
