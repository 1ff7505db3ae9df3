"""Tenants in Redis or Valkey: a user each, who can reach only the keys of its own store (0077).

A tenant's id is the name of its user and the application of its store, so its keys begin with
`holdfast:{id}`. The user may run only the commands that a store needs: none that lists keys, reads
settings, or subscribes to channels. In addition to the keys of a store there are

    holdfast:tenants            hash: <name> = the record, for the administrator
    holdfast:tenants:removed    hash: <id> = the receipt of one that was removed
    holdfast:{<id>}:tenant      string: the record, for the tenant
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, cast

import redis
from msgspec import json
from msgspec.structs import replace
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from holdfast.backends.protocol import Leftover
from holdfast.backends.redis.connection import ReplyError, UnreachedError, translate
from holdfast.backends.redis.encoding import Keys
from holdfast.backends.redis.server import RedisURL, parse_url
from holdfast.backends.tenancy import (
    TENANT_ID,
    Dropped,
    TenantLogin,
    TenantRecord,
    login_url,
    new_password,
    new_tenant_id,
    url_of_tenant,
)
from holdfast.clock import Clock
from holdfast.errors import ExistsError, NotFoundError, UnavailableError, UsageError

_TENANTS = "holdfast:tenants"
_REMOVED = "holdfast:tenants:removed"
_COMMANDS = (
    *("eval", "evalsha", "info", "time", "ping", "hello", "auth", "exists", "type", "rename"),
    *("get", "set", "strlen", "del", "unlink", "persist", "pexpire", "pttl"),
    *("hdel", "hexists", "hget", "hgetall", "hlen", "hmget", "hset"),
    *("sadd", "scard", "sismember", "smembers", "srem"),
    *("xadd", "xlen", "xrange", "xrevrange"),
    *("zadd", "zcard", "zrange", "zrangebylex", "zrangebyscore", "zrem", "zrevrange"),
    *("zrevrangebylex", "zscore", "zcount"),
)
"""The commands that a store needs, those in its scripts included. They are named one by one: a
category such as `+@read` would bring SCAN, KEYS and RANDOMKEY, which no pattern of keys limits."""
_NEWER_COMMANDS = ("waitaof",)
_SCANNED = 1000
_PROBE = f"holdfast:{{{TENANT_ID}nobody}}"


def record_key(id: str) -> str:
    return f"{Keys(id).root}:tenant"


@contextmanager
def _client(server_url: RedisURL) -> Generator[Any]:
    """Yields a client of redis-py; its errors are raised as errors of ours."""
    parameters = dict(server_url.parameters)
    kind = parameters.pop("connection_class", redis.Connection)
    pool = redis.ConnectionPool(
        kind,
        **parameters,
        socket_timeout=server_url.timeout_s,
        socket_connect_timeout=server_url.timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        yield redis.Redis(connection_pool=pool)
    except redis.RedisError as exc:
        is_reply = isinstance(exc, redis.ResponseError | redis.AuthenticationError)
        ours = ReplyError(str(exc)) if is_reply else UnreachedError(str(exc))
        raised = translate(ours, server_url, outcome_known=True)
        assert raised is not None, "BUG: an error of the server that has no meaning here"
        raise raised from None
    finally:
        pool.disconnect()


# --- a tenant's own side ---------------------------------------------------------------------


def enter_tenant(server_url: RedisURL, *, read_only: bool) -> TenantRecord:
    """Returns the tenant whose store is opened, by its own login or an administrator's.

    A tenant's own login first tries what must be forbidden, and raises if any of it is allowed:
    nothing is written into a store whose neighbours can be seen. It has to try, because a user
    cannot read its own rules.
    """
    user, name = str(server_url.parameters.get("username") or ""), server_url.tenant
    with _client(server_url) as client:
        own = client.get(record_key(user)) if user.startswith(TENANT_ID) else None
        found = client.hget(_TENANTS, name) if own is None else own
        if found is None:
            raise NotFoundError(
                f'there is no tenant "{name}" in "{server_url.shown}"',
                hint=f"holdfast tenant create {name}, as its administrator",
            )
        record = json.decode(cast("bytes", found), type=TenantRecord)
        if record.name != name:
            raise UsageError(
                f'this login of "{server_url.shown}" is that of another tenant than "{name}"',
                hint="use the URL that was given when the tenant was made",
            )
        if own is not None:
            _check_closed(client, name)
    if record.state != "active" and not read_only:
        raise UnavailableError(f'tenant "{name}" is being removed', hint="holdfast tenant list")
    return record


def _check_closed(client: Any, name: str) -> None:
    for words in (("EXISTS", _PROBE), ("SCAN", "0"), ("KEYS", "none"), ("CONFIG", "GET", "none")):
        try:
            client.execute_command(*words)
        except NoPermissionError:
            continue
        raise UnavailableError(
            f'tenant "{name}" is not kept apart from others: its user may run {words[0]} on what '
            "is not its own; it was not opened",
            hint=f"ask the administrator to run holdfast tenant show {name}",
        )


# --- the administrator's side ----------------------------------------------------------------


class RedisTenants:
    """The tenants of one server, for a user who may make users."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._server_url = parse_url(url)
        if self._server_url.application != "default":
            raise UsageError(
                f'"{self._server_url.shown}" names an application, and tenants have their own',
                hint="leave application= out of the URL",
            )
        if int(self._server_url.parameters.get("db", 0)):
            # The right to select this database would be the right to write keys into all others.
            raise UsageError(
                f'"{self._server_url.shown}" names another database than 0, and a tenant\'s user '
                "may not change the database",
                hint="leave the number of the database out of the URL",
            )

    def list(self) -> list[TenantRecord]:
        with _client(self._server_url) as client:
            found = client.hvals(_TENANTS)
        records = [json.decode(cast("bytes", one), type=TenantRecord) for one in found]
        return sorted(records, key=lambda one: one.name)

    def create(self, name: str, settings: dict[str, Any]) -> TenantLogin:
        record = TenantRecord(name, new_tenant_id(self._clock), self._clock.now_us(), settings)
        password = new_password(self._clock)
        with _client(self._server_url) as client:
            if client.info("cluster").get("cluster_enabled"):
                raise UsageError(
                    f'"{self._server_url.shown}" is a cluster, whose users would have to be made '
                    "on every node",
                    hint="make tenants on a server, or a user for each application by hand: "
                    "docs/guides/redis.md",
                )
            text = json.encode(record)
            # The name is taken last. If this is stopped before, the name is free, and what is left
            # is a user whose password nobody knows: `problems` says so.
            self._set_user(client, record.id, password)
            client.set(record_key(record.id), text)
            if not client.hsetnx(_TENANTS, name, text):
                client.execute_command("ACL", "DELUSER", record.id)
                self._save_users(client)
                client.delete(record_key(record.id))
                raise ExistsError(f'there is a tenant "{name}" already')
        return self._login(record, password)

    def _set_user(self, client: Any, id: str, password: str) -> None:
        """Makes a user. The server gets the digest of the password, so its logs open nothing."""
        digest = sha256(password.encode()).hexdigest()
        self._give_rights(client, id, "reset", "on", f"#{digest}", "resetchannels")

    def _give_rights(self, client: Any, id: str, *rules: str) -> None:
        """Lets a user reach the keys of its store, and run the commands that a store needs."""
        version = tuple(map(int, client.info("server")["redis_version"].split(".")[:2]))
        commands = [*_COMMANDS, *(_NEWER_COMMANDS if version >= (7, 2) else ())]
        allowed = (f"+{command}" for command in commands)
        client.execute_command(
            "ACL", "SETUSER", id, *rules, f"~{Keys(id).root}*", "-@all", *allowed
        )
        self._save_users(client)

    def _save_users(self, client: Any) -> bool:
        """Makes the server store its users for the next restart; returns whether it did."""
        for words in (("ACL", "SAVE"), ("CONFIG", "REWRITE")):
            try:
                client.execute_command(*words)
                return True
            except redis.ResponseError:
                continue
        return False

    def _login(self, tenant: TenantRecord, password: str) -> TenantLogin:
        url = login_url(self._url, tenant.id, password, ("username", "password", "tenant"))
        return TenantLogin(tenant, url_of_tenant(url, tenant.name))

    def renew(self, tenant: TenantRecord) -> TenantLogin:
        password = new_password(self._clock)
        with _client(self._server_url) as client:
            self._set_user(client, tenant.id, password)
            client.execute_command("CLIENT", "KILL", "USER", tenant.id)
        return self._login(tenant, password)

    def change(self, tenant: TenantRecord, settings: dict[str, Any]) -> None:
        self._store(replace(tenant, settings=settings))

    def _store(self, record: TenantRecord) -> None:
        text = json.encode(record)
        with _client(self._server_url) as client:
            client.set(record_key(record.id), text)
            client.hset(_TENANTS, record.name, text)

    def problems(self, tenant: TenantRecord | None) -> list[str]:
        found: list[str] = []
        with _client(self._server_url) as client:
            for one in self.list() if tenant is None else [tenant]:
                found += _user_problems(client, one)
            if tenant is None:
                # A tenant's user is made before its name. So the users are asked for first: one
                # that is made meanwhile is either no user yet, or a tenant by the next question.
                users = _words(client.execute_command("ACL", "USERS"))
                known = {one.id for one in self.list()}
                found += [
                    f"user {user} belongs to no tenant, because the making of one is under way, or "
                    f"was stopped; if it stays: ACL DELUSER {user}, DEL {record_key(user)}"
                    for user in sorted(users)
                    if user.startswith(TENANT_ID) and user not in known
                ]
            if not self._save_users(client):
                found.append(
                    "the server forgets its users when it restarts: give it an aclfile, or a "
                    "configuration file that it may write"
                )
            if int(client.info("replication").get("connected_slaves", 0)):
                found.append("users are not replicated: make them on each replica, too")
        return found

    def store_url(self, tenant: TenantRecord) -> str:
        return url_of_tenant(self._url, tenant.name)

    # --- removing one ------------------------------------------------------------------------

    def lock_out(self, tenant: TenantRecord) -> None:
        """Takes all rights from the user and ends its connections; keeps its password's digest."""
        with _client(self._server_url) as client:
            if client.execute_command("ACL", "GETUSER", tenant.id) is not None:
                client.execute_command("ACL", "SETUSER", tenant.id, "off", "resetkeys", "-@all")
                self._save_users(client)
                client.execute_command("CLIENT", "KILL", "USER", tenant.id)

    def let_in(self, tenant: TenantRecord) -> None:
        """Gives back what `lock_out` took.

        A user that still has a pattern of keys was not locked out here. An administrator may have
        turned it off, and that is left alone.
        """
        with _client(self._server_url) as client:
            found = client.execute_command("ACL", "GETUSER", tenant.id)
            if found is not None and not _words(_pairs(found).get("keys")):
                self._give_rights(client, tenant.id, "on")

    def begin_removal(self, tenant: TenantRecord) -> None:
        self._store(replace(tenant, state="removing"))

    def drop(self, tenant: TenantRecord, *, whole: bool) -> Dropped:
        root, count = Keys(tenant.id).root, 0
        with _client(self._server_url) as client:
            cursor: Any = 0
            while True:
                cursor, keys = client.scan(cursor, match=f"{root}*", count=_SCANNED)
                if gone := [key for key in keys if key != record_key(tenant.id).encode()]:
                    count += client.unlink(*gone)
                if not int(cursor):
                    break
            left = [
                Leftover(f"the server's {what}", f"run {command}, and see that it ends")
                for what, command in (
                    ("append-only file", "BGREWRITEAOF"),
                    ("dump of memory", "BGSAVE"),
                )
            ]
            if whole:
                client.execute_command("BGREWRITEAOF")
                left = left[1:]
        return Dropped({"keys": count}, left)

    def end_removal(self, tenant: TenantRecord, receipt: str) -> None:
        with _client(self._server_url) as client:
            client.execute_command("ACL", "DELUSER", tenant.id)
            self._save_users(client)
            with client.pipeline(
                transaction=True
            ) as steps:  # last: without the record it has ended
                steps.hset(_REMOVED, tenant.id, receipt)
                steps.hdel(_TENANTS, tenant.name)
                steps.delete(record_key(tenant.id))
                steps.execute()

    def receipts(self) -> list[str]:
        with _client(self._server_url) as client:
            found = client.hvals(_REMOVED)
        return sorted(
            (one.decode() for one in found), key=lambda text: json.decode(text)["removed_at"]
        )

    def close(self) -> None:
        """Each call has a connection of its own."""


