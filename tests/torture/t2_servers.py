"""T2: the server dies while clients write; what was acknowledged is there, once.

One point is one store on a real server of this run, four processes that write to it, one that
follows it, and five deaths of the server: every process of it gets SIGKILL, at a moment that
chance chooses; sometimes it hangs first, so that impatient clients give up what the server then
does all the same; sometimes it is killed again while it recovers. A fresh client then compares
what everybody was told with what is there (servers_judge.py). Cases are the operations judged.

`t2-redis-everysec` is what a server promises that syncs once a second: it may lose what it has
acknowledged since, and then each client that was told is told first of all that it is gone. (Who
had only read what is gone is told that the store does not fit what it knows, by CorruptError.)

SIGKILL proves nothing about syncs: the page cache survives it. The parts `-power` lay the server's
files on a file system of their own and cut its power (T3 says how), root only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random

from holdfast import Store
from holdfast.backends.registry import open_backend
from holdfast.clock import SystemClock
from holdfast.core.log import Log
from tests.opening import store_of_log
from tests.servers import ground, postgresql, redis
from tests.torture import servers_plants
from tests.torture.power_disk import Volume, missing
from tests.torture.programme import Broken, Point, Programme
from tests.torture.servers_clients import OVER, Teller, Writer, follow
from tests.torture.servers_judge import Deaths, judge, judge_follower

CLIENTS = 4
DEATHS = 5
CUTS = 3
PATIENCE_S = 120
PATIENT_S, IMPATIENT_S = 60, 0.2
MAY_LOSE_S = 10.0
"""Redis says about a second, and two when its disk is slow; this machine's may be slower still."""
VOLUME_BYTES = 400 << 20
Server = postgresql.Server | redis.Server


@cache
def server(kind: str, number: int, settings: tuple[str, ...]) -> Server:
    """Returns a server of this run: they are killed often, and started anew rarely."""
    return new_server(kind, number, settings)


def new_server(
    kind: str, number: int, settings: tuple[str, ...], place: Path | None = None
) -> Server:
    if kind == "postgresql":
        versions = list(postgresql.installations())
        return postgresql.Server(versions[number % len(versions)], *settings, place=place)
    names = list(redis.installations())
    return redis.Server(names[number % len(names)], *settings, place=place)


