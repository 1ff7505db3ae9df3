"""Recovery by a process that was far behind: found by crowds (seed 11), planted here by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.files import catalog
from holdfast.testing.faults import CrashPoints


def test_a_process_recovers_behind_an_index_that_another_brought_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The busy one dies in the middle of a commit; the idle one, far behind, is next."""
    monkeypatch.setattr(catalog, "FLUSH_BYTES", 4096)
    crash = CrashPoints()
    with holdfast.open(tmp_path / "store") as idle:
        idle.scope("team/t").set("first", "x" * 5000)  # it has the index open from now on
        busy = holdfast.open(tmp_path / "store", settings=Settings(options={"reach": crash.reach}))
        for number in range(100):
            busy.scope("team/t").set("n", f"{number} {'x' * 200}")
        crash.raise_at("files.ring.written", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            busy.scope("team/t").set("n", "the last")
        idle.scope("team/t").set("second", 2)
        assert idle.scope("team/t").get("second") == 2
        assert idle.scope("team/t").revision >= 102
        assert idle.check().findings == []
        busy.scope("team/t").set("n", "it was interrupted, and goes on")
        assert idle.scope("team/t").get("n") == "it was interrupted, and goes on"
        busy.close()
