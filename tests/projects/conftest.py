"""A project in a directory of its own, with a scripted agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.agents import Scripted
from holdfast.projects import Project
from tests.record.stores import new_url
from tests.selection import this_turn

SCRIPT = {
    "sessions": [
        {"match": "long", "answer": ["one\nstatus: continue", "two"]},
        {"match": "stuck", "answer": "I cannot\nstatus: blocked: no key"},
        {"match": "fails", "answer": {"fail": "no agent"}},
        {"match": "endless", "answer": "more\nstatus: continue"},
    ]
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "shop"
    made.mkdir()
    return made


BACKENDS = ["files", *this_turn(["sqlite", "memory", "redis", "postgresql"], 4)]


@pytest.fixture(params=BACKENDS)
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(new_url(request.param, tmp_path), actor="ada") as store:
        store.runs.use_executor(Scripted(SCRIPT))
        yield store


@pytest.fixture
def project(hf: Store, root: Path) -> Project:
    return hf.project(root)
