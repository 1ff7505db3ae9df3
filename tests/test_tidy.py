"""Rules that hold for the whole tree: sizes, names, where time and chance may come from."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from holdfast.renamed import NAMES
from tools import reaches, run_tests

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100
EXCUSED_MAX = 10
DRAWERS = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base", "misc"}
PRAGMA = re.compile(r"\s+# (pyright|noqa).*$")
"""What is said to a tool may stick out."""
# Written in parts, so that this file does not find itself.
_NOTE = "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"])
UNFINISHED = re.compile(rf"#.*\b({_NOTE})\b|\b({_NOTE})[:(]|NotImplemented" + "Error")
MACHINE = re.compile(
    r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "fa" + "rm", "ro" + "ot"]) + r")/\w"
)
REGISTRY = re.compile("|".join(["py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.org"]))
ENTRANCES = ["holdfast", "holdfast.aio", "holdfast.__main__", "holdfast.cli", "holdfast.testing"]
ENTRANCES += ["holdfast.advise", "holdfast.compat", "holdfast.copy", "holdfast.prose"]
ENTRANCES += ["holdfast.views", "holdfast.contrib.task_lifetimes"]
"""What users import or start; every other module must be reached from one of these."""
ALONE = {
    "holdfast.aio.record.AsyncHistory": "messages as they were, which cannot be changed",
    "holdfast.backends.files.disk.Disk": "what fault injection replaces",
    "holdfast.core.log.Log": "the log; a joint commit gathers in one of its own",
    "holdfast.core.draft.DraftMap": "a part of a draft; a draft is one that knows its scope",
    "holdfast.record.messages.History": "messages as they were, which cannot be changed",
}
"""Classes with one child that are used by themselves, too."""
NEAR_BACKENDS = (
    "holdfast.core",
    "holdfast.backends",
    "holdfast.transfer",
    "holdfast.testing",
    "holdfast.selftest",
)
IMPLEMENTATIONS = tuple(
    f"holdfast.backends.{name}" for name in ("memory", "files", "sqlite", "postgresql", "redis")
)
NO_BACKENDS = {"advice.backend"}
"""The name of one."""
CLOCKED = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "sleep"),
    ("os", "urandom"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def python_files() -> list[Path]:
    found = modules()
    for directory in ("tests", "bench", "tools"):
        found += sorted((ROOT / directory).rglob("*.py"))
    return found


@cache
def parse(path: Path) -> ast.Module:
    # The trees of all modules are millions of objects, which the collector would visit again and
    # again while more are made.
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"), str(path))
    finally:
        gc.enable()


def functions_in(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields the functions of a file; expressions have none, and are not visited."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"), str(path))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, name, None)
            if isinstance(below, list):  # of a lambda and of `a if b else c` it is an expression
                waiting += below


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def tracked_text() -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\0")[:-1] or [
        str(path.relative_to(ROOT)) for path in python_files()
    ]
    for name in names:
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                yield path, path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_lines_are_narrow():
    wide = [
        place(path, number)
        for path in python_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        # One long word, a sample of a format for one, has no place to be broken at.
        if len(PRAGMA.sub("", line)) > COLUMNS_MAX and len(line.split()) > 1
    ]
    assert not wide, f"lines of more than {COLUMNS_MAX} columns"


def test_functions_are_short():
    long = [
        f"{place(path, node.lineno)} {node.name}"
        for path in python_files()
        for node in functions_in(path)
        if lines_of(node) > FUNCTION_LINES_MAX
    ]
    assert not long, f"functions of more than {FUNCTION_LINES_MAX} lines"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns how many lines a function has, without its docstring: a reference may be long."""
    words = ast.get_docstring(function, clean=False)
    lines = (function.end_lineno or 0) - function.lineno + 1
    return lines if words is None else lines - words.count("\n") - 1


def test_no_module_is_a_drawer():
    drawers = [
        str(path.relative_to(ROOT))
        for path in modules()
        if DRAWERS & {part.lstrip("_") for part in path.relative_to(SOURCE).with_suffix("").parts}
    ]
    assert not drawers, "name a module by what it does"


