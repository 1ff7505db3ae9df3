"""A build without `cryptography`: sealing and encryption are refused, and all else works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import holdfast
from holdfast import Settings

CODE = """
from holdfast import Settings
import json, os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cryptography":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import holdfast
from holdfast.errors import StoreKeyError

place, said = sys.argv[1], {}

def refused(name, act):
    try:
        act()
    except holdfast.UsageError as error:
        said[name] = str(error)

refused("open", lambda: holdfast.open(f"{place}/new", store_key=b"k" * 32))
said["made"] = os.path.exists(f"{place}/new")
clear = Settings(clear_ids=True)
with holdfast.open(f"{place}/sealed", keys=f"{place}/keys", settings=clear) as hf:
    before = hf.check().digest
    refused("scope", lambda: hf.conversation("c2", subject="ada").set("n", 1))
    refused("value", lambda: hf.team("red").set("who", "Ada", subject="ada"))
    refused("read", lambda: hf.conversation("c1").state.to_dict())
    said["same"] = hf.check().digest == before
    hf.team("red").set("n", 2)
    said["plain"] = hf.team("red").get("n")
refused("encrypted", lambda: holdfast.open(f"{place}/encrypted", store_key=b"k" * 32))
try:
    holdfast.open(f"{place}/encrypted")
except StoreKeyError as error:
    said["told"] = str(error)
print(json.dumps(said))
"""


def test_without_the_package_sealing_is_refused_and_nothing_is_harmed(tmp_path: Path) -> None:
    with holdfast.open(
        tmp_path / "sealed", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.conversation("c1", subject="ada").set("name", "Ada")
        hf.team("red").set("n", 1)
    with holdfast.open(tmp_path / "encrypted", store_key=b"k" * 32) as hf:
        hf.team("red").set("n", 1)
    words = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name in ("open", "scope", "value", "read", "encrypted"):
        assert "the package cryptography is not installed" in said[name]
        assert 'pip install "holdfast[seal]"' in said[name]
    assert (said["made"], said["same"], said["plain"]) == (False, True, 2)
    assert "no store key was given" in said["told"]
    with holdfast.open(
        tmp_path / "sealed", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        assert hf.conversation("c1").get("name") == "Ada"
        assert hf.check().ok
    with holdfast.open(tmp_path / "encrypted", store_key=b"k" * 32) as hf:
        assert hf.team("red").get("n") == 1
