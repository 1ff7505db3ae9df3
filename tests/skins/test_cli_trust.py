"""Commands of a configuration file run only after the user has trusted it: `holdfast trust`."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import NotFoundError, UsageError
from holdfast.core import intent
from holdfast.errors import UntrustedError
from holdfast.record import load_verifiers, trust
from tests.skins.conftest import Screen

FACT = ("fact", "global", "x", "1", "--verify", "mine")
LEFT = Path("it-was-run")
COMMAND = f"""
[verify.mine]
command = ["{sys.executable}", "-c", "open('{LEFT}', 'w')"]
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own list of trusted files, and no verifiers of other tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(intent.verifiers, "_functions", {})


@pytest.fixture
def config(place: str) -> Path:
    """A configuration file in the current folder, as a clone brings it."""
    path = Path("holdfast.toml")
    path.write_text(COMMAND)
    path.chmod(0o644)
    return path


def listed(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "data" / "holdfast" / "trusted").glob("*"))


def test_an_untrusted_file_runs_nothing(config: Path, cli: Any) -> None:
    for words in (
        *(("stale", "--verify"), ("recover",), FACT, ("decide", "global", "x", "--verify", "mine")),
        *(("stale", "--verify", "--config", str(config)), ("fact", "global", "x", "--check")),
    ):
        error = cli(*words, "--json", code=2).error
        assert str(config.resolve()) in error["message"], words
        assert "mine" in error["message"]
        assert str(LEFT) in error["message"], "it says what it would run"
        assert f"holdfast trust {config.resolve()}" in error["hint"]
    assert not LEFT.exists()


def test_what_asks_no_verifier_needs_no_trust(config: Path, cli: Any) -> None:
    cli("fact", "global", "y", "1")
    assert cli("fact", "global", "y", "--json").document["value"] == 1
    cli("decide", "global", "z")
    cli("stale")
    cli("stale", "--no-verify")
    config.write_text("[other]\nx = 1\n")
    cli("stale", "--verify")  # it names no commands


def test_a_verb_that_looks_runs_nothing_unless_told(config: Path, cli: Any) -> None:
    cli("trust", "--yes")
    cli(*FACT)
    cli("stale")
    assert not LEFT.exists()
    cli("stale", "--verify")
    assert LEFT.exists()


def test_a_run_is_not_started_beside_untrusted_commands(config: Path, tiny: Path, cli: Any) -> None:
    assert cli("runs", "start", "tiny.py:tiny", "--json", code=2).error["class"] == "UntrustedError"
    cli("trust", "--yes")
    cli("runs", "start", "tiny.py:tiny")


