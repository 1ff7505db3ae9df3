"""Random damage of the index and of the tables of `sql`: healed, never answered wrongly."""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Store
from holdfast.backends import derived_file

PAGE = 4096
POINTS = 48
QUESTIONS: dict[str, Callable[[Store], Any]] = {
    "everything": lambda hf: list(hf.query(limit=None)),
    "a word": lambda hf: list(hf.query(text="common", limit=None)),
    "a prefix": lambda hf: list(hf.query(text="gam*", limit=None)),
    "a tag": lambda hf: list(hf.query(tag="t1")),
    "a status": lambda hf: list(hf.query(status="open", limit=None)),
    "a scope": lambda hf: list(hf.query(scope="conversation/c3", limit=None)),
    "a link": lambda hf: list(hf.query(links="task:t1", limit=None)),
    "the log": lambda hf: list(hf.query(kind="log", limit=None)),
    "a path": lambda hf: hf.query(where={"n": 4}),
    "scopes by a path": lambda hf: [one.name for one in hf.scopes(where={"n": 4})],
    "a target": lambda hf: hf.search.resolve("task:t1", scope="conversation/c2"),
    "dangling": lambda hf: hf.search.dangling_links(),
    "decisions": lambda hf: [one.id for one in hf.decisions.list(limit=200)],
    "events": lambda hf: [str(one) for one in hf.events(type="message.added", limit=200)],
}
SQL = {table: f"SELECT * FROM {table} ORDER BY 1, 2, 3" for table in ("messages", "state", "tasks")}


def fill(hf: Store, seeded: random.Random) -> None:
    for number in range(8):
        chat = hf.conversation(f"c{number}")
        for said in range(20):
            word = seeded.choice(["alpha", "beta", "gamma"])
            chat.say(f"w{said} {word} common " + "x" * seeded.randrange(200))
        chat.set("n", number)
        chat.tasks.add(f"task {number}", tags=[f"t{number % 3}"])
        chat.facts.state("f", {"v": number})
        chat.decide(f"decide {number}", links=["task:t1", "task:gone"]).outcome("done")


def damaged(data: bytes, kind: str, seeded: random.Random) -> bytes:
    made, at = bytearray(data), seeded.randrange(len(data))
    match kind:
        case "zeros":
            made[at : at + 64] = bytes(len(made[at : at + 64]))
        case "a bit":
            made[at] ^= 1 << seeded.randrange(8)
        case "noise":
            made[at : at + 64] = seeded.randbytes(len(made[at : at + 64]))
        case "a page of zeros":
            at = at // PAGE * PAGE
            made[at : at + PAGE] = bytes(PAGE)
        case "cut":
            del made[at:]
        case "cut at a page":
            del made[at // PAGE * PAGE :]
    return bytes(made)


KINDS = ("zeros", "a bit", "noise", "a page of zeros", "cut", "cut at a page")


def tried(root: Path, seed: int, points: int, kinds: tuple[str, ...] = KINDS) -> list[str]:
    """Damages the files, each time one place of one file; returns what was answered wrongly."""
    seeded = random.Random(seed)
    url = str(root / "s")
    with holdfast.open(url) as hf:
        fill(hf, seeded)
        wanted = {name: ask(hf) for name, ask in QUESTIONS.items()}
        rows = {table: hf.search.sql(SQL[table]).rows for table in SQL}
        index, tables = Path(hf.search.status().place), Path(hf.search.tables())
    keep = {path: path.read_bytes() for path in (index, tables)}
    saved = root / "saved"
    shutil.copytree(index.parent, saved)
    wrong: list[str] = []
    for number in range(points):
        shutil.rmtree(index.parent)
        shutil.copytree(saved, index.parent)
        kind, path = kinds[number % len(kinds)], (index, index, tables)[number // 6 % 3]
        path.write_bytes(damaged(keep[path], kind, seeded))
        with holdfast.open(url) as hf:
            if path == index:
                found = {name: ask(hf) for name, ask in QUESTIONS.items()}
                wrong += [
                    f"{number} {kind}: {name}" for name in wanted if found[name] != wanted[name]
                ]
            else:
                told = {table: hf.search.sql(SQL[table]).rows for table in SQL}
                wrong += [f"{number} {kind}: {name}" for name in rows if told[name] != rows[name]]
    return wrong


def test_no_random_damage_is_answered_wrongly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record_property: Callable[..., None]
) -> None:
    """Every question gives the answer of the undamaged index; what was damaged is made again."""
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    with caplog.at_level(logging.WARNING, "holdfast.query"):
        assert tried(tmp_path, seed, POINTS) == [], f"seed {seed}"
    made_again = Counter("made again" in record.message for record in caplog.records)
    assert made_again[True] > POINTS // 4


def test_damage_that_sqlite_does_not_see_is_found_by_the_checksums_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plant: without checksums the same damages are answered wrongly."""
    monkeypatch.setattr(derived_file, "checking_vfs", lambda: "unix")
    monkeypatch.setattr(derived_file, "has_room", lambda _: True)
    assert tried(tmp_path, 3, 24, KINDS[:3])


@pytest.mark.parametrize("at", [20, 16, 24, 100])
def test_the_header_is_checked_too(tmp_path: Path, at: int) -> None:
    """Byte 20 says whether pages have checksums at all: it is not believed."""
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
        wanted = list(hf.query())
        place = Path(hf.search.status().place)
    data = bytearray(place.read_bytes())
    data[at] ^= 0xFF
    place.write_bytes(data)
    with holdfast.open(url) as hf:
        assert list(hf.query()) == wanted


def test_an_index_without_checksums_is_made_again(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
        wanted = list(hf.query())
        place = Path(hf.search.status().place)
    with closing(apsw.Connection(str(place))) as old:
        old.reserve_bytes(reserve=0)
        old.execute("VACUUM")
    with holdfast.open(url) as hf:
        assert list(hf.query()) == wanted
        assert hf.search.status().place != str(place)
