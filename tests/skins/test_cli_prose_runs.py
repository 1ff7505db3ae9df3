"""The verbs of programs: run, resume, show, fork (OP-5, OP-6, OP-25)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import holdfast
from tests.skins.test_cli_process import heed_interrupts

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


def test_an_id_that_a_table_cut_is_enough(place: Path, cli: Any):
    run(cli, "--id", "a-long-name-for-a-run", "--views", "state", "--leave", code=15)
    for cut in ("a-long-name…", "a-long"):
        assert "waits for" in cli("prose", "show", cut).out
        assert 'has no name "draft"' in cli("prose", "restore", cut, "draft", code=3).err
    cli("runs", "answer", "a-long", "who", "bo")
    resumed = cli("prose", "resume", "a-long…", "--script", "script.json", "--json").document
    assert resumed["run"] == "a-long-name-for-a-run"
    Path("state/bindings/draft.md").unlink(missing_ok=True)
    cli("prose", "restore", "a-long-name…", "draft")
    for verb in (["show", "other"], ["resume", "other", "--script", "script.json"]):
        assert 'no run "other"' in cli("prose", *verb, code=3).err


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
    """OP-4: five kinds, each a part of its own; OP-5, OP-6: right from any process."""
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
    answered = [one["state"] for one in shown["outputs"]["sessions"]]
    assert answered == ["done", "done", "open"]
    assert shown["loops"][0]["text"] == "repeat: iteration 2 of 3"
    assert shown["recovery"]["attempts"] == []
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


# --- files, places and programs from elsewhere ----------------------------------------------------


def test_what_cannot_be_read_says_so_in_words(place: Path, cli: Any):
    Path("folder").mkdir()
    Path("latin.prose").write_bytes(b'let x = "a"\nlet y = "\xe4"\n')
    for verb in (["check"], ["run", "--script", "script.json"]):
        said = cli("prose", *verb, "folder", code=8).err
        assert said == 'error: the file "folder" cannot be read: Is a directory\n'
        assert 'there is no file "none.prose"' in cli("prose", *verb, "none.prose", code=3).err
    said = run_file(cli, "latin.prose", code=2).err
    assert "latin.prose:2:10: error: the byte 0xe4 is no UTF-8 here" in said
    said = cli("prose", "show", "--transcript", "folder", code=8).err
    assert said == 'error: transcript "folder" cannot be read: Is a directory\n'


def run_file(cli: Any, file: str, *words: str, **how: Any) -> Any:
    return cli("prose", "run", file, *words, "--script", "script.json", **how)


@pytest.mark.parametrize(
    "words",
    [
        ["a.prose", "who=ada", "--views"],
        ["a.prose", "--views", "who=ada"],
        ["--views", "a.prose", "who=ada"],
        ["a.prose", "who=ada", "--views", "--json"],
        ["a.prose", "who=ada", "--views", ".prose"],
    ],
)
def test_views_are_in_a_directory_of_their_own_unless_it_is_named(
    place: Path, cli: Any, words: list[str]
):
    cli("prose", "run", *words, "--script", "script.json")
    assert Path(".prose/state/draft.md").read_text().endswith("ok: Improve 2")


def test_programs_are_found_in_the_directories_of_the_configuration(place: Path, cli: Any):
    """Beside the program first, then in `[prose] imports`, in their order."""
    for folder in ("one", "two"):
        Path(folder).mkdir()
        for name in ("shout", folder):
            Path(folder, f"{name}.prose").write_text(f'output said = "{name} in {folder}"\n')
    Path("holdfast.toml").write_text('[prose]\nimports = ["one", "two"]\n')
    Path("b.prose").write_text(
        'use "shout"\nuse "two" as other\nlet a = shout()\nlet b = other()\n'
        "output said = [a.said, b.said]\n"
    )
    assert run_file(cli, "b.prose", "--json").document["result"] == {
        "said": ["shout in one", "two in two"]
    }
    Path("shout.prose").write_text('output said = "beside"\n')
    assert run_file(cli, "b.prose", "--json").document["result"]["said"][0] == "beside"
    Path("holdfast.toml").write_text("[prose]\nimports = 5\n")
    assert "cannot be parsed" in run_file(cli, "b.prose", code=2).err


def test_memory_of_a_project_is_found_by_the_next_run(place: Path, cli: Any):
    """`persist: project` without a project is kept in the global scope, like `user`."""
    head = 'agent a:\n  model: opus\n  prompt: "x"\n  persist: {place}\n'
    text = head + '{verb}: a\n  prompt: "{said}"\n'
    for kept in ("project", "user", '"shared"'):
        first = text.format(place=kept, verb="session", said="one")
        Path("first.prose").write_text(first)
        Path("second.prose").write_text(text.format(place=kept, verb="resume", said="two"))
        run_file(cli, "first.prose")
        assert run_file(cli, "second.prose").out == "ok: two\n"
    agents = json.loads(cli("get", "global", "agents").out)
    assert agents["a"] == agents["shared"]
    assert "asked: one" in agents["a"]
    assert "asked: two" in agents["a"]


def test_ctrl_c_leaves_a_program_that_goes_on(place: Path, cli: Any):
    """In a session, which is asked again: it was not answered."""
    Path("slow.json").write_text(json.dumps({"sessions": [{"match": "Improve 1", "delay": 60}]}))
    words = ["prose", "run", "a.prose", "who=ada", "--id", "one", "--script", "slow.json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    try:
        while not os.path.exists("store") or "repeat[1]/session" not in str(seen_of("one")):
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    finally:
        child.kill()
        child.wait()
    assert "Traceback" not in said
    assert child.returncode == 130
    done = cli("prose", "resume", "one", "--script", "script.json", "--json").document
    assert done["result"] == {"text": "ok: Improve 2"}


def seen_of(id: str) -> list[str]:
    """Returns the paths that are in the journal of a run, as far as it is there."""
    with holdfast.open("store") as store:
        try:
            return list(store.runs.get(id).journal.entries)
        except holdfast.NotFoundError:
            return []


def test_a_program_that_outgrows_its_transcript_moves_while_it_runs(place: Path, cli: Any):
    """At 200,000 characters: no answer is lost, and none is asked for twice."""
    long = "x" * 60_000
    rules = {"sessions": [{"match": "Write|Improve", "answer": [f"{long}{n}" for n in range(9)]}]}
    Path("long.json").write_text(json.dumps(rules))
    told = cli(
        *("prose", "run", "a.prose", "who=ada", "--id", "one", "--in-context", "--json"),
        *("--script", "long.json"),
    )
    assert "the program moves to the store: its transcript has more than 200,000" in told.err
    assert told.document["result"]["text"].startswith(long)
    shown = cli("prose", "show", "one", "--json").document
    assert shown["status"] == "completed"
    assert len(shown["outputs"]["sessions"]) == 4
    with holdfast.open("store") as store:
        done = [e.data["path"] for e in store.events() if e.type == "run.done"]
    asked = [path for path in done if "session" in path]
    assert len(asked) == len(set(asked)) == 4
    lines = told.err.splitlines(keepends=True)
    Path("told.txt").write_text("".join(line for line in lines if line.startswith("prose ")))
    assert (
        "goes on there"
        in cli("prose", "resume", "--transcript", "told.txt", "--script", "script.json", code=2).err
    )


class Served(BaseHTTPRequestHandler):
    """A server with programs, which counts who asks it."""

    programs: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        data = self.programs.get(self.path)
        if self.path == "/away.prose":
            self.send_response(302)
            self.send_header("Location", "http://localhost:1/x.prose")
            self.end_headers()
            return
        self.send_response(404 if data is None else 200)
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def served() -> Any:
    Served.programs = {
        "/lib/shout.prose": b'use "deep/inner"\nlet x = inner()\noutput said = x.said + "!"\n',
        "/lib/deep/inner.prose": b'output said = session "inner"\n',
        "/escape.prose": b'use "/etc/hostname"\n"x"\n',
        "/bad.prose": b"let x = \n",
    }
    Served.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_nothing_is_fetched_unless_it_is_asked_for(place: Path, cli: Any, served: str):
    Path("b.prose").write_text(
        f'use "{served}/lib/shout.prose"\ninput go: "?"\nlet x = shout()\noutput said = x.said\n'
    )
    said = run_file(cli, "b.prose", code=2).err
    assert "nothing is fetched without being asked for" in said
    assert "--fetch" in said
    assert Served.asked == []
    run_file(cli, "b.prose", "--fetch", "--id", "one", "--leave", code=15)
    assert Served.asked == ["/lib/shout.prose", "/lib/deep/inner.prose"]
    cli("runs", "answer", "one", "go", "1")
    done = cli("prose", "resume", "one", "--script", "script.json", "--json").document
    assert done["result"] == {"said": "ok: inner!"}
    assert len(Served.asked) == 2, "what was fetched is kept with the run"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("{served}/none.prose", 3, "the server says 404"),
        ("{served}/away.prose", 2, "leads to another server"),
        ("{served}/escape.prose", 3, "/etc/hostname.prose cannot be fetched"),
        ("{served}/bad.prose", 2, "/bad.prose:1:"),
        ("http://example.com/x.prose", 2, "is fetched by https"),
        ("https://me:secret@example.com/x.prose", 2, "no password"),
        ("http://127.0.0.1:1/x.prose", 8, "cannot be fetched"),
    ],
)
def test_what_is_fetched_is_not_believed(
    place: Path, cli: Any, served: str, name: str, code: int, said: str
):
    Path("b.prose").write_text(f'use "{name.format(served=served)}" as x\nlet y = x()\n')
    found = run_file(cli, "b.prose", "--fetch", code=code).err
    assert said in found
    assert "secret" not in found or "me:secret" not in found.replace(name, "")
    assert cli("runs", "list", "--json").document["runs"] == []


def test_finally_of_a_program_that_was_cancelled_is_run_when_it_is_resumed(place: Path, cli: Any):
    """Who cancels it answers for no agents; who resumes it does (OP-17)."""
    Path("b.prose").write_text('try:\n  input go: "?"\nfinally:\n  session "tidy"\n"never"\n')
    for id in ("one", "two"):
        run_file(cli, "b.prose", "--id", id, "--leave", code=15)
    said = cli("runs", "cancel", "one")
    assert "it has cleanups to do: holdfast prose resume one" in said.err
    assert cli("prose", "show", "one", "--json").document["status"] == "cancelling"
    cli("prose", "resume", "one", "--script", "script.json", code=14)
    shown = cli("prose", "show", "one", "--json").document
    assert shown["status"] == "cancelled"
    assert [one["prompt"] for one in shown["outputs"]["sessions"]] == ["tidy"]
    assert cli("runs", "cancel", "two", "--now", "--json").document["status"] == "cancelled"
    assert cli("prose", "show", "two", "--json").document["outputs"]["sessions"] == []
