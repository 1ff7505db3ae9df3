"""What `[project]` of holdfast.toml says: the id, the names of the files, and the limits.

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

Nothing here names a command, so the file need not be trusted for it. Who answers for agents is said
in `[agents]`, and counts only in a file that its user has trusted (decision 0022).
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
    """Where the five files of a project are, from its root."""

    learnings: str = "AGENT.md"
    goals: str = "RALPH_GOALS.md"
    tasks: str = "RALPH_TASKS.md"
    progress: str = "RALPH_PROGRESS.md"
    todo: str = "RALPH_TODO.md"


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How much a coordinator starts at most."""

    agents: int = 20
    """Agents at work at once, the coordinator's own included."""
    depth: int = 3
    """How deep children of children go; a child of the coordinator has depth 1."""
    children: int = 10
    """Children at work at once that one parent has."""
    turns: int = 25
    """Turns of one task before it is blocked, for a person to look at."""
    memory: int | str | None = None
    """How much memory the coordinator's process takes before it forgets what it can read again."""
    free: int | str = "64MB"
    """How much space the disk has at least when a task is begun."""


class SessionRetention(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions `project prune` keeps; all of them if nothing is said."""

    older_than: str | int | None = None
    count: int | None = None
    bytes: int | str | None = None


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What `[project]` may say."""

    id: str | None = None
    budget: int = 8_000
    """How many tokens a turn is told at most, besides the task itself."""
    checkpoints: bool = True
    """Whether a point to go back to is made before each turn."""
    views: bool = True
    """Whether the five files are written, and read when people have edited them."""
    compact_at: int = 50_000
    """How many tokens a session's conversation has when its older part becomes a summary."""
    slow: str | float = "2s"
    """How long a commit, a read or a context may take before it is reported as slow."""
    files: Files = Files()
    limits: Limits = Limits()
    retention: SessionRetention = SessionRetention()

    @property
    def slow_s(self) -> float:
        """What `slow` is in seconds."""
        return check_duration(self.slow, "project.slow")


class _Sections(Struct):
    project: Settings = Settings()


def project_root(directory: str | os.PathLike[str]) -> Path:
    """Returns the root of a project as a whole path, or raises UsageError: it is a directory."""
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
    """Returns a path below the root, or raises UsageError: a link must not lead out of it."""
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
    """Returns what the project's holdfast.toml says of it; the defaults if it says nothing."""
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
    """Raises UsageError that names a limit which nothing could be done with, such as zero."""
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
    """Returns the id that the project's scope has: the one that was set, else its folder's name."""
    id = settings.id or root.name or "root"
    if "/" in id:
        raise UsageError(f"a project's id has no slash, found {show_value(id)}")
    return check_name(id, "a project's id")
