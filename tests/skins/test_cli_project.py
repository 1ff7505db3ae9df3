"""The verbs of projects: one directory, one coordinator, a person at the terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import Scripted
from holdfast.cli.app import name_task
from holdfast.cli.project import Keyboard, answer, converse, lines
from holdfast.record import FileChange

SCRIPT = {
    "sessions": [
        {"match": "stuck", "answer": "no\nstatus: blocked: no key"},
        {"match": "fails", "answer": {"fail": "no agent"}},
    ]
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> Path:
    root = tmp_path / "shop"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    cli("init")
    (root / "script.json").write_text(json.dumps(SCRIPT))
    return root


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    files: list[Any] = []

    def type_lines(*lines: str) -> None:
        path = tmp_path / f"typed-{len(files)}"
        path.write_text("".join(f"{line}\n" for line in lines))
        files.append(path.open(encoding="utf-8"))
        monkeypatch.setattr(sys, "stdin", files[-1])

    yield type_lines
    for file in files:
        file.close()


def test_do_prints_the_answer_and_ends_with_what_came_of_it(shop: Path, cli: Any):
    """RALPH-1, RALPH-4: the project is that of the current directory; exit codes say the rest."""
    assert cli("project", "do", "write it", "--script", "script.json").out == "ok: Task: write it\n"
    blocked = cli("project", "do", "stuck", "--script", "script.json", "--json", code=13).document
    assert (blocked["task"], blocked["status"]) == ("t2", "blocked")
    failed = cli("project", "do", "fails", "--script", "script.json", "--json", code=12).document
    assert "no agent" in failed["answer"]
    assert "nobody answers" in cli("project", "do", "more", code=2).err
    assert "nobody coordinates" in cli("project", "do", "more", "--attach", code=8).err


def test_lines_that_arrive_together_are_all_answered(monkeypatch: pytest.MonkeyPatch):
    class Waited(Exception):
        """Nothing more is typed, so the messages of others are looked at."""

    class Main:
        def attend(self) -> list[Any]:
            raise Waited

    reads, writes = os.pipe()
    with os.fdopen(reads) as typed, os.fdopen(writes, "wb", buffering=0) as keyboard:
        monkeypatch.setattr(sys, "stdin", typed)
        keyboard.write("hello\n\n/go é\nhalf".encode())
        said = lines(Main())  # type: ignore[arg-type]
        assert [next(said), next(said)] == ["hello", "/go é"]
        with pytest.raises(Waited):
            next(said)


def test_ctrl_c_pauses_the_work_and_sums_up(shop: Path, cli: Any, tmp_path: Path):
    """RALPH-3, RALPH-31: what was done is said, and what was left is gone on with."""
    begun = str(tmp_path / "begun")
    slow = f"""
import pathlib, sys, time
if pathlib.Path({begun!r}).exists():
    print("painted")
    sys.exit()
pathlib.Path({begun!r}).touch()
time.sleep(600)
"""
    (shop / "holdfast.toml").write_text(
        f"[agents]\ncommand = {json.dumps([sys.executable, '-c', slow])}\n"
    )
    cli("trust", "holdfast.toml", "--yes")
    words = [sys.executable, "-m", "holdfast", "project", "chat"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("/task paint it\n/go\n")
    process.stdin.flush()
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "task t1 was added" in out
    assert "open\tt1 paint it" in out
    assert "went on with t1 done: painted" in cli("project", "recover", "--go-on").out
    [session] = cli("project", "sessions", "--json").document["sessions"]
    said = cli("messages", f"conversation/shop/{session['id']}", "--json").document["messages"]
    assert [one["text"] for one in said] == ["Task: paint it", "painted"]


def test_what_is_typed_during_work_is_heeded(shop: Path, cli: Any, tmp_path: Path):
    """RALPH-31, RALPH-34, RALPH-35: a text is answered, and the work goes on; /stop ends it."""
    begun = tmp_path / "begun"
    begun.mkdir()
    agent = f"""
import pathlib, sys, time
if "how is it" in sys.stdin.read().rpartition("Task:")[2]:
    print("half of it is green")
    sys.exit()
begun = pathlib.Path({str(begun)!r})
(begun / str(len(list(begun.iterdir())))).touch()
if len(list(begun.iterdir())) == 3:
    print("painted")
    sys.exit()
