"""The process that has less than it needs: space, descriptors, or the right to write.

    python -m tests.faults.child <part> <url> [number]

It says what happened in one line of JSON. Everything is imported before anything is taken away.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
import holdfast.backends.files
import holdfast.backends.sqlite
from holdfast import HoldfastError, UnavailableError
from holdfast.core import codec
from tests.faults.stores import content

ROOT = Path(__file__).resolve().parent.parent.parent
NOBODY = 65534
ITEM = "x" * 2000
ITEMS_MAX = 3000


def play(part: str, url: str, number: int = 0) -> dict[str, Any]:
    """Runs a part in a process of its own and returns what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.child", part, url, str(number)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def tell_error(error: HoldfastError) -> dict[str, Any]:
    return {
        "class": type(error).__name__,
        "text": str(error),
        "hint": error.hint,
        "outcome_known": getattr(error, "outcome_known", None),
    }


def write_until_refused(url: str) -> dict[str, Any]:
    """Appends until the store cannot take more, tries on, and closes; only our errors come out."""
    told: list[str] = []
    errors: list[dict[str, Any]] = []
    read: dict[str, Any] = {}
    try:
        store = holdfast.open(url)
    except UnavailableError as error:
        return {"told": told, "errors": [tell_error(error)], "read": read}
    scope = store.team("full")
    for n in range(ITEMS_MAX):
        try:
            scope.append("log", f"{n} {ITEM}")
            told.append(str(n))
        except UnavailableError as error:
            errors.append(tell_error(error))
            if len(errors) == 4:
                break
    try:
        read["items"] = [item.split()[0] for item in scope.state.get("log", [])]
    except UnavailableError as error:
        read["error"] = tell_error(error)
    store.close()
    return {"told": told, "errors": errors, "read": read}


def limited(url: str, number: int) -> dict[str, Any]:
    """No file may grow above `number` bytes: every write beyond fails with EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, resource.RLIM_INFINITY))
    return write_until_refused(url)


def full(url: str, number: int) -> dict[str, Any]:
    return write_until_refused(url)


def descriptors(url: str, number: int) -> dict[str, Any]:
    """Opens with `number` free descriptors, writes, and closes; then with enough of them."""
    codec.compress(b"")  # which imports what it needs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/dev/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + number, hard))
    said: dict[str, Any] = {"told": 0, "errors": []}
    try:
        with holdfast.open(url) as store:
            for n in range(3):
                store.team("few").append("log", n)
                said["told"] += 1
            store.team("few").set("document", "long " * 20_000)
            said["document"] = True
    except UnavailableError as error:
        said["errors"].append(tell_error(error))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with holdfast.open(url) as store:
        said["there"] = list(store.team("few").state.get("log", []))
        said["is_whole"] = store.check().ok
        store.team("few").set("after", number)
    return said


def unprivileged(url: str, number: int) -> dict[str, Any]:
    """Opens for writing, then for reading only, as a user who may not write there."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return denied(url, number)


def denied(url: str, number: int) -> dict[str, Any]:
    """Opens for writing, then for reading only, where nothing can be written."""
    said: dict[str, Any] = {}
    try:
        with holdfast.open(url) as store:
            store.team("new").set("a", 1)
        said["wrote"] = True
    except HoldfastError as error:
        said["writing"] = tell_error(error)
    try:
        with holdfast.open(url, read_only=True) as store:
            said["content"] = repr(content(store))
            said["is_whole"] = store.check().ok
    except HoldfastError as error:
        said["reading"] = tell_error(error)
    return said


PARTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "limited": limited,
    "full": full,
    "descriptors": descriptors,
    "unprivileged": unprivileged,
    "denied": denied,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
