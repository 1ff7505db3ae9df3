"""The verbs around damage: check, status and salvage of a store with a changed byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.copy import copy

SCOPE = "team/support"
SEGMENT = Path("store/log/0000000000000000.jsonl")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose fourth line, the second event of billing, is damaged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "store")
    with holdfast.open("store") as store:
        store.team("support").set("stage", "triage")
        store.team("billing").set("stage", "open")
        store.team("archive").set("stage", "closed")
        store.team("billing").set("note", "paid twice")
        store.team("billing").set("stage", "done")
        store.team("support").set("stage", "answered")
    SEGMENT.write_bytes(SEGMENT.read_bytes().replace(b"paid twice", b"paid thice"))
    return tmp_path


@pytest.mark.usefixtures("place")
def test_a_damaged_store_reads_says_what_is_wrong_and_how_to_go_on(cli: Any):
    assert cli("get", SCOPE, "stage").out == "answered\n"
    refused = cli("get", "team/archive", "stage", code=9).err
    assert "may have lost events" in refused
    assert "holdfast salvage" in refused
    assert "nothing can be written" in cli("set", SCOPE, "stage", "x", code=9).err
    rows = dict(row for row in cli("status").rows if len(row) == 2)
    assert rows["digest"] == "cannot be told while the store is damaged"
    assert rows["report"].startswith("damaged at log/")
    assert cli("status", "--json").document["digest"] is None
    quick = cli("check", code=9)
    assert ["", "concerns", "team/archive, team/billing"] in quick.rows
    assert quick.rows[-2:] == [
        ["digest", "cannot be told while the store is damaged"],
        ["remedy", "holdfast salvage store NEW"],
    ]
    document = cli("check", "--read-all", "--json", code=9).document
    assert document["findings"][0]["streams"] == ["team/archive", "team/billing"]
    assert document["findings"][0]["remedy"].startswith("holdfast salvage")
    assert document["events"] == 4


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("new", ["rescued", "sqlite:rescued.db"])
def test_salvage_takes_over_and_lists_the_rest(cli: Any, new: str):
    before = SEGMENT.read_bytes()
    rest = new.removeprefix("sqlite:") + ".rest.jsonl"
    Path(f"{rest}.new").write_text("theirs")
    ran = cli("salvage", "store", new, code=9)
    kinds = [row[0] for row in ran.rows]
    assert kinds[:3] == ["DAMAGED", "cut", "in doubt"]
    assert ran.rows[1][1] == "team/billing"
    assert ran.rows[1][2].startswith("taken over up to revision 1: revisions 2 to 2 are lost; 1 ")
    assert "took over 4 events of 3 streams in 4 commits" in ran.out
    assert ran.rows[-1] == ["rest", rest]
    [event] = [json.loads(line) for line in Path(rest).read_text().splitlines()]
    assert (event["scope"], event["revision"]) == ("team/billing", 3)
    assert Path(rest).stat().st_mode & 0o777 == 0o600
    assert {path.name for path in Path().glob("*.new")} == {f"{rest}.new"}
    assert Path(f"{rest}.new").read_text() == "theirs"
    checked = cli("--store", new, "check", "--read-all", "--json").document
    again = cli("salvage", "store", new, "--json", code=9).document
    assert (again["events"], again["skipped"], again["digest"]) == (0, 4, checked["digest"])
    assert (again["doubtful"], again["rest"]) == (["team/archive"], rest)
    assert SEGMENT.read_bytes() == before


@pytest.mark.usefixtures("place")
def test_salvage_refuses_what_is_not_empty_and_what_ends_with_the_command(cli: Any):
    cli("init", "--store", "other")
    cli("set", SCOPE, "mine", "1", "--store", "other")
    assert "take an empty store as the target" in cli("salvage", "store", "other", code=5).err
    assert cli("salvage", "store", "memory:", code=2).err
    assert cli("salvage", "nowhere", "new", code=3).err
    assert cli("salvage", "store", "new", "--rest", "no/such/folder/rest", code=8).err


@pytest.mark.usefixtures("place")
def test_the_rest_goes_where_it_is_told(cli: Any, monkeypatch: pytest.MonkeyPatch):
    from holdfast.cli import salvage

    cli("salvage", "store", "new", "--rest", "elsewhere", code=9)
    assert len(Path("elsewhere").read_text().splitlines()) == 1
    assert salvage._beside("redis://host/0") is None  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(salvage, "_beside", lambda new: None)
    assert "--rest FILE" in cli("salvage", "store", "other", code=9).rows[-1][1]


@pytest.mark.usefixtures("place")
def test_an_event_that_is_no_value_is_kept_as_text(cli: Any):
    """Its checksum is right, and somebody else wrote it: nothing of ours reads such a payload."""
    from zlib import crc32

    lines = SEGMENT.read_bytes().splitlines(keepends=True)
    body = lines[4][: lines[4].index(b',"crc"')].replace(b'"done"', b'{"$no":1}')
    lines[4] = b'%b,"crc":"%08x"}\n' % (body, crc32(body))
    SEGMENT.write_bytes(b"".join(lines))
    cli("salvage", "store", "new", code=9)
    [event] = [json.loads(line) for line in Path("new.rest.jsonl").read_text().splitlines()]
    assert "$no" in json.dumps(event)


def test_a_whole_store_is_salvaged_with_nothing_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
):
    monkeypatch.chdir(tmp_path)
    cli("init", "--store", "store")
    cli("set", SCOPE, "a", "1", "--store", "store")
    ran = cli("salvage", "store", "new")
    assert ran.rows[0] == ["took over 1 events of 1 streams in 1 commits and 0 blobs, 0 events "
                           "were there already"]  # fmt: skip
    assert not list(Path().glob("*.jsonl*"))


def test_one_digest_in_status_check_and_expect_on_every_embedded_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
):
    """What is noted from any of them can be given to `check --expect`."""
    monkeypatch.chdir(tmp_path)
    found = set()
    with holdfast.open("store") as source:
        for n in range(5):
            source.team(f"t{n % 2}").set("n", n)
        with holdfast.open("memory:") as memory:
            copy(source, memory)
            found |= {memory.status()["digest"], memory.check(read_all=False).digest}
    cli("copy", "store", "sqlite:store.db")
    for place in ("store", "sqlite:store.db"):
        told = cli("--store", place, "status", "--json").document
        checked = cli("--store", place, "check")
        assert checked.rows[0] == ["structure ok", "2 streams, 5 events not read"]
        assert (told["scopes"], told["events"]) == (2, 5)
        assert dict(cli("--store", place, "status").rows)["digest"] == told["digest"]
        assert main(["--store", place, "check", "--expect", told["digest"]]) == 0
        found |= {told["digest"], checked.rows[1][1]}
        found.add(cli("--store", place, "check", "--read-all", "--json").document["digest"])
    assert len(found) == 1
