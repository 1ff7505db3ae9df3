"""A file that is made for somebody: whole or not at all, and nothing of theirs is written over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.audit_export import export_audit
from holdfast.errors import ExistsError, UnavailableError
from holdfast.exchange import new_file
from tests.audit_keys import write_keys


def test_a_file_is_named_when_it_is_whole_and_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", sync)
    with new_file(tmp_path / "one") as file:
        file.write(b"1")
        assert not (tmp_path / "one").exists()
    assert (tmp_path / "one").read_bytes() == b"1"
    assert synced == [str(tmp_path / "one.1.new"), str(tmp_path)]
    with pytest.raises(ExistsError, match="not written over"), new_file(tmp_path / "one"):
        raise AssertionError
    with new_file(tmp_path / "one", mode=0o600, replaces=True) as file:
        file.write(b"2")
    assert (tmp_path / "one").read_bytes() == b"2"
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["one"]


def test_what_others_have_stays(tmp_path: Path) -> None:
    for name in ("one.new", "one.1.new", "one.2.new"):
        (tmp_path / name).write_text("theirs")
    with pytest.raises(ValueError, match="broken off"), new_file(tmp_path / "one") as file:
        file.write(b"a part")
        raise ValueError("broken off")
    with pytest.raises(ExistsError, match="not written over"), new_file(tmp_path / "one") as file:
        (tmp_path / "one").write_text("somebody was faster")
    assert sorted(os.listdir(tmp_path)) == ["one", "one.1.new", "one.2.new", "one.new"]
    assert {path.read_text() for path in tmp_path.glob("*.new")} == {"theirs"}
    assert (tmp_path / "one").read_text() == "somebody was faster"


def test_two_audit_exports_to_one_name(tmp_path: Path) -> None:
    """The second one is told by name, whenever it finds out; and a place that cannot be written."""
    write_keys(tmp_path, "mine")
    with holdfast.open("memory:") as hf:
        hf.team("red").set("n", 1)
        program = tmp_path / "anchor.py"
        program.write_text(f"open({str(tmp_path / 'a')!r}, 'w').write('theirs'); print('token')")
        with pytest.raises(ExistsError, match="exists already"):
            export_audit(
                hf, tmp_path / "a", sign=tmp_path / "mine.pem", anchor=f"{sys.executable} {program}"
            )
        assert (tmp_path / "a").read_text() == "theirs"
        with pytest.raises(UnavailableError, match="cannot be written"):
            export_audit(hf, tmp_path / "no" / "a", sign=tmp_path / "mine.pem")
    assert not list(tmp_path.glob("a.*new"))


def test_the_command_line_leaves_the_user_s_files(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "scopes.new").write_text("theirs")
    with holdfast.open(tmp_path / "store") as hf:
        hf.team("red").set("n", 1)
    assert run("export", "--to", "scopes", "--store", "store").returncode == 0
    again = run("export", "--to", "scopes", "--store", "store")
    assert again.returncode == 4
    assert "exists already" in again.stderr
    assert (tmp_path / "scopes.new").read_text() == "theirs"
