"""Concurrency and event stores: optimistic writes, retries, replay, time travel.

Simple file-based stores are known to lose data or to break in these cases.
"""

import json
import multiprocessing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ConflictError, Event, Store


def test_boot_75_76_an_optimistic_write_succeeds_only_on_a_match_also_for_a_first_key(
    hf: Store,
) -> None:
    box = hf.team("box")
    assert box.get("key") is None
    assert box.set("key", "a", expected=0) == 1  # also for a key that is new
    assert (box.get("key"), box.revision) == ("a", 1)
    assert box.set("key", "b", expected=1) == 2
    with pytest.raises(ConflictError):
        box.set("key", "c", expected=1)
    assert box.get("key") == "b"


def test_boot_77_a_write_with_retry_gives_up_when_exhausted(hf: Store) -> None:
    box = hf.team("box")
    box.set("n", 0)
    calls = 0

    def always_late(draft: Any) -> None:
        nonlocal calls
        calls += 1
        draft["n"] += 1
        box.increment("n", 100)

    with pytest.raises(ConflictError):
        box.edit(always_late, retries=3)
    assert calls == 4
    assert box.get("n") == 400


def test_boot_72_an_error_in_the_body_writes_nothing(hf: Store) -> None:
    box = hf.team("box")
    with pytest.raises(ZeroDivisionError), box.edit() as draft:
        draft["n"] = 1 / 0
    assert box.revision == 0


def test_boot_79_replay_by_type_and_projection_as_a_fold(hf: Store) -> None:
    log = hf.workflow("tasks")
    log.append("log", {"task": "t1", "status": "open"})
    log.append("log", {"task": "t1", "status": "in_progress"})
    log.checkpoint("half way")
    log.append("log", {"task": "t1", "status": "completed", "result": 42})

    def project(tasks: dict[str, Any], event: Event) -> dict[str, Any]:
        for _op, _path, item in event.data:
            task = tasks.setdefault(item["task"], {})
            task[item["status"]] = event.time
            task["status"] = item["status"]
            if "result" in item:
                task["result"] = item["result"]
        return tasks

    tasks = reduce(project, log.history(type="changed"), {})
    assert tasks["t1"]["status"] == "completed"
    assert tasks["t1"]["result"] == 42
    assert tasks["t1"]["open"] <= tasks["t1"]["in_progress"] <= tasks["t1"]["completed"]
    assert [event.checkpoint for event in log.history(type="checkpointed")] == ["half way"]


def test_boot_81_what_changed_between_session_3_and_session_5(hf: Store) -> None:
    notes = hf.team("notes")
    for session in range(1, 7):
        notes.set(f"session {session}", True)
        notes.set("last", session, checkpoint=f"end of session {session}")
    changes = notes.diff("end of session 3", "end of session 5")
    assert {change.path for change in changes} == {("session 4",), ("session 5",), ("last",)}


def test_boot_47_history_does_not_change(hf: Store) -> None:
    notes = hf.team("notes")
    notes.set("a", 1)
    before = [(event.revision, event.link, event.data) for event in notes.history()]
    notes.set("a", 2)
    notes.restore(1)
    after = [(event.revision, event.link, event.data) for event in notes.history()]
    assert after[: len(before)] == before


def test_boot_69_everything_knows_when_it_was_updated(hf: Store) -> None:
    notes = hf.team("notes")
    assert notes.life.updated_at is None
    notes.set("a", 1)
    assert notes.life.updated_at is not None
    assert datetime.now(UTC) - notes.life.updated_at < timedelta(minutes=5)
    first = notes.life.updated_at
    hf.team("later").set("a", 1)
    older = [s.name for s in hf.scopes() if s.life.updated_at and s.life.updated_at <= first]
    assert older == ["team/notes"]


def _decide(url: str, worker: int) -> None:
    with holdfast.open(url) as hf:
        for n in range(50):
            hf.team("decisions").append("log", {"worker": worker, "n": n})


def test_boot_80_four_processes_keep_200_of_200(
    reopen: Callable[[], Store], tmp_path: Path
) -> None:
    """The text's own decision log, used by four processes, kept 56 of 200."""
    hf = reopen()
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_decide, args=(hf.url, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    kept = {(item["worker"], item["n"]) for item in hf.team("decisions").state["log"]}
    assert kept == {(worker, n) for worker in range(4) for n in range(50)}
    assert hf.check().ok


def test_boot_28_30_78_the_log_is_text_that_needs_no_tool(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store", actor="ada") as hf:
        for n in range(10):
            hf.team("t").append("log", f"entry {n}")
    lines = (tmp_path / "store/log/0000000000000000.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["n"] for entry in entries] == list(range(1, 11))
    assert {entry["by"] for entry in entries} == {"ada"}
    assert "entry 7" in lines[7]
