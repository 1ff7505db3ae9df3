"""Files in YAML say the same to a reader of YAML 1.1, and grow from an empty start."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Scope, Store, provenance
from holdfast.views import Views, backlog, event_rows, kinds, state_file
from holdfast.views.item import Fields
from holdfast.views.kinds import make_view
from holdfast.views.mapping import YamlMapping
from holdfast.views.rows import EventRows, YamlRows
from holdfast.views.yaml_list import YamlList
from holdfast.views.yaml_text import dump_block, load_yaml, plain

_WORDS = (
    "14:15 1:30.5 190:20:30 0 00 017 0o17 0x1F 0b11 1_000 1,000 1e5 1E5 1.e+5 .5 5. +1 -1 -.5 . .. "
    ".inf -.INF .NaN 2026-01-01 2026-1-1 2026-01-01T10:00:00Z 1.2.3 0.1.0 y Y n N yes Yes YES no "
    "No on On off OFF true True TRUE false null Null NULL ~ = << - + ? : , [ ] { } # & * ! | > ' "
    '" % @ ` --- ... --x ...x -x ?x :x x: x# !x &x *x %x @x `x 12ab 3d 1:2:x 0xZ _1 1__ null: '
    "a:b a,b a#b {} [] yes: no:"
)
TRAPS = _WORDS.split()
TRAPS += ["", " ", " a", "a ", "a: b", "a #b", "- a", "2026-01-01 10:00:00", "\n", "a\n", "a\n\nb"]
TRAPS += (
    "a\tb",
    "\t",
    "\ta",
    "a\r\nb",
    "a\x85b",
    "a\u2028b",
    "a\u2029",
    "\ufeffa",
    "a\x7fb",
    "\x1b",
)
TRAPS += ["é", "漢", "\U0001f600", "\ufffe", "a\\b", "a\\", "'a'", '"a"', "x" * 200, "é x " * 2000]

texts = (
    st.sampled_from(TRAPS)
    | st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8)
    | st.text("0123456789_.:-+eExo,TZ ~=<yn", max_size=6)
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
quickly = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def alike(one: Any, other: Any) -> bool:
    """Says whether two values are the same, and of the same types."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other


def read_by_both(text: str) -> Any:
    """Returns what our reader and PyYAML find in a text, which must be the same."""
    ours, theirs = load_yaml(text), yaml.safe_load(text)
    ours = None if ours is None else plain(ours)
    assert alike(ours, theirs), text
    return ours


@pytest.mark.parametrize("trap", TRAPS)
def test_text_is_text_to_every_reader(trap: str) -> None:
    value = {"value": trap, trap: [trap, {"in": trap}], "list": [[trap]]}
    for indent in (0, 2):
        text = "".join(dump_block(value, "\n", indent))
        assert alike(read_by_both(text), value), text


def test_text_that_nobody_mistakes_stands_without_quotes() -> None:
    """Quotes everywhere would be safe, and nobody would read or write such a file."""
    value = {"stage": "triage", "name": "Ada Lovelace", "id": "t1", "of": "a-b_c/d.e", "n2": "x1"}
    assert dump_block(value, "\n") == [f"{key}: {said}\n" for key, said in value.items()]


@quickly
@given(st.dictionaries(texts, values, min_size=1, max_size=4), values)
@example({"a": 1e16, "b": -0.0, "c": 1e-07, "d": 5e-324}, 1e100)
def test_a_state_says_the_same_to_every_reader(state: dict[str, Any], more: Any) -> None:
    form = YamlMapping()
    items: dict[str, Fields] = {key: {"value": one} for key, one in state.items()}
    document = form.splice(form.parse(b""), {})
    document = form.splice(document, items)
    assert alike(read_by_both(document.text), state)
    grown = {**items, "a new one": {"value": more}}
    document = form.splice(document, grown)
    assert alike(read_by_both(document.text), {**state, "a new one": more})
    first = next(iter(state))
    changed = {**grown, first: {"value": more}}
    document = form.splice(document, changed)
    assert alike(read_by_both(document.text), {**state, "a new one": more, first: more})


@quickly
@given(st.lists(st.tuples(texts, texts, st.lists(texts, max_size=2)), min_size=1, max_size=3))
def test_rows_say_the_same_to_every_reader(said: list[tuple[str, str, list[str]]]) -> None:
    form = YamlRows(EventRows.columns)
    document = form.append(form.parse(b""), [])
    assert read_by_both(document.text) == {"events": []}
    rows = [
        {"date": date, "time": "14:15", "summary": summary, "backrefs": refs}
        for date, summary, refs in said
    ]
    for row in rows:
        document = form.append(document, [row])
    assert alike(read_by_both(document.text), {"events": rows})


