"""What only a PostgreSQL store has: positions beside strangers, poolers, settings, dumps, psql."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.backends.postgresql import PostgresqlBackend, opening
from holdfast.backends.protocol import START, Cleared, Mark, Position, Receipt, Refusal
from holdfast.cli import main
from holdfast.clock import SystemClock
from holdfast.errors import CorruptError, FormatError, NotFoundError, UnavailableError, UsageError
from holdfast.testing import RecordBuilder
from holdfast.testing.durable import check_links
from holdfast.testing.trial import PATIENCE_S, accepted, head_of, revisions, write
from tests.servers import ground
from tests.servers.pooler import Pooler
from tests.servers.postgresql import (
    NEWEST,
    PASSWORD,
    Server,
    installations,
    new_server,
    program,
    server,
)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """A database of this test's own on the shared server."""
    name = request.node.name.replace("[", "_").rstrip("]")[-60:]
    server(NEWEST).create_database(name)
    return name


def _open(url: str, **options: Any) -> PostgresqlBackend:
    return PostgresqlBackend(url, clock=SystemClock(), **options)


# --- batches ----------------------------------------------------------------------------------


def test_a_batch_is_judged_commit_by_commit_where_something_does_not_fit(database: str) -> None:
    """What a refused commit says of streams, marks and keys counts for none of those behind it."""
    backend = _open(server(NEWEST).url(database))
    build = RecordBuilder()
    write(backend, build, "taken")
    for number, misfit in enumerate(("none", "stored", "known", "key")):
        stream = f"s{number}"
        first = build.append(stream, b"1", key="k")
        batch = [build.commit(first, marks=[Mark("i", stream, due=1)], watch=[stream, "w"])]
        if misfit == "stored":
            batch.append(build.commit(build.append("taken"), marks=[Mark("i", stream, due=2)]))
        elif misfit == "known":
            marks = [Mark("i", stream, due=2)]
            batch.append(build.commit(build.append(stream, b"2"), marks=marks, watch=["w"]))
        elif misfit == "key":
            again = build.append(stream, b"2", behind=first, key="k")
            batch.append(build.commit(again, marks=[Mark("i", stream, due=2)]))
        behind = build.append(stream, b"3", b"4", behind=first)
        batch.append(build.commit(behind, watch=["w", stream]))
        batch.append(build.commit(marks=[Mark("j", stream)], watch=[stream]))
        outcomes = backend.commit(batch)
        accepted = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
        assert [one.news for one in accepted] == [
            {stream: 1, "w": 0},
            {"w": 0, stream: 3},
            {stream: 3},
        ]
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
        reasons = {"none": [], "stored": ["conflict"], "known": ["conflict"], "key": ["duplicate"]}
        assert [one.reason for one in refused] == reasons[misfit]
        if misfit == "known":
            head = refused[0].head
            assert head is not None
            assert (head.revision, head.position) == (1, accepted[0].position)
        assert [one.position for one in accepted] == sorted({one.position for one in accepted})
        assert [one.payload for one in backend.read(stream)] == [b"1", b"3", b"4"]
        assert Mark("i", stream, due=1) in backend.marks.list()
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_a_batch_of_any_shape_is_written_whole(database: str) -> None:
    """One event behind another has a short way of its own, and nothing else may take it."""
    backend = _open(server(NEWEST).url(database))
    build = RecordBuilder()
    shapes = [(appends, events, reads) for appends, events in ((1, 1), (1, 2), (2, 1), (0, 0))
              for reads in (0, 1, 2)]  # fmt: skip
    for stream in ("a0", "a1", "b0", "b1", "r0", "r1"):
        write(backend, build, stream)
    for batch in [[one] for one in shapes] + [[one, other] for one in shapes for other in shapes]:
        commits, sent = [], {}
        for name, (appends, events, reads) in zip("ab", batch, strict=False):
            payloads = [b"%d" % number for number in range(events)]
            for number in range(appends):
                sent[f"{name}{number}"] = payloads
            commits.append(
                build.commit(
                    *(
                        build.append(stream, *payloads, behind=head_of(backend, stream))
                        for stream in (f"{name}{number}" for number in range(appends))
                    ),
                    reads=[(f"r{number}", 1) for number in range(reads)],
                )
            )
        before = {stream: head_of(backend, stream).revision for stream in sent}
        receipts = backend.commit(commits)
        assert [type(one) for one in receipts] == [Receipt] * len(commits), batch
        for stream, payloads in sent.items():
            read = backend.read(stream, after=before[stream])
            assert [one.payload for one in read] == payloads, batch
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_of_a_mark_that_a_batch_sets_twice_the_last_stays(database: str) -> None:
    backend = _open(server(NEWEST).url(database))
    build = RecordBuilder()
    sets = [build.commit(marks=[Mark("i", "m", due=due), Mark("i", "n")]) for due in (1, 2)]
    cleared = build.commit(marks=[Cleared("i", "n")])
    backend.commit([*sets, cleared])
    assert backend.marks.list() == [Mark("i", "m", due=2)]
    refused = build.commit(build.append("a"), reads=[("b", 7)], marks=[Mark("i", "m", due=9)])
    backend.commit([*sets, refused])
    assert backend.marks.list() == [Mark("i", "n"), Mark("i", "m", due=2)]
    backend.close()


