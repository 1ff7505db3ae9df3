"""Who writes and where it came from: how blocks and stores say it, and where the log puts it."""

from __future__ import annotations

from typing import Any, cast

import pytest

import holdfast
from holdfast import UsageError, provenance
from holdfast.backends.memory import MemoryBackend
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.log import Log
from holdfast.core.meta import source_and_trust
from holdfast.core.provenance import SAID, Said, both, check_provenance
from holdfast.store import Meta
from holdfast.testing import FakeClock


def proposed(stream: str, meta: str | None = None) -> ProposedCommit:
    return ProposedCommit((StreamWrite(stream, (NewEvent("note.made", b"1"),)),), meta=meta)


@pytest.fixture
def log() -> Log:
    clock = FakeClock()
    return Log(MemoryBackend(clock=clock), clock=clock, actor="ada")


def stored(log: Log, stream: str) -> list[tuple[str, str | None, str | None]]:
    return [(one.actor, *source_and_trust(one.meta)) for one in log.records(stream)]


def test_every_way_to_commit_says_it(log: Log) -> None:
    with provenance(source="tool", actor="search", trust="low"):
        log.commit(proposed("a"))
        log.wait(log.submit(proposed("a")))
        for request in log.submit_all([proposed("a")]):
            log.wait(request)
        assert (log.actor, log.provenance[0]) == ("search", "search")
    log.commit(proposed("a"))
    for request in log.submit_all([proposed("a")]):
        log.wait(request)
    assert stored(log, "a") == [("search", "tool", "low")] * 3 + [("ada", None, None)] * 2
    assert log.actor == "ada"
    assert log.provenance == ("ada", None)


def test_the_store_says_what_no_block_says(log: Log) -> None:
    log.said = check_provenance("human", None, "high")
    log.commit(proposed("a"))
    assert log.provenance == ("ada", log.said.meta)
    with provenance(actor="bob"):
        log.commit(proposed("a"))
    with provenance(trust="low"):
        log.commit(proposed("a"))
        assert log.actor == "ada"
    log.commit(proposed("a", '{"source":"web"}'))
    assert stored(log, "a") == [
        ("ada", "human", "high"),
        ("bob", "human", "high"),
        ("ada", "human", "low"),
        ("ada", "web", "high"),
    ]


def test_a_block_can_be_entered_again_and_ends_by_an_error() -> None:
    block = provenance(source="model")
    with block, block:
        assert SAID.get() == Said(None, '{"source":"model"}')
    with pytest.raises(RuntimeError), block:
        raise RuntimeError
    assert SAID.get() is None


def test_a_block_that_says_an_actor_alone_writes_no_meta(log: Log) -> None:
    with provenance(actor="bob"):
        log.commit(proposed("a", '{"trace":"t"}'))
        log.commit(proposed("a"))
    assert [one.meta for one in log.records("a")] == ['{"trace":"t"}', None]


@pytest.mark.parametrize("given", [{"source": "modle"}, {"actor": ""}, {"trust": 7}])
def test_what_is_no_provenance_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        provenance(**given)
    assert both("{}", None) == "{}"


def test_an_event_says_it() -> None:
    with holdfast.open("memory:", source="file", trust="seen") as hf:
        hf.team("red").set("a", 1)
        with hf.commit(meta=Meta(source="web")) as tx:
            tx.scope(hf.team("red")).set("a", 2)
        first, second = hf.team("red").history()
    assert (first.source, first.trust) == ("file", "seen")
    assert (second.source, second.trust) == ("web", "seen")
    assert cast("Any", first).actor == hf.workers.own
