"""One writer, 64 writers, eight processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from bench import bare, counts, ours
from bench.harness import (
    Block,
    Contender,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    percentile,
    ratio,
    scratch,
)
from bench.messages import SAID, messages
from bench.peers import Peer

PROCESSES = 8


def one_writer(size: Size) -> Report:
    """(a) One 1 KB commit an operation, against bare loops of the same durability."""
    report = Report("(a) one writer, 1 KB commits", "full: every commit synced before it returns")
    with scratch() as place:
        contenders: list[Contender] = [
            bare.prewritten_loop(place / "prewritten"),
            bare.append_loop(place / "append"),
            ours.append_loop("files", place / "files"),
            bare.sqlite_loop(place / "bare.db"),
            ours.append_loop("sqlite", place / "sqlite"),
        ]
        with closing(contenders):
            taken = interleave(contenders, blocks=size.blocks, operations=size.operations)
        for name, blocks in taken.items():
            counted = counts.count(name, place / f"count {name}", operations=60)
            spent = counts.cpu_us(name, place / f"cpu {name}", blocks=5 if size.quick else 20)
            row = {"what": name, **latency_row(blocks), **counted.row(), "cpu_us": round(spent, 1)}
            report.rows.append(row)
            if name.startswith("holdfast"):
                report.at_most(f"{name}: syncs a commit", counted.syncs, 1)
    files, sqlite = taken["holdfast files"], taken["holdfast sqlite"]
    for mine, other, limit in [
        (files, "bare prewritten file", 1.3),
        (files, "bare append", 1.0),
        (sqlite, "bare apsw", 1.4),
    ]:
        found = ratio(mine, taken[other])
        kind = "files" if mine is files else "sqlite"
        report.notes.append(f"{kind} / {other}: {found} times the time")
        report.at_most(f"{kind} / {other}, time", found.value, limit)
    report.notes.append(f"system calls and bytes from {counted.source}; a message is {SAID} bytes")
    return report


class AsyncWriters:
    """64 coroutines on one AsyncStore, a conversation each."""

    def __init__(self, kind: str, place: Path, *, writers: int = bare.WRITERS) -> None:
        from holdfast import aio

        place.mkdir(parents=True)
        self.name = f"holdfast {kind}"
        self._runner = asyncio.Runner()
        self._store: Any = self._runner.run(aio.open(ours.url(kind, place)))
        self._chats = [self._store.conversation(f"c{n}") for n in range(writers)]
        self._message = cycle(islice(messages(), 100)).__next__

    def _append(self, writer: int) -> Any:
        return self._chats[writer].append("messages", self._message())

    def block(self, operations: int) -> Block:
        together = bare.write_together(self._append, operations, writers=len(self._chats))
        return self._runner.run(together)

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


def many_writers(size: Size) -> Report:
    """(c) 64 asyncio writers on one store, against a bare group commit of 64 coroutines."""
    report = Report("(c) 64 asyncio writers, 1 KB commits", "full: every commit synced")
    with scratch() as place:
        contenders: list[Contender] = [
            bare.file_group(place / "group"),
            AsyncWriters("files", place / "files"),
            bare.sqlite_group(place / "group.db"),
            AsyncWriters("sqlite", place / "sqlite"),
        ]
        with closing(contenders):
            taken = interleave(contenders, blocks=size.blocks, operations=size.operations)
        peers = [
            (Peer("AsyncSqliteSaver.aput", "AsyncSqliteSaver", place / "a.db", writers=64), "turn"),
            (Peer("OpenAI SQLiteSession", "OpenAI SQLiteSession", place / "o.db", writers=64,
                  items=1), "append"),
        ]  # fmt: skip
        with closing([peer for peer, _ in peers]):
            # A saver's state grows with every turn, so it is shown at its best: 40 turns each.
            doing = [peer.doing(operation) for peer, operation in peers]
            slow = interleave(doing, blocks=2, operations=size.operations, warm_up=0)
    for name, blocks in {**taken, **slow}.items():
        report.rows.append({"what": name, **latency_row(blocks)})
    for kind, floor, limit in [("files", "file", 0.25), ("sqlite", "apsw", 0.4)]:
        found = ratio(taken[f"bare group, {floor}"], taken[f"holdfast {kind}"])
        report.notes.append(f"{kind}: {found} of the bare group commit's rate")
        report.at_least(f"64 writers on {kind} / bare group commit, rate", found.value, limit)
    return report


def many_processes(size: Size) -> Report:
    """(h) Eight processes commit to one store at once: how much, and how fairly."""
    report = Report("(h) eight processes on one store", "full: every commit synced")
    seconds = 1.0 if size.quick else 5.0
    for kind in ours.KINDS:
        with scratch() as place:
            alone = commit_together(kind, place / "one", processes=1, seconds=seconds)
            eight = commit_together(kind, place / "eight", processes=PROCESSES, seconds=seconds)
        done = sorted(len(latencies) for latencies in eight)
        every = [latency for latencies in eight for latency in latencies]
        fairness = sum(done) ** 2 / (len(done) * sum(n * n for n in done))
        report.rows.append(
            {
                "what": f"holdfast {kind}",
                "one_per_s": round(len(alone[0]) / seconds),
                "eight_per_s": round(sum(done) / seconds),
                "least": done[0],
                "most": done[-1],
                "jain": round(fairness, 3),
                "p50_ms": round(percentile(every, 0.5) * 1e3, 2),
                "p99_ms": round(percentile(every, 0.99) * 1e3, 2),
                "longest_ms": round(max(every) * 1e3, 1),
            }
        )
        if kind == "files":
            report.at_least("eight processes on files: least / most", done[0] / done[-1], 0.5)
    report.notes.append("least and most: commits of one process; jain: 1.0 is perfectly fair")
    return report


def commit_together(kind: str, place: Path, *, processes: int, seconds: float) -> list[list[float]]:
    """Returns the latencies of each of so many processes that commit for so long, all at once."""
    with ExitStack() as stack:
        _turn_of(kind, place, 0, stack)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    answers: Any = context.Queue()
    children = [
        context.Process(target=_commit_for, args=(kind, place, number, seconds, start, answers))
        for number in range(processes)
    ]
    for child in children:
        child.start()
    latencies: Sequence[list[float]] = [answers.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    return list(latencies)


def _commit_for(
    kind: str, place: Path, number: int, seconds: float, start: Barrier, answers: Any
) -> None:
    with ExitStack() as stack:
        turn = _turn_of(kind, place, number, stack)
        turn()
        start.wait()
        latencies: list[float] = []
        begin = time.perf_counter()
        end = begin + seconds
        while begin < end:
            turn()
            now = time.perf_counter()
            latencies.append(now - begin)
            begin = now
        answers.put(latencies)


def _turn_of(kind: str, place: Path, number: int, stack: ExitStack) -> Callable[[], object]:
    """Returns one process's commit: to a scope of its own, or in a bare loop with a lock."""
    place.mkdir(parents=True, exist_ok=True)
    if kind == "bare file":
        return bare.locked_file(place / "file", stack)
    if kind == "bare apsw":
        return bare.shared_database(place / "db", stack)
    hf = stack.enter_context(ours.open_store(kind, place))
    return ours.turns(hf.conversation(f"c{number}"), checkpoints=False)