time.sleep(600)
"""
    (shop / "holdfast.toml").write_text(
        f"[agents]\ncommand = {json.dumps([sys.executable, '-c', agent])}\n"
    )
    cli("trust", "holdfast.toml", "--yes")
    keyboard, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "project", "chat"],
        stdin=inner, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def types(line: str, calls: int) -> None:
        """Types a line, and waits until the agent was asked so often."""
        os.write(keyboard, f"{line}\n".encode())
        while len(list(begun.iterdir())) < calls:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)

    types("/task paint it", 0)
    types("/go", 1)
    types("/steer in green", 1)
    types("how is it?", 2)
    types("/stop", 2)
    types("/go", 3)
    types("/quit", 3)
    out, err = process.communicate(timeout=60)
    for descriptor in (keyboard, inner):
        os.close(descriptor)
    assert process.returncode == 0, err
    assert "half of it is green\n" in out
    assert "t1 stopped: a person stopped it" in out
    assert "t1 done: painted" in out


def test_a_line_that_is_refused_ends_neither_work_nor_chat(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    settings = holdfast.Settings(secrets="refuse")
    keyboard, inner = pty.openpty()
    with (
        os.fdopen(inner) as typed,
        holdfast.open(".holdfast", settings=settings) as hf,
        hf.project(".").coordinate() as main,
    ):
        monkeypatch.setattr(sys, "stdin", typed)
        hf.runs.use_executor(Scripted({}))
        os.write(keyboard, f"use {secret}\n/task {secret}\n/task paint it\n".encode())
        for _ in range(3):  # a terminal gives line by line
            Keyboard(main).heed()  # as while work is done
        said = capsys.readouterr().err
        assert said.count("a secret") == 2, said
        assert [task.title for task in main.tasks.list()] == ["paint it"]
        os.write(keyboard, f"/task {secret}\n/task sweep it\n/quit\n".encode())
        session = main.project.begin_session(None)
        with main.project.enter_session(session):
            _, is_over = converse(hf, main, session, quiet=False)
        assert is_over
        assert capsys.readouterr().err.count("a secret") == 1
        assert [task.title for task in main.tasks.list()] == ["paint it", "sweep it"]
    os.close(keyboard)


def test_a_stopped_task_is_among_the_tasks(shop: Path):
    with holdfast.open(".holdfast") as hf, hf.project(".").coordinate() as main:
        main.tasks.add("paint it", id="p")
        main.tasks.add("sweep it", id="s")
        main.tasks.claim("p", owner="ann")
        assert answer(hf, main, "/tasks", "", "/tasks") == "p paint it (begun)\ns sweep it"


def test_a_chat_talks_works_and_sums_up(shop: Path, cli: Any, typed: Any):
    """RALPH-1, RALPH-2, RALPH-3, RALPH-35: talk, work, talk; the session can be gone on with."""
    typed("hello", "/task paint it", "/go", "", "/tasks", "/status", "/nonsense", "/quit", "never")
    first = cli("project", "chat", "--script", "script.json", "--title", "paint").out.splitlines()
    assert first[:4] == [
        "ok: hello",
        "task t1 was added",
        "t1 done: ok: Task: paint it",
        "no tasks",
    ]
    assert any(line.startswith("done\tt1 paint it") for line in first)
    typed("again")
    cli("project", "chat", "--script", "script.json", "--last")
    [session] = cli("project", "sessions", "--json").document["sessions"]
    assert (session["title"], session["first"], session["last"]) == ("paint", "hello", "ok: again")
    typed("third")
    cli("project", "chat", "--script", "script.json", "--resume", session["id"])
    messages = cli("messages", f"conversation/shop/{session['id']}", "--json").document["messages"]
    assert [one["text"] for one in messages][-2:] == ["third", "ok: third"]
    typed("x")
    assert "both say" in cli("project", "chat", "--last", "--resume", "a", code=2).err
    assert (
        "no session"
        in cli("project", "chat", "--resume", "a", "--script", "script.json", code=3).err
    )


def test_a_second_coordinator_is_refused_and_may_attach(shop: Path, cli: Any, typed: Any):
    """RALPH-23: chat and do name the first one."""
    with holdfast.open(".holdfast") as hf, hf.project(".").coordinate():
        typed("x")
        refused = cli("project", "chat", "--script", "script.json", code=7).err
        assert "has a coordinator: process" in refused
        assert "--take-over" in refused
        cli("project", "do", "more", "--attach", "--timeout", "0", code=15)
        assert cli("project", "status", "--json").document["coordinator"]["pid"]
    typed("hello")
    assert cli("project", "tasks").out == ""
    taken = cli("project", "chat", "--script", "script.json", "--take-over").out
    assert taken.startswith("ok: hello")


def test_messages_wait_until_somebody_coordinates(shop: Path, cli: Any, typed: Any):
    assert "nobody coordinates: it waits" in cli("project", "note", "below the mat").out
    cli("project", "steer", "in green")
    cli("project", "follow-up", "then tea", "--priority", "high")
    waits = cli("project", "stop", "--wait", "0", "--json", code=15).document
    assert waits == {"kind": "stop", "revision": 4, "taken": False}
    typed("/go", "/go")  # the stop pauses what the first has begun
    cli("project", "chat", "--script", "script.json")
    assert cli("project", "status", "--json").document["waiting"] == []
    assert cli("project", "tasks", "--all").out.split("\t")[4] == "then tea\n"
    assert "inbox\t0 messages wait" in cli("project", "status").out


def test_a_short_command_takes_verbs_and_tasks(shop: Path, cli: Any, tmp_path: Path):
    cli("project", "alias", "ralph", "--to", str(tmp_path / "bin"))
    cli("project", "alias", "ralph", "--to", str(tmp_path / "bin"))
    script = tmp_path / "bin/ralph"
    assert len(script.read_text().splitlines()) == 2
    done = subprocess.run(
        [script, "paint it", "--script", "script.json"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ok: Task: paint it\n"
    assert name_task(["project", "-", "chat"]) == ["project", "chat"]
    assert name_task(["project", "-", "do", "status"]) == ["project", "do", "status"]
    assert name_task(["project", "-", "stand up"]) == ["project", "do", "stand up"]
    assert name_task(["project", "-"]) == ["project"]
    assert name_task(["set", "-"]) == ["set", "-"]
    script.write_text("#!/bin/sh\nmine\n")
    assert (
        "is another command"
        in cli("project", "alias", "ralph", "--to", str(tmp_path / "bin"), code=4).err
    )
    assert "is a word" in cli("project", "alias", "a/b", code=2).err


def test_a_survey_is_shown(shop: Path, cli: Any):
    shown = cli("project", "survey").out
    assert f"root\t{shop}\n" in shown
    assert "git\tabsent: no directory" in shown


def test_a_rewind_goes_back_to_a_point(shop: Path, cli: Any):
    cli("project", "do", "begin", "--script", "script.json")
    cli("task", "add", "project/shop", "one")
    assert "no files" in cli("project", "checkpoint", "before").out
    cli("task", "add", "project/shop", "two")
    shown = cli("project", "rewind", "before", "--dry-run").out
    assert "project/shop goes back to revision" in shown
    assert "two" in shown
    assert "add --yes" in cli("project", "rewind", "before", code=2).err
    assert cli("project", "tasks").out.count("\n") == 2
    assert "project/shop is at revision" in cli("project", "rewind", "before", "--yes").out
    assert cli("project", "tasks").out.count("\n") == 1
    cli("project", "rewind", "nowhere", "--yes", code=3)


def test_a_rewind_asks_and_keeps_what_a_person_changed(
    shop: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    subprocess.run(["git", "init", "-q"], check=True)
    (shop / "a.txt").write_text("one\n")
    with holdfast.open(".holdfast") as hf:
        project = hf.project(".")
        project.checkpoint("start")
        (shop / "a.txt").write_text("two\n")
        (shop / "b.txt").write_text("by hand\n")
        change = FileChange.of("a.txt", b"one\n", b"two\n")
        project.scope.messages.add("assistant", "written", files=[change])
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert "nothing was changed" in cli("project", "rewind", "start", code=1).out
    assert (shop / "a.txt").read_text() == "two\n"
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    shown = cli("project", "rewind", "start", "--what", "files").out
    assert "= b.txt: stays: no message since says that it changed it" in shown
    assert (shop / "a.txt").read_text() == "one\n"
    assert (shop / "b.txt").read_text() == "by hand\n"
    cli("project", "rewind", "start", "--what", "files", "--overwrite", "--yes")
    assert not (shop / "b.txt").exists()


def test_a_project_is_watched(shop: Path, cli: Any, screen: Any):
    cli("project", "do", "begin", "--script", "script.json")
    assert (
        cli("project", "watch", "--timeout", "0").out == "conversation\tnothing\t0\tcompleted=1\n"
    )
    cli("project", "steer", "in green")
    shown = screen("project", "watch", "--timeout", "0")
    assert "in green" in shown
    assert "coordinator" in shown


def test_a_doctor_says_what_is_wrong_and_a_file_is_restored(shop: Path, cli: Any):
    cli("project", "do", "begin", "--script", "script.json")
    assert cli("project", "doctor").out == ""
    path = shop / "RALPH_TASKS.md"
    path.write_text(path.read_text().replace("begin", "end"))
    wrong = cli("project", "doctor", code=1).out
    assert wrong.startswith("file\tRALPH_TASKS.md\tedited")
    assert "rejected" in cli("project", "restore", "RALPH_TASKS.md").out
    assert cli("project", "doctor", "--json").document == {"project": "shop", "ailments": []}
    cli("project", "recover")
    (shop / "typed").write_text("")
    assert "leave out --from-files" in cli("project", "recover", "--from-files", code=2).err


def test_a_task_begins_a_project_from_the_command_line(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with holdfast.open(place):
        pass
    words = ["task", "add", "project/shop", "build the form", "--store", place]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    with holdfast.open(place) as hf:
        assert [one.title for one in hf.scopes("project")[0].tasks.list()] == ["build the form"]
