"""Runs the benchmarks: python -m bench [--quick] [--only a,c]."""

from __future__ import annotations

import argparse
import os
import time

from bench import (
    contexts,
    conversation,
    files,
    following,
    guarding,
    harness,
    inside,
    instructions,
    projecting,
    projects,
    questions,
    reading,
    retaining,
    running,
    scaling,
    servers,
    sessions,
    talking,
    tasks,
    typed,
    viewing,
    writing,
)

BENCHMARKS = {
    "a": writing.one_writer,
    "b": conversation.conversation,
    "c": writing.many_writers,
    "d": reading.newest,
    "e": reading.past,
    "f": inside.wide_state,
    "g": inside.import_time,
    "h": writing.many_processes,
    "graph": conversation.graph,
    "messages": talking.said,
    "adk": sessions.adk,
    "agents": sessions.agents,
    "eventsourcing": sessions.eventsourcing,
    "agentfs": sessions.agentfs,
    "events": scaling.events,
    "streams": scaling.streams,
    "keys": scaling.keys,
    "writers": scaling.writers,
    "processes": scaling.processes,
    "instructions": instructions.instructions,
    "postgresql": servers.postgresql,
    "redis": servers.redis,
    "follow": following.follow,
    "runs": running.runs,
    "tasks": tasks.tasks,
    "projections": projecting.projections,
    "typed": typed.typed,
    "questions": questions.questions,
    "guarding": guarding.guarding,
    "views": viewing.views,
    "retention": retaining.retaining,
    "files": files.files,
    "context": contexts.context,
    "projects": projects.projects,
}
QUIET = 0.5
"""The load average up to which a machine counts as quiet."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--only", default="", help="letters of the benchmarks, such as a,c")
    arguments = parser.parse_args()
    chosen = [letter for letter in arguments.only.split(",") if letter] or list(BENCHMARKS)
    unknown = set(chosen) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    size = harness.Size(quick=arguments.quick)
    load = os.getloadavg()[0]
    if load > QUIET:
        print(f"load average {load:.1f}: other work is running, and times will show it")
    start = time.monotonic()
    reports: dict[str, harness.Report] = {}
    try:
        for name in chosen:
            began = time.monotonic()
            reports[name] = BENCHMARKS[name](size)
            reports[name].seconds = round(time.monotonic() - began, 1)
            harness.show(reports[name])
    finally:
        harness.forget_made()
        # Also when a benchmark failed or was stopped: what was measured before it took its time.
        if reports:
            harness.show_bars(reports, judged=not size.quick)
            path = harness.save(reports, size=size, seconds=time.monotonic() - start, load=load)
            print(f"\nwritten to {path.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    main()
