"""What is put into a repository when its user asks for it: a merge driver, and a hook."""

from __future__ import annotations

import os

from holdfast.errors import UnavailableError, UsageError
from holdfast.git.repository import Repository

DRIVER = "holdfast"


def install_merge_driver(repository: Repository, inside: str, command: str) -> list[str]:
    """Lets git merge the files of a store with a command; returns the lines of its attributes.

    Both are of this repository alone, in its configuration and in `info/attributes`: neither is
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
