"""What a program of agents costs beside the same loop of steps.

`python -m bench.programs [SESSIONS]` runs, in turns, a `.prose` program of scripted sessions
and a run in Python with as many `idempotent` steps, and resumes both from their last record, in
turns too. All is measured by the time of the processor, which other work on the machine disturbs
least. It prints the best of each and the ratios.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import holdfast
from holdfast.agents import Scripted
from holdfast.prose import gather_text, start

SESSIONS = 1000
ROUNDS = 5
RESUMES = 5


@holdfast.step(effect="idempotent")
def ask(ctx, prompt):
    return {"text": f"ok: {prompt}"}


@holdfast.run(name="bench:steps")
def steps(ctx, count):
    for number in ctx.repeat(count):
        ask(f"go {number}")


def seconds(run: Any) -> float:
    began = process_time()
    run().result()
    return process_time() - began


def resumed(store: Any, id: str) -> float:
    """Times the resume of a run that has everything but its end."""
    fork = store.runs.fork(id, store.runs.get(id).journal.revision - 1, effects="live")
    began = process_time()
    store.runs.resume(fork.id).result()
    return process_time() - began


def measure(url: str, count: int) -> tuple[float, float, float, float]:
    """Returns the seconds of both, and of resuming both."""
    program = gather_text(f'repeat {count} as i:\n  session "go {{i}}"\n')
    with holdfast.open(url) as store:
        store.runs.use_executor(Scripted({}))
        plain = seconds(lambda: store.runs.start(steps, count, id="plain"))
        prose = seconds(lambda: start(store, program, id="prose"))
        again = [(resumed(store, "plain"), resumed(store, "prose")) for _ in range(RESUMES)]
        return plain, prose, min(one[0] for one in again), min(one[1] for one in again)


def url_of(kind: str, place: Path) -> str:
    return {"memory": "memory:", "files": str(place)}.get(kind, f"sqlite:{place}.db")


def main(count: int) -> None:
    for kind in ("memory", "files", "sqlite"):
        with tempfile.TemporaryDirectory() as folder:
            places = [url_of(kind, Path(folder) / str(number)) for number in range(ROUNDS)]
            found = [measure(url, count) for url in places]
        plain, prose, again, prose_again = (min(one[n] for one in found) for n in range(4))
        print(
            f"{kind}: {count / prose:,.0f} sessions a second, {count / plain:,.0f} steps, "
            f"ratio {plain / prose:.2f}; resume {prose_again * 1000:.0f} ms, "
            f"{again * 1000:.0f} ms, ratio {prose_again / again:.2f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SESSIONS)