def test_a_conflict_is_that_of_the_revision_that_does_not_fit(database: str) -> None:
    """A commit can ask for two revisions of one stream, of which one is not there."""
    backend = _open(server(NEWEST).url(database))
    build = RecordBuilder()
    write(backend, build, "a")
    for reads, expected in (([("a", 0)], 0), ([("a", 1), ("a", 7)], 7)):
        append = build.append("a", behind=head_of(backend, "a"))
        [refusal] = backend.commit([build.commit(append, reads=reads)])
        assert isinstance(refusal, Refusal)
        assert (refusal.stream, refusal.expected) == ("a", expected)
    backend.close()


# --- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", installations())
def test_a_foreign_open_transaction_holds_followers_up_and_nobody_else(
    version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guarantee 5: positions never appear late. Followers stop at the snapshot's xmin."""
    running = server(version)
    running.create_database("foreign")
    backend = _open(running.url("foreign"))
    build = RecordBuilder()
    before = write(backend, build, "a").position
    with psycopg.connect(running.url("foreign")) as stranger:
        stranger.execute("CREATE TABLE unrelated (n int)")
        receipts = [write(backend, build, "a"), write(backend, build, "b")]
        # A reader of streams sees them at once, a follower not yet.
        assert revisions(backend.read("a")) == [1, 2]
        assert head_of(backend, "b").position == receipts[1].position
        assert backend.wait(before, timeout_s=0.2) == before
        assert [record.position for record in backend.read_all()] == [before]
        facts = backend.inspect.describe()
        assert facts["lag_events"] == 2
        assert facts["oldest_transaction_s"] > 0
        assert any("followers wait" in report for report in facts["reports"])
        assert main(["--store", running.url("foreign"), "status"]) == 0
        shown = capsys.readouterr().out
        assert "\nlag_events\t2\n" in shown
        assert "followers wait: 2 events come after an open transaction" in shown
        seen = list[Position]()
        follower = threading.Thread(
            target=lambda: seen.append(backend.wait(before, timeout_s=PATIENCE_S))
        )
        follower.start()
        stranger.rollback()
    follower.join(PATIENCE_S)
    assert seen == [receipts[1].position]
    assert [record.position for record in backend.read_all(after=before)] == [
        receipt.position for receipt in receipts
    ]
    assert backend.inspect.describe()["lag_events"] == 0
    backend.close()


def test_positions_grow_with_revisions_also_over_several_streams(database: str) -> None:
    """A transaction has its id only when it has all its locks."""
    url = server(NEWEST).url(database)
    backend = _open(url)
    names = ["a", "b", "c"]

    def work(number: int) -> None:
        build = RecordBuilder(actor=f"w{number}")
        mine = names[number:] + names[:number]
        for _ in range(25):
            while True:
                heads = backend.heads(mine)
                appends = [
                    build.append(name, behind=head) for name, head in zip(mine, heads, strict=True)
                ]
                marks = [Mark("i", name) for name in mine]
                [outcome] = backend.commit([build.commit(*appends, marks=marks)])
                if isinstance(outcome, Receipt):
                    break

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for name in names:
        records = backend.read(name)
        assert revisions(records) == list(range(1, 76))
        positions = [record.position for record in records]
        assert positions == sorted(set(positions))
        check_links(records)
    backend.close()


def test_a_commit_of_more_streams_than_a_server_has_locks_for(database: str) -> None:
    backend = _open(server(NEWEST).url(database))
    build = RecordBuilder()
    names = [f"s{number}" for number in range(5000)]
    other = threading.Thread(target=lambda: write(backend, RecordBuilder(), "beside"))
    other.start()
    receipt = accepted(backend, build.commit(*(build.append(name) for name in names)))
    other.join(PATIENCE_S)
    heads = backend.heads(names)
    assert {head and head.position for head in heads} == {receipt.position}
    backend.close()


def test_a_long_list_of_commits_is_several_transactions(database: str) -> None:
    backend = _open(server(NEWEST).url(database))
    build = RecordBuilder()
    commits = [build.commit(build.append(f"s{number}")) for number in range(2500)]
    outcomes = backend.commit(commits)
    positions = [outcome.position for outcome in outcomes if isinstance(outcome, Receipt)]
    assert len(positions) == 2500
    assert positions == sorted(set(positions))
    backend.close()


# --- dumps and failovers ----------------------------------------------------------------------


@pytest.fixture
def second() -> Iterator[Server]:
    """Another server, whose transaction ids are younger."""
    running = new_server(NEWEST, stranger=True)
    yield running
    running.remove()


def test_positions_go_on_where_a_dump_was_restored(database: str, second: Server) -> None:
    """A store's incarnation: transaction ids begin anew in another server (BOOT-60)."""
    first = server(NEWEST)
    backend = _open(first.url(database))
    build = RecordBuilder()
    for _ in range(200):  # so that the other server's ids are smaller
        receipt = write(backend, build, "a")
    records = backend.read_all(limit=1000)
    backend.close()
    second.create_database(database)
    dump = ("-h", first.directory, "-p", str(first.port), "-U", "tester", database)
    file = first.directory / "dump.sql"
    ground.run(program(NEWEST, "pg_dump"), "-f", file, *dump)
    there = ("-h", second.directory, "-p", str(second.port), "-U", "tester", "-d", database)
    ground.run(program(NEWEST, "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", file, *there)
    with pytest.raises(UnavailableError, match="restored from a dump"):
        _open(second.url(database), read_only=True)
    restored = _open(second.url(database))
    assert restored.read_all(limit=1000) == records
    later = write(restored, build, "a")
    assert later.position > receipt.position
    assert restored.read_all(after=receipt.position) == restored.read("a", after=200)
    assert restored.wait(START, timeout_s=0) == later.position
    restored.close()


def test_positions_go_on_after_a_failover(second: Server) -> None:
    """A standby that had not got everything is promoted: ids that were lost are given again."""
    primary = second
    backend = _open(primary.url())
    build = RecordBuilder()
    write(backend, build, "a")
    standby = primary.standby()
    lost = [write(backend, build, "a") for _ in range(20)]
    backend.close()
    primary.crash()
    standby.promote()
    backend = _open(standby.url())
    # What the standby had got is there. A follower that has seen the lost ones misses nothing new.
    assert revisions(backend.read("a")) == [1]
    later = write(backend, build, "b")
    assert later.position > lost[-1].position
    assert [record.stream for record in backend.read_all(after=lost[-1].position)] == ["b"]
    backend.close()
    standby.remove()


# --- poolers ----------------------------------------------------------------------------------


def test_every_transaction_may_run_in_another_session(database: str) -> None:
    """Transaction-mode poolers: no session state, no session locks, no prepared statements."""
    running = server(NEWEST)
    with Pooler(f"{running.directory}/.s.PGSQL.{running.port}") as pooler:
        url = f"postgresql://tester@127.0.0.1:{pooler.port}/{database}?sslmode=disable"
        build = RecordBuilder()
        backend, other = _open(url), _open(url)
        lease = backend.leases.acquire("l", "w", ttl_s=60)
        assert lease is not None
        for n in range(30):
            write(backend, build, "a", key=f"k{n}", marks=[Mark("i", f"m{n}")])
            write(other, build, "a")
        assert other.leases.acquire("l", "w2", ttl_s=60) is None
        backend.objects.put("blob", "ab/cd", b"x" * 100_000)
        assert other.objects.get("blob", "ab/cd") == b"x" * 100_000
        assert revisions(other.read("a")) == list(range(1, 61))
        assert len(other.marks.claim("i", "w", n=100, ttl_s=60)) == 30
        assert list(other.inspect.verify(read_all=True)) == []
        assert pooler.transactions > 140
        backend.close()
        other.close()


# --- what is refused, and what is said --------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("synchronous_commit = off", "ALTER ROLE tester SET synchronous_commit = on"),
        (
            "default_transaction_isolation = 'repeatable read'",
            "ALTER ROLE tester SET default_transaction_isolation = 'read committed'",
        ),
    ],
    ids=["asynchronous", "repeatable"],
)
def test_a_setting_that_would_break_a_promise_is_refused_with_its_remedy(
    database: str, setting: str, remedy: str
) -> None:
    running = server(NEWEST)
    backend = _open(running.url(database))
    running.psql(database, f'ALTER DATABASE "{database}" SET {setting}')
    with pytest.raises(UsageError) as caught:
        _open(running.url(database))
    assert remedy in str(caught.value)
    # A store that is open already notices too, when it connects anew.
    build = RecordBuilder()
    running.psql("postgres", _terminate(database))
    with pytest.raises(UnavailableError, match=setting.partition(" ")[0]) as unavailable:
        backend.commit([build.commit(build.append("a"))])
    assert unavailable.value.outcome_known
    backend.close()


