"""Clause 26: a key on each record of an append, for backends that declare `record_keys`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.backends.protocol import Backend, Found, Mark, Receipt, Refusal, takes_record_keys
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import Trial, accepted, head_of, refused, revisions, write


class RecordKeyClauses(Trial):
    """What `commit` promises about keys on records that are not the first."""

    @pytest.fixture
    def keyed(self, backend: Backend) -> Backend:
        """Returns the backend under test; skips the test if it takes no such keys."""
        if not takes_record_keys(backend):
            pytest.skip("this backend takes a key on the first record only (record_keys)")
        return backend

    def test_clause_26_each_record_is_found_by_its_own_key(
        self, keyed: Backend, place: Path, build: RecordBuilder
    ) -> None:
        payloads = b"1", b"2", b"3", b"4"
        append = build.append("a", *payloads, keys=["k1", None, "k3", "k4"], checkpoint="p")
        accepted(keyed, build.commit(append))
        time = append.records[0].time
        for revision in (1, 3, 4):
            found = keyed.find("a", key=f"k{revision}")
            assert found == [Found(revision, f"k{revision}", time)]
        assert keyed.find("a", key="k2") == []
        stored = keyed.read("a")
        assert [record.key for record in stored] == ["k1", None, "k3", "k4"]
        assert [record.link for record in stored] == [record.link for record in append.records]
        assert self.raw(keyed, place, "a") == stored
        assert keyed.read_all() == stored

    def test_clause_26_a_first_record_needs_no_key(
        self, keyed: Backend, build: RecordBuilder
    ) -> None:
        accepted(keyed, build.commit(build.append("a", b"1", b"2", keys=[None, "k"])))
        assert [one.revision for one in keyed.find("a", key="k")] == [2]

    @pytest.mark.parametrize("at", [0, 1, 2])
    def test_clause_26_one_key_that_is_there_refuses_the_commit(
        self, keyed: Backend, build: RecordBuilder, at: int
    ) -> None:
        write(keyed, build, "a", b"0", b"1")
        write(keyed, build, "a", b"2", key="there")
        keys = ["new0", "new1", "new2"]
        keys[at] = "there"
        append = build.append("a", b"3", b"4", b"5", keys=keys, behind=head_of(keyed, "a"))
        other = build.append("b", b"6", b"7", keys=["x", "y"])
        refusal = refused(keyed, build.commit(append, other, marks=[Mark("i", "m")]))
        assert (refusal.reason, refusal.stream, refusal.revision) == ("duplicate", "a", 3)
        assert revisions(keyed.read("a")) == [1, 2, 3]
        assert keyed.heads(["b"]) == [None]
        assert keyed.marks.list() == []
        for key in {*keys} - {"there"}:
            assert keyed.find("a", key=key) == []
        accepted(keyed, build.commit(build.append("b", b"6", b"7", keys=["x", "y"])))

    def test_clause_26_a_key_of_a_later_record_is_taken_for_good(
        self, keyed: Backend, build: RecordBuilder
    ) -> None:
        accepted(keyed, build.commit(build.append("a", b"1", b"2", keys=["k1", "k2"])))
        for behind in (None, head_of(keyed, "a")):  # whatever the expected revision is (clause 7)
            refusal = refused(keyed, build.commit(build.append("a", key="k2", behind=behind)))
            assert (refusal.reason, refusal.stream, refusal.revision) == ("duplicate", "a", 2)
        accepted(keyed, build.commit(build.append("b", key="k2")))  # a key of stream a

    def test_clause_26_of_several_keys_the_first_is_named(
        self, keyed: Backend, build: RecordBuilder
    ) -> None:
        accepted(keyed, build.commit(build.append("a", b"1", b"2", keys=["k1", "k2"])))
        append = build.append(
            "a", b"3", b"4", b"5", keys=[None, "k2", "k1"], behind=head_of(keyed, "a")
        )
        assert refused(keyed, build.commit(append)).revision == 2

    def test_clause_26_a_later_commit_of_a_list_sees_the_keys_of_the_earlier_ones(
        self, keyed: Backend, build: RecordBuilder
    ) -> None:
        a1 = build.append("a", b"1", b"2", keys=["k1", "k2"])
        commits = [build.commit(a1)]
        commits.append(build.commit(build.append("a", b"3", b"4", keys=["k3", "k2"], behind=a1)))
        a2 = build.append("a", b"5", b"6", keys=["k3", "k4"], behind=a1)
        commits.append(build.commit(a2, marks=[Mark("i", "m")]))
        commits.append(build.commit(marks=[Mark("i", "n")]))
        first, second, third, fourth = keyed.commit(commits)
        assert isinstance(first, Receipt)
        assert isinstance(second, Refusal)
        assert (second.reason, second.revision) == ("duplicate", 2)
        assert isinstance(third, Receipt)
        assert isinstance(fourth, Receipt)
        assert [record.key for record in keyed.read("a")] == ["k1", "k2", "k3", "k4"]
        assert {mark.key for mark in keyed.marks.list()} == {"m", "n"}

    def test_clause_26_a_stale_commit_with_keys_is_a_conflict(
        self, keyed: Backend, build: RecordBuilder
    ) -> None:
        write(keyed, build, "a")
        append = build.append("a", b"3", b"4", keys=["k1", "k2"])
        refusal = refused(keyed, build.commit(append))
        assert refusal == Refusal("conflict", "a", 0, head_of(keyed, "a"))
        assert keyed.find("a", key="k2") == []
