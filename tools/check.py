"""The inner loop: lint, types, import contracts, and the tests nearest to what changed.

    make check                          what changed since the last commit, or in it
    make check FILE=src/holdfast/x.py   as if this had changed (a word, or several in quotes)

It takes a minute at most, and names what it skipped. Near is decided by imports and names, without
running anything: first changed test modules, then those that import what changed or are named after
it, then those that reach it over another module, then the rest of the directory that belongs to it.

This file is a plugin of pytest, too: it skips the tests that there is no time left for.
"""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SECONDS = 60.0
MARGIN_S = 8.0
"""Kept for the test that runs when the time is up, and for pytest to end."""
STEPS_MAX = 2
"""Over how many imports a test still counts as near."""
MODULES_MAX = 40
DEADLINE = "HOLDFAST_CHECK_DEADLINE"
LONG = ("tests/torture/test_share.py", "tests/servers/", "tests/bench/")
"""Minutes: only if changed themselves, or if their own directory is what changed."""
NEIGHBOURS = {
    "src/holdfast/core": ["tests/unit", "tests/conformance"],
    "src/holdfast/backends/files": ["tests/unit/files", "tests/conformance/test_files.py"],
    "src/holdfast/backends/sqlite": ["tests/conformance/test_sqlite.py"],
    "src/holdfast/backends/postgresql": ["tests/conformance/test_postgresql.py"],
    "src/holdfast/backends/redis": ["tests/conformance/test_redis.py"],
    "src/holdfast/backends": ["tests/conformance"],
    "src/holdfast/record": ["tests/record"],
    "src/holdfast/transfer": ["tests/care", "tests/unit/test_salvage.py"],
    "src/holdfast/git": ["tests/git"],
    "src/holdfast/git_recovery.py": ["tests/git"],
    "src/holdfast/nodes": ["tests/nodes"],
    "src/holdfast/query": ["tests/query"],
    "src/holdfast/context": ["tests/context"],
    "src/holdfast/runs": ["tests/runs"],
    "src/holdfast/prose": ["tests/prose"],
    "src/holdfast/views": ["tests/views"],
    "src/holdfast/aio": ["tests/acceptance/test_aio.py"],
    "src/holdfast/cli": ["tests/skins"],
    "src/holdfast/selftest": ["tests/skins/test_selftest.py"],
    "src/holdfast/testing": ["tests/unit/test_testing.py", "tests/conformance/test_memory.py"],
    "src/holdfast": ["tests/acceptance"],
    "tests/torture": ["tests/torture"],
    "examples": ["tests/examples"],
    "bench": ["tests/bench"],
    "docs": ["tests/docs"],
    "README.md": ["tests/docs"],
}
"""The tests of a directory, where imports and names lead nowhere; the longest that fits counts."""
ALWAYS = ROOT / "tests/test_tidy.py"


# Finding what changed


def changed_files() -> tuple[list[Path], str]:
    """Returns what changed since the last commit or, if nothing did, in it; and which it is."""
    new = _git("ls-files", "--others", "--exclude-standard")
    found = _git("diff", "--name-only", "HEAD") + new
    said = "since the last commit"
    if not found:
        found = _git("diff", "--name-only", "HEAD~1", "HEAD")
        said = "in the last commit"
    return [ROOT / name for name in found], said


def _git(*words: str) -> list[str]:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


# Finding the nearest tests


def python_files() -> list[Path]:
    return [
        path for top in ("src", "tests", "bench", "tools") for path in (ROOT / top).rglob("*.py")
    ]


def name_of(path: Path) -> str:
    """Returns the name that a file is imported by."""
    inside = path.relative_to(ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT)
    parts = inside.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Yields the names that a file may mean by its imports, those inside functions included."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (SyntaxError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers() -> dict[Path, set[Path]]:
    """Returns for each file those that import it."""
    files = {name_of(path): path for path in python_files()}
    found: dict[Path, set[Path]] = {path: set() for path in files.values()}
    for path in files.values():
        for name in imported(path):
            if name in files:
                found[files[name]].add(path)
    return found


def near(changed: Iterable[Path]) -> dict[Path, int]:
    """Returns test modules with their distance from what changed, in steps."""
    using = importers()
    distances: dict[Path, int] = {}
    for path in changed:
        reached = {path: 0}
        edge = [path]
        for step in range(1, STEPS_MAX + 1):
            # The package itself is imported by nearly every test: nothing is near because of it.
            edge = [
                user
                for one in edge
                if one != ROOT / "src/holdfast/__init__.py" or one == path
                for user in using.get(one, ())
                if user not in reached
            ]
            reached |= dict.fromkeys(edge, step)
        reached |= dict.fromkeys(_namesakes(path), 1)
        reached |= {one: min(3, reached.get(one, 3)) for one in _neighbours(path)}
        for one, distance in reached.items():
            if is_test(one):
                distances[one] = min(distance, distances.get(one, distance))
    return distances


def is_test(path: Path) -> bool:
    return path.name.startswith("test_") and path.suffix == ".py" and path.exists()


def _namesakes(path: Path) -> list[Path]:
    stem = path.parent.name if path.stem == "__init__" else path.stem
    tests = (ROOT / "tests").rglob("test_*.py")
    return [one for one in tests if one.stem in (f"test_{stem}", f"test_{stem.rstrip('s')}")]


