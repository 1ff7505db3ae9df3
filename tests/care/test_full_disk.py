"""A disk that becomes full while a store lets go, compacts, archives, is backed up or restored.

Where it may be mounted, each trial has a small file system of its own, and a filler leaves a chosen
rest of it: nothing at first, then more, until there was room for all. Each time the operation must
end or say what is full, with one of our errors; what is there stays readable; and when the filler
is gone the same operation is done by the same handle, and nothing is missing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Store, UnavailableError
from holdfast.archive import archive
from holdfast.backends.protocol import GONE
from holdfast.backup import backup, drill, points, prune, restore
from holdfast.cli import main
from holdfast.core.check import content_of
from holdfast.interchange import export_scopes, import_scopes
from holdfast.retention import RetentionPolicy
from tests.faults.mounts import may_mount, mounted
from tests.selection import this_turn

DISK_MIB = 24
RESTS_KIB = (0, 24, 80, 200, 500, 1200, 3000)
LIVING = ("team/red", "conversation/kept")
NOW = 1e-6


@dataclass
class World:
    """A store on a disk that becomes full, and what is beside it."""

    kind: str
    disk: Path
    elsewhere: Path

    def url(self, place: Path, name: str = "store") -> str:
        return str(place / name) if self.kind == "files" else f"sqlite:{place / name}.db"


def fill(hf: Store, chance: Random) -> None:
    """Writes what will be let go of, what will be compacted, and what stays."""
    for name in LIVING:
        scope = hf.scope(name)
        for number in range(30):
            scope.set("note", f"{number} {chance.randbytes(700).hex()}")
        scope.set("large", chance.randbytes(50_000).hex())
    for number in range(8):
        old = hf.conversation(f"old-{number}")
        old.set("large", chance.randbytes(40_000).hex())
        for _ in range(12):
            old.say(chance.randbytes(600).hex())


def states(hf: Store) -> dict[str, Any]:
    return {name: hf.scope(name).state.to_dict() for name in LIVING}


# --- what is done ---------------------------------------------------------------------------------
#
# Each returns what has to be done on the full disk, and what must hold when it was done.

Work = Callable[[], object]


def retaining(world: World, hf: Store) -> tuple[Work, Work]:
    for number in range(8):
        hf.conversation(f"old-{number}").remove()

    def judge() -> None:
        for number in range(8):
            records = hf._log.read(f"conversation/old-{number}", after=0)
            assert [one.payload == GONE for one in records] == [True] * 13 + [False]

    return lambda: hf.retention.run(grace_s=0), judge


def compacting(world: World, hf: Store) -> tuple[Work, Work]:
    policies = [RetentionPolicy("team/*", types=["state"], count=1)]

    def judge() -> None:
        records = hf._log.read("team/red", after=0)
        assert sum(one.payload == GONE for one in records) >= 29

    return lambda: hf.retention.run(grace_s=0, policies=policies), judge


def archiving(world: World, hf: Store) -> tuple[Work, Work]:
    url = world.url(world.disk, "archive")

    def work() -> None:
        with holdfast.open(url) as old:
            archive(hf, old, "conversation/old-*", older_than=NOW)

    def judge() -> None:
        with holdfast.open(url) as old:
            assert len(list(old.scopes("conversation"))) == 8
            assert old.check().findings == []
        assert len(list(hf.scopes("conversation"))) == 1

    return work, judge


def backing_up(world: World, hf: Store) -> tuple[Work, Work]:
    folder = world.disk / "backup"

    def judge() -> None:
        assert points(folder)[-1].digest == content_of(hf._log).digest
        drill(folder)

    return lambda: backup(hf, folder), judge


def restoring(world: World, hf: Store) -> tuple[Work, Work]:
    folder = world.elsewhere / "backup"
    point = backup(hf, folder)
    url = world.url(world.disk, "restored")

    def work() -> None:
        with holdfast.open(url) as target:
            restore(folder, target)

    def judge() -> None:
        with holdfast.open(url) as target:
            assert content_of(target._log).digest == point.digest
            assert states(target) == states(hf)
            assert target.check().findings == []

    return work, judge


def pruning(world: World, hf: Store) -> tuple[Work, Work]:
    folder = world.disk / "backup"
    backup(hf, folder)
    for number in range(8):
        hf.conversation(f"old-{number}").remove()
    hf.retention.run(grace_s=0)
    backup(hf, folder)

    def judge() -> None:
        assert prune(folder).events == 0
        drill(folder)

    return lambda: prune(folder), judge


def exporting(world: World, hf: Store) -> tuple[Work, Work]:
    file = world.disk / "scopes.jsonl"

    def judge() -> None:
        with holdfast.open("memory:") as other:
            import_scopes(other, file)
            assert states(other) == states(hf)

    def work() -> None:
        with open(file, "wb", buffering=0) as opened:
            export_scopes(hf, [], opened)

    return work, judge


def importing(world: World, hf: Store) -> tuple[Work, Work]:
    file = world.elsewhere / "scopes.jsonl"
    with open(file, "wb") as opened:
        export_scopes(hf, [], opened)
    url = world.url(world.disk, "imported")

    def work() -> None:
        with holdfast.open(url) as target:
            import_scopes(target, file)

    def judge() -> None:
        with holdfast.open(url) as target:
            assert states(target) == states(hf)
            assert target.check().findings == []

    return work, judge


WORKS = {
    work.__name__: work
    for work in (
        retaining,
        compacting,
        archiving,
        backing_up,
        restoring,
        pruning,
        exporting,
        importing,
    )
}
CASES = [(name, kind) for name in WORKS for kind in ("files", "sqlite")]


@pytest.mark.parametrize(("name", "kind"), this_turn(CASES, 4))
def test_a_full_disk_is_told_harms_nothing_and_is_over(
    name: str, kind: str, tmp_path: Path
) -> None:
    refused = 0
    for rest_kib in RESTS_KIB:
        place = tmp_path / f"{rest_kib}"
        place.mkdir()
        (place / "elsewhere").mkdir()
        (place / "disk").mkdir()
        if may_mount():
            with mounted(place / "disk", f"size={DISK_MIB}m") as disk:
                refused += trial(name, World(kind, disk, place / "elsewhere"), rest_kib)
        else:
            trial(name, World(kind, place / "disk", place / "elsewhere"), None)
        shutil.rmtree(place)
    assert refused or not may_mount(), "the disk was never full"


def trial(name: str, world: World, rest_kib: int | None) -> bool:
    """Does one operation on a disk with so much room; returns whether it was refused."""
    filler = world.disk / "filler"
    with holdfast.open(world.url(world.disk)) as hf:
        fill(hf, Random(7))
        work, judge = WORKS[name](world, hf)
        wanted = states(hf)
        refusal = "not tried"
        if rest_kib is not None:
            fill_up(filler, rest_kib)
            refusal = refused_with(work)
            assert states(hf) == wanted
            filler.unlink()
        if refusal:
            assert re.search("not tried|space|full", refusal)
            work()
        judge()
        assert states(hf) == wanted
        assert hf.check().findings == []
        hf.team("red").set("later", 1)
        return bool(refusal)


def refused_with(work: Work) -> str:
    """Returns what an operation is refused with, nothing if it is done."""
    try:
        work()
    except UnavailableError as error:
        return str(error)
    return ""


def fill_up(filler: Path, rest_kib: int) -> None:
    """Leaves so much room on the disk."""
    found = os.statvfs(filler.parent)
    size = found.f_bavail * found.f_frsize - (rest_kib << 10)
    with suppress(OSError), open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


@pytest.mark.parametrize("kind", ["files", "sqlite"] if may_mount() else [])
@pytest.mark.parametrize("by", ["handle", "command line"])
def test_what_is_kept_free_lets_go_on_a_disk_without_a_free_byte(
    kind: str, by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it nothing can be let go of: that is written down first (0049)."""
    chance = Random(7)
    with mounted(tmp_path / "disk", f"size={DISK_MIB}m") as disk:
        world = World(kind, disk, tmp_path)
        url, config = world.url(disk), tmp_path / "holdfast.toml"
        config.write_text(
            f'[store]\n"*" = "{url}"\n[disk_watch]\nno_commits = "1kB"\nreserve = "4MB"\n'
        )
        hf = holdfast.open(config)
        fill(hf, chance)
        before = states(hf)
        for number in range(8):
            hf.conversation(f"old-{number}").remove()
        if by == "command line":
            hf.close()
        fill_up(disk / "filler", 0)
        assert os.statvfs(disk).f_bavail == 0
        if by == "handle":
            assert hf.retention.run(grace_s=0).events
        else:
            assert main(["--store", str(config), "retain", "--now"]) == 0, capsys.readouterr().err
            hf = holdfast.open(config)
        assert states(hf) == before
        for number in range(8):
            records = hf._log.read(f"conversation/old-{number}", after=0)
            assert [one.payload == GONE for one in records] == [True] * 13 + [False]
        (disk / "filler").unlink()
        hf.retention.run(grace_s=0)
        hf.close()
        [kept] = disk.glob("*.reserve/space")
        assert kept.stat().st_size == 4_000_000
