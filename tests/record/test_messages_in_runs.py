"""Messages of a run's body are said once, however often the run is entered again (DESIGN 7.3)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from tests.crash.children import Child
from tests.record.kills import open_dying
from tests.record.stores import new_url

DIES = "HOLDFAST_TEST_DIES"
STORES: list[Store] = []
"""The store that the run's body writes to, in whichever process it runs."""


@holdfast.run(name="talks")
def talks(ctx: holdfast.Context) -> int:
    chat = STORES[-1].conversation("c")
    chat.say("one")
    chat.messages.add_many([{"role": "user", "content": "two"}, {"role": "user", "content": "two"}])
    if os.environ.get(DIES):
        os.kill(os.getpid(), signal.SIGKILL)
    chat.say("three")
    return 3


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_a_run_that_is_resumed_says_nothing_twice(backend: str, tmp_path: Path) -> None:
    """On servers the same, after the dead owner's lease; the kinds differ in nothing else here."""
    url = new_url(backend, tmp_path)
    holdfast.open(url).close()

    def live(_pipe: int, _stop: int) -> None:
        os.environ[DIES] = "1"
        STORES.append(open_dying(url))
        STORES[-1].start(talks, id="r").result()

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(url) as hf:
        STORES.append(hf)
        assert hf.resume("r").result() == 3
        said = list(hf.conversation("c").messages)
        assert [message.content for message in said] == ["one", "two", "two", "three"]
        assert len({message.id for message in said}) == 4
        assert hf.check().ok
