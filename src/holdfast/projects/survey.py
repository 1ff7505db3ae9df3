"""What a directory shows of a project: git, its type, its configuration, its tree, earlier state.

Everything here is a hint for agents and people; no decision depends on it. Only the project's own
directory is examined; the folders above it are searched only for a git repository. Each thing is
found, or absent with a reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.projects.settings import FILE, STORE, Files, Settings

ENTRIES_MAX = 1000
DEPTH_MAX = 8
IGNORE_BYTES_MAX = 1 << 16
_NEVER = frozenset((".git", STORE))

TYPES = {
    "Python": ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"),
    "Node.js": ("package.json",),
    "Rust": ("Cargo.toml",),
    "Go": ("go.mod",),
    "Java": ("pom.xml", "build.gradle", "build.gradle.kts"),
    "Ruby": ("Gemfile",),
    "PHP": ("composer.json",),
    "C or C++": ("CMakeLists.txt", "meson.build", "configure.ac"),
    ".NET": ("global.json", "Directory.Build.props"),
    "Elixir": ("mix.exs",),
}
"""Files that show which language a project is written in."""

CONFIGURATION = (
    FILE, "pyproject.toml", "package.json", "Cargo.toml", "go.mod", "Makefile", "justfile",
    "tox.ini", "tsconfig.json", ".pre-commit-config.yaml", ".editorconfig", "Dockerfile",
    "compose.yaml", "docker-compose.yml", "AGENTS.md", "CLAUDE.md", "README.md",
)  # fmt: skip
"""Files that describe how a project is built, tested or developed."""


TOLD_MAX = 50
"""How many entries of the directory an agent is told."""


class Finding(Struct, frozen=True):
    """One thing that was looked for: what was found, or why nothing was."""

    name: str
    value: Any = None
    absent: str | None = None
    """Why it is absent; None if it was found."""

    @property
    def is_found(self) -> bool:
        """Whether it is there."""
        return self.absent is None


class Tree(Struct, frozen=True):
    """Paths of a project's files; directories end with a slash. `left_out`: there are more."""

    entries: tuple[str, ...]
    left_out: bool = False


