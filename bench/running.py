"""Runs: a chain of steps, its recovery after SIGKILL, and many runs at once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import apsw

from bench import bare, counts, ours, servers
from bench.harness import (
    ROOT,
    Block,
    Contender,
    Loop,
    Report,
    Size,
    closing,
    interleave,
    ratio,
    scratch,
    timed,
)
from bench.messages import messages
from bench.peers import PYTHON, Local, Peer
from bench.workers.holdfast_runs import Runs, later
from holdfast import aio
from tests.servers import postgresql as pg

COUNTED = 50
"""Steps of a run whose syncs are counted."""
RUNS, STEPS = 1_000, 10
"""Runs at once, and the steps of each."""
TIMES_SQLITE, TIMES_POSTGRESQL = 5, 8
IN_PROCESS_MS, WITH_START_S = 30, 0.4
DBOS_SQLITE, DBOS_WAL, DBOS_POSTGRESQL = "DBOS, SQLite", "DBOS, SQLite in WAL", "DBOS, PostgreSQL"


def runs(size: Size) -> Report:
    """Steps a second, recovery, runs at once; DBOS and bare loops beside them."""
    steps = 100 if size.quick else 1_000
    report = Report(
        f"runs of {steps:,} steps of 1 KB, and {RUNS:,} runs of {STEPS}; DBOS beside them",
        "full on all sides: a step's result is synced before the next step acts; holdfast's steps "
        "are of the class effect, with their intents written",
    )
    _embedded(report, size, steps)
    _on_postgresql(report, size, steps)
    with scratch() as place:
        _recovery(report, size, place, steps)
        _at_once(report, size, place)
    return report


# --- a chain of steps ----------------------------------------------------------------------------


def _blocks(size: Size) -> int:
    return 3 if size.quick else 10


def _chains(contenders: Sequence[Any], size: Size) -> dict[str, list[Block]]:
    """Lets whole runs take turns; the first of each warms up what it needs."""
    doing: list[Contender] = [each.doing("run") if hasattr(each, "doing") else each
                              for each in contenders]  # fmt: skip
    with closing(contenders):
        return interleave(doing, blocks=_blocks(size), operations=1, warm_up=1)


def _rows(
    report: Report,
    taken: dict[str, list[Block]],
    steps: int,
    column: str,
    counted: dict[str, float],
) -> None:
    for name, blocks in taken.items():
        seconds = [block.seconds for block in blocks]
        row: dict[str, Any] = {"doing": f"a chain of {steps:,}", "what": name}
        row["steps_per_s"] = round(steps / median(seconds))
        row["step_ms"] = round(median(seconds) / steps * 1e3, 3)
        report.rows.append({**row, column: counted.get(name)})


def _embedded(report: Report, size: Size, steps: int) -> None:
    with scratch() as place:
        contenders: list[Any] = [
            *(Local(f"holdfast {kind}", Runs(str(place / kind), steps=steps, kind=kind))
              for kind in ours.KINDS),
            Peer(DBOS_SQLITE, "DBOS", place / "dbos", steps=steps),
            Peer(DBOS_WAL, "DBOS", place / "wal", steps=steps, wal=True),
            _bare_chain("bare prewritten file", bare.prewritten_loop(place / "file"), steps),
            _bare_chain("bare apsw", bare.sqlite_loop(place / "bare.db"), steps),
        ]  # fmt: skip
        report.releases |= {each.name: each.release for each in contenders[2:4]}
        taken = _chains(contenders, size)
        _rows(report, taken, steps, "syncs_a_step", _syncs(report, place))
    for kind, floor in (("files", "bare prewritten file"), ("sqlite", "bare apsw")):
        mine = taken[f"holdfast {kind}"]
        report.notes.append(f"{kind}: {ratio(mine, taken[floor])} times the time of {floor}")
        for peer in (DBOS_SQLITE, DBOS_WAL):
            report.speed("chain of steps", peer, kind, ratio(taken[peer], mine))
    found = ratio(taken[DBOS_SQLITE], taken["holdfast sqlite"])
    report.at_least("sqlite: steps a second / DBOS on SQLite", found.value, TIMES_SQLITE)
    found = ratio(taken[DBOS_WAL], taken["holdfast sqlite"])
    report.notes.append(f"sqlite: {found} times the steps a second of DBOS on SQLite in WAL")


def _bare_chain(name: str, loop: Loop, steps: int) -> Loop:
    """As many records of as many bytes, each synced, and nothing else."""
    return Loop(name, lambda: loop.block(steps), loop.close)


def _syncs(report: Report, place: Path) -> dict[str, float]:
    """Counts the syncs of whole runs, as a share of a step; a start and an end have their own."""
    found: dict[str, float] = {}
    wanted = [(f"holdfast {kind}", "holdfast runs", {"kind": kind}) for kind in ours.KINDS]
    wanted += [(DBOS_SQLITE, "DBOS", {}), (DBOS_WAL, "DBOS", {"wal": True})]
    for name, worker, options in wanted:
        twice = [
            counts.count_worker(
                worker,
                place / f"counted {name} {steps}",
                "run",
                operations=5,
                steps=steps,
                **options,
            )
            for steps in (COUNTED, 2 * COUNTED)
        ]
        if twice[0] is None or twice[1] is None:
            report.notes.append("there is no strace here: syncs were not counted")
            return {}
        # The difference of two lengths: what a run costs besides its steps is in both.
        syncs = (twice[1].syncs - twice[0].syncs) / COUNTED
        found[name] = round(syncs, 2)
        if name.startswith("holdfast"):
            report.at_most(f"{name.removeprefix('holdfast ')}: syncs a step", syncs, 1)
    return found


def _on_postgresql(report: Report, size: Size, steps: int) -> None:
    running = pg.new_server(pg.NEWEST, *servers.SETTINGS)
    try:
        for database in ("ours", "theirs", "bare"):
            running.create_database(database)
        mine = Runs(running.url("ours"), steps=steps)
        bare_loop = servers.bare_insert(running.url("bare"))
        contenders: list[Any] = [
            Local("holdfast postgresql", mine),
            Peer(DBOS_POSTGRESQL, "DBOS", running.tcp_url("theirs"), steps=steps),
            _bare_chain("bare psycopg insert", bare_loop, steps),
        ]
        taken = _chains(contenders, size)
        counted = Runs(running.url("ours"), steps=steps, first=1_000_000)
        trips = _round_trips(counted, steps)
        counted.close()
        row = {"holdfast postgresql": round(trips, 2)}
        _rows(report, taken, steps, "round_trips_a_step", row)
        if not size.quick:
            _server_recovery(report, running, steps)
    finally:
        running.remove()
    found = ratio(taken[DBOS_POSTGRESQL], taken["holdfast postgresql"])
    report.speed("chain of steps", DBOS_POSTGRESQL, "postgresql", found)
    what = "postgresql: steps a second / DBOS on PostgreSQL"
    report.at_least(what, found.value, TIMES_POSTGRESQL)
    report.at_most("postgresql: round trips a step", trips, 1)
    report.notes.append("DBOS speaks to PostgreSQL by the loopback address, holdfast by socket")


def _round_trips(mine: Runs, steps: int) -> float:
    """Returns the statements that a longer run sends above a shorter one, for each step more."""
    asked = [servers.statements(lambda n=n: mine.run(n)) for n in (COUNTED, COUNTED + steps)]
    return (asked[1] - asked[0]) / steps


# --- recovery ------------------------------------------------------------------------------------


def _recovery(report: Report, size: Size, place: Path, steps: int) -> None:
    """A process is killed behind so many steps; a new one goes on with its run."""
    times = 3 if size.quick else 10
    own = [sys.executable, "-m", "bench.workers.holdfast_runs"]
    peer = [str(PYTHON), "-m", "bench.workers.dbos_workflows"]
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(times):
        for kind in ours.KINDS:
            made = place / f"{kind} {number}"
            made.mkdir()
            found.setdefault(f"holdfast {kind}", []).append(
                _recover(own, ours.url(kind, made), steps)
            )
        url = f"sqlite:///{place}/dbos {number}.sqlite"
        found.setdefault(DBOS_SQLITE, []).append(_recover(peer, url, steps))
        found.setdefault("bare read", []).append(_bare_read(place / f"bare {number}", steps))
    for name, each in found.items():
        row: dict[str, Any] = {"doing": f"recovery behind {steps:,} steps", "what": name}
        for column in ("open_ms", "to_next_step_ms", "with_start_s"):
            seen = [one[column] for one in each if column in one]
            row[column] = round(median(seen), 2) if seen else None
        report.rows.append(row)
        if name.startswith("holdfast"):
            kind = name.removeprefix("holdfast ")
            what = f"{kind}: killed behind {steps:,} steps, to the first new one"
            report.at_most(f"{what}, in process", row["to_next_step_ms"], IN_PROCESS_MS, " ms")
            report.at_most(f"{what}, with process start", row["with_start_s"], WITH_START_S, " s")


def _recover(program: list[str], url: str, steps: int) -> dict[str, float]:
    killed = subprocess.run([*program, "make", url, str(steps)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL, "the process was to be killed"
    start = time.monotonic_ns()
    done = subprocess.run(
        [*program, "recover", url], cwd=ROOT, check=True, capture_output=True, text=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    with_start_s = (said["at"] - start) / 1e9 - said.get("waited_s", 0)
    return {**said, "with_start_s": with_start_s}


def _bare_read(path: Path, steps: int) -> dict[str, float]:
    """Reads and decodes as many rows from a database that is opened for it."""
    database, said = bare.Database(path), messages()
    database.write([json.dumps(next(said)).encode() for _ in range(steps)])
    database.close()
    start = time.perf_counter()
    connection = apsw.Connection(str(path))
    opened = time.perf_counter()
    rows = connection.execute("SELECT payload FROM log ORDER BY position").fetchall()
    assert len([json.loads(payload) for (payload,) in rows]) == steps
    end = time.perf_counter()
    connection.close()
    return {"open_ms": (opened - start) * 1e3, "to_next_step_ms": (end - opened) * 1e3}


def _server_recovery(report: Report, running: pg.Server, steps: int) -> None:
    """On a server a dead owner's lease must run out first; that is printed apart."""
    running.create_database("recovery")
    own = [sys.executable, "-m", "bench.workers.holdfast_runs"]
    found = _recover(own, running.url("recovery"), steps)
    report.rows.append(
        {
            "doing": f"recovery behind {steps:,} steps",
            "what": "holdfast postgresql",
            "open_ms": round(found["open_ms"], 2),
            "to_next_step_ms": round(found["to_next_step_ms"], 2),
            "with_start_s": round(found["with_start_s"], 2),
        }
    )
    waited_s = found["waited_s"]
    report.notes.append(f"postgresql: the dead owner's lease ran out after {waited_s:.1f} s more")


