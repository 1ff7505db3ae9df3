"""What outlives a handle and a process: two further contracts, which memory does not keep.

The test of a durable backend derives from them and from `BackendContract`:

    class TestMine(BackendContract, DurableContract, MultiProcessContract): ...
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.backends.protocol import (
    GONE,
    START,
    Backend,
    Cleared,
    Commit,
    Found,
    Mark,
    Position,
    Record,
    Rewrites,
)
from holdfast.clock import Clock, SystemClock
from holdfast.core.event import ORIGIN, record_link
from holdfast.errors import CorruptError, FormatError
from holdfast.testing.child import INCREMENTS, Child
from holdfast.testing.clock import FakeClock
from holdfast.testing.leases import acquired, fence_of
from holdfast.testing.records import RecordBuilder
from holdfast.testing.rewriting import CANARY
from holdfast.testing.trial import Trial, accepted, head_of, refused, revisions, write

_TOKEN = b"holdfast-damage-3f9a61c2"


class DurableContract(Trial):
    """What is there after the store is opened again, whether or not it was closed."""

    @abstractmethod
    def plant(self, place: Path, commit: Commit, position: Position) -> None:
        """Stores a commit in the closed store without any method of the backend.

        `position` is greater than any that is there; the commit has no marks.
        """

    @abstractmethod
    def make_newer(self, place: Path) -> None:
        """Marks the closed store as having a newer format than this version knows."""

    def reopen(self, place: Path, clock: Clock) -> Backend:
        """Returns the backend, opened again in the same place."""
        return self.make(place, clock)

    def reboot(self, clock: FakeClock) -> None:
        """Reboots the host while the store is closed.

        A backend that uses the clock of a server lets an hour pass there instead.
        """
        clock.reboot()

    def damage(self, place: Path, payload: bytes) -> None:
        """Changes one byte of every copy of the payload in the closed store.

        A backend whose bytes are not in files below `place` overrides this.
        """
        changed = payload[:-2] + bytes([payload[-2] ^ 1]) + payload[-1:]
        found = 0
        for path in sorted(place.rglob("*")):
            if path.is_file() and payload in (data := path.read_bytes()):
                path.write_bytes(data.replace(payload, changed))
                found += 1
        assert found, f"expected {payload!r} in a file below {place}, found it in none"

    @pytest.mark.parametrize("closed", [True, False], ids=["closed", "left open"])
    def test_clause_03_everything_is_there_after_reopening(
        self, place: Path, clock: FakeClock, build: RecordBuilder, closed: bool
    ) -> None:
        first = self.make(place, clock)
        _fill(first, build)
        before = _everything(first)
        if closed:
            first.close()
        second = self.reopen(place, clock)
        assert _everything(second) == before
        for stream in ("a", "f", "é/%"):
            assert self.raw(second, place, stream) == second.read(stream)
        again = build.append("a", behind=head_of(second, "a"), key="k1")
        assert refused(second, build.commit(again)).revision == 1
        second.close()
        first.close()

    def test_clause_09_positions_and_revisions_go_on_after_reopening(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        positions: list[Position] = []
        for _ in range(5):
            backend = self.reopen(place, clock)
            positions.append(write(backend, build, "a").position)
            positions.append(accepted(backend, build.commit(marks=[Mark("i", "m")])).position)
            assert backend.wait(START, timeout_s=0) == positions[-1]
            backend.close()
        assert positions == sorted(set(positions))
        backend = self.reopen(place, clock)
        assert revisions(backend.read("a")) == [1, 2, 3, 4, 5]
        check_links(backend.read("a"))
        backend.close()

    def test_clause_11_two_handles_see_each_others_commits_at_once(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        one, two = self.make(place, clock), self.reopen(place, clock)
        for _ in range(5):
            for writer, reader in ((one, two), (two, one)):
                receipt = write(writer, build, "a", key=str(build.time), marks=[Mark("i", "m")])
                assert head_of(reader, "a") == head_of(writer, "a")
                last = reader.read("a")[-1]
                assert last.key is not None
                assert reader.find("a", key=last.key) == [Found(last.revision, last.key, last.time)]
                assert reader.wait(START, timeout_s=0) == receipt.position
                assert reader.marks.list() == [Mark("i", "m")]
                assert reader.read_all() == writer.read_all()
        refused(two, build.commit(build.append("a")))
        one.close()
        write(two, build, "a")
        assert revisions(two.read("a")) == list(range(1, 12))
        two.close()

    @pytest.mark.parametrize("closed", [True, False], ids=["closed", "left open"])
    def test_clause_28_what_was_let_go_is_gone_after_reopening(
        self, place: Path, clock: FakeClock, build: RecordBuilder, closed: bool
    ) -> None:
        first = self.make(place, clock)
        if not isinstance(first, Rewrites):
            first.close()
            return
        _fill(first, build)
        write(first, build, "a", CANARY, CANARY)
        first.rewrite({"a": [2, 4], "f": [3]})
        write(first, build, "a")
        before = _everything(first)
        if closed:
            first.close()
        second = self.reopen(place, clock)
        assert _everything(second) == before
        payloads = [record.payload for record in second.read("a")]
        assert payloads[3] == GONE != payloads[4]
        assert self.raw(second, place, "a") == second.read("a")
        assert list(second.inspect.verify(read_all=True)) == []
        second.close()
        first.close()

    def test_clause_28_a_handle_beside_reads_and_writes_on(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        one, two = self.make(place, clock), self.reopen(place, clock)
        if isinstance(one, Rewrites):
            write(one, build, "a", CANARY, b'{"n":2}')
            write(two, build, "a", CANARY)
            before = two.read("a")
            for _ in range(2):
                one.rewrite({"a": [1, 3]})
                assert two.read("a") == one.read("a") == two.read_all()
                assert [two.read("a")[place].payload for place in (0, 1, 2)] == [
                    GONE,
                    before[1].payload,
                    GONE,
                ]
                write(two, build, "a")
                assert two.leases.acquire("l", "w1", ttl_s=10) is not None
                write(one, build, "a")
                one.purge()
                assert revisions(two.read("a")) == list(range(1, len(one.read("a")) + 1))
        two.close()
        one.close()
        again = self.reopen(place, clock)
        assert list(again.inspect.verify(read_all=True)) == []
        again.close()

    def test_clause_16_leases_and_claims_hold_between_handles(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        one, two = self.make(place, clock), self.reopen(place, clock)
        accepted(one, build.commit(marks=[Mark("i", "m"), Mark("i", "n")]))
        lease = acquired(one, "l", "w1")
        assert two.leases.acquire("l", "w2", ttl_s=10) is None
        assert two.leases.holder("l") == lease
        assert [mark.key for mark in one.marks.claim("i", "w1", n=1, ttl_s=10)] == ["m"]
        assert [mark.key for mark in two.marks.claim("i", "w2", n=9, ttl_s=10)] == ["n"]
        self.pass_time(clock, 11)
        assert acquired(two, "l", "w2").epoch > lease.epoch
        assert one.leases.renew(lease, ttl_s=10) is None
        one.close()
        two.close()

    def test_clause_16_epochs_go_on_after_reopening(self, place: Path, clock: FakeClock) -> None:
        last = 0
        for n in range(4):
            backend = self.reopen(place, clock)
            lease = acquired(backend, "l", f"w{n}")
            assert lease.epoch > last
            last = lease.epoch
            backend.leases.release(lease)
            backend.close()
            self.pass_time(clock, 1)

    def test_clause_16_leases_and_claims_of_an_earlier_boot_have_ended(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        """Boot time restarts at zero, so an end in the old boot time would seem far away."""
        clock.advance(1_000_000)
        backend = self.make(place, clock)
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        lease = acquired(backend, "l", "w1")
        assert len(backend.marks.claim("i", "w1", n=1, ttl_s=10)) == 1
        backend.close()
        self.reboot(clock)
        backend = self.reopen(place, clock)
        assert backend.leases.holder("l") is None
        late = build.commit(build.append("a"), fence=fence_of(lease))
        assert refused(backend, late).reason == "fenced"
        assert acquired(backend, "l", "w2").epoch > lease.epoch
        assert len(backend.marks.claim("i", "w2", n=1, ttl_s=10)) == 1
        backend.close()

    def test_clause_10_a_planted_commit_is_read(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        backend = self.make(place, clock)
        position = write(backend, build, "a", b"1", b"2").position
        head = head_of(backend, "a")
        backend.close()
        a = build.append("a", b"3", b'"\xc3\xa9"', behind=head, key="k", checkpoint="p")
        b = build.append("b", behind=a, fork=True, subject="s")
        self.plant(place, build.commit(a, b), Position(position + 1))
        backend = self.reopen(place, clock)
        assert [record.payload for record in backend.read("a")] == [b"1", b"2", b"3", b'"\xc3\xa9"']
        check_links(backend.read("a"))
        assert revisions(backend.read("b")) == [5]
        assert backend.read("b")[0].subject == "s"
        assert (head_of(backend, "b").first, head_of(backend, "a").revision) == (5, 4)
        assert [found.revision for found in backend.find("a", key="k")] == [3]
        assert [found.revision for found in backend.find("a", checkpoint="p")] == [4]
        assert backend.read_all(after=position) == backend.read("a", after=2) + backend.read("b")
        write(backend, build, "a")
        backend.close()

    def test_clause_12_a_changed_byte_is_noticed(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        payload = b'"%s"' % _TOKEN
        backend = self.make(place, clock)
        write(backend, build, "a", b"1")
        write(backend, build, "a", payload)
        write(backend, build, "a", b"3")
        backend.close()
        self.damage(place, payload)
        noticed = ""
        try:
            backend = self.reopen(place, clock)
            try:
                findings = list(backend.inspect.verify(read_all=True))
                noticed = next((found.problem for found in findings if not found.harmless), "")
                # If it returns, no record is missing: damage must never look like an absence.
                assert revisions(backend.read("a")) == [1, 2, 3]
            finally:
                backend.close()
        except CorruptError as error:
            noticed = str(error)
        assert noticed

    def test_a_newer_format_is_refused_and_left_untouched(
        self, place: Path, clock: FakeClock, build: RecordBuilder
    ) -> None:
        """Guarantee 8: a newer format is refused without a change."""
        backend = self.make(place, clock)
        write(backend, build, "a")
        backend.close()
        self.make_newer(place)
        before = _bytes_below(place)
        with pytest.raises(FormatError):
            self.reopen(place, clock)
        after = _bytes_below(place)
        assert {path: after.get(path) for path in before} == before


class MultiProcessContract(Trial):
    """What holds between processes of one host."""

    @pytest.fixture
    def shared(self, place: Path) -> Iterator[Backend]:
        """The backend with the system clock, as the other processes open it."""
        backend = self.make(place, SystemClock())
        yield backend
        backend.close()

    def test_clause_04_four_processes_lose_no_increment(self, place: Path, shared: Backend) -> None:
        with ExitStack() as stack:
            children = [stack.enter_context(Child(self, place, "increment")) for _ in range(4)]
            assert [child.hear() for child in children] == ["ready"] * 4
            for child in children:
                child.tell("go")
            for child in children:
                child.hear()
        records = shared.read("counter")
        assert [int(record.payload) for record in records] == list(range(1, 4 * INCREMENTS + 1))
        assert revisions(records) == list(range(1, 4 * INCREMENTS + 1))
        assert len({record.actor for record in records}) == 4
        check_links(records)
        assert shared.read_all(limit=10_000) == records
        assert list(shared.inspect.verify(read_all=True)) == []

    def test_clause_11_wait_wakes_for_a_commit_of_another_process(
        self, place: Path, shared: Backend, build: RecordBuilder
    ) -> None:
        write(shared, build, "before")
        with Child(self, place, "follow") as child:
            assert child.hear() == shared.wait(START, timeout_s=0)
            receipt = write(shared, build, "news")
            assert child.hear() == [receipt.position, ["news"]]

    def test_clause_16_a_dead_processs_lease_and_claims_pass_on_at_once(
        self, place: Path, shared: Backend, build: RecordBuilder
    ) -> None:
        accepted(shared, build.commit(marks=[Mark("i", "m"), Mark("i", "n")]))
        with Child(self, place, "hold") as child:
            epoch, keys = child.hear()
            assert keys == ["m", "n"]
            assert shared.leases.acquire("l", "w1", ttl_s=10) is None
            assert shared.marks.claim("i", "w1", n=9, ttl_s=10) == []
            child.kill()
            assert acquired(shared, "l", "w1").epoch > epoch
            claimed = shared.marks.claim("i", "w1", n=9, ttl_s=10)
            assert [mark.key for mark in claimed] == ["m", "n"]

    def test_clause_02_a_killed_writer_leaves_whole_commits_and_all_it_was_told(
        self, place: Path, shared: Backend, build: RecordBuilder
    ) -> None:
        with Child(self, place, "hammer") as child:
            told = 0
            while told < 20:
                told = child.hear()
            told = max([told, *child.last_words()])
        # All acknowledged commits are there; the one that was running may be there or not.
        assert len(shared.read("left")) in (told, told + 1)
        for backend in (shared, self.make(place, SystemClock())):
            left, right = backend.read("left"), backend.read("right")
            assert revisions(left) == revisions(right) == list(range(1, len(left) + 1))
            check_links(left)
            check_links(right)
            write(backend, build, "left")
            write(backend, build, "right")
            backend.close()


def check_links(records: list[Record]) -> None:
    """Asserts that the records are a stream from its first event, each linked to the one before."""
    link = ORIGIN
    for record in records:
        assert record.link == record_link(link, record), f"broken at revision {record.revision}"
        link = record.link


def _fill(backend: Backend, build: RecordBuilder) -> None:
    write(backend, build, "a", b"1", b"2", key="k1", checkpoint="p")
    write(backend, build, "a", key="k2", marks=[Mark("i", "m", 5, 2, "g"), Mark("i", "n")])
    fork = build.append("f", behind=backend.read("a")[1], fork=True, subject="s")
    accepted(backend, build.commit(fork, build.append("é/%", b'"' + b"x" * 700_000 + b'"')))
    accepted(backend, build.commit(marks=[Cleared("i", "n"), Mark("j", "o", 1 << 50, -1)]))
    write(backend, build, "f", checkpoint="q")
    backend.objects.put("blob", "ab/cd", b"\x00data")
    backend.objects.put("snapshot", "ab/cd", b"")


def _everything(backend: Backend) -> list[object]:
    """Returns the answers to all kinds of reads of what `_fill` made."""
    streams = backend.streams()
    return [
        streams,
        backend.read_all(),
        backend.heads(streams),
        [backend.read(stream) for stream in streams],
        [backend.find(stream) for stream in streams],
        [backend.find(stream, checkpoint="p") for stream in streams],
        [backend.find(stream, key="k2") for stream in streams],
        backend.marks.list(),
        backend.objects.names("blob"),
        backend.objects.get("blob", "ab/cd"),
        backend.objects.get("snapshot", "ab/cd"),
        backend.wait(START, timeout_s=0),
    ]


def _bytes_below(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
