"""(b) A conversation of 1,000 turns, beside a saver that stores the whole list at each turn."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from bench import counts, ours
from bench.harness import (
    Block,
    Contender,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    ratio_of_totals,
    scratch,
)
from bench.messages import SAID
from bench.peers import Peer

SAVERS = {"SqliteSaver.put": ("SqliteSaver", 6), "AsyncSqliteSaver.aput": ("AsyncSqliteSaver", 13)}
"""The peers, and how many times as fast as each we mean to be."""
SIZES = (900, 1_000, 1_100)
STORED_MAX = 1.3
DRIFT_MAX = 1.05


def conversation(size: Size) -> Report:
    """A message and a named checkpoint a turn, in one commit; then what it takes on disk."""
    report = Report(
        f"(b) a conversation of {size.turns:,} turns of {SAID:,} bytes, named checkpoint at each",
        "full on all sides: WAL with synchronous FULL, or a synced journal",
    )
    names = [*(f"holdfast {kind}" for kind in ours.KINDS), *SAVERS]
    taken: dict[str, list[Block]] = {name: [] for name in names}
    stored: dict[str, int] = {}
    for _ in range(size.conversations):
        with scratch() as place:
            contenders = _contenders(place)
            with closing(contenders):
                blocks = size.turns // size.operations
                more = interleave(contenders, blocks=blocks, operations=size.operations, warm_up=0)
            for name, some in more.items():
                taken[name] += some
                stored[name] = ours.stored_bytes(place / name)
    said = size.turns * SAID
    for name, blocks_taken in taken.items():
        report.rows.append(_row(name, blocks_taken, stored[name] / said, size))
    for name, (_, limit) in SAVERS.items():
        for kind in ours.KINDS:
            found = ratio_of_totals(taken[name], taken[f"holdfast {kind}"])
            report.notes.append(f"{kind}: {found} times as fast as {name}, whole conversation")
            report.at_least(f"{kind}: times as fast as {name}", found.value, limit)
    _stored(report, size)
    _flat(report, size)
    return report


def _contenders(place: Path) -> list[Contender]:
    contenders: list[Contender] = [
        ours.turn_loop(kind, place / f"holdfast {kind}") for kind in ours.KINDS
    ]
    for name, (peer, _) in SAVERS.items():
        (place / name).mkdir()
        contenders.append(Peer(name, peer, place / name / "db", size=SAID))
    return contenders


def _row(name: str, blocks: list[Block], stored: float, size: Size) -> dict[str, object]:
    per_conversation = len(blocks) // size.conversations
    firsts = [block for at, block in enumerate(blocks) if at % per_conversation == 0]
    lasts = [block for at, block in enumerate(blocks, 1) if at % per_conversation == 0]
    return {
        "what": name,
        "total_s": round(sum(block.seconds for block in blocks) / size.conversations, 3),
        **latency_row(blocks),
        "first_20_ms": round(_middle_ms(firsts), 3),
        "last_20_ms": round(_middle_ms(lasts), 3),
        "stored_per_said": round(stored, 3),
    }


def _middle_ms(blocks: list[Block]) -> float:
    return median(latency for block in blocks for latency in block.latencies) * 1e3


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
