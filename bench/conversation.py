"""(b) A conversation of 1,000 turns, beside savers that store the whole list at each turn.

Then, as `graph`, beside LangGraph as most use it: its engine, with and without the channel that
stores only what was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import counts, ours
from bench.compare import Field
from bench.harness import (
    Block,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    percentile,
    ratio_of_totals,
    scratch,
)
from bench.messages import SAID
from bench.peers import Local, Peer

SAVERS = {"SqliteSaver.put": ("SqliteSaver", 6), "AsyncSqliteSaver.aput": ("AsyncSqliteSaver", 13)}
"""The peers, and how many times as fast as each we mean to be."""
SIZES = (900, 1_000, 1_100)
STORED_MAX = 1.65
"""1.3 for the events, as ever, and a third of what is said for blocks of items (0071)."""
DRIFT_MAX = 1.05
FULL = "full on all sides: WAL with synchronous FULL, or a synced journal"
AT = (10, 100)
"""Turns at which a latency is taken in many short conversations, besides the last one."""
WINDOW = 10
"""A latency at a turn is that of the ten turns that end with it."""


def conversation(size: Size) -> Report:
    """A message and a named checkpoint a turn, in one commit; then what it takes on disk."""
    report = Report(
        f"(b) a conversation of {size.turns:,} turns of {SAID:,} bytes, named checkpoint at each",
        FULL,
    )
    names = [*(f"holdfast {kind}" for kind in ours.KINDS), *SAVERS]
    taken: dict[str, list[Block]] = {name: [] for name in names}
    stored: dict[str, int] = {}
    for number in range(size.conversations):
        with scratch() as place:
            doers = _doers(place)
            with closing(doers):
                more = _whole(doers, size)
                if number == size.conversations - 1:
                    reads = _reads(doers, size)
            for name, some in more.items():
                taken[name] += some
                stored[name] = ours.stored_bytes(place / name)
            for doer in doers:
                report.releases[doer.name] = doer.release
    early = _early(size)
    said = size.turns * SAID
    for name, blocks in taken.items():
        counted = _counted(name)
        row = {"what": name, "total_s": _total(blocks, size), **latency_row(blocks), **counted}
        report.rows.append({**row, "stored_per_said": round(stored[name] / said, 3)})
    for name, blocks in taken.items():
        found = _latencies(early[name], blocks, size)
        report.rows.append({"what": name, "doing": "latency", **found})
        report.series[name] = _series(blocks, size, size.conversations)
    _compare(report, taken, reads)
    _stored(report, size)
    _flat(report, size)
    return report


def _doers(place: Path) -> list[Local | Peer]:
    doers: list[Local | Peer] = []
    for kind in ours.KINDS:
        (place / f"holdfast {kind}").mkdir()
        path = place / f"holdfast {kind}" / "db"
        doers.append(Local(f"holdfast {kind}", ours.Worker(str(path), kind=kind)))
    for name, (worker, _) in SAVERS.items():
        (place / name).mkdir()
        doers.append(Peer(name, worker, place / name / "db"))
    return doers


def _whole(doers: Sequence[Local | Peer], size: Size) -> dict[str, list[Block]]:
    turning = [doer.doing("turn") for doer in doers]
    blocks = size.turns // size.operations
    return interleave(turning, blocks=blocks, operations=size.operations, warm_up=0)


def _early(size: Size) -> dict[str, list[list[float]]]:
    """Returns the latencies of many short conversations, turn by turn."""
    with scratch() as place:
        doers = _doers(place)
        found: dict[str, list[list[float]]] = {doer.name: [] for doer in doers}
        with closing(doers):
            for _ in range(size.short):
                interleave([doer.doing("begin") for doer in doers], blocks=1, operations=1,
                           warm_up=0)  # fmt: skip
                turning = [doer.doing("turn") for doer in doers]
                more = interleave(turning, blocks=AT[-1] // WINDOW, operations=WINDOW, warm_up=0)
                for name, blocks in more.items():
                    found[name].append([each for block in blocks for each in block.latencies])
    return found


def _latencies(
    early: Sequence[Sequence[float]], blocks: Sequence[Block], size: Size
) -> dict[str, object]:
    """Returns p50 and p99 at turns 10 and 100, and at the last turn of whole conversations."""
    row: dict[str, object] = {}
    at = {turn: [each for one in early for each in one[turn - WINDOW : turn]] for turn in AT}
    per_conversation = len(blocks) // size.conversations
    lasts = [block for number, block in enumerate(blocks, 1) if number % per_conversation == 0]
    at[size.turns] = [latency for block in lasts for latency in block.latencies]
    for turn, latencies in at.items():
        row[f"turn_{turn}_p50_ms"] = round(percentile(latencies, 0.5) * 1e3, 3)
        row[f"turn_{turn}_p99_ms"] = round(percentile(latencies, 0.99) * 1e3, 3)
    return row


def _series(blocks: Sequence[Block], size: Size, conversations: int) -> list[tuple[int, float]]:
    """Returns the median milliseconds of a turn, block by block, all conversations together."""
    per_conversation = len(blocks) // conversations
    found: list[tuple[int, float]] = []
    for at in range(per_conversation):
        latencies = [each for block in blocks[at::per_conversation] for each in block.latencies]
        found.append(((at + 1) * size.operations, round(percentile(latencies, 0.5) * 1e3, 4)))
    return found


def _total(blocks: Sequence[Block], size: Size) -> float:
    return round(sum(block.seconds for block in blocks) / size.conversations, 3)


def _counted(name: str) -> dict[str, object]:
    with scratch() as place:
        own = name.startswith("holdfast ")
        worker = "holdfast" if own else SAVERS[name][0]
        options = {"kind": name.removeprefix("holdfast ")} if own else {}
        found = counts.count_worker(worker, place / "counted", "turn", operations=30, **options)
    return {} if found is None else {"syncs": found.syncs}


def _reads(doers: Sequence[Local | Peer], size: Size) -> dict[str, dict[str, list[Block]]]:
    """Returns what it takes to read whole states, as plain lists and dicts."""
    blocks = 5 if size.quick else 30
    return {
        operation: interleave(
            [doer.doing(operation) for doer in doers], blocks=blocks, operations=2, warm_up=1
        )
        for operation in ("newest", "newest, opened afresh", "middle, opened afresh")
    }


def _compare(
    report: Report, taken: dict[str, list[Block]], reads: dict[str, dict[str, list[Block]]]
) -> None:
    for doing, read in reads.items():
        for name, blocks in read.items():
            row = {"what": name, "doing": f"{doing}, whole state", **latency_row(blocks)}
            report.rows.append(row)
    for name, (_, limit) in SAVERS.items():
        for kind in ours.KINDS:
            found = ratio_of_totals(taken[name], taken[f"holdfast {kind}"])
            report.notes.append(f"{kind}: {found} times as fast as {name}, whole conversation")
            report.at_least(f"{kind}: times as fast as {name}", found.value, limit)
            report.speed("whole conversation", name, kind, found)
            for doing, read in reads.items():
                quotient = ratio_of_totals(read[name], read[f"holdfast {kind}"])
                report.speed(doing, name, kind, quotient)
    report.notes.append("the middle: the state at half of the turns, by its checkpoint")


def graph(size: Size) -> Report:
    """LangGraph's engine, one invocation a turn, with and without DeltaChannel (a beta)."""
    turns = size.turns
    report = Report(f"LangGraph graphs: {turns:,} turns of {SAID:,} bytes, durability sync", FULL)
    with scratch() as place:
        field = Field(report, place)
        field.add_peer("graph + SqliteSaver", "graph")
        field.add_peer("graph + SqliteSaver + DeltaChannel", "graph with DeltaChannel")
        field.add_peer("graph in memory", "graph in memory")
        without = ["bare prewritten file"]
        with field.closing():
            blocks = turns // size.operations
            taken = field.run("turn", blocks=blocks, operations=size.operations, counted=True,
                              growing=True, without=without)  # fmt: skip
            few = 5 if size.quick else 20
            field.run("newest", blocks=few, operations=1, without=without)
            field.run("newest, opened afresh", blocks=few, operations=1,
                      without=[*without, "graph in memory"])  # fmt: skip
        for name, done in taken.items():
            total = round(sum(block.seconds for block in done), 3)
            said = ours.stored_bytes(place / name) / (turns * SAID)
            row = {"doing": "whole conversation", "what": name, "total_s": total}
            report.rows.append({**row, "stored_per_said": round(said, 2)})
            report.series[name] = _series(done, size, 1)
    report.notes.append(
        "graph in memory stores nothing: what it takes is the engine, which holdfast has none of"
    )
    field.faster("turn", "graph + SqliteSaver", 65)
    field.faster("turn", "graph + SqliteSaver + DeltaChannel", 35)
    return report


