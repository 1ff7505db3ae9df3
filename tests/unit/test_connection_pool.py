"""Calls with a deadline: when the last attempt is made."""

from __future__ import annotations

import pytest

from holdfast.backends import connection_pool
from holdfast.backends.connection_pool import ConnectionPool, DeadlineError, unavailable
from holdfast.errors import CorruptError, HoldfastError, UnavailableError


class URL:
    timeout_s = 1.0
    pool = 1


class Connection:
    deadline = returned = 0.0
    process = None

    def close(self) -> None:
        return


class Refused(Exception):
    """A server's answer: not now."""


class Slow(ConnectionPool[Connection]):
    """A server that takes 0.3 s to say that it cannot now, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(URL())
        self.now = 0.0
        monkeypatch.setattr(connection_pool, "monotonic", lambda: self.now)

    def connect(self, deadline: float) -> Connection:
        return Connection()

    def is_lost(self, exc: BaseException) -> bool:
        return isinstance(exc, DeadlineError)

    def may_retry(self, exc: BaseException) -> bool:
        return isinstance(exc, Refused)

    is_answer = may_retry

    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError:
        return unavailable("here", type(exc).__name__, outcome_known=outcome_known)

    def refuse(self, connection: Connection) -> None:
        self.now += 0.35
        raise DeadlineError if self.now > 1.0 else Refused


def test_a_refusal_is_not_made_unknown_by_an_attempt_that_has_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T12: an error says whether the outcome is known, and here it is."""
    slow = Slow(monkeypatch)
    with pytest.raises(UnavailableError, match="Refused") as caught:
        slow.call(slow.refuse, writes=True)
    assert caught.value.outcome_known


class Damaged(Slow):
    """Its connection breaks while the first attempt is answered; then damage is found."""

    def may_retry(self, exc: BaseException) -> bool:
        return isinstance(exc, DeadlineError)

    def translate(self, exc: Exception, *, outcome_known: bool) -> HoldfastError:
        return CorruptError("a key is damaged", where="here")

    def refuse(self, connection: Connection) -> None:
        self.now += 0.01
        raise DeadlineError if self.now < 0.02 else Refused


def test_damage_that_a_second_attempt_finds_does_not_say_that_the_first_was_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = Damaged(monkeypatch)
    with pytest.raises(UnavailableError, match="damaged; an earlier attempt may") as caught:
        damaged.call(damaged.refuse, writes=True)
    assert not caught.value.outcome_known
    assert isinstance(caught.value.__cause__, CorruptError)
    damaged.now = 0.0
    with pytest.raises(CorruptError, match="damaged"):
        damaged.call(damaged.refuse)
