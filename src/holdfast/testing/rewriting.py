"""Clauses 28, 29 and 41: letting go of payloads or parts of them, and of nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.backends.protocol import GONE, START, Backend, Mark, Record, Rewrites, Shortens
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import Trial, accepted, head_of, write

CANARY = b'{"secret":"CANARY-7f3a-\\u00e9"}'


class RewriteClauses(Trial):
    """What a backend with `rewrite` promises; a backend without it passes."""

    def test_clause_28_payloads_go_and_nothing_else_changes(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, Rewrites):
            return
        _fill(backend, build)
        before = backend.read_all()
        heads = backend.heads(["a", "b"])
        found = backend.find("a"), backend.find("a", key="k2"), backend.marks.list()
        moved = backend.wait(START, timeout_s=0)
        backend.rewrite({"a": [2, 3, 6], "b": [1]})
        expected = [_without(record, {("a", 2), ("a", 3), ("a", 6), ("b", 1)}) for record in before]
        for _ in range(2):
            assert backend.read_all() == expected
            assert backend.read("a") + backend.read("b") == _by_stream(expected)
            assert backend.heads(["a", "b"]) == heads
            assert (backend.find("a"), backend.find("a", key="k2"), backend.marks.list()) == found
            assert backend.wait(START, timeout_s=0) >= moved
            backend.rewrite({"a": [2, 3, 6], "b": [1]})  # repeated: this changes nothing
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_28_what_comes_after_a_rewrite_follows_what_was_there(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, Rewrites):
            return
        write(backend, build, "a", CANARY, b"2")
        write(backend, build, "a", CANARY)
        backend.rewrite({"a": [1, 3]})
        write(backend, build, "a", b"4")
        backend.rewrite({"a": [1, 2, 3, 4]})
        write(backend, build, "a", b'{"n":5}')
        assert [record.revision for record in backend.read("a")] == [1, 2, 3, 4, 5]
        assert head_of(backend, "a").revision == 5
        payloads = [record.payload for record in backend.read("a")]
        assert payloads[0] == payloads[2] == GONE
        assert payloads[4] == b'{"n":5}'
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_28_a_payload_with_space_and_one_with_halves_of_a_pair(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, Rewrites):
            return
        write(backend, build, "a", b' {"x": "CANARY"}\t', b'"\\ud83d CANARY"', b'"stays \\ude00"')
        kept = backend.read("a")[2]
        backend.rewrite({"a": [1, 2]})
        assert [record.payload for record in backend.read("a")] == [GONE, GONE, kept.payload]

    def test_clause_41_a_part_of_a_payload_goes_and_nothing_else_changes(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, Shortens) or not isinstance(backend, Rewrites):
            return
        _fill(backend, build)
        before, heads = backend.read_all(), backend.heads(["a", "b"])
        found = backend.find("a"), backend.find("a", key="k2"), backend.marks.list()
        shorter = b'{ "secret":"*"}'
        wanted = {"a": {2: shorter, 6: shorter}, "b": {1: shorter}}
        backend.shorten(wanted)
        expected = [
            replace(one, payload=wanted.get(one.stream, {}).get(one.revision, one.payload))
            for one in before
        ]
        for _ in range(2):
            assert backend.read_all() == expected
            assert backend.heads(["a", "b"]) == heads
            assert (backend.find("a"), backend.find("a", key="k2"), backend.marks.list()) == found
            backend.shorten(wanted)  # repeated: this changes nothing
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_41_what_was_shortened_is_shortened_again_and_then_let_go_of(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, Shortens) or not isinstance(backend, Rewrites):
            return
        write(backend, build, "a", CANARY, CANARY)
        backend.shorten({"a": {1: b'{ "secret":"CANARY"}', 2: b'{ "s":1}'}})
        backend.shorten({"a": {1: b'{ "secret":""}'}})
        write(backend, build, "a", b'{"n":3}')
        payloads = [record.payload for record in backend.read("a")]
        assert payloads == [b'{ "secret":""}', b'{ "s":1}', b'{"n":3}']
        backend.rewrite({"a": [2]})
        backend.shorten({"a": {2: b"[]", 1: b"{ }"}})
        assert [one.payload for one in backend.read("a")] == [b"{ }", GONE, b'{"n":3}']
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_29_purge_changes_no_answer_and_names_what_is_left(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not isinstance(backend, Rewrites):
            return
        _fill(backend, build)
        backend.objects.put("blob", "ab/cd", b"data")
        backend.rewrite({"a": [2], "b": [1]})
        before = backend.read_all(), backend.heads(["a", "b"]), backend.marks.list()
        for whole in (False, True):
            for left in backend.purge(whole=whole):
                assert left.where
                assert left.remedy
            assert (backend.read_all(), backend.heads(["a", "b"]), backend.marks.list()) == before
            assert backend.objects.get("blob", "ab/cd") == b"data"
        write(backend, build, "a")
        assert list(backend.inspect.verify(read_all=True)) == []


def _fill(backend: Backend, build: RecordBuilder) -> None:
    """Writes commits over two streams, with keys, checkpoint names, a subject and marks."""
    write(backend, build, "a", b"1", CANARY, key="k1")
    both = [build.append("a", CANARY, b'{"n":4}', behind=head_of(backend, "a"), checkpoint="p")]
    both.append(build.append("b", CANARY, subject="s", key="kb"))
    accepted(backend, build.commit(*both, marks=[Mark("i", "m")]))
    write(backend, build, "a", b'{"n":5}', CANARY, key="k2", checkpoint="q")


def _without(record: Record, gone: set[tuple[str, int]]) -> Record:
    is_gone = (record.stream, record.revision) in gone
    return replace(record, payload=GONE) if is_gone else record


def _by_stream(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.stream, record.revision))
