"""What type checkers say of programs that use Holdfast: pyright and mypy, in strict mode."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BIN = Path(sys.executable).parent


def pyright(*files: Path) -> dict[Path, set[int]]:
    """Returns the lines with errors, by file."""
    settings = {"typeCheckingMode": "strict", "include": [str(file) for file in files]}
    settings |= {"venvPath": str(BIN.parents[1]), "venv": BIN.parent.name}
    settings |= {"extraPaths": [str(ROOT / "src")], "reportUnusedExpression": False}
    # What follows from an error that is marked is not marked again.
    settings |= {"reportUnknownVariableType": False, "reportUnknownArgumentType": False}
    found: dict[Path, set[int]] = {file: set() for file in files}
    project = files[0].parent / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    words = [str(BIN / "pyright"), "--outputjson", "--project", str(project)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"])].add(one["range"]["start"]["line"] + 1)
    return found


def mypy(*files: Path) -> dict[Path, set[int]]:
    """Returns the lines with errors, by file."""
    cache = files[0].parent / "cache"
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *map(str, files)]
    words += ["--no-error-summary", "--show-absolute-path", "--config-file", ""]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=files[0].parent)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, set[int]] = {file: set() for file in files}
    for name, line in re.findall(r"^(.+?):(\d+)(?::\d+)?: error", done.stdout, re.M):
        found[Path(name)].add(int(line))
    return found


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_wrong_arguments_are_errors_and_right_ones_are_not(checker: object, tmp_path: Path):
    files = []
    for name in ("right.py", "wrong.py", "rooms.py"):
        files.append(tmp_path / name)
        files[-1].write_text((HERE / name).read_text())
    right, wrong, rooms = files
    found = checker(*files)  # type: ignore[operator]
    assert found[right] == found[rooms] == set()
    marked = {
        number
        for number, line in enumerate(wrong.read_text().splitlines(), 1)
        if line.endswith("# error")
    }
    assert found[wrong] == marked


def test_the_programs_that_type_check_run():
    from tests.typing import right, rooms

    right.main()
    rooms.main()
