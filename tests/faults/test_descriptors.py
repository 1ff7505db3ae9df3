"""No descriptor is left: each call works, or says so and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["memory", "files", "sqlite"])
def test_without_a_descriptor_each_call_works_or_says_what_to_do(kind: str, tmp_path: Path) -> None:
    """It was a bare OSError, of a module that was to be loaded only then."""
    url = {"memory": "memory:", "files": f"{tmp_path}/s", "sqlite": f"sqlite:{tmp_path}/s.db"}[kind]
    command = [sys.executable, "-m", "tests.faults.descriptors", url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(told) == 31
    wrong = {
        name: text
        for name, text in told.items()
        if text != "done" and not ("UnavailableError" in text and "ulimit -n" in text)
    }
    assert wrong == {}
    assert told["set"] == told["get"] == told["close"] == "done"
    assert "UnavailableError" in told["open redis"]
