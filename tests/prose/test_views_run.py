"""Programs whose state is shown as files (OP-10..OP-14, OP-18, OP-23, OP-24, OP-29)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import holdfast
from holdfast import NeedsAttentionError, Store
from holdfast.agents import Answer, Call, Scripted
from holdfast.errors import ExistsError, UnavailableError
from holdfast.prose.program import gather_text, start
from holdfast.prose.settings import Settings
from holdfast.prose.variables import variables_of
from holdfast.prose.view_files import ViewDirectory
from holdfast.prose.views import read_const, read_let, render_const
from holdfast.runs.engine import Engine
from tests.prose.cutting import assert_ends, go_on, opened
from tests.prose.samples import BY_NAME, Sample
from tests.runs.cuts import Cut, settle, until

ID = "p"
ROOT = Path(__file__).parents[2]


class Editing(Scripted):
    """A script that does something to the files while a session is asked."""

    def __init__(self, script: dict[str, Any], act: Any) -> None:
        super().__init__(script)
        self._act = act
        self.calls: list[Call] = []

    def answer(self, call: Call, /) -> Answer:
        self.calls.append(call)
        self._act(call)
        return super().answer(call)


@pytest.fixture
def hf() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        yield store


def shown(hf: Store, place: Path, text: str, act: Any = lambda call: None, **how: Any) -> Any:
    agent = Editing(how.pop("script", {}), act)
    hf.runs.use_executor(agent)
    settings = Settings(backoff_scale=0.0, views=str(place), **how)
    return start(hf, gather_text(text), id=ID, settings=settings), agent


def test_views_are_off_unless_asked_for(hf: Store, tmp_path: Path, monkeypatch: Any):
    """OP-29."""
    monkeypatch.chdir(tmp_path)
    hf.runs.use_executor(Scripted({}))
    start(hf, gather_text('const x = session "a"\n'), id=ID).result()
    assert list(tmp_path.iterdir()) == []


def test_variables_are_files(hf: Store, tmp_path: Path):
    """OP-10, OP-12, OP-13: the output stands there byte for byte."""
    said = "one\r\ntwo\n\n"
    script = {"sessions": [{"match": "a", "answer": said}]}
    text = 'const x = session "a"\nlet y = session "b"\ny = session "c"\nlet n = [1]\n'
    shown(hf, tmp_path, text, script=script)[0].result()
    const = (tmp_path / "state" / "x.md").read_bytes()
    first, digest, body = const.split(b"\n", 2)
    assert first == b"# CONSTANT: x - DO NOT MODIFY"
    assert digest.startswith(b"<!-- sha256 ")
    assert body == said.encode()
    let = (tmp_path / "state" / "y.md").read_bytes()
    assert let.startswith(b"<!-- updated 20")
    assert let.partition(b"\n")[2] == b"ok: c"
    assert read_let((tmp_path / "state" / "n.md").read_bytes()) == [1]


def test_inner_names_stand_below_their_block(hf: Store, tmp_path: Path):
    text = 'repeat 2:\n  let z = session "a"\n  session "b"\n'
    shown(hf, tmp_path, text)[0].result()
    assert (tmp_path / "state" / "repeat[1]" / "z.md").read_bytes().endswith(b"ok: a")
    assert not (tmp_path / "state" / "z.md").exists()


def test_a_checkpoint_is_written_before_each_session(hf: Store, tmp_path: Path):
    """OP-23, OP-24."""
    found: list[Any] = []

    def look(call: Call) -> None:
        found.append(json.loads((tmp_path / "checkpoint.json").read_text()))

    text = 'let x = session "a"\nsession "b"\n'
    shown(hf, tmp_path, text, look)[0].result()
    assert [one["position"]["source"] for one in found] == ["program.prose:1", "program.prose:2"]
    assert found[1]["bindings"] == {"x": "ok: a"}
    assert found[1]["context"] == {}


@pytest.mark.parametrize(("count", "are_there"), [(4, False), (5, True)])
def test_many_branches_have_files(hf: Store, tmp_path: Path, count: int, are_there: bool):
    """OP-18."""
    arms = "".join(f'  b{n} = session "{n}"\n' for n in range(count))
    shown(hf, tmp_path, f"parallel:\n{arms}")[0].result()
    path = tmp_path / "parallel" / "parallel" / "b3.md"
    assert path.exists() == are_there
    assert not are_there or path.read_bytes() == b"ok: 3"


def test_an_edited_let_is_imported(hf: Store, tmp_path: Path):
    def edit(call: Call) -> None:
        if call.prompt == "b":
            path = tmp_path / "state" / "x.md"
            path.write_bytes(path.read_bytes().replace(b"ok: a", b"mine"))

    text = 'let x = session "a"\nsession "b"\nsession "{x}"\noutput x\n'
    run, agent = shown(hf, tmp_path, text, edit)
    assert run.result() == "mine"
    assert [call.prompt for call in agent.calls] == ["a", "b", "mine"]
    assert read_let((tmp_path / "state" / "x.md").read_bytes()) == "mine"


def spoil(tmp_path: Path) -> Any:
    def edit(call: Call) -> None:
        if call.prompt == "b":
            (tmp_path / "state" / "x.md").write_bytes(render_const("x", "forged"))

    return edit


GUARDED = 'const x = session "a"\nsession "b"\nsession "{x}"\noutput x\n'


def const_is_guarded(place: Path) -> bool:
    """Says whether a const whose file was modified, digest and all, parks the program."""
    with holdfast.open("memory:") as hf:
        run, agent = shown(hf, place, GUARDED, spoil(place))
        try:
            run.result(timeout=60)
        except NeedsAttentionError as parked:
            return "was modified" in parked.reason and len(agent.calls) == 2
        return False


def test_an_edited_const_parks_the_program_and_is_restored(hf: Store, tmp_path: Path):
    """OP-11: a digest that fits does not help: the store has the value."""
    assert const_is_guarded(tmp_path / "guard")
    run, agent = shown(hf, tmp_path, GUARDED, spoil(tmp_path))
    with pytest.raises(NeedsAttentionError, match="prose restore p x"):
        run.result(timeout=60)
    until(run, "needs_attention")
    [value] = [one.entry.value for one in variables_of(run.journal).values() if one.name == "x"]
    ViewDirectory(tmp_path).write(
        "state/x.md", render_const("x", hf._kernel.part(Engine).load(value))
    )
    assert hf.runs.resume(ID).result() == "ok: a"
    assert [call.prompt for call in agent.calls] == ["a", "b", "ok: a"]


def test_a_file_that_is_gone_is_written_again(hf: Store, tmp_path: Path):
    """OP-14: what is long past is shown to a new process, too."""

    def remove(call: Call) -> None:
        if call.prompt == "b":
            (tmp_path / "state" / "x.md").unlink()

    shown(hf, tmp_path, GUARDED, remove)[0].result()
    assert read_const("x", (tmp_path / "state" / "x.md").read_bytes()) == "ok: a"


def test_long_values_are_passed_by_their_view(hf: Store, tmp_path: Path):
    """OP-13: a value that is too long for the context is read from its file."""
    text = 'const x = session "long"\nsession "use"\n  context: x\n'
    script = {"sessions": [{"match": "long", "answer": "l" * 30}]}
    limits = {"verbatim_max": 10, "summarised_max": 20}
    run, agent = shown(hf, tmp_path, text, script=script, **limits)
    run.result()
    place = tmp_path / "state" / "x.md"
    assert agent.calls[1].context[0][1].endswith(f"to be read at: {place})")
    assert read_const("x", place.read_bytes()) == "l" * 30


def test_a_directory_shows_one_unfinished_run(tmp_path: Path):
    views = ViewDirectory(tmp_path)
    views.claim("a", lambda run: True)
    views.write("state/x.md", b"x")
    with pytest.raises(ExistsError, match='run "a"'):
        views.claim("b", lambda run: True)
    assert (tmp_path / "state" / "x.md").exists()
    views.claim("b", lambda run: False)
    assert not (tmp_path / "state").exists()


def test_views_that_cannot_be_written_park_the_program(hf: Store, tmp_path: Path):
    place = tmp_path / "views"
    place.write_text("a file in the way")
    run, agent = shown(hf, place, 'session "a"\n')
    with pytest.raises(NeedsAttentionError, match="cannot be"):
        run.result(timeout=60)
    until(run, "needs_attention")
    place.unlink()
    assert hf.runs.resume(ID).result() == "ok: a"
    assert len(agent.calls) == 1


# --- cut while views are written ------------------------------------------------------------------

SAMPLES = [
    BY_NAME[name]
    for name in ("chain", "reassigned", "repeat", "arms_bind", "if_arms", "loop_while", "blocks")
]


def cut_in_a_write(sample: Sample, url: str, place: Path, number: int) -> bool:
    """Cuts a program before its nth write of a view, and resumes it; False if it has fewer."""
    store, backend, _ = opened(url, sample)
    write = ViewDirectory.write
    left = [number]

    def counted(self: Any, path: str, data: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            backend.is_dead = True
            raise Cut("in a write")
        write(self, path, data)

    settings = Settings(backoff_scale=0.0, views=str(place))
    try:
        with patch.object(ViewDirectory, "write", counted):
            run = start(store, sample.program, sample.inputs, id=ID, settings=settings)
            run.result(timeout=60)
    except (Cut, UnavailableError):
        settle(store)
        store.close()
        store, _, watched = opened(url, sample)
        with store:
            assert_ends(store, sample, go_on(store, sample, watched))
            assert_shown(store, place)
        return True
    with store:
        assert_shown(store, place)
    return False


def assert_shown(store: Store, place: Path) -> None:
    """Every name of the program is shown as the store has it."""
    for (scope, name), one in variables_of(store.runs.get(ID).journal).items():
        if scope:
            continue
        data = (place / "state" / f"{name}.md").read_bytes()
        value = read_const(name, data) if one.kind == "const" else read_let(data)
        assert value == store._kernel.part(Engine).load(one.entry.value), name


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_program_cut_in_a_write_of_a_view_goes_on(sample: Sample, tmp_path: Path):
    number = 1
    while cut_in_a_write(
        sample, str(tmp_path / f"store{number}"), tmp_path / f"views{number}", number
    ):
        number += 1
    assert number > 2


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=lambda n: SAMPLES[n].name)
def test_a_program_killed_in_a_write_of_a_view_goes_on(number: int, tmp_path: Path):
    """SIGKILL between the file that is written and the one that is replaced, or right after."""
    sample, views = SAMPLES[number], tmp_path / "views"
    url, when = str(tmp_path / "store"), ("before", "after")[number % 2]
    words = [sys.executable, "-m", "tests.prose.cutting", url, sample.name, "view"]
    words += [str(1 + number % 3), when, str(views)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    store, _, watched = opened(url, sample)
    with store:
        assert_ends(store, sample, go_on(store, sample, watched))
        assert_shown(store, views)
