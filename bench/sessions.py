"""Peers that keep sessions, events or keys: Google ADK, OpenAI Agents SDK, eventsourcing, AgentFS.

Each keeps its own defaults, and each of those defaults syncs every commit: the tables count it.
"""

from __future__ import annotations

import time

from bench import ours
from bench.compare import Field
from bench.harness import Block, Report, Size, closing, interleave, latency_row, ratio, scratch
from bench.messages import KEYS, SAID
from bench.peers import Peer

SYNCED = "full on all sides; each peer's own journal mode, syncs counted by strace"
FILE = "bare prewritten file"
REPLAY_TIMES = 4


def adk(size: Size) -> Report:
    """Google ADK's two session services on SQLite: append events, read the session."""
    report = Report(f"Google ADK: a session of {size.turns:,} events of {SAID:,} bytes", SYNCED)
    with scratch() as place:
        field = Field(report, place, own="holdfast messages")
        for service in ("SqliteSessionService", "DatabaseSessionService"):
            field.add_peer(f"ADK {service}", f"ADK {service}")
            field.add_peer(f"ADK {service}, WAL", f"ADK {service}", wal=True)
        with field.closing():
            blocks = size.turns // size.operations
            field.run("append", blocks=blocks, operations=size.operations, counted=True,
                      growing=True)  # fmt: skip
            _reads(field, size, slow=True)
    report.notes.append(
        "WAL: the database file was put into WAL beforehand; as they come, both services keep "
        "SQLite's rollback journal"
    )
    field.faster("append", "ADK DatabaseSessionService", 20)
    field.faster("append", "ADK SqliteSessionService", 12)
    field.faster("last 20", "ADK DatabaseSessionService", 50)
    return report


def agents(size: Size) -> Report:
    """OpenAI Agents SDK: append two items a turn, the last 20, all."""
    report = Report(
        f"OpenAI Agents SDK SQLiteSession: {size.turns:,} turns of two items of {SAID:,} bytes",
        SYNCED,
    )
    with scratch() as place:
        field = Field(report, place, items=2, own="holdfast messages")
        field.add_peer("OpenAI SQLiteSession", "OpenAI SQLiteSession")
        with field.closing():
            blocks = size.turns // size.operations
            field.run("append", blocks=blocks, operations=size.operations, counted=True,
                      growing=True)  # fmt: skip
            _reads(field, size)
        for doer in field.doers:
            stored = ours.stored_bytes(place / doer.name) / (size.turns * 2 * SAID)
            if doer.name != FILE:
                row = {"doing": "bytes stored per byte said", "what": doer.name}
                report.rows.append({**row, "stored_per_said": round(stored, 2)})
    report.notes.append(
        "both sync once a turn, so the disk sets the pace of both and a write gains little"
    )
    field.faster("append", "OpenAI SQLiteSession", 1.5)
    field.faster("last 20", "OpenAI SQLiteSession", 3)
    field.faster("all", "OpenAI SQLiteSession", 4)
    return report


def _reads(field: Field, size: Size, *, slow: bool = False) -> None:
    blocks = 5 if size.quick else 15
    few = 1 if slow else 5
    field.run("last 20", blocks=blocks, operations=few, without=[FILE])
    field.run("all", blocks=blocks, operations=few, without=[FILE])
    field.run("all, opened afresh", blocks=blocks, operations=few, without=[FILE])


def eventsourcing(size: Size) -> Report:
    """The eventsourcing library: save one event; replay a long history."""
    report = Report(f"eventsourcing on SQLite: events of {SAID:,} bytes", SYNCED)
    with scratch() as place:
        field = Field(report, place)
        field.add_peer("eventsourcing", "eventsourcing")
        with field.closing():
            field.run("append", blocks=size.blocks // 2, operations=size.operations, counted=True)
    field.report.notes.append(
        "both sync once an event, so the disk sets the pace of both and a write gains little"
    )
    _replay(report, size)
    return report


def _replay(report: Report, size: Size) -> None:
    """Adds the replay of a long history: ours verifies every link and every checksum."""
    doing = f"replay {size.long:,} events"
    times = 1 if size.quick else 3
    taken: dict[str, list[Block]] = {f"holdfast {kind}": [] for kind in ours.KINDS}
    with scratch() as place:
        peer = Peer("eventsourcing", "eventsourcing", place / "db")
        with closing([peer]):
            peer.block("fill", size.long // 1_000)
            for kind in ours.KINDS:
                ours.build_conversation(kind, place / kind, length=size.long)
            taken[peer.name] = []
            for _ in range(times):
                for kind in ours.KINDS:
                    ours.forget_snapshots(kind, place / kind)
                    with ours.open_store(kind, place / kind) as hf:
                        begin = time.perf_counter()
                        state = hf.conversation("c1").state
                        seconds = time.perf_counter() - begin
                        assert len(state["messages"]) == size.long
                    taken[f"holdfast {kind}"].append(Block(seconds, [seconds]))
                more = interleave([peer.doing("replay")], blocks=1, operations=1, warm_up=0)
                taken[peer.name] += more[peer.name]
    for name, blocks in taken.items():
        row = {"doing": doing, "what": name, **latency_row(blocks)}
        row["per_s"] = round(size.long / (sum(block.seconds for block in blocks) / times))
        for kind in ours.KINDS:
            if not name.startswith("holdfast"):
                found = ratio(blocks, taken[f"holdfast {kind}"])
                row[f"{kind}_times_as_fast"] = str(found)
                report.at_least(f"{kind}: replay rate / {name}'s", found.value, REPLAY_TIMES)
                report.speed(doing, name, kind, found)
        report.rows.append(row)
    report.notes.append("replay: per_s counts events; ours without snapshots, every link verified")


def agentfs(size: Size) -> Report:
    """AgentFS: a key-value pair set, and got."""
    report = Report(f"AgentFS key-value: {KEYS:,} keys, values of {SAID:,} bytes", SYNCED)
    with scratch() as place:
        field = Field(report, place)
        field.add_peer("AgentFS", "AgentFS")
        with field.closing():
            # Every key is there before one is got.
            blocks = max(size.blocks // 2, KEYS // size.operations)
            field.run("set", blocks=blocks, operations=size.operations, without=[FILE],
                      counted=True)  # fmt: skip
            field.run("get", blocks=size.blocks // 2, operations=100, without=[FILE])
    report.notes.append("holdfast keeps every value that a key had; AgentFS and the bare table one")
    field.faster("set", "AgentFS", 2.2)
    field.faster("get", "AgentFS", 17)
    return report
