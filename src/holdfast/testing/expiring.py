"""Clauses 18 and 30: streams that end by themselves, and those that are kept all the same."""

from __future__ import annotations

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
    """What has an end is written until then, and not from then on."""

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
        """Whoever reads everything goes on until there are no records: that must be the end."""
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
        assert list(backend.inspect.verify(read_all=True)) == []


def _end(backend: Backend, ttl_s: int = TTL_S) -> int:
    return backend.now_us("a") // 1000 * 1000 + ttl_s * 1_000_000
