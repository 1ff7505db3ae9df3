"""Clauses 6, 16, 17, 19 and 21: leases and fences, marks and claims, and the lists of both."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
from msgspec.structs import replace

from holdfast.backends.protocol import (
    Backend,
    Cleared,
    Fence,
    Lease,
    Mark,
    MarkQuery,
    Refusal,
    find_marks,
    renew_many,
)
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import HOSTILE_NAMES, Trial, accepted, refused, write


class LeaseClauses(Trial):
    """Who may write what, for how long."""

    def test_clause_06_a_fence_lets_its_owner_through(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        lease = acquired(backend, "l", "w1")
        append = build.append("a", key="k")
        accepted(backend, build.commit(append, marks=[Mark("i", "m")], fence=fence_of(lease)))
        self.pass_time(clock, 6)
        lease = backend.leases.renew(lease, ttl_s=10)
        assert lease is not None
        self.pass_time(clock, 6)
        commit = build.commit(marks=[Cleared("i", "m")], fence=fence_of(lease))
        accepted(backend, commit)
        assert backend.marks.list() == []

    @pytest.mark.parametrize("how", ["expired", "released", "passed on", "owner", "epoch", "name"])
    def test_clause_06_a_fence_refuses_everybody_else(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder, how: str
    ) -> None:
        lease = acquired(backend, "l", "w1")
        fence = fence_of(lease)
        if how in ("expired", "passed on"):
            self.pass_time(clock, 11)
        if how == "passed on":
            acquired(backend, "l", "w2")
        elif how == "released":
            backend.leases.release(lease)
        elif how == "owner":
            fence = Fence("l", "w2", lease.epoch)
        elif how == "epoch":
            fence = Fence("l", "w1", lease.epoch + 1)
        elif how == "name":
            fence = Fence("l2", "w1", lease.epoch)
        commit = build.commit(build.append("a"), marks=[Mark("i", "m")], fence=fence)
        refusal = refused(backend, commit)
        assert (refusal.reason, refusal.stream) == ("fenced", fence.name)
        assert backend.streams() == []
        refusal = refused(backend, build.commit(marks=[Mark("i", "m")], fence=fence))
        assert refusal.reason == "fenced"

    def test_clause_06_a_fenced_commit_leaves_its_neighbours_alone(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        lease = acquired(backend, "l", "w1")
        late = Fence("l", "w1", lease.epoch - 1)
        commits = [build.commit(build.append("a"), fence=fence_of(lease))]
        commits.append(build.commit(build.append("b"), fence=late))
        commits.append(build.commit(build.append("c")))
        outcomes = backend.commit(commits)
        assert [isinstance(outcome, Refusal) for outcome in outcomes] == [False, True, False]
        assert backend.streams() == ["a", "c"]

    def test_clause_16_one_owner_holds_a_lease(self, backend: Backend) -> None:
        assert backend.leases.holder("l") is None
        lease = acquired(backend, "l", "w1")
        assert (lease.name, lease.owner) == ("l", "w1")
        assert lease.epoch > 0
        assert backend.leases.holder("l") == lease
        assert backend.leases.acquire("l", "w2", ttl_s=10) is None
        assert backend.leases.holder("l") == lease
        assert acquired(backend, "l2", "w2").owner == "w2"

    def test_clause_16_the_holder_acquires_again_in_the_same_epoch(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        lease = acquired(backend, "l", "w1")
        self.pass_time(clock, 5)
        again = acquired(backend, "l", "w1")
        assert again.epoch == lease.epoch
        assert again.expires_us > lease.expires_us
        self.pass_time(clock, 7)
        assert backend.leases.holder("l") == again

    def test_clause_16_an_expired_lease_passes_on_in_a_higher_epoch(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        lease = acquired(backend, "l", "w1")
        self.pass_time(clock, 9.5)
        assert backend.leases.acquire("l", "w2", ttl_s=10) is None
        self.pass_time(clock, 1)
        assert backend.leases.holder("l") is None
        assert backend.leases.renew(lease, ttl_s=10) is None
        second = acquired(backend, "l", "w2")
        assert second.epoch > lease.epoch
        assert backend.leases.renew(lease, ttl_s=10) is None
        backend.leases.release(lease)
        assert backend.leases.holder("l") == second

    def test_clause_16_a_renewed_lease_ends_later(self, backend: Backend, clock: FakeClock) -> None:
        lease = acquired(backend, "l", "w1")
        for _ in range(3):
            self.pass_time(clock, 6)
            renewed = backend.leases.renew(lease, ttl_s=10)
            assert renewed is not None
            assert (renewed.owner, renewed.epoch) == (lease.owner, lease.epoch)
            assert renewed.expires_us > lease.expires_us
            assert backend.leases.holder("l") == renewed
            lease = renewed
        assert backend.leases.renew(Lease("l", "w2", lease.epoch, 0), ttl_s=10) is None
        assert backend.leases.renew(Lease("l", "w1", lease.epoch + 1, 0), ttl_s=10) is None
        assert backend.leases.renew(Lease("l2", "w1", lease.epoch, 0), ttl_s=10) is None
        self.pass_time(clock, 11)
        assert backend.leases.holder("l") is None

    def test_clause_16_a_released_lease_is_free_at_once(self, backend: Backend) -> None:
        lease = acquired(backend, "l", "w1")
        backend.leases.release(lease)
        backend.leases.release(lease)
        assert backend.leases.holder("l") is None
        assert backend.leases.renew(lease, ttl_s=10) is None
        second = acquired(backend, "l", "w2")
        assert second.epoch > lease.epoch
        backend.leases.release(lease)
        backend.leases.release(Lease("l", "w2", second.epoch - 1, second.expires_us))
        assert backend.leases.holder("l") == second

    @pytest.mark.parametrize("how", ["released", "expired"])
    def test_clause_16_a_lease_that_ended_is_given_again_in_a_higher_epoch(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder, how: str
    ) -> None:
        """Also for the same owner: a late commit under the old lease must be refused."""
        first = acquired(backend, "l", "w1")
        if how == "released":
            backend.leases.release(first)
        else:
            self.pass_time(clock, 11)
        assert acquired(backend, "l", "w1").epoch > first.epoch
        commit = build.commit(build.append("a"), fence=fence_of(first))
        assert refused(backend, commit).reason == "fenced"

    def test_clause_16_epochs_never_repeat(self, backend: Backend, clock: FakeClock) -> None:
        last = 0
        for n in range(20):
            lease = acquired(backend, "l", f"w{n % 3}")
            assert lease.epoch > last
            last = lease.epoch
            if n % 2:
                backend.leases.release(lease)
            else:
                self.pass_time(clock, 11)

    def test_clause_16_a_wall_clock_that_jumps_does_not_move_a_lease(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        lease = acquired(backend, "l", "w1")
        now_us = clock.now_us()
        for jump_s in (3600, -3600):
            clock.set(now_us + jump_s * 1_000_000)
            assert backend.leases.acquire("l", "w2", ttl_s=10) is None
            assert backend.leases.holder("l") == lease
        backend.leases.release(lease)
        assert acquired(backend, "l", "w2").epoch > lease.epoch

    def test_clause_16_eight_threads_get_one_lease(self, backend: Backend) -> None:
        start, got = Barrier(8), list[Lease | None]()

        def compete(owner: str) -> None:
            start.wait()
            got.append(backend.leases.acquire("l", owner, ttl_s=10))

        threads = [Thread(target=compete, args=(f"w{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 8
        assert [lease for lease in got if lease] == [backend.leases.holder("l")]

    def test_clause_19_leases_are_listed_until_they_are_released(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        assert backend.leases.list() == []
        first = acquired(backend, "a", "w1")
        second = acquired(backend, "b", "w2")
        listed = backend.leases.list()
        assert [(held.name, held.owner, held.epoch) for held in listed] == [
            ("a", "w1", first.epoch),
            ("b", "w2", second.epoch),
        ]
        assert all(held.is_held and 9_000_000 < held.left_us <= 10_000_000 for held in listed)
        self.pass_time(clock, 6)
        assert backend.leases.renew(second, ttl_s=10) is not None
        self.pass_time(clock, 6)
        lapsed, held = backend.leases.list()
        assert (lapsed.name, lapsed.is_held, held.name, held.is_held) == ("a", False, "b", True)
        assert -3_000_000 < lapsed.left_us <= -2_000_000
        assert 3_000_000 < held.left_us <= 4_000_000
        third = acquired(backend, "a", "w3")
        assert [held.owner for held in backend.leases.list()] == ["w3", "w2"]
        backend.leases.release(third)
        backend.leases.release(second)
        assert backend.leases.list() == []

    def test_clause_19_a_lapsed_lease_can_be_released_until_it_passes_on(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        first, left = acquired(backend, "l", "w1"), acquired(backend, "left", "w1")
        self.pass_time(clock, 11)
        backend.leases.release(Lease("left", "w1", left.epoch + 1, 0))
        backend.leases.release(Lease("left", "w2", left.epoch, 0))
        assert [held.name for held in backend.leases.list()] == ["l", "left"]
        backend.leases.release(Lease("left", "w1", left.epoch, 0))
        assert [held.name for held in backend.leases.list()] == ["l"]
        second = acquired(backend, "l", "w2")
        backend.leases.release(first)
        assert backend.leases.holder("l") == second
        assert acquired(backend, "left", "w2").epoch > left.epoch

    def test_clause_19_leases_are_listed_by_name_page_by_page(self, backend: Backend) -> None:
        for name in HOSTILE_NAMES:
            acquired(backend, name, "w1")
        names = sorted(HOSTILE_NAMES)
        assert [held.name for held in backend.leases.list()] == names
        assert backend.leases.list(limit=0) == []
        found, after = list[str](), ""
        while page := backend.leases.list(after=after, limit=7):
            assert len(page) <= 7
            found += [held.name for held in page]
            after = page[-1].name
        assert found == names
        for prefix in ("a", "%", "_", "a/", "A", "e", "\U0001f600", "none"):
            expected = [name for name in names if name.startswith(prefix)]
            assert [held.name for held in backend.leases.list(prefix=prefix)] == expected

    def test_clause_21_many_leases_are_renewed_each_by_itself(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        taken = [acquired(backend, f"l{n}", "w1") for n in range(6)]
        released, passed_on = taken[1], taken[3]
        backend.leases.release(released)
        backend.leases.release(passed_on)
        self.pass_time(clock, 6)
        others = acquired(backend, passed_on.name, "w2")
        wrong_epoch = Lease("l4", "w1", taken[4].epoch + 1, 0)
        never = Lease("l9", "w1", 1, 0)
        asked = [*taken, others, wrong_epoch, never, taken[0]]
        answers = list(renew_many(backend.leases, asked, ttl_s=10))
        assert len(answers) == len(asked)
        lost = {1, 3, 7, 8}
        for n, (one, answer) in enumerate(zip(asked, answers, strict=True)):
            if n in lost:
                assert answer is None, f"{one.name} is not held so"
                continue
            assert answer is not None, f"{one.name} is held"
            assert (answer.name, answer.owner, answer.epoch) == (one.name, one.owner, one.epoch)
            assert answer.expires_us >= one.expires_us
        self.pass_time(clock, 6)
        for n in (2, 4, 5):
            assert backend.leases.holder(f"l{n}") == answers[n]
        assert backend.leases.holder("l0") is not None
        assert backend.leases.holder("l1") is None
        assert backend.leases.holder("l9") is None
        self.pass_time(clock, 5)
        assert list(renew_many(backend.leases, taken, ttl_s=10)) == [None] * 6
        assert backend.leases.holder("l0") is None
        assert list(renew_many(backend.leases, [], ttl_s=10)) == []

    def test_clause_21_renewing_many_never_ends_one_sooner(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        long = backend.leases.acquire("long", "w1", ttl_s=100)
        short = acquired(backend, "short", "w1")
        assert long is not None
        renewed = renew_many(backend.leases, [long, short], ttl_s=10)
        assert [one and one.name for one in renewed] == ["long", "short"]
        self.pass_time(clock, 50)
        held = backend.leases.holder("long")
        assert held is not None
        assert held.expires_us == long.expires_us

    def test_clause_14_lease_names_and_owners_are_data(self, backend: Backend) -> None:
        leases = {name: acquired(backend, name, name) for name in HOSTILE_NAMES}
        for name, lease in leases.items():
            assert backend.leases.holder(name) == lease
            assert (lease.name, lease.owner) == (name, name)


class MarkClauses(Trial):
    """What can be found and claimed without reading streams."""

    def test_clause_17_marks_are_set_replaced_and_cleared(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        first = Mark("i", "m", due=5, priority=-3, group="g")
        write(backend, build, "a", marks=[first, Mark("i", "n")])
        assert backend.marks.list("i") == [Mark("i", "n"), first]
        second = Mark("i", "m", due=7, priority=2, group="h")
        accepted(backend, build.commit(marks=[second, Cleared("i", "n"), Cleared("i", "none")]))
        assert backend.marks.list("i") == [second]
        accepted(backend, build.commit(marks=[Cleared("i", "m")]))
        assert backend.marks.list("i") == []

    def test_clause_17_marks_are_listed_in_the_order_of_claims(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        ordered = _ordered_marks()
        accepted(backend, build.commit(marks=ordered[::-1]))
        accepted(backend, build.commit(marks=[Mark("other", "x", due=2, priority=9)]))
        assert backend.marks.list("i") == ordered
        assert backend.marks.list("i", limit=3) == ordered[:3]
        assert backend.marks.list("i", limit=0) == []
        assert backend.marks.list("i", due_before=20) == [m for m in ordered if m.due < 20]
        assert backend.marks.list("i", due_before=0) == []
        assert backend.marks.list() == [Mark("other", "x", due=2, priority=9), *ordered]
        assert backend.marks.list(due_before=3, limit=1) == [Mark("other", "x", 2, 9)]
        assert backend.marks.list("none") == []

    def test_clause_17_claims_go_by_priority_then_due_then_key(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        ordered = _ordered_marks()
        accepted(backend, build.commit(marks=ordered[::-1]))
        accepted(backend, build.commit(marks=[Mark("other", "x", priority=9)]))
        assert backend.marks.claim("i", "w1", n=0, ttl_s=10) == []
        assert backend.marks.claim("i", "w1", n=3, ttl_s=10) == ordered[:3]
        assert backend.marks.claim("i", "w2", n=2, ttl_s=10) == ordered[3:5]
        assert backend.marks.claim("i", "w1", n=100, ttl_s=10) == ordered[5:]
        assert backend.marks.claim("i", "w1", n=1, ttl_s=10) == []
        assert backend.marks.list("i") == ordered
        assert [mark.key for mark in backend.marks.claim("other", "w1", n=5, ttl_s=10)] == ["x"]
        assert backend.marks.claim("none", "w1", n=1, ttl_s=10) == []

    def test_clause_17_a_mark_is_claimable_from_its_due_time_on(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        now_us = self.now_us(clock)
        soon = Mark("i", "soon", due=now_us + 5_000_000, priority=9)
        past = Mark("i", "past", due=now_us - 1)
        accepted(backend, build.commit(marks=[soon, past]))
        assert backend.marks.claim("i", "w1", n=9, ttl_s=60) == [past]
        self.pass_time(clock, 5)
        assert backend.marks.claim("i", "w1", n=9, ttl_s=60) == [soon]

    def test_clause_17_a_claim_ends_when_it_expires(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        assert claimed(backend, "w1") == ["m"]
        self.pass_time(clock, 9.5)
        assert claimed(backend, "w2") == []
        self.pass_time(clock, 1)
        assert claimed(backend, "w2") == ["m"]
        # The first owner is late: it can no longer release the claim.
        backend.marks.release("i", "m", "w1")
        assert claimed(backend, "w3") == []

    def test_clause_17_a_claim_ends_when_it_is_released(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(marks=[Mark("i", "m"), Mark("j", "m")]))
        assert claimed(backend, "w1") == ["m"]
        backend.marks.release("i", "m", "w2")
        backend.marks.release("j", "m", "w1")
        backend.marks.release("i", "none", "w1")
        assert claimed(backend, "w2") == []
        backend.marks.release("i", "m", "w1")
        assert claimed(backend, "w2") == ["m"]
        backend.marks.release("i", "m", "w1")
        assert claimed(backend, "w1") == []

    def test_clause_17_a_claim_ends_when_the_mark_is_set_again_or_cleared(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        assert claimed(backend, "w1") == ["m"]
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        assert claimed(backend, "w2") == ["m"]
        accepted(backend, build.commit(marks=[Cleared("i", "m")]))
        assert claimed(backend, "w3") == [] == backend.marks.list()
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        assert claimed(backend, "w3") == ["m"]

    def test_clause_17_a_refused_commit_ends_no_claim(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(build.append("a"), marks=[Mark("i", "m")]))
        assert claimed(backend, "w1") == ["m"]
        refused(backend, build.commit(build.append("a"), marks=[Mark("i", "m", priority=1)]))
        refused(backend, build.commit(build.append("a"), marks=[Cleared("i", "m")]))
        assert claimed(backend, "w2") == []

    def test_clause_17_four_threads_claim_each_mark_once(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        keys = [f"m{n:02}" for n in range(60)]
        accepted(backend, build.commit(marks=[Mark("i", key) for key in keys]))
        start, taken = Barrier(4), list[str]()

        def work(owner: str) -> None:
            start.wait()
            while got := backend.marks.claim("i", owner, n=5, ttl_s=60):
                taken.extend(mark.key for mark in got)

        threads = [Thread(target=work, args=(f"w{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == keys

    def test_clause_19_claims_are_listed_while_their_time_is_not_over(
        self, backend: Backend, clock: FakeClock, build: RecordBuilder
    ) -> None:
        assert backend.marks.claims() == []
        marks = [Mark("i", "m"), Mark("i", "n"), Mark("j", "m"), Mark("j", "free")]
        accepted(backend, build.commit(marks=marks))
        assert backend.marks.claims() == []
        assert len(backend.marks.claim("i", "w1", n=9, ttl_s=10)) == 2
        self.pass_time(clock, 4)
        assert len(backend.marks.claim("j", "w2", n=1, ttl_s=10)) == 1
        claims = backend.marks.claims()
        assert [(claim.index, claim.key, claim.owner) for claim in claims] == [
            ("i", "m", "w1"),
            ("i", "n", "w1"),
            ("j", "free", "w2"),
        ]
        assert 5_000_000 < claims[0].left_us <= 6_000_000
        assert backend.marks.claims(limit=2) == claims[:2]
        backend.marks.release("i", "n", "w1")
        accepted(backend, build.commit(marks=[Mark("j", "free")]))
        assert [claim.key for claim in backend.marks.claims()] == ["m"]
        self.pass_time(clock, 7)
        assert backend.marks.claims() == []

    def test_clause_32_marks_are_found_by_index_group_and_keys_from_any_place_on(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        """`find`, or the fallback without it, returns the matching part of `list`."""
        marks = [*_ordered_marks(), *(replace(mark, index="j") for mark in _ordered_marks())]
        marks += [replace(mark, key=f"{mark.key}'", group="h") for mark in marks]
        marks += [Mark("i", "top", priority=(1 << 63) - 1), Mark("i", "low", -5, -(1 << 63))]
        accepted(backend, build.commit(marks=marks))
        accepted(backend, build.commit(marks=[Cleared("i", "a"), Cleared("j", "a2")]))
        gone = Mark("i", "a", due=20, priority=1), Mark("j", "a2", due=20)
        marks = [mark for mark in marks if mark not in gone]
        queries = [
            MarkQuery(index, keys, group, after, due_before, limit)
            for index in ("i", "j", "none", None)
            for keys in ((None,) if index is None else (None, [], ["a", "z", "\U0001f600", "top"]))
            for group in (None, "", "g", "none")
            for after in (None, marks[0], marks[9], gone[0], gone[1], Mark("i", "é", 20, 1))
            for due_before, limit in ((None, 1000), (20, 1000), (None, 3))
        ]
        for query in queries:
            assert list(find_marks(backend.marks, query)) == query.pick(marks), query
        for index in ("i", None):
            found: list[Mark] = []
            last = None
            while page := find_marks(backend.marks, MarkQuery(index, after=last, limit=2)):
                found += page
                last = page[-1]
            assert found == backend.marks.list(index)

    def test_clause_32_names_of_marks_are_found_as_they_are(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        marks = [Mark("i", name, group=name) for name in HOSTILE_NAMES]
        accepted(backend, build.commit(marks=marks))
        assert find_marks(backend.marks, MarkQuery("i", HOSTILE_NAMES)) == backend.marks.list("i")
        for mark in marks:
            assert find_marks(backend.marks, MarkQuery("i", [mark.key])) == [mark]
            assert find_marks(backend.marks, MarkQuery(group=mark.group)) == [mark]

    def test_clause_14_mark_names_are_data(self, backend: Backend, build: RecordBuilder) -> None:
        marks = [Mark(name, name, group=name) for name in HOSTILE_NAMES]
        accepted(backend, build.commit(marks=marks))
        for mark in marks:
            assert backend.marks.list(mark.index) == [mark]
            assert backend.marks.claim(mark.index, mark.key, n=9, ttl_s=10) == [mark]
            assert backend.marks.claim(mark.index, "other", n=9, ttl_s=10) == []
            backend.marks.release(mark.index, mark.key, mark.key)
            assert backend.marks.claim(mark.index, "other", n=9, ttl_s=10) == [mark]
        accepted(backend, build.commit(marks=[Cleared("%", "%")]))
        assert len(backend.marks.list()) == len(marks) - 1


def acquired(backend: Backend, name: str, owner: str) -> Lease:
    """Acquires a lease for ten seconds, and expects to get it."""
    lease = backend.leases.acquire(name, owner, ttl_s=10)
    assert lease is not None, f"expected lease {name!r} for {owner!r}, found it taken"
    return lease


def claimed(backend: Backend, owner: str) -> list[str]:
    """Claims from the index "i" for ten seconds; returns the keys."""
    return [mark.key for mark in backend.marks.claim("i", owner, n=9, ttl_s=10)]


def fence_of(lease: Lease) -> Fence:
    return Fence(lease.name, lease.owner, lease.epoch)


def _ordered_marks() -> list[Mark]:
    """Returns marks in the order in which they must be listed and claimed."""
    return [
        Mark("i", "z", due=30, priority=2),
        Mark("i", "y", due=0, priority=1, group="g"),
        Mark("i", "B", due=20, priority=1),
        Mark("i", "a", due=20, priority=1),
        Mark("i", "é", due=20, priority=1),
        Mark("i", "\uffee", due=20, priority=1),
        Mark("i", "\U0001f600", due=20, priority=1),
        Mark("i", "c", due=19, priority=0),
        Mark("i", "a2", due=20, priority=0),
        Mark("i", "b2", due=1, priority=-1),
    ]
