"""What only a Redis store has: settings that decide what a receipt is worth, URLs, redis-cli."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

import holdfast
from holdfast.backends.protocol import START, Cleared, Mark, Receipt
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.server import RedisServer as Facts
from holdfast.backends.redis.server import server_of
from holdfast.clock import SystemClock
from holdfast.errors import CorruptError, FormatError, NotFoundError, UnavailableError, UsageError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, accepted, head_of, revisions, write
from tests.servers.redis import OLDEST, PASSWORD, Server, installations, new_server, server
from tests.servers.tls import Terminator, self_signed


@pytest.fixture(params=list(installations()))
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose settings this test may change."""
    running = new_server(request.param)
    yield running
    running.remove()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A store of this test's own on the shared server."""
    return server(OLDEST).url(application=request.node.name[:100])


def _open(url: str, **options: Any) -> RedisBackend:
    return RedisBackend(url, clock=SystemClock(), **options)


def _waits(running: Server) -> bool:
    """Returns whether the server has WAITAOF, so that `everysec` can be waited for."""
    with running.client() as client:
        try:
            client.execute_command("WAITAOF", 0, 0, 1)
        except redis.ResponseError:
            return False
    return True


# --- what a receipt is worth ------------------------------------------------------------------


def test_full_needs_a_sync_before_the_answer(own_server: Server) -> None:
    """Refused with the exact setting to change, unless the server can be waited for."""
    with own_server.client() as client:
        client.config_set("appendfsync", "everysec")
    if _waits(own_server):
        backend = _open(own_server.url())
        write(backend, RecordBuilder(), "a")
        assert backend.inspect.describe()["waits_for_sync"]
        backend.close()
    else:
        with pytest.raises(UsageError, match="whose appendfsync is everysec") as caught:
            _open(own_server.url())
        assert "CONFIG SET appendfsync always" in str(caught.value)
    backend = _open(own_server.url(), durability="process")
    facts = backend.inspect.describe()
    assert (facts["durability"], facts["server_durability"]) == ("process", "process")
    assert any("appendfsync is everysec" in report for report in facts["reports"])
    backend.close()


def test_syncs_that_stop_during_a_rewrite_are_not_full(own_server: Server) -> None:
    with own_server.client() as client:
        client.config_set("no-appendfsync-on-rewrite", "yes")
    if not _waits(own_server):
        with pytest.raises(UsageError, match="CONFIG SET no-appendfsync-on-rewrite no"):
            _open(own_server.url())
    backend = _open(own_server.url(), durability="process")
    assert backend.inspect.describe()["server_durability"] == "process"
    backend.close()


def test_a_server_without_a_file_keeps_nothing(own_server: Server) -> None:
    with own_server.client() as client:
        client.config_set("appendonly", "no")
    for durability in ("full", "process"):
        with pytest.raises(UsageError, match="CONFIG SET appendonly yes"):
            _open(own_server.url(), durability=durability)
    backend = _open(own_server.url(), durability="none")
    assert backend.inspect.describe()["server_durability"] == "none"
    backend.close()


def test_settings_are_read_again_with_every_connection(own_server: Server) -> None:
    setting = "appendonly" if _waits(own_server) else "appendfsync"
    backend = _open(own_server.url())
    build = RecordBuilder()
    write(backend, build, "a")
    with own_server.client() as client:
        client.config_set(setting, "no")
        client.client_kill_filter(_type="normal", skipme=True)
    for call in (
        lambda: backend.heads(["a"]),
        lambda: backend.commit([build.commit(build.append("b"))]),
    ):
        with pytest.raises(UsageError, match=f"CONFIG SET {setting}"):
            call()
    backend.close()


def test_where_config_is_forbidden_full_is_refused(own_server: Server) -> None:
    """As on many managed servers: INFO says that there is a file, not when it is synced."""
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config")
    url = own_server.url().replace(f":{PASSWORD}@", "app:pw@")
    if not _waits(own_server):
        with pytest.raises(UsageError, match="allow CONFIG GET to this user"):
            _open(url)
    backend = _open(url, durability="process")
    assert backend.inspect.describe()["appendfsync"] is None
    write(backend, RecordBuilder(), "a")
    backend.close()


