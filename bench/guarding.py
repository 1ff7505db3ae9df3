"""What provenance and the look for secrets cost: beside the same commits without them.

Secrets are looked for in texts of the tests' corpus, which are generated: none of them has one, as
nearly everything that is written has none. Provenance is measured on commits that say a source and
a trust, and on commits that say nothing, in turns, so that a slower minute hits both.
"""

from __future__ import annotations

import json
import random
import time
from statistics import median

import holdfast
from bench.harness import Report, Size, scratch
from holdfast.core.secrets import find_secrets
from tests.secret_texts import ordinary

COMMITS = 2_000
ROUNDS = 9


def guarding(size: Size) -> Report:
    """What provenance and the look for secrets cost."""
    report = Report("provenance and secrets", "one writer, no sync; time of the processor")
    scanned_us = _scanned_us(200 if size.quick else 4_000)
    report.rows.append({"what": "look for secrets", "cost": f"{scanned_us:.0f} us per KB"})
    report.at_most("look for secrets, per KB", scanned_us, 50, " us")
    with scratch() as place:
        for kind, url in (("memory", "memory:"), ("files", str(place / "store"))):
            plain_s, said_s = _commits(url, 100 if size.quick else COMMITS)
            report.rows.append(
                {
                    "what": f"a commit that says where it came from, {kind}",
                    "cost": f"{(said_s / plain_s - 1) * 100:.1f} % more",
                }
            )
            if not size.quick:
                report.at_most(f"{kind}: with provenance / without", said_s / plain_s, 1.03)
    return report


def _scanned_us(count: int) -> float:
    rng = random.Random(1)
    texts = [json.dumps({"content": ordinary(rng)}).encode() for _ in range(count)]
    kilobytes = sum(map(len, texts)) / 1024
    found: list[float] = []
    for _ in range(5):
        began = time.process_time()
        for text in texts:
            find_secrets(text)
        found.append(time.process_time() - began)
    return min(found) / kilobytes * 1e6


def _commits(url: str, count: int) -> tuple[float, float]:
    """Returns the median seconds of a round of commits, without provenance and with it."""
    plain: list[float] = []
    said: list[float] = []
    with holdfast.open(url, durability="process") as store:
        team = store.team("desk")
        for _ in range(ROUNDS):
            plain.append(_round(team, count))
            with holdfast.provenance(source="tool", trust="low"):
                said.append(_round(team, count))
    return median(plain), median(said)


def _round(team: holdfast.Scope, count: int) -> float:
    began = time.process_time()
    for number in range(count):
        team.set("stage", number)
    return time.process_time() - began
