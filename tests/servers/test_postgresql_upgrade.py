"""Stores that an earlier holdfast made: upgraded when they are opened, and shared with old workers.

The earlier one wrote a commit by three functions, which are all there yet. A schema of that time is
made here with its own SQL files, and what an old worker sends is encoded by their description.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import CorruptError, UnavailableError
from holdfast.backends.postgresql import PostgresqlBackend, opening
from holdfast.backends.postgresql.batch import locks_of
from holdfast.backends.postgresql.connection import in_schema
from holdfast.backends.postgresql.rows import record_crc
from holdfast.backends.protocol import Append, Commit, Fence, Mark, Receipt, Record, Refusal
from holdfast.clock import SystemClock
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import revisions, write
from tests.servers import postgresql

FUNCTIONS = """SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace
 AND proname = 'commit'"""
TABLES = ("stores", "streams", "events", "silent", "leases", "marks", "objects")


class OldWorker:
    """A connection that commits as the earlier holdfast did, by `commit_each`."""

    def __init__(self, url: str) -> None:
        self.line = psycopg.connect(url, autocommit=True)
        self.count = 0

    def commit(self, *commits: Commit) -> list[list[Any]]:
        locks = locks_of("default", commits)
        batch = json.dumps([self._encoded(commit) for commit in commits])
        values = list(locks), list(locks.values()), batch
        call = "SELECT holdfast.commit_each('default', true, %s, %s, %s)"
        [(answer,)] = self.line.execute(call, values).fetchall()
        return json.loads(answer)

    def _encoded(self, commit: Commit) -> list[Any]:
        appends = [
            [
                append.stream,
                append.expected,
                append.fork,
                append.previous.hex() if append.previous else None,
                append.records[0].key,
                [_record(record) for record in append.records],
                append.expires_us or None,
            ]
            for append in commit.appends
        ]
        marks = [
            [mark.index, mark.key, mark.due, mark.priority, mark.group]
            for mark in commit.marks
            if isinstance(mark, Mark)
        ]
        fence = [commit.fence.name, commit.fence.owner, commit.fence.epoch] if commit.fence else []
        self.count += 1
        token = None if appends else f"token-{self.count}"
        return [appends, commit.reads, fence, marks, [], commit.time, commit.actor, token, False]

    def head(self, stream: str) -> tuple[int, bytes]:
        newest = """SELECT revision, link FROM holdfast.events WHERE application = 'default'
         AND stream = %s ORDER BY revision DESC LIMIT 1"""
        return self.line.execute(newest, (stream,)).fetchall()[0]


def _record(record: Record) -> list[Any]:
    fields = record.type, record.payload.decode(), record.link.hex(), record.checkpoint
    return [*fields, record.subject, record_crc(record)]


@pytest.fixture(params=sorted(postgresql.installations()))
def old(request: pytest.FixtureRequest) -> Iterator[tuple[str, OldWorker]]:
    """The URL of a database with a schema as an earlier holdfast made it, and its worker."""
    running = postgresql.server(request.param)
    name = request.node.name.replace("[", "_").rstrip("]")[-60:]
    running.create_database(name)
    url = running.url(name)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA holdfast")
        for number in (1, 2):
            connection.execute(in_schema(opening.file_text(number), "holdfast").encode())
            done = "INSERT INTO holdfast.migrations (number, digest) VALUES (%s, %s)"
            connection.execute(done, (number, opening.digest_of(number)))
        connection.execute(
            """INSERT INTO holdfast.stores SELECT 'default', 'made-before', 2, holdfast.now_us(),
             system_identifier, holdfast.timeline(), 0 FROM pg_control_system()"""
        )
    worker = OldWorker(url)
    yield url, worker
    worker.line.close()


def _backend(url: str, **options: Any) -> PostgresqlBackend:
    return PostgresqlBackend(url, clock=SystemClock(), **options)


def _rows(worker: OldWorker) -> dict[str, list[Any]]:
    return {
        table: worker.line.execute(f"SELECT * FROM holdfast.{table} ORDER BY 1, 2, 3").fetchall()
        for table in (*TABLES, "migrations")
    }


def _written(worker: OldWorker, build: RecordBuilder) -> list[Record]:
    """Writes what a store can hold, and returns its records."""
    first = build.append("a", b"1", b"2", key="k", checkpoint="p", subject="s")
    second = build.append("b", '"é\\u0000"'.encode())
    [position, _], *_ = worker.commit(
        build.commit(first, second, marks=[Mark("i", "m", due=3)]),
        build.commit(marks=[Mark("i", "n")]),
    )
    assert isinstance(position, int)
    return [*first.records, *second.records]


def test_a_store_of_before_is_upgraded_with_its_data_intact(old: tuple[str, OldWorker]) -> None:
    url, worker = old
    build = RecordBuilder()
    records = _written(worker, build)
    before = _rows(worker)
    backend = _backend(url)
    assert _rows(worker) == before
    assert len(worker.line.execute(FUNCTIONS).fetchall()) == 1
    found = [*backend.read("a"), *backend.read("b")]
    assert [(one.payload, one.link, one.key, one.checkpoint) for one in found] == [
        (one.payload, one.link, one.key, one.checkpoint) for one in records
    ]
    assert [mark.key for mark in backend.marks.list()] == ["n", "m"]
    [refusal] = backend.commit([build.commit(build.append("a", behind=records[1], key="k"))])
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.revision) == ("duplicate", 1)
    write(backend, build, "a", key="l")
    assert revisions(backend.read("a")) == [1, 2, 3]
    assert list(backend.inspect.verify(read_all=True)) == []
    assert backend.inspect.describe()["format"] == 2
    backend.close()
    _backend(url).close()


def test_an_earlier_holdfast_opens_a_store_that_was_upgraded(old: tuple[str, OldWorker]) -> None:
    """It knows two files by their digests, and refuses any other number."""
    url, worker = old
    _backend(url).close()
    done = "SELECT number, digest FROM holdfast.migrations ORDER BY number"
    assert worker.line.execute(done).fetchall() == [
        (1, opening.digest_of(1)),
        (2, opening.digest_of(2)),
    ]
    assert worker.line.execute("SELECT format FROM holdfast.stores").fetchall() == [(2,)]


def test_who_only_reads_upgrades_nothing(old: tuple[str, OldWorker]) -> None:
    url, worker = old
    records = _written(worker, RecordBuilder())
    backend = _backend(url, read_only=True)
    assert [one.link for one in backend.read("a")] == [one.link for one in records[:2]]
    assert worker.line.execute(FUNCTIONS).fetchall() == []
    backend.close()


def test_many_workers_upgrade_at_once(old: tuple[str, OldWorker]) -> None:
    url, worker = old
    gate, failed = threading.Barrier(6), list[BaseException]()

    def work(number: int) -> None:
        try:
            gate.wait()
            backend = _backend(url)
            write(backend, RecordBuilder(), f"s{number}")
            backend.close()
        except BaseException as error:
            failed.append(error)

    _together([lambda number=number: work(number) for number in range(6)])
    assert failed == []
    assert len(worker.line.execute(FUNCTIONS).fetchall()) == 1
    [(streams,)] = worker.line.execute("SELECT count(*) FROM holdfast.streams").fetchall()
    assert streams == 6


def _together(tasks: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_upgrade_that_is_cut_off_leaves_the_store_as_it_was(
    old: tuple[str, OldWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is ended behind the last statement, and before the commit."""
    url, worker = old
    _written(worker, RecordBuilder())
    before = _rows(worker)
    ended = "SELECT pg_terminate_backend(pg_backend_pid())"
    monkeypatch.setattr(opening, "_ADD_FUNCTIONS", f"{opening._ADD_FUNCTIONS}; {ended}")
    with pytest.raises(UnavailableError):
        _backend(url)
    assert _rows(worker) == before
    assert worker.line.execute(FUNCTIONS).fetchall() == []
    monkeypatch.undo()
    backend = _backend(url)
    assert revisions(backend.read("a")) == [1, 2]
    write(backend, RecordBuilder(), "c")
    backend.close()