def test_an_ordinary_user_is_enough(own_server: Server) -> None:
    """The rights that docs/guides/redis.md names, and no other keys."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "guides" / "redis.md"
    [rule] = [line for line in guide.read_text().splitlines() if line.startswith("ACL SETUSER")]
    with own_server.client() as client:
        client.execute_command(*rule.replace(">password", ">pw").split())
    url = own_server.url().replace(f":{PASSWORD}@", "agents:pw@")
    backend = _open(url)
    write(backend, RecordBuilder(), "a", key="k", checkpoint="p", marks=[Mark("i", "m")])
    backend.objects.put("blob", "ab/cd", b"x")
    assert backend.leases.acquire("l", "w", ttl_s=60) is not None
    assert len(backend.marks.claim("i", "w", n=1, ttl_s=60)) == 1
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()
    with pytest.raises(UnavailableError, match="grant the user"):
        _open(f"{url}&application=other")


def test_a_server_that_is_too_old_is_refused() -> None:
    old = server_of(b"redis_version:5.0.14\r\nrole:master\r\naof_enabled:1\r\n", None, None)
    backend = _open(server(OLDEST).url())
    with pytest.raises(UnavailableError, match=r"expected 6\.2 or later"):
        old.check(backend.server_url, "none")
    backend.close()


def test_valkey_and_waitaof_are_told_by_the_version() -> None:
    info = b"redis_version:7.2.4\r\nvalkey_version:8.1.0\r\nrole:master\r\naof_enabled:1\r\n"
    facts: Facts = server_of(info, [b"appendfsync", b"everysec"], None)
    assert (facts.name, facts.version, facts.has_waitaof) == ("valkey", "8.1.0", True)
    assert facts.waits("full")
    assert not facts.waits("process")


# --- the store and its URL --------------------------------------------------------------------


def test_a_password_is_never_shown() -> None:
    running = server(OLDEST)
    store = holdfast.open(running.tcp_url(application="shown"))
    assert PASSWORD not in f"{store.url} {store!r} {store.status()}"
    store.close()
    broken = [
        running.tcp_url(timeout=0.5).replace(PASSWORD, "wrong-secret"),
        running.tcp_url(timeout=0.5).replace(f":{running.port}", ":1"),
        running.tcp_url().replace(f":{running.port}", ":nonsense"),
        running.tcp_url(timeout="soon"),
        running.tcp_url(pool=0),
        running.tcp_url(application="a{b}"),
        running.tcp_url(protocol=3),
        running.tcp_url().replace("/0?", "/zero?"),
        f"redis://h/0?password={PASSWORD}&db=x",
        f"unix://:{PASSWORD}@",
    ]
    for url in broken:
        with pytest.raises(holdfast.HoldfastError) as caught:
            holdfast.open(url)
        error: BaseException | None = caught.value
        while error is not None:
            assert PASSWORD not in f"{error} {error!r}", url
            assert "wrong-secret" not in f"{error} {error!r}", url
            error = error.__cause__


def test_tls_is_spoken_where_the_url_says_so(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with Terminator(server(OLDEST).port, certificate) as terminator:
        where = f":{PASSWORD}@localhost:{terminator.port}/0?application=tls&timeout=5"
        backend = _open(f"rediss://{where}&ssl_ca_certs={quote(str(certificate))}")
        build = RecordBuilder()
        write(backend, build, "a", b'"' + b"x" * 300_000 + b'"')
        assert len(backend.read("a")[0].payload) == 300_002
        backend.close()
        with pytest.raises(UnavailableError) as caught:
            _open(f"rediss://{where.replace('timeout=5', 'timeout=0.3')}")
        assert "certificate" in str(caught.value).lower()
        assert PASSWORD not in str(caught.value)


def test_a_missing_store_is_not_made_unasked(url: str) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFoundError, match="there is no store of application"):
            _open(url, **options)
    _open(url).close()
    reader = _open(url, read_only=True)
    assert reader.streams() == []
    with pytest.raises(UsageError, match="read-only"):
        reader.objects.put("blob", "ab/cd", b"")
    with pytest.raises(UsageError, match="read-only"):
        reader.commit([RecordBuilder().commit(marks=[Mark("i", "m")])])
    reader.close()


def test_eight_handles_make_one_store(url: str) -> None:
    opened: list[RedisBackend] = []
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


def test_stores_share_a_server(url: str) -> None:
    stores = [_open(url), _open(f"{url}-2"), _open(f"{url}&db=3")]
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


def test_keys_of_another_program_are_left_alone(own_server: Server) -> None:
    with own_server.client() as client:
        client.set("holdfast:{default}", "theirs")
        with pytest.raises(FormatError, match="another program"):
            _open(own_server.url())
        assert client.get("holdfast:{default}") == b"theirs"


def test_events_are_read_with_redis_cli(url: str) -> None:
    with holdfast.open(url) as store:
        store.conversation("c1").set("stage", "triage é \u2028")
        application = store.status()["application"]
    with server(OLDEST).client() as client:
        [(id, fields)] = client.xrange(f"holdfast:{{{application}}}:events:conversation/c1")
    assert id == b"1-0"
    assert fields[b"payload"] == '[["set","stage","triage é \u2028"]]'.encode()
    assert list(fields)[-1] == b"payload"


# --- large and long ---------------------------------------------------------------------------


def test_a_commit_of_very_many_streams(url: str) -> None:
    backend = _open(url)
    build = RecordBuilder()
    names = [f"s{number}" for number in range(5000)]
    receipt = accepted(backend, build.commit(*(build.append(name) for name in names)))
    later = write(backend, build, "beside")
    assert {head and head.position for head in backend.heads(names)} == {receipt.position}
    assert [record.stream for record in backend.read_all(limit=1)] == names
    assert [r.stream for r in backend.read_all(after=receipt.position)] == ["beside"]
    assert backend.wait(START, timeout_s=0) == later.position
    backend.close()


def test_a_long_list_of_commits_and_a_long_stream(url: str) -> None:
    backend = _open(url)
    build = RecordBuilder()
    commits = []
    behind = None
    for _ in range(2500):
        append = build.append("a", behind=behind)
        commits.append(build.commit(append))
        behind = append
    outcomes = backend.commit(commits)
    positions = [outcome.position for outcome in outcomes if isinstance(outcome, Receipt)]
    assert len(positions) == 2500
    assert positions == sorted(set(positions))
    assert revisions(backend.read("a")) == list(range(1, 2501))
    assert revisions(backend.read("a", after=1500, until=2499)) == list(range(1501, 2500))
    assert revisions(backend.read("a", limit=1234)) == list(range(1, 1235))
    backend.close()


# --- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", ["event", "events", "head", "heads", "log", "key", "checkpoint", "object", "root"]
)
def test_what_is_gone_is_never_an_absence(url: str, what: str) -> None:
    """Clause 12: every kind of key, deleted or changed behind the backend's back."""
    backend = _open(url)
    build = RecordBuilder()
    for n in range(3):
        write(backend, build, "a", key=f"k{n}", checkpoint=f"p{n}")
    backend.objects.put("blob", "ab/cd", b"x")
    root = f"holdfast:{{{backend.server_url.application}}}"
    with server(OLDEST).client() as client:
        match what:
            case "event":
                client.xdel(f"{root}:events:a", "2-0")
            case "events":
                client.delete(f"{root}:events:a")
            case "head":
                client.hset(f"{root}:heads", "a", "3 nonsense")
            case "heads":
                client.delete(f"{root}:heads")
            case "log":
                client.delete(f"{root}:log")
            case "key":
                client.hdel(f"{root}:keys:a", "k1")
            case "checkpoint":
                client.delete(f"{root}:checkpoints:a")
            case "object":
                client.set(f"{root}:object:blob:ab/cd", b"00000000x")
            case _:
                client.delete(root)
    if what in ("event", "events", "head", "heads"):
        with pytest.raises(CorruptError):
            backend.read("a")
    if what == "head":
        with pytest.raises(CorruptError):
            backend.commit([build.commit(build.append("a"))])
    if what == "root":
        with pytest.raises(NotFoundError):
            backend.read("a")
        with pytest.raises(CorruptError, match="has lost the key"):
            _open(url)
    else:
        assert list(backend.inspect.verify(read_all=True)) != []
    backend.close()


