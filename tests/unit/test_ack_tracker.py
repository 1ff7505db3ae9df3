"""What a handle was told is durable (guarantee 5), to be looked for when another server answers."""

from __future__ import annotations

from holdfast.backends.connection_pool import AckTracker
from holdfast.backends.protocol import Commit, Refusal
from holdfast.testing import RecordBuilder

STREAM = "conversation/c"


def commit() -> Commit:
    return RecordBuilder(1).commit(RecordBuilder(1).append(STREAM, b"1"))


def test_a_commit_that_is_there_already_was_acknowledged_too() -> None:
    """Found by `t2-redis-everysec-power`: the answer to a key that was used before is "done"."""
    tracker = AckTracker("here")
    tracker.note([commit()], [Refusal("duplicate", STREAM, 3, revision=2)])
    assert tracker.acknowledged() == (0, [(STREAM, (2, None))])


def test_what_is_known_better_stays() -> None:
    tracker = AckTracker("here")
    tracker._remember(STREAM, 2, b"link")  # pyright: ignore[reportPrivateUsage]
    tracker.note([commit()], [Refusal("duplicate", STREAM, 3, revision=2)])
    tracker.note([commit()], [Refusal("duplicate", STREAM, 3, revision=1)])
    assert tracker.acknowledged() == (0, [(STREAM, (2, b"link"))])


def test_other_refusals_acknowledge_nothing() -> None:
    tracker = AckTracker("here")
    tracker.note([commit()], [Refusal("fenced", "lease")])
    assert tracker.acknowledged() == (0, [])
