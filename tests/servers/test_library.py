"""The public API and the command line on each server, end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import holdfast
from tests.servers import postgresql, redis

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
PROGRAM = "import sys; from holdfast.cli import main; sys.exit(main())"
OTHER = """
import holdfast, sys
with holdfast.open(sys.argv[1]) as store:
    store.conversation("c1").set("stage", "done")
"""


@pytest.fixture(params=["postgresql", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a store of this test's own."""
    name = request.node.name.replace("[", "_").rstrip("]")[-60:]
    if request.param == "redis":
        return redis.server(next(iter(redis.installations()))).url(application=name)
    running = postgresql.server(postgresql.NEWEST)
    running.create_database(name)
    return running.url(name)


def test_the_library_works_on_it(url: str) -> None:
    """A second process commits, and is seen."""
    with holdfast.open(url) as store:
        chat = store.conversation("c1")
        chat.set("stage", "triage")
        position = store.position
        subprocess.run([sys.executable, "-c", OTHER, url], check=True, env=ENVIRONMENT)
        [change] = [
            event.type for event in store.follow(as_events=True, after=position, timeout_s=0)
        ]
        assert change == "changed"
        assert chat.get("stage") == "done"
        assert store.check().ok
    with holdfast.open(url, read_only=True) as store:
        assert store.conversation("c1").state == {"stage": "done"}


def test_the_doctor_does_not_look_for_a_disk_that_is_elsewhere(url: str) -> None:
    with holdfast.open(url) as store:
        store.conversation("c1").set("stage", "triage")
    words = [sys.executable, "-c", PROGRAM, "--store", url, "--json", "doctor"]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    said = json.loads(done.stdout)
    assert {each["check"] for each in said["checks"]} >= {"store", "durability", "structure"}
    assert "file system" not in {each["check"] for each in said["checks"]}