def _terminate(database: str) -> str:
    return f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"


def test_a_weaker_durability_is_named_and_accepted(database: str) -> None:
    running = server(NEWEST)
    running.psql(database, f'ALTER DATABASE "{database}" SET synchronous_commit = off')
    backend = _open(running.url(database), durability="process")
    write(backend, RecordBuilder(), "a")
    facts = backend.inspect.describe()
    assert facts["durability"] == "process"
    assert any("synchronous_commit is off" in report for report in facts["reports"])
    backend.close()


def test_a_server_without_fsync_is_refused() -> None:
    running = new_server(NEWEST, "fsync = off", "full_page_writes = off")
    with pytest.raises(UsageError, match="set fsync = on"):
        _open(running.url())
    backend = _open(running.url(), durability="none")
    reports = " ".join(backend.inspect.describe()["reports"])
    assert "fsync is off" in reports
    assert "full_page_writes is off" in reports
    backend.close()
    running.remove()


def test_a_database_of_another_encoding_is_refused(database: str) -> None:
    running = server(NEWEST)
    name = "ascii_only"
    running.psql("postgres", f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(UnavailableError, match="expected UTF8"):
        _open(running.url(name))


def test_a_password_is_never_shown(database: str) -> None:
    running = server(NEWEST)
    store = holdfast.open(running.tcp_url(database))
    assert PASSWORD not in f"{store.url} {store!r} {store.status()}"
    store.close()
    wrong = running.tcp_url(database).replace(PASSWORD, "wrong-secret")
    broken = [
        wrong,
        running.tcp_url("nowhere"),
        running.tcp_url(database).replace(f":{running.port}", ":1"),
        running.tcp_url(database).replace(f":{running.port}", ":nonsense"),
        running.tcp_url(database, nonsense=1),
        running.tcp_url(database, schema="a b"),
        running.tcp_url(database, timeout="soon"),
        f"postgresql://u@h/d?password={PASSWORD}&%zz",
        f"postgresql://u:{PASSWORD}@[bad/d",
    ]
    for url in broken:
        with pytest.raises(holdfast.HoldfastError) as caught:
            holdfast.open(url + "&timeout=1" if "?" in url and "timeout" not in url else url)
        error: BaseException | None = caught.value
        while error is not None:
            assert PASSWORD not in f"{error} {error!r}", url
            assert "wrong-secret" not in f"{error} {error!r}", url
            error = error.__cause__


def test_a_missing_store_is_not_made_unasked(database: str) -> None:
    url = server(NEWEST).url(database)
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFoundError):
            _open(url, **options)
    _open(url).close()
    with pytest.raises(NotFoundError, match='application "shop"'):
        _open(url + "&application=shop", create=False)
    reader = _open(url, read_only=True)
    assert reader.streams() == []
    with pytest.raises(UsageError, match="read-only"):
        reader.objects.put("blob", "ab/cd", b"")
    with pytest.raises(UsageError, match="read-only"):
        reader.commit([RecordBuilder().commit(marks=[Mark("i", "m")])])
    reader.close()


