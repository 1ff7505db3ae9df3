"""How soon a process on a server sees what another one committed, and what waiting costs."""

from __future__ import annotations

import multiprocessing
import random
import time
from typing import Any

import holdfast
from bench.harness import Report, Size, percentile
from tests.servers import postgresql as pg
from tests.servers import redis as rd
from tests.servers.proxy import Proxy

WORD = "team/followed"
IDLE_S = 5.0


def follow(size: Size) -> Report:
    """One process commits at random moments, another one follows; then nobody commits."""
    report = Report(
        "following across processes, the follower by TCP through a proxy that counts requests",
        "full on both servers",
    )
    for kind, running in (
        ("postgresql", pg.new_server(pg.NEWEST)),
        ("redis", rd.new_server(next(iter(rd.installations())))),
    ):
        try:
            with Proxy(running.port) as proxy:
                _measure(report, size, kind, running, proxy)
        finally:
            running.remove()
    return report


def _measure(report: Report, size: Size, kind: str, running: Any, proxy: Proxy) -> None:
    commits = 60 if size.quick else 1000
    holdfast.open(running.url()).close()
    through = running.tcp_url().replace(f":{running.port}", f":{proxy.port}")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=watch, args=(through, commits, answers))
    child.start()
    assert answers.get(timeout=120) == "ready"
    chance = random.Random(commits)
    with holdfast.open(running.url()) as store:
        committed: dict[int, float] = {}
        for n in range(commits):
            store.scope(WORD).set("n", n)
            committed[n] = time.monotonic()
            time.sleep(chance.uniform(0, 0.1))
    seen: dict[int, float] = answers.get(timeout=120)
    before, began = proxy.requests, time.monotonic()
    time.sleep(IDLE_S)
    asked = (proxy.requests - before) / (time.monotonic() - began)
    child.kill()
    child.join()
    took = [max(seen[n] - committed[n], 0.0) * 1000 for n in seen]
    median, p99 = percentile(took, 0.5), percentile(took, 0.99)
    report.rows.append(
        {
            "doing": f"{commits:,} commits seen by another process",
            "what": f"holdfast {kind}",
            "median_ms": round(median, 1),
            "p99_ms": round(p99, 1),
            "max_ms": round(max(took), 1),
            "idle_requests_per_s": round(asked, 1),
        }
    )
    report.at_most(f"{kind}: a commit seen elsewhere, median", median, 100, " ms")
    report.at_most(f"{kind}: a commit seen elsewhere, p99", p99, 1000, " ms")
    report.at_most(f"{kind}: requests a second of an idle follower", asked, 20)


def watch(url: str, commits: int, answers: Any) -> None:
    """Follows until it has seen so many commits, says when it saw each, and goes on waiting."""
    seen: dict[int, float] = {}
    with holdfast.open(url) as store:
        answers.put("ready")
        for change in store.follow(WORD, after=0):
            seen[change.new] = time.monotonic()
            if change.new == commits - 1:
                answers.put(seen)
