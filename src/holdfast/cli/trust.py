"""The verb that lets a configuration file run commands: trust."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from holdfast.agents.config import parse_agents
from holdfast.cli.options import Flag
from holdfast.cli.printing import print_facts, print_json, print_line, print_note, print_table
from holdfast.errors import UsageError
from holdfast.record import trust as trusted_files
from holdfast.record.verifier_commands import FILE, parse_commands
from holdfast.render.record import trust_document, trusted_document
from holdfast.render.text import clean

QUESTION = "Let holdfast run these commands? [y/N] "


def trust(
    path: Path = Path(FILE),
    /,
    *,
    yes: Flag = False,
    list: Flag = False,
    revoke: Flag = False,
    json: Flag = False,
) -> int:
    """Let a configuration file run its commands; shows them first, and asks.

    Parameters
    ----------
    path
        The configuration file.
    yes
        Do not ask; for scripts.
    list
        List the files that are trusted, instead.
    revoke
        Trust a file no longer, instead.
    json
        Print one JSON document; errors are JSON too.
    """
    if list + revoke + yes > 1:
        raise UsageError("--yes, --list and --revoke do different things: give one of them")
    if list:
        _list(json=json)
        return 0
    if revoke:
        _tell(trusted_files.revoke(path), {}, is_trusted=False, json=json)
        return 0
    found = trusted_files.read_config(path)
    commands = {name: command.command for name, command in parse_commands(found).items()}
    agents = parse_agents(found)
    if agents is not None:
        commands |= agents.commands
    if not commands:
        raise UsageError(f'"{found.path}" names no commands: there is nothing to trust')
    if not yes:
        if json or not sys.stdin.isatty():
            raise UsageError(
                "trust is asked for on a terminal, and there is none",
                hint="read the file, then add --yes",
            )
        _tell(found.path, commands, is_trusted=False, json=False)
        print(QUESTION, end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print_line("it is not trusted")
            return 1
    # Trusts the bytes that were shown, and not the file, which may have changed meanwhile.
    trusted_files.add(found)
    if yes:
        _tell(found.path, commands, is_trusted=True, json=json)
    return 0


def _list(*, json: bool) -> None:
    found = trusted_files.states()
    if json:
        print_json(trusted_document(found))
    elif found:
        print_table(("file", "state"), found)
    else:
        print_note("no file is trusted")


def _tell(path: str, commands: dict[str, list[str]], *, is_trusted: bool, json: bool) -> None:
    if json:
        print_json(trust_document(path, commands, is_trusted=is_trusted))
        return
    rows = [("file", path), ("trusted", "yes" if is_trusted else "no")]
    for name, command in commands.items():
        rows.append((f"runs {clean(name)}", shlex.join(command)))
    print_facts(rows)