def test_old_and_new_workers_write_side_by_side(old: tuple[str, OldWorker]) -> None:
    """To one stream, each behind whatever it finds: no event is lost, none has a gap behind it."""
    url, worker = old
    _written(worker, RecordBuilder())
    backend = _backend(url)
    taken: dict[str, list[bytes]] = {"old": [], "new": []}

    def old_work() -> None:
        build = RecordBuilder(actor="old")
        while len(taken["old"]) < 60:
            append = _behind(build, *worker.head("a"))
            [answer] = worker.commit(build.commit(append))
            if isinstance(answer[0], int):
                taken["old"].append(append.records[0].link)

    def new_work() -> None:
        build = RecordBuilder(actor="new")
        while len(taken["new"]) < 60:
            [head] = backend.heads(["a"])
            assert head is not None
            append = _behind(build, head.revision, head.link)
            batch = [build.commit(append), build.commit(marks=[Mark("i", "m")])]
            outcome, marked = backend.commit(batch)
            assert isinstance(marked, Receipt)
            if isinstance(outcome, Receipt):
                taken["new"].append(append.records[0].link)

    _together([old_work, new_work])
    found = backend.read("a", after=2)
    assert revisions(found) == list(range(3, 123))
    for actor, links in taken.items():
        assert [one.link for one in found if one.actor == actor] == links
    positions = [one.position for one in found]
    assert positions == sorted(set(positions))
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def _behind(build: RecordBuilder, revision: int, link: bytes) -> Append:
    last = Record("a", revision, build.time, "t", "a", b"[]", link)
    append = build.append("a", behind=last)
    return Append("a", revision, append.records, previous=link)


