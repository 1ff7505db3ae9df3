"""The writer of a context: the log hands it every commit that is made there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.log import WRITER, Log, Writer
from holdfast.testing import FakeClock

COMMIT = ProposedCommit((StreamWrite("team/t", (NewEvent("noted", b"null"),)),))


class Elsewhere:
    """Sends everything to another stream."""

    def prepare(self, proposed: ProposedCommit, log: Log) -> ProposedCommit:
        return ProposedCommit((StreamWrite("team/other", proposed.writes[0].new_events),))


@pytest.fixture
def log() -> Iterator[Log]:
    clock = FakeClock()
    made = Log(MemoryBackend(clock=clock), clock=clock, actor="tester")
    token = WRITER.set(cast("Writer", Elsewhere()))
    yield made
    WRITER.reset(token)
    made.close()


def commit(log: Log) -> Any:
    return log.commit(COMMIT)


def submit(log: Log) -> Any:
    return log.wait(log.submit(COMMIT))


def submit_all(log: Log) -> Any:
    return [log.wait(request) for request in log.submit_all([COMMIT])]


@pytest.mark.parametrize("way", [commit, submit, submit_all])
def test_a_commit_passes_the_writer_of_its_context_whichever_way_it_takes(log: Log, way: Any):
    way(log)
    assert log._backend.streams(limit=10) == ["team/other"]
