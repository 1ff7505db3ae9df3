"""The fixtures of the formats of today can be made: the next one must be, when a format changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures import make


@pytest.mark.parametrize(
    "name", ["files-2", "files-3", "sqlite-2", "files-2-ends", "sqlite-2-ends"]
)
def test_a_fixture_is_made_and_holds_what_the_stored_one_holds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = json.loads((make.FORMATS / name / "expected.json").read_text())
    monkeypatch.setattr(make, "FORMATS", tmp_path)
    make.make(name)
    made = json.loads((tmp_path / name / "expected.json").read_text())
    assert {path.name for path in (tmp_path / name).iterdir()} == {
        "closed.tar.zst", "killed.tar.zst", "expected.json",
    }  # fmt: skip
    for each in (made, stored):
        each.pop("digest")
        # Owners of leases have longer names now.
        each["events"] = [event[:5] for event in each["events"]]
    assert made == stored
    with pytest.raises(FileExistsError):
        make.make(name)
