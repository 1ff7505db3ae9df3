"""What is known of an event beside its data, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import main
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import accepted


def test_the_command_line_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "store")
    with holdfast.open(url) as store:
        store.team("red").set("n", 1)
        build = RecordBuilder(actor="later")
        meta = '{"source":"web","later":[1]}'
        head = store._log.head("team/red")
        append = build.append("team/red", b'[["set","n",2]]', behind=head, meta=meta)
        accepted(store._log._backend, build.commit(append))
    assert main(["log", "team/red", "--json", "--store", url]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert [event["meta"] for event in events] == [{"source": "web", "later": [1]}, None]
    assert main(["log", "team/red", "--store", url]) == 0
    assert '{"source":"web","later":[1]}' in capsys.readouterr().out
