"""The verb set with --ttl: a value with an end, and what the other verbs show after it (0073)."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import holdfast


def test_a_value_is_set_with_an_end(place: str, cli: Any) -> None:
    assert "token = 9, until " in cli("set", "team/t", "token", 9, "--ttl", "1h30m").out
    said = cli("set", "team/t", "token", 9, "--ttl", "2d", "--json").document
    assert said.keys() == {"scope", "revision", "path", "ends_at"}
    with holdfast.open(place) as store:
        assert store.team("t").life.ends_at("token") == datetime.fromisoformat(said["ends_at"])
    assert cli("get", "team/t", "token").out == "9\n"
    assert "until" not in cli("set", "team/t", "token", 9).out  # without the option it lasts
    with holdfast.open(place) as store:
        assert store.team("t").life.ends_at("token") is None


def test_an_end_that_is_no_length_of_time_is_refused(place: str, cli: Any) -> None:
    cli("set", "team/t", "token", 1)
    for ttl in ("0", "0s", "-5", "-5s", "soon", "", "nan", "inf", "1h -2h", "9" * 30):
        failed = cli("set", "team/t", "token", 2, f"--ttl={ttl}", code=2)
        assert failed.err.startswith("error: --ttl is a ")
        assert '"1h30m"' in failed.err
        assert repr(ttl) in failed.err
    error = cli("set", "team/t", "token", 2, "--ttl=soon", "--json", code=2).err
    assert json.loads(error)["error"]["class"] == "UsageError"
    shown = cli("get", "team/t", "token", "--json").document
    assert (shown["revision"], shown["value"]) == (1, 1)  # nothing was written


def test_a_value_that_has_ended_is_absent_for_every_verb(place: str, cli: Any) -> None:
    with holdfast.open(place) as store:
        team = store.team("t")
        team.set("stays", 1)
        team.set("token", "CANARY", ttl_s=0.001)
        while "token" in team:
            pass
    failed = cli("get", "team/t", "token", code=3)
    assert "token" in failed.err
    error = cli("get", "team/t", "token", "--json", code=3).err
    assert json.loads(error)["error"]["class"] == "NotFoundError"
    assert cli("show", "team/t", "--json").document["state"] == {"stays": 1}
    assert json.loads(cli("diff", "team/t", 1, "--json").out)["changes"] == []
    exported = cli("session", "export", "team/t").out
    for said in (failed.err, cli("show", "team/t").out, cli("diff", "team/t", 1).out, exported):
        assert "CANARY" not in said
    assert cli("get", "team/t", "token", "--at", "2").out == "CANARY\n"  # it was there
    assert "CANARY" in cli("diff", "team/t", 1, 2).out
    cli("retain", "--now")
    assert "let go" in cli("get", "team/t", "token", "--at", "2", code=3).err