class Run:
    """One store, its clients, and the deaths of its server."""

    def __init__(self, point: Point, kind: str, *, durability: str = "full") -> None:
        self.point = point
        self.kind = kind
        self.random = point.random
        self.plant = servers_plants.PLANTS.get(point.plant, servers_plants.NONE)
        self.durability = self.plant.durability or durability
        self.deaths = Deaths(may_lose_s=0.0 if durability == "full" else MAY_LOSE_S)
        self.said = [point.place / f"client-{n}.jsonl" for n in range(CLIENTS)]
        self.followed = point.place / "follower.jsonl"
        self.application = f"t2-{point.seed}-{point.number}-{os.getpid()}"
        self.server: Server
        self._children: dict[int, str] = {}
        self.plant.plant(kind)

    def url(self, timeout_s: float) -> str:
        return self.server.url(application=self.application, timeout=timeout_s)

    def open(self, timeout_s: float = PATIENT_S) -> Store:
        url, clock = self.url(timeout_s), SystemClock()
        options = {"durability": self.durability, "create": True, "read_only": False}
        backend, _ = open_backend(url, clock=clock, **options)
        return store_of_log(Log(backend, clock=clock, actor="t2"), url=url, worker="t2")

    # --- the living --------------------------------------------------------------------------

    def start_clients(self) -> None:
        """Forks the writers, who end when their pipe does, and the follower."""
        over, self._over = os.pipe()
        for number, path in enumerate(self.said):
            patience_s = PATIENT_S if number % 2 else IMPATIENT_S
            seed = f"{self.point.seed} {self.point.number} {number}"
            self._fork(path, partial(self._write, number, patience_s, Random(seed), over))
        self._fork(self.followed, self._follow)
        os.close(over)

    def _fork(self, path: Path, work: Callable[[Teller], None]) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = path.stem
            return
        signal.alarm(PATIENCE_S)
        code = 1
        try:
            os.close(self._over)
            work(Teller(path))
            code = 0
        except BaseException:
            path.with_suffix(".trouble").write_text(traceback.format_exc(limit=-6))
        os._exit(code)

    def _write(
        self, number: int, patience_s: float, random: Random, over: int, teller: Teller
    ) -> None:
        # Opened with time: only what comes behind is to be impatient.
        open = partial(self.open, patience_s)
        writer = Writer(open, number + 1, teller, random, may_lose=self.deaths.may_lose_s > 0)
        self.plant.prepare(writer)
        os.set_blocking(over, False)
        while not _is_over(over):
            writer.act()
        writer.store.close()

    def _follow(self, teller: Teller) -> None:
        follow(self.open, teller, may_lose=self.deaths.may_lose_s > 0)

    def await_progress(self, bytes_: int) -> None:
        """Waits until the clients have said so much more."""
        goal = self._progress() + bytes_
        deadline = time.monotonic() + PATIENCE_S
        while self._progress() < goal:
            trouble = self._trouble()
            if trouble or time.monotonic() > deadline:
                raise Broken(f"the clients do not get on{trouble}")
            time.sleep(0.002)

    def _progress(self) -> int:
        return sum(path.stat().st_size for path in self.said if path.exists())

    def end_clients(self) -> None:
        """Lets the clients end what they have begun, and waits for them."""
        os.close(self._over)
        for pid, name in list(self._children.items()):
            if name == self.followed.stem:  # the last one: all that is written is there to be seen
                self._say_over()
            _, status = os.waitpid(pid, 0)
            del self._children[pid]
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGALRM:
                raise Broken(f"{name} hangs: it had not ended after {PATIENCE_S} s")
            if code:
                raise Broken(f"{name} ended with {code}{self._trouble()}")

    def _say_over(self) -> None:
        with self.open() as store:
            store.scope(OVER).set("over", True)

    def kill_clients(self) -> None:
        """Ends whoever is left when a promise was broken."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._children.clear()

    def _trouble(self) -> str:
        found = [path.read_text() for path in self.point.place.glob("*.trouble")]
        return "".join(f"\n{text}" for text in found)

    # --- the dead ----------------------------------------------------------------------------

    def die(self) -> None:
        """Kills the server and starts it again, once in five times after another death."""
        self.await_progress(self.random.randint(2_000, 8_000))
        time.sleep(self.random.random() * 0.02)
        if self.random.random() < 0.4:
            self._hang()
        self.server.kill()
        self.deaths.moments.append(time.monotonic())
        if self.random.random() < 0.2:
            self.server.start(wait=False)
            time.sleep(self.random.random() * 0.2)
            self.server.kill()
        self.server.start()

    def _hang(self) -> None:
        """Lets the server hang for longer than some clients wait, and then go on."""
        self.server.freeze()
        time.sleep(IMPATIENT_S * 1.5)
        self.server.thaw()
        self.await_progress(500)

    def look(self) -> int:
        """Compares what was told with what is there."""
        store = self.open()
        try:
            judged = judge(store, self.said, self.deaths)
            if not self.deaths.may_lose_s:
                judged += judge_follower(store, self.followed, self.deaths)
        finally:
            store.close()
        return judged

    def check(self, deaths: int, die: Callable[[], None]) -> int:
        self.open().close()
        self.start_clients()
        try:
            for _ in range(deaths):
                die()
            self.await_progress(2_000)
            self.end_clients()
        finally:
            self.kill_clients()
        return self.look()


def _is_over(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


def kill(kind: str, durability: str, settings: tuple[str, ...], point: Point) -> int:
    """One store, five deaths of its server."""
    run = Run(point, kind, durability=durability)
    run.server = server(kind, point.number, (*settings, *run.plant.settings))
    return run.check(DEATHS, run.die)


def cut(kind: str, durability: str, settings: tuple[str, ...], point: Point) -> int:
    """One store on a file system of its own, three power cuts."""
    place = ground.new_directory("power")
    run = Run(point, kind, durability=durability)

    def die() -> None:
        run.await_progress(run.random.randint(2_000, 8_000))
        time.sleep(run.random.random() * 0.02)
        cut_at = time.monotonic()
        volume.cut(flush=run.random.random() < 0.5)
        run.server.kill()
        run.deaths.moments.append(time.monotonic())
        run.deaths.cuts.append((cut_at, run.deaths.moments[-1]))
        volume.restore()
        try:
            run.server.start()
        except AssertionError as exc:
            if isinstance(run.server, postgresql.Server):
                raise Broken(f"the server does not come back: {exc}") from exc
            run.server.mend()
            run.server.start()

    with Volume("ext4", place, size=VOLUME_BYTES) as volume:
        volume.mount.chmod(0o711)
        home = volume.mount / "server"
        home.mkdir()
        ground.give(home)
        run.server = new_server(kind, point.number, (*settings, *run.plant.settings), home)
        run.open().close()
        os.sync()  # that there is a store is not what may be lost
        try:
            return run.check(CUTS, die)
        finally:
            with contextlib.suppress(ProcessLookupError):
                run.server.kill()


ALWAYS = "what was acknowledged is there once, what was refused is not, nothing is doubled"
EVERYSEC = "at most the newest is lost, and whoever was told of it is told that it is gone"


def _programme(
    name: str,
    kind: str,
    trial: Callable[[str, str, tuple[str, ...], Point], int],
    share: int,
    points: int,
    parts: int = 1,
) -> Programme:
    durability, settings = "full", tuple[str, ...]()
    if "everysec" in name:
        durability, settings = "process", ("appendfsync everysec",)
    return Programme(
        name,
        EVERYSEC if "everysec" in name else ALWAYS,
        partial(trial, kind, durability, settings),
        share=share,
        points=points,
        parts=parts,
        plants=servers_plants.plants_of(name),
        needs_root=trial is cut,
    )


PROGRAMMES = [
    _programme("t2-postgresql", "postgresql", kill, 6, 200, parts=2),
    _programme("t2-redis", "redis", kill, 6, 200),
    _programme("t2-redis-everysec", "redis", kill, 2, 40),
]
if problem := missing("ext4"):
    print(f"t2: power loss of servers is left out: {problem}", file=sys.stderr)
else:
    PROGRAMMES += [
        _programme("t2-postgresql-power", "postgresql", cut, 1, 60),
        _programme("t2-redis-power", "redis", cut, 3, 60),
        _programme("t2-redis-everysec-power", "redis", cut, 3, 60),
    ]
