"""Tenants in PostgreSQL: what a tenant's login cannot do, with the library and with raw SQL."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterator
from secrets import token_bytes
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import ExistsError, LimitError, NotFoundError, Settings, UnavailableError, UsageError
from holdfast.backends.protocol import START
from holdfast.errors import HeldError
from holdfast.retention import Quota
from holdfast.tenants import NewTenant, Tenants
from tests.care.tenant_kills import check_kills, check_late_hold
from tests.opening import settled
from tests.servers import postgresql
from tests.servers.hostile import CANARY, SCHEMA, sql_leaks


class Place:
    """A database with two tenants of which one has something to hide."""

    def __init__(self, version: int) -> None:
        self.server = postgresql.server(version)
        self.database = f"tenants_{version}"
        self.server.create_database(self.database)
        self.admin = self.server.url(self.database)
        with Tenants(self.admin) as tenants:
            self.mine = tenants.create("mine")
            self.theirs = tenants.create(CANARY)
        with holdfast.open(self.theirs.url) as hf:
            hf.team("theirs").set("secret", CANARY)
            hf.team("theirs").set("large", CANARY * 4000)  # a blob
            hf.team("theirs").tasks.add(CANARY)
            hf.workers.lease("theirs", ttl_s=3600)
        self.psql("ANALYZE")

    def psql(self, *statements: str) -> str:
        return self.server.psql(self.database, *statements)

    def open(self, made: NewTenant, **options: Any) -> holdfast.Store:
        return holdfast.open(made.url, **settled(options))

    def left_of(self, id: str) -> list[str]:
        """Returns where something of a tenant is: tables with rows of it, and its role."""
        found = [
            table
            for table in ("events", "streams", "objects", "marks", "leases", "stores", "tenants")
            if self.psql(f"SELECT 1 FROM {SCHEMA}.{table} WHERE application = '{id}' LIMIT 1")
        ]
        return found + self.psql(f"SELECT rolname FROM pg_roles WHERE rolname = '{id}'").split()

    def has_bytes(self, text: str) -> bool:
        """Says whether a text is in a file of the tables, also in rows that nobody can read."""
        self.psql("CHECKPOINT")
        relations = self.psql(
            f"SELECT pg_relation_filepath(oid) FROM pg_class WHERE relkind IN ('r', 't') AND ("
            f"relnamespace = '{SCHEMA}'::regnamespace OR oid IN (SELECT reltoastrelid FROM "
            f"pg_class WHERE relnamespace = '{SCHEMA}'::regnamespace))"
        ).split()
        return any(text.encode() in (self.server.data / one).read_bytes() for one in relations)

    def line(self, made: NewTenant | None = None) -> Any:
        """Returns a connection of a tenant's role, behind the library's back."""
        role = (made or self.mine).tenant.id
        return psycopg.connect(self.admin.replace("tester@", f"{role}@"), autocommit=True)


@pytest.fixture(scope="module", params=sorted(postgresql.installations()))
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


@pytest.fixture
def line(place: Place) -> Iterator[Any]:
    with place.line() as found:
        yield found


def test_what_a_role_may_not_write_anew_is_listed_as_left(place: Place) -> None:
    """The server only warns who may not: VACUUM FULL of another's table does nothing."""
    canary = "let-go-of-and-still-in-the-table"
    with Tenants(place.admin) as tenants:
        made = tenants.create("letting")
    with place.line(made) as line:
        warned: list[str] = []
        line.add_notice_handler(lambda notice: warned.append(notice.message_primary))
        line.execute(f"VACUUM FULL {SCHEMA}.events")
        assert len(warned) == 1
    with holdfast.open(made.url) as hf:
        hf.team("x").set("said", canary)
        hf.team("x").remove()
        left = hf.retention.run(grace_s=0, whole=True).left
    assert [one.where for one in left] == [
        "old versions of rows in events",
        "old versions of rows in objects",
        "the server's write-ahead log",
    ]
    assert place.has_bytes(canary)
    with holdfast.open(place.admin, tenant="letting") as hf:  # as who owns the tables
        left = hf.retention.run(grace_s=0, whole=True).left
        assert [one.where for one in left] == ["the server's write-ahead log"]
    assert not place.has_bytes(canary)
    with Tenants(place.admin) as tenants:
        tenants.remove("letting")


