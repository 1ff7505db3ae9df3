"""Clauses 1 to 9 without leases: what a commit does, and when it does nothing."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from msgspec.structs import replace

from holdfast.backends.protocol import (
    START,
    Append,
    Backend,
    Cleared,
    Commit,
    Fence,
    Mark,
    Receipt,
    Record,
    Refusal,
)
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, Trial, accepted, head_of, refused, revisions, write


class CommitClauses(Trial):
    """What `commit` promises."""

    def test_clause_01_each_commit_of_a_list_is_answered_in_order(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "b")
        first, second, third = backend.commit(
            [
                build.commit(build.append("a")),
                build.commit(build.append("b")),  # stale: b is at 1
                build.commit(build.append("c")),
            ]
        )
        assert isinstance(first, Receipt)
        assert second == Refusal("conflict", "b", 0, head_of(backend, "b"))
        assert isinstance(third, Receipt)
        assert revisions(backend.read("a")) == [1]
        assert revisions(backend.read("b")) == [1]
        assert revisions(backend.read("c")) == [1]

    def test_clause_01_an_empty_list_has_no_answers(self, backend: Backend) -> None:
        assert backend.commit([]) == []

    def test_clause_01_a_later_commit_of_a_list_sees_the_earlier_ones(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        a1 = build.append("a", key="k")
        commits = [build.commit(a1)]
        a2 = build.append("a", behind=a1)
        commits.append(build.commit(a2, reads=[("a", 1)]))
        commits.append(build.commit(build.append("b"), reads=[("a", 2)]))
        commits.append(build.commit(build.append("a", behind=a2, key="k")))
        commits.append(build.commit(build.append("b")))
        *receipts, duplicate, conflict = backend.commit(commits)
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        assert isinstance(duplicate, Refusal)
        assert isinstance(conflict, Refusal)
        assert (duplicate.reason, duplicate.stream, duplicate.revision) == ("duplicate", "a", 1)
        assert conflict == Refusal("conflict", "b", 0, head_of(backend, "b"))

    def test_clause_01_a_later_commit_does_not_see_a_refused_one(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        commits = [build.commit(build.append("a"))]
        b1 = build.append("b", key="k")
        commits.append(build.commit(build.append("a"), b1, marks=[Mark("i", "m")]))
        commits.append(build.commit(build.append("b", behind=b1)))
        commits.append(build.commit(build.append("b", key="k")))
        first, second, third, fourth = backend.commit(commits)
        assert isinstance(first, Receipt)
        assert isinstance(second, Refusal)
        assert second.stream == "a"
        assert third == Refusal("conflict", "b", 1, None)
        assert isinstance(fourth, Receipt)
        assert backend.marks.list() == []

    def test_clause_02_a_commit_over_several_streams_is_kept_whole(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        appends = build.append("a"), build.append("b", b"1", b"2"), build.append("c")
        receipt = accepted(backend, build.commit(*appends, marks=[Mark("i", "m")]))
        written = [record for append in appends for record in append.records]
        assert [_unplaced(record) for record in backend.read_all()] == written
        assert {record.position for record in backend.read_all()} == {receipt.position}
        assert backend.marks.list() == [Mark("i", "m")]

    @pytest.mark.parametrize("wrong", [0, 1, 2])
    def test_clause_02_one_stale_stream_keeps_all_others_from_being_written(
        self, backend: Backend, build: RecordBuilder, wrong: int
    ) -> None:
        names = ["a", "b", "c"]
        write(backend, build, names[wrong], marks=[Mark("i", "old")])
        appends = [build.append(name, key="k", checkpoint="p") for name in names]
        marks = Mark("i", "new"), Cleared("i", "old"), Mark("i2", "new")
        refusal = refused(backend, build.commit(*appends, marks=marks))
        assert (refusal.reason, refusal.stream) == ("conflict", names[wrong])
        assert backend.streams() == [names[wrong]]
        assert all(backend.find(name, key="k") == [] for name in names)
        assert all(backend.find(name, checkpoint="p") == [] for name in names)
        rest = [build.append(name, key="k") for name in names if name != names[wrong]]
        accepted(backend, build.commit(*rest))

    def test_clause_03_a_receipt_means_stored_as_seen_from_behind(
        self, backend: Backend, place: Path, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2", key="k", checkpoint="p")
        accepted(backend, build.commit(build.append("b", subject="s"), build.append("é/%", b'""')))
        for stream in ("a", "b", "é/%"):
            assert self.raw(backend, place, stream) == backend.read(stream)
        assert self.raw(backend, place, "none") == []

    def test_clause_03_a_refusal_means_not_stored_as_seen_from_behind(
        self, backend: Backend, place: Path, build: RecordBuilder
    ) -> None:
        write(backend, build, "a")
        refused(backend, build.commit(build.append("b"), build.append("a")))
        assert self.raw(backend, place, "b") == []
        assert revisions(self.raw(backend, place, "a")) == [1]

    def test_clause_03_durability_is_stated(self, backend: Backend) -> None:
        assert backend.durability in ("full", "process", "none")
        assert isinstance(backend, Backend)

    def test_clause_03_a_receipt_has_news_of_watched_streams(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "inbox", b"1", b"2")
        watch = ["inbox", "a", "none"]
        receipt = accepted(backend, build.commit(build.append("a"), watch=watch))
        assert receipt.news == {"inbox": 2, "a": 1, "none": 0}
        assert write(backend, build, "a").news == {}

    @pytest.mark.parametrize("expected", [0, 1, 3, 7])
    def test_clause_04_an_append_behind_another_revision_is_a_conflict(
        self, backend: Backend, build: RecordBuilder, expected: int
    ) -> None:
        write(backend, build, "a", b"1", b"2")
        refusal = refused(backend, build.commit(_behind(build, "a", expected)))
        assert refusal == Refusal("conflict", "a", expected, head_of(backend, "a"))

    def test_clause_04_an_append_behind_another_link_is_a_conflict(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2")
        commit = build.commit(build.append("a", b"3", behind=head_of(backend, "a")))
        refusal = refused(backend, _following(commit, bytes(32)))
        assert refusal == Refusal("conflict", "a", 2, head_of(backend, "a"))
        accepted(backend, _following(commit, head_of(backend, "a").link))

    def test_clause_04_a_commit_laid_on_a_refused_one_does_not_land_on_another_writers_event(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1")
        mine = build.commit(build.append("a", b"2", behind=head_of(backend, "a")))
        then = build.commit(build.append("a", b"3", behind=mine.appends[0]))
        then = _following(then, mine.appends[0].records[-1].link)
        write(backend, build, "a", b"9")  # another writer's second event
        answers = backend.commit([mine, then])
        assert [type(answer) for answer in answers] == [Refusal, Refusal]

    def test_clause_04_a_stream_that_is_not_there_is_at_zero(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        refusal = refused(backend, build.commit(_behind(build, "a", 1)))
        assert refusal == Refusal("conflict", "a", 1, None)
        write(backend, build, "a")
        assert head_of(backend, "a").revision == 1

    def test_clause_04_a_fork_begins_behind_its_parents_revision(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2", b"3", key="k", checkpoint="p")
        fork = build.append("f", b"4", b"5", behind=backend.read("a")[1], fork=True)
        accepted(backend, build.commit(fork))
        assert revisions(backend.read("f")) == [3, 4]
        head = head_of(backend, "f")
        assert (head.revision, head.first, head.link) == (4, 3, fork.records[-1].link)
        assert head_of(backend, "a").first == 1
        # A backend does not look into parents: the log finds what came before the fork.
        assert backend.find("f", key="k") == []
        assert backend.find("f") == []
        write(backend, build, "f", key="k")
        assert revisions(backend.read("f")) == [3, 4, 5]
        assert head_of(backend, "f").first == 3

    def test_clause_04_a_fork_of_an_existing_name_is_a_conflict(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2")
        write(backend, build, "b", b"1")
        parent = backend.read("a")[0]
        # Refused even if the revisions would match: a fork may not continue a stream.
        refusal = refused(backend, build.commit(build.append("b", behind=parent, fork=True)))
        assert refusal == Refusal("conflict", "b", 1, head_of(backend, "b"))

    def test_clause_04_a_fork_at_zero_is_a_new_stream(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(build.append("f", fork=True)))
        assert (head_of(backend, "f").revision, head_of(backend, "f").first) == (1, 1)

    def test_clause_05_a_stream_that_was_only_read_guards_the_commit(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2")
        guards = ("a", 2), ("none", 0)
        accepted(backend, build.commit(build.append("b"), reads=guards))
        assert revisions(backend.read("a")) == [1, 2]
        assert backend.heads(["none"]) == [None]

    @pytest.mark.parametrize("read", [("a", 0), ("a", 1), ("a", 3), ("none", 1)])
    def test_clause_05_a_stale_read_keeps_everything_from_being_written(
        self, backend: Backend, build: RecordBuilder, read: tuple[str, int]
    ) -> None:
        write(backend, build, "a", b"1", b"2")
        stream, revision = read
        marks = [Mark("i", "m")]
        commit = build.commit(build.append("b"), reads=[("a", 2), read], marks=marks)
        refusal = refused(backend, commit)
        assert refusal == Refusal("conflict", stream, revision, backend.heads([stream])[0])
        refusal = refused(backend, build.commit(reads=[read], marks=marks))
        assert (refusal.reason, refusal.stream) == ("conflict", stream)

    def test_clause_05_a_read_of_a_stream_that_is_also_written_means_before(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a")
        append = build.append("a", behind=head_of(backend, "a"))
        accepted(backend, build.commit(append, reads=[("a", 1)]))
        append = build.append("a", behind=head_of(backend, "a"))
        refused(backend, build.commit(append, reads=[("a", 3)]))

    @pytest.mark.parametrize("expected", [0, 1, 3, 4, 9])
    def test_clause_07_a_second_commit_with_a_key_is_a_duplicate(
        self, backend: Backend, build: RecordBuilder, expected: int
    ) -> None:
        write(backend, build, "a")
        write(backend, build, "a", b"2", b"3", key="k")
        write(backend, build, "a")
        refusal = refused(backend, build.commit(_behind(build, "a", expected, key="k")))
        assert (refusal.reason, refusal.stream, refusal.revision) == ("duplicate", "a", 2)

    def test_clause_07_a_key_belongs_to_its_stream(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", key="k")
        write(backend, build, "b", key="k")
        write(backend, build, "ak", key="ey")
        write(backend, build, "a", key="key")
        write(backend, build, "a", key="K")
        assert [found.revision for found in backend.find("a", key="k")] == [1]
        assert [found.revision for found in backend.find("a", key="K")] == [3]

    def test_clause_07_a_fork_append_with_a_known_key_is_a_duplicate(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "f", b"1", key="k")
        again = build.append("f", behind=backend.read("f")[0], fork=True, key="k")
        refusal = refused(backend, build.commit(again))
        assert (refusal.reason, refusal.stream, refusal.revision) == ("duplicate", "f", 1)

    def test_clause_07_a_refused_commit_does_not_take_its_key(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a")
        refused(backend, build.commit(build.append("a", key="k")))
        assert backend.find("a", key="k") == []
        write(backend, build, "a", key="k")

    def test_clause_08_duplicate_comes_before_fenced_before_conflict(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2", key="k")
        fence = Fence("nobody's", "w", 1)
        everything = build.commit(
            _behind(build, "b", 5), _behind(build, "a", 7, key="k"), fence=fence
        )
        assert refused(backend, everything).reason == "duplicate"
        refusal = refused(backend, build.commit(_behind(build, "a", 7), fence=fence))
        assert (refusal.reason, refusal.stream) == ("fenced", "nobody's")
        refusal = refused(backend, build.commit(_behind(build, "a", 7, key="other")))
        assert refusal.reason == "conflict"

    def test_clause_08_a_conflict_carries_the_head(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        receipt = write(backend, build, "a", b"1", b"2")
        last = backend.read("a")[-1]
        head = refused(backend, build.commit(build.append("a"))).head
        assert head is not None
        assert (head.revision, head.link, head.time) == (2, last.link, last.time)
        assert (head.position, head.first) == (receipt.position, 1)
        # The returned head is enough to continue the stream.
        accepted(backend, build.commit(build.append("a", behind=head)))

    def test_clause_09_positions_grow_and_are_shared_within_a_commit(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        receipts = [write(backend, build, "a", b"1", b"2")]
        refused(backend, build.commit(build.append("a")))
        receipts.append(accepted(backend, build.commit(build.append("b"), build.append("c"))))
        receipts.append(accepted(backend, build.commit(marks=[Mark("i", "m")])))
        outcomes = backend.commit([build.commit(build.append(name)) for name in "def"])
        receipts += [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
        positions = [receipt.position for receipt in receipts]
        assert len(positions) == 6
        assert positions == sorted(set(positions))
        assert positions[0] > START
        shared = [positions[n] for n in (0, 0, 1, 1, 3, 4, 5)]
        assert [record.position for record in backend.read_all()] == shared
        assert head_of(backend, "a").position == positions[0]
        assert head_of(backend, "c").position == positions[1]
        assert backend.wait(START, timeout_s=0) == positions[-1]

    def test_clause_09_a_follower_sees_everything_once_and_in_the_final_order(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        writers = [Thread(target=_write_many, args=(backend, f"s{n}")) for n in range(4)]
        for writer in writers:
            writer.start()
        followed: list[Record] = []
        position = START
        while len(followed) < 4 * 20 * 2:
            newest = backend.wait(position, timeout_s=PATIENCE_S)
            assert newest > position, "no commit became visible"
            records = backend.read_all(after=position, limit=7)
            followed.extend(records)
            position = followed[-1].position
        for writer in writers:
            writer.join()
        assert followed == backend.read_all(limit=10_000)
        for n in range(4):
            own = [record for record in followed if record.stream == f"s{n}"]
            assert revisions(own) == list(range(1, 41))

    def test_clause_09_eight_threads_lose_nothing_on_one_stream(self, backend: Backend) -> None:
        threads = [Thread(target=_append_guarded, args=(backend, n, 50)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        records = backend.read("shared")
        assert revisions(records) == list(range(1, 401))
        assert len({record.payload for record in records}) == 400
        assert len({record.position for record in records}) == 400


def _behind(build: RecordBuilder, stream: str, expected: int, key: str | None = None) -> Append:
    """Returns an append that expects a revision; its links are wrong, which does not matter."""
    behind = None
    if expected:
        behind = Record(stream, expected, 0, "changed", "", b"", bytes(32))
    return build.append(stream, behind=behind, key=key)


def _unplaced(record: Record) -> Record:
    return replace(record, position=START)


def _write_many(backend: Backend, stream: str) -> None:
    build = RecordBuilder(actor=stream)
    for _ in range(20):
        write(backend, build, stream, b"1", b"2")


def _append_guarded(backend: Backend, writer: int, count: int) -> None:
    build = RecordBuilder(actor=f"w{writer}")
    [head] = backend.heads(["shared"])
    for n in range(count):
        outcome: Receipt | Refusal | None = None
        while not isinstance(outcome, Receipt):
            append = build.append("shared", b"[%d,%d]" % (writer, n), behind=head)
            [outcome] = backend.commit([build.commit(append)])
            if isinstance(outcome, Refusal):
                head = outcome.head
            else:
                [head] = backend.heads(["shared"])


def _following(commit: Commit, link: bytes) -> Commit:
    """Returns the commit of one append, with the link that the append must follow."""
    return replace(commit, appends=(replace(commit.appends[0], previous=link),))
