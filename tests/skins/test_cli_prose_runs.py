"""The verbs of programs: run, resume, show, fork (OP-5, OP-6, OP-25)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast

PROGRAM = """input who: "For whom?"
agent critic:
  model: opus
  prompt: "Be a critic."
let draft = session "Write for {who}"
repeat 3 as i:
  draft = session: critic
    prompt: "Improve {i}"
    context: draft
output text = draft
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "store")
    monkeypatch.setenv("HOLDFAST_ACTOR", "ada")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    cli("init")
    Path("a.prose").write_text(PROGRAM)
    Path("script.json").write_text("{}")
    return tmp_path


def run(cli: Any, *words: str, **how: Any) -> Any:
    return cli("prose", "run", "a.prose", *words, "--script", "script.json", **how)


def test_a_program_is_run_and_shown(place: Path, cli: Any):
    assert run(cli, "who=ada", "--id", "one", "--json").document == {
        "run": "one",
        "status": "completed",
        "result": {"text": "ok: Improve 2"},
    }
    shown = cli("prose", "show", "one").out
    assert "status\tcompleted" in shown
    assert 'let draft\t"ok: Improve 2"' in shown
    assert cli("prose", "show", "one", "--value", "draft").out == "ok: Improve 2\n"
    assert 'no name "x"' in cli("prose", "show", "one", "--value", "x", code=3).err


def test_a_program_that_waits_is_left_answered_and_resumed(place: Path, cli: Any):
    run(cli, "--id", "one", "--leave", code=15)
    shown = cli("prose", "show", "one").out
    assert "waits for\twho: For whom?" in shown
    assert "at\ta.prose:1" in shown
    os.remove("a.prose")
    cli("runs", "answer", "one", "who", "bo")
    resumed = cli("prose", "resume", "one", "--script", "script.json", "--json").document
    assert resumed["result"] == {"text": "ok: Improve 2"}
    sessions = cli("prose", "show", "one", "--json").document["outputs"]["sessions"]
    assert [one["prompt"] for one in sessions][:2] == ["Write for bo", "Improve 0"]
    assert sessions[1]["agent"] == "critic"


def test_an_unfinished_run_is_never_inherited(place: Path, cli: Any):
    run(cli, "--id", "one", "--leave", code=15)
    assert run(cli, "who=ada", "--id", "two", "--json").document["run"] == "two"
    assert cli("prose", "show", "one", "--json").document["status"] == "waiting"
    assert 'run "one" exists' in run(cli, "--id", "one", code=4).err


def test_nothing_is_written_of_a_program_with_errors(place: Path, cli: Any):
    Path("a.prose").write_text("let x = y\nlet = 1\n")
    failed = run(cli, "--id", "one", code=2)
    assert "a.prose:1:9" in failed.err
    assert "a.prose:2" in failed.err
    assert cli("runs", "list", "--json").document["count"] == 0


def test_who_answers_is_the_users_choice(place: Path, cli: Any):
    failed = cli("prose", "run", "a.prose", "who=ada", code=2)
    assert "nobody answers" in failed.err
    Path("holdfast.toml").write_text(
        f"[agents]\ncommand = [{json.dumps(sys.executable)}, '-c', 'print(input())']\n"
    )
    Path("holdfast.toml").chmod(0o600)
    assert "not trusted" in cli("prose", "run", "a.prose", "who=ada", code=2).err
    shown = cli("trust", "--yes").out
    assert "runs agents.command" in shown
    document = cli("prose", "run", "a.prose", "who=ada", "--json").document
    assert document["result"] == {"text": "Be a critic."}


def test_an_edited_program_goes_on_where_it_can(place: Path, cli: Any):
    run(cli, "--id", "one", "--leave", code=15)
    Path("b.prose").write_text(PROGRAM.replace("Improve", "Polish"))
    cli("runs", "answer", "one", "who", "bo")
    document = cli(
        "prose", "resume", "one", "b.prose", "--script", "script.json", "--json"
    ).document
    assert document["result"] == {"text": "ok: Polish 2"}


