"""The verbs of tenants, and every other verb with --tenant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tenants_are_made_used_and_removed(cli: Any) -> None:
    made = cli("tenant", "create", "a", "--quota", "team/*:events=2,bytes=1MB", "--json").document
    assert made["quotas"] == [{"scopes": "team/*", "events": 2, "bytes": "1MB"}]
    assert made["url"] == ".holdfast"
    cli("tenant", "create", "b")
    cli("init", "--tenant", "a")
    cli("set", "team/red", "word", "CANARY", "--tenant", "a")
    cli("--tenant", "b", "init")
    assert "there is no" in cli("get", "team/red", "word", "--tenant", "b", code=3).err
    assert "CANARY" in cli("get", "team/red", "word", "--tenant", "a").out
    cli("set", "team/red", "word", "2", "--tenant", "a")
    failed = cli("set", "team/red", "word", "3", "--tenant", "a", code=23)
    assert "may hold 2 events" in failed.err
    cli("tenant", "change", "a", "--quota", "team/*:events=9")
    cli("set", "team/red", "word", "3", "--tenant", "a")
    assert [one["tenant"] for one in cli("tenant", "list", "--json").document["tenants"]] == [
        "a",
        "b",
    ]
    assert "9 events" in cli("tenant", "show", "a").out
    assert cli("tenant", "show", "b", "--json").document["problems"] == []
    gone = cli("tenant", "remove", "a", "--yes", "--json").document
    assert gone["counts"]["files"] > 0
    assert "is removed" in cli("tenant", "remove", "b", "--yes").out
    assert cli("tenant", "list", "--json").document == {"tenants": []}


def test_one_tenant_is_copied_backed_up_and_restored(cli: Any) -> None:
    cli("init", "--tenant", "a")
    cli("set", "team/red", "word", "CANARY", "--tenant", "a")
    digest = cli("check", "--tenant", "a", "--json").document["digest"]
    copied = cli(
        "copy", ".holdfast", "sqlite:two.db", "--tenant", "a", "--to-tenant", "b", "--json"
    )
    assert copied.document["digest"] == digest
    cli("backup", "kept", "--tenant", "a")
    cli("backup", "restore", "kept", "three", "--tenant", "c")
    found = cli("check", "--store", "three", "--tenant", "c", "--json").document
    assert found["digest"] == digest
    two = cli("get", "team/red", "word", "--store", "sqlite:two.db", "--tenant", "b")
    assert "CANARY" in two.out


def test_hints_name_the_tenant_and_the_environment_does(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = cli("status", "--store", "x", "--tenant", "a b", code=3)
    assert "hint: holdfast --store x --tenant 'a b' init" in failed.err
    cli("init", "--store", "x", "--tenant", "a b")
    monkeypatch.setenv("HOLDFAST_TENANT", "a b")
    monkeypatch.setenv("HOLDFAST_STORE", "x")
    cli("set", "team/red", "word", "CANARY")
    assert "CANARY" in cli("get", "team/red", "word").out
    assert "about all of them" in cli("tenant", "list", code=2).err


def test_bad_input(cli: Any) -> None:
    assert "no tenant" in cli("status", "--tenant", "nobody", code=3).err
    assert "no tenant" in cli("tenant", "show", "nobody", code=3).err
    cli("tenant", "create", "a")
    assert "hint: holdfast --tenant a init" in cli("status", "--tenant", "a", code=3).err
    assert "already" in cli("tenant", "create", "a", code=4).err
    for quota in ("team", "team/*:", "team/*:events=many", "team/*:rows=3", "*:events=1"):
        assert "quota" in cli("tenant", "create", "c", "--quota", quota, code=2).err
    assert "on a terminal" in cli("tenant", "remove", "a", code=2).err
    assert "has no password" in cli("tenant", "renew", "a", code=2).err
    assert "memory" in cli("tenant", "list", "--store", "memory:", code=2).err
    failed = cli("tenant", "show", "nobody", "--json", code=3)
    assert "nobody" in failed.err
