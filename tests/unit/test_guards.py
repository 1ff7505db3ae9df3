"""What a commit has read, compared by the log: alone, and beside the neighbours of its batch."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Commit, Fence, Mark
from holdfast.core.commit import NewEvent, ProposedCommit, ReadGuard, StreamWrite, changed
from holdfast.core.commit_queue import Request
from holdfast.core.log import Log
from holdfast.core.observe import Observed
from holdfast.core.tree import Map, changed_places, freeze, missing_ops, reach, set_op
from holdfast.errors import ConflictError, ExpiredError, LeaseLostError
from holdfast.testing import FakeClock

LOST = Fence("boss", "nobody", 1)
NOTED = NewEvent("test.noted", b"null")


class SlyBackend(MemoryBackend):
    """Lets another writer in, once, right before a commit."""

    other: Log | None = None
    work: ProposedCommit | None = None

    def commit(self, commits: list[Commit]):  # type: ignore[override]
        if self.work is not None and self.other is not None:
            work, self.work = self.work, None
            self.other.commit(work)
        return super().commit(commits)


@pytest.fixture
def backend() -> SlyBackend:
    return SlyBackend(clock=FakeClock())


@pytest.fixture
def log(backend: SlyBackend) -> Log:
    log = Log(backend, clock=FakeClock(), actor="w")
    log.commit(change("a", n=1, m=1))
    backend.other = Log(backend, clock=FakeClock(), actor="other")
    return log


def change(stream: str, fence: Fence | None = None, **values: object) -> ProposedCommit:
    ops = [set_op(key, value) for key, value in values.items()]
    return ProposedCommit((StreamWrite(stream, (changed(ops),)),), fence=fence)


def guarded(log: Log, read: str, write: StreamWrite, *paths: tuple[str, ...]) -> Request:
    """Returns the commit of a write by one who has read these paths of a stream, just now."""
    guard = ReadGuard(read, log.newest(read), paths or (("n",),))
    return Request(ProposedCommit((write,), guards=(guard,)))


def sets(stream: str, key: str, value: object) -> StreamWrite:
    return StreamWrite(stream, (changed([set_op(key, value)]),))


def test_a_neighbour_that_wrote_elsewhere_in_the_stream_is_followed_at_once(log: Log) -> None:
    one, two = guarded(log, "a", sets("a", "x", 1)), guarded(log, "a", sets("a", "y", 1))
    log._run([one, two])
    assert (one.outcome().revision, two.outcome().revision) == (2, 3)
    assert log.newest("a").root == {"n": 1, "m": 1, "x": 1, "y": 1}


def test_a_neighbour_that_changed_what_was_read_is_waited_for(log: Log) -> None:
    lost, stands = Request(change("a", LOST, n=2)), guarded(log, "a", sets("a", "x", 1))
    log._run([lost, stands])
    with pytest.raises(LeaseLostError):
        lost.outcome()
    assert stands.outcome().revision == 2  # nobody changed what it had read
    first, refused = Request(change("a", n=2)), guarded(log, "a", sets("a", "x", 2))
    log._run([first, refused])
    with pytest.raises(ConflictError) as caught:
        refused.outcome()
    assert caught.value.paths == (("n",),)


def test_what_is_only_read_is_not_compared_with_what_may_never_be_stored(
    log: Log, backend: SlyBackend
) -> None:
    """Another writer's event is found at the very revision that a neighbour would have made.

    A guard of a revision says nothing of the link. Were the commit prepared on the neighbour's
    state, it would pass, having read a value that is another one by then.
    """
    refused = Request(change("a", LOST, m=2))
    reader = guarded(log, "a", sets("b", "n", 1))
    backend.work = change("a", n=5)
    log._run([refused, reader])
    with pytest.raises(ConflictError) as caught:
        reader.outcome()
    assert (caught.value.paths, caught.value.actual) == ((("n",),), 2)
    assert log.head("b") is None


def test_a_reader_is_prepared_again_if_something_else_was_written(
    log: Log, backend: SlyBackend
) -> None:
    reader = guarded(log, "a", sets("b", "n", 1))
    backend.work = change("a", m=5)
    log._run([reader])
    assert reader.outcome().revision == 1
    new = guarded(log, "absent", sets("b", "n", 2), ())
    backend.work = change("absent", m=5)
    log._run([new])
    with pytest.raises(ConflictError) as caught:
        new.outcome()
    assert (caught.value.expected, caught.value.actual) == (0, 1)


def test_marks_alone_are_prepared_again_also_when_somebody_observes(
    log: Log, backend: SlyBackend
) -> None:
    seen: list[Observed] = []
    log.observe(seen.append, None)
    guard = ReadGuard("a", log.newest("a"), (("n",),))
    backend.work = change("a", m=5)
    log.commit(ProposedCommit((), marks=(Mark("i", "m"),), guards=(guard,)))
    assert backend.marks.list() == [Mark("i", "m")]
    assert [(one.kind, one.name) for one in seen] == [("read", "a"), ("retry", ""), ("commit", "")]


def test_events_that_keep_the_state_are_guarded_as_well(log: Log) -> None:
    """Beside a neighbour that was not folded, and by a process that has no fold of the stream."""
    log._states.clear()
    note = StreamWrite("a", (NOTED,))
    guard = ReadGuard("a", log.newest("a"), (("n",),))
    log._states.clear()
    reader = Request(ProposedCommit((note,), guards=(guard,)))
    log._run([Request(ProposedCommit((note,))), reader])
    assert reader.outcome().revision == 3
    assert log.newest("a").root == {"n": 1, "m": 1}


def test_a_conflict_shows_some_of_many_places(log: Log) -> None:
    late = guarded(log, "a", sets("a", "x", 1), ())
    log.commit(change("a", **{f"k{number}": number for number in range(9)}))
    log._run([late])
    with pytest.raises(ConflictError, match=r"state\['k3'\] and 5 more places: expected") as caught:
        late.outcome()
    assert len(caught.value.paths) == 9


def test_places_that_differ() -> None:
    old: Map = freeze({"a": {"x": 1, "y": [1, 2]}, "b": 1})
    new: Map = freeze({"a": {"x": 1, "y": [1, 3]}, "b": 1})
    assert changed_places(old, new, ("a",)) == [("a", "y", 1)]
    assert changed_places(old, new, ("a", "x")) == changed_places(old, new, ("c",)) == []
    assert changed_places(old, freeze({}), ("b",)) == [("b",)]
    turned: Map = freeze({"b": 1, "a": {"x": 1, "y": [1, 2]}})
    assert changed_places(old, turned, ()) == [()]
    assert changed_places(freeze({"n": 1}), freeze({"n": 1.0}), ("n",)) == [("n",)]


def test_reach_and_missing_ops() -> None:
    state: Map = freeze({"a": {"x": [1]}, "b": 1})
    assert reach(state, ("a", "x", 0)) == ("a", "x", 0)
    assert reach(state, ("a", "x", 5, "z")) == ("a", "x")
    assert reach(state, ("none", "x")) == reach(state, ()) == ()
    ops = [set_op("b", 2), set_op("c", {}), set_op("c", 3), set_op(("c", "d"), 4)]
    assert missing_ops(state, ops) == (ops[1], ops[3])


def test_what_was_read_of_a_scope_that_ended_meanwhile_guards_no_commit() -> None:
    """Its events are as they were, and nobody may read them any more."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        short, team = hf.conversation("short", ttl_s=60), hf.team("t")
        short.set("budget", 5)
        with hf.commit() as tx:
            team_budget = tx.scope(short).get("budget")
            clock.advance(59)
            tx.scope(team).set("budget", team_budget)
        with pytest.raises(ExpiredError, match="conversation/short"), hf.commit() as tx:
            team_budget = tx.scope(short).get("budget")
            clock.advance(2)
            tx.scope(team).set("budget", team_budget + 1)
        assert (team.get("budget"), team.revision) == (5, 1)
