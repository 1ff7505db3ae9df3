"""Views beside writers, and the check of many small scopes, beside bare reads of the same rows.

A view of two scopes, which other processes go on writing to, at two lengths of their histories: it
costs what came since the last one, however much came before. Beside it, the driver reads the same
rows in one snapshot of the server. The check reads every row once more than a bare ordered read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import holdfast
from bench.harness import Block, Contender, Loop, Report, Size, interleave, latency_row, ratio
from holdfast.backends.redis.encoding import Keys
from tests.servers import postgresql as pg
from tests.servers import redis as rd

ROOT = Path(__file__).resolve().parents[1]
SCOPES = ("team/red", "team/blue")
WRITERS = 4
EVENTS = 5
"""Events of each small scope that is checked."""

_ROWS = """SELECT revision, link, payload FROM holdfast.events
 WHERE application = %s AND stream = %s AND revision > %s ORDER BY revision"""
_ALL = """SELECT stream, revision, link, payload FROM holdfast.events
 WHERE application = %s ORDER BY stream, revision"""


def views(size: Size) -> Report:
    """Views of two scopes beside four writers, and the check of many small scopes."""
    redis_name = next(iter(rd.installations()))
    report = Report(
        f"PostgreSQL {pg.NEWEST} and Redis {redis_name}, by Unix socket: a view of two scopes that "
        f"{WRITERS} writers of another process change, and a check",
        "full on all sides",
    )
    servers: list[tuple[str, Any]] = [
        ("postgresql", pg.new_server(pg.NEWEST)),
        ("redis", rd.new_server(redis_name)),
    ]
    try:
        for kind, running in servers:
            lengths = (200, 2_000) if size.quick else (1_000, 30_000)
            short, long = [_view(report, size, kind, running, length) for length in lengths]
            # Each beside its bare read: between the two lengths the machine drifts.
            what = f"{kind}: a view at {lengths[1]:,} events / at {lengths[0]:,}, of bare reads"
            report.at_most(what, long / short, 1.5)
            _check(report, size, kind, running)
    finally:
        for _, running in servers:
            running.remove()
    return report


# --- views ---------------------------------------------------------------------------------------


def _view(report: Report, size: Size, kind: str, running: Any, length: int) -> float:
    """Adds the rows of one length; returns how many times as long as a bare read a view takes."""
    url = running.url(application=f"views-{length}")
    _fill(url, length)
    with holdfast.open(url) as store, _written(url):
        red, blue = (store.scope(name) for name in SCOPES)

        def look() -> None:
            view = store.view()
            one, other = view.get(red, "n"), view.get(blue, "n")
            assert one == other, f"a view of two moments: {one}, {other}"

        mine = Loop(f"holdfast {kind}", look, lambda: None)
        bare, close = _bare(kind, running, f"views-{length}")
        contenders: list[Contender] = [Loop(f"bare snapshot, {kind}", bare, close), mine]
        # Few: each waits for its turn beside the writers.
        taken = interleave(contenders, blocks=max(size.blocks // 4, 6), operations=10)
        asked = _calls(store, look)
        close()
    doing = f"a view at {length:,} events a scope"
    for name, blocks in taken.items():
        row: dict[str, Any] = {"doing": doing, "what": name, **latency_row(blocks)}
        row["round_trips"] = asked if name == mine.name else ""
        report.rows.append(row)
    found = ratio(taken[mine.name], taken[contenders[0].name])
    report.notes.append(f"{doing}, {kind}: {found} times the time of a bare snapshot read")
    report.at_most(f"{kind}: {doing} / bare snapshot read, time", found.value, 3)
    return found.value


def _fill(url: str, length: int) -> None:
    with holdfast.open(url) as store:
        red, blue = (store.scope(name) for name in SCOPES)
        pending: list[Any] = []
        for n in range(length):
            with store.commit(waits=False) as tx:
                for scope in (red, blue):
                    tx.scope(scope).set("n", n)
                    tx.scope(scope).set(f"key {n % 100}", "x" * 50)
            pending.append(tx)
            if len(pending) == 100:
                for tx in pending:
                    tx.wait()
                pending.clear()
        for tx in pending:
            tx.wait()


@contextmanager
def _written(url: str) -> Iterator[None]:
    """Lets another process write to both scopes, in joint commits."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.viewing", url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("the writers of the benchmark could not begin")
        yield
    finally:
        child.communicate()


