"""Messages are taken once, also when the answer to the taking is lost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.core import codec, inbox
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import REMOVED
from holdfast.core.inbox import Inbox
from holdfast.core.log import Log
from holdfast.core.transaction import PendingCommit
from holdfast.errors import ConflictError, LeaseLostError, UnavailableError, UsageError
from holdfast.testing import FakeClock, FaultyBackend

TTL_S = 30.0


class Owner:
    """A coordinator with a lease and an inbox, on a store that loses answers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.plan: dict[int, Any] = {}
        self.backend = FaultyBackend(MemoryBackend(clock=self.clock), self.plan)
        self.log = Log(self.backend, clock=self.clock, actor="ada")
        self.inbox = Inbox(self.log, "boss")
        self.lease = self.acquire("one")

    def acquire(self, owner: str) -> Any:
        return self.backend.leases.acquire("boss", owner, ttl_s=TTL_S)

    def send(self, *values: object) -> None:
        for value in values:
            inbox.send(self.log, "boss", "steer", value)

    def take(self, **options: Any) -> list[Any]:
        return [message.value for message in self.inbox.take(self.lease, **options)]

    def lose(self, when: str, **options: Any) -> None:
        self.plan[self.backend.commits + 1] = when
        with pytest.raises(UnavailableError):
            self.take(**options)


def test_what_is_waiting_is_taken_once() -> None:
    owner = Owner()
    assert owner.take() == []
    owner.send(1, 2, 3)
    assert owner.take(wants=lambda message: message.value != 2) == [1, 3]
    assert owner.take() == [2]
    owner.send(4)
    assert owner.take() == [4]
    assert owner.take() == []
    assert list(Inbox(owner.log, "boss").waiting()) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_taken_without_an_answer_is_returned_by_the_next_call(when: str) -> None:
    owner = Owner()
    owner.send(1, 2)
    owner.lose(when)
    owner.send(3)
    assert owner.take() == [1, 2]
    assert owner.take() == [3]
    assert owner.take() == []
    records = owner.log.records("inbox/boss")
    assert sum(record.type == inbox.TAKEN for record in records) == 2


@pytest.mark.parametrize(("when", "first", "second"), [("before", [], [1]), ("after", [1], [])])
def test_one_of_two_owners_gets_what_was_taken_without_an_answer(
    when: str, first: list[int], second: list[int]
) -> None:
    """If it was taken, the old owner may still learn of it; else it is the next one's alone."""
    owner = Owner()
    owner.send(1)
    owner.lose(when)
    owner.clock.advance(2 * TTL_S)
    successor = Inbox(owner.log, "boss")
    lease = owner.acquire("two")
    assert [message.value for message in successor.take(lease)] == second
    if first:
        assert owner.take() == first
    owner.send(2)
    with pytest.raises(LeaseLostError):
        owner.take()
    assert [message.value for message in successor.take(lease)] == [2]


def test_what_came_for_an_owner_that_was_removed_is_not_taken_by_its_next_life() -> None:
    owner = Owner()
    owner.send(1)
    owner.lose("before")
    removed = StreamWrite("inbox/boss", (NewEvent(REMOVED, codec.encode_plain({})),))
    owner.log.commit(ProposedCommit((removed,)))
    assert owner.take() == []
    owner.send(2)
    assert owner.take() == [2]


def take_in(owner: Owner, *revisions: int, key: str | None = None, lease: Any = None) -> None:
    with PendingCommit(owner.log, key=key, lease=lease) as tx:
        for revision in revisions:
            inbox.take_in(tx, "boss", revision, owner.lease)


def waiting(owner: Owner) -> list[int]:
    owner.inbox.look()
    return [message.revision for message in owner.inbox.waiting()]


def test_a_commit_takes_what_it_uses_and_no_other_commit_does() -> None:
    owner = Owner()
    owner.send("a", "b", "c")
    take_in(owner, 1, 1, 3)
    assert waiting(owner) == [2]
    with pytest.raises(ConflictError):
        take_in(owner, 2, 3)
    assert waiting(owner) == [2]
    take_in(owner, 2, key="once")
    take_in(owner, 2, key="once")
    assert waiting(owner) == []


def test_a_commit_takes_under_the_lease_of_the_owner_alone() -> None:
    owner = Owner()
    owner.send("a")
    other = owner.backend.leases.acquire("other", "one", ttl_s=TTL_S)
    with pytest.raises(UsageError, match="leave out lease="):
        take_in(owner, 1, lease=other)
    owner.clock.advance(2 * TTL_S)
    owner.acquire("two")
    with pytest.raises(LeaseLostError):
        take_in(owner, 1, lease=owner.lease)
    assert waiting(owner) == [1]
