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
    witness = AckTracker("here")
    witness.note([commit()], [Refusal("duplicate", STREAM, 3, revision=2)])
    assert witness.told() == (0, [(STREAM, (2, None))])


def test_what_is_known_better_stays() -> None:
    witness = AckTracker("here")
    witness._remember(STREAM, 2, b"link")  # pyright: ignore[reportPrivateUsage]
    witness.note([commit()], [Refusal("duplicate", STREAM, 3, revision=2)])
    witness.note([commit()], [Refusal("duplicate", STREAM, 3, revision=1)])
    assert witness.told() == (0, [(STREAM, (2, b"link"))])


def test_other_refusals_acknowledge_nothing() -> None:
    witness = AckTracker("here")
    witness.note([commit()], [Refusal("fenced", "lease")])
    assert witness.told() == (0, [])