# --- the schema -------------------------------------------------------------------------------


def test_eight_handles_make_one_schema(database: str) -> None:
    url = server(NEWEST).url(database)
    opened: list[PostgresqlBackend] = []
    start = threading.Barrier(8)

    def open_one() -> None:
        start.wait()
        opened.append(_open(url))

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    stores = {backend.inspect.describe()["store"] for backend in opened}
    assert (len(opened), len(stores)) == (8, 1)
    for backend in opened:
        backend.close()


def test_a_newer_or_foreign_schema_is_refused(database: str) -> None:
    running = server(NEWEST)
    url = running.url(database)
    _open(url).close()
    running.psql(database, "INSERT INTO holdfast.migrations VALUES (3, 'later')")
    with pytest.raises(FormatError, match="has format 3"):
        _open(url)
    running.psql(
        database,
        "DELETE FROM holdfast.migrations WHERE number = 3",
        "UPDATE holdfast.migrations SET digest = 'other'",
    )
    with pytest.raises(CorruptError, match="another version of SQL file 1"):
        _open(url)


def test_stores_share_a_schema_or_have_their_own(database: str) -> None:
    url = server(NEWEST).url(database)
    stores = [_open(url), _open(url + "&application=shop"), _open(url + "&schema=other")]
    build = RecordBuilder()
    for number, backend in enumerate(stores):
        backend.objects.put("blob", "ab/cd", b"%d" % number)
        for _ in range(number + 1):
            write(backend, build, "a", marks=[Mark("i", f"m{number}")])
        assert backend.leases.acquire("l", f"w{number}", ttl_s=60) is not None
    for number, backend in enumerate(stores):
        assert revisions(backend.read("a")) == list(range(1, number + 2))
        assert backend.marks.list() == [Mark("i", f"m{number}")]
        assert backend.objects.get("blob", "ab/cd") == b"%d" % number
        assert list(backend.inspect.verify(read_all=True)) == []
        backend.close()


