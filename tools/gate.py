"""Runs what `make test` runs, group by group, and says how long each took.

    python tools/gate.py              every group
    python tools/gate.py style types  only these
    python tools/gate.py interpreters the portable tests on every other interpreter of the machine

The test suite runs in two groups, and every test in one of them: `core` holds the directories that
reach the log and the embedded backends in this process, and measures that every line and branch of
those was taken (tools/core.ini); `tests` holds all others. Both stream their output. The suites of
the other interpreters are kept quiet unless they fail, so that the closing line of `tests` is the
last one of pytest's that is shown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROJECT = ROOT / "pyproject.toml"
OLDEST = (3, 11)
PORTABLE = ["tests/unit", "tests/conformance", "tests/property"]
"""What is run again on the other interpreters."""
SERVERS = [f"tests/conformance/test_{kind}.py" for kind in ("postgresql", "redis")]
"""What the oldest dependencies are spared: drivers are not among them."""
CORE = ["tests/unit", "tests/conformance", "tests/acceptance", "tests/faults"]
"""What must take every branch of the core, without the help of chance or of a schedule."""

SMOKE = """
import holdfast
with holdfast.open("store") as hf:
    hf.conversation("c1").set("stage", "triage")
with holdfast.open("store") as hf:
    assert hf.conversation("c1").state == {"stage": "triage"}
"""


class GroupFailed(Exception):
    """A command of a group ended with an error; its output has been shown."""


def run(*command: str | Path, cwd: Path = ROOT, quiet: bool = False, **extra: str) -> None:
    """Runs a command; raises GroupFailed if it fails. A quiet one is shown only then."""
    words = [str(word) for word in command]
    if not quiet:
        print(f"$ {' '.join(words)}", flush=True)
    done = subprocess.run(
        words,
        cwd=cwd,
        env=os.environ | extra,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
    )
    if done.returncode:
        if quiet:
            print(f"$ {' '.join(words)}\n{done.stdout}", flush=True)
        raise GroupFailed


def pytest(python: Path, *arguments: str, workers: int = 2, quiet: bool = False) -> None:
    """Runs pytest on both of the two processors that we can count on."""
    many = ("-n", str(workers))
    run(python, "-m", "pytest", "-q", *many, *arguments, quiet=quiet, HYPOTHESIS_PROFILE="ci")


def style() -> None:
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def types() -> None:
    run(BIN / "pyright", PYRIGHT_PYTHON_IGNORE_WARNINGS="1")


def imports() -> None:
    run(BIN / "lint-imports", "--no-cache", quiet=True)
    print("import contracts kept")


def core() -> None:
    pytest(BIN / "python", "--cov", "--cov-config=tools/core.ini", *CORE)


def tests() -> None:
    others = (f"--ignore={suite}" for suite in CORE)
    # One more than there are processors: most of these wait for disks, servers and children.
    pytest(BIN / "python", "--dist", "worksteal", "tests", *others, workers=3)


def wheel() -> None:
    """Builds the wheel and uses it in an environment that has only what the wheel asks for."""
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as scratch:
        place = Path(scratch)
        build = (BIN / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", place / "dist")
        run(*build, quiet=True)
        (built,) = (place / "dist").glob("*.whl")
        environment = place / "environment"
        run(ROOT / "tools/environment.sh", environment, built, quiet=True, PYTHON=sys.executable)
        # -I: the checkout and PYTHONPATH must not lend it a module that the wheel lacks.
        run(environment / "bin/python", "-I", "-c", SMOKE, cwd=place, quiet=True)
        print(f"{built.name} installs and runs by itself")


def interpreters() -> dict[tuple[int, int], Path]:
    """Returns every other released CPython from 3.11 up on this machine, one per minor version."""
    candidates = [Path(found) for name in _names() if (found := shutil.which(name))]
    candidates += sorted(_pyenv_root().glob("versions/*/bin/python"))
    best: dict[tuple[int, int], tuple[int, Path]] = {}
    for candidate in candidates:
        found = _probe(candidate)
        if found and found[:2] >= OLDEST and found[:2] != sys.version_info[:2]:
            minor, micro = found[:2], found[2]
            if minor not in best or best[minor][0] < micro:
                best[minor] = (micro, candidate)
    return {minor: path for minor, (_, path) in sorted(best.items())}


def _names() -> list[str]:
    return ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], 20))]


def _pyenv_root() -> Path:
    root = os.environ.get("PYENV_ROOT")
    return Path(root) if root else Path(os.path.expanduser("~")) / ".pyenv"


def _probe(python: Path) -> tuple[int, int, int] | None:
    """Returns the version of a released CPython that runs and can make an environment, or None."""
    program = (
        "import sys; v = sys.version_info; "
        "print(*v[:3], v.releaselevel, sys.implementation.name); "
        + ("" if shutil.which("uv") else "import venv, ensurepip")
    )
    try:
        # A pyenv shim for a version that is not switched on can be found but does not run.
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    if done.returncode or words[3:] != ["final", "cpython"]:
        return None
    return int(words[0]), int(words[1]), int(words[2])


def portable(
    name: str, python: Path | str, *requirements: str, without: Sequence[str] = ()
) -> None:
    """Runs the portable tests in an environment of their own, `.venvs/NAME`."""
    environment = ROOT / ".venvs" / name
    ready = environment / ".ready"
    if not ready.exists() or ready.stat().st_mtime < PROJECT.stat().st_mtime:
        make = (ROOT / "tools/environment.sh", environment, "-e", ".[test]", *requirements)
        run(*make, quiet=True, PYTHON=str(python))
        ready.touch()
    suites = [suite for suite in PORTABLE if (ROOT / suite).is_dir()]
    left_out = [f"--ignore={one}" for one in without]
    pytest(environment / "bin/python", "-p", "no:cacheprovider", *suites, *left_out, quiet=True)
    print(f"{', '.join(suites)} pass")


def oldest() -> None:
    """Runs the portable tests with the oldest dependencies that we say we work with."""
    asked = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    pins = [f"{one.replace('>=', '==')}.*" for one in asked]
    portable("oldest", sys.executable, *pins, without=SERVERS)


def main(chosen: list[str]) -> int:
    groups: dict[str, Callable[[], None]] = {
        "style": style,
        "types": types,
        "imports": imports,
        "core": core,
        "tests": tests,
        "wheel": wheel,
        "oldest": oldest,
    }
    # The newest one by default: what breaks between the oldest and it breaks in one of the two.
    others = interpreters() if not chosen or "interpreters" in chosen else {}
    for minor, python in others.items():
        version = f"{minor[0]}.{minor[1]}"
        if chosen or minor == max(others):
            groups[f"python {version}"] = partial(portable, version, python)
    rows: list[tuple[str, str, float]] = []
    for name, group in groups.items():
        if chosen and name not in chosen and not name.startswith("python "):
            continue
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        try:
            group()
            result = "ok"
        except GroupFailed:
            result = "FAILED"
        rows.append((name, result, time.monotonic() - start))
    print(f"\n{'group':<14} {'result':<8} {'seconds':>8}")
    for name, result, seconds in rows:
        print(f"{name:<14} {result:<8} {seconds:>8.1f}")
    print(f"{'total':<14} {'':<8} {sum(row[2] for row in rows):>8.1f}")
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    also = [name.removeprefix("python ") for name, *_ in rows if name.startswith("python ")]
    print(f"interpreters: {', '.join([mine, *also])}")
    return int(any(result != "ok" for _, result, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
