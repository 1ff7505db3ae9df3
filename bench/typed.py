"""Typed state: what validation adds to a commit, and what a migration of every scope costs.

A commit of 1 KB with a schema takes turns with the same commit without one, on a files store whose
sync is left out, in a small state and in one of 100,000 keys. A migration of every scope is
compared with a verified fold of the same store (`check`), each after the store is opened afresh.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import holdfast
from bench.harness import Loop, Report, Size, closing, interleave, ratio, scratch

KEYS = 100_000
SCOPES = 400
EVENTS = 100


@holdfast.schema("conversation", version=1)
class Ticket(msgspec.Struct):
    stage: str = "open"
    text: str = ""
    notes: dict[str, str] = {}


@holdfast.schema("team", version=1)
class Old(msgspec.Struct):
    stage: str = "open"
    text: str = ""


@holdfast.schema("team", version=2)
class New(msgspec.Struct):
    stage: str = "open"
    text: str = ""
    mood: float | None = None


@holdfast.upgrade(New, 1)
def _add_mood(old: dict[str, Any]) -> dict[str, Any]:
    return old | {"mood": None}


def typed(size: Size) -> Report:
    """What validation adds to a commit of 1 KB, and what a migration of every scope costs."""
    report = Report("typed state", "one writer, files, no sync")
    with scratch() as place:
        for keys in (0, 2_000 if size.quick else KEYS):
            _validation(report, size, place / f"keys-{keys}", keys)
        _migration(report, size, place)
    return report


def _validation(report: Report, size: Size, place: Path, keys: int) -> None:
    """Sets a value of 1 KB below a mapping of so many keys, with a schema and without."""
    stores = {
        name: holdfast.open(str(place / name), durability="none", schemas=schemas)
        for name, schemas in (("typed", [Ticket]), ("plain", []))
    }
    loops: list[Loop] = []
    for name, store in stores.items():
        chat = store.conversation("c")
        chat.set("notes", {f"k{number}": "a note" for number in range(keys)})
        count = iter(range(1 << 30))

        def write(chat: Any = chat, count: Any = count) -> None:
            chat.set(f"notes.new{next(count) % 50}", "x" * 1024)

        loops.append(Loop(name, write, store.close))
    with closing(loops):
        blocks = interleave(loops, blocks=size.blocks, operations=size.operations)
    found = ratio(blocks["typed"], blocks["plain"])
    commit_us = median(one.seconds for one in blocks["plain"]) / size.operations * 1e6
    report.rows.append(
        {
            "what": f"a commit of 1 KB in a state of {keys:,} keys, with a schema",
            "cost": f"{(found.value - 1) * 100:.0f} % more",
            "beside": f"{commit_us:.0f} us without",
        }
    )
    if not size.quick:
        report.at_most(f"{keys:,} keys: with a schema / without", found.value, 1.3)


def _migration(report: Report, size: Size, place: Path) -> None:
    scopes, events = (40, 20) if size.quick else (SCOPES, EVENTS)
    made = place / "migrated"
    with holdfast.open(str(made), durability="none", schemas=[Old]) as store:
        for number in range(scopes):
            team = store.team(f"t{number}")
            for event in range(events):
                team.set("text", f"{event} {'x' * 200}")
    quotients: list[float] = []
    migrated_s: list[float] = []
    for turn in range(3 if size.quick else 7):
        copied = place / f"copy-{turn}"
        shutil.copytree(made, copied)
        with holdfast.open(str(copied), schemas=[New]) as store:
            began = time.perf_counter()
            assert store.check().ok
            folded_s = time.perf_counter() - began
        with holdfast.open(str(copied), schemas=[New]) as store:
            began = time.perf_counter()
            assert store.schemas.migrate().migrated == scopes
            migrated_s.append(time.perf_counter() - began)
        quotients.append(migrated_s[-1] / folded_s)
        shutil.rmtree(copied)
    report.rows.append(
        {
            "what": f"a migration of {scopes:,} scopes with {scopes * events:,} events",
            "cost": f"{median(migrated_s) * 1e3:.0f} ms",
            "beside": f"{median(quotients):.2f} times a verified fold",
        }
    )
    if not size.quick:
        report.at_most("a migration / a verified fold", median(quotients), 1.3)