def test_a_role_cannot_reach_another_tenant_with_raw_sql(place: Place, line: Any) -> None:
    assert sql_leaks(line, place.theirs.tenant.id) == []


PLANTS = {
    "no row security": ("ALTER TABLE {0}.events DISABLE ROW LEVEL SECURITY",),
    "a policy for all": ("CREATE POLICY wide ON {0}.marks USING (true)",),
    "a table to delete from": ("GRANT DELETE ON {0}.leases TO PUBLIC",),
    "a function of the owner": (
        "CREATE FUNCTION {0}.open() RETURNS SETOF {0}.events SECURITY DEFINER LANGUAGE sql "
        "AS 'SELECT * FROM {0}.events'",
    ),
    "a role that passes": ('ALTER ROLE "{1}" BYPASSRLS',),
    "a member of the administrators": ('GRANT tester TO "{1}"',),
}
UNDO = {
    "no row security": "ALTER TABLE {0}.events ENABLE ROW LEVEL SECURITY",
    "a policy for all": "DROP POLICY wide ON {0}.marks",
    "a table to delete from": "REVOKE DELETE ON {0}.leases FROM PUBLIC",
    "a function of the owner": "DROP FUNCTION {0}.open()",
    "a role that passes": 'ALTER ROLE "{1}" NOBYPASSRLS',
    "a member of the administrators": 'REVOKE tester FROM "{1}"',
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found_and_such_a_store_is_not_opened(place: Place, plant: str) -> None:
    """The attacks find the hole, and so does whoever opens the tenant's store next."""
    role = place.mine.tenant.id
    place.psql(*(one.format(SCHEMA, role) for one in PLANTS[plant]))
    try:
        if plant != "a function of the owner":  # one must know its name
            with place.line() as line:
                assert sql_leaks(line, place.theirs.tenant.id) != []
        with pytest.raises(UnavailableError, match="not kept apart"):
            holdfast.open(place.mine.url)
        with Tenants(place.admin) as tenants:
            assert tenants.problems("mine") != []
    finally:
        place.psql(UNDO[plant].format(SCHEMA, role))
    holdfast.open(place.mine.url).close()


def test_row_security_that_does_not_bind_the_owner_is_refused(place: Place) -> None:
    """Without FORCE what runs as the owner sees all rows: a view on servers before 15, say."""
    place.psql(f"ALTER TABLE {SCHEMA}.events NO FORCE ROW LEVEL SECURITY")
    try:
        with pytest.raises(UnavailableError, match="does not force row security on its owner"):
            holdfast.open(place.mine.url)
    finally:
        place.psql(f"ALTER TABLE {SCHEMA}.events FORCE ROW LEVEL SECURITY")


def test_a_table_that_somebody_adds_is_refused(place: Place) -> None:
    place.psql(f"CREATE TABLE {SCHEMA}.more (application text)")
    try:
        with pytest.raises(UnavailableError, match="table more has no row security"):
            holdfast.open(place.mine.url)
    finally:
        place.psql(f"DROP TABLE {SCHEMA}.more")


def test_the_library_shows_a_tenant_its_own_store_alone(place: Place) -> None:
    with holdfast.open(place.mine.url, tenant="mine") as hf:
        hf.team("x").set("a", 1)
        assert [scope.name for scope in hf.scopes()] == ["team/x"]
        assert hf.team("theirs").state == {}
        with hf.workers.lease("theirs", ttl_s=60):  # another lease than theirs
            assert [one.name for one in hf.workers.leases(prefix="theirs")] == ["theirs"]
        assert hf.workers.leases(prefix="theirs") == []
        assert CANARY not in str(hf.status())
        assert [hit.scope for hit in hf.query(kind="state")] == ["team/x"]
        assert hf.query(text=CANARY) == []
        assert hf.tasks.list() == []
        follower = hf.follow(as_events=True, timeout_s=0, after=START)
        assert {event.stream for event in follower} <= {"team/x", "level/team"} | {
            event.stream for event in hf.events()
        }
        assert hf.check(read_all=True).ok
    with holdfast.open(place.mine.url, read_only=True) as reader:
        assert reader.team("x").state == {"a": 1}
        with pytest.raises(UsageError):
            reader.team("x").set("a", 2)


def test_a_login_opens_no_other_tenant(place: Place) -> None:
    bare = place.mine.url.replace("&tenant=mine", "")
    with pytest.raises(UsageError, match="that of another tenant"):
        holdfast.open(bare, tenant=CANARY)
    with pytest.raises(UsageError, match='is the URL of tenant "mine"'):
        holdfast.open(place.mine.url, tenant=CANARY)
    with pytest.raises(UsageError, match="an application"):
        holdfast.open(f"{bare}&application={place.theirs.tenant.id}", tenant="mine")
    # Without a tenant it is the schema of stores that are nobody's, where it has no right at all.
    with pytest.raises(holdfast.HoldfastError):
        holdfast.open(bare, create=False)
    with pytest.raises(NotFoundError, match="there is no store"):
        holdfast.open(f"{bare}&schema={SCHEMA}&application={place.theirs.tenant.id}", create=False)


def test_locks_of_a_tenant_cannot_be_computed_by_others(place: Place) -> None:
    from holdfast.backends.postgresql.rows import lock_of

    role = place.theirs.tenant.id
    with holdfast.open(place.theirs.url) as hf, place.line() as line:
        line.execute("SELECT pg_advisory_lock(%s)", (lock_of("stream", role, "team/theirs"),))
        line.execute("SELECT pg_advisory_lock(%s)", (lock_of("application", role),))
        hf.team("theirs").set("more", 1)


def test_the_password_is_needed_and_is_in_no_log(place: Place, caplog: Any) -> None:
    place.psql("ALTER ROLE tester SET log_statement = 'all'")
    with Tenants(place.admin) as tenants, caplog.at_level(logging.DEBUG):
        renewed = tenants.renew("mine")
    place.psql("ALTER ROLE tester RESET log_statement")
    place.mine = renewed
    password = renewed.url.partition(":")[2].partition(":")[2].partition("@")[0]
    assert len(password) == 48
    assert password not in repr(renewed)
    assert password not in caplog.text
    logged = (place.server.directory / "log").read_text("utf-8", "replace")
    assert "ALTER ROLE" in logged
    assert password not in logged
    where = f"host=127.0.0.1 port={place.server.port} dbname={place.database}"
    login = f"{where} user={renewed.tenant.id}"
    psycopg.connect(f"{login} password={password}").close()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"{login} password={'0' * 48}")


