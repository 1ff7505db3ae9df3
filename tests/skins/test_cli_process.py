"""The real command in processes of its own: exit codes, pipes, signals, colours, what it loads."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast

SOURCE = str(Path(holdfast.__file__).parents[1])
PROGRAM = "import sys; from holdfast.cli import main; sys.exit(main())"
SCOPE = "team/support"


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**kept, "PYTHONPATH": SOURCE, **extra}


def heed_interrupts() -> None:
    # A shell starts its background jobs with SIGINT ignored, and a Python that inherits that goes
    # on ignoring it. The tests may well run in such a job; a user's terminal does not.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*words: str, **options: Any) -> subprocess.Popen[str]:
    options = {"env": environment(), "preexec_fn": heed_interrupts, **options}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(*words: str, code: int = 0, **options: Any) -> tuple[str, str]:
    process = start(*words, **options)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out, err


@pytest.fixture(params=["files", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = str(tmp_path / "store")
    where = where if request.param == "files" else f"sqlite:{where}.db"
    with holdfast.open(where) as made:
        made.team("support").set("stage", "triage")
    return where


def test_exit_codes_reach_the_shell(store: str, tmp_path: Path):
    assert run("--store", store, "get", SCOPE, "stage")[0] == "triage\n"
    run("--store", store, "get", SCOPE, "nothing", code=3)
    run("--store", store, "set", SCOPE, "a", "1", "--expected", "7", code=5)
    out, err = run("--store", str(tmp_path / "no"), "status", "--json", code=3)
    assert out == ""
    assert json.loads(err)["error"]["class"] == "NotFoundError"
    out, err = run("--store", store, "nonsense", code=2)
    assert (out, err.splitlines()[-1]) == ("", "hint: holdfast --help")


def test_a_command_killed_by_nobody_leaves_a_clean_store(store: str):
    run("--store", store, "set", SCOPE, "a", "1")
    run("--store", store, "check", "--read-all")


def test_a_closed_pipe_is_quiet(store: str):
    with holdfast.open(store) as opened:
        opened.team("support").set("much", ["y" * 1000] * 1000)
    for unbuffered in ("", "1"):
        extra = environment(PYTHONUNBUFFERED=unbuffered)
        process = start("--store", store, "show", SCOPE, env=extra)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        with process.stderr as errors:
            assert errors.read() == ""
        assert process.wait(60) == 141


def test_output_that_cannot_be_written_is_an_error(store: str):
    with open("/dev/full", "w") as full:
        _, err = run("--store", store, "show", SCOPE, code=8, stdout=full)
    assert err.startswith("error: the output cannot be written: No space left on device\nhint: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [[SCOPE], ["--all"]], ids=["scope", "all"])
def test_follow_is_live_and_ends_quietly_with_ctrl_c(store: str, words: list[str]):
    process = start("--store", store, "follow", *words, "--after", "0", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["revision"] == 1
    with holdfast.open(store) as opened:
        opened.team("support").set("stage", "done")
        assert json.loads(process.stdout.readline())["revision"] == 2
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert (process.returncode, rest, err) == (130, "", "")


def on_a_terminal(*words: str, **extra: str) -> str:
    """Runs a command with a pseudo-terminal as its output and returns what it wrote there."""
    main_end, child_end = pty.openpty()
    try:
        process = start(
            *words,
            stdout=child_end,
            env=environment(TERM="xterm-256color", COLUMNS="100", **extra),
        )
    finally:
        os.close(child_end)
    written = b""
    while True:
        try:
            chunk = os.read(main_end, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(main_end)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return written.decode()


def test_no_color_is_honoured(store: str):
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", on_a_terminal("--help", NO_COLOR=""))
    for words in (("--help",), ("--store", store, "log"), ("--store", store, "show", SCOPE)):
        shown = on_a_terminal(*words, NO_COLOR="1")
        assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38)[;m]", shown), shown


def test_a_terminal_gets_a_table_and_a_pipe_gets_tabs(store: str):
    assert "revision" in on_a_terminal("--store", store, "log")
    piped = run("--store", store, "log")[0]
    assert "revision" not in piped
    assert piped.count("\t") == 7
    assert "\x1b" not in piped


def test_colour_is_not_forced_into_a_pipe(store: str):
    out, _ = run("--store", store, "log", env=environment(FORCE_COLOR="1", TERM="xterm"))
    assert "\x1b" not in out


def test_output_in_a_narrow_encoding_does_not_fail(store: str):
    with holdfast.open(store) as opened:
        opened.team("support").set("name", "Ærøskøbing 🙂")
    extra = environment(PYTHONIOENCODING="ascii")
    assert "\\xc6" in run("--store", store, "get", SCOPE, "name", env=extra)[0]
    printed = run("--store", store, "get", SCOPE, "name", "--json", env=extra)[0]
    assert json.loads(printed)["value"] == "Ærøskøbing 🙂"


def test_help_loads_little():
    program = (
        "import sys; from holdfast.cli import main; code = main(sys.argv[1:])\n"
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert not loaded & {"apsw", "zstandard", "asyncio", "rich.markdown", "cryptography"}
    assert "holdfast.contrib.demo.scenes" not in loaded


def test_without_the_extra_it_says_what_to_install():
    program = f"import sys; sys.modules['cyclopts'] = None; {PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program, "status"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "hint: pip install 'holdfast[cli]'"


def test_version():
    assert run("--version")[0] == f"holdfast {holdfast.__version__}\n"


def test_copy_shows_progress_to_a_person_only(store: str, tmp_path: Path):
    assert run("copy", store, str(tmp_path / "copy"))[1] == ""


def test_the_package_is_a_program(store: str):
    words = [sys.executable, "-m", "holdfast", "--store", store, "get", SCOPE, "stage"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stdout) == (0, "triage\n")
    assert subprocess.run(
        [*words[:3], "--store", store, "get", "team/none", "stage"],
        capture_output=True,
        env=environment(),
        timeout=60,
    ).returncode
