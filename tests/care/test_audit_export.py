"""Signed audit exports: made, chained, anchored, verified after what a store lets go of."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import CorruptError, ExistsError, NotFoundError, Settings, UsageError
from holdfast.audit_export import export_audit, verify_export
from holdfast.errors import OtherStoreError
from tests.audit_keys import write_keys
from tests.servers.kinds import KEPT, url_of


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("mine", "other"):
        write_keys(tmp_path, name)
    return tmp_path


@pytest.mark.parametrize("kind", KEPT)
def test_a_chain_of_exports_is_verified_after_letting_go_and_erasing(kind: str, keys: Path) -> None:
    with holdfast.open(url_of(kind, keys, "audited"), settings=Settings(clear_ids=True)) as hf:
        hf.team("x").set("a", 1)
        hf.team("gone").set("a", "what is let go of")
        hf.team("ada", subject="ada").set("name", "Ada")
        first = export_audit(hf, keys / "1", sign=keys / "mine.pem")
        hf.team("x").set("a", 2)
        hf.team("later").set("a", 1)
        second = export_audit(hf, keys / "2", sign=keys / "mine.pem", after=keys / "1")
        assert (first.number, second.number, second.previous) == (1, 2, first.digest)
        hf.team("gone").remove()
        hf.retention.run(grace_s=0)
        hf.subjects.erase("ada")
        hf.team("x").set("a", 3)
        _, lacking = verify_export(
            hf, keys / "2", signed_by=keys / "mine.pub", earlier=[keys / "1"]
        )
        assert lacking == []
        assert hf.check(read_all=True).ok


def test_events_that_were_taken_away_or_exchanged_are_found(keys: Path) -> None:
    import shutil

    with holdfast.open(keys / "s") as hf:
        hf.team("x").set("a", 1)
    shutil.copytree(keys / "s", keys / "old")
    with holdfast.open(keys / "s") as hf:
        hf.team("x").set("a", 2)
        hf.team("y").set("a", 2)
        export_audit(hf, keys / "1", sign=keys / "mine.pem")
    with holdfast.open(keys / "old") as hf:
        _, lacking = verify_export(hf, keys / "1")
        assert {one.where for one in lacking} >= {"team/x", "team/y"}
        hf.team("x").set("a", 3)  # as many events as before, and others
        hf.team("y").set("a", 3)
        _, lacking = verify_export(hf, keys / "1")
        assert {"team/x@2", "team/y@1"} <= {one.where for one in lacking}
        with pytest.raises(CorruptError, match="lacks what the export before has"):
            export_audit(hf, keys / "2", sign=keys / "mine.pem", after=keys / "1")


def test_a_changed_file_another_key_and_another_store_are_refused(keys: Path) -> None:
    with holdfast.open(keys / "s") as hf:
        hf.team("x").set("a", 1)
        export_audit(hf, keys / "1", sign=keys / "mine.pem")
        hf.team("x").set("a", 2)
        export_audit(hf, keys / "2", sign=keys / "mine.pem", after=keys / "1")
        export_audit(hf, keys / "3", sign=keys / "mine.pem", after=keys / "2")
        with pytest.raises(UsageError, match="64 hexadecimal digits"):
            hf.check(expect=str(keys / "1"))
        with pytest.raises(CorruptError, match="another key"):
            verify_export(hf, keys / "1", signed_by=keys / "other.pub")
        with pytest.raises(CorruptError, match="does not follow"):
            verify_export(hf, keys / "3", earlier=[keys / "1"])
        whole = json.loads((keys / "1").read_text())
        body = json.loads(whole["body"])
        for change in (
            {"body": json.dumps({**body, "host_us": 1})},
            {"signature": "00" * 64},
            {"signature": "no"},
            {"digest": "0" * 64},
            {"key": json.loads((keys / "2").read_text())["key"][::-1]},
            {"body": "{}"},
        ):
            (keys / "bad").write_text(json.dumps({**whole, **change}))
            with pytest.raises(CorruptError, match="changed"):
                verify_export(hf, keys / "bad")
        (keys / "bad").write_bytes(b"\xff{")
        with pytest.raises(CorruptError, match="not an audit export"):
            verify_export(hf, keys / "bad")
        with pytest.raises(NotFoundError):
            verify_export(hf, keys / "nowhere")
        with pytest.raises(ExistsError):
            export_audit(hf, keys / "1", sign=keys / "mine.pem")
        with pytest.raises(NotFoundError, match="private key"):
            export_audit(hf, keys / "4", sign=keys / "nowhere.pem")
        with pytest.raises(UsageError, match="not an Ed25519 private key"):
            export_audit(hf, keys / "4", sign=keys / "mine.pub")
        with pytest.raises(UsageError, match="not an Ed25519 public key"):
            verify_export(hf, keys / "1", signed_by=keys / "mine.pem")
        assert not (keys / "4").exists()
    with holdfast.open(keys / "t") as other:
        other.team("x").set("a", 1)
        with pytest.raises(OtherStoreError, match="another store"):
            verify_export(other, keys / "1")


ANCHOR = """
import hashlib, hmac, sys
token = hmac.new(b"notary", sys.argv[2].encode(), hashlib.sha256).hexdigest()
if sys.argv[1] == "stamp":
    sys.stdout.write(token)
else:
    sys.exit(0 if sys.stdin.read() == token else "this token is of something else")
"""


def test_an_anchor_is_kept_and_verified(keys: Path) -> None:
    script = keys / "notary.py"
    script.write_text(ANCHOR)
    notary = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    with holdfast.open(keys / "s") as hf:
        hf.team("x").set("a", 1)
        made = export_audit(hf, keys / "1", sign=keys / "mine.pem", anchor=f"{notary} stamp")
        assert made.is_anchored
        verify_export(hf, keys / "1", anchor=f"{notary} verify")
        plain = export_audit(hf, keys / "2", sign=keys / "mine.pem", after=keys / "1")
        with pytest.raises(UsageError, match="has no anchor"):
            verify_export(hf, keys / "2", anchor=f"{notary} verify")
        assert not plain.is_anchored
        taken = json.loads((keys / "1").read_text())["anchor"]
        moved = {**json.loads((keys / "2").read_text()), "anchor": taken}
        (keys / "3").write_text(json.dumps(moved))
        with pytest.raises(holdfast.UnavailableError, match="something else"):
            verify_export(hf, keys / "3", anchor=f"{notary} verify")
        for broken in ("/nowhere/anchor", "false", "true"):
            with pytest.raises(holdfast.UnavailableError, match="the anchor"):
                export_audit(hf, keys / "4", sign=keys / "mine.pem", anchor=broken)