def test_no_secret_of_a_tenant_that_is_made_and_removed_is_in_the_log(
    place: Place, caplog: Any
) -> None:
    store_key = token_bytes(32)
    place.psql("ALTER ROLE tester SET log_statement = 'all'")
    try:
        with Tenants(place.admin) as tenants, caplog.at_level(logging.DEBUG):
            made = tenants.create("logged")
            options: Any = {"store_key": store_key, "clear_ids": True}
            with holdfast.open(place.admin, tenant="logged", **settled(options)) as hf:
                hf.team("ada", subject="ada").set("name", "secret-of-ada")
                [subject] = hf._log.sealing.keys.subjects()
            receipt = tenants.remove("logged", store_key=store_key)
    finally:
        place.psql("ALTER ROLE tester RESET log_statement")
    logged = (place.server.directory / "log").read_bytes() + caplog.text.encode()
    for statement in ("CREATE ROLE", "DROP ROLE", "DELETE FROM"):
        assert statement.encode() in logged, "the log has not what it is about"
    assert made.tenant.id.encode() in logged
    secrets = [made.url.partition("://")[2].partition(":")[2].partition("@")[0].encode()]
    secrets.append(b"secret-of-ada")
    for key in (store_key, subject.key):
        secrets += [key, b64encode(key), key.hex().encode()]
    assert receipt.keys == 1
    assert [secret for secret in secrets if secret in logged] == []


