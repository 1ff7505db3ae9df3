"""One process of several that write to one database at once; told to begin by a line on stdin.

    python -m bench.crowd KIND URL NUMBER SECONDS ROWS

    apart      holdfast: eight threads, each on a stream of its own
    contended  holdfast: one thread that appends to all streams at random, as the others do
    bare       psycopg: one connection that inserts so many ROWS in one statement and transaction

It says `ready`, waits, writes for so long, and answers with a JSON object: how many `rows` in how
many `transactions`, and the `history` of holdfast's operations (decision 0004).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from itertools import count
from threading import Thread
from typing import Any

from bench.harness import ROOT
from bench.messages import SAID, messages

PROCESSES = 8
THREADS = 8
STREAMS = PROCESSES * THREADS
PATIENCE_S = 120


def together(
    kind: str, url: str, round_: int, seconds: float, rows: int = 1
) -> list[dict[str, Any]]:
    """Returns what each of eight processes did that wrote for so long, all at once."""
    numbers = range(round_ * PROCESSES, (round_ + 1) * PROCESSES)
    words = [sys.executable, "-m", "bench.crowd", kind, url]
    children = [
        subprocess.Popen(
            [*words, str(number), str(seconds), str(rows)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in numbers
    ]
    try:
        for child in children:
            assert child.stdout
            if child.stdout.readline() != "ready\n":
                raise RuntimeError("a process of the benchmark could not begin")
        for child in children:
            assert child.stdin
            child.stdin.write("go\n")
            child.stdin.flush()
        return [json.loads(child.communicate(timeout=PATIENCE_S)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def _bare(url: str, number: int, seconds: float, rows: int) -> dict[str, Any]:
    import psycopg

    chance, said, done = random.Random(number), messages(), 0
    places = ", ".join(["(%s, %s)"] * rows)
    statement: Any = f"INSERT INTO bare (stream, payload) VALUES {places}"
    with psycopg.connect(url, autocommit=True) as line:
        until = _begin(seconds)
        while time.monotonic() < until:
            values: list[str] = []
            for _ in range(rows):
                text = json.dumps(next(said), separators=(",", ":"))
                values += [f"c{chance.randrange(STREAMS)}", text]
            line.execute(statement, values)
            done += 1
    return {"rows": done * rows, "transactions": done, "history": []}


def _holdfast(url: str, number: int, seconds: float, *, threads: int) -> dict[str, Any]:
    """Appends with one thread to every stream, or with eight to one stream each."""
    import holdfast

    lines: list[dict[str, Any]] = []
    batches = 0
    with holdfast.open(url) as store:
        backend: Any = store._log._backend
        sound = backend.commit

        def commit(commits: Any) -> Any:
            nonlocal batches
            batches += 1
            return sound(commits)

        backend.commit = commit
        first = number % PROCESSES * THREADS
        own = range(STREAMS) if threads == 1 else range(first, first + THREADS)
        for stream in own:
            _ = store.conversation(f"c{stream}").state  # a process that has been at it for a while
        messages(SAID - 20)  # made before the time begins, and kept
        until = _begin(seconds)

        def write(thread: int) -> None:
            chance, said = random.Random(f"{number} {thread}"), messages(SAID - 20)
            client = number * THREADS + thread
            values = count(client * 1_000_000)
            while time.monotonic() < until:
                stream = f"c{chance.choice(own) if threads == 1 else own[thread]}"
                value, start = next(values), time.monotonic_ns()
                chat = store.conversation(stream)
                revision = chat.append("values", {"id": value, **next(said)})
                end = time.monotonic_ns()
                line = {"client": client, "op": "append", "stream": stream, "value": value}
                lines.append({**line, "start": start, "end": end, "ok": True, "revision": revision})

        running = [Thread(target=write, args=(thread,)) for thread in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join()
    return {"rows": len(lines), "transactions": batches, "history": lines}


def _begin(seconds: float) -> float:
    """Waits for the word; returns until when to go on."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.monotonic() + seconds


def main() -> None:
    kind, url, number, seconds, rows = sys.argv[1:]
    if kind == "bare":
        said = _bare(url, int(number), float(seconds), int(rows))
    else:
        threads = THREADS if kind == "apart" else 1
        said = _holdfast(url, int(number), float(seconds), threads=threads)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