def _neighbours(path: Path) -> list[Path]:
    place = str(path.relative_to(ROOT))
    keys = [key for key in NEIGHBOURS if place == key or place.startswith(f"{key}/")]
    found: list[Path] = []
    for name in NEIGHBOURS[max(keys, key=len)] if keys else []:
        directory = ROOT / name
        found += [directory] if directory.is_file() else sorted(directory.glob("test_*.py"))
    return found


def choose(changed: list[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the test modules to run, nearest first, and those that are near but left out."""
    distances = near(changed)
    inside = {str(path.parent.relative_to(ROOT)) for path in changed}
    chosen: list[Path] = []
    left_out: list[Path] = []
    for path in sorted(distances, key=lambda one: (distances[one], one)):
        place = str(path.relative_to(ROOT))
        is_long = place.startswith(LONG) and str(path.parent.relative_to(ROOT)) not in inside
        fits = len(chosen) < MODULES_MAX and not (is_long and distances[path])
        (chosen if fits else left_out).append(path)
    return [ALWAYS, *(path for path in chosen if path != ALWAYS)], left_out


# Running, in a minute


def main(words: list[str]) -> int:
    began = time.monotonic()
    deadline = time.time() + SECONDS - MARGIN_S
    if words:
        changed, said = [Path(word).resolve() for word in words], "given"
        if missing := [str(path) for path in changed if not path.exists()]:
            print(f"no such file: {', '.join(missing)}")
            return 2
    else:
        changed, said = changed_files()
    if not changed:
        print("nothing to go by: no git history here. Name files: make check FILE=path")
        return 2
    print(f"{len(changed)} files {said}")
    chosen, left_out = choose(changed)
    types = _start_types(changed)
    failed = [name for name, command in _quick() if not _passes(name, command)]
    if not _run_tests(chosen, deadline):
        failed.append("tests")
    if types is not None and not _finish_types(types, began):
        failed.append("types")
    if left_out:
        _tell_skipped("near, but too long or too many for a minute", left_out)
    others = [one for one in (ROOT / "tests").rglob("test_*.py") if one not in {*chosen, *left_out}]
    _tell_skipped("not near", others)
    print(f"make check: {'FAILED: ' + ', '.join(failed) if failed else 'ok'}, ", end="")
    print(f"{time.monotonic() - began:.0f} s; make test runs everything")
    return int(bool(failed))


def _quick() -> list[tuple[str, list[str | Path]]]:
    return [
        ("style", [BIN / "ruff", "check", "--quiet", "."]),
        ("format", [BIN / "ruff", "format", "--quiet", "--check", "."]),
        ("imports", [BIN / "lint-imports"]),
        ("reaches", [sys.executable, ROOT / "tools/reaches.py"]),
    ]


def _passes(name: str, command: list[str | Path]) -> bool:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(f"{name}: {'ok' if done.returncode == 0 else done.stdout + done.stderr}", flush=True)
    return done.returncode == 0


def _start_types(changed: list[Path]) -> subprocess.Popen[str] | None:
    """Starts pyright on the whole package: a change can break whoever uses it."""
    if not any(path.is_relative_to(ROOT / "src") and path.suffix == ".py" for path in changed):
        print("types: skipped, no module of the package changed")
        return None
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.Popen(
        [BIN / "pyright"],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def _finish_types(types: subprocess.Popen[str], began: float) -> bool:
    """Waits for pyright, as long as there is time."""
    try:
        text, _ = types.communicate(timeout=max(1.0, SECONDS - (time.monotonic() - began)))
    except subprocess.TimeoutExpired:
        _end(types)
        print("types: skipped, the time was up; make lint checks them")
        return True
    print(f"types: {'ok' if types.returncode == 0 else text}")
    return types.returncode == 0


def _run_tests(chosen: list[Path], deadline: float) -> bool:
    modules = [str(path.relative_to(ROOT)) for path in chosen]
    print(f"tests: {len(modules)} modules, nearest first: {', '.join(modules[:5])} …", flush=True)
    options = ["-q", "-x", "-p", "tools.check", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *options, *modules]
    path = os.pathsep.join(one for one in (str(ROOT), os.environ.get("PYTHONPATH")) if one)
    environment = os.environ | {DEADLINE: str(deadline), "PYTHONPATH": path}
    running = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        running.wait(timeout=max(1.0, deadline + MARGIN_S - time.time()))
    except subprocess.TimeoutExpired:
        _end(running)
        print("\nskipped: the test that ran when the time was up, and all after it")
        return True
    except KeyboardInterrupt:
        _end(running)
        raise
    return running.returncode == 0


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends a command and what it started: pyright has a Node of its own, tests have servers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tell_skipped(why: str, modules: list[Path]) -> None:
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    places = ", ".join(f"{place} {count}" for place, count in sorted(counts.items()))
    print(f"skipped, {why}: {len(modules)} test modules ({places})")


# The plugin


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > float(os.environ[DEADLINE]):
        pytest.skip("the time was up")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    late = [
        report.nodeid.split("::")[0]
        for report in terminalreporter.stats.get("skipped", [])
        if "the time was up" in str(report.longrepr)
    ]
    if late:
        named = ", ".join(f"{module} {count}" for module, count in Counter(late).items())
        terminalreporter.write_line(f"skipped, the time was up: {named}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
