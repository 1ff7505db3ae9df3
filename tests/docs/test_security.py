"""What SECURITY.md says is tied to tests: a claim names the tests that would fail if it were false.

They stand in a comment below the claim, which readers of the page do not see.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
CLAIM = re.compile(r"^- (?P<claim>\*\*.+?)(?=^- |^#|\Z)", re.M | re.S)
TEST = re.compile(r"(?P<file>tests/\S+\.py)::(?P<name>\w+)")
UNTESTABLE = ("**A server is trusted.**", "**Your code is trusted.**", "**There are no permissions")
"""What we leave to others; nothing of ours could prove it wrong."""


def claims() -> list[str]:
    return [found["claim"] for found in CLAIM.finditer(PAGE)]


def test_the_page_has_claims():
    assert len(claims()) > len(UNTESTABLE)
    assert all(any(one.startswith(head) for one in claims()) for head in UNTESTABLE)


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.split("**")[1][:30])
def test_a_claim_names_tests_that_there_are(claim: str):
    named = TEST.findall(claim)
    assert named or claim.startswith(UNTESTABLE), "no test would fail if this were false"
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        defined = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
        assert name in defined, f"{file} has no {name}"