def test_old_and_new_workers_refuse_each_other_for_the_same_reasons(
    old: tuple[str, OldWorker],
) -> None:
    url, worker = old
    build = RecordBuilder()
    [last] = _written(worker, build)[1:2]
    backend = _backend(url)
    lease = backend.leases.acquire("l", "w", ttl_s=60)
    assert lease is not None
    fenced = Fence("l", "w", lease.epoch - 1)
    ahead = RecordBuilder(1 << 52)
    cases = [
        build.commit(build.append("a", behind=last, key="k")),
        build.commit(build.append("c"), fence=fenced),
        build.commit(build.append("a", behind=last), reads=[("b", 7)]),
        build.commit(build.append("b")),
        build.commit(build.append("c", expires_us=1)),
        ahead.commit(ahead.append("c")),
    ]
    for commit in cases:
        [told] = worker.commit(commit)
        [outcome] = backend.commit([commit])
        assert isinstance(outcome, Refusal)
        assert [outcome.reason, outcome.stream] == told[:2]
    backend.close()


def test_a_function_of_another_version_is_not_called(old: tuple[str, OldWorker]) -> None:
    url, worker = old
    _backend(url).close()
    worker.line.execute("COMMENT ON FUNCTION holdfast.commit IS 'of another version'")
    with pytest.raises(CorruptError, match="another version of the SQL file of functions"):
        _backend(url)
    _backend(url, read_only=True).close()


def test_a_dump_without_comments_is_upgraded(old: tuple[str, OldWorker]) -> None:
    url, worker = old
    _backend(url).close()
    worker.line.execute("COMMENT ON FUNCTION holdfast.commit IS NULL")
    backend = _backend(url)
    write(backend, RecordBuilder(), "a")
    backend.close()


def test_a_role_that_may_not_upgrade_is_told_who_must(old: tuple[str, OldWorker]) -> None:
    url, worker = old
    role = f"plain{abs(hash(url))}"
    for statement in (
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA holdfast TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role}",
        f"GRANT EXECUTE ON FUNCTION pg_control_system TO {role}",
    ):
        worker.line.execute(statement)
    theirs = url.replace("tester@", f"{role}@")
    with pytest.raises(UnavailableError, match=f'upgraded, which role "{role}" may not do') as told:
        _backend(theirs)
    assert "as the role that owns its tables" in str(told.value)
    _backend(theirs, read_only=True).close()
    _backend(url).close()
    backend = _backend(theirs)
    write(backend, RecordBuilder(), "a")
    backend.close()


def test_a_large_commit_beside_one_that_is_refused_is_written_in_time(
    old: tuple[str, OldWorker],
) -> None:
    """The time that it takes grows with its events: it took their square."""
    url, _ = old
    build = RecordBuilder()
    backend = _backend(f"{url}&timeout=10")
    payloads = [b'"%d %s"' % (number, b"x" * 1000) for number in range(6000)]
    large = build.commit(build.append("large", *payloads))
    late = build.commit(build.append("a"), reads=[("b", 7)])
    outcomes = backend.commit([late, large])
    assert [type(outcome) for outcome in outcomes] == [Refusal, Receipt]
    [head] = backend.heads(["large"])
    assert head is not None
    assert head.revision == 6000
    backend.close()


def test_a_store_is_written_by_one_function(old: tuple[str, OldWorker]) -> None:
    """Whatever is committed, and whether it is accepted."""
    url, worker = old
    for name in ("commit_one", "commit_all", "commit_each"):
        dropped = f"""DO $$ DECLARE one regprocedure; BEGIN FOR one IN SELECT oid FROM pg_proc
         WHERE proname = '{name}' AND pronamespace = 'holdfast'::regnamespace
         LOOP EXECUTE 'DROP FUNCTION ' || one; END LOOP; END $$"""
        worker.line.execute(dropped)
    with holdfast.open(url) as store:
        store.team("red").set("n", 1)
        store.team("red").set("n", 2)
        with store.commit() as tx:
            tx.scope(store.team("red")).set("n", 3)
            tx.scope(store.team("blue")).set("n", 3)
        store.conversation("c").say("hello")
        with store.workers.lease("l", ttl_s=60):
            assert store.check(read_all=True).ok
