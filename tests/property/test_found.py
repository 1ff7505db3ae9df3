"""What the lock-step machine (T11) found, in its shortest form."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Settings
from holdfast.testing import FakeClock


def test_a_key_of_one_scope_is_refused_for_a_commit_over_two() -> None:
    """Guarantee 3: the same key with another change is a UsageError, whichever scope has it."""
    with holdfast.open("memory:", settings=Settings(clock=FakeClock())) as store:
        a, b = store.team("a"), store.team("b")
        b.set("n", 1)
        a.set("n", 1, key="k")
        for first, second in ((a, b), (b, a)):
            with (
                pytest.raises(holdfast.UsageError, match="another change"),
                store.commit(key="k") as tx,
            ):
                tx.scope(first).set("n", 2)
                tx.scope(second).set("n", 2)
        assert (a.revision, b.revision) == (1, 1)


def test_the_global_scope_is_not_forked() -> None:
    """There is one: a second would be a stream that no scope can be made of."""
    with holdfast.open("memory:", settings=Settings(clock=FakeClock())) as store:
        store.global_().set("n", 1)
        with pytest.raises(holdfast.UsageError, match="one global scope"):
            store.global_().fork("f")
        assert [scope.name for scope in store.scopes()] == ["global"]
