"""Clause 27: the meta of an event is stored and returned unchanged, or refused."""

from __future__ import annotations

import pytest

from holdfast import Settings
from holdfast.backends.protocol import Backend, Receipt, Refusal, keeps_meta
from holdfast.core.event import record_link
from holdfast.core.meta import Meta
from holdfast.errors import UsageError
from holdfast.opening import open_store
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import Trial, accepted, write

METAS = (
    '{"source":"web"}',
    '{"schema":2,"source":"é \U0001f600 \\" \\\\ \\u0000 \\u0020","later":{"a":[1, null]}}',
    "{ }",
)
"""Texts that a backend must return unchanged, with spaces, escapes and unknown keys."""


class MetaClauses(Trial):
    """What a backend with meta promises, and what a store does with a backend without."""

    def test_clause_27_meta_is_read_exactly_as_committed(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not keeps_meta(backend):
            return  # it never gets any, as `a_store_keeps_meta_or_refuses_it` shows
        link = bytes(32)
        for number, meta in enumerate(METAS):
            behind = backend.heads(["a"])[0]
            append = build.append(
                "a",
                b"1",
                b' "x"\t',
                behind=behind,
                key=f"k{number}" if number else None,
                checkpoint="p" if number else None,
                subject="s" if number else None,
                meta=meta,
            )
            accepted(backend, build.commit(append))
            write(backend, build, "a", b"2")
        records = backend.read("a")
        expected = [said for meta in METAS for said in (meta, meta, None)]
        assert [record.meta for record in records] == expected
        assert [record.payload for record in records] == [b"1", b' "x"\t', b"2"] * len(METAS)
        assert backend.read_all() == records
        for record in records:
            link = record_link(link, record)
            assert record.link == link
        assert list(backend.inspect.verify(read_all=True)) == []

    def test_clause_27_a_list_of_commits_has_meta_where_it_was_given(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        if not keeps_meta(backend):
            return
        write(backend, build, "b")
        first = build.append("a", meta=METAS[0])
        commits = [build.commit(first, build.append("c"))]
        commits.append(build.commit(build.append("b", meta=METAS[1])))  # stale: b is at 1
        commits.append(build.commit(build.append("a", behind=first, meta=METAS[1])))
        outcomes = backend.commit(commits)
        assert [type(outcome) for outcome in outcomes] == [Receipt, Refusal, Receipt]
        assert [record.meta for record in backend.read("a")] == [METAS[0], METAS[1]]
        assert [record.meta for record in backend.read("b")] == [None]
        assert [record.meta for record in backend.read("c")] == [None]

    def test_clause_27_a_store_keeps_meta_or_refuses_it(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        meta = Meta(schema=3, source="import", trust="low")
        store = open_store(backend, settings=Settings(clock=clock))
        team = store.team("red")
        team.set("n", 1)
        if keeps_meta(backend):
            with store.commit(meta=meta) as tx:
                tx.scope(team).set("n", 2)
            assert [event.meta for event in team.history()] == [None, meta]
        else:
            with (
                pytest.raises(UsageError, match="does not keep meta"),
                store.commit(meta=meta) as tx,
            ):
                tx.scope(team).set("n", 2)
            assert team.get("n") == 1
        store.close()
