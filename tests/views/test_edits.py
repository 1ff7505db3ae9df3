"""Edits by hand of every kind of file: imported, or refused with a difference; none is silent.

A person changes, adds, removes or breaks something in a file, through any editor. What may come of
it is judged by a plain reader of the format, which shares nothing with the views: if a file says
something else than before, that is told; what was typed is in the log, in the file or in a
difference; a file that nobody can read, or that lost most of its items, stays byte for byte as it
is. All 100 edits of each kind run with all tests; a commit runs a share, the next one the next.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

import holdfast
from holdfast import Scope, Store
from holdfast.views import Finding, Views, make_view
from holdfast.views.grammar import parse_line
from holdfast.views.kinds import state_file
from tests.selection import RUNS_ALL, turn

EDITS, SHARE = 100, 5
WORD = re.compile(r"word\d+")


def fill(scope: Scope) -> None:
    """Records some of everything that a view shows."""
    for number in range(1, 7):
        scope.tasks.add(f"task {number}", priority="high" if number % 2 else "normal")
        scope.record("seen", {"summary": f"event {number}"}, unchecked=True)
        scope.decisions.catch(f"caught {number}", control="review", notes=f"note {number}")
        scope.decide(f"decision {number}", because=f"reason {number}", standing=number % 3 == 0)
        for name, prefix in (("goals", "g"), ("progress", "p"), ("todo", "n"), ("learnings", "l")):
            scope.set((name, f"{prefix}{number}"), {"title": f"entry {number}"})
    scope.set("keel", {"decision": 1, "officer": "bo", "tests": {"passed": 1, "failed": 0}})
    scope.set("flags", {"on": True, "count": 1, "rate": 1.5, "none": None, "names": ["a", "b"]})


# --- what a file says, to a reader that knows nothing of views ------------------------------------


def says_json(text: str) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(found)) == len(found)
        return dict(found)

    return json.loads(text, object_pairs_hook=pairs) if text.strip() else {}


def says_yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(StringIO(text))


def says_table(text: str) -> Any:
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(row) <= 6 for row in rows)
    return rows[1:]


def says_list(text: str) -> Any:
    lines = [line[2:] for line in text.splitlines() if line.startswith("- ")]
    return [(item.id, item.fields, item.problem) for item in map(parse_any, lines)]


def parse_any(line: str) -> Any:
    return parse_line(line, has_box=line.startswith("["))


def read(reader: Callable[[str], Any], data: bytes) -> str | None:
    """Returns what a file says, so that 1, 1.0 and true differ; None if nobody can read it."""
    try:
        text = data.decode()
        assert "\0" not in text
        assert "<<<<<<<" not in text
        return json.dumps(reader(text.removeprefix("\ufeff")), sort_keys=True, default=repr)
    except (ValueError, AssertionError, YAMLError):
        return None


# --- what a person does ---------------------------------------------------------------------------

NEW: dict[str, tuple[str, ...]] = {
    "list": ("- [ ] {w}\n", "- [x] (high) {w}; note {w}\n", "- {w}; by {w}\n", "\n{w} is prose\n"),
    "events": (
        "  - type: {w}\n    summary: typed\n",
        "  - date: '2024-01-01'\n    summary: {w}\n    more: 1\n",
        "# {w}\n",
        "other: {w}\n",
    ),
    "index": ("- {w}\n", "- decision: {w}\n  because: so\n", "more: {w}\n", "# {w}\n"),
    "backlog": (
        "  - title: {w}\n",
        "  - id: {w}\n    title: mine\n    priority: [1]\n",
        "  - title: mine\n    status: {w}\n",
        "  - {w}\n",
        "  - title: mine\n    tags: [{w}, 1]\n    epic: 3\n",
    ),
    "yaml": ("{w}: 1\n", "{w}:\n  - a\n  - b: null\n", "# {w}\n", "flags: {w}\n"),
    "table": ("2024-01-01\treview\t{w}\tann\n", "\t\t{w}\n", "# {w}\n", "{w}\ta\tb\tc\td\te\tf\n"),
    "json": (),
}
VALUES = ["1", "true", "1.0", "null", '"{w}"', "[]", '["{w}", 1]', '{{"{w}": 0}}', "0", "nonsense"]


def person_edits(draw: random.Random, kind: str, data: bytes, number: int) -> bytes:
    """Returns the file as a person may leave it."""
    lines, word = data.decode().splitlines(keepends=True), f"word{number}"
    at = draw.randrange(len(lines))
    match number % 12:
        case 0:  # a word of a line
            words = re.findall(r"[a-z]{3,}", lines[at])
            if words:
                lines[at] = lines[at].replace(draw.choice(words), word, 1)
        case 1 | 2:  # a value
            said = draw.choice(VALUES).format(w=word)
            lines[at] = re.sub(r"(?<=: )[^{\[\n]*?(?=,?\n)", lambda _: said, lines[at], count=1)
            lines[at] = re.sub(r"\[.\]", f"[{draw.choice(' /!x-?')}]", lines[at], count=1)
        case 3:
            del lines[at]
        case 4:
            del lines[at : at + draw.randrange(1, 4)]
        case 5:
            lines.insert(draw.randrange(len(lines)), lines[at])
        case 6:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 7 | 8 if NEW[kind]:
            lines.append(draw.choice(NEW[kind]).format(w=word))
        case 9 if NEW[kind]:
            lines.insert(at + 1, draw.choice(NEW[kind]).format(w=word))
        case 7 | 8 | 9:
            said = draw.choice(VALUES).format(w=word)
            lines.insert(1, f'  "{draw.choice([word, "flags"])}": {said},\n')
        case 10:  # broken
            markers = f"<<<<<<< a\n{word}\n=======\nb\n>>>>>>> c\n".encode()
            ends = (data + b"\0", data + b"\xff\xfe", data + markers, data[: len(data) // 2], b"")
            return ends[number // 12 % len(ends)]
        case _:  # nothing but layout
            text = "".join(lines)
            return draw.choice([text + "\n", text.rstrip("\n"), "\ufeff" + text]).encode()
    return "".join(lines).encode()


# --- and what may come of it ----------------------------------------------------------------------

KINDS: dict[str, tuple[str, str | None, Callable[[str], Any]]] = {
    "tasks": ("list", None, says_list),
    "goals": ("list", None, says_list),
    "progress": ("list", None, says_list),
    "todo": ("list", None, says_list),
    "learnings": ("list", None, says_list),
    "decisions": ("list", None, says_list),
    "events": ("events", None, says_yaml),
    "decision-index": ("index", None, says_yaml),
    "backlog": ("backlog", None, says_yaml),
    "keel": ("json", None, says_json),
    "catches": ("table", None, says_table),
    "state json": ("json", "state.json", says_json),
    "state yaml": ("yaml", "state.yaml", says_yaml),
}


class Desk:
    """One file, and a person at it."""

    def __init__(self, hf: Store, kind: str, place: Path) -> None:
        self.kind, file, self.reader = KINDS[kind]
        self.scope = hf.workflow("w1")
        fill(self.scope)
        view = make_view(kind.partition(" ")[0], self.scope, file)
        self.views: Views = hf.views(place, [view], person="ann")
        self.views.sync()
        self.path = place / view.path

    def save(self, data: bytes) -> None:
        beside = self.path.with_name("beside")
        beside.write_bytes(data)
        beside.replace(self.path)

    def logged(self) -> str:
        """Returns all that the log holds, as text."""
        return " ".join(repr(event) for event in self.scope.history())

    def edit(self, number: int) -> None:
        """Edits the file in one way, and judges what came of it."""
        before, revision = self.path.read_bytes(), self.scope.revision
        after = person_edits(random.Random(number), self.kind, before, number)
        self.save(after)
        found = self.views.sync()
        now, [status] = self.path.read_bytes(), self.views.status()
        old, new = read(self.reader, before), read(self.reader, after)
        told = {one.kind for one in found}
        about = (after.decode("utf-8", "replace"), now.decode("utf-8", "replace"), found, status)
        assert new == old or found or now == after, about  # what is not told is not touched either
        assert all(one.diff for one in found if one.kind in ("refused", "broken", "pending")), about
        if new is None:
            assert told & {"broken", "pending"} or self.kind == "table", about
        if told & {"broken", "pending"}:
            assert now == after, about
            assert status.status in told, about
            assert status.diff, about
            assert self.scope.revision == revision or "added" in told, about
            self.settle(found, before)
            return
        if new == old:
            assert now == after or found, about
        if not found:
            assert (now, self.scope.revision) == (after, revision), about
        if told & {"added", "changed", "removed"}:
            assert self.scope.revision > revision, about
        if told and told <= {"refused"}:
            assert self.scope.revision == revision, about
        diffs = " ".join(one.diff for one in found)
        for word in WORD.findall(after.decode()):
            assert word in f"{now.decode()} {diffs} {self.logged()}", about
        assert self.views.sync() == [], about
        assert [one.status for one in self.views.status()] == ["fresh"], about

    def settle(self, found: list[Finding], before: bytes) -> None:
        """Ends an edit that waits: it is rejected, or put right by hand."""
        if found[-1].kind == "pending":
            self.views.reject(self.path.name)
        else:
            self.save(before)
            self.views.sync()
        assert self.views.sync() == []
        assert [one.status for one in self.views.status()] == ["fresh"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_edit_by_hand_is_silent(kind: str, tmp_path: Path) -> None:
    """RALPH-21: imported, or refused with a difference."""
    first = 0 if RUNS_ALL else turn() * SHARE % EDITS
    with holdfast.open("memory:", actor="agent") as hf:
        desk = Desk(hf, kind, tmp_path)
        for number in range(first, EDITS if RUNS_ALL else first + SHARE):
            desk.edit(number)
        desk.views.close()


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_file_shows_what_json_has_no_word_for_and_an_edit_beside_it_keeps_it(
    tmp_path: Path, suffix: str
) -> None:
    """`scope.memory` keeps times; bytes and NaN can be stored too."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    odd = {"at": moment, "raw": b"\x00\xff", "sum": math.inf, "list": [moment, 1], "n": 1}
    with holdfast.open(tmp_path / "store", keys=tmp_path / "keys") as hf:
        team = hf.team("red")
        team.set("odd", odd)
        team.set("when", moment)
        views = hf.views(tmp_path / "v", [state_file(team, f"red.{suffix}")])
        assert views.sync() == views.sync() == []
        file = tmp_path / "v" / f"red.{suffix}"
        text = file.read_text()
        assert "2026-01-02 03:04:05+00:00" in text
        file.write_text(re.sub(r"""(["']?n["']?: )1""", r"\g<1>2", text))
        assert [(one.kind, one.item) for one in views.sync()] == [("changed", "odd")]
        assert team.state.to_dict() == {"odd": {**odd, "n": 2}, "when": moment}
        file.write_text(file.read_text().replace("2026-01-02 03:04:05+00:00", "never"))
        views.sync()
        assert team.state.to_dict()["when"] == "never"
        assert team.state.to_dict()["odd"]["list"] == ["never", 1]


def test_an_edit_beside_a_sealed_value_and_a_time_keeps_the_sealed_one(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store", keys=tmp_path / "keys") as hf:
        team = hf.team("red")
        team.set("customer", {"at": datetime(2026, 1, 2, tzinfo=UTC), "n": 1})
        team.set(("customer", "mail"), "ada@x.org", subject="ada")
        views = hf.views(tmp_path / "v", [state_file(team, "red.json")])
        views.sync()
        file = tmp_path / "v" / "red.json"
        file.write_text(file.read_text().replace('"n": 1', '"n": 2'))
        views.sync()
        found = team.state.to_dict()["customer"]
        assert found == {"at": datetime(2026, 1, 2, tzinfo=UTC), "n": 2, "mail": "ada@x.org"}
