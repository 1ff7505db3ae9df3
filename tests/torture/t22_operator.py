"""T22: an operator's hands on the files of a store while three processes write to it.

Each hand (remove, replace, empty, truncate, move, move and back, an older copy, chmod, a foreign
open, git, a mount) is laid on each kind of file at a random moment. Each worker says what was
acknowledged before it commits again. Then some go on for a few commits, one more may come in, and
all are closed or killed; somebody opens the store again and runs `check`.

Nothing acknowledged may be missing, unless whoever was told of it got an error: at his next commit
but one at the latest, at his close, or while he waited; or unless opening, reading or checking the
store says so. Where no hand was laid, or one that changes nothing, nobody may get an error. And
of the workers, all of which live, one at most has the lease that all want.

Faults that were planted and found: `operator_plants`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import holdfast
from holdfast import HoldfastError
from holdfast.backends.sqlite import opening
from tests.torture import operator_hands as hands
from tests.torture import operator_mounts as mounts
from tests.torture import operator_workers
from tests.torture.faulty_calls import make_small
from tests.torture.operator_hands import DIRECTORY, Hand, Scene, Undo
from tests.torture.operator_plants import PLANTS
from tests.torture.operator_workers import CHAIR, SCOPE, Worker, copy_of, in_child, item, start
from tests.torture.programme import Broken, Point, Programme

WORKERS = 3
LAG = 2
"""So many words after an acknowledgement that went to a lost file, its worker must have an error:
the next commit looks, and one may have been under way."""
IDLE_S = 1.5
"""A store that nobody uses is looked at once a second."""
CONTROLS = 12
"""Of each round of hands, so many trials have none."""
HARMLESS = {
    (mounts.together.__name__, DIRECTORY),
    *(("sqlite3_beside", target) for target in ("database", "index")),
    *(("read_in_worker", target) for target in hands.FILES),
}
"""What changes nothing: nobody may cry. (On SQLite, a worker that reads the database itself drops
locks.)"""


@dataclass(frozen=True)
class Plan:
    """What is done in one trial, and when."""

    backend: str
    target: str
    """The kind of file; "" if no hand is laid."""
    hand: Hand | None
    moment: int
    """After so many acknowledgements."""
    older_at: int
    """When the older copy is made."""
    more: int
    """How many commits each worker makes afterwards."""
    large_every: int
    """Every so many commits, one is large enough to become a blob."""
    wal_pages: int
    """After so many pages SQLite moves its log into the database."""
    newcomer: bool
    """Whether somebody opens the store after the hand was laid."""
    idle: bool
    """Whether the workers wait for a while before they end."""
    kill: bool
    """Whether they are killed, or close the store."""
    take_back: bool
    """Whether what can be taken back is, before the store is opened again."""

    @property
    def is_sudden(self) -> bool:
        """Whether nobody lives to meet the hand: only the files can tell afterwards."""
        return self.kill and self.more == 0 and not (self.newcomer or self.idle)

    @property
    def is_harmless(self) -> bool:
        return self.hand is None or (
            (self.hand.__name__, self.target) in HARMLESS
            and (self.backend == "files" or self.hand is not hands.read_in_worker)
        )

    def __str__(self) -> str:
        hand = "no hand" if self.hand is None else f"{self.hand.__name__} on {self.target}"
        end = ("waits, then " if self.idle else "") + ("kill" if self.kill else "close")
        return (
            f"{self.backend}: {hand} after {self.moment} (older copy: {self.older_at}), "
            f"{self.more} more, large: {self.large_every}, WAL: {self.wal_pages}, "
            f"newcomer: {self.newcomer}, {end}, taken back: {self.take_back}"
        )


@cache
def combinations(backend: str) -> list[tuple[str, Hand | None]]:
    """Returns every hand on every kind of file, and controls, in an order of chance."""
    found: list[tuple[str, Hand | None]] = [
        (target, hand) for target in TARGETS[backend] for hand in hands.hands_on(target, backend)
    ]
    found += [("", None)] * CONTROLS
    random.Random(1).shuffle(found)
    return found


@cache
def mounted(backend: str) -> list[tuple[str, Hand | None]]:
    """Returns every mount over every kind of file, and those that are made before."""
    found: list[tuple[str, Hand | None]] = [
        (target, mounts.mount_over) for target in TARGETS[backend] if target != "worker"
    ]
    found += [(DIRECTORY, mounts.together)] * 2
    if backend == "sqlite":
        found += [("database", mounts.alone)] * 4
    random.Random(1).shuffle(found)
    return found


def plan_of(backend: str, known: list[tuple[str, Hand | None]], point: Point) -> Plan:
    target, hand = known[point.number % len(known)]
    chance = point.random
    moment = chance.randint(6, 40)
    more = chance.choice((0, 0, 0, 1, 2, 3, 5, 12, 40))
    # A whole store that is put in place of another can be told only by those who had it open.
    is_whole = target == DIRECTORY and hand in WHOLE
    return Plan(
        backend,
        target,
        hand,
        moment=moment,
        older_at=chance.choice((0, moment // 2, moment)),
        more=max(more, LAG + 1) if is_whole else more,
        large_every=chance.choice((6, 1000)),
        wal_pages=chance.choice((40, 1000)),
        newcomer=chance.random() < 0.4,
        idle=chance.random() < 0.1,
        kill=chance.random() < 0.6,
        take_back=chance.random() < 0.5,
    )


TARGETS = {"files": hands.FILES, "sqlite": hands.SQLITE}
WHOLE = (hands.replace, hands.older, hands.another, mounts.mount_over)


class Trial:
    """One trial, from the making of the store to the verdict."""

    def __init__(self, plan: Plan, point: Point) -> None:
        self.plan = plan
        self.chance = point.random
        self._plant = PLANTS.get(point.plant, lambda: None)
        self.yard = point.place / "yard"
        self.aside = point.place / "aside"
        self.older = point.place / "older"
        self.workers: list[Worker] = []
        self.undo: Undo = None

    def _url_of_worker(self, number: int) -> str:
        """Returns where a worker finds the store: one of two places, if it was mounted so."""
        if self.plan.hand not in mounts.BEFORE:
            return self.url(self.yard)
        place = self.yard.with_name("ab"[number % 2])
        if self.plan.target == DIRECTORY and self.plan.backend == "files":
            return str(place)
        return self.url(place)

    def url(self, yard: Path) -> str:
        if self.plan.backend == "sqlite":
            return f"sqlite:{yard}/store.db"
        return f"{yard}/store"

    def run(self) -> int:
        in_child(self._furnish)
        if self.plan.hand in hands.GIT:
            hands.begin_git(self.yard / "store")
        if self.plan.older_at == 0:
            self._copy_older()
        try:
            self._work()
        finally:
            for worker in self.workers:
                worker.free()
        if self.undo is not None and self.plan.take_back:
            with contextlib.suppress(FileNotFoundError):  # a close may have taken it away
                self.undo()
        found = in_child(partial(self._look, self._place_now()))
        if self.plan.newcomer and (other := self._other_place()):
            later = in_child(partial(self._look, other))
            newest = str(len(self.workers) - 1)
            found["logs"][newest] = later["logs"].get(newest, [])
            found["said"] += later["said"]
        self._judge(found)
        return sum(len(worker.acknowledged) for worker in self.workers)

    # --- what happens ---

    def _furnish(self) -> None:
        """Makes a store with every kind of file in it, and closes it."""
        self.yard.mkdir(0o700, exist_ok=True)
        with holdfast.open(self.url(self.yard)) as store:
            for number in range(12):
                store.team("before").append("log", item(9, number))
            store.team("before").set("document", "long text " * 7000)
            store.workers.lease(CHAIR)

    def _work(self) -> None:
        if self.plan.hand in mounts.BEFORE:
            self._lay()
        for number in range(WORKERS):
            self.workers.append(start(number, self._url_of_worker(number), self._plant))
        for worker in self.workers:
            worker.hear_until(lambda worker=worker: bool(worker.said))
        self._await(self.plan.older_at)
        self._copy_older()
        self._await(self.plan.moment)
        if self.plan.hand is not None and self.plan.hand not in mounts.BEFORE:
            self._lay()
        for worker in self.workers:
            worker.hear_all()
            worker.before_hand = len(worker.said)
        self._go_on()
        self._end()

    def _go_on(self) -> None:
        """Lets the workers meet what was done, unless they are to be killed before they can."""
        if self.plan.is_sudden:
            return
        if self.plan.newcomer:
            number = len(self.workers)
            self.workers.append(start(number, self._url_of_worker(number), self._plant))
            self.workers[-1].hear_until(lambda: bool(self.workers[-1].said))
        for worker in self.workers:
            worker.order(f"more {self.plan.more}")
        for worker in self.workers:
            worker.hear_until(lambda worker=worker: worker.has_said("waits", "done"))
        if self.plan.idle:
            time.sleep(IDLE_S)

    def _end(self) -> None:
        for worker in self.workers:
            if self.plan.kill:
                worker.kill()
            else:
                worker.order("close")
        for worker in self.workers:
            worker.hear_until(lambda: False)

    def _await(self, count: int) -> None:
        """Returns when so many commits were acknowledged in all, or nobody commits any more."""
        while sum(len(worker.acknowledged) for worker in self.workers) < count:
            if all(worker.status is not None for worker in self.workers):
                return
            for worker in self.workers:
                worker.hear(0.001)

    def _let_work(self) -> None:
        """Returns when some worker has said something more: it has met what was done."""
        before = [len(worker.said) for worker in self.workers]
        ends = time.monotonic() + 0.2
        while before == [len(worker.said) for worker in self.workers] and time.monotonic() < ends:
            for worker in self.workers:
                worker.hear(0.01)

    def _lay(self) -> None:
        hand = self.plan.hand
        assert hand is not None
        for _ in range(50):  # a file may be replaced by the store itself in the same moment
            path = self._target()
            scene = Scene(
                path,
                self.older if self.older.exists() else path,
                self.aside,
                self.chance,
                make_store=self._furnish,
                tell_worker=self._tell_one,
                let_work=self._let_work,
            )
            with contextlib.suppress(FileNotFoundError):
                self.undo = hand(scene)
                return
        raise Broken(f"{self.plan}: the hand could not be laid")

    def _tell_one(self, order: str) -> None:
        self.workers[self.chance.randrange(WORKERS)].order(order)

    def _copy_older(self) -> None:
        """Copies the target, unless that was done, or it is not there yet."""
        if self.plan.hand in (hands.older, hands.older_in_place) and not self.older.exists():
            for _ in range(50):
                with contextlib.suppress(FileNotFoundError):
                    copy_of(self._target(), self.older)
                    return

    def _target(self) -> Path:
        """Returns the file that the hand is laid on."""
        if (self.plan.backend, self.plan.target) == ("sqlite", DIRECTORY):
            return self.yard
        pattern = TARGETS[self.plan.backend][self.plan.target]
        found = sorted(self.yard.glob(pattern))
        if not found:
            raise FileNotFoundError(pattern)
        return found[-1]

    def _place_now(self) -> str:
        """Returns where the store is that the workers had opened."""
        is_moved = self.plan.target == DIRECTORY and self.plan.hand in MOVES and self.aside.exists()
        if not is_moved:
            return self.url(self.yard)
        return self.url(self.aside) if self.plan.backend == "sqlite" else str(self.aside)

    def _other_place(self) -> str:
        """Returns where the other store is that whoever came later was given; "" if there is none.

        It is a sound store of its own, and he is judged by that.
        """
        if self.plan.hand is hands.another:
            return self.url(self.yard)
        if self.plan.hand is mounts.mount_over and self.plan.target == DIRECTORY:
            return self.url(self.aside) if self.plan.backend == "sqlite" else str(self.aside)
        return ""

    def _look(self, url: str) -> dict[str, Any]:
        self._plant()
        return look(url, len(self.workers))

    # --- the verdict ---

    def _judge(self, found: dict[str, Any]) -> None:
        told = [*found["said"]]
        self._check_manners()
        if "changed" in found:
            raise Broken(f"{self.plan}: what worker {found['changed']} reads is not what it wrote")
        if self.plan.is_harmless:
            cried = [
                said
                for worker in self.workers
                for said in worker.said
                if said.text and BUSY not in said.text
            ]
            if cried or told:
                raise Broken(f"{self.plan}: a false alarm: {cried} {told}")
        for worker in self.workers:
            there = found["logs"].get(str(worker.number), [])
            wrong = [number for number in there if number > len(worker.said)]
            if wrong or there != sorted(set(there)):
                raise Broken(f"{self.plan}: what is there was not written so: {there}")
            if told:
                continue
            if missing := [at for at in self._lost(worker, set(there))]:
                raise Broken(
                    f"{self.plan}: {len(missing)} acknowledged commits of worker {worker.number} "
                    f"are gone and nobody said so: {missing[:20]} of {len(worker.acknowledged)}; "
                    f"the hand was laid at word {worker.before_hand}; it was told "
                    f"{[said for said in worker.said if said.text]}"
                )
        holders = [worker for worker in self.workers if worker.has_said("chair")]
        if len(holders) > 1 and not any(worker.has_said("error") for worker in self.workers):
            raise Broken(f"{self.plan}: {len(holders)} workers hold one lease")

    def _lost(self, worker: Worker, there: set[int]) -> list[int]:
        """Returns what is gone and the worker was not told of in time."""
        missing: list[int] = []
        for at, said in enumerate(worker.said):
            if said.what == "ack" and said.number not in there:
                rest = worker.said[at + 1 :]
                in_time = rest if at < worker.before_hand else rest[:LAG]
                if not worker.has_said("error") or not any(one.what == "error" for one in in_time):
                    missing.append(said.number)
        return missing

    def _check_manners(self) -> None:
        """Errors are ours, and a process ends by itself or by our kill."""
        for worker in self.workers:
            if bugs := [said.text for said in worker.said if said.what == "bug"]:
                raise Broken(f"{self.plan}: worker {worker.number}: {bugs}")
            status = worker.status
            expected = (0, -9) if self.plan.kill else (0,)
            if status not in expected and not (status == -7 and self.plan.hand in CUTS):
                raise Broken(f"{self.plan}: worker {worker.number} ended with {status}")


BUSY = "another process kept it"
"""What SQLite says on a machine that is slow; it has nothing to do with hands."""
MOVES = (hands.move, hands.empty, hands.another)
CUTS = (hands.truncate, hands.older_in_place)
"""A mapped file that is cut ends whoever reads it, with SIGBUS: no program can prevent that."""


def look(url: str, workers: int) -> dict[str, Any]:
    """Opens a store again; returns what is there, and what it says that is not well."""
    said: list[str] = []
    logs: dict[str, list[int]] = {}
    try:
        with holdfast.open(url, create=False) as store:
            for number in range(workers):
                log = store.scope(SCOPE, f"w{number}").state.to_dict().get("log", [])
                logs[str(number)] = [one["n"] for one in log if one == item(number, one["n"])]
                if len(logs[str(number)]) != len(log):
                    return {"changed": number, "said": [], "logs": {}}
            report = store.check()
            said += [f"{one.where}: {one.problem}" for one in report.findings if not one.harmless]
    except HoldfastError as error:
        said.append(f"{type(error).__name__}: {error}")
    return {"said": said, "logs": logs}


def trial(backend: str, known: Callable[[str], list[tuple[str, Hand | None]]], point: Point) -> int:
    make_small()
    plan = plan_of(backend, known(backend), point)
    operator_workers.large_every, opening.WAL_PAGES = plan.large_every, plan.wal_pages
    if known is mounted:
        mounts.begin()
    with mounts.undone():
        return max(1, Trial(plan, point).run())


PLANTED = {
    "files": {"no-look": 100, "cries": 40},
    "sqlite": {"blind": 30, "cries": 40},
}
PROMISE = "nothing acknowledged is lost in silence, whoever lays hands on the files"
PROGRAMMES = tuple(
    Programme(
        f"t22-{backend}",
        PROMISE,
        partial(trial, backend, combinations),
        share=200,
        points=points,
        turns=24,
        plants=PLANTED[backend],
    )
    for backend, points in (("files", 1000), ("sqlite", 900))
) + tuple(
    Programme(
        f"t22-{backend}-mounts",
        PROMISE,
        partial(trial, backend, mounted),
        share=16,
        points=50,
        turns=8,
        needs_root=True,
    )
    for backend in ("files", "sqlite")
)
