"""Runs on the command line: started, watched, left, killed, resumed, looked after."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import runs
from tests.skins.conftest import in_process
from tests.skins.test_cli_docs import ROOT, play
from tests.skins.test_cli_process import PROGRAM, environment, heed_interrupts

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202e\u2066\rb"
PARTS = ["\x1b]0", "\x1b[2J", "\x9b", "\x85", "\u202e", "\u2066", "\r", "\x07"]


def started(*words: str, **extra: str) -> subprocess.Popen[str]:
    """Starts a command as a process that heeds Ctrl-C, in the current folder."""
    kept = {name: os.environ[name] for name in ("HOLDFAST_STORE", "HOLDFAST_ACTOR")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**kept, **extra),
        preexec_fn=heed_interrupts,
    )


def wait_for(place: str, id: str, path: str) -> None:
    """Waits until an operation of a run is recorded, by another process."""
    with holdfast.open(place) as store:
        while (
            store._log.head(f"run/{id}") is None or path not in store.runs.get(id).journal.entries
        ):
            store._log._backend.wait(store._log.position(), timeout_s=0.1)


def test_a_run_is_started_shown_and_listed(place: str, tiny: Path, cli: Any, screen: Any):
    assert cli("runs", "start", "tiny.py:tiny", "3", "--id", "r1").out == "4\n"
    assert cli("runs", "start", "tiny:tiny", "--input", "n=5", "--json").document["result"] == 6
    rows = cli("runs", "list").rows
    assert rows[0][:2] == ["r1", "completed"]
    assert rows[0][3:] == ["tiny:tiny", ""]
    shown = dict(row[:2] for row in cli("runs", "show", "r1").rows)
    assert shown["result"] == "4"
    assert shown["act"] == "step"
    told = screen("runs", "show", "r1")
    assert "✓ look  4" in told
    assert "✓ act  4" in told
    assert "completed" in screen("runs", "list")


def test_every_argument_is_checked_before_a_run_exists(place: str, tiny: Path, cli: Any):
    for words in (["1", "2"], ["--input", "m=1"], ["--input", "n"], ["--timeout", "-1"]):
        cli("runs", "start", "tiny.py:tiny", *words, code=2)
    assert cli("runs", "list", "--json").document["runs"] == []
    cli("runs", "list", "--status", "odd", code=2)
    cli("runs", "list", "--limit", "0", code=2)
    cli("runs", "tail", "r1", "--after", "-1", code=2)
    cli("runs", "settle", "r1", "act", code=2)
    cli("runs", "settle", "r1", "act", "--done", "1", "--not-done", code=2)
    for verb in (["show", "r1"], ["tail", "r1"], ["cancel", "r1"], ["adopt", "r1"]):
        assert "there is no run" in cli("runs", *verb, code=3).err
    cli("runs", "start", "tiny.py:tiny", "--id", "r1")
    taken = cli("runs", "start", "tiny.py:tiny", "--id", "r1", code=4).err
    assert "hint: holdfast runs resume r1 tiny.py:tiny, or start it with --if-exists" in taken
    for verb in (["answer", "r1", "approve"], ["settle", "r1", "act", "--not-done"]):
        assert "hint: holdfast runs show r1\n" in cli("runs", *verb, code=3).err
    assert cli("runs", "start", "tiny.py:tiny", "--id", "r1", "--if-exists", "attach").out == "2\n"
    assert "has not failed: it is completed" in cli("runs", "retry", "r1", "tiny.py", code=2).err


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        (3, ["gone.py:x"], 'there is no file "gone.py"'),
        (3, ["gone.module:x"], 'there is no module "gone.module" here'),
        (
            3,
            ["tiny.py:x"],
            '"tiny.py" has no run "x": it has tiny, asks, fails, shaky, later, named, slow',
        ),
        (
            2,
            ["tiny.py"],
            '"tiny.py" has several runs: tiny, asks, fails, shaky, later, named, slow',
        ),
        (3, ["json:loads"], '"json" has no run'),
        (2, ["../../etc/passwd"], "is neither a Python file nor a module"),
        (2, ["broken.py:x"], "\"broken.py\" cannot be loaded: NameError: name 'nothing'"),
        (2, ["torn.py:x"], '"torn.py" cannot be loaded: SyntaxError'),
        (2, ["quits.py:x"], '"quits.py" cannot be loaded: SystemExit: 3'),
        (2, ["imports:x"], '"imports" cannot be loaded: ModuleNotFoundError: No module named \'no'),
        (2, ["json.py:x"], '"json.py" has the name of a module that is loaded already'),
    ],
)
def test_code_that_cannot_be_loaded(
    code: int, words: list[str], said: str, place: str, tiny: Path, cli: Any
):
    Path("broken.py").write_text("import os\n\nnothing()\n")
    Path("torn.py").write_text("def x(:\n")
    Path("quits.py").write_text("raise SystemExit(3)\n")
    Path("imports.py").write_text("import no_such_thing\n")
    Path("json.py").write_text("")
    failed = cli("runs", "start", *words, code=code)
    assert said in failed.err
    assert "Traceback" not in failed.err
    if words == ["broken.py:x"]:
        assert "broken.py:3" in failed.err


def test_a_store_never_names_code_to_load(place: str, tiny: Path, cli: Any):
    """Guarantee 10: resume takes its code from the words typed, and refuses what is not there."""
    cli("runs", "start", "tiny.py:asks", "--id", "r1", "--leave", code=15)
    Path("other.py").write_text(
        "import holdfast\n@holdfast.run\ndef asks(ctx):\n    return 'another'\n"
    )
    ran = in_process("runs", "resume", "r1", "other.py")
    assert ran.returncode == 3
    assert 'run "r1" is a "tiny:asks", which "other.py" does not define' in ran.stderr
    assert cli("runs", "resume", "r1", "tiny.py", "--leave", code=15).out == ""


def test_a_wait_is_answered_and_a_signal_sent(place: str, tiny: Path, cli: Any, screen: Any):
    failed = cli("runs", "start", "tiny.py:asks", "--id", "r1", "--leave", code=15)
    assert failed.err.splitlines()[-1] == "hint: holdfast runs resume r1 tiny.py:asks"
    shown = screen("runs", "show", "r1")
    assert "waits for an answer until" in shown
    assert "✓ repeat  2 of 2 iterations" in shown
    assert cli("runs", "list", "--status", "waiting").rows[0][4] == "wait.approve"
    cli("runs", "answer", "r1", "nothing", code=3)
    assert cli("runs", "answer", "r1", "approve", "true", "--json").document["worker"] is None
    cli("runs", "answer", "r1", "approve", "false", code=4)
    cli("runs", "signal", "r1", "hurry", "--key", "k")
    done = cli("runs", "resume", "r1", "tiny.py", "--json").document
    assert done["result"] == {"left": 2, "right": 3}
    lines = cli("runs", "tail", "r1", "--after", "0").rows
    assert [line[2] for line in lines][:2] == ["created", "claimed"]
    assert lines[-1][2:] == ["ended", "", 'completed {"left":2,"right":3}']
    assert "parallel" in screen("runs", "tail", "r1")


def test_parameters_named_like_options(place: str, tiny: Path, cli: Any):
    words = ["--input", "id=7", "--input", "queue=night", "--id", "r1"]
    done = cli("runs", "start", "tiny.py:named", *words, "--json").document
    assert done == {"run": "r1", "status": "completed", "result": [7, "night", None]}


def test_an_async_run_and_a_queue(place: str, tiny: Path, cli: Any):
    assert cli("runs", "start", "tiny.py:later", "--json").document["result"] == [1, 2]
    id = cli("runs", "start", "tiny.py:later", "3", "--queue", "night").out.strip()
    assert cli("runs", "list", "--status", "pending", "--json").document["runs"][0]["run"] == id


def test_a_failed_run_is_tried_again(
    place: str, tiny: Path, cli: Any, screen: Any, monkeypatch: pytest.MonkeyPatch
):
    failed = cli("runs", "start", "tiny.py:fails", "--id", "r1", code=12)
    *told, error, hint = failed.err.splitlines()
    assert error == 'error: run "r1" failed: ValueError: no good'
    assert hint == "hint: holdfast runs retry r1 tiny.py:fails"
    assert told[0] == "Traceback (most recent call last):"
    assert '    raise ValueError("no good")' in told
    shown = cli("runs", "show", "r1").out
    assert "\n".join(told) in shown, "in another process, too"
    assert 'raise ValueError("no good")' in screen("runs", "show", "r1")
    document = cli("runs", "show", "r1", "--json").document["error"]
    assert document["traceback"].splitlines() == told
    cli("runs", "retry", "r1", "tiny.py", code=12)
    monkeypatch.setenv("TINY_MENDED", "1")
    again = cli("runs", "retry", "r1", "tiny.py", "--json").document
    assert again == {"run": "r1-retry-2", "status": "completed", "result": "mended"}
    assert cli("runs", "show", "r1", "--json").document["error"]["kind"] == "ValueError"
    assert cli("runs", "resume", "r1", "tiny.py", "--json", code=12).error["run"] == "r1"


def test_another_process_sees_which_attempt_it_is(place: str, tiny: Path, cli: Any, screen: Any):
    """OP-5: the back-off of a failed attempt outlives the process, and is shown by any other."""
    cli("runs", "start", "tiny.py:shaky", "--id", "r1", "--leave", code=15)
    [row] = cli("runs", "list", "--json").document["runs"]
    assert row["statements"] == ["flaky (attempt 2 of 3)"]
    assert "● flaky  attempt 1 of 3 failed: OSError: not yet; again at" in screen(
        "runs", "show", "r1"
    )


def test_a_fork_asks_before_it_acts(place: str, tiny: Path, cli: Any):
    cli("runs", "start", "tiny.py:tiny", "3", "--id", "r1")
    cli("runs", "fork", "r1", "act", "--new-id", "f1", "--edit", "look:=40")
    assert cli("runs", "show", "f1", "--json").document["fork_of"] == "r1"
    parked = cli("runs", "resume", "f1", "tiny.py", code=13)
    assert "hint: holdfast runs adopt f1 accepts it, then holdfast runs resume f1" in parked.err
    assert "a person's approval" in cli("runs", "show", "f1").out
    cli("runs", "adopt", "f1")
    assert cli("runs", "resume", "f1", "tiny.py").out == "40\n"
    cli("runs", "fork", "r1", "nowhere", code=3)
    cli("runs", "fork", "r1", "act", "--effects", "odd", code=2)
    cli("runs", "fork", "r1", "act", "--edit", "look", code=2)


def test_killed_within_an_act_settled_and_resumed(place: str, tiny: Path, cli: Any):
    """A real SIGKILL: the act is uncertain, never repeated, until a person says."""
    assert in_process("runs", "start", "tiny.py:tiny", "3", "--id", "r1", TINY_DIES="1").returncode
    [row] = cli("runs", "list", "--json").document["runs"]
    assert (row["status"], row["worker"]) == ("running", None)
    assert "act\tstep\tuncertain" in cli("runs", "show", "r1").out
    parked = cli("runs", "resume", "r1", "tiny.py", code=13)
    assert "hint: holdfast runs settle r1 act --done RESULT (or --not-done), then" in parked.err
    cli("runs", "settle", "r1", "look", "--not-done", code=3)
    cli("runs", "settle", "r1", "act", "--done", "7")
    assert cli("runs", "resume", "r1", "tiny.py").out == "7\n"
    events = [row[2] for row in cli("runs", "tail", "r1", "--after", "0").rows]
    assert events.count("intended") == 1


def test_ctrl_c_leaves_the_run_and_a_second_process_cancels_it(place: str, tiny: Path, cli: Any):
    process = started("runs", "start", "tiny.py:slow", "--id", "r1")
    wait_for(place, "r1", "look")
    [row] = cli("runs", "list", "--json").document["runs"]
    assert (row["status"], row["worker"] is None) == ("running", False)
    cli("runs", "settle", "r1", "look", "--not-done", code=7)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert cli("runs", "cancel", "r1", "--json").document["status"] == "cancelled"
    cli("runs", "resume", "r1", "tiny.py", code=14)


def test_tail_follows_another_process_to_its_end(place: str, tiny: Path, cli: Any):
    cli("runs", "start", "tiny.py:asks", "--id", "r1", "--leave", code=15)
    follower = started("runs", "tail", "r1", "--after", "0", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["type"] == "run.created"
    cli("runs", "answer", "r1", "approve", "true")
    cli("runs", "resume", "r1", "tiny.py")
    rest, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, "")
    assert json.loads(rest.splitlines()[-1])["type"] == "run.ended"
    cli("runs", "start", "tiny.py:asks", "--id", "r2", "--leave", code=15)
    assert cli("runs", "tail", "r2", "--timeout", "0").rows[-1][2] == "suspended"


def test_how_long_a_step_took_is_shown(place: str, tiny: Path, cli: Any, screen: Any):
    """With its intent a step has two events: their times say it. A pure one has its end alone."""
    cli("runs", "start", "tiny.py:tiny", "3", "--id", "r1")
    steps = cli("runs", "show", "r1", "--json").document["entries"]
    by_effect = {step["effect"]: step["seconds"] for step in steps if step["kind"] == "step"}
    assert by_effect["effect"] >= 0
    assert [runs.show_seconds(each) for each in (None, 0.0123, 5, 65.4, 3725)] == [
        "", "0.0123 s", "5 s", "1m05s", "1h02m05s"
    ]  # fmt: skip


def test_the_tree_is_live_on_a_terminal(place: str, tiny: Path):
    main_end, child_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "runs", "start", "tiny.py:tiny", "3", "--id", "r1"],
        stdin=subprocess.DEVNULL,
        stdout=child_end,
        stderr=child_end,
        env=environment(HOLDFAST_STORE=place, COLUMNS="100", TERM="xterm"),
    )
    os.close(child_end)
    shown = b""
    while True:
        try:
            shown += os.read(main_end, 65536)
        except OSError:
            break
    os.close(main_end)
    assert process.wait(60) == 0
    assert "act" in shown.decode()
    assert shown.decode().rstrip().endswith("4")


def test_hostile_names_and_values_do_not_drive_the_terminal(
    place: str, tiny: Path, cli: Any, screen: Any
):
    """Guarantee 10 on the screen."""
    with holdfast.open(place) as store:

        @holdfast.step(effect="pure", name=EVIL)
        def evil(text: str) -> str:
            return text

        @holdfast.run(name="evil")
        def body(ctx: Any) -> str:
            ctx.let(EVIL, EVIL)
            for _ in ctx.repeat(2, label=EVIL):
                ctx.step(evil, EVIL)
            ctx.wait(EVIL, timeout=0.01, default=EVIL)
            raise ValueError(EVIL)

        with pytest.raises(holdfast.RunFailedError):
            store.runs.start(body, id="r1").result()
    for words in (["list"], ["show", "r1"], ["tail", "r1", "--after", "0"]):
        for told in (cli("runs", *words).out, screen("runs", *words)):
            assert not [part for part in PARTS if part in told], words
        printed = cli("runs", *words, "--json").out
        assert not [part for part in PARTS if part in printed], words
    failed = cli("runs", "settle", "r1", EVIL, "--not-done", code=3)
    assert not [part for part in PARTS if part in failed.err]


def test_a_long_block_shows_its_newest(place: str, tiny: Path, cli: Any, screen: Any):
    with holdfast.open(place) as store:

        @holdfast.step(effect="pure")
        def note(n: int) -> int:
            return n

        @holdfast.run(name="long")
        def body(ctx: Any) -> None:
            for n in ctx.repeat(120):
                ctx.step(note, n)

        store.runs.start(body, id="r1").result()
    told = screen("runs", "show", "r1")
    assert "… 70 before: --json shows all" in told
    assert "120 of 120 iterations" in told
    assert "[119]" in told
    assert len(cli("runs", "show", "r1", "--json").document["entries"]) == 121


def test_the_guide_shows_what_really_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    guide = (ROOT / "docs/guides/runs-command-line.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "review", raising=False)
    Path("review.py").write_text(guide.partition("```python\n")[2].partition("```")[0])
    assert play(guide, capsys) == 9


def test_a_list_reads_little_of_a_long_run(
    place: str, tiny: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    """Guarantee 12: of a long run the first and the newest records, and yet where it stands."""
    with holdfast.open(place) as store:

        @holdfast.step(effect="pure")
        def note(n: int) -> int:
            return n

        @holdfast.run(name="long")
        def body(ctx: Any) -> None:
            for n in range(400):
                ctx.step(note, n)
            ctx.wait("approve")

        run = store.runs.start(body, id="r1")
        while run.status != "waiting":
            store._log._backend.wait(store._log.position(), timeout_s=0.05)
    [whole] = cli("runs", "list", "--json").document["runs"]
    assert (whole["code"], whole["status"]) == ("long", "waiting")
    assert whole["statements"] == ["wait.approve"]
    monkeypatch.setattr(runs, "BRIEF_RECORDS", 1 << 30)
    assert cli("runs", "list", "--json").document["runs"] == [whole]


def test_a_removed_run_is_gone_and_its_id_begins_again(place: str, tiny: Path, cli: Any):
    cli("runs", "start", "tiny.py:tiny", "--id", "r1")
    first = cli("runs", "show", "r1", "--json").document
    assert "add --yes" in cli("runs", "remove", "r1", code=2).err
    removed = cli("runs", "remove", "r1", "--yes", "--json").document
    assert removed == {"run": "r1", "runs": ["r1"], "removed": True}
    assert cli("runs", "list", "--json").document["runs"] == []
    for verb in ("show", "tail", "cancel", "remove"):
        words = ["--yes"] if verb == "remove" else []
        assert "there is no run" in cli("runs", verb, "r1", *words, code=3).err
    assert cli("log", "run/r1").rows[0][2] == "removed"
    cli("runs", "start", "tiny.py:tiny", "--id", "r1")
    again = cli("runs", "show", "r1", "--json").document
    assert again["created"] > first["created"]
    [listed] = cli("runs", "list", "--json").document["runs"]
    assert (listed["run"], listed["created"]) == ("r1", again["created"])
    tail = [row[2] for row in cli("runs", "tail", "r1", "--after", "0").rows]
    assert (tail[0], "removed" in tail) == ("created", False)
    assert cli("runs", "remove", "r1", "--yes").out == "run r1 was removed\n"


def test_the_removal_of_a_run_is_asked_for(
    place: str, tiny: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    cli("runs", "start", "tiny.py:tiny", "--id", "r1")

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Keyboard("n\ny\n"))
    refused = cli("runs", "remove", "r1", code=1)
    assert (refused.out, "remove run r1? [y/N]" in refused.err) == ("nothing was removed\n", True)
    assert cli("runs", "remove", "r1").out == "run r1 was removed\n"