def test_a_mark_is_in_one_set_at_a_time(url: str) -> None:
    """Clause 17, over many claims: due, ready and held hold each mark once between them."""
    backend = _open(url)
    build = RecordBuilder()
    root = f"holdfast:{{{backend.server_url.application}}}"
    due = SystemClock().now_us() - 1
    accepted(backend, build.commit(marks=[Mark("i", f"m{n}", due) for n in range(1200)]))

    def check(count: int) -> None:
        with server(OLDEST).client() as client:
            sets = [client.zrange(f"{root}:{name}:i", 0, -1) for name in ("due", "ready", "held")]
            members = [member for found in sets for member in found]
            assert sorted(members) == sorted(client.zrange(f"{root}:order:i", 0, -1))
            assert len(members) == client.hlen(f"{root}:marks:i") == count
            assert len(sets[2]) == client.hlen(f"{root}:claims:i")

    assert len(backend.marks.claim("i", "w1", n=700, ttl_s=0.000001)) == 700
    check(1200)
    # The claims have ended by now: some are taken again in the very call that finds that out.
    assert len(backend.marks.claim("i", "w2", n=600, ttl_s=60)) == 600
    check(1200)
    changed = [Mark("i", f"m{n}", due, priority=n % 3) for n in range(900)]
    accepted(backend, build.commit(marks=changed))
    check(1200)
    accepted(backend, build.commit(marks=[Cleared("i", f"m{n}") for n in range(1199)]))
    check(1)
    backend.marks.release("i", "m1199", "w2")
    assert backend.marks.claim("i", "w3", n=9, ttl_s=60) == [Mark("i", "m1199", due)]
    check(1)
    accepted(backend, build.commit(marks=[Cleared("i", "m1199")]))
    check(0)
    with server(OLDEST).client() as client:
        assert client.exists(f"{root}:indexes") == 0
    backend.close()


def test_a_damaged_mark_or_lease_is_told(url: str) -> None:
    backend = _open(url)
    write(backend, RecordBuilder(), "a", marks=[Mark("i", "m")])
    assert backend.leases.acquire("l", "w", ttl_s=60) is not None
    root = f"holdfast:{{{backend.server_url.application}}}"
    with server(OLDEST).client() as client:
        client.hdel(f"{root}:marks:i", "m")
        client.hset(f"{root}:leases", "l", "nonsense")
    with pytest.raises(CorruptError, match="marks of i"):
        backend.marks.list("i")
    with pytest.raises(CorruptError, match="lease l"):
        backend.leases.holder("l")
    assert head_of(backend, "a").revision == 1
    backend.close()
