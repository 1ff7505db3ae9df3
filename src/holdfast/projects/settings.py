"""The section `[project]` of holdfast.toml: the id, the names of the files, and the limits.

    [project]
    id = "shop"
    budget = 8000
    checkpoints = true
    views = true
    compact_at = 50000
    slow = "2s"

    [project.files]
    tasks = "notes/TASKS.md"

    [project.limits]
    agents = 20
    depth = 3
    children = 10
    turns = 25
    memory = "2GB"
    free = "64MB"

    [project.retention]
    older_than = "90d"
    count = 1000
    bytes = "500MB"

Nothing here names a command, so the section needs no trust. Who answers for agents is set in
`[agents]`, which counts only in a file that its user has trusted (decision 0022).
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from holdfast.core.arguments import check_duration, check_whole
from holdfast.core.limits import check_size
from holdfast.errors import UsageError, show_value
from holdfast.names import check_name

FILE = "holdfast.toml"
STORE = ".holdfast"
BYTES_MAX = 1 << 20
COMPACT_AT_MIN = 1_000


class Files(Struct, frozen=True, forbid_unknown_fields=True):
    """The paths of the five files of a project, relative to its root."""

    learnings: str = "AGENT.md"
    goals: str = "RALPH_GOALS.md"
    tasks: str = "RALPH_TASKS.md"
    progress: str = "RALPH_PROGRESS.md"
    todo: str = "RALPH_TODO.md"


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of what a coordinator starts."""

    agents: int = 20
    """How many agents may work at once, the coordinator's own included."""
    depth: int = 3
    """How deeply children may be nested; a child of the coordinator has depth 1."""
    children: int = 10
    """How many children of one parent may work at once."""
    turns: int = 25
    """After how many turns a task that is not done is blocked, for a person to look at."""
    memory: int | str | None = None
    """Above this memory use, the coordinator's process drops caches that it can read again."""
    free: int | str = "64MB"
    """How much free disk space is needed to begin a task."""


class SessionRetention(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions `project prune` keeps; all of them if nothing is set."""

    older_than: str | int | None = None
    count: int | None = None
    bytes: int | str | None = None


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `[project]`."""

    id: str | None = None
    budget: int = 8_000
    """How many tokens the context of a turn may have, without the task itself."""
    checkpoints: bool = True
    """Whether a rewind point is made before each turn."""
    views: bool = True
    """Whether the five files are written, and imported when people have edited them."""
    compact_at: int = 50_000
    """Above how many tokens the older part of a session's conversation becomes a summary."""
    slow: str | float = "2s"
    """How long a commit, a read or a context may take before it is reported as slow."""
    files: Files = Files()
    limits: Limits = Limits()
    retention: SessionRetention = SessionRetention()

    @property
    def slow_s(self) -> float:
        """The setting `slow` in seconds."""
        return check_duration(self.slow, "project.slow")


class _Sections(Struct):
    project: Settings = Settings()


def project_root(directory: str | os.PathLike[str]) -> Path:
    """Returns the resolved root of a project; raises UsageError if it is no readable directory."""
    try:
        root = Path(os.path.realpath(directory))
        is_directory = root.is_dir()
    except (TypeError, ValueError, OSError) as error:
        raise UsageError(f"a project is a directory, found {show_value(directory)}") from error
    if not is_directory:
        found = "is not a directory" if root.exists() else "does not exist"
        raise UsageError(f'a project is a directory: "{root}" {found}')
    if not os.access(root, os.R_OK | os.X_OK):
        raise UsageError(
            f'the directory "{root}" of a project cannot be read: no permission',
            hint="ask its owner for the right to read and to enter it",
        )
    return root


def path_in(root: Path, name: str) -> Path:
    """Returns a path below the root; raises UsageError if it, or a link, leads out of the root."""
    path = root / name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise UsageError(f'"{name}" is not a path inside the project "{root}"')
    real = Path(os.path.realpath(path))
    if real != root and root not in real.parents:
        raise UsageError(
            f'"{path}" leads out of the project, to "{real}"',
            hint="put a file in the place of the link",
        )
    return path


def load_settings(root: Path) -> Settings:
    """Returns the settings in the project's holdfast.toml; the defaults if there are none."""
    settings = _read_settings(path_in(root, FILE))
    _check_numbers(settings)
    names = [getattr(settings.files, name) for name in Files.__struct_fields__]
    for name in names:
        path_in(root, check_name(name, "a file of [project.files]"))
    if len(set(names)) < len(names):
        raise UsageError(f'[project.files] of "{root / FILE}" has one file for two kinds')
    return settings


def _read_settings(path: Path) -> Settings:
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise UsageError(f'configuration file "{path}" cannot be read: {error}') from error
    if len(data) > BYTES_MAX:
        raise UsageError(f'configuration file "{path}" is larger than {BYTES_MAX} bytes')
    try:
        return msgspec.convert(tomllib.loads(data.decode("utf-8")), _Sections).project
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(
            f'[project] of "{path}" cannot be read: {error}',
            hint="it has id, budget, checkpoints, views, compact_at, slow, [project.files], "
            "[project.limits] and [project.retention]",
        ) from error


def _check_numbers(settings: Settings) -> None:
    """Raises UsageError for a limit with which no work is possible, such as zero."""
    limits, keeps = settings.limits, settings.retention
    check_whole(settings.budget, "project.budget", least=1)
    check_whole(settings.compact_at, "project.compact_at", least=COMPACT_AT_MIN)
    check_duration(settings.slow, "project.slow")
    for name in ("agents", "depth", "children", "turns"):
        check_whole(getattr(limits, name), f"project.limits.{name}", least=1)
    if limits.memory is not None:
        check_size(limits.memory, "project.limits.memory")
    check_size(limits.free, "project.limits.free")
    if keeps.older_than is not None:
        check_duration(keeps.older_than, "project.retention.older_than")
    if keeps.count is not None:
        check_whole(keeps.count, "project.retention.count", least=1)
    if keeps.bytes is not None:
        check_size(keeps.bytes, "project.retention.bytes")


def project_id(root: Path, settings: Settings) -> str:
    """Returns the id of the project's scope: the one that is set, else the name of its folder."""
    id = settings.id or root.name or "root"
    if "/" in id:
        raise UsageError(f"a project's id has no slash, found {show_value(id)}")
    return check_name(id, "a project's id")
