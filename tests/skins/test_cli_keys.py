"""The verbs of an encrypted store, and the verbs that take a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.keys import StoreKey


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "a5" * 32)
    monkeypatch.setenv("NEXT", "5a" * 32)
    return tmp_path


def test_a_store_is_made_used_and_rewrapped_with_a_key(cli: Any) -> None:
    key = ["--store-key", "env:MINE"]
    cli("init", *key)
    cli("set", "team/red", "word", "CANARY", *key)
    assert "CANARY" in cli("get", "team/red", "word", *key).out
    failed = cli("get", "team/red", "word", code=22)
    assert "is encrypted, and no store key was given" in failed.err
    assert cli("key", "status", *key).out.startswith("store key\t")
    first = cli("key", "status", "--json", *key).document
    second = cli("key", "rotate", "--json", *key).document
    assert (first["data_keys"], second["data_keys"]) == (1, 2)
    done = cli("key", "rewrap", "--to", "env:NEXT", "--json", *key).document
    assert done["done"]
    assert done["older"] == 0
    assert "does not fit" in cli("log", "team/red", *key, code=22).err
    key = ["--store-key", "env:NEXT"]
    assert cli("check", "--read-all", *key).out.startswith("ok")
    assert cli("doctor", *key).out


def test_the_key_is_in_the_environment(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_KEY", "env:MINE")
    cli("init")
    cli("set", "team/red", "word", "CANARY")
    assert cli("key", "status", "--json").document["encrypted"]
    monkeypatch.delenv("HOLDFAST_STORE_KEY")
    assert "no store key" in cli("status", code=22).err


def test_a_copy_a_backup_and_a_salvage_take_keys(cli: Any, here: Path) -> None:
    cli("init")
    cli("set", "team/red", "word", "CANARY")
    assert cli("key", "status").out == "not encrypted\n"
    assert "has no keys" in cli("key", "rotate", code=22).err
    digest = cli("copy", ".holdfast", "one", "--to-key", "env:MINE", "--json").document["digest"]
    again = cli(
        "copy", "one", "two", "--store-key", "env:MINE", "--to-key", "env:NEXT", "--json"
    ).document["digest"]
    assert digest == again
    one = ["--store", "one", "--store-key", "env:MINE"]
    cli("backup", "saved", *one)
    cli("backup", "drill", "saved", "--store-key", "env:MINE")
    cli("backup", "restore", "saved", "three", "--store-key", "env:MINE", "--to-key", "env:NEXT")
    cli("salvage", "one", "four", "--store-key", "env:MINE", "--to-key", "env:NEXT")
    for name in ("two", "three", "four"):
        with holdfast.open(here / name, store_key="env:NEXT") as hf:
            assert hf.team("red").get("word") == "CANARY"
    for name in ("one", "two", "three", "four", "saved"):
        files = [path for path in (here / name).rglob("*") if path.is_file()]
        assert files
        assert not any(b"CANARY" in path.read_bytes() for path in files)


def test_a_restore_that_is_refused_makes_no_store(cli: Any, here: Path) -> None:
    key = ["--store-key", "env:MINE"]
    cli("init", *key)
    cli("set", "team/red", "word", "here", *key)
    cli("backup", "saved", *key)
    absent = cli("backup", "restore", "saved", "new", "--scope", "team/none", *key, code=3)
    assert 'no scope "team/none"' in absent.err
    assert "no store key" in cli("backup", "restore", "saved", "new", code=22).err
    assert not (here / "new").exists()
    cli("backup", "restore", "saved", "new", "--scope", "team/red", "--to-key", "env:MINE")
    assert cli("get", "team/red", "word", "--store", "new", *key).out == "here\n"


def test_a_new_key_is_one(cli: Any) -> None:
    printed = cli("key", "new").out.strip()
    assert StoreKey(bytes.fromhex(printed)).id
    assert cli("key", "new", "--json").document["key"] != printed
