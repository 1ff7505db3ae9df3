"""Tells whoever started pytest which tests failed: a name in each line of HOLDFAST_FAILURES.

A plugin of its own (`-p tests.failures`), for tools/run_tests.py, which runs those again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_told = os.environ.pop("HOLDFAST_FAILURES", None)
"""Taken out of the environment: a test that runs pytest itself does not write there."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _told is None:
        return
    found = [one for kind in ("failed", "error") for one in terminalreporter.stats.get(kind, [])]
    names = dict.fromkeys(str(one.nodeid) for one in found)
    Path(_told).write_text("".join(f"{name}\n" for name in names), "utf-8")
