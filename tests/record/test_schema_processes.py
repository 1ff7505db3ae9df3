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
from holdfast.core import migrate
from tests.record.kills import kill_everywhere
from tests.record.schema_children import SCOPES, Tally1, Tally2
from tests.record.stores import DURABLE, new_url
from tests.selection import RUNS_ALL

SERVERS = ("redis", "postgresql")
ROOT = Path(__file__).resolve().parents[2]
STEPS = {"files": 500, "sqlite": 500, **dict.fromkeys(SERVERS, 500 if RUNS_ALL else 100)}
"""How many each of the two programs does: on servers `make test` does a share of them."""
KILLS = 3
TALLIES = 200
FEW = 4


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
            assert sorted(one.text for one in scope.messages) == sorted(
                one["name"] for one in mine if one["kind"] == "say"
            )
            versions = [
                (event.type, event.meta.schema)
                for event in scope.history()
                if event.meta is not None and event.type in ("changed", "migrated")
            ]
            for (_, before), (kind, after) in pairwise(versions):
                assert kind == "migrated" or before == after  # a version changes by that alone
        joint = sum(one["kind"] == "joint" for one in told)
        assert store.workflow("w").get("joint", 0) == joint
        assert store.check(read_all=True).ok


def begun(url: str, count: int) -> str:
    """Returns a store that the first version of the program wrote."""
    with holdfast.open(url, schemas=[Tally1]) as store:
        for number in range(count):
            store.team(f"t{number}").update({"count": number})
    return url


def migrated_in(store: holdfast.Store, count: int) -> int:
    """Returns how many scopes are migrated; each is so once, or not at all."""
    histories = [
        [event.type for event in store.team(f"t{number}").history()] for number in range(count)
    ]
    assert all(one in (["changed"], ["changed", "migrated"]) for one in histories), histories
    return sum(len(one) - 1 for one in histories)


def go_on(store: holdfast.Store, count: int) -> None:
    """Begins a migration again that was killed, and judges what it leaves."""
    assert store.check(read_all=True).ok
    done = migrated_in(store, count)
    assert len(store.schemas.migrate(check=True).outdated) == count - done
    assert store.schemas.migrate().migrated == count - done
    assert store.schemas.migrate(check=True).outdated == []
    assert migrated_in(store, count) == count
    for number in range(count):
        assert store.team(f"t{number}", Tally2).typed == Tally2(number)


def migrate_one_by_one(url: str) -> None:
    migrate.BULK_STREAMS = 1
    with holdfast.open(url, schemas=[Tally2]) as store:
        store.schemas.migrate()


@pytest.mark.parametrize("backend", DURABLE)
def test_a_migration_killed_around_every_commit_goes_on(backend: str, tmp_path: Path):
    """By SIGKILL right before and right after each: what was done is not done twice."""
    done: set[int] = set()
    kills = kill_everywhere(
        migrate_one_by_one, lambda: begun(new_url(backend, tmp_path), FEW), in_turns=True
    )
    for killed in kills:
        with holdfast.open(killed.url, schemas=[Tally2]) as store:
            done.add(migrated_in(store, FEW))
            go_on(store, FEW)
    assert done & set(range(1, FEW)), "none was in the middle"


def test_a_migration_that_is_killed_by_chance_goes_on(tmp_path: Path):
    """In a program of its own, in the middle of commits too."""
    url = begun(new_url("files", tmp_path), TALLIES)
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
        go_on(store, TALLIES)
