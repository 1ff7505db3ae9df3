"""audit export, and check --expect with the file that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptError
from tests.audit_keys import write_keys


def test_an_export_is_made_and_verified(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "other"):
        write_keys(tmp_path, name)
    cli("init")
    cli("set", "team/red", "word", "1")
    made = cli("audit", "export", "a.json", "--sign", "mine.pem", "--json").document
    assert made["number"] == 1
    cli("set", "team/red", "word", "2")
    cli("audit", "export", "b.json", "--sign", "mine.pem", "--after", "a.json")
    told = ("check", "--expect", "b.json", "--signed-by", "mine.pub", "--earlier", "a.json")
    assert "ok" in cli(*told).out
    assert cli(*told, "--json").document["ok"]
    wrong = ("check", "--expect", "b.json", "--signed-by", "other.pub")
    refused = cli(*wrong, code=CorruptError.exit_code).err
    assert "another key" in refused
    assert "salvage" not in refused  # nothing is wrong with the store
    misspelt = cli("check", "--expect", "b.jsn", code=3).err
    assert 'no file "b.jsn"' in misspelt
    assert cli("check", "--expect", cli("check", "--json").document["digest"].upper()).out
    assert "no file" in cli("audit", "export", "c", "--sign", "nowhere", code=3).err
    assert "about a file" in cli("check", "--signed-by", "mine.pub", code=2).err
    assert cli("audit", "team/red").out  # the verb that was there before
    failed = cli("audit", "export", "a.json", "--sign", "mine.pem", "--json", code=4)
    assert json.loads(failed.err)["error"]
