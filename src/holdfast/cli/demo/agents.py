"""Starting agents and commands as processes of their own, listening to them, killing one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import holdfast
from holdfast.cli.demo.story import INBOX
from holdfast.errors import UnavailableError

AGENT = "holdfast.cli.demo.agent"
KILL_AFTER = 20
MAILS = 200
LETTERS_BEFORE_KILL = 5

Agent = subprocess.Popen[str]


def start_agent(place: str, name: str, work: str, *rest: str) -> Agent:
    """Starts an agent as a process of its own; its standard output is a pipe to here."""
    # The child must find the same holdfast, also when this one was found through sys.path alone.
    root = str(Path(holdfast.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", AGENT, place, name, work, *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def say_go(*agents: Agent) -> None:
    """Lets the agents begin together, once every one of them has the store open."""
    for agent in agents:
        assert agent.stdout is not None, "BUG: an agent without a pipe"
        agent.stdout.readline()
    for agent in agents:
        assert agent.stdin is not None, "BUG: an agent without a pipe"
        with suppress(BrokenPipeError), agent.stdin as pipe:  # it may have died already
            pipe.write("go\n")


def read_lines(agent: Agent) -> list[dict[str, Any]]:
    """Returns what the agent says until its end; a line that was cut off said nothing."""
    assert agent.stdout is not None, "BUG: an agent without a pipe"
    with agent.stdout as pipe:
        lines = [json.loads(line) for line in pipe if line.endswith("\n")]
    if agent.wait() not in (0, -signal.SIGKILL):
        raise UnavailableError(
            f"an agent of the demo ended with exit code {agent.returncode}: its message is above",
            hint="holdfast doctor",
        )
    return lines


def work_alone(agent: Agent) -> list[dict[str, Any]]:
    """Lets one agent work to its end and returns what it says."""
    say_go(agent)
    return read_lines(agent)


def acknowledged(lines: list[dict[str, Any]]) -> list[Any]:
    return [line["acknowledged"] for line in lines if "acknowledged" in line]


def kill_importer(place: str, *helpers: Agent) -> tuple[str, int, list[int], int]:
    """Kills an importing agent in the middle; returns its inbox, its task, what it said, its end.

    It writes as fast as it can while this process only reads. Should it still be done before the
    signal arrives, a longer import is begun in an inbox of its own.
    """
    inbox, count = INBOX, MAILS
    while True:
        agent = start_agent(place, "bo", "import", inbox, str(count))
        say_go(agent, *helpers)
        helpers = ()
        assert agent.stdout is not None, "BUG: an agent without a pipe"
        first = [agent.stdout.readline() for _ in range(KILL_AFTER + 1)]
        agent.send_signal(signal.SIGKILL)
        lines = [json.loads(line) for line in first if line.endswith("\n")]
        mails = acknowledged(lines + read_lines(agent))
        if agent.returncode != 0:
            return inbox, count, mails, agent.returncode
        count *= 2
        inbox = f"{INBOX}-{count}"


def kill_replier(place: str, outbox: str) -> tuple[list[str], int]:
    """Kills an agent in the middle of its run; returns what it said, and its end.

    The last letter that it says is out, and the run has not recorded it: the worst moment there is.
    """
    agent = start_agent(place, "di", "reply", outbox, str(LETTERS_BEFORE_KILL))
    say_go(agent)
    assert agent.stdout is not None, "BUG: an agent without a pipe"
    first = [agent.stdout.readline() for _ in range(LETTERS_BEFORE_KILL)]
    agent.send_signal(signal.SIGKILL)
    lines = [json.loads(line) for line in first if line.endswith("\n")]
    return acknowledged(lines + read_lines(agent)), agent.returncode


def run_command(words: list[str]) -> Any:
    """Runs a holdfast command in a new process and returns its document."""
    root = str(Path(holdfast.__file__).parents[1])
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); import holdfast.cli as cli"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(cli.main())", root, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)
