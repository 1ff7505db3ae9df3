"""event record, event list and projection on the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import own_event
from holdfast.projections import define, stored

TEAM = "team/support"
CODE = """
import holdfast, msgspec

@holdfast.event("ticket_opened", version=2)
class TicketOpened(msgspec.Struct):
    id: str
    title: str = ""

@holdfast.upgrade(TicketOpened, 1)
def _(old):
    return old

@holdfast.projection()
class Tickets:
    def ticket_opened(self, tickets, event):
        tickets[event.data.id] = event.data.title

@holdfast.projection(init=int, types=["ticket_opened"])
def count(number, event):
    return number + 1
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(own_event, "_types", {})
    monkeypatch.setattr(own_event, "_by_class", {})
    monkeypatch.setattr(define, "_known", {})
    path = tmp_path / "tickets_of_cli.py"
    path.write_text(CODE)
    yield str(path)
    for name in ("tickets_of_cli", "plain_of_cli"):
        sys.modules.pop(name, None)


def test_what_is_recorded_is_listed(place: str, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli(
        "event", "record", TEAM, "ticket_opened", '{"id": "t1"}', "--ref", "task:t1", "--json"
    ).document
    assert (made["scope"], made["revision"], made["version"]) == (TEAM, 1, 0)
    assert (made["data"], made["refs"]) == ({"id": "t1"}, ["task:t1"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "\\u001b[31m"}')))
    assert "revision 2: ticket_closed" in cli("event", "record", TEAM, "ticket_closed", "-").out
    cli("set", TEAM, "x", "1")
    rows = cli("event", "list").rows
    assert [(row[0], row[1], row[3]) for row in rows] == [
        (TEAM, "2", "ticket_closed"),
        (TEAM, "1", "ticket_opened"),
    ]
    assert rows[1][5:] == ['{"id":"t1"}', "task:t1"]
    assert "\x1b" not in cli("event", "list", TEAM).out
    found = cli("event", "list", TEAM, "--type", "ticket_opened", "--json").document
    assert [event["revision"] for event in found["events"]] == [1]
    page = cli("event", "list", "--limit", 1, "--json").document
    rest = cli("event", "list", "--before", page["cursor"], "--json").document
    assert [event["type"] for event in rest["events"]] == ["ticket_opened"]
    assert cli("event", "list", "--actor", "nobody").rows == []
    assert [row[4] for row in cli("log").rows] == ["changed", "ticket_closed", "ticket_opened"]


def test_data_is_checked_by_the_code_that_is_named(place: str, code: str, cli: Any) -> None:
    event = ("event", "record", TEAM, "ticket_opened")
    made = cli(*event, '{"id": "t1"}', "--module", code, "--json").document
    assert made["version"] == 2
    assert "expected str, found 7" in cli(*event, '{"id": 7}', "--module", code, code=2).err
    misspelt = cli("event", "record", TEAM, "ticket_opned", "--module", code, code=3).err
    assert 'did you mean "ticket_opened"?' in misspelt
    assert "a JSON object" in cli(*event, "[1]", code=2).err
    assert "an event type is" in cli("event", "record", TEAM, "a.b", code=2).err
    assert "a ref is text" in cli(*event, "--ref", "t1", code=2).err
    assert len(cli("event", "list").rows) == 1
    assert cli(*event, '{"id": "t2"}', "--key", "k", "--json").document["revision"] == 2
    assert cli(*event, '{"id": "t2"}', "--key", "k", "--json").document["revision"] == 2


def test_a_projection_is_shown(
    place: str, code: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = ("event", "record", TEAM, "ticket_opened")
    cli(*event, '{"id": "t1", "title": "no paper"}', "--module", code)
    found = cli("projection", f"{code}:Tickets", TEAM, "--verify", "--json").document
    assert found == {
        "projection": "Tickets",
        "over": TEAM,
        "events": 1,
        "differences": 0,
        "state": {"t1": "no paper"},
    }
    assert cli("projection", f"{code}:count", "team/*").out.strip() == "1"
    assert "has several projections: Tickets, count" in cli("projection", code, code=2).err
    assert "it has Tickets, count" in cli("projection", f"{code}:other", code=3).err
    plain = Path(code).with_name("plain_of_cli.py")
    plain.write_text("")
    assert "has no projection" in cli("projection", f"{plain}:x", code=3).err

    def load(_log: object, fold: Any, _thumb: str) -> bool:
        fold.root = fold.root._with_key("stale", True)
        return True

    monkeypatch.setattr(stored, "load", load)
    assert (
        cli("projection", f"{code}:Tickets", "--verify", "--json", code=1).document["differences"]
        == 1
    )