def _user_problems(client: Any, tenant: TenantRecord) -> list[str]:
    """Returns what a tenant's user may do beyond its own store."""
    found = client.execute_command("ACL", "GETUSER", tenant.id)
    if tenant.state == "removing":
        return []
    if found is None:
        return [f"user {tenant.id} is not there: tenant renew makes it again"]
    about = _pairs(found)
    problems: list[str] = []
    allowed = {f"+{one}" for one in (*_COMMANDS, *_NEWER_COMMANDS)}
    given = set(_words(about.get("commands")))
    if "-script" in given:
        allowed.add("+@scripting")  # before 7 that is what eval and evalsha are, if nothing more
    if more := sorted(one for one in given - allowed if one.startswith("+")):
        problems.append(f"user {tenant.id} may run {', '.join(more)}")
    if {one.lstrip("~") for one in _words(about.get("keys"))} != {f"{Keys(tenant.id).root}*"}:
        problems.append(f"user {tenant.id} reaches other keys than its own")
    if any(_words(about.get("channels"))) or "allchannels" in _words(about.get("flags")):
        problems.append(f"user {tenant.id} may listen to channels")
    if about.get("selectors"):
        problems.append(f"user {tenant.id} has further rights (selectors)")
    return problems


def _pairs(answer: Any) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(answer[::2], answer[1::2], strict=True)}


def _words(value: Any) -> list[str]:
    """Returns a list of words: some servers send them as one text, others as a list."""
    many = cast("list[bytes]", value) if isinstance(value, list) else [value or b""]
    return [word for one in many for word in one.decode().split()]