def _write_until_told(url: str) -> None:
    done = Event()
    with holdfast.open(url) as store:

        def write(number: int) -> None:
            n = 0
            while not done.is_set():
                n += 1
                with store.commit() as tx:
                    for name in SCOPES:
                        tx.scope(store.scope(name)).set("n", [number, n])

        threads = [Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        done.set()
        for thread in threads:
            thread.join()


def _bare(
    kind: str, running: Any, application: str
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns what reads the rows of both scopes that came since its last call, in one snapshot."""
    last = dict.fromkeys(SCOPES, 0)
    if kind == "redis":
        client, keys = running.client(), Keys(application)

        def read_redis() -> None:
            asked = client.pipeline(transaction=True)
            for name in SCOPES:
                asked.xrange(keys.events(name), f"{last[name] + 1}-0", "+")
            for name, entries in zip(SCOPES, asked.execute(), strict=True):
                for id, _ in entries:
                    last[name] = int(id.partition(b"-")[0])

        read_redis()
        return read_redis, client.close
    import psycopg

    # Without prepared statements, as holdfast: poolers in transaction mode do not keep them.
    line = psycopg.connect(running.url(), autocommit=True, prepare_threshold=None)

    def read_rows() -> None:
        line.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for name in SCOPES:
            rows = line.execute(_ROWS, (application, name, last[name])).fetchall()
            if rows:
                last[name] = rows[-1][0]
        line.execute("COMMIT")

    read_rows()
    return read_rows, line.close


def _calls(store: holdfast.Store, work: Callable[[], object]) -> float:
    """Returns how many calls to the server one piece of work makes, at most of ten."""
    pool: Any = store._log._backend._checkout.pool  # type: ignore[attr-defined]
    asked = 0
    sound = pool.call

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return sound(*arguments, **options)

    pool.call = counted
    most = 0
    try:
        for _ in range(10):
            asked = 0
            work()
            most = max(most, asked)
    finally:
        pool.call = sound
    return most


# --- the check -----------------------------------------------------------------------------------


def _check(report: Report, size: Size, kind: str, running: Any) -> None:
    scopes = 300 if size.quick else 6_000
    url = running.url(application="checked")
    with holdfast.open(url) as store:
        for start in range(0, scopes, 100):
            pending = []
            for n in range(start, min(start + 100, scopes)):
                for number in range(EVENTS):
                    with store.commit(waits=False) as tx:
                        tx.scope(store.team(f"t{n}")).set("n", number)
                    pending.append(tx)
            for tx in pending:
                tx.wait()
        read = _bare_rows(kind, running)
        taken: dict[str, list[Block]] = {"check": [], "bare": []}
        for _ in range(2 if size.quick else 3):
            taken["bare"].append(_once(read))
            taken["check"].append(_once(lambda: _sound(store)))
        asked = _calls_once(store, lambda: _sound(store))
    seconds = {name: min(block.seconds for block in blocks) for name, blocks in taken.items()}
    doing = f"{scopes:,} scopes of {EVENTS} events"
    report.rows.append({"doing": doing, "what": f"check, {kind}", "s": round(seconds["check"], 3)})
    report.rows.append(
        {"doing": doing, "what": f"bare rows, {kind}", "s": round(seconds["bare"], 3)}
    )
    report.notes.append(f"a check of {doing}, {kind}: {asked} round trips")
    report.at_most(f"{kind}: round trips of a check / scopes", asked / scopes, 0.1)


def _sound(store: holdfast.Store) -> None:
    found = store.check()
    assert found.ok, found.findings


def _calls_once(store: holdfast.Store, work: Callable[[], object]) -> int:
    pool: Any = store._log._backend._checkout.pool  # type: ignore[attr-defined]
    asked: list[int] = []
    sound = pool.call

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(1)
        return sound(*arguments, **options)

    pool.call = counted
    try:
        work()
    finally:
        pool.call = sound
    return len(asked)


def _bare_rows(kind: str, running: Any) -> Callable[[], None]:
    if kind == "redis":
        client, keys = running.client(), Keys("checked")

        def read_streams() -> None:
            names = client.zrange(keys.streams, 0, -1)
            for start in range(0, len(names), 500):
                asked = client.pipeline(transaction=False)
                for name in names[start : start + 500]:
                    asked.xrange(keys.events(name.decode()))
                asked.execute()

        return read_streams
    import psycopg

    def read_rows() -> None:
        with psycopg.connect(running.url()) as line:
            line.execute(_ALL, ("checked",)).fetchall()

    return read_rows


def _once(work: Callable[[], object]) -> Block:
    begin = time.perf_counter()
    work()
    return Block(time.perf_counter() - begin, [])


if __name__ == "__main__":
    _write_until_told(sys.argv[1])
