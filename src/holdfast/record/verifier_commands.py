"""Verifiers that are commands, taken only from a configuration file that the user trusts.

    [verify.branch_exists]
    command = ["python3", "tools/branch_exists.py"]
    timeout_s = 10

A command is a list of words and is run without a shell, in the directory of the file. Stored data
never becomes part of the command line (guarantee 10): the command gets the fact or decision as JSON
on its standard input, and name and value in HOLDFAST_NAME and HOLDFAST_VALUE. It answers by its
exit code: 0 means holds (or done), 1 means it does not (or not done). Any other code, or a timeout,
means unknown. Its output is recorded as what it found.

A file that names commands is used only after its user has trusted it (trust.py).
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from holdfast.core import codec
from holdfast.core.arguments import check_flag
from holdfast.core.intent import Done, NotDone, Unknown, verifiers
from holdfast.errors import UsageError, show_value
from holdfast.record import trust as trusted_files
from holdfast.record.facts import Contradicted, Fact, Holds

_logger = logging.getLogger("holdfast.record")

FILE = "holdfast.toml"
TIMEOUT_S = 30.0
FOUND_CHARACTERS_MAX = 1000


class VerifierCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """One command of the file."""

    command: list[str]
    timeout_s: float = TIMEOUT_S

    @property
    def text(self) -> str:
        """The command as a shell would take it."""
        return shlex.join(self.command)


def load_verifiers(path: str | os.PathLike[str] = FILE, *, trust: bool = False) -> list[str]:
    """Registers the commands of a configuration file as verifiers; returns their names.

    A file that names commands must have been trusted with `holdfast trust`; otherwise it raises
    UntrustedError, which says what the file would run. With `trust=True` the calling program
    vouches for the file. A file that another user may write is refused in any case.
    """
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a configuration file is a path, found {show_value(path)}")
    check_flag(trust, "trust")
    found = trusted_files.read_config(path)
    commands = parse_commands(found)
    if commands and not trust and not trusted_files.is_trusted(found):
        texts = {name: command.text for name, command in commands.items()}
        raise trusted_files.untrusted_error(found, texts)
    directory = Path(found.path).parent
    for name, command in commands.items():
        verifiers.add(_CommandVerifier(name, command, directory), name)
    return list(commands)


def parse_commands(found: trusted_files.ConfigFile) -> dict[str, VerifierCommand]:
    """Returns the commands that a file names, without asking whether it is trusted."""
    import tomllib

    place = found.path
    try:
        sections = tomllib.loads(found.data.decode("utf-8")).get("verify", {})
        commands = msgspec.convert(sections, dict[str, VerifierCommand])
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(
            f'configuration file "{place}" cannot be parsed: {error}',
            hint='[verify.<name>] has command = ["program", "word"] and may have timeout_s',
        ) from error
    for name, command in commands.items():
        if not command.command or not 0 < command.timeout_s < 1e6:
            raise UsageError(
                f'[verify.{name}] of "{place}" needs a command of at least one word, and a '
                "timeout_s above 0"
            )
    return commands


class _CommandVerifier:
    """A command as a verifier function.

    It takes the file as its module, so loading the file again replaces its commands.
    """

    def __init__(self, name: str, command: VerifierCommand, directory: Path) -> None:
        self._command = command
        self._directory = directory
        self.__module__ = f"{directory / FILE}"
        self.__qualname__ = name

    def __call__(self, subject: Any) -> Holds | Contradicted | Done | NotDone | Unknown:
        code, printed = self._run(subject)
        if code not in (0, 1):
            return Unknown(printed)
        found = printed or None
        if isinstance(subject, Fact):
            return Holds(found) if code == 0 else Contradicted(found)
        return Done(found) if code == 0 else NotDone()

    def _run(self, subject: Any) -> tuple[int | None, str]:
        import subprocess

        command = self._command
        environment = {**os.environ, **_environment(subject)}
        try:
            child = subprocess.Popen(
                command.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._directory,
                env=environment,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            _logger.warning("verifier command %s cannot be run: %s", command.command[0], error)
            return None, f"{command.command[0]} cannot be run: {error}"
        with child:
            try:
                out, err = child.communicate(_as_json(subject), command.timeout_s)
            except BaseException as error:
                # Kill the whole group: what the command started would go on unseen. This is safe,
                # because the process id cannot be reused until the process is waited for, which
                # happens at the end of this block.
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    _logger.debug("verifier command %s had ended", command.command[0])
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                _logger.warning("verifier command %s timed out", command.command[0])
                return None, f"{command.command[0]} took longer than {command.timeout_s} s"
        printed = out.decode("utf-8", "replace").strip()[:FOUND_CHARACTERS_MAX]
        if child.returncode not in (0, 1):
            trouble = err.decode("utf-8", "replace").strip()[-FOUND_CHARACTERS_MAX:]
            return None, f"{command.command[0]} ended with {child.returncode}: {trouble}"
        return child.returncode, printed


def _as_json(subject: Any) -> bytes:
    fields = msgspec.structs.asdict(subject)
    plain = {
        name: [str(item) for item in cast("tuple[Any, ...]", value)]
        if isinstance(value, tuple)
        else value
        for name, value in fields.items()
    }
    return codec.encode(plain)


def _environment(subject: Any) -> dict[str, str]:
    """Returns name and value for the environment, except texts with a zero byte."""
    name = subject.name if isinstance(subject, Fact) else subject.key
    value = subject.value if isinstance(subject, Fact) else subject.planned_action or ""
    text = value if isinstance(value, str) else codec.encode(value).decode()
    variables = {"HOLDFAST_NAME": str(name), "HOLDFAST_VALUE": text}
    return {key: word for key, word in variables.items() if "\0" not in word}
