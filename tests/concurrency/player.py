"""The other process: opens the store by its URL and plays a part, in lines of JSON.

python -m tests.concurrency.player <url> <name> <part> [number]
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast import ConflictError, LeaseLostError, Settings, Store, aio
from holdfast.backends.protocol import START

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 120.0
SHARED = "team/shared"
LEFT, RIGHT = "team/left", "workflow/right"


class Player:
    """A process that plays a part, as the test sees it; it is killed at the end of the block."""

    def __init__(self, url: str, name: str, part: str, number: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.concurrency.player", url, name, part, str(number)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._heard = b""

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def tell(self, what: object = "go") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def hear(self) -> Any:
        """Returns the next line. One read may bring several: what is behind it waits."""
        pipe = self._process.stdout
        assert pipe is not None
        while b"\n" not in self._heard:
            assert select.select([pipe], [], [], PATIENCE_S)[0], f"silence for {PATIENCE_S} s"
            more = pipe.read(1 << 16)
            assert more, f"the process ended with {self._process.wait()}: {self._heard!r}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def listen() -> Any:
    return json.loads(sys.stdin.readline())


def is_told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def append(store: Store, name: str, number: int) -> None:
    """Appends `number` ids to the shared list; says when each was acknowledged."""
    scope = store.scope(SHARED)
    say("ready")
    listen()
    times: list[int] = []
    for n in range(number):
        scope.append("log", f"op:{name}.{n}")
        times.append(time.monotonic_ns())
    say(times)
    listen()
    say(list(scope.state["log"]))


def follow(store: Store, name: str, number: int) -> None:
    """Follows the shared list until it has `number` items, from the first event on."""
    say("ready")
    seen: list[str] = []
    for change in store.follow(SHARED, after=0):
        # The first append makes the list; the others change one place in it.
        seen += [change.new] if isinstance(change.new, str) else change.new
        if len(seen) == number:
            break
    say(seen)


def clock(store: Store, name: str, number: int) -> None:
    """Says when it saw each of `number` changes of the shared scope."""
    say("ready")
    seen: list[float] = []
    for _ in store.follow(SHARED, after=0):
        seen.append(time.monotonic())
        if len(seen) == number:
            break
    say(seen)


def clock_in_asyncio(store: Store, name: str, number: int) -> None:
    """The same with three followers of one loop: only one of them is to ask."""

    async def watch(hf: aio.AsyncStore) -> list[float]:
        seen: list[float] = []
        async for _ in hf.follow(SHARED, after=0):
            seen.append(time.monotonic())
            if len(seen) == number:
                break
        return seen

    async def main() -> list[float]:
        async with await aio.open(sys.argv[1]) as hf:
            watching = [asyncio.create_task(watch(hf)) for _ in range(3)]
            await asyncio.sleep(1)  # so that what they ask at first is not taken for waiting
            say("ready")
            return (await asyncio.gather(*watching))[0]

    say(asyncio.run(main()))


def write_twins(store: Store, name: str, number: int) -> None:
    """Writes the same number into two scopes, each time one more than what it read there."""
    left, right = store.scope(LEFT), store.scope(RIGHT)
    say("ready")
    listen()
    done = conflicts = 0
    while done < number:
        try:
            with store.commit() as tx:
                n = tx.scope(left).get("n", 0) + 1
                # The two reads may be of two moments: then the guards refuse the commit.
                is_torn = tx.scope(right).get("n", 0) != n - 1
                tx.scope(left).set("n", n)
                tx.scope(right).set("n", n)
        except ConflictError:
            conflicts += 1
        else:
            assert not is_torn, "a commit that read two moments was accepted"
            done += 1
    say(conflicts)


def watch_twins(store: Store, name: str, number: int) -> None:
    """Reads both scopes at one moment, again and again; says what it saw that was not whole."""
    left, right = store.scope(LEFT), store.scope(RIGHT)
    say("ready")
    views, last, broken = 0, 0, list[Any]()
    distinct: set[int] = set()
    while not is_told():
        view = store.view()
        pair = view.get(left, "n", 0), view.get(right, "n", 0)
        if pair[0] != pair[1] or pair[0] < last:
            broken.append([pair, last])
        # What is newer than the view must not show in it, however late it is asked.
        again = left.get("n", 0), view.get(right, "n", 0), view.get(left, "n", 0)
        if again[1:] != pair or again[0] < pair[0]:
            broken.append([pair, again])
        views += 1
        last = pair[0]
        distinct.add(last)
    halves: list[Any] = []
    position = 0
    streams: list[str] = []
    for event in [*store.follow(as_events=True, after=START, timeout_s=0), None]:
        if event is None or event.position != position:
            if position and sorted(streams) != sorted([LEFT, RIGHT]):
                halves.append([position, streams])
            streams, position = [], event.position if event else 0
        if event is not None:
            streams.append(event.stream)
    say({"views": views, "distinct": len(distinct), "broken": broken, "halves": halves})


def hold(store: Store, name: str, number: int) -> None:
    """Takes the lease for `number` milliseconds and writes under it; later tries to write again."""
    while True:
        lease = store.workers.lease("boss", ttl_s=number / 1000)
        try:
            with store.commit(lease=lease) as tx:
                tx.scope(store.scope(SHARED)).set("boss", name)
            break
        except LeaseLostError:  # on a busy machine even the first write can come too late
            continue
    say([lease.owner, lease.epoch])
    listen()
    answers: list[str] = []
    for key in (None, f"late {name}"):
        try:
            with store.commit(key=key, lease=lease) as tx:
                tx.scope(store.scope(SHARED)).set("boss", f"{name}, too late")
            answers.append("written")
        except LeaseLostError as exc:
            answers.append(f"refused in epoch {exc.epoch}")
    renewed = store.workers.renew(lease)
    say([*answers, "renewed" if renewed else "not renewed"])


def live(store: Store, name: str, number: int) -> None:
    """Keeps the lease of `number` milliseconds, and writes under it each time it is told to."""
    lease = store.workers.lease("boss", ttl_s=number / 1000, keep=True)
    say([store.workers.own, lease.epoch])
    while (told := listen()) != "end":
        try:
            with store.commit(lease=lease) as tx:
                tx.scope(store.scope(SHARED)).set("boss", f"{name} {told}")
            answer = "written"
        except LeaseLostError:
            answer = "refused"
        say([answer, store.workers.lost(lease)])


def consume(store: Store, name: str, number: int) -> None:
    """Gets deliveries, `number` at most undone; counts each once; says it before and after."""
    group = store.workers.group("billing", prefix="team/", batch=number, ttl_s=2.0)
    ledger = store.workflow("ledger")
    say("ready")
    for delivery in group:
        say([delivery.key, delivery.again])
        listen()
        try:
            with store.commit(key=delivery.key, lease=delivery.lease) as tx:
                tx.scope(ledger).increment("n", 1)
            delivery.done()
            say("done")
        except LeaseLostError:
            say("lost")
        if listen() == "end":
            return


PARTS: dict[str, Callable[[Store, str, int], None]] = {
    "append": append,
    "clock": clock,
    "clock_in_asyncio": clock_in_asyncio,
    "follow": follow,
    "write_twins": write_twins,
    "watch_twins": watch_twins,
    "hold": hold,
    "live": live,
    "consume": consume,
}


if __name__ == "__main__":
    with holdfast.open(sys.argv[1], settings=Settings(heartbeat_s=0.7)) as opened:
        PARTS[sys.argv[3]](opened, sys.argv[2], int(sys.argv[4]))
