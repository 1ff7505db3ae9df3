"""`with hf.workers.lease(name, wait_s=…):` one at a time, fenced, passed on when its holder dies"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLostError, UsageError, aio
from holdfast.workers import Lease
from tests.record.stores import ALL, DURABLE, new_url

COUNTING = """
import sys, holdfast
url, rounds = sys.argv[1], int(sys.argv[2])
with holdfast.open(url) as hf:
    team = hf.team("t")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(rounds):
        with hf.workers.lease("counter", wait_s=120):
            team.set("n", team.get("n") + 1)     # read, then written: only the lease makes it safe
"""
DYING = """
import sys, holdfast
hf = holdfast.open(sys.argv[1])
with hf.workers.lease("counter", ttl_s=float(sys.argv[2])):
    hf.team("t").set("holder", "first")
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    return child


@pytest.mark.parametrize("backend", DURABLE)
def test_processes_count_under_a_lease(backend: str, tmp_path: Path) -> None:
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as hf:
        hf.team("t").set("n", 0)
        children = [started(COUNTING, url, 10) for _ in range(3)]
        for child in children:
            child.communicate("go\n")
        assert [child.returncode for child in children] == [0, 0, 0]
        assert hf.team("t").get("n") == 30


@pytest.mark.parametrize("backend", DURABLE)
def test_a_lease_passes_on_when_its_holder_dies(backend: str, tmp_path: Path) -> None:
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as hf:
        child = started(DYING, url, 1.0)
        with pytest.raises(LeaseLostError):
            hf.workers.lease("counter")
        child.send_signal(signal.SIGKILL)
        child.communicate()
        with hf.workers.lease("counter", wait_s=600) as lease:
            assert (hf.team("t").get("holder"), lease.owner) == ("first", hf.workers.own)


def test_every_commit_in_the_block_carries_its_fence(url: str) -> None:
    with holdfast.open(url) as hf:
        team, chat = hf.team("t"), hf.conversation("c")
        with hf.workers.lease("job") as lease:
            assert isinstance(lease, Lease)
            team.set("n", 1)
            hf.workers.release(lease)  # as if it had passed on
            with pytest.raises(LeaseLostError):
                team.set("n", 2)
            with pytest.raises(LeaseLostError):
                chat.say("hello")
            with pytest.raises(LeaseLostError), hf.commit() as tx:
                tx.scope(team).set("n", 2)
            with hf.commit(waits=False) as queued:
                queued.scope(team).set("n", 2)
            with pytest.raises(LeaseLostError):
                queued.wait()
            outside = threading.Thread(target=team.set, args=("m", 1))
            outside.start()
            outside.join()  # another thread is not in the block
        team.set("n", 3)
        assert team.state == {"n": 3, "m": 1}
        assert [event.data for event in chat.history()] == []


def test_a_block_keeps_its_lease_and_gives_it_back(url: str) -> None:
    with holdfast.open(url) as hf:
        with hf.workers.lease("job") as lease:
            assert hf._kernel.leases.keeps(lease)
            assert not hf.workers.lost(lease)
            with hf.workers.lease("other"):
                hf.team("t").set("n", 1)
            hf.team("t").set("n", 2)
        assert hf._log.leases.holder("job") is None
        again = hf.workers.lease("job", keep=True)  # and as before: a lease that is not a block
        assert again.epoch > lease.epoch
        assert again == hf._log.leases.holder("job")
        with hf.commit(lease=again) as tx:
            tx.scope(hf.team("t")).set("n", 3)
        assert hf.workers.renew(again) is not None
        hf.workers.release(again)
        with pytest.raises(UsageError):
            hf.workers.lease("job", wait_s=-1)


def test_who_waits_too_long_is_told_who_has_it(url: str) -> None:
    if url == "memory:":
        return
    with holdfast.open(url) as one, holdfast.open(url) as two:
        held = one.workers.lease("job")
        with pytest.raises(LeaseLostError, match=one.workers.own):
            two.workers.lease("job", wait_s=0.05)
        taken: list[int] = []

        def take() -> None:
            with two.workers.lease("job", wait_s=600) as lease:
                taken.append(lease.epoch)

        waiter = threading.Thread(target=take)
        waiter.start()
        one.workers.release(held)
        waiter.join()
        assert taken > [held.epoch]


def test_the_same_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            team = hf.team("t")
            async with hf.workers.lease("job", wait_s=30) as lease:
                await team.set("n", 1)
                await hf.workers.release(lease)
                with pytest.raises(LeaseLostError):
                    await team.set("n", 2)
                with pytest.raises(LeaseLostError):
                    await team.messages.add("user", "hello")
            await team.set("n", 3)
            plain = await hf.workers.lease("job")
            async with hf.commit(lease=plain) as tx:
                tx.scope(team).set("n", 4)
            await hf.workers.release(plain)
            assert await team.get("n") == 4
            if url == "memory:":
                return
            async with await aio.open(url) as other:
                async with hf.workers.lease("job"):
                    with pytest.raises(LeaseLostError):
                        await other.workers.lease("job", wait_s=0.05)
                async with other.workers.lease("job", wait_s=600):
                    await other.team("t").set("n", 5)

    asyncio.run(main())