def test_nothing_is_left_unfinished():
    found = [
        f"{place(path, number)} {line.strip()}"
        for path in python_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found


def test_a_base_class_has_children():
    """One child is no reason for a base class: merge them, however long the module gets."""
    children: dict[Class, list[Class]] = {}
    for child, bases in base_classes().items():
        for base in bases:
            children.setdefault(base, []).append(child)
    alone = [
        f"{base[0]}.{base[1]}"
        for base, found in children.items()
        if len(found) == 1 and base in base_classes() and not may_have_one_child(base)
    ]
    assert sorted(alone) == [], "base classes with one child"


Class = tuple[str, str]
"""The module and the name of a class."""


@cache
def base_classes() -> dict[Class, list[Class]]:
    """Returns every class of the package with its base classes."""
    trees = {name_of(path): parse(path) for path in modules()}
    known: dict[Class, ast.ClassDef] = {}
    origins: dict[Class, Class] = {}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                known[module, node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    origins[module, alias.asname or alias.name] = (node.module, alias.name)

    def origin(module: str, base: ast.expr) -> Class:
        while isinstance(base, ast.Subscript):
            base = base.value
        found = (module, ast.unparse(base))
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            prefix = ".".join(origins.get((module, base.value.id), (base.value.id,)))
            found = (prefix, base.attr)
        for _ in range(5):  # a name may come over several modules
            found = origins.get(found, found) if found not in known else found
        return found

    return {one: [origin(one[0], base) for base in node.bases] for one, node in known.items()}


def may_have_one_child(base: Class) -> bool:
    """Says whether a base class is there for others than its child."""
    module, name = base
    if module.startswith(("holdfast.testing", "holdfast.errors")) or f"{module}.{name}" in ALONE:
        return True
    public = {*importlib.import_module("holdfast").__all__, *NAMES}
    return name in public or bool({"Protocol", "Exception", "Struct"} & ancestors(base))


def ancestors(one: Class) -> set[str]:
    bases = base_classes().get(one, [])
    return {name for _, name in bases}.union(*(ancestors(base) for base in bases))


def test_backends_stay_with_the_log():
    """Whoever needs a backend asks the log: that nobody else holds one keeps them exchangeable."""
    found: list[str] = []
    for path in modules():
        if name_of(path).startswith(NEAR_BACKENDS):
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute) and node.attr in {"backend", "_backend"}:
                if ast.unparse(node) not in NO_BACKENDS:
                    found.append(f"{place(path, node.lineno)} {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                found += [
                    f"{place(path, node.lineno)} import of {name}"
                    for name in names
                    if name.startswith(IMPLEMENTATIONS)
                ]
    assert not found


def test_nobody_reaches_what_is_private_to_another_unit():
    """A layer has the kernel of a store and the stream of a scope: `tools/reaches.py`."""
    assert not [str(one) for one in reaches.reaches(reaches.package())]


STORE = """
class Store:
    def __init__(self, kernel):
        self._log = kernel.log
"""
SCOPE = """
class Scope:
    def __init__(self, log):
        self._log = log
    def _event_write(self):
        return other._log
"""
OWN = """
class Table:
    def __init__(self, log, other: "Table"):
        self._log, self._rows = log, []
        self._other = other
    def grow(self, one: Table):
        """


@pytest.mark.parametrize(
    "planted",
    [
        "target._log",
        "scope._event_write()",
        "self.scope._event_write()",
        'getattr(store, "_log")',
        'getattr(self, "scope")._event_write',
        "log._states",
        "scopes[0]._log",
        "unknown._log",
        "lambda scope: scope._log",
        'methodcaller("_event_write")',
    ],
)
def test_a_planted_reach_is_found(planted: str):
    modules = {"store.py": STORE, "scope.py": SCOPE, "record/planted.py": OWN + planted}
    [found] = reaches.reaches(modules)
    assert (found.place, found.line) == ("record/planted.py", 7)


@pytest.mark.parametrize(
    "fine",
    ["self._log", "one._log", "self._other._log", "one._rows", "row._replace(n=1)", "x.__class__"],
)
def test_a_unit_may_share_private_names(fine: str):
    modules = {"store.py": STORE, "scope.py": SCOPE, "record/fine.py": OWN + fine}
    assert not reaches.reaches(modules)


def test_what_the_coverage_counts_is_there():
    """The import contracts list the modules of the core; the coverage is read from them."""
    missing = [name for name in run_tests.measured() if not list(ROOT.glob(name))]
    assert not missing
    assert "src/holdfast/core/log.py" in run_tests.measured()


def test_time_and_chance_come_from_the_clock():
    found: list[str] = []
    for path in modules():
        if name_of(path) == "holdfast.clock":
            continue
        for node in ast.walk(parse(path)):
            names: list[str | None] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            if {"random", "uuid", "secrets"} & set(names):
                found.append(f"{place(path, node.lineno)} import of {names}")
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and (node.value.id, node.attr) in CLOCKED
            ):
                found.append(f"{place(path, node.lineno)} {node.value.id}.{node.attr}")
    assert not found, "time and chance come from clock.py alone"