@quickly
@given(st.lists(st.tuples(texts, texts, st.lists(texts, max_size=2)), min_size=1, max_size=3))
def test_a_backlog_says_the_same_to_every_reader(said: list[tuple[str, str, list[str]]]) -> None:
    form = YamlList()
    document = form.splice(form.parse(b""), {})
    items: dict[str, Fields] = {}
    for number, (title, why, tags) in enumerate(said):
        items[f"{number}"] = {"title": title, "why": why, "tags": tuple(tags)}
        document = form.splice(document, items)
    wanted = [
        {
            "id": f"{at}",
            "title": one,
            "priority": "normal",
            "status": "open",
            "tags": tags,
            "why": why,
        }
        for at, (one, why, tags) in enumerate(said)
    ]
    found = read_by_both("".join(document.lines))["backlog"]
    assert [{"tags": [], **item} for item in found] == wanted


# --- from an empty start --------------------------------------------------------------------------


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "store", actor="bob") as store:
        yield store


@pytest.fixture
def red(hf: Store) -> Scope:
    return hf.team("red")


def entry(at: int) -> str:
    said = f"- date: '2026-01-0{at}'\n  type: seen\n  summary: by hand {at}\n"
    return "".join(f"  {line}\n" for line in said.splitlines())


def set_state(scope: Scope, at: int) -> None:
    scope.set(f"key{at}", {"time": "14:15", "is": "yes"})


def set_keel(scope: Scope, at: int) -> None:
    scope.set("keel", {"head": f"h{at}"})


def record(scope: Scope, at: int) -> None:
    scope.record("seen", {"summary": f"14:{at}"}, unchecked=True, refs=["file:a.md"])


def listed(key: str) -> Callable[[Scope, int], None]:
    def write(scope: Scope, at: int) -> None:
        known = scope.get(key) or {}
        scope.set(key, {**known, f"{key[0]}{at}": {"title": f"item {at}"}})

    return write


GROWN: dict[str, Callable[[Scope, int], Any]] = {
    "decisions": lambda scope, at: scope.decide(f"step {at}", owner="bob"),
    "backlog": lambda scope, at: scope.tasks.add(f"item {at}", tags=["yes", "14:15"]),
    "state": set_state,
    "keel": set_keel,
    "events": record,
    "catches": lambda scope, at: scope.decisions.catch(f"caught {at}"),
    "decision-index": lambda scope, at: scope.decide(f"order {at}", standing=at == 1, owner="bob"),
    "tasks": lambda scope, at: scope.tasks.add(f"item {at}"),
    "goals": listed("goals"),
    "progress": listed("progress"),
    "todo": listed("todo"),
    "learnings": listed("learnings"),
}


def test_every_kind_of_view_is_tried_from_an_empty_start() -> None:
    assert GROWN.keys() == kinds._KINDS.keys()


@pytest.mark.parametrize("kind", [*GROWN, "state.yaml"])
def test_a_view_that_is_first_written_empty_grows(
    kind: str, hf: Store, red: Scope, tmp_path: Path
) -> None:
    name, _, suffix = kind.partition(".")
    view = make_view(name, red, f"red.{suffix}" if suffix else None)
    views = hf.views(tmp_path / "v", [view])
    file = tmp_path / "v" / view.path
    assert views.sync() == views.sync() == []
    seen = [file.read_text()]
    check(file)
    for at in (1, 2, 3):
        GROWN[name](red, at)
        assert views.sync() == [], "nothing is taken for an edit, and nothing is broken"
        seen.append(file.read_text())
        check(file)
        assert [one.status for one in views.status()] == ["fresh"]
        assert view.read(file.read_bytes(), None).edits == [], "it says what the log says"
    assert len(set(seen)) == 4, "each of them is to be seen"


def check(file: Path) -> None:
    text = file.read_text()
    if file.suffix == ".yaml":
        read_by_both(text)
    elif file.suffix == ".json" or file.name == ".keel-state":
        json.loads(text)


