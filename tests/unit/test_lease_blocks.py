"""What is committed in the block of a lease carries its fence: queued or waited for."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import LeaseLostError, Store


@pytest.fixture
def hf():
    with holdfast.open("memory:") as store:
        yield store


def test_a_commit_that_names_no_lease_is_fenced_by_the_blocks(hf: Store) -> None:
    team = hf.team("t")
    other = hf.workers.lease("other")
    with hf.workers.lease("job") as lease:
        hf.workers.release(lease)
        with pytest.raises(LeaseLostError, match='"job"'):
            team.set("n", 1)
        with hf.commit(waits=False) as queued:
            queued.scope(team).set("n", 1)
        with pytest.raises(LeaseLostError, match='"job"'):
            queued.wait()
        with hf.commit(lease=other) as tx:  # names another one
            tx.scope(team).set("n", 2)
        with hf.commit(waits=False, lease=other) as queued:
            queued.scope(team).set("m", 2)
        queued.wait()
    assert team.state == {"n": 2, "m": 2}


def test_a_lease_compares_by_what_it_is(hf: Store) -> None:
    lease = hf.workers.lease("job")
    holder = hf._log.leases.holder("job")
    assert lease == holder
    assert holder == lease
    assert not lease != holder  # noqa: SIM202
    assert len({lease, lease}) == 1
    assert lease != "job"
    assert "job" in repr(lease)
