"""Installs a merge driver and a hook in a repository, when its user asks for them."""

from __future__ import annotations

import os

from holdfast.errors import ExistsError, UnavailableError, UsageError
from holdfast.git.repository import Repository

DRIVER = "holdfast"


def install_merge_driver(repository: Repository, inside: str, command: str) -> list[str]:
    """Lets git merge the files of a store with a command; returns the lines of attributes.

    The command goes into the local configuration, the lines into `info/attributes`. Neither is
    committed, because a repository must not bring programs along.
    """
    if any(each in inside for each in ' \t\n"*?[\\'):
        raise UsageError(f'"{inside}" cannot be named in git attributes', hint="rename the store")
    repository.run("config", "--local", f"merge.{DRIVER}.name", "events of a holdfast store")
    repository.run("config", "--local", f"merge.{DRIVER}.driver", command)
    lines = [
        f"/{inside}/log/*.jsonl merge={DRIVER}",
        f"/{inside}/head.json merge={DRIVER}",
    ]
    path = os.path.join(repository.common_dir, "info", "attributes")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a+", encoding="utf-8") as file:
            file.seek(0)
            text = file.read()
            missing = [line for line in lines if line not in text.splitlines()]
            gap = "\n" if text and not text.endswith("\n") else ""
            file.write(gap + "".join(f"{line}\n" for line in missing))
    except OSError as error:
        raise UnavailableError(f'"{path}" cannot be written: {error.strerror}') from error
    return lines


MARK = "# installed by holdfast git hook"


def install_hook(repository: Repository, command: str) -> str:
    """Installs a hook that runs a command after each commit; returns its path.

    Another hook is never overwritten: ExistsError says what to add to it.
    """
    path = _hook(repository)
    text = f"#!/bin/sh\n{MARK}\n{command} >/dev/null || true\n"
    try:
        if os.path.lexists(path) and MARK not in _read(path):
            raise ExistsError(f'there is a hook "{path}" already', hint=f"add to it: {command}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
    except OSError as error:
        raise UnavailableError(f'"{path}" cannot be written: {error.strerror}') from error
    return path


def remove_hook(repository: Repository) -> bool:
    """Removes the hook if it is ours; returns whether there was one."""
    path = _hook(repository)
    if not os.path.lexists(path) or MARK not in _read(path):
        return False
    os.unlink(path)
    return True


def _hook(repository: Repository) -> str:
    code, printed = repository.run("config", "--local", "--get", "core.hooksPath", codes=(0, 1))
    if code == 0 and printed.strip() not in (b"", b"/dev/null"):
        raise UsageError(
            "the hooks of this repository are elsewhere: core.hooksPath names "
            f"{printed.decode('utf-8', 'replace').strip()!r}",
            hint="add the command to the hook there",
        )
    return os.path.join(repository.common_dir, "hooks", "post-commit")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
