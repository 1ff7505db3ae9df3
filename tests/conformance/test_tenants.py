"""A tenant's own login keeps the contract: what its role or user may do is enough for all of it.

The server's clock is replaced as for other stores, by what a tenant may read: a table outside the
schema of tenants, and a key that its user is given for the test.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.backends.protocol import Backend, Record
from holdfast.clock import Clock
from holdfast.tenants import Tenants
from holdfast.testing import FakeClock
from holdfast.testing.contract import BackendContract
from tests.conformance.test_postgresql import RAW
from tests.conformance.test_redis import record_of
from tests.servers import postgresql, redis
from tests.servers.databases import Database
from tests.servers.redis_clock import CLOCK, FAKE, KEY, Ground, shared_ground

_SCHEMA = "holdfast_tenants"
_DATABASE = "tenants_contract"
_CLOCK = f"""CREATE SCHEMA holdfast;
CREATE TABLE holdfast.test_clock (us bigint NOT NULL);
INSERT INTO holdfast.test_clock VALUES (0);
GRANT USAGE ON SCHEMA holdfast TO PUBLIC;
GRANT SELECT ON holdfast.test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION {_SCHEMA}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT us FROM holdfast.test_clock $$"""


@cache
def _database(version: int) -> Database:
    server = postgresql.server(version)
    server.create_database(_DATABASE)
    with Tenants(server.url(_DATABASE)) as tenants:
        tenants.create("the first one makes the schema")
    server.psql(_DATABASE, _CLOCK)
    return Database(server.url(_DATABASE))


@cache
def _login(admin: str, place: Path) -> tuple[str, str]:
    """Returns the id and the URL of the tenant of a place, made when it is first asked for."""
    with Tenants(admin) as tenants:
        made = tenants.create(sha256(str(place).encode()).hexdigest())
    return made.tenant.id, made.url


class _PostgresqlContract(BackendContract):
    has_own_clock = True
    version: int

    def make(self, place: Path, clock: Clock) -> Backend:
        from holdfast.backends.postgresql import PostgresqlBackend

        assert isinstance(clock, FakeClock)
        database = _database(self.version)
        database.follow(clock)
        return PostgresqlBackend(_login(database.url(), place)[1], clock=clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        database = _database(self.version)
        asked = RAW.replace("holdfast.", f"{_SCHEMA}.")
        rows = database.rows(asked, (_login(database.url(), place)[0], stream))
        return [Record(stream, *row) for row in rows]


class _RedisContract(BackendContract):
    has_own_clock = True
    server: str

    def make(self, place: Path, clock: Clock) -> Backend:
        from holdfast.backends.redis import RedisBackend

        assert isinstance(clock, FakeClock)
        ground = shared_ground(self.server)
        ground.follow(clock)
        id, url = _login(_admin(ground), place)
        ground.clients[FAKE].execute_command("ACL", "SETUSER", id, f"~{KEY}")
        # Before 7.2 who cannot read the settings is not promised that each write is synced.
        durability: Any = "full" if self.server.startswith("valkey") else "process"
        backend = RedisBackend(url, clock=clock, durability=durability)
        backend._checkout.clock = CLOCK
        return backend

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        ground = shared_ground(self.server)
        id, _ = _login(_admin(ground), place)
        entries = ground.clients[FAKE].xrange(f"holdfast:{{{id}}}:events:{stream}")
        return [record_of(stream, number, fields) for number, fields in entries]


def _admin(ground: Ground) -> str:
    return ground.url(FAKE, "default").replace("&application=default", "")


# Where no driver is installed, as under the portable suites, there is nothing to test.
if postgresql.NEWEST:

    class TestTenantOfPostgresqlNewest(_PostgresqlContract):
        version = postgresql.NEWEST

    class TestTenantOfPostgresqlOldest(_PostgresqlContract):
        version = postgresql.OLDEST


if redis.OLDEST:

    class TestTenantOfRedis(_RedisContract):
        server = redis.OLDEST


if len(redis.installations()) > 1:

    class TestTenantOfRedisNewest(_RedisContract):
        server = list(redis.installations())[-1]