def test_bad_input(place: Place) -> None:
    with Tenants(place.admin) as tenants:
        with pytest.raises(ExistsError, match='"mine" already'):
            tenants.create("mine")
        with pytest.raises(NotFoundError, match='no tenant "nobody"'):
            tenants.get("nobody")
        with pytest.raises(UsageError, match="expected a Quota"):
            tenants.create("other", quotas=["much"])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="tenant is empty"):
            tenants.create("")
        with pytest.raises(UsageError, match="at most 128"):
            tenants.create("x" * 200)
    with pytest.raises(NotFoundError, match="there is no tenant"):
        holdfast.open(place.admin, tenant="nobody")
    with holdfast.open(place.admin) as hf:  # a schema with a store that is nobody's
        hf.team("x").set("a", 1)
    with (
        Tenants(f"{place.admin}&schema=holdfast") as tenants,
        pytest.raises(UsageError, match="a schema of their own"),
    ):
        tenants.create("other")
    with holdfast.open(place.admin) as hf:
        assert hf.team("x").state == {"a": 1}
    # A tenant's own login is no administrator's.
    with Tenants(place.mine.url) as tenants:
        assert [one.name for one in tenants.list()] == ["mine"]
        with pytest.raises(UnavailableError):
            tenants.create("other")


def test_quotas_count_for_every_handle(place: Place) -> None:
    with Tenants(place.admin) as tenants:
        made = tenants.create("small", quotas=[Quota("team/*", events=2)])
        with holdfast.open(made.url) as hf:
            hf.team("x").set("a", 1)
            hf.team("x").set("a", 2)
            with pytest.raises(LimitError, match="2 events"):
                hf.team("x").set("a", 3)
        assert tenants.set_quotas("small", []).quotas == ()
        with holdfast.open(made.url) as hf:
            hf.team("x").set("a", 3)
        tenants.remove("small")


def test_a_tenant_is_removed_with_its_keys_and_a_receipt(place: Place) -> None:
    with Tenants(place.admin) as tenants:
        made = tenants.create("going")
        id = made.tenant.id
        with holdfast.open(made.url, settings=Settings(clear_ids=True)) as hf:
            hf.team("ada", subject="ada").set("name", "gone-with-the-tenant")
            hf.team("plain").set("name", "gone-with-the-tenant")
            hf.retention.hold("team/plain", "a court asked")
            keys = hf._log.sealing.keys
            subject = hf.subjects.get("ada").id
            with pytest.raises(HeldError, match="team/plain"):
                tenants.remove("going")
            hf.retention.unhold("team/plain")
        with holdfast.open(made.url) as late, place.line(made) as line:
            receipt = tenants.remove("going", whole=True)
            with pytest.raises(holdfast.HoldfastError):
                late.team("plain").set("name", "late")
            with pytest.raises(psycopg.Error):
                line.execute(f"SELECT * FROM {SCHEMA}.events")
        assert receipt.tenant == id
        assert receipt.keys == 1
        assert receipt.counts["events"] >= 4
        assert not keys.has(subject)
        assert [one.tenant for one in tenants.receipts()].count(id) == 1
        assert "going" not in [one.name for one in tenants.list()]
    assert place.left_of(id) == []
    assert not place.has_bytes("gone-with-the-tenant")


STEPS = ("begin_removal", "_destroy_keys", "drop", "end_removal")


