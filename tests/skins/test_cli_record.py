"""decide, outcome, decisions, recover, fact and stale on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.core import intent

CHAT = "conversation/c"

CONFIG = """
[verify.exists]
command = ["{python}", "exists.py"]
[verify.slow]
command = ["{python}", "-c", "import time; time.sleep(60)"]
timeout_s = 0.2
[verify.absent]
command = ["no-such-program-here"]
[verify.breaks]
command = ["{python}", "-c", "import sys; sys.exit('broken')"]
[verify.breaks2]
command = ["{python}", "-c", "import sys; print('bad', file=sys.stderr); sys.exit(3)"]
"""
EXISTS = """
import json, os, sys
told = json.load(sys.stdin)
path = os.environ["HOLDFAST_VALUE"]
print(f"looked at {path}")
sys.exit(0 if os.path.exists(path) else 1)
"""


@pytest.fixture(autouse=True)
def _own_verifiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test is a process of its own as far as registered names go, and trust."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(intent.verifiers, "_functions", {})


def configure() -> None:
    Path("holdfast.toml").write_text(CONFIG.format(python=sys.executable))
    Path("holdfast.toml").chmod(0o600)
    Path("exists.py").write_text(EXISTS)
    assert main(["trust", "--yes", "--json"]) == 0


def test_a_decision_from_its_making_to_its_outcome(place: str, cli: Any) -> None:
    made = cli(
        *("decide", CHAT, "refund", "--because", "broken", "--action", "POST", "--json"),
        *("--alternative", "wait", "--alternative", "replace", "--link", "file:a.py"),
        *("--priority", "high", "--key", "k"),
    ).document
    assert made["id"] == "k@conversation/c"
    assert (made["alternatives"], made["links"]) == (["wait", "replace"], ["file:a.py"])
    assert (made["priority"], made["status"], made["actor"]) == (1, "open", "tester")
    [row] = cli("decisions", "--incomplete").rows
    assert (row[0], row[2], row[3], row[5]) == (made["id"], "open", "1", "refund")
    assert row[4] == "tester"  # a person, whom no process stands for
    again = cli("decide", CHAT, "refund", "--action", "POST", "--key", "k", "--json").document
    assert (again["id"], again["events"]) == (made["id"], 1), "not made again"
    cli("decide", CHAT, "another", "--key", "k", code=2)
    shown = dict(cli("decisions", made["id"]).rows)
    assert (shown["because"], shown["action"], shown["link"]) == ("broken", "POST", "file:a.py")
    cli("decisions", "none@conversation/c", code=3)
    closed = cli("outcome", made["id"], "refunded", "--json").document
    assert closed["outcome"] == "refunded"
    assert cli("decisions", "--incomplete", "--json").document["decisions"] == []
    assert cli("decisions", CHAT, "--json").document["decisions"] == [closed]
    cli("outcome", made["id"], "again", code=4)
    cli("outcome", "none@conversation/c", "x", code=3)
    cli("outcome", "none", "x", code=3)
    cli("decide", CHAT, "x", "--priority", "urgent", code=2)
    cli("decide", CHAT, "x", "--verify", "nobody", code=3)


def test_standing_orders_and_pages(place: str, cli: Any) -> None:
    old = cli("decide", CHAT, "never push", "--standing", "--json").document
    new = cli("decide", CHAT, "never ever", "--standing", "--supersedes", old["id"], "--json")
    assert new.document["supersedes"] == old["id"]
    rows = cli("decisions", CHAT).rows
    assert [(row[2], row[5]) for row in rows] == [
        ("standing", "never ever"),
        ("superseded", "never push"),
    ]
    assert len(cli("decisions", CHAT, "--limit", "1").rows) == 1
    before = new.document["revision"]
    assert [row[5] for row in cli("decisions", CHAT, "--before", before).rows] == ["never push"]
    assert cli("decisions", "--older-than", "1h").rows == []


def test_recovery_asks_the_projects_own_commands(place: str, cli: Any) -> None:
    """Guarantee 10: a verifier is a name; the command stands in the configuration file."""
    configure()
    Path("there").touch()
    for key, path in (("done", "there"), ("not-done", "nowhere")):
        cli("decide", CHAT, "make it", "--verify", "exists", "--action", path, "--key", key)
    for name in ("slow", "absent", "breaks2"):
        cli("decide", CHAT, "make it", "--verify", name, "--action", "x", "--key", name)
    found = {one["id"].partition("@")[0]: one for one in cli("recover", "--json").document["acts"]}
    did = {key: (one["verdict"], one["did"]) for key, one in found.items()}
    assert did == {
        "done": ("done", "closed"),
        "not-done": ("not done", "left open"),
        "slow": ("unknown", "left open"),
        "absent": ("unknown", "left open"),
        "breaks2": ("unknown", "left open"),
    }
    assert found["done"]["text"] == "looked at there"
    assert "longer than 0.2 s" in found["slow"]["text"]
    assert "cannot be run" in found["absent"]["text"]
    assert "ended with 3: bad" in found["breaks2"]["text"]
    assert len(cli("recover").rows) == 4


def test_a_fact_is_stated_checked_and_withdrawn(place: str, cli: Any) -> None:
    configure()
    Path("there").touch()
    stated = cli(
        *("fact", CHAT, "path", "there", "--verify", "exists", "--valid-for", "7d", "--json"),
        *("--about", "the disk"),
    ).document
    assert (stated["value"], stated["stale"], stated["about"]) == ("there", False, "the disk")
    cli("fact", CHAT, "count", "[1, 2]")
    assert cli("fact", CHAT, "count", "--json").document["value"] == [1, 2]
    assert [row[0] for row in cli("fact", CHAT).rows] == ["count", "path"]
    assert not cli("fact", CHAT, "path", "--check", "--json").document["stale"]
    assert cli("stale").rows == []
    Path("there").unlink()
    assert cli("stale", "--no-verify").rows == []
    [row] = cli("stale", "--verify").rows
    assert (row[0], row[1], row[2], row[3]) == ("fact", CHAT, "path", "contradicted")
    assert "looked at there" in row[5]
    assert cli("fact", CHAT).rows[1][1] == "stale"
    shown = dict(cli("fact", CHAT, "path").rows)
    assert shown["stale"].startswith("contradicted by exists")
    assert len(cli("stale", "--no-verify", "--json").document["stale"]) == 1
    assert cli("fact", CHAT, "path", "--withdraw", "--json").document["withdrawn"] is True
    cli("fact", CHAT, "path", "--withdraw", code=3)
    cli("fact", CHAT, "path", "--about", "x", code=2)
    cli("fact", CHAT, "--check", code=2)
    cli("fact", CHAT, "path", "x", "--check", code=2)
    cli("fact", "conversation/none", code=3)


def test_a_configuration_that_is_not_understood_is_refused(place: str, cli: Any) -> None:
    for text in ("[verify", "[verify.x]\nrun = 1", "[verify.x]\ncommand = 'ls'", "[verify.x]"):
        Path("holdfast.toml").write_text(text)
        cli("stale", "--verify", code=2)
    for text in ("[verify.x]\ncommand = []", "[verify.x]\ncommand = ['a']\ntimeout_s = 0"):
        Path("holdfast.toml").write_text(text)
        cli("recover", code=2)
    Path("holdfast.toml").write_text("[other]\nx = 1")
    assert cli("stale", "--verify").rows == []
    cli("stale", "--verify", "--config", "nowhere.toml", code=3)


def test_a_terminal_gets_tables(place: str, cli: Any, screen: Any) -> None:
    cli("decide", CHAT, "re\x1bfund", "--key", "k")
    cli("fact", CHAT, "branch", "main")
    with holdfast.open(place) as store:
        store.conversation("c").decide("left open")
    shown = screen("decisions")
    assert "decision" in shown.splitlines()[0]
    assert "re\\x1bfund" in shown
    assert "open (dead)" in shown
    assert "branch" in screen("fact", CHAT)
    assert "owner silent" in screen("stale")