def test_an_ordinary_role_is_enough(database: str) -> None:
    """No superuser: the right to make a schema, and nothing else."""
    running = server(NEWEST)
    running.psql(
        database, "CREATE ROLE plain LOGIN", f'GRANT CREATE ON DATABASE "{database}" TO plain'
    )
    backend = _open(running.url(database).replace("tester@", "plain@"))
    write(backend, RecordBuilder(), "a")
    assert backend.inspect.describe()["position"] > 0
    backend.close()


def test_the_tables_can_be_partitioned_by_their_keys(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every primary key begins with the application and the stream: no statement changes."""
    whole = opening.file_text(1)
    table, rest = whole.split("  PRIMARY KEY (application, stream, revision)\n);", 1)
    parts = "".join(
        f"CREATE TABLE holdfast.events_{number} PARTITION OF holdfast.events "
        f"FOR VALUES WITH (MODULUS 3, REMAINDER {number});\n"
        for number in range(3)
    )
    key = (
        "  PRIMARY KEY (application, stream, revision)\n) PARTITION BY HASH (application, stream);"
    )
    texts = {1: f"{table}{key}\n{parts}{rest}", 2: opening.file_text(2)}
    monkeypatch.setattr(opening, "file_text", texts.__getitem__)
    running = server(NEWEST)
    backend = _open(running.url(database))
    build = RecordBuilder()
    for number in range(12):
        write(backend, build, f"s{number % 4}", key=f"k{number}", checkpoint="p")
    assert [head and head.revision for head in backend.heads(["s0", "s1", "s2", "s3"])] == [3] * 4
    assert len(backend.read_all()) == 12
    assert list(backend.inspect.verify(read_all=True)) == []
    used = running.psql(database, "SELECT count(DISTINCT tableoid) FROM holdfast.events")
    assert int(used) > 1
    backend.close()


def test_events_are_read_with_plain_psql(database: str) -> None:
    running = server(NEWEST)
    with holdfast.open(running.url(database)) as store:
        chat = store.conversation("c1")
        chat.set("stage", "triage é \u2028")
        chat.set("nul", "\u0000")
    payloads = running.psql(
        database,
        "SELECT payload FROM holdfast.events WHERE application = 'default' "
        "AND stream = 'conversation/c1' ORDER BY revision",
    ).split("\n")[:-1]
    assert all(json.loads(line) is not None for line in payloads)
    assert any("triage é" in line for line in payloads)
    history = running.psql(database, "SELECT at, type, actor FROM holdfast.history")
    assert history.count("\n") == len(payloads)


def test_damage_is_found(database: str) -> None:
    """Clause 12: what cannot be true is an error, never an absence."""
    running = server(NEWEST)
    backend = _open(running.url(database))
    build = RecordBuilder()
    write(backend, build, "a", b"1", b"2", b"3")
    write(backend, build, "b")
    write(backend, build, "c")
    backend.objects.put("blob", "ab/cd", b"data")
    running.psql(
        database,
        "DELETE FROM holdfast.events WHERE stream = 'a' AND revision = 2",
        "DELETE FROM holdfast.events WHERE stream = 'b'",
        "DELETE FROM holdfast.streams WHERE stream = 'c'",
        "UPDATE holdfast.objects SET data = 'dote'",
        "DROP INDEX holdfast.events_by_checkpoint",
    )
    with pytest.raises(CorruptError, match="event 2"):
        backend.read("a")
    for stream in ("b", "c"):
        with pytest.raises(CorruptError):
            backend.heads([stream])
    with pytest.raises(CorruptError):
        backend.objects.get("blob", "ab/cd")
    found = " ".join(f"{one.where} {one.problem}" for one in backend.inspect.verify(read_all=True))
    for word in ("a@3", "b the stream has no events", "c is not among", "blob ab/cd", "checkpoint"):
        assert word in found, f"{word} not in {found}"
    backend.close()
