"""Runs what `make test` and `make test-all` run, group by group, and says how long each took.

    python tools/run_tests.py              every group of `make test`
    python tools/run_tests.py style types  only these
    python tools/run_tests.py --all        every group of `make test-all`

The test suite runs in two groups, and every test in one of them: `core` holds the directories that
reach the log and the embedded backends in this process, and measures that every line and branch of
those was taken; `tests` holds all others. Both stream their output. The suites of the other
interpreters are kept quiet unless they fail, so that the closing line of `tests` is the last one of
pytest's that is shown.

The oldest dependencies and the newest interpreter take turns from commit to commit, and so do the
tests that start servers and processes (tests/selection.py).

A test that failed is run again, alone and twice, when its group is over. If it passes both times it
is flaky: the run stays green, names it in its last lines and in build/flaky.txt, and somebody finds
its cause. More than two of those in a run are red. A green run on a clean tree writes the commit's
id to build/green.

`--all` tries whole shares and every planted fault (tests/selection.py), runs all portable tests on
every interpreter of the machine, and repeats what starts processes or threads COUNT times.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
BUILD = ROOT / "build"
PROJECT = ROOT / "pyproject.toml"
OLDEST = (3, 11)
COUNT = int(os.environ.get("COUNT") or 50)
"""How often `--all` runs each test that starts processes or threads."""
PORTABLE = ["tests/unit", "tests/conformance"]
"""What is run again on the other interpreters."""
PORTABLE_ALL = [*PORTABLE, "tests/property"]
SERVERS = [f"tests/conformance/test_{kind}.py" for kind in ("postgresql", "redis")]
"""What the oldest dependencies are spared, because drivers are not among them."""
SINGLE = ("types", "docs")
"""Groups that use one processor each and show little: they run at once, before all others."""
CORE = ["tests/unit", "tests/conformance", "tests/acceptance", "tests/faults"]
"""What must take every branch of the core, without the help of chance or of a schedule."""
MEASURED = "log"
"""The highest layer of `holdfast.core` that the group `core` measures, and all below it."""
MEASURED_BACKENDS = [
    *("file_watch.py", "files/*", "handle.py", "judge.py", "liveness.py", "local_path.py"),
    *("rescue.py", "sqlite/*"),
]
COVERAGE = """\
[run]
branch = true
core = ctrace
include =
    {files}

[report]
# A line that only a race between two processes reaches may be missed on a busy machine: the report
# names it, and it gets a test of its own that needs no luck.
precision = 2
fail_under = 100
show_missing = true
skip_covered = true
exclude_also =
    if TYPE_CHECKING:
    ^\\s*\\.\\.\\.$
"""
"""`pragma: no cover` and a reason after it excuse a line; tests/test_tidy.py counts those."""

FLAKY_MAX = 2
"""With more than so many a run is red: then it is the code that is unreliable, not a test."""
RERUNS = 2

SMOKE = """
import holdfast
with holdfast.open("store") as hf:
    hf.conversation("c1").set("stage", "triage")
with holdfast.open("store") as hf:
    assert hf.conversation("c1").state == {"stage": "triage"}