def test_a_fork_goes_on_with_another_answer(place: Path, cli: Any):
    run(cli, "who=ada", "--id", "one")
    cli("prose", "fork", "one", "--edit", "draft=mine", "--new-id", "two")
    document = cli("prose", "resume", "two", "--script", "script.json", "--json").document
    assert document["result"] == {"text": "mine"}
    assert "computed it" in cli("prose", "fork", "one", "--edit", "text=x", code=2).err


def test_a_killed_program_is_shown_and_resumed_by_others(place: Path, cli: Any):
    """OP-5, OP-6: last session, statement, blocks and iteration, right from any process."""
    rules = {"sessions": [{"match": "Improve 1", "delay": 60}]}
    Path("slow.json").write_text(json.dumps(rules))
    words = ["prose", "run", "a.prose", "who=ada", "--id", "one", "--script", "slow.json"]
    child = subprocess.Popen([sys.executable, "-m", "holdfast", *words])
    try:
        end = time.monotonic() + 60
        shown: Any = {}
        while time.monotonic() < end:
            try:
                shown = cli("prose", "show", "one", "--json").document
            except AssertionError:  # it is not there yet
                time.sleep(0.05)
                continue
            if shown["loops"] and shown["loops"][0]["iteration"] == 2:
                break
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    [statement] = shown["flow"]["statements"]
    assert statement["path"] == "repeat[1]/session=draft"
    assert statement["source"] == "a.prose:7"
    assert statement["blocks"] == ["repeat[1]"]
    assert statement["iterations"] == ["repeat: iteration 2 of 3"]
    assert shown["flow"]["last_session"] == "repeat[0]/session=draft"
    assert shown["variables"]["draft"]["value"] == "ok: Improve 0"
    document = cli("prose", "resume", "one", "--script", "script.json", "--json").document
    assert document["result"] == {"text": "ok: Improve 2"}
    with holdfast.open("store") as store:
        done = [e for e in store.events() if e.stream == "run/one" and e.type == "run.done"]
    asked = [e.data["path"] for e in done if "session" in e.data["path"]]
    assert len(asked) == len(set(asked)) == 4


def test_a_program_in_context_is_told_shown_and_resumed(place: Path, cli: Any):
    told = run(cli, "who=ada", "--id", "one", "--in-context")
    assert json.loads(told.out) == {"text": "ok: Improve 2"}
    lines = told.err.splitlines(keepends=True)
    assert lines[0].startswith("prose transcript 1 ")
    assert cli("runs", "list", "--json").document["count"] == 0
    Path("t").write_text("".join(lines[:9]) + "prose 9 do")
    shown = cli("prose", "show", "--transcript", "t", "--json").document
    assert shown["loops"][0]["text"] == "repeat: iteration 1 of 3"
    assert shown["variables"]["draft"]["value"] == "ok: Write for ada"
    resumed = cli("prose", "resume", "--transcript", "t", "--script", "script.json")
    assert json.loads(resumed.out) == {"text": "ok: Improve 2"}
    Path("t").write_text(Path("t").read_text() + resumed.err)
    assert "status\tcompleted" in cli("prose", "show", "--transcript", "t").out
    assert "no beginning" in cli("prose", "show", "--transcript", "script.json", code=2).err


def test_a_program_in_context_that_waits_moves_to_the_store(place: Path, cli: Any):
    told = run(cli, "--id", "one", "--in-context", "--leave", code=15)
    assert "moves to the store: it waits" in told.err
    assert cli("prose", "show", "one", "--json").document["status"] == "waiting"
    Path("t").write_text(told.err)
    assert "goes on there" in cli("prose", "show", "--transcript", "t", code=2).err
    cli("runs", "answer", "one", "who", "bo")
    assert "Improve 2" in cli("prose", "resume", "one", "--script", "script.json").out


