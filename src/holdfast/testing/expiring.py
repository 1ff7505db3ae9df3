"""Clauses 18, 30, 36 and 37: streams that end by themselves, and streams kept past their end."""

from __future__ import annotations

import pytest

from holdfast.backends.protocol import (
    START,
    Backend,
    Fence,
    KeepsEnded,
    Mark,
    Receipt,
    Refusal,
)
from holdfast.errors import ExpiredError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import Trial, accepted, head_of, refused, write

TTL_S = 60


class ExpiryClauses(Trial):
    """A stream with an end can be written until then, and not after it."""

    def test_clause_18_the_clock_is_the_one_that_time_passes_on(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        before = backend.now_us("a")
        self.pass_time(clock, TTL_S)
        assert backend.now_us("a") - before >= TTL_S * 1_000_000

    def test_clause_18_a_stream_is_written_until_its_end_and_not_from_it_on(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        accepted(backend, build.commit(build.append("a", key="k", expires_us=ends)))
        self.pass_time(clock, TTL_S - 10)
        behind = head_of(backend, "a")
        accepted(backend, build.commit(build.append("a", behind=behind, expires_us=ends)))
        self.pass_time(clock, 11)
        behind = head_of(backend, "a")
        late = build.commit(
            build.append("a", behind=behind, expires_us=ends), marks=[Mark("i", "m")]
        )
        refusal = refused(backend, late)
        assert (refusal.reason, refusal.stream) == ("expired", "a")
        assert head_of(backend, "a").revision == 2
        assert backend.marks.list() == []

    def test_clause_18_an_end_in_the_past_begins_nothing(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        self.pass_time(clock, TTL_S + 1)
        assert refused(backend, build.commit(build.append("a", expires_us=ends))).reason == (
            "expired"
        )
        assert (backend.streams(), backend.heads(["a"])) == ([], [None])

    def test_clause_18_expired_comes_before_every_other_reason(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        first = build.append("a", key="k", expires_us=ends)
        accepted(backend, build.commit(first))
        self.pass_time(clock, TTL_S + 1)
        nobody = Fence("l", "w1", 1)
        again = build.append("a", key="k", expires_us=ends)
        refusal = refused(backend, build.commit(again, fence=nobody, reads=[("b", 7)]))
        assert refusal.reason == "expired"

    def test_clause_18_one_end_refuses_the_whole_commit_and_no_neighbour(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends, later = _end(backend), _end(backend, TTL_S * 10)
        accepted(backend, build.commit(build.append("a", expires_us=ends)))
        self.pass_time(clock, TTL_S + 1)
        behind = head_of(backend, "a")
        both = build.commit(
            build.append("b", expires_us=later), build.append("a", behind=behind, expires_us=ends)
        )
        outcomes = backend.commit(
            [build.commit(build.append("c")), both, build.commit(build.append("d"))]
        )
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Receipt, Refusal, Receipt]
        assert backend.streams() == ["a", "c", "d"]

    def test_clause_18_what_has_ended_keeps_its_name_and_head(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        append = build.append("a", b"1", b"2", key="k", checkpoint="p", expires_us=ends)
        accepted(backend, build.commit(append))
        write(backend, build, "b")
        before = head_of(backend, "a")
        records = backend.read("a")
        self.pass_time(clock, TTL_S + 1)
        assert backend.streams() == ["a", "b"]
        assert head_of(backend, "a") == before
        assert before.expires_us in (0, ends)
        try:
            assert backend.read("a") == records
        except ExpiredError as gone:
            found = gone.stream
        else:
            found = "a"
        assert found == "a"
        of_a = [record for record in backend.read_all() if record.stream == "a"]
        assert of_a in ([], records)
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_18_what_has_ended_hides_nothing_behind_it(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        """A reader of everything stops at an empty page, so only the end may be an empty page."""
        ends = _end(backend)
        write(backend, build, "b")
        accepted(backend, build.commit(build.append("a", b"1", b"2", expires_us=ends)))
        behind = head_of(backend, "a")
        accepted(backend, build.commit(build.append("a", behind=behind, expires_us=ends)))
        write(backend, build, "c")
        self.pass_time(clock, TTL_S + 1)
        seen: list[str] = []
        after = START
        while page := backend.read_all(after=after, limit=1):
            seen += [record.stream for record in page]
            after = page[-1].position
        assert [stream for stream in seen if stream != "a"] == ["b", "c"]

    def test_clause_18_a_longer_promise_for_an_object_stays(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        ends = _end(backend)
        backend.objects.put("blob", "ab", b"for a while", expires_us=ends)
        backend.objects.put("blob", "cd", b"for a while", expires_us=ends)
        backend.objects.put("blob", "cd", b"for good")
        backend.objects.put("blob", "cd", b"for good", expires_us=ends)
        assert backend.objects.get("blob", "ab") == b"for a while"
        self.pass_time(clock, TTL_S + 1)
        assert backend.objects.get("blob", "cd") == b"for good"
        assert "cd" in backend.objects.names("blob")

    def test_clause_36_an_end_that_moved_holds_for_all_that_the_stream_has(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        later = ends + (TTL_S - 10) * 1_000_000
        first = build.append("a", b"1", b"2", key="k", checkpoint="p", expires_us=ends)
        accepted(backend, build.commit(first))
        self.pass_time(clock, TTL_S - 10)
        behind = head_of(backend, "a")
        moves = build.append("a", behind=behind, expires_us=ends, renews_us=later)
        accepted(backend, build.commit(moves))
        self.pass_time(clock, 20)  # the first end has come
        assert len(backend.read("a")) == 3
        assert [record.stream for record in backend.read_all()] == ["a", "a", "a"]
        assert [found.revision for found in backend.find("a", key="k")] == [1]
        assert [found.revision for found in backend.find("a", checkpoint="p")] == [2]
        assert head_of(backend, "a").expires_us in (0, later)
        behind = head_of(backend, "a")
        accepted(backend, build.commit(build.append("a", behind=behind, expires_us=later)))
        self.pass_time(clock, TTL_S)
        behind = head_of(backend, "a")
        late = build.append("a", behind=behind, expires_us=later, renews_us=later * 2)
        assert refused(backend, build.commit(late)).reason == "expired"
        assert head_of(backend, "a").revision == 4
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_36_what_is_refused_moves_no_end(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        accepted(backend, build.commit(build.append("a", expires_us=ends)))
        accepted(backend, build.commit(build.append("b", expires_us=ends)))
        head, other = head_of(backend, "a"), head_of(backend, "b")
        ahead = build.append("a", behind=other, expires_us=ends, renews_us=ends * 2)
        read = build.commit(ahead, reads=[("b", 7)])
        assert refused(backend, read).reason == "conflict"
        assert head_of(backend, "a") == head
        self.pass_time(clock, TTL_S + 1)
        late = build.append("a", behind=head, expires_us=ends)
        assert refused(backend, build.commit(late)).reason == "expired"

    def test_clause_37_a_commit_stands_on_no_stream_that_has_ended(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        ends = _end(backend)
        accepted(backend, build.commit(build.append("a", expires_us=ends)))
        reads, read_ends = [("a", 1)], [("a", ends)]
        first = build.commit(build.append("b"), reads=reads, read_ends=read_ends)
        accepted(backend, first)
        self.pass_time(clock, TTL_S + 1)
        behind = head_of(backend, "b")
        append = build.append("b", behind=behind)
        marks = [Mark("i", "m")]
        late = build.commit(append, marks=marks, reads=reads, read_ends=read_ends)
        neighbour = build.commit(build.append("c"))
        outcomes = backend.commit([late, neighbour])
        assert isinstance(outcomes[0], Refusal)
        refusal = outcomes[0]
        assert (refusal.reason, refusal.stream, refusal.expected) == ("expired", "a", 1)
        assert isinstance(outcomes[1], Receipt)
        assert head_of(backend, "b").revision == 1
        assert backend.marks.list() == []
        silent = build.commit(marks=marks, reads=reads, read_ends=read_ends)
        assert refused(backend, silent).reason == "expired"
        never = build.commit(build.append("d"), reads=[("x", 0)], read_ends=[("x", ends)])
        assert refused(backend, never).reason == "expired"

    def test_clause_30_what_is_kept_is_there_past_its_end(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, KeepsEnded):
            return
        ends = _end(backend)
        append = build.append("a", b"1", b"2", key="k", checkpoint="p", expires_us=ends)
        accepted(backend, build.commit(append))
        assert not backend.keep("b", True)  # there is no such stream
        for _ in range(2):
            assert backend.keep("a", True)
            assert list(backend.kept()) == ["a"]
        behind = head_of(backend, "a")
        accepted(backend, build.commit(build.append("a", behind=behind, expires_us=ends)))
        records, before = backend.read("a"), head_of(backend, "a")
        self.pass_time(clock, TTL_S + 1)
        assert (backend.read("a"), head_of(backend, "a")) == (records, before)
        assert [found.revision for found in backend.find("a", key="k")] == [1]
        late = build.commit(build.append("a", behind=before, expires_us=ends))
        assert refused(backend, late).reason == "expired"
        assert list(backend.inspect.verify(read_all=True)) == []
        for _ in range(2):
            backend.keep("a", False)
            assert list(backend.kept()) == []
        # A stream that is no longer kept ends, at once or soon, and then for every kind of read.
        is_there = backend.keep("a", True)
        backend.keep("a", False)
        if is_there:
            assert backend.read("a") == records
        else:
            assert backend.find("a", key="k") == []
            with pytest.raises(ExpiredError):
                backend.read("a")
        assert head_of(backend, "a") == before
        assert list(backend.inspect.verify(read_all=True)) == []


def _end(backend: Backend, ttl_s: int = TTL_S) -> int:
    return backend.now_us("a") // 1000 * 1000 + ttl_s * 1_000_000
