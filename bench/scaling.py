"""Curves: what grows when a store does, and what does not.

Every size of a curve is there at once, and they take turns with the bare loop beside them, so that
a curve that rises does so because of the size and not because of the hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import apsw

import holdfast
from bench import bare, ours
from bench.harness import (
    Contender,
    Loop,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    percentile,
    ratio,
    scratch,
    timed,
)
from bench.messages import SAID, messages
from bench.writing import AsyncWriters, commit_together

FLOOR = {"files": "bare prewritten file", "sqlite": "bare apsw"}
GROUP = {"files": "bare group, file", "sqlite": "bare group, apsw"}
FULL = "full: every commit synced; the floor is a bare loop with the same sync"


def _floor(kind: str, place: Path) -> Loop:
    if kind == "files":
        return bare.prewritten_loop(place / "bare")
    return bare.sqlite_loop(place / "bare.db")


def _middle_ms(action: Callable[[], object], times: int) -> float:
    return round(median(timed(action, times).latencies) * 1e3, 4)


def _commits(
    kind: str, place: Path, operations: dict[int, Callable[[], object]], size: Size
) -> dict[int, dict[str, Any]]:
    """Lets commits to stores of every size take turns with the bare loop."""
    floor = _floor(kind, place)
    contenders: list[Contender] = [floor]
    contenders += [Loop(str(n), operation, lambda: None) for n, operation in operations.items()]
    blocks = 6 if size.quick else 40
    with closing([floor]):
        taken = interleave(contenders, blocks=blocks, operations=size.operations)
    floor_ms = latency_row(taken[floor.name])["p50_ms"]
    return {
        n: {
            "commit_ms": latency_row(taken[str(n)])["p50_ms"],
            "bare_ms": floor_ms,
            "commit_per_bare": round(ratio(taken[str(n)], taken[floor.name]).value, 2),
        }
        for n in operations
    }


def events(size: Size) -> Report:
    """Stores of 1,000 to 1,000,000 events: open, newest state, commit, check."""
    report = Report("events of a store: small events over up to 1,000 scopes", FULL)
    sizes = [1_000, 5_000, size.store] if size.quick else [1_000, 10_000, 100_000, size.store]
    bare_check = {n: _bare_check(n) for n in sizes}
    for kind in ours.KINDS:
        places = {n: ours.many_events(kind, n) for n in sizes}
        rows: dict[int, dict[str, Any]] = {}
        for n, place in places.items():
            rows[n] = {"kind": kind, "n": n, **_opening(kind, place)}
            with ours.open_store(kind, place) as hf:
                begin = time.perf_counter()
                assert hf.check().ok
                rows[n]["check_us_per_event"] = _each_us(begin, n)
            rows[n]["bare_check_us"] = bare_check[n]
        with ExitStack() as stack, scratch() as place:
            doing: dict[int, Callable[[], object]] = {}
            for n, made_at in places.items():
                hf = stack.enter_context(ours.open_store(kind, made_at))
                doing[n] = ours.turns(hf.conversation("c7"), size=100, checkpoints=False)
            for n, row in _commits(kind, place, doing, size).items():
                rows[n] |= row
        report.rows += rows.values()
        _flat(report, kind, rows, "commit_per_bare", 1.25)
    report.notes.append("open: until open() returns; newest: then the last message of one scope")
    report.notes.append("bare check: every row of a bare table read and digested, nothing compared")
    return report


def _each_us(begin: float, n: int) -> float:
    return round((time.perf_counter() - begin) / n * 1e6, 3)


def _opening(kind: str, place: Path) -> dict[str, Any]:
    opened: list[float] = []
    newest: list[float] = []
    for _ in range(11):
        begin = time.perf_counter()
        hf = ours.open_store(kind, place)
        middle = time.perf_counter()
        assert hf.conversation("c7").state["messages"][-1]
        opened.append(middle - begin)
        newest.append(time.perf_counter() - middle)
        hf.close()
    return {
        "open_ms": round(median(opened[1:]) * 1e3, 3),
        "newest_ms": round(median(newest[1:]) * 1e3, 3),
    }


def _bare_check(n: int) -> float:
    """Returns microseconds a row for reading and digesting a bare table."""
    said = messages(100)
    with scratch() as place:
        connection = apsw.Connection(str(place / "db"))
        connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, payload TEXT)")
        with connection:
            rows = ((str(next(said)),) for _ in range(n))
            connection.executemany("INSERT INTO log (payload) VALUES (?)", rows)
        begin = time.perf_counter()
        for (payload,) in connection.execute("SELECT payload FROM log ORDER BY position"):
            sha256(payload.encode()).digest()
        found = _each_us(begin, n)
        connection.close()
    return found


def _flat(
    report: Report, kind: str, rows: dict[int, dict[str, Any]], column: str, limit: float
) -> None:
    """Adds how much the largest costs more than the smallest."""
    few, many = min(rows), max(rows)
    grown = rows[many][column] / rows[few][column]
    report.at_most(f"{kind}: {column}, {many:,} against {few:,}", grown, limit)


def streams(size: Size) -> Report:
    """Stores of 1 to 100,000 scopes with one event each: open, list, commit."""
    report = Report("scopes of a store, one event each", FULL)
    sizes = [1, 10, 100, 1_000] if size.quick else [1, 10, 100, 1_000, 10_000, 100_000]
    for kind in ours.KINDS:
        rows: dict[int, dict[str, Any]] = {}
        with ExitStack() as stack:
            place = stack.enter_context(scratch())
            one: dict[int, Callable[[], object]] = {}
            for n in sizes:
                at = place / str(n)
                _build_streams(kind, at, n)
                rows[n] = {"kind": kind, "n": n}
                rows[n]["open_ms"] = _middle_ms(partial(_opened, kind, at), 11)
                hf = stack.enter_context(ours.open_store(kind, at))
                listed = _middle_ms(lambda hf=hf: len(hf.scopes(limit=None)), 3)
                rows[n]["list_ms"] = listed
                rows[n]["list_us_per_scope"] = round(listed * 1e3 / n, 3)
                one[n] = ours.turns(hf.conversation("c0"), size=100, checkpoints=False)
            for n, row in _commits(kind, place, one, size).items():
                rows[n] |= row
        with ExitStack() as stack:
            # Its own loop: the first commit to a scope in a process reads that scope's head.
            place = stack.enter_context(scratch())
            other: dict[int, Callable[[], object]] = {}
            for n in sizes:
                _build_streams(kind, place / str(n), n)
                hf = stack.enter_context(ours.open_store(kind, place / str(n)))
                other[n] = _to_others(hf, n)
            for n, row in _commits(kind, place, other, size).items():
                rows[n]["other_ms"] = row["commit_ms"]
                rows[n]["other_per_bare"] = row["commit_per_bare"]
        report.rows += rows.values()
        _flat(report, kind, rows, "commit_per_bare", 1.25)
    report.notes.append("commit: to one scope; other: each to another scope, so mostly a cold one")
    return report


def _opened(kind: str, place: Path) -> None:
    ours.open_store(kind, place).close()


def _build_streams(kind: str, place: Path, n: int) -> None:
    said = messages(100)
    with ours.open_store(kind, place, durability="none") as hf:
        for first in range(0, n, 100):
            with hf.commit() as commit:
                for number in range(first, min(n, first + 100)):
                    commit.scope(hf.conversation(f"c{number}")).append("messages", next(said))


def _to_others(hf: holdfast.Store, n: int) -> Callable[[], object]:
    said, numbers = messages(100), count()

    def commit() -> object:
        # A step that has no divisor in common with any power of ten goes through all of them.
        chat = hf.conversation(f"c{next(numbers) * 7_919 % n}")
        return chat.append("messages", next(said))

    return commit


def keys(size: Size) -> Report:
    """States of 10 to 100,000 keys: set one, set ten in one commit, get one."""
    report = Report("keys of one state, values of 100 bytes", FULL)
    sizes = [10, 100, 1_000] if size.quick else [10, 100, 1_000, 10_000, 100_000]
    for kind in ours.KINDS:
        rows: dict[int, dict[str, Any]] = {}
        with ExitStack() as stack:
            place = stack.enter_context(scratch())
            one: dict[int, Callable[[], object]] = {}
            for n in sizes:
                _build_state(kind, place / str(n), n)
                afresh = _middle_ms(partial(_read_key, kind, place / str(n)), 5)
                scope = stack.enter_context(ours.open_store(kind, place / str(n))).workflow("w1")
                got = percentile(timed(_gets(scope, n), 2_000).latencies, 0.5)
                rows[n] = {"kind": kind, "n": n, "get_us": round(got * 1e6, 2)}
                rows[n]["open_and_get_ms"] = afresh
                one[n] = _sets(scope, n, 1)
            for n, row in _commits(kind, place, one, size).items():
                rows[n] |= row
        with ExitStack() as stack:
            place = stack.enter_context(scratch())
            ten: dict[int, Callable[[], object]] = {}
            for n in sizes:
                _build_state(kind, place / str(n), n)
                scope = stack.enter_context(ours.open_store(kind, place / str(n))).workflow("w1")
                ten[n] = _sets(scope, n, 10)
            for n, row in _commits(kind, place, ten, size).items():
                rows[n]["ten_ms"] = row["commit_ms"]
                rows[n]["ten_per_bare"] = row["commit_per_bare"]
        report.rows += rows.values()
        _flat(report, kind, rows, "commit_per_bare", 1.25)
    report.notes.append("commit: one key set; ten: ten keys set in one commit; get: in process")
    return report


def _build_state(kind: str, place: Path, n: int) -> None:
    said = messages(100)
    with ours.open_store(kind, place, durability="none") as hf:
        scope = hf.workflow("w1")
        for first in range(0, n, 1_000):
            numbers = range(first, min(n, first + 1_000))
            scope.update({f"key {number}": next(said) for number in numbers})


def _read_key(kind: str, place: Path) -> None:
    with ours.open_store(kind, place) as hf:
        assert hf.workflow("w1").get("key 7")["role"] == "user"


def _gets(scope: holdfast.Scope, n: int) -> Callable[[], object]:
    numbers = count()
    return lambda: scope.get(f"key {next(numbers) * 7_919 % n}")


def _sets(scope: holdfast.Scope, n: int, several: int) -> Callable[[], object]:
    said, numbers = messages(100), count()

    def one() -> object:
        return scope.set(f"key {next(numbers) * 7_919 % n}", next(said))

    def many() -> object:
        chosen = [next(numbers) * 7_919 % n for _ in range(several)]
        return scope.update({f"key {number}": next(said) for number in chosen})

    return one if several == 1 else many


def writers(size: Size) -> Report:
    """1 to 64 asyncio writers in one process, beside the bare group commit of as many."""
    report = Report(f"asyncio writers of one process, {SAID:,}-byte commits", FULL)
    for n in (1, 4, 16, 64) if size.quick else (1, 2, 4, 8, 16, 32, 64):
        with scratch() as place:
            contenders: list[Contender] = [
                bare.file_group(place / "group", writers=n),
                AsyncWriters("files", place / "files", writers=n),
                bare.sqlite_group(place / "group.db", writers=n),
                AsyncWriters("sqlite", place / "sqlite", writers=n),
            ]
            with closing(contenders):
                blocks, operations = (4 if size.quick else 20), max(10, 200 // n)
                taken = interleave(contenders, blocks=blocks, operations=operations)
        for kind in ours.KINDS:
            own, floor = taken[f"holdfast {kind}"], taken[GROUP[kind]]
            row = latency_row(own)
            row |= {"bare_per_s": latency_row(floor)["per_s"]}
            row |= {"of_bare": round(ratio(floor, own).value, 3)}
            report.rows.append({"kind": kind, "n": n, **row})
    report.notes.append("of_bare: holdfast's rate as a share of the bare group commit's")
    return report


def processes(size: Size) -> Report:
    """1 to 8 processes on one store, beside as many with a bare lock, write and sync."""
    report = Report(f"processes on one store, {SAID:,}-byte commits", FULL)
    seconds = 0.5 if size.quick else 3.0
    for n in (1, 2, 8) if size.quick else (1, 2, 4, 8):
        for kind, floor in (("files", "bare file"), ("sqlite", "bare apsw")):
            with scratch() as place:
                own = commit_together(kind, place / kind, processes=n, seconds=seconds)
                beside = commit_together(floor, place / floor, processes=n, seconds=seconds)
            report.rows.append(
                {
                    "kind": kind,
                    "n": n,
                    **_shared(own, seconds),
                    **{f"bare_{name}": value for name, value in _shared(beside, seconds).items()},
                    "of_bare": round(sum(map(len, own)) / sum(map(len, beside)), 3),
                }
            )
    report.notes.append("least_of_most: commits of the slowest process for each of the fastest")
    report.notes.append("bare: flock, pwrite, fdatasync; or BEGIN IMMEDIATE with a busy timeout")
    return report


def _shared(latencies: list[list[float]], seconds: float) -> dict[str, Any]:
    done = sorted(len(each) for each in latencies)
    every = [latency for each in latencies for latency in each]
    return {
        "per_s": round(sum(done) / seconds),
        "least_of_most": round(done[0] / done[-1], 3),
        "p50_ms": round(percentile(every, 0.5) * 1e3, 3),
        "p99_ms": round(percentile(every, 0.99) * 1e3, 3),
    }
