"""A real repository in a folder of its own, changed by the git command as a person would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.git.command import user_excludes

PERSON = {
    "GIT_AUTHOR_NAME": "ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
}


class Project:
    """A folder with a repository, and what a person does in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *words: str, code: int = 0) -> str:
        """Runs git as a person does, with everything that a repository's configuration names."""
        done = subprocess.run(
            ["git", *words],
            cwd=self.path,
            env={**os.environ, **PERSON},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return done.stdout.strip()

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        return (self.path / name).read_text()

    def commit(self, message: str = "a change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def files(self) -> dict[str, str]:
        """Returns every file but those of the repository and of stores, with what it holds."""
        return {
            str(path.relative_to(self.path)): path.read_text()
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not {".git", ".holdfast"} & set(path.relative_to(self.path).parts)
        }


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a configuration of git's: what this machine has does not count."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    user_excludes.cache_clear()
    return home


@pytest.fixture
def project(tmp_path: Path) -> Project:
    path = tmp_path / "project"
    path.mkdir()
    project = Project(path)
    project.git("init", "-q", "-b", "main")
    project.write(".gitignore", ".holdfast/\n*.log\n")
    project.write("a.txt", "one\n")
    project.write("src/b.py", "b = 1\n")
    project.commit("begin")
    return project
