"""The first question of a process that has used all its file descriptors is told so by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.stores import new_url

PROGRAM = """
import os, resource, sys
import holdfast
from holdfast.errors import HoldfastError

hf = holdfast.open(sys.argv[1])
hf.team("red").set("a", 1)
ask = {
    "query": lambda: hf.query(text="x"),
    "sql": lambda: hf.search.sql("SELECT 1"),
    "resolve": lambda: hf.search.resolve("task:t1"),
    "decisions": lambda: hf.decisions.list(),
    "context": lambda: hf.context("team/red"),
    "scopes": lambda: hf.scopes(where={"a": 1}),
}[sys.argv[2]]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for left in range(int(sys.argv[3])):
    os.close(taken.pop())
try:
    ask()
except HoldfastError as error:
    told = f"{type(error).__name__}: {error}"
except BaseException as error:
    told = f"RAW {type(error).__name__}: {error}"
else:
    told = "answered"
for fd in taken:
    os.close(fd)
print(told)
ask()
hf.close()
"""


@pytest.mark.parametrize(
    ("backend", "asked"),
    [("files", "query"), ("sqlite", "sql"), ("sqlite", "context"), ("redis", "sql")],
)
def test_a_first_question_without_descriptors(backend: str, asked: str, tmp_path: Path) -> None:
    for left in (0, 1):
        url = new_url(backend, tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, asked, str(left)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert not done.stdout.startswith("RAW"), (left, done.stdout)