@pytest.mark.parametrize("stopped", STEPS)
def test_a_removal_that_was_stopped_goes_on(
    place: Place, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tenants(place.admin) as tenants:
        made = tenants.create("stopped")
        with holdfast.open(made.url, settings=Settings(clear_ids=True)) as hf:
            hf.team("ada", subject="ada").set("name", "x")
        owner: Any = tenants if stopped.startswith("_") else tenants._host
        whole = getattr(owner, stopped)

        def stop(*words: Any, **options: Any) -> None:
            whole(*words, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(owner, stopped, stop)
            with pytest.raises(KeyboardInterrupt):
                tenants.remove("stopped")
    with pytest.raises(holdfast.HoldfastError):
        holdfast.open(made.url)
    with Tenants(place.admin) as tenants:
        if stopped != "end_removal":
            assert [one.state for one in tenants.list() if one.name == "stopped"] == ["removing"]
            tenants.remove("stopped")
        assert "stopped" not in [one.name for one in tenants.list()]
        receipts = [one for one in tenants.receipts() if one.tenant == made.tenant.id]
        assert len(receipts) == 1


def test_a_removal_that_is_killed_anywhere_is_done_again(place: Place) -> None:
    check_kills(place, turns=12)


def test_a_hold_that_is_set_as_the_tenant_is_locked_out_keeps_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_late_hold(place, monkeypatch)


def test_a_new_password_lets_in_who_was_locked_out_by_a_removal_that_was_stopped(
    place: Place,
) -> None:
    with Tenants(place.admin) as tenants:
        made = tenants.create("kept")
        tenants._host.lock_out(tenants._get("kept"))
        with pytest.raises(holdfast.HoldfastError):
            place.open(made)
        place.open(tenants.renew("kept")).close()
        tenants.remove("kept")


def test_a_tenant_is_copied_and_backed_up_by_itself(place: Place, tmp_path: Any) -> None:
    from holdfast import backup
    from holdfast.copy import copy

    with Tenants(place.admin) as tenants:
        tenants.create("copied")
        tenants.create("restored")
    with holdfast.open(place.admin, tenant=CANARY) as source:
        digest = source.check(read_all=True).digest
        with holdfast.open(place.admin, tenant="copied") as target:
            copy(source, target)
            assert target.check(read_all=True).digest == digest
        backup.backup(source, tmp_path / "backup")
    with holdfast.open(place.admin, tenant="restored") as target:
        backup.restore(tmp_path / "backup", target)
        assert target.check(read_all=True).digest == digest
    with Tenants(place.admin) as tenants:
        for name in ("copied", "restored"):
            tenants.remove(name)


def test_the_administrator_upgrades_the_schema_of_tenants(place: Place) -> None:
    """A tenant's role may make no function. So it is told who has to, and can read meanwhile."""
    with Tenants(place.admin) as tenants:
        made = tenants.create("early")
    with place.open(made) as hf:
        hf.team("x").set("a", 1)
    by_name = "SELECT oid::regprocedure FROM pg_proc WHERE proname = 'commit' AND pronamespace = "
    name = place.psql(f"{by_name}'{SCHEMA}'::regnamespace").strip()
    place.psql(f"DROP FUNCTION {name}")
    with pytest.raises(UnavailableError, match="has to be upgraded, which role") as told:
        place.open(made)
    assert "ask the administrator to run holdfast tenant list" in str(told.value)
    with Tenants(made.url) as own:
        assert [one.name for one in own.list()] == ["early"]
    with place.open(made, read_only=True) as hf:
        assert hf.team("x").state == {"a": 1}
    with Tenants(place.admin) as tenants:
        assert "early" in [one.name for one in tenants.list()]
    with place.open(made) as hf:
        hf.team("x").set("a", 2)
        assert hf.check(read_all=True).ok
    with place.line() as line:
        assert sql_leaks(line, place.theirs.tenant.id) == []
    with Tenants(place.admin) as tenants:
        tenants.remove("early")


def test_who_may_make_no_schema_is_told_so(place: Place) -> None:
    place.psql("CREATE ROLE nobody_special LOGIN")
    url = place.admin.replace("tester@", "nobody_special@")
    try:
        with (
            Tenants(f"{url}&schema=of_nobody") as tenants,
            pytest.raises(UnavailableError, match="permission denied"),
        ):
            tenants.create("other")
    finally:
        place.psql("DROP ROLE nobody_special")