@pytest.fixture(params=[0, 1], ids=["same kind", "next kind"])
def other_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> str:
    kind = next((one for one in ALL if url.startswith(one)), "files")
    return new_url((ALL * 2)[ALL.index(kind) + request.param], tmp_path)


def test_a_fence_belongs_to_its_store(url: str, other_url: str) -> None:
    """Blocks of two stores, in each other and in any order: each fences what is its own."""
    with holdfast.open(url) as a, holdfast.open(other_url) as b:
        with a.workers.lease("L") as first:
            b.team("t").set("n", 1)
            b.team("t").messages.add("user", "hello")
            with b.workers.lease("L") as second, b.commit() as tx:
                tx.scope(b.team("t")).set("n", 2)
            with b.workers.lease("L") as second:
                a.team("t").set("n", 1)
                b.workers.release(second)
                with pytest.raises(LeaseLostError):
                    b.team("t").set("n", 3)
                a.team("t").set("n", 2)
                a.workers.release(first)
                for _ in range(2):  # the second time in the inner block of the same lease
                    with pytest.raises(LeaseLostError):
                        a.team("t").set("n", 3)
            b.team("t").set("n", 4)
            b.team("t").remove()
            with pytest.raises(LeaseLostError):
                a.team("t").set("n", 4)
        a.team("t").set("n", 5)
        assert (a.team("t").state, b.team("t").state) == ({"n": 5}, {})


def test_blocks_may_end_in_any_order(tmp_path: Path) -> None:
    with holdfast.open(new_url("files", tmp_path)) as a, holdfast.open("memory:") as b:
        outer, inner = a.workers.lease("L"), b.workers.lease("L")
        outer.__enter__()
        inner.__enter__()
        outer.__exit__()
        a.team("t").set("n", 1)  # no block of its own any more
        b.workers.release(inner)
        with pytest.raises(LeaseLostError):
            b.team("t").set("n", 1)
        inner.__exit__()
        b.team("t").set("n", 2)
        inner.fence()
        with pytest.raises(LeaseLostError):
            b.team("t").set("n", 1)
        threading.Thread(target=inner.unfence).start()  # where nothing is fenced: it ends nothing


def test_another_handle_of_the_same_store_is_fenced(tmp_path: Path) -> None:
    url = new_url("sqlite", tmp_path)
    with holdfast.open(url) as one, holdfast.open(url) as two, one.workers.lease("L") as lease:
        two.team("t").set("n", 1)
        one.workers.release(lease)
        with pytest.raises(LeaseLostError):
            two.team("t").set("n", 2)


def test_every_part_of_a_store_is_fenced(tmp_path: Path) -> None:
    """A lease is kept with the level that it is named after; elsewhere it is refused by name."""
    with (
        holdfast.open({"team": "memory:", "*": new_url("files", tmp_path)}) as mixed,
        holdfast.open("memory:") as other,
        mixed.workers.lease("team/t") as lease,
    ):
        other.conversation("c").set("n", 1)
        mixed.team("t").set("n", 1)
        with pytest.raises(UsageError, match="cannot fence"):
            mixed.conversation("c").set("n", 1)
        mixed.workers.release(lease)
        with pytest.raises(LeaseLostError):
            mixed.team("t").set("n", 2)


def test_several_commits_sent_at_once_carry_the_fence_too(url: str) -> None:
    with holdfast.open(url) as hf, hf.workers.lease("job") as lease:
        new, said = hf.conversation("c").messages, datetime(2026, 1, 1, tzinfo=UTC)
        new.import_many([{"role": "user", "foreign_id": "1", "said_at": said}])
        hf.workers.release(lease)
        with pytest.raises(LeaseLostError):
            new.import_many([{"role": "user", "foreign_id": "2", "said_at": said}])


def test_tasks_of_asyncio_are_in_the_blocks_that_they_began_in(url: str, other_url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as a, await aio.open(other_url) as b:

            async def fenced(store: aio.AsyncStore) -> bool:
                try:
                    await store.team("t").set("n", 1)
                    await store.team("t").messages.add("user", "hello")
                except LeaseLostError:
                    return True
                return False

            outside = asyncio.Event()
            before = asyncio.create_task(_after(outside, fenced, a))
            async with a.workers.lease("L") as lease:
                assert await asyncio.gather(fenced(a), fenced(b)) == [False, False]
                async with b.workers.lease("L"):
                    await a.workers.release(lease)
                    assert await asyncio.gather(fenced(a), fenced(b)) == [True, False]
                assert await asyncio.gather(fenced(a), fenced(b)) == [True, False]
                outside.set()
                assert not await before
            assert not await fenced(a)

    asyncio.run(main())


async def _after(event: asyncio.Event, then: Any, store: aio.AsyncStore) -> bool:
    await event.wait()
    return await then(store)
