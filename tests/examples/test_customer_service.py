"""The customer service of the examples, on a real PostgreSQL and a real Redis."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from tests.record.stores import new_url

SERVICE = Path(__file__).resolve().parents[2] / "examples" / "customer_service" / "service.py"
ADA, BOB = "ada@example.org", "bob@example.org"

DYING = """
import os, runpy, signal, sys
service = runpy.run_path(sys.argv[1])
stores = {"conversation": sys.argv[2], "*": sys.argv[3]}
hf = service["open_desk"](stores, sys.argv[4], agent="agent-1")
die = lambda text: os.kill(os.getpid(), signal.SIGKILL)
service["serve"](hf, sys.argv[5], "are you there?", die)
"""


@pytest.fixture(scope="module")
def service() -> Any:
    spec = importlib.util.spec_from_file_location("customer_service_example", SERVICE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, str]:
    return {"conversation": new_url("redis", tmp_path), "*": new_url("postgresql", tmp_path)}


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return str(tmp_path / "keys")


@pytest.fixture
def hf(service: Any, stores: dict[str, str], keys: str) -> Iterator[holdfast.Store]:
    with service.open_desk(stores, keys, agent="agent-1") as store:
        service.register(store, ADA, "Ada")
        yield store


def test_each_kind_of_state_is_where_it_belongs(
    hf: holdfast.Store, service: Any, stores: dict[str, str], keys: str
) -> None:
    """BOOT-89: profile and tickets last, the conversation expires, the tool's state is nowhere."""
    assert (
        service.serve(hf, ADA, "my printer is on fire", str.upper) == "ADA: MY PRINTER IS ON FIRE"
    )
    service.open_ticket(hf, ADA, "printer on fire")
    chat, profile = service.conversation(hf, ADA), service.customer(hf, ADA)
    assert chat.life.expires_at is not None
    assert profile.life.expires_at is None
    assert (profile["tickets"], [task.title for task in profile.tasks.list()]) == (
        1,
        ["printer on fire"],
    )
    with holdfast.open(stores["*"], keys=keys, settings=Settings(levels=service.LEVELS)) as lasting:
        assert [scope.level for scope in lasting.scopes()] == ["customer"]
    with holdfast.open(stores["conversation"], keys=keys) as shared:
        assert [scope.level for scope in shared.scopes()] == ["conversation"]


def test_a_customer_who_is_cut_off_goes_on_later(
    hf: holdfast.Store, service: Any, stores: dict[str, str], keys: str
) -> None:
    """BOOT-90: the process is killed in the middle of a turn; what was said is there."""
    service.serve(hf, ADA, "hello", lambda text: "hi")
    given = [str(SERVICE), stores["conversation"], stores["*"], keys, ADA]
    words = [sys.executable, "-c", DYING, *given]
    died = subprocess.run(words, timeout=120, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert service.resume(hf, ADA) == [
        ("user", "hello"),
        ("assistant", "hi"),
        ("user", "are you there?"),
    ]
    service.serve(hf, ADA, "still here", lambda text: "so am I")
    assert service.resume(hf, ADA)[-1] == ("assistant", "so am I")


def test_version_2_has_sentiment_and_reads_version_1(
    service: Any, stores: dict[str, str], keys: str
) -> None:
    """BOOT-91: what is there stays readable, and what is no sentiment is refused."""
    with service.open_desk(stores, keys, agent="a", profile=service.ProfileV1) as hf:
        service.register(hf, ADA, "Ada")
    with service.open_desk(stores, keys, agent="b") as hf:
        assert service.customer(hf, ADA).typed == service.Profile("Ada", 0, None)
        with pytest.raises(holdfast.SchemaError):
            service.rate(hf, ADA, 7.5)
        service.rate(hf, ADA, -0.5)
        assert service.customer(hf, ADA).typed == service.Profile("Ada", 0, -0.5)
        assert hf.check().ok


def test_two_agents_on_one_customer_agree(
    hf: holdfast.Store, service: Any, stores: dict[str, str], keys: str
) -> None:
    """BOOT-92: as many tickets are counted as there are, whoever opened them."""
    with service.open_desk(stores, keys, agent="agent-2") as other:
        agents = [hf, other] * 6

        def open_one(number: int) -> None:
            service.open_ticket(agents[number], ADA, f"ticket {number}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(open_one, range(len(agents))))
    profile = service.customer(hf, ADA)
    assert profile["tickets"] == len(profile.tasks.list(limit=None)) == 12
    assert {event.actor for event in profile.history(source="model")} == {"agent-1", "agent-2"}


def test_a_customer_is_forgotten_in_every_backend(
    hf: holdfast.Store, service: Any, stores: dict[str, str]
) -> None:
    """BOOT-93: the receipt says what became of each record; the other customer keeps theirs."""
    service.register(hf, BOB, "Bob")
    for email in (ADA, BOB):
        service.serve(hf, email, "hello", lambda text: "hi")
        service.open_ticket(hf, email, "printer on fire")
    before = service.customer(hf, BOB).state.to_dict()
    receipt = service.forget(hf, ADA)
    assert {one.scope.partition("/")[0] for one in receipt.scopes} == {"customer", "conversation"}
    assert {one.outcome for one in receipt.scopes} <= {"deleted", "pending"}
    assert receipt.beyond
    with pytest.raises(holdfast.ErasedError):
        service.serve(hf, ADA, "hello again", lambda text: "hi")
    assert service.customer(hf, BOB).state.to_dict() == before
    assert service.resume(hf, BOB) == [("user", "hello"), ("assistant", "hi")]
    assert hf.check().ok
