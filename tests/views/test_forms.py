"""YAML, JSON and TSV files: what is not ours stays, what cannot be believed is refused."""

from __future__ import annotations

import json
import random
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Scope, Store
from holdfast.views import (
    JsonMapping,
    TsvRows,
    Views,
    YamlList,
    YamlMapping,
    backlog,
    catch_rows,
    decision_index,
    decision_list,
    event_rows,
    keel_state,
    state_file,
)
from holdfast.views.item import BrokenFile
from holdfast.views.kinds import KEEL

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "a",
    "é 漢",
    "",
    "x: y",
    "# no",
    "- z",
    "'q'",
    '"d"',
    "1",
    "true",
    "null",
    " s ",
    "\n",
    "~",
]

SCALARS = ["1", "text", "null", "true", "1.50", '"q"']


def value(draw: random.Random, depth: int = 2) -> Any:
    kind = draw.randrange(7 if depth else 5)
    if kind < 5:
        return draw.choice([None, True, draw.randrange(-9, 99), 1.5, draw.choice(WORDS)])
    if kind == 5:
        return [value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {draw.choice(WORDS): value(draw, depth - 1) for _ in range(draw.randrange(4))}


def json_text(draw: random.Random) -> str:
    known = {draw.choice(WORDS): value(draw) for _ in range(draw.randrange(5))}
    indent = draw.choice([None, 2, 4, 1])
    text = json.dumps(known, indent=indent, ensure_ascii=draw.random() < 0.5)
    return text + draw.choice(["", "\n", "\r\n", "  \n"])


def yaml_text(draw: random.Random) -> str:
    lines: list[str] = []
    for number in range(draw.randrange(6)):
        if draw.random() < 0.4:
            lines.append(draw.choice(["# a comment", "", "# é", "   "]))
        key = f"key{number}"
        lines += draw.choice(
            [
                [f"{key}: {draw.choice(SCALARS)}"],
                [f"{key}: [a,  b,c]  # flow"],
                [f"{key}:", "  - one", "  - two   # second", "", "  - three"],
                [f"{key}:", "- one", "- x: 1", "  y: 2"],
                [f"{key}: |", "  block", "   text", ""],
                [f"{key}: {{a: 1, b: [2]}}"],
                [f"{key}:", "    deep:", "        deeper: 'x'  # c"],
            ]
        )
    end = draw.choice(["\n", "\n", "\r\n"])
    return end.join(lines) + draw.choice(["", end])


@pytest.mark.parametrize(
    ("form", "make"), [(JsonMapping(), json_text), (YamlMapping(), yaml_text)], ids=["json", "yaml"]
)
def test_generated_files_come_back_byte_for_byte(
    form: Any, make: Callable[[random.Random], str]
) -> None:
    believed = 0
    for number in range(400):
        draw = random.Random(number)
        data = make(draw).encode()
        try:
            document = form.parse(data)
        except BrokenFile:
            continue
        believed += 1
        assert form.splice(document, {}).encode() == data
        known = {item.id: item.fields for item in document.items}
        wanted = dict(known)
        for id in list(wanted)[:1]:
            wanted[id] = {"value": value(draw)}
        wanted["a new one"] = {"value": value(draw)}
        spliced = form.splice(document, wanted)
        again = form.parse(spliced.encode())
        assert {item.id: item.fields for item in again.items} == wanted, data
        left = form.splice(again, {"a new one": wanted["a new one"]}, hidden=known)
        assert [item.id for item in form.parse(left.encode()).items] == ["a new one"]
    assert believed > 200


def test_real_files_come_back_byte_for_byte() -> None:
    places = [ROOT, Path(sysconfig.get_paths()["purelib"])]
    for suffix, form in (
        (".json", JsonMapping()),
        (".yaml", YamlMapping()),
        (".yml", YamlMapping()),
    ):
        found = sorted(path for place in places for path in place.rglob(f"*{suffix}"))[:100]
        for path in found:
            data = path.read_bytes()
            if len(data) > 30_000:
                continue
            try:
                document = form.parse(data)
            except BrokenFile:
                continue
            assert form.splice(document, {}).encode() == data, path


def test_a_changed_item_of_a_backlog_keeps_its_comments() -> None:
    text = (
        "# top\nbacklog:\n  # first\n  - id: t1\n    title: 'one'  # named\n    status: open\n"
        "    tags: [a,b]\n\n  # second\n  - title: two\n    status: blocked\nother: 1\n"
    )
    form = YamlList()
    document = form.parse(text.encode())
    assert [item.id for item in document.items] == ["t1", None]
    assert form.splice(document, {}).encode() == text.encode()
    items = {"t1": {"title": "one", "status": "completed", "tags": ("a", "b")}}
    spliced = form.splice(document, {**items, "t2": document.items[1].fields}, ids={1: "t2"})
    assert spliced.encode().decode() == (
        "# top\nbacklog:\n  # first\n  - id: t1\n    title: 'one'  # named\n    status: completed\n"
        "    tags: [a, b]\n\n  # second\n  - title: two\n    status: blocked\n    id: t2\n"
        "other: 1\n"
    )


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (JsonMapping(), b'{"a": 1'),
        (JsonMapping(), b'{"a": NaN}'),
        (JsonMapping(), b"[1]"),
        (JsonMapping(), b'{"a": 1, "a": 2}'),
        (YamlMapping(), b"a: [1"),
        (YamlMapping(), b"a: !!python/object/apply:os.system [x]"),
        (YamlMapping(), b"1: x"),
        (YamlMapping(), b"a: .nan"),
        (YamlMapping(), b"<<<<<<< a\nx: 1\n=======\nx: 2\n>>>>>>> b\n"),
        (YamlList(), b"backlog: 7"),
        (TsvRows(("a", "b")), b"1\t2\t3\n"),
    ],
)
def test_what_cannot_be_believed_is_refused(form: Any, data: bytes) -> None:
    with pytest.raises(BrokenFile):
        form.parse(data)