def test_a_program_that_is_too_large_for_its_context_says_so(place: Path, cli: Any):
    Path("holdfast.toml").write_text("[prose]\nlimits = { statements = 2 }\n")
    Path("holdfast.toml").chmod(0o600)
    told = run(cli, "who=ada", "--id", "one", "--in-context")
    assert "kept in the store" in told.err
    assert cli("prose", "show", "one", "--json").document["status"] == "completed"


def test_a_modified_constant_is_restored(place: Path, cli: Any):
    Path("a.prose").write_text(
        'const x = session "a"\nsession "b"\ninput go: "Go?"\nsession "{x}"\noutput x\n'
    )
    run(cli, "--id", "one", "--views", ".prose", "--leave", code=15)
    view = Path(".prose/state/x.md")
    assert view.read_text().startswith("# CONSTANT: x - DO NOT MODIFY\n")
    view.write_text("mine")
    cli("runs", "answer", "one", "go", "1")
    parked = cli("prose", "resume", "one", "--script", "script.json", code=13)
    assert "was modified" in parked.err
    cli("prose", "restore", "one", "x")
    assert cli("prose", "resume", "one", "--script", "script.json").out == "ok: a\n"
    failed = run(cli, "--id", "one", "--views", ".prose", code=4)
    assert "exists already" in failed.err


def test_one_unfinished_run_per_view_directory(place: Path, cli: Any):
    run(cli, "--id", "one", "--views", ".prose", "--leave", code=15)
    failed = run(cli, "who=ada", "--id", "two", "--views", ".prose", code=4)
    assert 'shows run "one"' in failed.err
    cli("runs", "cancel", "one")
    run(cli, "who=ada", "--id", "two", "--views", ".prose")
    assert Path(".prose/run").read_text() == "two\n"
    assert "keeps nothing" in run(cli, "--in-context", "--views", ".prose", code=2).err
    run(cli, "who=ada", "--id", "three")
    assert "without --views" in cli("prose", "restore", "three", "draft", code=2).err


def test_the_errors_of_a_program_stand_on_lines_of_their_own(place: Path, cli: Any):
    Path("a.prose").write_text("let x = y\nlet = 1\n")
    lines = run(cli, "--id", "one", code=2).err.splitlines()
    assert lines[0] == "error: a.prose has 2 errors; nothing was run"
    assert lines[1:4] == [
        'a.prose:1:9: error: "y" is not bound before [unbound]',
        "    let x = y",
        "            ^",
    ]


def test_a_failed_program_says_where_and_shows_no_python(place: Path, cli: Any):
    Path("a.prose").write_text('let x = 1\nsession "bad" (retry: 2)\n')
    script = {"sessions": [{"match": "bad", "answer": {"fail": "no money"}}]}
    Path("script.json").write_text(json.dumps(script))
    failed = run(cli, "--id", "one", code=12)
    assert "AgentError: no money" in failed.err
    assert "Traceback" not in failed.err
    shown = cli("prose", "show", "one").out
    assert "failed at\ta.prose:2, attempt 3 of 3" in shown


def test_an_id_that_is_taken_says_what_to_type(place: Path, cli: Any):
    run(cli, "who=ada", "--id", "one")
    assert "hint: holdfast prose resume one" in run(cli, "who=ada", "--id", "one", code=4).err


def test_a_modified_constant_says_what_to_type(place: Path, cli: Any):
    Path("a.prose").write_text('const a = session "one"\ninput go: "Go?"\nsession "two"\n')
    run(cli, "--id", "one", "--views", "shown", "--leave", code=15)
    Path("shown/state/a.md").write_text("something else")
    cli("runs", "answer", "one", "go", "yes")
    parked = cli("prose", "resume", "one", "--script", "script.json", code=13)
    assert "hint: put that right, then holdfast prose resume one" in parked.err
