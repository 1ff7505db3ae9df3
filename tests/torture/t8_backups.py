"""T8, of backups: a changed byte of a backup is told, or it changes nothing that is restored.

A backup of three points, small enough that each byte of each of its files can be changed, beside
an export of the same store. Every byte is changed, one random bit or all of them; every 512 bytes
are zeroed, and every file is cut at each 512, near its end, and taken away. Then the points are
listed, each is restored, a backup is made of the store, which has gone on, and the new point is
restored too; the export is imported. Each of these must raise an error, or restore exactly what the
store held at that point. Of the index of the backup's own store, which can be rebuilt, every 8th
byte is changed.

Planted, and found: `PLANTS`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import holdfast
from holdfast import Settings, Store
from holdfast.backup import Point as BackupPoint
from holdfast.backup import backup, points, restore
from holdfast.core.check import content_of
from holdfast.errors import HoldfastError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.testing import FakeClock
from tests.torture.faulty_life import no_hang, scratch
from tests.torture.programme import Broken, Point, Programme

CHUNK = 64
BLOCK = 512
POINTS = 3
EXPORT = "export.jsonl"

Seen = tuple[str, list[Any]]
"""What a store holds: the digest of its events, and its marks."""


class Victim(NamedTuple):
    """A store that has gone on since its last backup, and the files of that, with an export."""

    source: Store
    files: dict[str, bytes]
    seen: list[Seen]
    """At each point, and now."""
    points: list[BackupPoint]
    exported: Seen
    """What an import of the export makes: it has some of the scopes."""


def look(hf: Store) -> Seen:
    marks = hf._log.marks.list(limit=1 << 40)
    return content_of(hf._log).digest, sorted(marks, key=lambda mark: (mark.index, mark.key))


@cache
def victim() -> Victim:
    source = holdfast.open("memory:", actor="a", settings=Settings(clock=FakeClock(seed=1)))
    place = Path(tempfile.mkdtemp(prefix="holdfast-backup-", dir=scratch()))
    seen: list[Seen] = []
    try:
        for n in range(POINTS + 1):
            source.team(f"t{n}").update({"n": n, "b": [1, {"c": b"bytes"}]})
            source.team("red").append("log", {"n": n}, checkpoint=f"turn {n}")
            source.team("red").tasks.add(f"task {n}")
            if n == 1:
                source.team("red").fork("f").set("text", "large " * 12_000)
            seen.append(look(source))
            if n < POINTS:
                backup(source, place / "backup", label=f"l{n}")
        with open(place / EXPORT, "wb") as file:
            export_scopes(source, ["team/red", "team/t0"], file)
        exported = imported(place / EXPORT)
        made = points(place / "backup")
        files = {
            str(path.relative_to(place)): path.read_bytes()
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }
    finally:
        shutil.rmtree(place)
    return Victim(source, files, seen, made, exported)


Harm = tuple[str, str, int]
"""A file, what is done, and where."""


@cache
def harms() -> list[Harm]:
    found: list[Harm] = []
    for name, data in victim().files.items():
        found += [(name, "flip", at) for at in range(0, len(data), CHUNK)]
        blocks = range(0, len(data), BLOCK)
        found += [(name, "zero", at) for at in blocks]
        found += [(name, "cut", at) for at in (*blocks, len(data) - 1, len(data) - 2) if at >= 0]
        found.append((name, "lose", 0))
    # The first few are of all kinds: a share, or what a plant is looked for in.
    Random(1).shuffle(found)
    return found


def changed(name: str, kind: str, at: int, chance: Random) -> Iterator[tuple[int, bytes | None]]:
    data = victim().files[name]
    match kind:
        case "lose":
            yield 0, None
        case "cut":
            yield at, data[:at]
        case "zero":
            block = data[at : at + BLOCK]
            if any(block):
                yield at, data[:at] + bytes(len(block)) + data[at + BLOCK :]
        case _:
            step = 8 if name.endswith("index.sqlite") else 1
            for place in range(at + chance.randrange(step), min(at + CHUNK, len(data)), step):
                mask = chance.choice((0xFF, *(1 << bit for bit in range(8))))
                yield place, data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def trial(point: Point) -> int:
    ready(point.plant)
    if point.number >= len(harms()):
        return 0
    name, kind, at = harms()[point.number]
    cases = 0
    for place, data in changed(name, kind, at, point.random):
        cases += 1
        told = f"{kind} at byte {place} of {name}"
        with no_hang(told):
            judge(told, name, data)
    return max(cases, 1)


def judge(told: str, name: str, data: bytes | None) -> None:
    place = Path(tempfile.mkdtemp(prefix="holdfast-backup-", dir=scratch()))
    try:
        for known, content in {**victim().files, name: data}.items():
            if content is not None:
                (place / known).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (place / known).write_bytes(content)
                os.chmod(place / known, 0o600)
        if name == EXPORT:
            expect(told, [victim().exported], lambda _: imported(place / EXPORT))
        else:
            judge_backup(told, place / "backup")
    finally:
        shutil.rmtree(place)


def judge_backup(told: str, folder: Path) -> None:
    seen = victim().seen
    expect(told, [victim().points], lambda _: points(folder))
    expect(told, seen[:POINTS], lambda n: restored(folder, f"p{n + 1}"))
    expect(told, seen[1:2], lambda n: restored(folder, "l1"))
    expect(told, seen[-1:], lambda _: gone_on(folder))


def expect(told: str, wanted: list[Any], work: Callable[[int], Any]) -> None:
    """Raises unless each work is as it must be, or raises an error that says something."""
    for number, one in enumerate(wanted):
        try:
            found = work(number)
        except HoldfastError as error:
            if len(error.message) < 15:
                raise Broken(f"{told}: an error that says nothing: {error.message!r}") from error
        except Exception as error:
            raise Broken(f"{told}: {type(error).__name__}: {error}") from error
        else:
            if found != one:
                raise Broken(f"{told}: {found} is not {one}, and nobody said so"[:2000])


def restored(folder: Path, at: str) -> Seen:
    with holdfast.open("memory:", settings=Settings(clock=FakeClock(seed=2))) as target:
        restore(folder, target, at=at)
        return look(target)


def gone_on(folder: Path) -> Seen:
    """Returns what the next point holds: of what was committed since, nothing may be left out."""
    return restored(folder, backup(victim().source, folder).name)


def imported(path: Path) -> Seen:
    with holdfast.open("memory:", settings=Settings(clock=FakeClock(seed=2))) as target:
        import_scopes(target, path)
        return look(target)


# --- faults that are planted ----------------------------------------------------------------------


@cache
def ready(plant: str) -> None:
    if plant:
        PLANTS[plant]()


def no_line_digest() -> None:
    """A line has no digest of itself: only the line after it tells that it was changed."""
    import msgspec

    from holdfast import backup as backups

    backups._with_digest = msgspec.json.encode
    backups._has_digest = lambda line: True


def no_count() -> None:
    """Nobody counts the lines: those that were cut off are not missed."""
    from holdfast import backup as backups

    real = backups._write_about

    def write(place: Path, about: backups._About) -> backups._About:
        return real(place, backups.replace(about, points=0))

    backups._write_about = write


def marks_believed() -> None:
    """Marks are restored as they are read."""
    from holdfast import backup as backups

    class Believing:
        def __init__(self, _raw: bytes) -> None: ...

        def __eq__(self, other: object) -> bool:
            return True

        def hexdigest(self) -> Any:
            return self

    real = backups._read_marks

    def read(*words: Any) -> Any:
        sound, backups.sha256 = backups.sha256, Believing
        try:
            return real(*words)
        finally:
            backups.sha256 = sound

    backups._read_marks = read


PLANTS: dict[str, Callable[[], None]] = {
    "no-line-digest": no_line_digest,
    "no-count": no_count,
    "marks-believed": marks_believed,
}

PROGRAMMES: tuple[Programme, ...] = (
    Programme(
        name="t8-backup",
        promise="a changed byte of a backup or an export is told, or what is restored is the same",
        trial=trial,
        share=None,
        parts=2,
        turns=16,
        plants=dict.fromkeys(PLANTS, 200),
    ),
)