def test_aliases_do_not_make_more_of_a_file_than_stands_in_it() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, 9):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]")
    with pytest.raises(BrokenFile, match="aliases"):
        YamlMapping().parse("\n".join(lines).encode())


# --- in a directory -------------------------------------------------------------------------------


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "store", actor="agent", durability="process") as store:
        yield store


@pytest.fixture
def red(hf: Store) -> Scope:
    return hf.team("red")


def edit(views: Views, file: str, change: Callable[[str], str]) -> list[str]:
    path = views.directory / file
    beside = path.with_name("beside")
    beside.write_text(change(path.read_text()))
    beside.replace(path)
    return sorted(one.kind for one in views.sync())


def test_the_folder_alone_answers_what_the_state_is_now(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    """BOOT-28: an operator reads the state with no tool; an edit takes effect."""
    views = hf.views(tmp_path, [state_file(red, "red.json"), state_file(red, "red.yaml")])
    red.update({"stage": "triage", "open": [1, 2]})
    views.sync()
    assert json.loads((tmp_path / "red.json").read_text()) == red.state.to_dict()
    assert edit(views, "red.yaml", lambda text: f"# mine\n{text}note: 'hi'\n") == ["added"]
    assert edit(views, "red.json", lambda text: text.replace("triage", "done")) == ["changed"]
    assert red.state.to_dict() == {"stage": "done", "open": [1, 2], "note": "hi"}
    assert "note: 'hi'\n" in (tmp_path / "red.yaml").read_text()
    assert (tmp_path / "red.yaml").read_text().startswith("# mine\nstage: done\n")
    red.delete("note")
    views.sync()
    assert "note" not in (tmp_path / "red.yaml").read_text()


def test_a_backlog_and_a_runtime_state(hf: Store, red: Scope, tmp_path: Path) -> None:
    """BOOT-21, BOOT-22, BOOT-24, BOOT-25."""
    views = hf.views(tmp_path, [backlog(red), keel_state(red)], person="ann")
    red.tasks.add("build it", priority="high", epic="web", tags=["form"])
    views.sync()
    assert (
        "    priority: high\n    status: open\n    epic: web\n"
        in (tmp_path / "backlog.yaml").read_text()
    )
    assert edit(views, "backlog.yaml", lambda text: text.replace("open", "finished")) == ["refused"]
    assert red.tasks.get("t1").status == "open"
    assert "status: open" in (tmp_path / "backlog.yaml").read_text()
    assert edit(views, "backlog.yaml", lambda text: text + "  - title: rest\n") == ["added"]
    assert edit(
        views, ".keel-state", lambda text: text.replace('"officer": null', '"officer": "ann"')
    ) == ["changed"]
    assert red.state["keel"]["officer"] == "ann"
    (tmp_path / ".keel-state").unlink()
    views.sync()
    assert json.loads((tmp_path / ".keel-state").read_text())["officer"] == "ann"


def test_a_runtime_state_that_is_lost_is_rendered_anew(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    """BOOT-21: also without the last text of it; what nobody has set has a default."""
    red.set(("keel", "officer"), "ann")
    path = tmp_path / ".keel-state"
    with hf.views(tmp_path, [keel_state(red)]) as views:
        views.sync()
        whole = json.loads(path.read_text())
    assert whole == {**KEEL, "officer": "ann"}
    path.unlink()
    shutil.rmtree(tmp_path / ".holdfast-views")
    with hf.views(tmp_path, [keel_state(red)]) as views:
        assert views.sync() == []
        assert json.loads(path.read_text()) == whole
        edit(views, ".keel-state", lambda text: text.replace('  "gate": null,\n', ""))
        assert json.loads(path.read_text()) == whole
        assert edit(views, ".keel-state", lambda _: '{"officer": "bob"}\n') == ["pending"]
        views.accept(".keel-state")
        assert json.loads(path.read_text()) == {**KEEL, "officer": "bob"}


MISFITS = {
    "a status that is none": ("status: open", "status: finished"),
    "a field that is none": ("    status: open", "    colour: red\n    status: open"),
    "a title that is no text": ("title: build it", "title: 3"),
    "no title": ("    title: build it\n", ""),
    "tags that are no list": ("    status: open", "    tags: web\n    status: open"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_an_edit_that_breaks_the_schema_of_a_backlog(
    misfit: str, hf: Store, red: Scope, tmp_path: Path
) -> None:
    """It is refused with a diff, and the file is what the events say."""
    views = hf.views(tmp_path, [backlog(red)], person="ann")
    red.tasks.add("build it")
    views.sync()
    path = tmp_path / "backlog.yaml"
    good, length = path.read_text(), len(list(red.history()))
    path.write_text(good.replace(*MISFITS[misfit]))
    [found] = views.sync()
    assert (found.kind, found.item) == ("refused", "t1")
    assert found.diff
    assert sorted(path.read_text().splitlines()) == sorted(good.splitlines())
    assert len(list(red.history())) == length


@pytest.mark.parametrize("id", ["", "id: x\n    "])
@pytest.mark.parametrize(
    ("bad", "mended"),
    [
        ("status: finished\n    title: rest\n", "status: open\n    title: rest\n"),
        ("status: open\n", "title: rest\n"),
    ],
)
def test_a_new_entry_that_breaks_the_schema_waits_until_it_is_mended(
    id: str, bad: str, mended: str, hf: Store, red: Scope, tmp_path: Path
) -> None:
    views = hf.views(tmp_path, [backlog(red)], person="ann")
    red.tasks.add("build it")
    views.sync()
    good = (tmp_path / "backlog.yaml").read_text()
    wrong, right = (f"{good}  - {id}{entry}" for entry in (bad, mended))
    assert edit(views, "backlog.yaml", lambda _: wrong) == ["refused"]
    assert [task.title for task in red.tasks.list()] == ["build it"]
    assert (tmp_path / "backlog.yaml").read_text() == wrong
    assert edit(views, "backlog.yaml", lambda _: right) == ["added"]
    assert [task.title for task in red.tasks.list()] == ["build it", "rest"]


def test_a_backlog_of_others_keeps_a_copy_of_what_does_not_fit(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    (tmp_path / "backlog.yaml").write_text("backlog:\n  - title: one\n    colour: red\n")
    assert [one.kind for one in hf.views(tmp_path, [backlog(red)]).sync()] == ["refused"]
    [kept] = tmp_path.glob("backlog.yaml.unknown-*")
    assert "colour: red" in kept.read_text()


@pytest.mark.parametrize("text", ["backlog: 7\n", "backlog: [\n"])
def test_a_backlog_that_cannot_be_read_is_rebuilt_when_it_is_rejected(
    text: str, hf: Store, red: Scope, tmp_path: Path
) -> None:
    views = hf.views(tmp_path, [backlog(red)], person="ann")
    red.tasks.add("build it")
    views.sync()
    path = tmp_path / "backlog.yaml"
    good = path.read_text()
    assert edit(views, "backlog.yaml", lambda _: text) == ["broken"]
    assert views.status()[0].status == "broken"
    views.reject("backlog.yaml")
    assert path.read_text() == good
    assert views.status()[0].status == "fresh"
    [kept] = tmp_path.glob("backlog.yaml.rejected-*")
    assert kept.read_text() == text


def test_the_status_names_what_was_written_past_the_lock(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    """BOOT-74: a write to a file that went past the lock of its directory, when and what."""
    views = hf.views(tmp_path, [backlog(red), keel_state(red)])
    red.tasks.add("build it")
    views.sync()
    assert [one.changed_at for one in views.status()] == [None, None]
    path = tmp_path / "backlog.yaml"
    path.write_text("# by another tool\n" + path.read_text())
    found = {one.file: one for one in views.status()}
    assert found["backlog.yaml"].status == "edited"
    assert found["backlog.yaml"].changed_at is not None
    assert "+# by another tool" in found["backlog.yaml"].diff
    assert found[".keel-state"].changed_at is None


ENTRY = """  - date: "2026-03-04"
    time: "08:30"
    type: L11
    agent: Weaver
    commit: dd23fa3
    ref: null
    summary: "Cross-model triangulation"
    backrefs: [catch-log.tsv]
"""


def test_files_that_only_grow(hf: Store, red: Scope, tmp_path: Path) -> None:
    """BOOT-18, BOOT-23: new entries are imported, changed and removed ones are refused."""
    views = hf.views(tmp_path, [event_rows(red), catch_rows(red)], person="ann")
    red.record("deployed", {"summary": "went live"}, refs=["file:a.md"], unchecked=True)
    red.decisions.catch("not written down")
    views.sync()
    before = {file: (tmp_path / file).read_text() for file in views.files}
    assert edit(views, "events.yaml", lambda text: text + ENTRY) == ["added"]
    row = "2026-01-01\treview\tsomething\tWeaver\tfixed\n"
    assert edit(views, "catch-log.tsv", lambda text: text + row) == ["added"]
    assert (tmp_path / "events.yaml").read_text() == before["events.yaml"] + ENTRY
    assert red.decisions.catches()[-1].caught == "something"
    assert (red.decisions.catches()[-1].actor, red.decisions.catches()[-1].outcome) == (
        "ann",
        "fixed",
    )
    red.record("deployed", {"summary": "again"}, unchecked=True)
    views.sync()
    for file in views.files:
        whole = (tmp_path / file).read_text()
        changed = edit(
            views, file, lambda text: text.replace("went live", "x").replace("not w", "x")
        )
        assert changed == ["refused"]
        assert (tmp_path / file).read_text() == whole
        lines = whole.splitlines(keepends=True)
        cut = "".join(lines[:1] + lines[8:]) if "yaml" in file else "".join(lines[:1] + lines[2:])
        assert edit(views, file, lambda text, cut=cut: cut) == ["refused"]
        assert (tmp_path / file).read_text() == whole
    assert {one.status for one in views.status()} == {"fresh"}


def test_decisions_and_their_index(hf: Store, red: Scope, tmp_path: Path) -> None:
    """BOOT-20: standing orders and a window over the newest decisions."""
    views = hf.views(tmp_path, [decision_list(red), decision_index(red, recent=2)], person="ann")
    red.decide("always test", standing=True, owner="bob")
    for number in range(3):
        red.decide(f"step {number}", owner="bob")
    views.sync()
    index = (tmp_path / "session-decisions-index.yaml").read_text()
    assert "always test" in index
    assert "step 0" not in index
    assert "step 0" in (tmp_path / "DECISIONS.md").read_text()
    assert edit(views, "DECISIONS.md", lambda text: text.replace("step 0", "other")) == ["refused"]
    assert edit(views, "DECISIONS.md", lambda text: text + "- [ ] go on; why it works\n") == [
        "added"
    ]
    newest = red.decisions.recall().recent[0]
    assert (newest.decision, newest.rationale, newest.owner) == ("go on", "it works", "ann")
    name = "session-decisions-index.yaml"
    views.sync()
    added = edit(views, name, lambda text: text.replace("orders:\n", "orders:\n- be kind\n"))
    assert added == ["changed"]
    assert [one.decision for one in red.decisions.recall().orders] == ["always test", "be kind"]
    assert edit(views, name, lambda text: text.replace("be kind", "be cruel")) == ["refused"]


@pytest.mark.parametrize("file", ["red.json", "red.yaml"])
@pytest.mark.parametrize("said", ["true", "1.0"])
def test_a_value_that_python_takes_for_the_same_is_an_edit(
    file: str, said: str, hf: Store, red: Scope, tmp_path: Path
) -> None:
    """1, 1.0 and true are equal in Python, and three values to whoever wrote them."""
    views = hf.views(tmp_path, [state_file(red, file)])
    red.set("n", 1)
    red.set("in", {"n": 1})
    views.sync()
    assert edit(views, file, lambda text: text.replace("1", said)) == ["changed", "changed"]
    wanted = json.loads(said)
    for value in (red.get("n"), red.get(("in", "n"))):
        assert (value, type(value)) == (wanted, type(wanted))
    assert (tmp_path / file).read_text().count(said) == 2


def test_a_file_of_events_that_goes_on_after_its_list(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    """Rows are added to the list, wherever it stands, and as far in as its own are."""
    views = hf.views(tmp_path, [event_rows(red)], person="ann")
    red.record("seen", {"summary": "one"}, unchecked=True, refs=["file:a", "file:b"])
    views.sync()
    added = "\n# of mine\nother:\n- kept\n"
    assert edit(views, "events.yaml", lambda text: text + added) == []
    red.record("seen", {"summary": "two"}, unchecked=True)
    assert views.sync() == []
    text = (tmp_path / "events.yaml").read_text()
    assert text.endswith(f"summary: two\n{added}")


def test_a_file_of_events_that_cannot_be_added_to(hf: Store, red: Scope, tmp_path: Path) -> None:
    """It is told, and left as it is; it was an exception of every sync after it."""
    (tmp_path / "events.yaml").write_text("events: [{type: seen, summary: typed}]\n")
    views = hf.views(tmp_path, [event_rows(red), state_file(red, "red.json")], person="ann")
    assert [one.kind for one in views.sync() if one.file == "events.yaml"] == ["added"]
    red.record("seen", {"summary": "two"}, unchecked=True)
    red.set("n", 1)
    [found] = views.sync()
    assert found.kind == "broken"
    assert "one line" in found.message
    assert [one.status for one in views.status()] == ["broken", "fresh"]
    assert (tmp_path / "events.yaml").read_text() == "events: [{type: seen, summary: typed}]\n"


@pytest.mark.parametrize("view", [event_rows, catch_rows])
def test_a_row_that_was_moved_is_not_recorded_twice(
    view: Callable[[Scope], Any], hf: Store, red: Scope, tmp_path: Path
) -> None:
    made = view(red)
    views = hf.views(tmp_path, [made], person="ann")
    for number in range(3):
        red.record("seen", {"summary": f"event {number}"}, unchecked=True)
        red.decisions.catch(f"caught {number}")
    views.sync()
    good, revision = (tmp_path / made.path).read_text(), red.revision

    def swap(text: str) -> str:
        text = text.replace("event 0", "@").replace("event 1", "event 0").replace("@", "event 1")
        return (
            text.replace("caught 0", "@").replace("caught 1", "caught 0").replace("@", "caught 1")
        )

    assert set(edit(views, made.path, swap)) == {"refused"}
    assert red.revision == revision
    assert (tmp_path / made.path).read_text() == good


def test_an_index_of_decisions_that_was_put_in_another_order(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    """What is put back is refused aloud; comments between other entries stay."""
    views = hf.views(tmp_path, [decision_index(red)], person="ann")
    for number in range(3):
        red.decide(f"decision {number}")
    views.sync()
    path = tmp_path / "session-decisions-index.yaml"
    edit(views, path.name, lambda text: text.replace("  decision: d", "  # mine\n  decision: d", 1))
    lines = path.read_text().splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.startswith("- id")]
    entries = [lines[at[0] : at[1]], lines[at[2] :], lines[at[1] : at[2]]]
    swapped = "".join([*lines[: at[0]], *(line for entry in entries for line in entry)])
    assert edit(views, path.name, lambda _: swapped) == ["refused"]
    assert path.read_text() == "".join(lines)


def test_a_default_that_was_removed_is_not_called_deleted(
    hf: Store, red: Scope, tmp_path: Path
) -> None:
    views = hf.views(tmp_path, [keel_state(red)], person="ann")
    views.sync()
    assert edit(views, ".keel-state", lambda text: text.replace('  "gate": null,\n', "")) == [
        "refused"
    ]


def test_an_entry_that_was_refused_is_told_once(hf: Store, red: Scope, tmp_path: Path) -> None:
    """Later edits of other lines do not name it again, with a difference that is not about it."""
    views = hf.views(tmp_path, [backlog(red)], person="ann")
    red.tasks.add("build it")
    views.sync()
    bad = "  - title: rest\n    priority: [1]\n"
    assert edit(views, "backlog.yaml", lambda text: text + bad) == ["refused"]
    assert edit(views, "backlog.yaml", lambda text: f"# mine\n{text}") == []
    assert edit(views, "backlog.yaml", lambda text: text.replace("build", "make")) == ["changed"]
