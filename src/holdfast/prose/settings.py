"""What may be set for programs: by a caller, kept with the run, and in `[prose]` of holdfast.toml.

    [prose]
    imports = ["programs"]
    backoff_scale = 1.0
    verbatim_max = 2000
    summarised_max = 8000
    limits = { statements = 30, branches = 5, imports = 3, depth = 3, characters = 200000 }

The section names no commands, so that it needs no trust; a file that somebody else may write is
refused all the same.
"""

from __future__ import annotations

import os
import tomllib
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import UsageError
from holdfast.prose.views import BRANCHES_MIN, state_path
from holdfast.record.trust import read_config

FILE = "holdfast.toml"
VERBATIM_MAX = 2000
SUMMARISED_MAX = 8000


class Settings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a program is run: its sessions' class, its waits, and how much context is passed."""

    sessions: str = "idempotent"
    """The class of every session: idempotent, or effect."""
    backoff_scale: float = 1.0
    """What the waits of `backoff:` are multiplied by."""
    verbatim_max: int = VERBATIM_MAX
    """Up to so many characters a value is passed as it is."""
    summarised_max: int = SUMMARISED_MAX
    """Up to so many characters it is passed as a summary, above them by reference."""
    views: str | None = None
    """The directory that shows the state of the program as files; None: there is none."""
    branches_min: int = BRANCHES_MIN
    """From so many branches on a parallel block has files."""

    def check(self) -> None:
        """Raises UsageError for settings that cannot be."""
        if self.sessions not in ("idempotent", "effect"):
            raise UsageError(f"sessions are idempotent or effect, found {self.sessions!r}")
        if not 0 <= self.verbatim_max <= self.summarised_max:
            raise UsageError(
                f"a value is passed as it is up to {self.verbatim_max} characters, and "
                f"summarised up to {self.summarised_max}: the first may not be larger"
            )
        if not self.backoff_scale >= 0:
            raise UsageError(f"backoff_scale is at least 0, found {self.backoff_scale}")

    def reference(self, run: str, name: str, text: str) -> str:
        """Returns what stands for a value that is too long to be passed: where it can be read."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        place = f"holdfast prose show {run} --value {name}"
        if self.views is not None and "." not in name and "[" not in name:
            place = str(PurePath(self.views) / state_path(name))
        return f"({len(text):,} characters, digest {digest}; to be read at: {place})"


def settings_of(document: dict[str, Any]) -> Settings:
    """Returns stored settings."""
    return msgspec.convert(document, Settings)


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How large a program in context may be; one that is larger is kept in the store."""

    statements: int = 30
    branches: int = 5
    imports: int = 3
    depth: int = 3
    characters: int = 200_000


class ProseConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The section as it is written; directories are relative to the file."""

    imports: list[str] = []
    backoff_scale: float = 1.0
    verbatim_max: int = VERBATIM_MAX
    summarised_max: int = SUMMARISED_MAX
    limits: Limits = Limits()


class _File(Struct):
    prose: ProseConfig = ProseConfig()


def load_config(path: str | os.PathLike[str] = FILE) -> tuple[ProseConfig, list[Path]]:
    """Returns what a file says, and the directories that it names; defaults if there is none."""
    if not Path(path).exists():
        return ProseConfig(), []
    found = read_config(path)
    try:
        config = msgspec.convert(tomllib.loads(found.data.decode("utf-8")), _File).prose
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(
            f'configuration file "{found.path}" cannot be parsed: {error}',
            hint="[prose] may have imports, backoff_scale, verbatim_max, summarised_max and limits",
        ) from error
    return config, [Path(found.path).parent / name for name in config.imports]
