"""Workers do what they are told, in their own process or in this one, and can be counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench import bare, machine, ours
from bench.compare import Field
from bench.harness import Block, Report, forget_made, made
from bench.instructions import total
from bench.peers import Local, Peer
from bench.workers import WORKERS, block, make
from bench.writing import AsyncWriters


class Counting:
    """A worker whose operations only count."""

    release = "counting 1"

    def __init__(self) -> None:
        self.done: list[str] = []
        self.runner = asyncio.Runner()
        self.operations: Any = {
            "plain": lambda: self.done.append("plain"),
            "awaited": self.awaited,
            "together": [self.awaited, self.awaited, self.awaited],
        }

    async def awaited(self) -> None:
        await asyncio.sleep(0)
        self.done.append("awaited")

    def close(self) -> None:
        self.runner.close()


@pytest.mark.parametrize(("name", "times"), [("plain", 1), ("awaited", 1), ("together", 3)])
def test_a_block_does_an_operation_so_many_times_and_times_each(name: str, times: int):
    worker = Counting()
    seconds, latencies = block(worker, name, 5)
    worker.close()
    assert len(worker.done) == len(latencies) == 5 * times
    assert seconds > 0


@pytest.mark.parametrize("kind", ours.KINDS)
def test_holdfast_does_what_every_peer_does(kind: str, tmp_path: Path):
    worker = ours.Worker(str(tmp_path / "store"), kind=kind)
    block(worker, "turn", 40)
    for name in ("newest", "all", "last 20", "newest, opened afresh", "all, opened afresh",
                 "middle, opened afresh", "last message, opened afresh"):  # fmt: skip
        block(worker, name, 2)
    block(worker, "begin", 1)
    block(worker, "turn", 2)
    block(worker, "newest", 1)
    block(worker, "set", ours.KEYS)
    block(worker, "get", 20)
    worker.close()


@pytest.mark.parametrize("kind", ours.KINDS)
def test_several_messages_of_holdfast_are_one_commit(kind: str, tmp_path: Path):
    worker = ours.Worker(str(tmp_path / "store"), kind=kind, items=2)
    block(worker, "append", 10)
    block(worker, "all", 1)
    worker.close()
    with ours.open_store(kind, tmp_path / "store") as hf:
        chat = hf.conversation("c1")
        assert (chat.revision, len(chat.state["messages"])) == (10, 20)


def test_the_bare_loops_do_it_too(tmp_path: Path):
    table = make("bare", str(tmp_path / "db"), kind="apsw", items=2)
    block(table, "append", 15)
    for name in ("last 20", "all", "newest", "all, opened afresh"):
        block(table, name, 1)
    block(table, "set", ours.KEYS)
    block(table, "get", 10)
    table.close()
    file = make("bare", str(tmp_path / "file"), kind="file", items=2)
    block(file, "append", 3)
    file.close()
    written = (tmp_path / "file").read_bytes()
    assert len(written) == bare.PREWRITTEN_BYTES
    assert written.count(b"\n") == 6


def test_a_worker_in_a_process_of_its_own_answers_line_by_line(tmp_path: Path):
    peer = Peer("bare", "bare", tmp_path / "db", kind="apsw")
    taken = peer.doing("append").block(3)
    assert "SQLite" in peer.release
    peer.close()
    peer.close()
    assert len(taken.latencies) == 3


def test_a_worker_that_ends_is_noticed(tmp_path: Path):
    peer = Peer("bare", "bare", tmp_path / "db", kind="apsw")
    with pytest.raises(RuntimeError, match="the worker ended"):
        peer.block("no such operation", 1)
    peer.close()


def test_every_worker_has_a_module():
    for name, target in WORKERS.items():
        path = Path(__file__).parents[2] / f"{target.partition(':')[0].replace('.', '/')}.py"
        assert path.is_file(), name


def test_a_comparison_says_how_many_times_as_fast(tmp_path: Path):
    report = Report("a comparison", "full")
    field = Field(report, tmp_path)
    with field.closing():
        taken = field.run("append", blocks=3, operations=2, without=["bare prewritten file"])
        field.faster("append", "bare apsw", 0.001)
    assert {name: len(blocks) for name, blocks in taken.items()} == {
        "holdfast files": 3,
        "holdfast sqlite": 3,
        "bare apsw": 3,
    }
    assert [row["what"] for row in report.rows] == list(taken)
    assert {(speed.what, speed.kind) for speed in report.speeds} == {
        ("bare apsw", "files"),
        ("bare apsw", "sqlite"),
    }
    assert [bar.kept for bar in report.bars] == [True, True]


def test_a_local_worker_is_a_contender_of_each_of_its_operations():
    worker = Counting()
    local = Local("counting", worker)
    assert isinstance(local.doing("plain").block(2), Block)
    local.close()
    assert worker.done == ["plain", "plain"]


@pytest.mark.parametrize("kind", ours.KINDS)
def test_as_many_writers_as_are_asked_for(kind: str, tmp_path: Path):
    writers = AsyncWriters(kind, tmp_path / "store", writers=3)
    assert len(writers.block(2).latencies) == 6
    writers.close()
    with ours.open_store(kind, tmp_path / "store") as hf:
        assert sorted(scope.revision for scope in hf.scopes()) == [2, 2, 2]


def test_a_bare_group_commits_for_as_many_writers(tmp_path: Path):
    group = bare.file_group(tmp_path / "file", writers=3)
    assert len(group.block(2).latencies) == 6
    group.close()


def test_callgrind_totals_are_found():
    assert total("events: Ir\nsummary: 0\ntotals: 6773029\n") == 6_773_029
    with pytest.raises(ValueError, match="no line of totals"):
        total("events: Ir\n")


def test_what_is_made_for_a_run_is_made_once():
    times: list[Path] = []
    try:
        assert made("once", times.append) == made("once", times.append) == times[0]
    finally:
        forget_made()
    assert len(times) == 1
    assert not times[0].exists()


def test_a_machine_is_described_without_its_places():
    found = machine.describe()
    assert found["processors"] >= 1
    assert found["memory_gib"] > 0
    assert found["versions"]["apsw"]
    assert "/" not in found["file_system"]


@pytest.mark.parametrize("kind", ours.KINDS)
def test_a_run_is_one_operation(kind: str, tmp_path: Path):
    worker = make("holdfast runs", str(tmp_path / "store"), steps=3, kind=kind)
    block(worker, "run", 2)
    worker.close()
    with ours.open_store(kind, tmp_path / "store") as store:
        assert [run.status for run in store.runs.list()] == ["completed", "completed"]
        steps = store.runs.get("run 0").journal.entries.values()
        assert [step.effect for step in steps] == ["effect"] * 3
