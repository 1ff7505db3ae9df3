"""Contexts for prompts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has indexes that lie with a user's caches lie with the test, and tokens be estimated."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no-vocabulary"))
