"""Plays a page: writes its files, runs its commands, and compares what they print.

A block with a title is a file. In a `console` block each line that begins with `$ ` is a command;
what follows it is what it prints on a terminal. `…` stands for any text; times,
durations and the number of spaces do not matter; what the shell says of a process that was killed
is left out.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.M | re.S)
TITLE = re.compile(r'\w+ title="(?P<name>[\w.-]+)"')
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?Z?)?")
LONG = re.compile(r"[ \t]+\d[\d.,]* (?:s|ms|min)[ \t]*$", re.M)
"""How long a step took, at the end of a line."""
KILLED = re.compile(r"^bash: line \d+: +\d+ Killed .*\n?", re.M)
MARK = "\x01"


@dataclass
class Command:
    """A command of a page, what the page says that it prints, and what it printed."""

    line: int
    text: str
    shown: str
    printed: str = ""

    def is_as_shown(self) -> bool:
        pattern = ".*?".join(re.escape(part) for part in _plain(self.shown).split("…"))
        return re.fullmatch(pattern, _plain(self.printed), re.S) is not None


def _plain(text: str) -> str:
    lines = LONG.sub("", KILLED.sub("", TIME.sub("TIME", text))).strip().splitlines()
    return "\n".join(" ".join(line.split()) for line in lines)


def play(page: Path, folder: Path) -> list[Command]:
    """Does what a page says, in a folder; returns its commands with what they printed."""
    text = page.read_text("utf-8")
    played: list[Command] = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        if title := TITLE.fullmatch(match["info"].strip()):
            (folder / title["name"]).write_text(match["body"], "utf-8")
        elif match["info"].strip() == "console":
            played += _run(line, match["body"], folder)
    return played


def _run(line: int, body: str, folder: Path) -> list[Command]:
    """Runs the commands of a block in one shell."""
    commands: list[Command] = []
    for number, written in enumerate(body.splitlines(keepends=True)):
        if written.startswith("$ "):
            commands.append(Command(line + number, written[2:].rstrip(), ""))
        else:
            commands[-1].shown += written
    script = "".join(f"printf '{MARK}'\n{command.text}\n" for command in commands)
    printed = _on_a_terminal(["bash", "-c", script], folder)
    for command, text in zip(commands, printed.split(MARK)[1:], strict=True):
        command.printed = text
    return commands


def _on_a_terminal(words: list[str], folder: Path) -> str:
    """Runs a command as a person sees it, and returns what it printed."""
    more = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    more |= {"COLUMNS": "100", "LINES": "40", "TERM": "dumb", "NO_COLOR": "1"}
    more |= {"HOLDFAST_ACTOR": "you"}
    terminal, end = pty.openpty()
    try:
        shell = subprocess.Popen(
            words, cwd=folder, env=os.environ | more, stdin=end, stdout=end, stderr=end
        )
    finally:
        os.close(end)
    printed = b""
    with open(terminal, "rb", buffering=0) as output:
        while piece := _read(output.fileno()):
            printed += piece
    shell.wait()
    return printed.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux says when the last program on a terminal has ended
        return b""
