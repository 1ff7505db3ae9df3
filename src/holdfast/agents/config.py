"""The executor that a user's configuration names.

    [agents]
    command = ["claude", "-p"]
    decide = ["claude", "-p", "--model", "haiku"]    # for decisions; without it `command`
    models = { opus = ["--model", "opus"] }
    timeout_s = 600

or

    [agents]
    url = "https://models.example/v1"
    models = { default = "small", opus = "large" }
    key_variable = "EXAMPLE_KEY"

Such a file decides which program runs and which server gets every prompt. So it is used only after
its user has trusted it (`holdfast trust`, decision 0022).
"""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.agents.chat import KEY_VARIABLE, TIMEOUT_S, Chat
from holdfast.agents.command import Command
from holdfast.agents.credentials import shown_url
from holdfast.agents.protocol import Executor
from holdfast.core.arguments import check_flag
from holdfast.errors import NotFoundError, UsageError
from holdfast.record import trust as trusted_files
from holdfast.record.trust import ConfigFile, untrusted_error

FILE = "holdfast.toml"


class AgentSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings in `[agents]`."""

    command: list[str] | None = None
    decide: list[str] | None = None
    url: str | None = None
    models: dict[str, str | list[str]] = {}
    key_variable: str = KEY_VARIABLE
    timeout_s: float = TIMEOUT_S

    @property
    def commands(self) -> dict[str, list[str]]:
        """The commands and URLs that a user must trust, by setting."""
        found: dict[str, list[str]] = {}
        if self.command:
            found["agents.command"] = self.command
        if self.decide:
            found["agents.decide"] = self.decide
        if self.url:
            found["agents.url"] = [shown_url(self.url)]
        return found


class _File(Struct):
    agents: AgentSettings | None = None


def load_executor(
    path: str | os.PathLike[str] = FILE, *, trust: bool = False
) -> Executor | Command:
    """Returns the executor of a configuration file, which its user must have trusted.

    With `trust=True` the calling program vouches for the file. Raises NotFoundError if the file
    has no `[agents]`.
    """
    check_flag(trust, "trust")
    found = trusted_files.read_config(path)
    settings = parse_agents(found)
    if settings is None:
        raise NotFoundError(
            f'configuration file "{found.path}" has no [agents]',
            hint='[agents] has command = ["program", "word"] or url = "https://…"',
        )
    if not trust and not trusted_files.is_trusted(found):
        texts = {name: shlex.join(words) for name, words in settings.commands.items()}
        raise untrusted_error(found, texts)
    return _executor(settings, Path(found.path).parent)


def parse_agents(found: ConfigFile) -> AgentSettings | None:
    """Returns the `[agents]` settings of a file, trusted or not; None if it has none."""
    try:
        sections = tomllib.loads(found.data.decode("utf-8"))
        settings = msgspec.convert(sections, _File).agents
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(
            f'configuration file "{found.path}" cannot be parsed: {error}',
            hint='[agents] has command = ["program", "word"] or url = "https://…"',
        ) from error
    if settings is not None and bool(settings.command) == bool(settings.url):
        raise UsageError(f'[agents] of "{found.path}" has either a command or a url')
    return settings


def _executor(settings: AgentSettings, directory: Path) -> Executor | Command:
    if settings.command:
        words = {
            name: value if isinstance(value, list) else shlex.split(value)
            for name, value in settings.models.items()
        }
        return Command(
            settings.command,
            decide=settings.decide,
            models=words,
            timeout=settings.timeout_s,
            cwd=directory,
        )
    names = {name: value for name, value in settings.models.items() if isinstance(value, str)}
    assert settings.url is not None, "BUG: checked before"
    return Chat(
        settings.url,
        models=names,
        key_variable=settings.key_variable,
        timeout_s=settings.timeout_s,
    )
