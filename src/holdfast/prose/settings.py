"""Settings of programs: of a caller, stored with the run, and in `[prose]` of holdfast.toml.

    [prose]
    imports = ["programs"]
    backoff_scale = 1.0
    verbatim_max = 2000
    summarised_max = 8000
    limits = { statements = 30, branches = 5, imports = 3, depth = 3, characters = 200000 }

The section names no commands, so it needs no trust. Still, a file that another user may write is
refused.
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
    """The factor for the waits of `backoff:`."""
    verbatim_max: int = VERBATIM_MAX
    """Values up to this many characters are passed unchanged."""
    summarised_max: int = SUMMARISED_MAX
    """Values up to this many characters are passed as a summary, longer ones by reference."""
    views: str | None = None
    """The directory for the view files of the program; None for none."""
    branches_min: int = BRANCHES_MIN
    """The least number of branches for which a parallel block gets files."""

    def check(self) -> None:
        """Raises UsageError for invalid settings."""
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
        """Returns the text that replaces a value that is too long: where it can be read."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        place = f"holdfast prose show {run} --value {name}"
        if self.views is not None and "." not in name and "[" not in name:
            place = str(PurePath(self.views) / state_path(name))
        return f"({len(text):,} characters, digest {digest}; to be read at: {place})"


def settings_of(document: dict[str, Any]) -> Settings:
    """Decodes stored settings."""
    return msgspec.convert(document, Settings)


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How large a program in context may be; a larger one is kept in the store."""

    statements: int = 30
    branches: int = 5
    imports: int = 3
    depth: int = 3
    characters: int = 200_000


class ProseConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[prose]` as written; directories are relative to the file."""

    imports: list[str] = []
    backoff_scale: float = 1.0
    verbatim_max: int = VERBATIM_MAX
    summarised_max: int = SUMMARISED_MAX
    limits: Limits = Limits()


class _File(Struct):
    prose: ProseConfig = ProseConfig()


def load_config(path: str | os.PathLike[str] = FILE) -> tuple[ProseConfig, list[Path]]:
    """Returns the settings of a file, and the directories it names; defaults if it is missing."""
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
