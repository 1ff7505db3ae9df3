"""Two names exchanged where the file system cannot do it in one step."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import exchange


@pytest.fixture(autouse=True)
def without_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "no exchange here")

    monkeypatch.setattr(exchange, "_swap", cannot)


def test_the_file_is_taken_away_and_the_new_one_linked(tmp_path: Path) -> None:
    new, target = tmp_path / "new", tmp_path / "target"
    new.write_text("ours")
    assert exchange.exchange(new, target) == "absent"
    target.write_text("theirs")
    assert exchange.exchange(new, target) == "exchanged"
    assert (target.read_text(), new.read_text()) == ("ours", "theirs")


def test_a_file_system_without_links_leaves_their_file_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, target = tmp_path / "new", tmp_path / "target"
    new.write_text("ours")
    target.write_text("theirs")

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(PermissionError, match="no links here"):
        exchange.exchange(new, target)
    assert (target.read_text(), new.read_text()) == ("theirs", "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "target"]
