"""Calls of a store when no descriptor is left. Prints each call, and what became of it.

Run in a process of its own, whose limit is low and used up.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

import holdfast
from holdfast.backends.protocol import START

LIMIT = 64


def main(url: str, place: str) -> None:
    store = holdfast.open(url)
    red = store.team("red")
    red.set("a", 1)
    calls: dict[str, Callable[[], object]] = {
        "set": lambda: red.set("b", 2),
        "large": lambda: red.set("c", "x" * 100_000),
        "get": lambda: red.get("a"),
        "another": lambda: store.team("new").get("a"),
        "history": lambda: list(red.history()),
        "at": lambda: red.at(1),
        "checkpoint": lambda: red.checkpoint("x"),
        "fork": lambda: red.fork("z"),
        "lease": lambda: store.workers.lease("l"),
        "keep": lambda: store.workers.lease("m", keep=True),
        "workers": store.workers.list,
        "status": store.status,
        "check": store.check,
        "scopes": lambda: list(store.scopes()),
        "events": lambda: list(store.follow(as_events=True, after=START, timeout_s=0)),
        "group": lambda: store.workers.group("g").take(1),
        "groups": store.workers.groups,
        "say": lambda: red.say("hello"),
        "task": lambda: red.tasks.add("t"),
        "recall": red.decisions.recall,
        "sessions": store.sessions.list,
        "recover": store.recover,
        "runs": store.runs.list,
        "marks": lambda: store.workers.marks("i"),
        "claim": lambda: store.workers.claim("i"),
        "open files": lambda: holdfast.open(f"{place}/other"),
        "open sqlite": lambda: holdfast.open(f"sqlite:{place}/other.db"),
        "open redis": lambda: holdfast.open("redis://localhost:1"),
        "open postgresql": lambda: holdfast.open("postgresql://localhost:1/x"),
        "open unknown": lambda: holdfast.open("unknown://x"),
        "close": store.close,
    }
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        pass
    for name, call in calls.items():
        try:
            call()
            told = "done"
        except holdfast.HoldfastError as error:
            told = f"{type(error).__name__}: {error}"
        except BaseException as error:
            told = f"BARE {error!r}"
        os.write(1, f"{name}: {told}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