"""


class GroupFailed(Exception):
    """A command of a group ended with an error; its output has been shown."""


class Flaky(NamedTuple):
    """A test that failed, and then passed twice when it ran alone."""

    name: str
    seed: str


flaky: list[Flaky] = []
"""Those of this run."""


def run(*command: str | Path, cwd: Path | None = None, quiet: bool = False, **extra: str) -> None:
    """Runs a command; raises GroupFailed if it fails. A quiet one is shown only then."""
    words = [str(word) for word in command]
    if not quiet:
        print(f"$ {' '.join(words)}", flush=True)
    done = subprocess.run(
        words,
        cwd=cwd or ROOT,
        env=os.environ | extra,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
    )
    if done.returncode:
        if quiet:
            print(f"$ {' '.join(words)}\n{done.stdout}", flush=True)
        raise GroupFailed


def pytest(
    python: Path, *suites: str, options: Sequence[str] = (), workers: int = 2, quiet: bool = False
) -> None:
    """Runs pytest on both of the two processors that we can count on, and again what failed."""
    words = ("-m", "pytest", "-q", "-p", "tests.failures", *options)
    with tempfile.TemporaryDirectory(prefix="holdfast-failures-") as scratch:
        told = Path(scratch) / "failures"
        extra = {"HYPOTHESIS_PROFILE": "ci", "HOLDFAST_FAILURES": str(told)}
        try:
            run(python, *words, "-n", str(workers), *suites, quiet=quiet, **extra)
        except GroupFailed:
            failed = told.read_text("utf-8").splitlines() if told.exists() else []
            if not failed or len(failed) + len(flaky) > FLAKY_MAX:
                raise
            print(f"\n{RERUNS} times again, alone: {', '.join(failed)}", flush=True)
            # What they had not taken before they failed counts now.
            again = [*words, *(["--cov-append"] if "--cov" in options else [])]
            for _ in range(RERUNS):
                run(python, *again, "-n", "0", *failed, quiet=quiet, **extra)
            flaky.extend(Flaky(name, selection().seed()) for name in failed)


def style() -> None:
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def types() -> None:
    run(BIN / "pyright", quiet=True, PYRIGHT_PYTHON_IGNORE_WARNINGS="1")
    print("types fit")


def imports() -> None:
    run(BIN / "lint-imports", "--no-cache", quiet=True)
    print("import contracts kept")


def core() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-coverage-") as scratch:
        settings = Path(scratch) / "core.ini"
        settings.write_text(COVERAGE.format(files="\n    ".join(measured())), "utf-8")
        pytest(BIN / "python", *CORE, options=("--cov", f"--cov-config={settings}"))


def measured() -> list[str]:
    """Returns the files whose every branch must be taken; the import contracts name the modules."""
    contracts = tomllib.loads(PROJECT.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [one["layers"] for one in contracts if one.get("containers") == ["holdfast.core"]]
    below = layers[layers.index(MEASURED) :]
    modules = sorted(name.strip() for layer in below for name in layer.split("|"))
    packages = ROOT / "src/holdfast/core"
    files = [f"{name}/*" if (packages / name).is_dir() else f"{name}.py" for name in modules]
    return [f"src/holdfast/core/{one}" for one in files] + [
        f"src/holdfast/backends/{one}" for one in MEASURED_BACKENDS
    ]


def tests() -> None:
    others = [f"--ignore={suite}" for suite in CORE]
    # One more than there are processors: most of these wait for disks, servers and children.
    pytest(BIN / "python", "tests", options=("--dist", "worksteal", *others), workers=3)


def repeat() -> None:
    """Runs what starts processes or threads again and again: a rare order comes up in the end."""
    selected = ("--only-concurrent", "--ignore=tests/torture", "-p", "no:cacheprovider")
    selected += ("--dist", "worksteal")
    failed = 0
    for number in range(1, COUNT + 1):
        began = time.monotonic()
        try:
            pytest(BIN / "python", "tests", options=selected, workers=3, quiet=True)
            result = "ok"
        except GroupFailed:
            failed += 1
            result = "FAILED"
        print(f"round {number} of {COUNT}: {result}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{COUNT} rounds, {failed} failed")
    if failed:
        raise GroupFailed


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


def docs() -> None:
    """Builds the site of the documentation; a warning, a broken link and a gap are errors."""
    run("make", "--silent", "docs", quiet=True)
    print("the site builds, without a warning")


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
    name: str, python: Path | str, *requirements: str, whole: bool, without: Sequence[str] = ()
) -> None:
    """Runs the portable tests in an environment of their own, `.venvs/NAME`."""
    environment = ROOT / ".venvs" / name
    ready = environment / ".ready"
    if not ready.exists() or ready.stat().st_mtime < PROJECT.stat().st_mtime:
        make = (ROOT / "tools/environment.sh", environment, "-e", ".[test]", *requirements)
        run(*make, quiet=True, PYTHON=str(python))
        ready.touch()
    suites = PORTABLE_ALL if whole else PORTABLE
    left_out = [f"--ignore={one}" for one in without]
    options = ("-p", "no:cacheprovider", *left_out)
    pytest(environment / "bin/python", *suites, options=options, quiet=True)
    print(f"{', '.join(suites)} pass")


def oldest(*, whole: bool) -> None:
    """Runs the portable tests with the oldest dependencies that we say we work with."""
    asked = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    pins = [f"{one.replace('>=', '==')}.*" for one in asked]
    portable("oldest", sys.executable, *pins, whole=whole, without=SERVERS)


def all_groups(*, whole: bool, chosen: Sequence[str]) -> dict[str, Callable[[], None]]:
    """Returns every group by name, in the order in which they run."""
    groups: dict[str, Callable[[], None]] = {
        "style": style,
        "types": types,
        "imports": imports,
        "docs": docs,
        "core": core,
        "tests": tests,
        "wheel": wheel,
        "oldest": partial(oldest, whole=whole),
    }
    # The newest one in `make test`: what breaks between the oldest and it breaks in one of the two.
    others = interpreters() if not chosen or any("python" in name for name in chosen) else {}
    for minor, python in others.items():
        version = f"{minor[0]}.{minor[1]}"
        if whole or minor == max(others):
            # The servers' drivers are tried by `core`; on every interpreter by `make test-all`.
            spared = () if whole else SERVERS
            groups[f"python {version}"] = partial(
                portable, version, python, whole=whole, without=spared
            )
    if whole:
        groups["repeat"] = repeat
    elif others and not chosen:
        del groups[left_out(f"python {'.'.join(map(str, max(others)))}")]
    return groups


def left_out(newest: str) -> str:
    """Returns which of two groups this commit leaves to the next one.

    15 minutes do not hold both: the oldest dependencies, and the newest interpreter.
    """
    return "oldest" if selection().turn() % 2 else newest


def selection() -> ModuleType:
    """Returns tests/selection.py, which this program finds wherever it was started from."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    return import_module("tests.selection")


