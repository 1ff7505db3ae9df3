"""Every broken backend is caught by the catcher that was named for it (T23)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.backends.memory import MemoryBackend
from holdfast.testing.machine import STEADY, machine_for
from tests.broken.catalogue import CONTRACT, catalogue
from tests.broken.plants import PLANTS
from tests.torture.programme import programmes

ROOT = Path(__file__).resolve().parent.parent.parent

CONTRACTS = """
from holdfast.testing.contract import BackendContract
from tests.broken.catalogue import CONTRACT

class Broken(BackendContract):
    def make(self, place, clock): return self.kind(clock=clock)
    def raw(self, backend, place, stream): return backend._streams.get(stream, [])

TESTS = [name for name in dir(BackendContract) if name.startswith("test_")]
for kind, (clause, _) in CONTRACT.items():
    # Only the tests of its clause: the very ones that are to catch it.
    others = {name: None for name in TESTS if not name.startswith(f"test_{clause}_")}
    name = f"Test{kind.__name__}"
    globals()[name] = type(name, (Broken,), {"kind": kind, **others})
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the names of all contract tests that fail, of every broken backend."""
    place = tmp_path_factory.mktemp("contract")
    (place / "test_it.py").write_text(CONTRACTS, "utf-8")
    # Left out: a follower that waits for what was lost, and threads that claim for ever.
    left_out = "not follower and not four_threads"
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-k", left_out]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("kind", CONTRACT, ids=lambda kind: kind.__name__)
def test_the_contract_finds_a_broken_backend(kind: type[MemoryBackend], failed: str) -> None:
    clause, _ = CONTRACT[kind]
    assert re.search(rf"FAILED .*::Test{kind.__name__}::test_{clause}_", failed), failed[-4000:]


@pytest.mark.parametrize(
    "kind", [kind for kind in CONTRACT if CONTRACT[kind][1]], ids=lambda kind: kind.__name__
)
def test_the_machine_finds_a_broken_backend(kind: type[MemoryBackend]) -> None:
    machine = machine_for(lambda place, clock: kind(clock=clock))
    quick = settings(STEADY, max_examples=300, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=settings(quick, database=None))


def test_every_plant_of_t9_is_planted_somewhere() -> None:
    planted = {
        name
        for programme in programmes().values()
        if programme.name.startswith("t9-")
        for name in programme.plants
    }
    assert planted == set(PLANTS)


def test_there_are_thirty_broken_backends_and_each_has_a_catcher() -> None:
    """What the torture programmes plant is caught in `tests/torture/test_share.py`."""
    faults = catalogue()
    names = {fault.name for fault in faults}
    assert len(names) >= 30
    known = set(programmes())
    for fault in faults:
        assert fault.broken, fault
        assert fault.catcher in {"contract", *known}, fault
    pairs = [(fault.name, fault.catcher) for fault in faults]
    assert len(set(pairs)) == len(pairs)
