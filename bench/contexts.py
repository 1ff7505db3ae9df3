"""The context for a prompt: over a long conversation, and what an agent begins with.

A context asks the index for each word of the task, and reads what was found. It is measured against
the same questions and nothing else. A boot asks no index; the command is measured against a process
that loads the command line and opens the same store.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import holdfast
from bench.harness import Loop, Report, Size, closing, interleave, latency_row, made, ratio
from holdfast import Settings
from holdfast.context.message_selection import FOUND_MAX, words_of
from holdfast.testing import FakeClock

TASK = "find out why the invoice form rejects addresses"
TOPICS = ("the weather", "an invoice form", "addresses of customers", "nothing much", "a form")
STREAMS = 100
OPENED = """
import sys
import holdfast
from holdfast.cli.app import make_app
make_app()
holdfast.open(sys.argv[1], create=False).close()
"""
"""What every command does before its own work."""


def context(size: Size) -> Report:
    """A context against the bare questions; opening with a boot against opening alone."""
    report = Report(
        f"A context of 8,000 tokens over {size.long:,} messages; a boot of {size.store:,} events",
        "nothing is written: both sides read",
    )
    _over_messages(size, report)
    _boot(size, report)
    return report


def _over_messages(size: Size, report: Report) -> None:
    place = made("context-messages", lambda path: _fill_messages(path, size.long))
    with holdfast.open(place / "store", durability="none") as hf:
        chat = hf.conversation("long")
        hf.query(limit=1, timeout=3600)

        def ask() -> None:
            for word in words_of(TASK):
                hf.query(kind="message", scope=chat.name, text=word, limit=FOUND_MAX)

        found = hf.context(chat, task=TASK)
        assert len(found.messages) > 20, "nothing older was found"
        ours = Loop("holdfast context", lambda: hf.context(chat, task=TASK), lambda: None)
        bare = Loop("the same questions, bare", ask, lambda: None)
        _compare(size, report, ours, bare, f"context over {size.long:,} messages / bare questions")


def _boot(size: Size, report: Report) -> None:
    place = made("context-store", lambda path: _fill_store(path, size.store))

    store = str(place / "store")

    def run(*words: str) -> None:
        subprocess.run([sys.executable, *words], check=True, capture_output=True)

    boot = ("-m", "holdfast", "--store", store, "boot", "team/t1")
    ours = Loop("holdfast boot", lambda: run(*boot), lambda: None)
    bare = Loop("the command opens the store", lambda: run("-c", OPENED, store), lambda: None)
    _compare(size, report, ours, bare, f"boot on {size.store:,} events / start-up")


def _compare(size: Size, report: Report, ours: Loop, bare: Loop, what: str) -> None:
    with closing([ours, bare]):
        taken = interleave([ours, bare], blocks=min(size.blocks, 20), operations=2)
    for one in (ours, bare):
        report.rows.append({"what": one.name, **latency_row(taken[one.name])})
    report.at_most(what, ratio(taken[ours.name], taken[bare.name]).value, 2)


def _fill_messages(path: Path, count: int) -> None:
    with holdfast.open(path / "store", actor="ada", durability="none") as hf:
        _record(hf, hf.conversation("long"))
        messages = hf.conversation("long").messages
        for number in range(count // 2):
            asked = f"message {number} about {TOPICS[number % len(TOPICS)]}"
            answer = {"role": "assistant", "content": f"answer {number}"}
            messages.add_many([{"role": "user", "content": asked}, answer])


def _fill_store(path: Path, count: int) -> None:
    with holdfast.open(
        path / "store", durability="none", settings=Settings(clock=FakeClock())
    ) as hf:
        _record(hf, hf.team("t1"))
        said = [{"role": "user", "content": "a message"} for _ in range(1_000)]
        for number in range(max(count // 1_000, 1)):
            hf.conversation(f"c{number % STREAMS}").messages.add_many(said)


def _record(hf: Any, scope: Any) -> None:
    """What a project has besides: orders, decisions, tasks, facts."""
    for number in range(10):
        hf.global_().decide(f"order {number}", standing=True)
        scope.decide(f"open decision {number}", because="of a reason")
        scope.tasks.add(f"task {number}")
        scope.facts.state(f"fact{number}", number)
        scope.tasks.claim()