class Survey(Struct, frozen=True):
    """What was found in a project's directory."""

    root: str
    git: Finding
    type: Finding
    configuration: Finding
    tree: Finding
    state: Finding

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, in the order in which they are looked for."""
        return self.git, self.type, self.configuration, self.tree, self.state


def survey(root: Path, settings: Settings, revision: int) -> Survey:
    """Looks at a project; `revision` is how many events its scope has."""
    types = [name for name, files in TYPES.items() if any((root / one).is_file() for one in files)]
    configured = [name for name in CONFIGURATION if (root / name).is_file()]
    tree = _tree(root)
    return Survey(
        str(root),
        _git(root),
        Finding("type", types)
        if types
        else Finding("type", absent="no file tells what it is written in"),
        Finding("configuration", configured)
        if configured
        else Finding("configuration", absent="no known configuration file is there"),
        Finding("tree", tree)
        if tree.entries
        else Finding("tree", absent="the directory is empty, or all of it is ignored"),
        _state(root, settings, revision),
    )


def survey_lines(found: Survey) -> list[str]:
    """Returns what an agent is told of a directory, in a few lines; what is absent is left out."""
    lines: list[str] = []
    if found.type.is_found:
        lines.append(f"written in: {', '.join(found.type.value)}")
    if found.configuration.is_found:
        lines.append(f"configured by: {', '.join(found.configuration.value)}")
    if found.git.is_found:
        lines.append(f"git branch: {found.git.value['branch'] or 'none is checked out'}")
    if found.tree.is_found:
        top = [path for path in found.tree.value.entries if "/" not in path.rstrip("/")]
        more = len(top) - TOLD_MAX
        rest = [f"and {more} more"] if more > 0 else []
        lines.append(f"files: {', '.join([*top[:TOLD_MAX], *rest])}")
    return lines


def _state(root: Path, settings: Settings, revision: int) -> Finding:
    names = [getattr(settings.files, name) for name in Files.__struct_fields__]
    files = [name for name in names if (root / name).is_file()]
    if not files and not revision:
        return Finding("state", absent="neither events nor files of an earlier session are there")
    return Finding("state", {"events": revision, "files": files})


def _git(root: Path) -> Finding:
    """Finds the repository of a directory, and its branch, without running git."""
    for folder in (root, *root.parents):
        found = folder / ".git"
        if not os.path.lexists(found):
            continue
        try:
            place = found
            if found.is_file():  # of a worktree or a submodule
                place = folder / found.read_text("utf-8").removeprefix("gitdir:").strip()
            head = (place / "HEAD").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            return Finding("git", absent=f'"{found}" is there and cannot be read: {error}')
        branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else None
        return Finding("git", {"root": str(folder), "branch": branch})
    return Finding("git", absent="no directory from here up is a git repository")


def _tree(root: Path) -> Tree:
    entries: list[str] = []
    for path in _walk(root, root, [], DEPTH_MAX):
        if len(entries) == ENTRIES_MAX:
            return Tree(tuple(entries), left_out=True)
        entries.append(path)
    return Tree(tuple(entries))


def _walk(root: Path, folder: Path, rules: list[_Rule], depth: int) -> Iterator[str]:
    rules = [*rules, *_rules_of(root, folder)]
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # a directory that may not be read is shown without its content
    for entry in found:
        path = os.path.relpath(entry.path, root)
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in _NEVER or _is_ignored(rules, path, is_folder=is_folder):
            continue
        yield f"{path}/" if is_folder else path
        if is_folder and depth > 1:
            yield from _walk(root, Path(entry.path), rules, depth - 1)


# --- .gitignore -----------------------------------------------------------------------------------


class _Rule(Struct, frozen=True):
    pattern: re.Pattern[str]
    is_negated: bool
    is_for_folders: bool


def _rules_of(root: Path, folder: Path) -> list[_Rule]:
    try:
        with open(folder / ".gitignore", "rb") as file:
            text = file.read(IGNORE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return []
    below = os.path.relpath(folder, root)
    base = "" if below == "." else re.escape(f"{below}/")
    return [rule for line in text.splitlines() if (rule := _rule(line, base)) is not None]


def _rule(line: str, base: str) -> _Rule | None:
    """Returns a line of .gitignore as a rule; None if it is empty or a comment."""
    line = re.sub(r"(?<!\\) +$", "", line)
    if not line or line.startswith("#"):
        return None
    is_negated = line.startswith("!")
    line = line.removeprefix("!").removeprefix("\\")
    is_for_folders = line.endswith("/")
    line = line.rstrip("/")
    # A pattern with a slash inside matches from its directory; one without, at any depth.
    anywhere = "" if "/" in line else "(?:.*/)?"
    return _Rule(re.compile(base + anywhere + _regex(line.lstrip("/"))), is_negated, is_for_folders)


def _regex(glob: str) -> str:
    found, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
        elif glob.startswith("/**", at) and at + 3 == len(glob):
            found, at = found + "/.*", at + 3
        elif glob[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif glob[at] == "?":
            found, at = found + "[^/]", at + 1
        elif glob[at] == "[" and "]" in glob[at + 2 :]:
            end = glob.index("]", at + 2)
            inside = glob[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            inside = f"^{inside[1:]}" if inside[0] in "!^" else inside
            found, at = f"{found}[{inside}]", end + 1
        else:
            at += glob[at] == "\\" and at + 1 < len(glob)
            found, at = found + re.escape(glob[at]), at + 1
    return found


def _is_ignored(rules: list[_Rule], path: str, *, is_folder: bool) -> bool:
    """Returns whether the last rule that matches a path ignores it."""
    for rule in reversed(rules):
        if (is_folder or not rule.is_for_folders) and rule.pattern.fullmatch(path):
            return not rule.is_negated
    return False