def test_statements_are_constant():
    """Guarantee 10: no name ever becomes part of a statement."""
    found = [
        place(path, node.lineno)
        for path in modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"execute", "executemany", "executescript"}
        and any(is_assembled(argument) for argument in node.args[:1])
    ]
    assert not found, "an execute() whose statement is put together from parts"


def is_assembled(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(value, ast.FormattedValue) for value in node.values)
    if isinstance(node, ast.BinOp):
        return not (isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant))
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "format"


def test_no_machine_shows_through():
    found = [
        f"{place(path, number)} {line.strip()[:80]}"
        for path, text in tracked_text()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE.search(line) or REGISTRY.search(line)
    ]
    assert not found, "paths of one machine, or hosts of a package registry"


def test_every_module_is_reached():
    known = {name_of(path): path for path in modules()}
    reached: set[str] = set()
    waiting = [name for name in ENTRANCES if name in known]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            parent = name.rpartition(".")[0]
            waiting += {*mentioned(known[name], known), parent} & known.keys()
    assert not known.keys() - reached, "modules that nothing imports"


def mentioned(path: Path, known: dict[str, Path]) -> set[str]:
    """Returns the modules that are imported here, anywhere, or named in a string."""
    names: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} & known.keys()
    return names


def test_few_lines_are_excused_from_coverage_each_for_a_reason_and_none_in_recovery():
    mark = "# pragma: no " + "cover"
    found = [
        (path, number, text.partition(mark)[2])
        for path in modules()
        for number, text in enumerate(path.read_text("utf-8").splitlines(), 1)
        if mark in text
    ]
    assert len(found) <= EXCUSED_MAX
    for path, number, reason in found:
        assert reason.startswith(": "), f"{place(path, number)} has no reason"
        assert path.name not in {"recovery.py", "opening.py", "wal.py"}, place(path, number)
    assert "fail_under = 100\n" in run_tests.COVERAGE


@pytest.mark.parametrize("what", ["asyncio", "backends"])
def test_importing_holdfast_loads_little(what: str):
    program = "import sys, holdfast; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    loaded = set(done.stdout.split())
    # The lease keeper of a store ends in a forked child by the hook of every backend: `handle`.
    # What a joint commit has gathered is judged as a backend judges: `judge`.
    # What is recorded of a tenant is what a store is opened with: `tenancy`.
    kept = ("deadline", "gates", "handle", "judge", "place", "protocol", "registry", "tenancy")
    allowed = {"holdfast.backends", *(f"holdfast.backends.{name}" for name in kept)}
    if what == "asyncio":
        assert "asyncio" not in loaded
    else:
        assert not {name for name in loaded if name.startswith("holdfast.backends")} - allowed
        assert "apsw" not in loaded