def test_trust_is_in_these_bytes_at_this_place(config: Path, cli: Any, tmp_path: Path) -> None:
    shown = cli("trust", "--yes").out
    assert str(LEFT) in shown
    cli(*FACT)
    [kept] = listed(tmp_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for folder in (kept.parent, kept.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    config.write_text(COMMAND + "# changed\n")
    assert "has changed" in cli("stale", "--verify", "--json", code=2).error["message"]
    config.write_text(COMMAND)
    cli("stale", "--verify")
    other = tmp_path / "other"
    other.mkdir()
    (other / "holdfast.toml").write_text(COMMAND)
    cli("stale", "--verify", "--config", str(other / "holdfast.toml"), code=2)
    link = tmp_path / "link.toml"
    link.symlink_to(config.resolve())
    cli("stale", "--verify", "--config", str(link))  # it is what it leads to


def test_trust_is_listed_and_revoked(config: Path, cli: Any, tmp_path: Path) -> None:
    assert cli("trust", "--list").rows == []
    cli("trust", "--yes", "--json")
    assert cli("trust", "--list").rows == [[str(config.resolve()), "trusted"]]
    config.write_text(COMMAND + "# changed\n")
    assert cli("trust", "--list", "--json").document == {
        "trusted": [{"path": str(config.resolve()), "state": "changed"}]
    }
    cli("trust", "--yes")
    config.unlink()
    assert cli("trust", "--list").rows == [[str(config.resolve()), "gone"]]
    assert cli("trust", "--revoke", "--json").document["trusted"] is False
    assert listed(tmp_path) == []
    cli("trust", "--revoke", code=3)
    cli("trust", "--revoke", "--list", code=2)
    cli("trust", "nowhere.toml", "--yes", code=3)


def test_what_somebody_else_may_write_is_never_trusted(
    config: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("trust", "--yes")
    config.chmod(0o664)
    for words in (("trust", "--yes"), ("stale", "--verify")):
        error = cli(*words, "--json", code=2).error
        assert (error["class"], "chmod go-w" in error["hint"]) == ("UsageError", True)
    config.chmod(0o644)
    cli("stale", "--verify")
    config.resolve().parent.chmod(0o777)
    assert "directory" in cli("stale", "--verify", "--json", code=2).error["message"]
    config.resolve().parent.chmod(0o1777)  # what is in it cannot be replaced by others
    cli("stale", "--verify")
    owner = os.geteuid() + 1
    monkeypatch.setattr(trust, "_trusted_owners", lambda: {owner})
    assert "belongs to user" in cli("stale", "--verify", "--json", code=2).error["message"]


def test_a_list_that_others_may_write_is_not_believed(
    config: Path, cli: Any, tmp_path: Path
) -> None:
    cli("trust", "--yes")
    (tmp_path / "data" / "holdfast" / "trusted").chmod(0o770)
    assert "chmod" in cli("stale", "--verify", "--json", code=2).error["hint"]


def test_the_bytes_that_are_parsed_are_those_that_were_judged(
    config: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped between the look at its digest and the next read: there is no next read."""
    cli("trust", "--yes")
    real = trust.is_trusted

    def swap(found: trust.ConfigFile) -> bool:
        answer = real(found)
        config.write_text("[verify.evil]\ncommand = ['false']\n")
        return answer

    monkeypatch.setattr(trust, "is_trusted", swap)
    assert load_verifiers("holdfast.toml") == ["mine"]


def test_programs_decide_by_an_argument(config: Path) -> None:
    with pytest.raises(UntrustedError, match="mine"):
        load_verifiers(config)
    with pytest.raises(UntrustedError):
        load_verifiers()
    assert load_verifiers(config, trust=True) == ["mine"]
    config.chmod(0o666)
    with pytest.raises(UsageError, match="written by others"):
        load_verifiers(config, trust=True)
    with pytest.raises(UsageError, match="trust is True or False"):
        load_verifiers(config, trust="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFoundError):
        load_verifiers("nowhere.toml", trust=True)


def test_it_asks_on_a_terminal(
    config: Path, cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "--yes" in cli("trust", "--json", code=2).error["hint"]
    for answer, count in (("n\n", 0), ("", 0), ("perhaps\n", 0), ("y\n", 1)):
        keyboard = Screen(answer)
        monkeypatch.setattr(sys, "stdin", keyboard)
        done = cli("trust", code=0 if count else 1)
        assert str(LEFT) in done.out, "what it would run is shown before it asks"
        assert len(listed(tmp_path)) == count, answer
    cli("trust", "--yes")  # once more: nothing changes
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def test_strange_files_are_refused(place: str, cli: Any, tmp_path: Path) -> None:
    path = Path("holdfast.toml")
    for name in ("a\0b", "\ud800", "x" * 5000):
        cli("trust", name, "--yes", code=2)
        cli("trust", name, "--revoke", code=3 if "x" in name else 2)
    path.write_bytes(b"\xff\xfe")
    cli("trust", "--yes", code=2)
    path.write_bytes(b"#" * (trust.BYTES_MAX + 1))
    assert "larger" in cli("trust", "--yes", "--json", code=2).error["message"]
    path.unlink()
    os.mkfifo(path)
    assert "regular file" in cli("trust", "--yes", "--json", code=2).error["message"]
    path.unlink()
    path.mkdir()
    cli("trust", "--yes", code=2)
    path.rmdir()
    path.write_text("[other]\nx = 1\n")
    assert "no commands" in cli("trust", "--yes", "--json", code=2).error["message"]
    path.write_text('[verify.a]\ncommand = ["a\\u001b[2J"]\n')
    assert "\x1b" not in cli("trust", "--yes").out
    [kept] = listed(tmp_path)
    kept.write_text("not json")
    cli("stale", "--verify", code=2)
    assert cli("trust", "--list").rows == [[str(kept), "damaged"]]


def test_data_is_kept_where_the_user_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert trust.directory() == Path("/somewhere/holdfast/trusted")
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")  # must be ignored, says its specification
    monkeypatch.setenv("HOME", "/home/ada")
    assert trust.directory() == Path("/home/ada/.local/share/holdfast/trusted")