# --- many runs at once ---------------------------------------------------------------------------


class AtOnce:
    """Async runs of one process, all started and awaited together."""

    def __init__(self, name: str, url: str, amount: int) -> None:
        self.name = name
        self._amount = amount
        self._runner = asyncio.Runner()
        self._store = self._runner.run(aio.open(url))
        self._numbers = count()

    def block(self, operations: int) -> Block:
        return timed(lambda: self._runner.run(self._all()), operations)

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._amount):
                group.create_task(self._one(f"run {next(self._numbers)}"))

    async def _one(self, id: str) -> None:
        run = await self._store.runs.start(later, STEPS, id=id)
        assert await run.result() == STEPS

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


def _at_once(report: Report, size: Size, place: Path) -> None:
    amount = 100 if size.quick else RUNS
    for kind, group in (("files", bare.file_group), ("sqlite", bare.sqlite_group)):
        made = place / f"once {kind}"
        made.mkdir()
        floor = group(made / "bare", writers=amount)
        each = Loop(floor.name, lambda floor=floor: floor.block(STEPS), floor.close)
        mine = AtOnce(f"holdfast {kind}", ours.url(kind, made), amount)
        with closing([each, mine]):
            taken = interleave([each, mine], blocks=_blocks(size), operations=1, warm_up=1)
        for name, blocks in taken.items():
            seconds = median(block.seconds for block in blocks)
            row = {"doing": f"{amount:,} runs of {STEPS} steps at once", "what": name}
            row["steps_per_s"] = round(amount * STEPS / seconds)
            report.rows.append({**row, "runs_per_s": round(amount / seconds)})
        found = ratio(taken[mine.name], taken[floor.name])
        report.notes.append(
            f"{amount:,} runs of {STEPS} steps at once, {kind}: {found} times the time of a bare "
            f"group commit of as many records, one a step"
        )
