"""T1: processes killed with SIGKILL, by chance and at every call that changes the disk.

After a kill an outside reader, which imports nothing of holdfast, tells what is there; then a fresh
process opens the store, and both must agree: nothing acknowledged is lost, doubled, halved or out
of order, every state is the fold of its events, what was not answered can be sent again by its key,
the lease of the dead can be taken, and the store goes on.

`t1-files` and `t1-sqlite`: a point is one to three rounds on one store, each with a kill by chance.
`…-every`: a point is one call of one scene (creating, committing, recovering, …), which are
enumerated by a dry run; the same in every run, whatever the seed. `…-twice`: a pair of them, of a
recovery and of the recovery of that.

Faults that were planted and found (tests/crash/plants.py says what each does): early, forgetful,
no-takeover, no-lock, cuts-whole, replays-twice and lease-kept by chance on files; early, forgetful,
no-takeover, wal-removed, replays-twice and lease-kept on SQLite; halves, key-lost and in-place at
every call of both, cuts-whole of files, no-journal of SQLite; no-takeover and cuts-whole (SQLite:
wal-removed) twice.

strace, where it is installed, kills as well: tests/crash/test_strace.py.
"""

from __future__ import annotations

from functools import partial

from tests.crash.scenes import sites, sites_twice, try_site
from tests.crash.ways import try_some
from tests.torture.programme import Programme

PROMISE = "what was acknowledged survives SIGKILL, once; the store opens again"
BOTH = {"early": 30, "forgetful": 30, "no-takeover": 20, "replays-twice": 30, "lease-kept": 20}
EVERY = {"halves": 150, "key-lost": 180, "in-place": 80}
PLANTS = {
    "files": {**BOTH, "no-lock": 300, "cuts-whole": 30},
    "files-every": {**EVERY, "cuts-whole": 120},
    "files-twice": {"no-takeover": 5, "cuts-whole": 5},
    "sqlite": {**BOTH, "wal-removed": 30},
    "sqlite-every": {**EVERY, "no-journal": 120},
    "sqlite-twice": {"no-takeover": 5, "wal-removed": 5},
}


def _programmes(backend: str) -> tuple[Programme, ...]:
    every, twice = f"{backend}-every", f"{backend}-twice"
    return (
        Programme(
            f"t1-{backend}",
            PROMISE,
            partial(try_some, backend),
            share=70,
            points=5000,
            plants=PLANTS[backend],
        ),
        Programme(
            f"t1-{every}",
            PROMISE,
            partial(try_site, sites, backend),
            share=None,
            parts=2,
            plants=PLANTS[every],
        ),
        Programme(
            f"t1-{twice}",
            PROMISE,
            partial(try_site, sites_twice, backend),
            share=80,
            plants=PLANTS[twice],
        ),
    )


PROGRAMMES = _programmes("files") + _programmes("sqlite")