def run_group(name: str, group: Callable[[], None]) -> tuple[str, str, float]:
    """Runs a group; returns its row of the closing table."""
    print(f"\n== {name}", flush=True)
    start = time.monotonic()
    try:
        group()
        result = "ok"
    except GroupFailed:
        result = "FAILED"
    return name, result, time.monotonic() - start


def run_groups(groups: dict[str, Callable[[], None]]) -> list[tuple[str, str, float]]:
    """Runs groups one after the other, but for those that leave a processor idle."""
    with ThreadPoolExecutor() as pool:
        together = [pool.submit(run_group, one, groups[one]) for one in SINGLE if one in groups]
        rows = [one.result() for one in together]
    return rows + [run_group(name, one) for name, one in groups.items() if name not in SINGLE]


def main(words: list[str]) -> int:
    whole = "--all" in words
    chosen = [word for word in words if word != "--all"]
    os.environ["HOLDFAST_TESTS"] = "all" if whole else "turn"
    groups = all_groups(whole=whole, chosen=chosen)
    if unknown := set(chosen) - set(groups):
        print(f"unknown groups: {', '.join(sorted(unknown))}; there are {', '.join(groups)}")
        return 2
    began = time.monotonic()
    rows = run_groups({name: one for name, one in groups.items() if name in chosen or not chosen})
    took_s = time.monotonic() - began
    print(f"\n{'group':<14} {'result':<8} {'seconds':>8}")
    for name, result, seconds in rows:
        print(f"{name:<14} {result:<8} {seconds:>8.1f}")
    print(f"{'total':<14} {'':<8} {took_s:>8.1f}")
    failed = [name for name, result, _ in rows if result != "ok"]
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    also = [name.removeprefix("python ") for name, *_ in rows if name.startswith("python ")]
    print(f"interpreters: {', '.join([mine, *also])}")
    tell_flaky()
    if not chosen:
        print(closing_line(whole=whole, failed=failed))
        if not failed:
            note_green()
    return int(bool(failed))


def tell_flaky() -> None:
    """Names the flaky tests of this run, here and in build/flaky.txt."""
    lines = [f"flaky: {one.name}, seed {one.seed}" for one in flaky]
    BUILD.mkdir(exist_ok=True)
    (BUILD / "flaky.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    for line in lines:
        print(line)


def note_green() -> None:
    """Writes to build/green which commit is green, if what ran is that commit and nothing else."""
    commit, changed = (git("rev-parse", "HEAD"), git("status", "--porcelain"))
    if commit and changed == "":
        (BUILD / "green").write_text(f"{commit}\n", "utf-8")


def git(*words: str) -> str | None:
    """Returns what git answers; None where there is no repository, or no git."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def closing_line(*, whole: bool, failed: Sequence[str]) -> str:
    command = "make test-all" if whole else "make test"
    described = git("describe", "--always", "--dirty")
    commit = f" at {described}" if described else ""
    return f"{command}{commit}: {'FAILED: ' + ', '.join(failed) if failed else 'all green'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
