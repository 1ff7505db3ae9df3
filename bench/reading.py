"""(d) and (e): newest state, cold opening, verified folds, states of the past."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench import ours
from bench.harness import SEED, Report, Size, percentile, scratch, timed

NEWEST_US = {"files": 5, "sqlite": 10}
COLD_MS = 5
FOLD_S = {"files": 1.2, "sqlite": 0.6}
LARGER_MS = 100
PAST_MS = 20


def newest(size: Size) -> Report:
    """(d) How long until the newest state is there: warm, cold, folded, in a large store."""
    report = Report("(d) reads", "irrelevant: page cache warm, nothing written")
    for kind in ours.KINDS:
        for length in (1_000, size.long):
            with scratch() as place:
                ours.build_conversation(kind, place, length=length)
                if length == 1_000:
                    _warm(report, kind, place)
                _cold(report, kind, place, length)
                if length == size.long:
                    _folded(report, kind, place, length, size)
        _large(report, kind, size)
    return report


def _add(report: Report, what: str, kind: str, milliseconds: list[float]) -> float:
    middle = median(milliseconds)
    report.rows.append(
        {
            "what": what,
            "kind": kind,
            "p50_ms": round(middle, 5),
            "p99_ms": round(percentile(milliseconds, 0.99), 5),
            "times": len(milliseconds),
        }
    )
    return middle


def _repeat(action: Callable[[], object], times: int) -> list[float]:
    return [seconds * 1e3 for seconds in timed(action, times).latencies]


def _warm(report: Report, kind: str, place: Path) -> None:
    with ours.open_store(kind, place) as hf:
        chat = hf.conversation("c1")
        assert chat.state["messages"][-1]["role"] == "user"
        block = 1_000

        def states() -> None:
            for _ in range(block):
                _ = chat.state

        taken = [milliseconds / block for milliseconds in _repeat(states, 50)]
        middle = _add(report, "newest state in process", kind, taken)
    limit = NEWEST_US[kind]
    report.at_most(f"{kind}: newest state in process", middle * 1e3, limit, " us")


def _cold(report: Report, kind: str, place: Path, length: int) -> None:
    def open_and_read() -> None:
        hf = ours.open_store(kind, place)
        last = hf.conversation("c1").state["messages"][-1]
        taken.append((time.perf_counter() - begin[0]) * 1e3)
        assert last["role"] == "user"
        hf.close()
        begin[0] = time.perf_counter()

    taken: list[float] = []
    begin = [time.perf_counter()]
    for _ in range(21):
        open_and_read()
    middle = _add(report, f"open to last item, {length:,} turns", kind, taken[1:])
    report.at_most(f"{kind}: open to last item, {length:,} turns", middle, COLD_MS, " ms")


def _folded(report: Report, kind: str, place: Path, length: int, size: Size) -> None:
    taken: list[float] = []
    for _ in range(1 if size.quick else 3):
        ours.forget_snapshots(kind, place)
        with ours.open_store(kind, place) as hf:
            begin = time.perf_counter()
            state = hf.conversation("c1").state
            taken.append((time.perf_counter() - begin) * 1e3)
            assert len(state["messages"]) == length
    middle = _add(report, f"verified fold of {length:,} events", kind, taken)
    if not size.quick:
        report.at_most(f"{kind}: verified fold of {length:,}", middle / 1e3, FOLD_S[kind], " s")


def _large(report: Report, kind: str, size: Size) -> None:
    """Opens a large and a small store, reads one scope's newest state and its last 20 events."""
    found: list[float] = []
    for events in (1_000, size.store):
        place = ours.many_events(kind, events)

        def look(place: Path = place) -> None:
            with ours.open_store(kind, place) as hf:
                chat = hf.conversation("c7")
                assert chat.state["messages"][-1]
                last = list(chat.history(after=max(0, chat.revision - 20)))
                assert len(last) == 20

        what = f"open, newest state, last 20 events; store of {events:,}"
        found.append(_add(report, what, kind, _repeat(look, 11)[1:]))
    extra = found[1] - found[0]
    report.at_most(f"{kind}: store of {size.store:,} against 1,000", extra, LARGER_MS, " ms more")


def past(size: Size) -> Report:
    """(e) The state at random old revisions of a long stream, each in a store opened afresh."""
    report = Report(f"(e) states of the past, {size.long:,} commits", "irrelevant: reads only")
    for kind in ours.KINDS:
        with scratch() as place:
            ours.build_conversation(kind, place, length=size.long, size=200)
            _random_states(report, kind, place, size, what="growing list", scope="conversation/c1")
        with scratch() as place:
            ours.build_keys(kind, place, length=size.long, keys=1_000)
            _random_states(report, kind, place, size, what="1,000 keys", scope="workflow/w1")
    return report


def _random_states(
    report: Report, kind: str, place: Path, size: Size, *, what: str, scope: str
) -> None:
    chance = random.Random(SEED)
    taken: list[float] = []
    # A fresh store every few reads, so that one read does not pay for the next.
    for _ in range(4 if size.quick else 20):
        with ours.open_store(kind, place) as hf:
            name = hf.scope(scope)
            assert name.revision == size.long
            for _ in range(5):
                revision = chance.randint(1, size.long)
                begin = time.perf_counter()
                state = name.at(revision)
                if scope.startswith("conversation"):
                    assert len(state["messages"]) == revision
                    assert state["messages"][-1]["role"] == "user"
                else:
                    assert state[f"key {(revision - 1) % 1_000}"]["value"] == revision - 1
                taken.append((time.perf_counter() - begin) * 1e3)
    middle = _add(report, f"state at a random revision, {what}", kind, taken)
    report.at_most(f"{kind}: state at a random revision, {what}", middle, PAST_MS, " ms")
