"""Clauses 10, 11, 14, 15, 20, 23, 24 and 35: what is read is what was committed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from threading import Event, Thread

import pytest

from holdfast.backends.protocol import (
    START,
    Backend,
    Cleared,
    Found,
    Mark,
    MarksAtMoment,
    Moment,
    Position,
    Record,
    keeps_meta,
    linked_row,
    marks_at_moment,
    position_before,
    read_back,
    read_linked,
    read_many,
    read_payloads,
    takes_record_keys,
)
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import (
    HOSTILE_NAMES,
    PATIENCE_S,
    Trial,
    accepted,
    head_of,
    refused,
    revisions,
    write,
)

PAYLOADS = (
    *(b'""', b"0", b"null", b"{}", b"[]", b"[[],[{}]]", b'{ "spaced" :\t1 }', b" 1 "),
    *(b"1.0", b"1e400", b"-0", b"1" * 4000, b'{"a":1,"a":2}', b'{"b":1,"a":2}'),
    *('"é"'.encode(), b'"\\u00e9"', b'"\\ud83d"', b'"\\u0000"', b'"\\n"', b'"a\\/b"'),
    *(
        '"\u2028\x7f\U0001f600"'.encode(),
        b'"]],\\"crc\\":\\"00000000\\"}"',
        b'"' + b"x" * 600_000 + b'"',
    ),
)
"""JSON texts that a backend would change if it decoded them."""


class ReadClauses(Trial):
    """What the reading methods promise."""

    def test_clause_10_a_record_is_read_exactly_as_committed(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        build.actor = "w/é%\U0001f600"
        append = build.append(
            "conversation/é",
            *PAYLOADS,
            key="key é'%",
            checkpoint="before \U0001f600",
            subject="01J9ZSUBJECT",
            type="run.created",
        )
        receipt = accepted(backend, build.commit(append))
        records = backend.read("conversation/é")
        assert backend.read_all() == records
        for written, record in zip(append.records, records, strict=True):
            assert record.position == receipt.position
            for field in ("stream", "revision", "time", "type", "actor", "payload", "link"):
                assert getattr(record, field) == getattr(written, field), field
            for field in ("key", "checkpoint", "subject"):
                assert getattr(record, field) == getattr(written, field), field

    def test_clause_10_rows_to_be_verified_are_the_records(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        assert list(read_linked(backend, "none", after=0, until=None, limit=None)) == []
        append = build.append("a", *PAYLOADS[:-1], key="k", checkpoint="c", subject="01J9Z")
        accepted(backend, build.commit(append, build.append("b", b"1")))
        rows = read_linked(backend, "a", after=0, until=None, limit=None)
        assert list(rows) == list(map(linked_row, backend.read("a")))  # without meta
        meta = '{"source":"é"}' if keeps_meta(backend) else None
        keys = ["k2", None, "k3"] if takes_record_keys(backend) else ()
        behind = head_of(backend, "a")
        append = build.append("a", b"2", b"3", b"4", behind=behind, meta=meta, keys=keys)
        accepted(backend, build.commit(append))
        last = len(PAYLOADS) + 2
        for after, until, limit in product((0, 3, last - 1, last), (None, 5, last), (None, 1, 4)):
            rows = read_linked(backend, "a", after=after, until=until, limit=limit)
            records = backend.read("a", after=after, until=until, limit=limit)
            assert list(rows) == list(map(linked_row, records)), (after, until, limit)

    def test_clause_10_payloads_are_those_of_the_records(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        assert list(read_payloads(backend, "none", after=0, until=9)) == []
        append = build.append("a", *PAYLOADS[:-1], key="k", checkpoint="c", subject="01J9Z")
        accepted(backend, build.commit(append, build.append("b", b"1")))
        accepted(backend, build.commit(build.append("b", b"2", behind=head_of(backend, "b"))))
        again = build.append("a", b"3", b"4", behind=head_of(backend, "a"), type="run.created")
        accepted(backend, build.commit(again))
        last = len(PAYLOADS) + 1
        for after, until in product((0, 3, last - 2, last - 1, last), (1, 5, last, last + 9)):
            rows = read_payloads(backend, "a", after=after, until=until)
            records = backend.read("a", after=after, until=until)
            wanted = [(record.type, record.payload, record.subject) for record in records]
            assert list(rows) == wanted, (after, until)

    @pytest.mark.parametrize("size", [1 << 16, 1 << 20])
    def test_clause_10_large_payloads_are_read_whole(
        self, backend: Backend, build: RecordBuilder, size: int
    ) -> None:
        payload = b'"' + bytes(97 + n % 26 for n in range(size - 2)) + b'"'
        write(backend, build, "a", b"1", payload, b"2")
        write(backend, build, "a", payload[::-1])
        payloads = [record.payload for record in backend.read("a")]
        assert payloads == [b"1", payload, b"2", payload[::-1]]

    def test_clause_10_read_takes_a_range_and_a_limit(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        for _ in range(3):
            write(backend, build, "a", b"1", b"2", b"3")
            write(backend, build, "b")
        everything = range(1, 10)
        for after, until, limit in product(
            (0, 1, 4, 8, 9, 12), (None, 0, 1, 5, 9, 30), (None, 0, 1, 4, 100)
        ):
            wanted = [n for n in everything if n > after and (until is None or n <= until)]
            records = backend.read("a", after=after, until=until, limit=limit)
            assert revisions(records) == wanted[:limit], (after, until, limit)
        assert backend.read("none") == []

    def test_clause_10_a_range_of_a_fork_counts_by_revision(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2", b"3")
        fork = build.append("f", b"4", b"5", b"6", behind=backend.read("a")[2], fork=True)
        accepted(backend, build.commit(fork))
        for after, until, limit in product((0, 2, 3, 4, 6, 9), (None, 0, 3, 4, 6), (None, 1, 2)):
            wanted = [n for n in (4, 5, 6) if n > after and (until is None or n <= until)]
            records = backend.read("f", after=after, until=until, limit=limit)
            assert revisions(records) == wanted[:limit], (after, until, limit)

    def test_clause_10_read_all_returns_whole_commits_in_order(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        for n in range(6):
            appends = [
                build.append(stream, b"1", b"2", behind=backend.heads([stream])[0])
                for stream in ("b", "a", f"c{n}")
            ]
            accepted(backend, build.commit(*appends))
        everything = backend.read_all(limit=1000)
        assert len(everything) == 36
        names = [name for n in range(6) for name in ("b", "b", "a", "a", f"c{n}", f"c{n}")]
        assert [record.stream for record in everything] == names
        for limit in (1, 5, 6, 7, 12, 35, 36, 37):
            pages = list(_pages(backend, limit))
            assert [record for page in pages for record in page] == everything
            for page in pages:
                assert len(page) % 6 == 0, "half a commit"
                assert len(page) < limit + 6, f"far more than {limit}"
        assert backend.read_all(after=everything[-1].position) == []

    def test_clause_10_a_place_within_a_commit_is_before_it(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        """A reader that comes from newer positions asks from one below a commit's position."""
        write(backend, build, "a")
        accepted(backend, build.commit(*(build.append(name) for name in "bcd")))
        write(backend, build, "e")
        everything = backend.read_all()
        for record in everything[1:]:
            before = Position(record.position - 1)
            wanted = [one for one in everything if one.position >= record.position]
            assert backend.read_all(after=before) == wanted
            first = [one for one in wanted if one.position == record.position]
            assert backend.read_all(after=before, limit=1) == first

    def test_clause_10_read_all_passes_commits_without_records(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a")
        for n in range(5):
            accepted(backend, build.commit(marks=[Mark("i", f"m{n}")]))
        write(backend, build, "a")
        [first, second] = backend.read_all()
        assert backend.read_all(after=first.position, limit=1) == [second]
        assert backend.read_all(limit=1) == [first]

    def test_clause_10_an_empty_store_has_nothing(self, backend: Backend) -> None:
        assert backend.read("a") == []
        assert backend.read_all() == []
        assert backend.heads([]) == []
        assert backend.heads(["a", "b"]) == [None, None]
        assert backend.streams() == []
        assert backend.find("a") == []
        assert backend.find("a", key="k") == []
        assert backend.find("a", checkpoint="p") == []
        assert backend.wait(START, timeout_s=0) == START

    def test_clause_11_heads_answer_in_the_order_asked(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2")
        receipt = write(backend, build, "b")
        heads = backend.heads(["b", "none", "a", "b"])
        assert [head and head.revision for head in heads] == [1, None, 2, 1]
        last = backend.read("b")[-1]
        head = head_of(backend, "b")
        assert (head.link, head.time, head.position) == (last.link, last.time, receipt.position)

    def test_clause_11_many_heads_at_once(self, backend: Backend, build: RecordBuilder) -> None:
        names = [f"s{n}" for n in range(1200)]
        accepted(backend, build.commit(*(build.append(name) for name in names[:600])))
        heads = backend.heads(names)
        assert [head is not None for head in heads] == [True] * 600 + [False] * 600

    def test_clause_11_find_by_key_and_by_checkpoint(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", b"1", b"2", key="k1", checkpoint="p")
        write(backend, build, "a", key="k2")
        write(backend, build, "a", checkpoint="q")
        write(backend, build, "a", key="p", checkpoint="p")
        write(backend, build, "b", key="k1", checkpoint="p")
        times = [record.time for record in backend.read("a")]
        assert backend.find("a", key="k1") == [Found(1, "k1", times[0])]
        assert backend.find("a", key="p") == [Found(5, "p", times[4])]
        assert backend.find("a", key="q") == []
        assert backend.find("a", checkpoint="k1") == []
        newest, oldest = Found(5, "p", times[4]), Found(2, "p", times[1])
        assert backend.find("a", checkpoint="p") == [newest, oldest]
        assert backend.find("a", checkpoint="p", limit=1) == [newest]
        assert backend.find("a") == [newest, Found(4, "q", times[3]), oldest]
        assert backend.find("a", limit=2) == [newest, Found(4, "q", times[3])]
        assert backend.find("a", limit=0) == []

    def test_clause_11_wait_returns_at_once_what_is_newer(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        first = write(backend, build, "a").position
        second = write(backend, build, "a").position
        assert backend.wait(START, timeout_s=PATIENCE_S) == second
        assert backend.wait(first, timeout_s=PATIENCE_S) == second

    def test_clause_11_wait_returns_what_there_is_after_its_time(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        assert backend.wait(START, timeout_s=0.01) == START
        position = write(backend, build, "a").position
        assert backend.wait(position, timeout_s=0) == position
        assert backend.wait(position, timeout_s=0.01) == position

    @pytest.mark.parametrize("what", ["records", "marks"])
    def test_clause_11_wait_wakes_for_a_commit_of_another_thread(
        self, backend: Backend, build: RecordBuilder, what: str
    ) -> None:
        before = write(backend, build, "a").position
        waiting, woken = Event(), list[Position]()

        def follow() -> None:
            waiting.set()
            woken.append(backend.wait(before, timeout_s=2 * PATIENCE_S))

        follower = Thread(target=follow)
        follower.start()
        assert waiting.wait(PATIENCE_S)
        if what == "records":
            receipt = write(backend, build, "b")
        else:
            receipt = accepted(backend, build.commit(marks=[Mark("i", "m")]))
        follower.join(PATIENCE_S)
        assert woken == [receipt.position]

    def test_clause_11_every_thread_sees_an_acknowledged_commit(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        seen: list[tuple[int, int, int]] = []

        def look() -> None:
            [head] = backend.heads(["a"])
            found = backend.find("a", key=f"k{len(seen)}")
            seen.append((head.revision if head else 0, len(backend.read("a")), len(found)))

        for n in range(10):
            write(backend, build, "a", key=f"k{n}")
            thread = Thread(target=look)
            thread.start()
            thread.join()
        assert seen == [(n, n, 1) for n in range(1, 11)]

    def test_clause_20_a_moment_has_what_was_acknowledged_and_nothing_later(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        empty = backend.moment()
        assert empty.position == START
        first = write(backend, build, "a").position
        second = build.append("a", behind=head_of(backend, "a"))
        both = accepted(backend, build.commit(second, build.append("b"))).position
        moment = backend.moment()
        marks = accepted(backend, build.commit(marks=[Mark("i", "m")])).position
        later = write(backend, build, "b").position
        given = [first, both, marks, later]
        assert [empty.has(position) for position in given] == [False] * 4
        assert [moment.has(position) for position in given] == [True, True, False, False]
        assert [backend.moment().has(position) for position in given] == [True] * 4
        assert [record.position for record in backend.read_all(after=moment.position)] == [later]

    def test_clause_20_moments_among_writers(self, backend: Backend) -> None:
        """A moment has every commit acknowledged before it, and none that began after it."""
        names = [f"s{n}" for n in range(4)]
        begun, acknowledged = dict.fromkeys(names, 0), dict.fromkeys(names, START)

        def work(name: str) -> None:
            build = RecordBuilder()
            one = other = None
            for n in range(1, 16):
                begun[name] = n
                one = build.append(name, behind=one)
                other = build.append(f"{name}/too", behind=other)
                acknowledged[name] = accepted(backend, build.commit(one, other)).position

        writers = [Thread(target=work, args=(name,)) for name in names]
        for writer in writers:
            writer.start()
        seen: list[tuple[dict[str, Position], Moment, dict[str, int]]] = []
        while any(writer.is_alive() for writer in writers):
            seen.append((dict(acknowledged), backend.moment(), dict(begun)))
        for name in names:
            pairs = zip(backend.read(name), backend.read(f"{name}/too"), strict=True)
            positions = [one.position for one, other in pairs if one.position == other.position]
            assert len(positions) == 15
            for before, moment, after in seen:
                has = [moment.has(position) for position in positions]
                count = has.index(False) if False in has else len(has)
                assert not any(has[count:])
                assert [START, *positions].index(before[name]) <= count <= after[name]
                assert all(position > moment.position for position in positions[count:])

    def test_clause_35_marks_are_of_the_moment(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        empty = marks_at_moment(backend)
        assert (empty.moment.position, empty.newest, empty.marks) == (START, START, [])
        wanted = [Mark("i", "b", 5, 2, "g"), Mark("j", "a", 9), Mark("i", "c", 9, 0, "h")]
        first = accepted(backend, build.commit(build.append("a"), marks=wanted)).position
        found = marks_at_moment(backend)
        assert (found.moment.has(first), found.newest, found.marks) == (True, first, wanted)
        cleared = build.commit(marks=[Cleared("i", "b"), Mark("j", "a", 1)])
        later = accepted(backend, cleared).position
        assert not found.moment.has(later)
        assert marks_at_moment(backend).marks == [Mark("j", "a", 1), Mark("i", "c", 9, 0, "h")]
        assert marks_at_moment(backend).marks == backend.marks.list()

    def test_clause_35_marks_among_writers(self, backend: Backend) -> None:
        """Each commit sets a mark to the number of its event: a moment has both or neither."""
        names = [f"s{n}" for n in range(3)]

        def work(name: str) -> None:
            build = RecordBuilder()
            append = None
            for n in range(1, 21):
                append = build.append(name, behind=append)
                accepted(backend, build.commit(append, marks=[Mark("n", name, n)]))

        writers = [Thread(target=work, args=(name,)) for name in names]
        for writer in writers:
            writer.start()
        seen: list[MarksAtMoment] = []
        while any(writer.is_alive() for writer in writers):
            seen.append(marks_at_moment(backend))
        positions = {name: [one.position for one in backend.read(name)] for name in names}
        for one in seen:
            marked = {mark.key: mark.due for mark in one.marks}
            held = {name: [at for at in positions[name] if one.moment.has(at)] for name in names}
            assert max(max(ats, default=START) for ats in held.values()) == one.newest
            if one.exact:
                counts = {name: len(ats) for name, ats in held.items() if ats}
                assert marked == counts, "marks of another moment"

    def test_clause_14_every_name_is_its_own_stream(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        for name in HOSTILE_NAMES:
            payload = b'"%d"' % HOSTILE_NAMES.index(name)
            write(backend, build, name, payload, key=name, checkpoint=name)
        for number, name in enumerate(HOSTILE_NAMES):
            [record] = backend.read(name)
            assert (record.stream, record.payload) == (name, b'"%d"' % number)
            assert backend.find(name, key=name) == [Found(1, name, record.time)]
            assert backend.find(name, checkpoint=name) == [Found(1, name, record.time)]
            other = HOSTILE_NAMES[number - 1]
            assert backend.find(name, key=other) == [] == backend.find(name, checkpoint=other)
            assert (
                refused(backend, build.commit(build.append(name, key=name))).reason == "duplicate"
            )
        assert backend.streams() == sorted(HOSTILE_NAMES)
        assert len(backend.heads(HOSTILE_NAMES)) == len(HOSTILE_NAMES)

    def test_clause_14_every_name_is_its_own_key(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        for name in HOSTILE_NAMES:
            write(backend, build, "a", key=name)
        for revision, name in enumerate(HOSTILE_NAMES, 1):
            assert [found.revision for found in backend.find("a", key=name)] == [revision]

    def test_clause_14_streams_are_listed_by_prefix_in_pages(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(*(build.append(name) for name in HOSTILE_NAMES)))
        ordered = sorted(HOSTILE_NAMES)
        for prefix in ("", *HOSTILE_NAMES, "nope", "\U0010ffff", "aa"):
            fits = [name for name in ordered if name.startswith(prefix)]
            assert backend.streams(prefix=prefix) == fits, prefix
            for after in ("a", "a/b", "é", "\uffee", "\U0001f600", "z", prefix):
                behind = [name for name in fits if name > after]
                assert backend.streams(prefix=prefix, after=after) == behind, (prefix, after)
                assert backend.streams(prefix=prefix, after=after, limit=2) == behind[:2]
        assert backend.streams(limit=0) == []
        paged: list[str] = []
        while page := backend.streams(after=paged[-1] if paged else "", limit=7):
            paged += page
        assert paged == ordered

    def test_clause_23_pages_of_names_are_full_until_the_last(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        names = [f"{word}/{n:02}" for word in ("a", "ab", "b") for n in range(12)]
        accepted(backend, build.commit(*(build.append(name) for name in reversed(names))))
        for prefix, limit in product(("", "a", "a/", "ab/0", "b/1", "c"), (1, 2, 5, 7, 100)):
            fits = sorted(name for name in names if name.startswith(prefix))
            found: list[str] = []
            while page := backend.streams(
                prefix=prefix, after=found[-1] if found else "", limit=limit
            ):
                assert page == fits[len(found) : len(found) + limit], (prefix, limit)
                found += page
            assert found == fits

    def test_clause_23_a_name_that_is_gone_on_from_need_not_be_there(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        accepted(backend, build.commit(*(build.append(name) for name in ("a/1", "a/3", "b/1"))))
        assert backend.streams(after="a/2") == ["a/3", "b/1"]
        assert backend.streams(prefix="a/", after="a/2", limit=1) == ["a/3"]
        assert backend.streams(prefix="a/", after="a/3", limit=1) == []
        assert backend.streams(prefix="b/", after="a/3", limit=1) == ["b/1"]
        assert backend.streams(prefix="a/", after="c") == []
        assert backend.streams(limit=0) == []

    def test_clause_23_many_streams_are_read_as_each_would_be(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        for name in ("b", "a", HOSTILE_NAMES[-1]):
            write(backend, build, name, b"1", b"2", b"3")
        write(backend, build, "b", b"4")
        fork = build.append("f", b"5", behind=backend.read("a")[1], fork=True)
        accepted(backend, build.commit(fork))
        asked = ["f", "b", "none", "a", HOSTILE_NAMES[-1], "b"]
        for limit in (0, 1, 3, 4, 100):
            found = read_many(backend, asked, limit=limit)
            assert found == [backend.read(name, limit=limit) for name in asked], limit
        assert read_many(backend, [], limit=5) == []

    def test_clause_24_the_newest_are_read_first_in_whole_commits(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        assert read_back(backend) == []
        for n in range(6):
            appends = [
                build.append(stream, b"1", b"2", behind=backend.heads([stream])[0])
                for stream in ("b", "a", f"c{n}")
            ]
            accepted(backend, build.commit(*appends))
            accepted(backend, build.commit(marks=[Mark("i", f"m{n}")]))
        everything = [(record.stream, record.link) for record in backend.read_all()]
        for limit in (1, 5, 6, 7, 12, 35, 36, 37, 1000):
            found: list[tuple[str, bytes]] = []
            until: Position | None = None
            while page := read_back(backend, until=until, limit=limit):
                assert len(page) % 6 == 0, "half a commit"
                assert limit <= len(page) + len(found) or len(page) + len(found) == 36
                assert len(page) < limit + 6, f"far more than {limit}"
                found = [*((record.stream, record.link) for record in page), *found]
                until = position_before(backend, page[0])
            assert found == everything, limit
        assert read_back(backend, limit=0) == []

    def test_clause_24_what_is_read_back_is_what_was_committed(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        first = write(backend, build, "a", b"1", b"2", key="k", checkpoint="p").position
        second = write(backend, build, "b").position
        last = write(backend, build, "a").position
        [*_, newest] = read_back(backend, limit=1)
        assert (newest.link, newest.position) == (head_of(backend, "a").link, last)
        assert revisions(read_back(backend, until=first)) == [1, 2]
        assert [record.stream for record in read_back(backend, until=second, limit=1)] == ["b"]
        found = {(one.stream, one.revision): one for one in read_back(backend)}
        for stream in ("a", "b"):
            for record in backend.read(stream):
                other = found.pop((stream, record.revision))
                for field in ("time", "type", "actor", "payload", "link", "key", "checkpoint"):
                    assert getattr(other, field) == getattr(record, field), field
        assert not found

    def test_clause_15_objects_are_kept_by_kind_and_name(self, backend: Backend) -> None:
        objects = backend.objects
        objects.put("blob", "ab/cdef", b"one")
        objects.put("snapshot", "ab/cdef", b"two")
        objects.put("blob", "ab/cdef0", b"three")
        assert objects.get("blob", "ab/cdef") == b"one"
        assert objects.get("snapshot", "ab/cdef") == b"two"
        assert objects.get("blob", "ab/cde") is None
        assert objects.get("snapshot", "ab/cdef0") is None
        objects.put("blob", "ab/cdef", b"replaced")
        assert objects.get("blob", "ab/cdef") == b"replaced"
        assert objects.get("blob", "ab/cdef0") == b"three"

    @pytest.mark.parametrize("data", [b"", b"\x00", bytes(range(256)), b"\r\n\n", b"x" * (1 << 20)])
    def test_clause_15_objects_are_any_bytes(self, backend: Backend, data: bytes) -> None:
        backend.objects.put("blob", "ab/0", data)
        assert backend.objects.get("blob", "ab/0") == data
        backend.objects.put("blob", "ab/0", b"short")
        assert backend.objects.get("blob", "ab/0") == b"short"

    def test_clause_15_objects_are_listed_and_deleted(self, backend: Backend) -> None:
        objects = backend.objects
        longest = "s/" + "9" * 118
        names = sorted(["aa/1", "aa/10", "aa/2", "ab/1", "b.c-d/0", longest])
        for name in reversed(names):
            objects.put("snapshot", name, name.encode())
        objects.put("blob", "aa/3", b"")
        assert objects.names("snapshot") == names
        assert objects.names("snapshot", prefix="aa/") == ["aa/1", "aa/10", "aa/2"]
        assert objects.names("snapshot", prefix="aa/1") == ["aa/1", "aa/10"]
        assert objects.names("snapshot", prefix="x") == []
        objects.delete("snapshot", "aa/1")
        objects.delete("snapshot", "aa/1")
        objects.delete("snapshot", "never")
        assert objects.get("snapshot", "aa/1") is None
        assert objects.names("snapshot", prefix="aa/") == ["aa/10", "aa/2"]
        assert objects.names("blob") == ["aa/3"]


def _pages(backend: Backend, limit: int) -> Iterator[list[Record]]:
    position = START
    while page := backend.read_all(after=position, limit=limit):
        yield page
        position = page[-1].position
