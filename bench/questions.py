"""Questions over a large store: how long one takes, against bare SQL, and what following costs.

It makes a store of a million events (a twentieth of them decisions, by ten actors over seventy
days), has the index made, and then measures in one run:

- the question of the guide (decisions by an actor of the last seven days about two words), warm;
- the same rows by bare SQL on the same tables, prepared and without anything of ours;
- pages of events by a type and by an actor that are rare;
- commits with nobody asking, against the same commits and the following of the index after them.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import apsw

import holdfast
from bench.harness import Report, Size, scratch
from holdfast import Settings
from holdfast.testing import FakeClock

ACTORS = ("architect", *(f"agent{number}" for number in range(9)))
DAY_S = 86_400.0


def fill(url: str, events: int) -> None:
    """Makes a store of so many events by the fast path: submitted commits, no sync."""
    for number, actor in enumerate(ACTORS):
        clock = FakeClock(start_us=1_750_000_000_000_000 + number, seed=number)
        with holdfast.open(
            url, actor=actor, durability="none", settings=Settings(clock=clock)
        ) as hf:
            chat = hf.conversation(f"c{number}")
            share = events // len(ACTORS)
            step_s = 70 * DAY_S / (share // 20)
            for at in range(share // 20):
                clock.advance(step_s)
                topic = "state management" if at % 3 == 0 else "the colour of buttons"
                chat.decide(f"decision {at}", because=f"of {topic}", key=f"d{at}")
                said = [{"role": "user", "content": f"message {at} about state"} for _ in range(9)]
                chat.messages.add_many(said)
                with hf.commit(waits=False) as tx:
                    for key in range(10):
                        tx.scope(chat).set(f"k{key}", at)
                for key in range(9):
                    with hf.commit(waits=False) as tx:
                        tx.scope(chat).set(f"k{key}", at)


def ask(hf: Any, clock: FakeClock) -> tuple[float, float, int]:
    """Returns the seconds of a question and of bare SQL, and how many rows both found."""
    asked: dict[str, Any] = {"kind": "decision", "actor": "architect", "since": "7d"}
    hits = hf.query(**asked, text="state management", limit=100)
    ours, bare = [], []
    connection: Any = apsw.Connection(hf.search.status().place)
    since = clock.now_us() - round(7 * DAY_S * 1e6)
    # The best that can be written by hand: bounds first, then the words between them.
    bounds = "SELECT min(n), max(n) FROM docs WHERE kind = 'decision' AND actor = ? AND time >= ?"
    statement = (
        "SELECT docs.* FROM docs WHERE kind = 'decision' AND actor = ? AND time >= ? AND n IN "
        "(SELECT rowid >> 20 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ?) "
        "ORDER BY time DESC LIMIT 101"
    )
    for _ in range(50):
        began = perf_counter()
        hits = hf.query(**asked, text="state management", limit=100)
        ours.append(perf_counter() - began)
        began = perf_counter()
        [(low, high)] = connection.execute(bounds, ("architect", since)).fetchall()
        values = ("architect", since, '"state" AND "management"', low << 20, (high + 1) << 20)
        rows = connection.execute(statement, values).fetchall()
        bare.append(perf_counter() - began)
    assert len(rows[:100]) == len(hits), (len(rows), len(hits))
    connection.close()
    return median(ours), median(bare), len(hits)


def commits(url: str, count: int) -> tuple[float, float]:
    """Returns the seconds of so many commits, and of following them."""
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        chat.set("k", 0)
        hf.query(limit=1)
        began = perf_counter()
        for number in range(count):
            chat.set(f"k{number % 100}", number)
        wrote = perf_counter() - began
        began = perf_counter()
        hf.query(limit=1)
        return wrote, perf_counter() - began


def questions(size: Size) -> Report:
    """A question over a large store, beside bare SQL; and what the following of the index costs."""
    events, writes = size.store, 2_000 if size.quick else 100_000
    report = Report(
        f"questions over {events:,} events", "files; decisions by an actor of a week about words"
    )
    with scratch() as place:
        url = str(place / "store")
        fill(url, events)
        clock = FakeClock(start_us=1_750_000_000_000_000 + round(70 * DAY_S * 1e6) + 100, seed=99)
        with holdfast.open(url, settings=Settings(clock=clock)) as hf:
            began = perf_counter()
            hf.query(limit=1, timeout=3600)
            _row(report, f"index made of {events:,} events", perf_counter() - began)
            ours, bare, found = ask(hf, clock)
            _row(report, f"the question, {found} found, warm", ours)
            _row(report, "bare SQL for the same rows", bare)
            _row(report, "the events of a type that there are none of", _page(hf, type="nothing"))
            _row(report, "the 50 newest events of an actor", _page(hf, actor="agent3", limit=50))
        wrote, followed = commits(str(place / "commits"), writes)
        _row(report, f"{writes:,} commits", wrote)
        _row(report, "following them", followed)
        report.at_most("100,000 commits: with the index / without", 1 + followed / wrote, 1.1)
        report.at_most("a question / bare SQL", ours / bare, 2 if not size.quick else 20)
        report.at_most("a question, warm", ours * 1e3, 20, " ms")
    return report


def _page(hf: Any, **asked: Any) -> float:
    """Returns the median seconds of a page of events, newest first."""
    took: list[float] = []
    for _ in range(5):
        began = perf_counter()
        hf.events(newest_first=True, **asked)
        took.append(perf_counter() - began)
    return median(took)


def _row(report: Report, what: str, seconds: float) -> None:
    shown = f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"
    report.rows.append({"what": what, "took": shown})