def test_a_person_writes_into_a_list_that_was_first_written_empty(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    views = hf.views(tmp_path / "v", [event_rows(red), backlog(red)], person="ann")
    views.sync()
    events, tasks = (tmp_path / "v" / name for name in ("events.yaml", "backlog.yaml"))
    events.write_text(f"events:\n{entry(1)}")
    tasks.write_text("backlog:\n- title: by hand\n")
    assert [one.kind for one in views.sync()] == ["added", "added"]
    assert events.read_text() == f"events:\n{entry(1)}"
    record(red, 2)
    red.tasks.add("item 2")
    assert views.sync() == []
    assert [row["summary"] for row in read_by_both(events.read_text())["events"]] == [
        "by hand 1",
        "14:2",
    ]
    assert len(read_by_both(tasks.read_text())["backlog"]) == 2


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("events:\n  []\n", ""),  # as it was first written once
        ("events: []\n", ""),
        ("events:\n", ""),
        ("events: null\n", ""),
        ("'events': []\n", ""),
        ("events: [\n]\n", ""),
        ("events: []  # mine\n", "# mine\n"),
        ("# above\nevents: []\n# below\nother: 1\n", "# above\n# below\nother: 1\n"),
        ("other: 1\nevents:\n\n  []\nmore: 2\n", "other: 1\nmore: 2\n"),
        ("# only\n", "# only\n"),
        ("other: 1", "other: 1"),
        ("events: []\r\nother: 1\r\n", "other: 1\r\n"),
    ],
)
@pytest.mark.parametrize("root", ["events", "backlog"])
def test_a_list_grows_however_it_is_empty(root: str, text: str, left: str) -> None:
    text = text.replace("events", root)
    if root == "events":
        rows = YamlRows(EventRows.columns)
        made = rows.append(rows.parse(text.encode()), [{"summary": "one"}]).text
    else:
        form = YamlList()
        made = form.splice(form.parse(text.encode()), {"t1": {"title": "one"}}).encode().decode()
    found = read_by_both(made.replace("\r\n", "\n"))
    assert len(found[root]) == 1
    assert {key: one for key, one in found.items() if key != root} == (
        yaml.safe_load(left) if "1" in left else {}
    )
    for line in left.split():
        assert line in made


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"date": "2026-02-03", "amount": 5}, {"date": "2026-02-03", "type": "trip"}),
        ({"type": "express", "amount": 5}, {"type": "trip"}),
        (
            {"type": "express", "summary": "sent"},
            {"type": "trip", "summary": "sent (type: express)"},
        ),
        ({"date": "2026-02-03", "type": "x", "amount": 5}, {"date": "2026-02-03", "type": "trip"}),
    ],
)
def test_own_events_with_a_date_or_a_type_show_all_of_their_fields(
    data: dict[str, Any], wanted: dict[str, Any], hf: Store, red: Scope, tmp_path: Path
) -> None:
    views = hf.views(tmp_path / "v", [event_rows(red)])
    red.record("trip", data, refs=["commit:" + "a" * 40, "file:a.md"], unchecked=True)
    with provenance(source="file"):
        red.record("trip", {"amount": 7}, unchecked=True)
    assert views.sync() == views.sync() == []
    [row, other] = read_by_both((tmp_path / "v" / "events.yaml").read_text())["events"]
    assert row.items() >= {**wanted, "agent": "bob", "backrefs": ["file:a.md"]}.items()
    assert row["commit"] == "a" * 40
    assert {"date", "time", "type", "agent", "summary"} <= row.keys()
    for name, value in data.items():
        shown = (str(row.get(name)), row["summary"])
        assert any(text.startswith(str(value)) or f"{name}: {value}" in text for text in shown)
    assert "amount: 7" in other["summary"]


def test_a_row_that_a_person_wrote_stays_as_they_wrote_it(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    views = hf.views(tmp_path / "v", [event_rows(red)], person="ann")
    views.sync()
    file = tmp_path / "v" / "events.yaml"
    text = "events:\n- summary: no more than this\n- date: 2026-01-01\n  type: Gone Live!\n"
    file.write_text(text)
    assert [one.kind for one in views.sync()] == ["added", "added"]
    assert views.sync() == []
    assert file.read_text() == text
    assert len(list(red.history())) == 2


def test_what_a_person_wrote_in_the_old_way_stays_so(hf: Store, red: Scope, tmp_path: Path) -> None:
    """Only what changes is written anew: `14:15` is text to us, whatever it is to others."""
    red.set("a", {"at": "x"})
    views: Views = hf.views(tmp_path / "v", [state_file(red, "red.yaml")], person="ann")
    views.sync()
    file = tmp_path / "v" / "red.yaml"
    file.write_text("a:\n  at: 14:15\n")
    assert [one.kind for one in views.sync()] == ["changed"]
    assert red.get(("a", "at")) == "14:15"
    assert file.read_text() == "a:\n  at: 14:15\n"
    red.set("b", "14:15")
    views.sync()
    assert file.read_text() == "a:\n  at: 14:15\nb: '14:15'\n"
