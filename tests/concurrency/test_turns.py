"""An edit that keeps losing gets its turn: among threads, tasks and processes, on every backend.

BOOT-72: whoever reads, changes and writes waits in line.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import ConflictError, Draft, Store, aio
from holdfast.core.write_priority import Turns
from holdfast.store import PendingCommit
from tests.record.stores import ALL, DURABLE, new_url

EDITS = 40
PROGRAM = """
import sys, holdfast
url, edits = sys.argv[1], int(sys.argv[2])

def once(draft):
    draft["n"] += 1

with holdfast.open(url) as hf:
    team = hf.team("t")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(edits):
        team.edit(once)
"""


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


def raise_n(draft: Draft) -> None:
    draft["n"] += 1


@pytest.mark.parametrize("count", [1, 4])
def test_edits_beside_tasks_that_write_without_end(url: str, count: int) -> None:
    """None of 50 edits succeeded, with 100 retries either."""

    async def main() -> None:
        async with await aio.open(url) as hf:
            team = hf.team("t")
            await team.update({"n": 0, "noise": 0})
            is_over = False

            async def write() -> int:
                count = 0
                while not is_over:
                    count += 1
                    await team.set("noise", count)
                return count

            writers = [asyncio.create_task(write()) for _ in range(count)]
            for _ in range(50):
                await team.edit(raise_n)
            is_over = True
            assert min(await asyncio.gather(*writers)) > 0
            assert await team.get("n") == 50

    asyncio.run(main())


def test_eight_tasks_that_edit_in_a_tight_loop(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            team = hf.team("t")
            await team.set("n", 0)

            async def edit() -> None:
                for _ in range(10):
                    await team.edit(raise_n)

            await asyncio.gather(*[edit() for _ in range(8)])
            assert await team.get("n") == 80

    asyncio.run(main())


def test_threads_that_edit_beside_one_that_writes(url: str) -> None:
    with holdfast.open(url) as hf:
        team = hf.team("t")
        team.set("n", 0)
        is_over = threading.Event()
        threads_of_functions: set[tuple[int, int]] = set()

        def write() -> None:
            while not is_over.is_set():
                team.increment("noise")

        def edit() -> None:
            me = threading.get_ident()

            def once(draft: Draft) -> None:
                threads_of_functions.add((me, threading.get_ident()))
                draft["n"] += 1

            for _ in range(20):
                team.edit(once)

        writer = threading.Thread(target=write)
        editors = [threading.Thread(target=edit) for _ in range(3)]
        writer.start()
        for thread in editors:
            thread.start()
        for thread in editors:
            thread.join()
        is_over.set()
        writer.join()
        assert team.get("n") == 60
        assert all(mine == ran for mine, ran in threads_of_functions)


def test_commits_of_a_function_get_their_turn_too(url: str) -> None:
    with holdfast.open(url) as hf:
        a, b = hf.team("a"), hf.team("b")
        a.set("n", 0)
        is_over = threading.Event()

        def write() -> None:
            while not is_over.is_set():
                a.increment("noise")

        def once(tx: PendingCommit) -> None:
            tx.scope(b).set("seen", tx.scope(a).state["noise"])

        a.set("noise", 0)
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(20):
            hf.commit(once)
        is_over.set()
        writer.join()
        assert b.revision == 20


@pytest.mark.parametrize("planted", [False, True])
def test_a_writer_that_is_always_faster_waits_for_the_turn(
    hf_memory: Store, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """It writes between each reading and its commit. Planted: nobody waits for a turn."""
    team = hf_memory.team("t")
    team.update({"n": 0, "noise": 0})
    if planted:
        monkeypatch.setattr(Turns, "ahead", lambda turns, streams: None)  # pyright: ignore
    writers: list[threading.Thread] = []

    def slow(draft: Draft) -> None:
        writers.append(threading.Thread(target=team.increment, args=("noise",)))
        writers[-1].start()
        writers[-1].join(None if planted else 0.05)
        draft["n"] += 1

    if planted:
        with pytest.raises(ConflictError):
            team.edit(slow)
    else:
        team.edit(slow)
    for writer in writers:
        writer.join()
    assert team.state.to_dict() == {"n": 0 if planted else 1, "noise": len(writers)}


@pytest.mark.parametrize("backend", DURABLE)
def test_processes_that_edit_one_scope(backend: str, tmp_path: Path) -> None:
    """4 processes, 40 edits each: on PostgreSQL 38 of 160 gave up."""
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as hf:
        hf.team("t").set("n", 0)
        command = [sys.executable, "-c", PROGRAM, url, str(EDITS)]
        pipe = subprocess.PIPE
        children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            child.communicate()
        assert [child.returncode for child in children] == [0] * 4
        assert hf.team("t").get("n") == 4 * EDITS


def test_a_turn_that_is_not_used_lapses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that waits for another writer of its scope holds it up for a while, not for ever.

    The writers that came while it had its turn are let go, and it is tried again.
    """
    monkeypatch.setattr("holdfast.core.write_priority.TURN_S", 0.2)
    with holdfast.open("memory:") as hf:
        team = hf.team("t")
        team.set("n", 0)
        calls = 0

        def once(draft: Draft) -> None:
            nonlocal calls
            calls += 1
            if calls < 5:
                other = threading.Thread(target=team.increment, args=("noise",))
                other.start()
                other.join()
            draft["n"] += 1

        team.edit(once)
        assert team.state == {"n": 1, "noise": 4}


def test_who_writes_inside_its_own_turn_is_not_held_up(hf_memory: Store) -> None:
    team = hf_memory.team("t")
    team.set("n", 0)

    def once(draft: Draft) -> None:
        team.increment("noise")  # its own writes are what it loses to
        draft["n"] += 1

    with pytest.raises(ConflictError):
        team.edit(once, retries=5)
    assert team.state == {"n": 0, "noise": 6}
    assert not hf_memory._log.turns.held


@pytest.fixture
def hf_memory():
    with holdfast.open("memory:") as hf:
        yield hf
