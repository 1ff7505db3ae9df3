"""Processes started from one whose threads are in commits. Run as a program by `test_forks`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import Any

import holdfast

WRITERS, ROUNDS = 3, 5


def child(url: str, number: int, is_open: Any, go_on: Any) -> None:
    """Opens the store anew, as the error of an inherited handle says, and uses all of it."""
    with holdfast.open(url) as hf:
        scope = hf.team(f"child{number}")
        for value in range(ROUNDS):
            scope.set("a", value)
        hf.query(scope=scope.name)
        hf.search.sql("SELECT 1")
        is_open.set()
        go_on.wait()  # meanwhile the parent may close its own handle
        for value in range(ROUNDS, 2 * ROUNDS):
            scope.set("a", value)
    os._exit(0)


def main(url: str, method: str, children: int) -> None:
    context: Any = multiprocessing.get_context(method)
    hf = holdfast.open(url)
    hf.query()
    stop = threading.Event()
    acknowledged: dict[str, int] = {}

    def write(number: int) -> None:
        scope = hf.team(f"parent{number}")
        value = 0
        while not stop.is_set():
            value += 1
            scope.set("a", value)
            acknowledged[scope.name] = value
            if value % 7 == 0:
                hf.query(scope=scope.name, limit=1)

    threads = [
        threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    started: list[Any] = []
    for number in range(children):
        is_open, go_on = context.Event(), context.Event()
        process = context.Process(target=child, args=(url, number, is_open, go_on), daemon=True)
        process.start()
        started.append((process, is_open, go_on))
    for process, is_open, _ in started:
        while not is_open.wait(0.1):
            assert process.is_alive() or is_open.is_set(), f"a child ended: {process.exitcode}"
    stop.set()
    for thread in threads:
        thread.join()
    hf.close()
    for process, _, go_on in started:
        go_on.set()
        process.join()
        assert process.exitcode == 0, process.exitcode
    with holdfast.open(url) as again:
        for number in range(children):
            assert again.team(f"child{number}").get("a") == 2 * ROUNDS - 1
            assert again.team(f"child{number}").revision == 2 * ROUNDS
        for name, value in acknowledged.items():
            assert again.scope(name).get("a") == value
        assert not again.check().findings


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
