"""Every broken backend is caught by the catcher that was named for it (T23)."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.backends import protocol
from holdfast.backends.memory import MemoryBackend
from holdfast.testing.contract import BackendContract
from holdfast.testing.machine import STEADY, machine_for
from tests.broken.catalogue import ALONE, CONTRACT, catalogue
from tests.broken.plants import PLANTS
from tests.selection import this_turn
from tests.torture.programme import programmes

ROOT = Path(__file__).resolve().parent.parent.parent

CONTRACTS = """
import os
from holdfast.testing.contract import BackendContract
from tests.broken.catalogue import CONTRACT

class Broken(BackendContract):
    def make(self, place, clock): return self.kind(clock=clock)
    def raw(self, backend, place, stream): return backend._streams.get(stream, [])

TESTS = [name for name in dir(BackendContract) if name.startswith("test_")]
WHOLE = os.environ.get("WHOLE", "").split()
for kind, (clause, _) in CONTRACT.items():
    # Only the tests of its clause: the very ones that are to catch it.
    others = {name: None for name in TESTS if not name.startswith(f"test_{clause}_")}
    if WHOLE:
        if kind.__name__ not in WHOLE:
            continue
        others = {}
    name = f"Test{kind.__name__}"
    globals()[name] = type(name, (Broken,), {"kind": kind, **others})
"""


def run_contracts(place: Path, **environment: str) -> str:
    """Returns what pytest says of broken backends: the tests of their clauses, or all of WHOLE."""
    (place / "test_it.py").write_text(CONTRACTS, "utf-8")
    # Left out: a follower that waits for what was lost, and threads that claim for ever.
    left_out = "not follower and not four_threads"
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-k", left_out]
    path = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=False,
    )
    return done.stdout


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the names of all contract tests that fail, of every broken backend.

    The workers of one run share it: the first to ask finds it out.
    """
    place = tmp_path_factory.mktemp("contract")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return run_contracts(place)
    shared = tmp_path_factory.getbasetemp().parent / f"contracts-{run}"
    with shared.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        said = file.read()
        if not said:
            said = run_contracts(place)
            file.write(said)
    return said


@pytest.mark.parametrize("kind", CONTRACT, ids=lambda kind: kind.__name__)
def test_the_contract_finds_a_broken_backend(kind: type[MemoryBackend], failed: str) -> None:
    clause, _ = CONTRACT[kind]
    assert re.search(rf"FAILED .*::Test{kind.__name__}::test_{clause}_", failed), failed[-4000:]


@pytest.mark.parametrize(
    "kind", [kind for kind in CONTRACT if CONTRACT[kind][1]], ids=lambda kind: kind.__name__
)
def test_the_machine_finds_a_broken_backend(kind: type[MemoryBackend]) -> None:
    machine = machine_for(lambda place, clock: kind(clock=clock))
    quick = settings(
        STEADY,
        max_examples=300,
        stateful_step_count=50,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=settings(quick, database=None))


def test_every_clause_from_20_on_has_a_test_and_a_broken_backend() -> None:
    """A clause that is added to the protocol is listed, tested, and has something to catch."""
    said = set(re.findall(r"^\((\d+)\) ", str(protocol.__doc__), re.MULTILINE))
    listed = re.findall(r'<a id="clause-(\d+)">', (ROOT / "docs/guarantees.md").read_text("utf-8"))
    assert said >= {str(number) for number in range(10, 25)}
    assert {number for number in listed if int(number) >= 10} == said
    later = {f"clause_{number}" for number in said if int(number) >= 20}
    tested = {name[5:14] for name in dir(BackendContract) if name.startswith("test_clause_")}
    assert later <= tested
    assert later == set(ALONE)
    assert {CONTRACT[kind][0] for kind in ALONE.values()} == later


def test_a_broken_backend_is_caught_by_the_tests_of_its_clause_alone(tmp_path: Path) -> None:
    """Without these tests nothing else of the contract would notice. Some clauses at each turn."""
    clauses = this_turn(sorted(ALONE), 4)
    names = {ALONE[clause].__name__: clause for clause in clauses}
    found = re.findall(
        r"FAILED .*::Test(\w+)::test_(clause_\d\d)_", run_contracts(tmp_path, WHOLE=" ".join(names))
    )
    assert set(found) == set(names.items())


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
