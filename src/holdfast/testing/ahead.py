"""Clause 22: times that are ahead of the backend's own clock."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.backends.protocol import AHEAD_US, Backend, Mark, Receipt, Refusal
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import Trial, accepted, head_of, write

FAR_US = 10 * 365 * 86_400_000_000


class AheadClauses(Trial):
    """A backend with a clock refuses times ahead of it; one without accepts any time."""

    has_own_clock = False
    """Whether the backend has a clock independent of its writers, and must refuse by it."""

    def test_clause_22_a_time_within_the_bound_is_accepted(self, backend: Backend) -> None:
        build = RecordBuilder(backend.now_us("a") + AHEAD_US - 30_000_000)
        time = build.time
        accepted(backend, build.commit(build.append("a")))
        assert head_of(backend, "a").time == time

    def test_clause_22_a_time_that_is_ahead_is_refused_with_the_clock_s(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "b")
        early = RecordBuilder(backend.now_us("a") + FAR_US)
        commits = [
            early.commit(early.append("a"), marks=[Mark("i", "m")]),
            early.commit(early.append("b", behind=head_of(backend, "b"))),
            build.commit(build.append("c")),
        ]
        *ahead, last = backend.commit(commits)
        assert isinstance(last, Receipt)
        if not self.has_own_clock:
            assert [type(one) for one in ahead] == [Receipt, Receipt]
            return
        for outcome, stream in zip(ahead, ("a", "b"), strict=True):
            assert isinstance(outcome, Refusal), f"expected a refusal, found {outcome}"
            assert (outcome.reason, outcome.stream) == ("ahead", stream)
            assert abs(outcome.now_us - backend.now_us("a")) < AHEAD_US
        assert (backend.streams(), backend.marks.list()) == (["b", "c"], [])
        assert head_of(backend, "b").revision == 1
        told = RecordBuilder(backend.now_us("a"))
        accepted(backend, told.commit(told.append("a")))

    def test_clause_22_a_copy_keeps_its_time_and_its_stream_goes_on(self, backend: Backend) -> None:
        """A stream whose time is ahead is copied unchanged, and can be written to."""
        build = RecordBuilder(backend.now_us("a") + FAR_US)
        time = build.time
        copied = replace(build.commit(build.append("a")), is_copy=True)
        accepted(backend, copied)
        for _ in range(2):
            build.time = time
            accepted(backend, build.commit(build.append("a", behind=head_of(backend, "a"))))
        assert [record.time for record in backend.read("a")] == [time] * 3

    def test_clause_22_a_stream_that_is_ahead_takes_no_other_with_it(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "b")
        early = RecordBuilder(backend.now_us("a") + FAR_US)
        time = early.time
        accepted(backend, replace(early.commit(early.append("a")), is_copy=True))
        early.time = time
        together = early.commit(
            early.append("a", behind=head_of(backend, "a")),
            early.append("b", behind=head_of(backend, "b")),
        )
        [outcome] = backend.commit([together])
        if not self.has_own_clock:
            assert isinstance(outcome, Receipt)
            return
        assert isinstance(outcome, Refusal), f"expected a refusal, found {outcome}"
        assert (outcome.reason, outcome.stream) == ("ahead", "b")
        assert [head_of(backend, name).revision for name in ("a", "b")] == [1, 1]
        early.time = time
        fork = early.append("f", behind=backend.read("a")[0], fork=True)
        [outcome] = backend.commit([early.commit(fork)])
        assert isinstance(outcome, Refusal), f"expected a refusal, found {outcome}"
        assert (outcome.reason, outcome.stream) == ("ahead", "f")
