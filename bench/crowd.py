"""One process of several that write to one database at once; told to begin by a line on stdin.

    python -m bench.crowd holdfast|bare URL NUMBER SECONDS

It says `ready`, waits, writes for so long, and answers with what it did: a JSON list with a line of
history for each operation (decision 0004), or null where a bare loop did it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from itertools import count
from typing import Any

from bench.harness import ROOT
from bench.messages import SAID, messages

PROCESSES = 8
STREAMS = 64
PATIENCE_S = 120


def together(kind: str, url: str, round_: int, seconds: float) -> list[list[Any]]:
    """Returns what each of eight processes did that wrote for so long, all at once."""
    numbers = range(round_ * PROCESSES, (round_ + 1) * PROCESSES)
    words = [sys.executable, "-m", "bench.crowd", kind, url]
    children = [
        subprocess.Popen(
            [*words, str(number), str(seconds)],
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


def _bare(url: str, number: int, seconds: float) -> list[Any]:
    import psycopg

    chance, said, done = random.Random(number), messages(), 0
    with psycopg.connect(url, autocommit=True) as line:
        until = _begin(seconds)
        while time.monotonic() < until:
            text = json.dumps(next(said), separators=(",", ":"))
            values = (f"c{chance.randrange(STREAMS)}", text)
            line.execute("INSERT INTO bare (stream, payload) VALUES (%s, %s)", values)
            done += 1
    return [None] * done


def _holdfast(url: str, number: int, seconds: float) -> list[Any]:
    import holdfast

    chance, said = random.Random(number), messages(SAID - 20)
    lines: list[dict[str, Any]] = []
    values = count(number * 1_000_000)
    with holdfast.open(url) as store:
        for stream in range(STREAMS):
            _ = store.conversation(f"c{stream}").state  # a process that has been at it for a while
        until = _begin(seconds)
        while time.monotonic() < until:
            stream, value = f"c{chance.randrange(STREAMS)}", next(values)
            start = time.monotonic_ns()
            chat = store.conversation(stream)
            revision = chat.append("values", {"id": value, **next(said)})
            end = time.monotonic_ns()
            line = {"client": number, "op": "append", "stream": stream, "value": value}
            lines.append({**line, "start": start, "end": end, "ok": True, "revision": revision})
    return lines


def _begin(seconds: float) -> float:
    """Waits for the word; returns until when to go on."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.monotonic() + seconds


def main() -> None:
    kind, url, number, seconds = sys.argv[1:]
    work = _bare if kind == "bare" else _holdfast
    print(json.dumps(work(url, int(number), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
