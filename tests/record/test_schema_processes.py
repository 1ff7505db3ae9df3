"""Two versions of a program on one store, and a migration that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.record.schema_children import SCOPES, Tally1, Tally2
from tests.record.stores import new_url

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"files": 500, "sqlite": 500, "redis": 100, "postgresql": 100}
"""How many each of the two programs does."""
KILLS = 4
TALLIES = 200


def child(url: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.record.schema_children", url, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("backend", STEPS)
def test_two_versions_write_side_by_side(backend: str, tmp_path: Path):
    """1,000 steps: nothing that was acknowledged is lost, and nothing is written over."""
    url = new_url(backend, tmp_path)
    holdfast.open(url).close()
    children = [child(url, version, 7 * version, STEPS[backend]) for version in (1, 2)]
    told: list[dict[str, Any]] = []
    for one in children:
        out, _ = one.communicate(timeout=500)
        assert one.returncode == 0
        told += map(json.loads, out.splitlines())
    with holdfast.open(url, schemas=[Tally2]) as store:
        for number in range(SCOPES):
            mine = [one for one in told if one["scope"] == f"t{number}"]
            kinds = Counter(one["kind"] for one in mine)
            scope = store.team(f"t{number}", Tally2)
            assert scope.typed.total == kinds["increment"] + kinds["edit"] + kinds["joint"]
            names = [one["name"] for one in mine if one["kind"] == "append"]
            assert sorted(scope.typed.names) == sorted(names)
            assert len(scope.messages) == kinds["say"]
            versions = [
                (event.type, event.meta.schema)
                for event in scope.history()
                if event.meta is not None and event.type in ("changed", "migrated")
            ]
            for (_, before), (kind, after) in pairwise(versions):
                assert kind == "migrated" or before == after  # a version changes by that alone
        assert store.check(read_all=True).ok


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_a_migration_that_is_killed_goes_on(backend: str, tmp_path: Path):
    """Killed anywhere: each scope is migrated once, whole or not at all."""
    url = new_url(backend, tmp_path)
    with holdfast.open(url, schemas=[Tally1]) as store:
        for number in range(TALLIES):
            store.team(f"t{number}").update({"count": number})
    for delay in range(KILLS):
        running = child(url, "migrate")
        assert running.stdout is not None
        running.stdout.readline()
        try:
            running.wait(timeout=0.01 * delay)
        except subprocess.TimeoutExpired:
            running.kill()
        running.communicate()
    with holdfast.open(url, schemas=[Tally2]) as store:
        assert store.check(read_all=True).ok
        store.migrate()
        assert store.migrate(check=True).outdated == []
        for number in range(TALLIES):
            types = [event.type for event in store.team(f"t{number}").history()]
            assert types == ["changed", "migrated"]
            assert store.team(f"t{number}", Tally2).typed == Tally2(number)
