"""PostgreSQL and Redis, beside bare drivers and a peer on the same server with the same settings.

The servers are started here, by the code that the tests start theirs with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Thread
from typing import Any

import holdfast
from bench import ours
from bench.crowd import PROCESSES, STREAMS, together
from bench.harness import (
    Block,
    Contender,
    Loop,
    Ratio,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    ratio,
    ratio_of_totals,
)
from bench.messages import SAID, messages
from bench.peers import Peer
from tests.checker.anomalies import check
from tests.checker.history import parse
from tests.opening import settled
from tests.servers import postgresql as pg
from tests.servers import redis as rd

WRITERS = 32
COUNTED = 50
SETTINGS = ("fsync = on", "synchronous_commit = on", "full_page_writes = on")
SCRIPT = "return redis.call('XADD', KEYS[1], '*', 'payload', ARGV[1])"


def postgresql(size: Size) -> Report:
    """One connection, 32 writers, eight processes, and a conversation of 1,000 turns."""
    report = Report(
        f"PostgreSQL {pg.NEWEST}, by Unix socket, one server for all contenders",
        f"full on all sides: {', '.join(SETTINGS)}",
    )
    running = pg.new_server(pg.NEWEST, *SETTINGS)
    try:
        _one_connection(report, size, running)
        _writers(report, size, "postgresql", _postgresql_url(running, "writers"), 5)
        _processes(report, size, running)
        _conversation(report, size, running)
    finally:
        running.remove()
    return report


def redis(size: Size) -> Report:
    """One connection at full durability and without any, and 32 writers."""
    name = next(iter(rd.installations()))
    report = Report(
        f"Redis {name}, by Unix socket, one server for all contenders",
        "full on all sides (appendfsync always), and none (appendonly no)",
    )
    for durability, settings in (("full", ()), ("none", ("appendonly no",))):
        running = rd.new_server(name, *settings)
        try:
            url = running.url(application="one")
            with _own("redis", url, durability=durability) as mine:
                contenders: list[Contender] = [_bare_script(running), mine]
                with closing(contenders):
                    taken = interleave(contenders, blocks=size.blocks, operations=size.operations)
            found = _add(report, f"one connection, {durability}", taken, "bare redis-py script")
            if durability == "full":
                report.at_most("redis / bare redis-py script, time", found.value, 1.4)
                _writers(report, size, "redis", running.url(application="writers"), None)
        finally:
            running.remove()
    return report


# --- one connection ------------------------------------------------------------------------------


def _postgresql_url(running: pg.Server, database: str) -> str:
    running.create_database(database)
    return running.url(database)


@contextmanager
def _own(kind: str, url: str, **options: Any) -> Iterator[Loop]:
    """Gives holdfast as a contender: a commit of one 1 KB message an operation."""
    hf = holdfast.open(url, **settled(options))
    turn = ours.turns(hf.conversation("c1"), checkpoints=False)
    yield Loop(f"holdfast {kind}", turn, hf.close)


def _texts() -> Callable[[], str]:
    said = messages()
    return lambda: json.dumps(next(said), separators=(",", ":"))


def bare_insert(url: str) -> Loop:
    """One statement, one round trip, one transaction: psycopg as it comes."""
    import psycopg

    line = psycopg.connect(url, autocommit=True)
    line.execute(
        "CREATE TABLE bare (stream text, revision bigint, payload text NOT NULL,"
        " PRIMARY KEY (stream, revision))"
    )
    text, numbers = _texts(), count(1)

    def insert() -> None:
        line.execute("INSERT INTO bare VALUES (%s, %s, %s)", ("c1", next(numbers), text()))

    return Loop("bare psycopg insert", insert, line.close)


def _bare_script(running: rd.Server) -> Loop:
    client = running.client()
    script = client.register_script(SCRIPT)
    text = _texts()
    return Loop("bare redis-py script", lambda: script(keys=["bare"], args=[text()]), client.close)


def _one_connection(report: Report, size: Size, running: pg.Server) -> None:
    url = _postgresql_url(running, "one")
    with _own("postgresql", url) as mine:
        contenders: list[Contender] = [bare_insert(url), mine]
        with closing(contenders):
            taken = interleave(contenders, blocks=size.blocks, operations=size.operations)
            report.at_most("postgresql: round trips a commit", _round_trips(mine), 1)
    found = _add(report, "one connection", taken, "bare psycopg insert")
    report.at_most("postgresql / bare psycopg insert, time", found.value, 1.4)


def _round_trips(mine: Loop) -> float:
    """Returns how many statements a commit sends: each is one round trip and one transaction."""
    return statements(lambda: mine.block(COUNTED)) / COUNTED


def statements(work: Callable[[], object]) -> int:
    """Returns how many statements are sent to PostgreSQL while something is done."""
    from holdfast.backends.postgresql.connection import PostgresqlConnection

    asked = 0

    def counted(sound: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return sound(*arguments)

        return call

    sounds = {name: getattr(PostgresqlConnection, name) for name in ("ask", "answer")}
    for name, sound in sounds.items():
        setattr(PostgresqlConnection, name, counted(sound))
    try:
        work()
    finally:
        for name, sound in sounds.items():
            setattr(PostgresqlConnection, name, sound)
    return asked


def _add(report: Report, doing: str, taken: dict[str, list[Block]], floor: str) -> Ratio:
    """Adds the rows of a comparison of two; returns how many times as long as the floor."""
    for name, blocks in taken.items():
        report.rows.append({"doing": doing, "what": name, **latency_row(blocks)})
    [mine] = [blocks for name, blocks in taken.items() if name != floor]
    found = ratio(mine, taken[floor])
    report.notes.append(f"{doing}: {found} times the time of {floor}")
    return found


# --- many writers --------------------------------------------------------------------------------


class Writers:
    """Threads of this process on one store, a conversation each."""

    def __init__(self, name: str, store: holdfast.Store, writers: int) -> None:
        self.name = name
        self._turns = [
            ours.turns(store.conversation(f"{name} {n}"), checkpoints=False) for n in range(writers)
        ]

    def block(self, operations: int) -> Block:
        latencies: list[float] = []

        def write(turn: Callable[[], object]) -> None:
            for _ in range(operations):
                begin = time.perf_counter()
                turn()
                latencies.append(time.perf_counter() - begin)

        threads = [Thread(target=write, args=(turn,)) for turn in self._turns]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Block(time.perf_counter() - begin, latencies)

    def close(self) -> None:
        """Nothing: the store is closed when both are done."""


def _writers(report: Report, size: Size, kind: str, url: str, limit: float | None) -> None:
    with holdfast.open(url) as store:
        contenders = [Writers(f"{kind}, {n} writers", store, n) for n in (1, WRITERS)]
        blocks = max(size.blocks // 2, 6)
        taken = interleave(contenders, blocks=blocks, operations=size.operations)
    for name, some in taken.items():
        report.rows.append({"doing": "writers of one process", "what": name, **latency_row(some)})
    one, many = (
        [Block(block.seconds / len(block.latencies), []) for block in some]
        for some in taken.values()
    )
    found = ratio(one, many)
    report.notes.append(f"{WRITERS} writers on {kind}: {found} times one writer's commits a second")
    if limit is not None:
        report.at_least(f"{WRITERS} writers on {kind} / one, rate", found.value, limit)


# --- many processes ------------------------------------------------------------------------------


def _processes(report: Report, size: Size, running: pg.Server) -> None:
    """Eight processes of eight threads on 64 streams, beside as many rows in bare transactions."""
    url = _postgresql_url(running, "processes")
    holdfast.open(url).close()
    running.psql(
        "processes",
        "CREATE TABLE bare (stream text, n bigint GENERATED ALWAYS AS IDENTITY,"
        " payload text NOT NULL, PRIMARY KEY (stream, n))",
    )
    seconds, rounds = (1.0, 3) if size.quick else (4.0, 8)
    history: list[dict[str, Any]] = []
    rates: dict[str, list[float]] = {}
    per_transaction: dict[str, float] = {}

    def measure(what: str, kind: str, number: int, rows: int = 1) -> float:
        said = together(kind, url, number, seconds, rows)
        done = sum(one["rows"] for one in said)
        rates.setdefault(what, []).append(done / seconds)
        per_transaction[what] = done / sum(one["transactions"] for one in said)
        history.extend(line for one in said for line in one["history"])
        return per_transaction[what]

    for number in range(rounds):
        rows = measure("holdfast postgresql, a stream for each thread", "apart", 2 * number)
        measure("bare psycopg, as many rows a transaction", "bare", number, max(round(rows), 1))
        measure("holdfast postgresql, all streams shared", "contended", 2 * number + 1)
        measure("bare psycopg, a row a transaction", "bare", number)
    for name, found in rates.items():
        row = {"doing": f"{PROCESSES} processes, {STREAMS} streams", "what": name}
        row |= {"per_s": round(sum(found) / len(found))}
        report.rows.append({**row, "rows a transaction": round(per_transaction[name], 2)})
    apart, as_many, shared, single = (
        [Block(1 / rate, []) for rate in each] for each in rates.values()
    )
    quotient = ratio(apart, as_many)
    report.notes.append(
        f"{PROCESSES} processes: {quotient} times the time of bare psycopg with as many rows a "
        f"transaction; {ratio(shared, single)} times that of single rows where every append finds "
        "that another process was there first, and is laid anew"
    )
    report.at_most(f"{PROCESSES} processes / bare psycopg, time", quotient.value, 2)
    with holdfast.open(url) as store:
        for stream in range(STREAMS):
            values = [item["id"] for item in store.conversation(f"c{stream}").get("values", [])]
            history.append({"op": "final", "stream": f"c{stream}", "values": values})
    anomalies = check(parse(json.dumps(line) for line in history))
    report.notes.append(f"the checker judged {len(history):,} operations")
    report.at_most("lost updates and other anomalies", len(anomalies), 0)


# --- the conversation ----------------------------------------------------------------------------


def _conversation(report: Report, size: Size, running: pg.Server) -> None:
    """A message and a named checkpoint a turn, beside a saver that stores the list each time."""
    places = {"holdfast postgresql": "ours", "PostgresSaver.put": "peer"}
    urls = {name: _postgresql_url(running, database) for name, database in places.items()}
    hf = holdfast.open(urls["holdfast postgresql"])
    mine = Loop("holdfast postgresql", ours.turns(hf.conversation("c1")), hf.close)
    peer = Peer("PostgresSaver.put", "PostgresSaver", urls["PostgresSaver.put"])
    report.releases[peer.name] = peer.release
    # Of both, behind their empty tables.
    before = {name: _bytes(running, database) for name, database in places.items()}
    blocks = size.turns // size.operations
    with closing([mine, peer]):
        turning: Sequence[Contender] = [peer.doing("turn"), mine]
        taken = interleave(turning, blocks=blocks, operations=size.operations, warm_up=0)
    stored: dict[str, int] = {}
    for name, some in taken.items():
        stored[name] = _bytes(running, places[name]) - before[name]
        row = {"doing": f"{size.turns:,} turns", "what": name, **latency_row(some)}
        row["total_s"] = round(sum(block.seconds for block in some), 3)
        report.rows.append({**row, "stored_per_said": round(stored[name] / size.turns / SAID, 2)})
    found = ratio_of_totals(taken["PostgresSaver.put"], taken["holdfast postgresql"])
    report.speed("whole conversation", "PostgresSaver.put", "postgresql", found)
    report.notes.append(f"postgresql: {found} times as fast as PostgresSaver.put, in all")
    report.at_least("postgresql: times as fast as PostgresSaver.put", found.value, 15)
    share = stored["PostgresSaver.put"] / stored["holdfast postgresql"]
    report.at_least("PostgresSaver.put / postgresql, bytes stored", share, 100)


def _bytes(running: pg.Server, database: str) -> int:
    """Returns what a database takes on disk, tables and indexes, without the server's own log."""
    said = running.psql(database, "CHECKPOINT", f"SELECT pg_database_size('{database}')")
    return int(said.split()[-1])
