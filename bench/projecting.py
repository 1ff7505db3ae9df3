"""Projections: a state that was kept, shown after the store is opened, beside a replay of it.

Tickets are opened, taken and closed, in one scope. Their projection is folded once from all events;
then the store is opened afresh, and what was kept is shown. Beside it all events are folded again.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import holdfast
from bench.harness import Report, Size, scratch

EVENTS = 99_000
TYPES = ("ticket_opened", "ticket_taken", "ticket_closed")
BATCH = 300


@holdfast.projection(name="bench-tickets")
class Tickets:
    def ticket_opened(self, tickets: Any, event: Any) -> None:
        tickets[event.data["id"]] = {"title": event.data["title"], "status": "open"}

    def ticket_taken(self, tickets: Any, event: Any) -> None:
        tickets[event.data["id"]]["status"] = "taken"

    def ticket_closed(self, tickets: Any, event: Any) -> None:
        tickets[event.data["id"]]["status"] = "closed"


def projections(size: Size) -> Report:
    """What was kept of a projection, after the store is opened, beside a replay of its events."""
    events = 3_000 if size.quick else EVENTS
    report = Report(
        f"a projection of {events:,} events to {events // 3:,} tickets, over the whole store",
        "nothing is written while it is measured",
    )
    with scratch() as place:
        for kind in ("files", "sqlite"):
            url = str(place / "store") if kind == "files" else f"sqlite:{place / 'store.db'}"
            _fill(url, events)
            replayed_s = _replayed(url)
            shown = [_shown(url, events) for _ in range(5 if size.quick else 15)]
            shown_s = median(shown)
            report.rows.append(
                {
                    "what": kind,
                    "opened to shown": f"{shown_s * 1e3:.1f} ms",
                    "folded anew": f"{replayed_s:.2f} s",
                    "an event": f"{replayed_s / events * 1e6:.0f} us",
                }
            )
            if not size.quick:
                report.at_most(f"{kind}: opened to shown, after {events:,} events",
                               shown_s * 1e3, 100, " ms")  # fmt: skip
            report.at_most(f"{kind}: opened to shown / folded anew", shown_s / replayed_s, 0.1)
    return report


def _fill(url: str, events: int) -> None:
    with holdfast.open(url) as store:
        desk = store.team("desk")
        for start in range(0, events, BATCH):
            with store.commit() as tx:
                recorder = tx.scope(desk)
                for number in range(start, min(start + BATCH, events)):
                    data = {"id": f"t{number // 3}", "title": "the printer is on fire"}
                    recorder.record(TYPES[number % 3], data, unchecked=True)


def _replayed(url: str) -> float:
    """Folds all events, for the first time; the fold is kept when the store is closed."""
    with holdfast.open(url) as store:
        began = time.perf_counter()
        assert store.projections.of(Tickets).state["t0"]["status"] == "closed"
        return time.perf_counter() - began


def _shown(url: str, events: int) -> float:
    began = time.perf_counter()
    with holdfast.open(url) as store:
        shown = store.projections.of(Tickets)
        assert shown.state[f"t{events // 3 - 1}"]["status"] == "closed"
        took = time.perf_counter() - began
        assert shown.events == events
        return took
