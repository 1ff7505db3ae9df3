"""What `[prose]` of holdfast.toml says: where programs are found, and the limits.

    [prose]
    imports = ["programs"]
    backoff_scale = 1.0
    verbatim_max = 2000
    summarised_max = 8000
    limits = { statements = 30, branches = 5, imports = 3, depth = 3, characters = 200000 }

It names no commands, so that it needs no trust; a file that somebody else may write is refused all
the same.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.errors import UsageError
from holdfast.prose.settings import SUMMARISED_MAX, VERBATIM_MAX
from holdfast.prose.transcript import Limits
from holdfast.record.trust import read_config

FILE = "holdfast.toml"


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