def _stored(report: Report, size: Size) -> None:
    """Adds bytes stored per byte said, after close, for messages of several sizes."""
    for kind in ours.KINDS:
        for said in SIZES:
            with scratch() as place:
                ours.build_conversation(kind, place, length=size.turns, size=said)
                kept = ours.stored_bytes(place) / (size.turns * said)
            report.rows.append(
                {"what": f"holdfast {kind}, {said} bytes", "stored_per_said": round(kept, 3)}
            )
            report.at_most(f"{kind}: bytes stored per byte said, {said}", kept, STORED_MAX)


def _flat(report: Report, size: Size) -> None:
    """Adds system calls and bytes of a turn, early and late in a conversation."""
    for kind in ours.KINDS:
        found: list[counts.Counts] = []
        for length in (10, size.turns, size.long):
            with scratch() as place:
                ours.build_conversation(kind, place / "store", length=length)
                counted = counts.count(f"holdfast {kind}", place / "store", operations=40)
            found.append(counted)
            report.rows.append({"what": f"holdfast {kind}, turn {length:,}", **counted.row()})
        report.at_most(f"{kind}: calls late / early", _spread([c.calls for c in found]), DRIFT_MAX)
        report.at_most(f"{kind}: bytes late / early", _spread([c.bytes for c in found]), DRIFT_MAX)


def _spread(values: list[float]) -> float:
    return max(values) / max(1, min(values))
