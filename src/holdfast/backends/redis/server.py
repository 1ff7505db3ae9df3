"""The server: its URL, the scripts that it runs, its settings, and what its answer is worth.

`appendfsync always` syncs the append-only file before any answer goes out. With `everysec` or `no`
a power cut takes what was acknowledged since the last sync, about a second's worth, unless each
write is followed by WAITAOF, which servers have from 7.2 on. `no-appendfsync-on-rewrite yes`
suspends the syncs while the file is rewritten, also with `always`. With a `maxmemory-policy` other
than `noeviction` the server deletes keys when memory runs short: `allkeys-…` any of them,
`volatile-…` those of scopes with a lifetime. The policy counts also where no `maxmemory` is set,
because that can be set at any time.

All of this is read on every new connection, and every ten seconds on one that is in use: a server
may come back with other settings, or be given others while it runs.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from msgspec import Struct
from redis import RedisError, connection

from holdfast.backends.protocol import (
    Durability,
)
from holdfast.backends.tenancy import check_tenant
from holdfast.errors import (
    UnavailableError,
    UsageError,
    show_value,
    unloaded,
)
from holdfast.names import check_login, check_name, number, without, without_secrets

# --- the URL --------------------------------------------------------------------------------------
#
# It names the server and the store, and says how long a call may take.
#
#     redis://user:password@host:6379/0?application=shop&timeout=30&pool=8
#     rediss://host:6380/0?ssl_ca_certs=/etc/ssl/redis.pem
#     unix:///run/redis/redis.sock?db=0&application=shop
#
# `application`, `tenant`, `timeout` and `pool` are ours. The rest are parameters of redis-py's
# connections that can be written as text, and of TLS where the scheme has it. A name that redis-py
# would reject only later is refused here. A password is never shown.


SCHEMES = ("redis://", "rediss://", "unix://")
APPLICATION_BYTES_MAX = 128
_OURS = ("application", "tenant", "timeout", "pool")
_SECRETS = ("password", "ssl_password")
_THEIRS = ("db", "username", "password", "client_name", "lib_name", "lib_version")
_THEIR_TCP = ("socket_keepalive",)
_THEIR_TLS = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)
_KNOWN = {
    "redis": (*_THEIRS, *_THEIR_TCP),
    "rediss": (*_THEIRS, *_THEIR_TCP, *_THEIR_TLS),
    "unix": _THEIRS,
}


class RedisURL(Struct, frozen=True):
    """One store on one server, or in one cluster."""

    shown: str  # the URL without secrets
    parameters: dict[str, Any]  # those of a connection of redis-py
    secrets: tuple[str, ...]
    application: str = "default"
    timeout_s: float = 30.0
    pool: int = 8
    tenant: str = ""

    def hide(self, text: str) -> str:
        """Returns a message of redis-py or the server without secrets."""
        return without(self.secrets, text)


def parse_url(url: str) -> RedisURL:
    """Returns what the URL says, or raises UsageError without repeating a password."""
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    try:
        parts = urlsplit(url)
        check_login(url, parts)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in _OURS:
                ours[name] = value
            else:
                _check_known(parts.scheme, name)
                theirs.append((name, value))
        # Not by urlunsplit: before Python 3.12 it makes unix:/run of unix:///run.
        query = f"?{urlencode(theirs, quote_via=quote)}" if theirs else ""
        bare = f"{parts.scheme}://{parts.netloc}{parts.path}{query}"
        parameters: dict[str, Any] = connection.parse_url(bare)  # pyright: ignore
        _check(parts.scheme, parts.path, parameters)
    except (ValueError, TypeError, RedisError):
        raise UsageError(
            f'"{without_secrets(url)}" is not a URL of a Redis server',
            hint='write it as "redis://host:6379/0" or "unix:///run/redis/redis.sock"',
        ) from None
    if "tenant" in ours and "application" in ours:
        raise UsageError(
            f'"{without_secrets(url)}" names an application, and a tenant has one of its own',
            hint="leave application= out of the URL",
        )
    given = [str(parameters[name]) for name in _SECRETS if parameters.get(name)]
    secrets = {*given, *map(quote, given)}
    return RedisURL(
        shown=without_secrets(url),
        parameters=parameters,
        secrets=tuple(sorted(secrets, key=len, reverse=True)),
        application=_application(ours.get("application", "default")),
        timeout_s=number(ours.get("timeout", "30"), "timeout", least=0.1, most=86_400),
        pool=int(number(ours.get("pool", "8"), "pool", least=1, most=1000)),
        tenant=check_tenant(ours["tenant"]) if "tenant" in ours else "",
    )


def _check(scheme: str, path: str, parameters: dict[str, Any]) -> None:
    """Raises an error for what redis-py would ignore, or reject only when it connects."""
    # A connection is made and never connected: redis-py checks its parameters when it is made.
    kind = parameters.get("connection_class", connection.Connection)
    kind(**{name: value for name, value in parameters.items() if name != "connection_class"})
    if scheme == "unix" and not parameters.get("path"):
        raise ValueError
    database = path.strip("/")
    if scheme != "unix" and database and not database.isdecimal():
        raise ValueError
    int(parameters.get("db", 0))


def _check_known(scheme: str, name: str) -> None:
    known = _KNOWN.get(scheme, ())
    if name not in known:
        raise UsageError(
            f"a {scheme}:// URL has no parameter {show_value(name)}",
            hint=f"it takes {', '.join((*_OURS, *known))}",
        )


def _application(name: str) -> str:
    check_name(name, "application")
    if len(name.encode()) > APPLICATION_BYTES_MAX:
        raise UsageError(f"application is at most {APPLICATION_BYTES_MAX} bytes, found {name!r}")
    if "{" in name or "}" in name:
        raise UsageError(f"application is a hash tag and has no braces in it, found {name!r}")
    return name


# --- scripts --------------------------------------------------------------------------------------
#
# Lua scripts that run on the server, which knows each by the digest of its text.


class Script(Struct, frozen=True):
    """The text of a script, and the digest by which a server knows it."""

    text: bytes
    digest: bytes


@cache
def _file(name: str) -> str:
    try:
        return files("holdfast.backends").joinpath("lua", name).read_text("utf-8")
    except OSError as exc:  # read at its first use, when there may be no descriptor left
        raise unloaded(name, exc) from exc


@cache
def _script(text: str) -> Script:
    data = text.encode()
    # Not for security: this digest is the name that EVALSHA takes.
    return Script(data, sha1(data, usedforsecurity=False).hexdigest().encode())


def script(name: str, clock: str | None = None) -> Script:
    """Returns a script, preceded by the part that all scripts share.

    `clock` is Lua text that replaces the server's clock in tests.
    """
    begin = _file("redis_begin.lua") + (clock or _file("redis_clock.lua"))
    return _script(begin + _file("redis_counts.lua") + _file(f"redis_{name}.lua"))


def opening() -> Script:
    """Returns the script that makes a store, the only one that runs without one."""
    return _script(_file("redis_open.lua"))


# --- settings -------------------------------------------------------------------------------------
#
# What a server reports about itself.


VERSION_MIN = (6, 2)
_WAITAOF_FROM = (7, 2)
QUESTIONS = (
    ("INFO",),
    ("CONFIG", "GET", "append*"),
    ("CONFIG", "GET", "no-appendfsync-on-rewrite"),
)


class RedisServer(Struct, frozen=True):
    """What a server reported about itself when its settings were last read."""

    name: str  # redis or valkey
    version: str
    run_id: str  # of this server process: another one may have lost what this one acknowledged
    role: str
    master: str
    replicas: int
    is_cluster: bool
    appendonly: bool
    appendfsync: str | None  # None: the server does not tell
    syncs_on_rewrite: bool | None
    has_waitaof: bool
    maxmemory_policy: str  # "": the server does not tell
    evicted_keys: int  # since the server started, of all databases
    dataset_bytes: int

    @property
    def durability(self) -> Durability:
        """What an acknowledged write survives without a WAITAOF after it."""
        if not self.appendonly:
            return "none"
        return "full" if self.appendfsync == "always" and self.syncs_on_rewrite else "process"

    def reports(self) -> list[str]:
        """Returns what an operator should know about its settings."""
        found: list[str] = []
        if not self.appendonly:
            found.append("appendonly is no: a restart of the server takes what it has not saved")
        elif self.appendfsync is None:
            found.append(
                "CONFIG is forbidden: whether the server syncs before it answers is hidden"
            )
        elif self.appendfsync != "always":
            found.append(
                f"appendfsync is {self.appendfsync}: a power cut takes about the last second"
                " of what was not waited for"
            )
        if self.appendonly and self.syncs_on_rewrite is False:
            found.append("no-appendfsync-on-rewrite is yes: no syncs while the file is rewritten")
        if self.evicts:
            found.append(
                f"maxmemory-policy is {self.shown_policy}: the server may delete events when its "
                "memory is short, whatever was acknowledged"
            )
        if self.evicted_keys:
            found.append(
                f"{self.evicted_keys} keys of this server were evicted since it started: some may "
                "be this store's, look with check --read-all"
            )
        if self.replicas:
            found.append(
                "replication is asynchronous: a failover can take the newest commits; "
                "a handle that had them acknowledged raises LostCommitsError"
            )
        return found

    @property
    def evicts(self) -> bool:
        """Whether the server may delete keys when memory runs short, now or once a limit is set."""
        return self.maxmemory_policy != "noeviction"

    @property
    def shown_policy(self) -> str:
        return self.maxmemory_policy or "hidden"

    def waits(self, durability: Durability) -> bool:
        """Returns whether each write is followed by WAITAOF."""
        return durability == "full" and self.durability != "full"

    def check(self, server_url: RedisURL, durability: Durability) -> None:
        """Raises an error that names the setting to change if this server lacks the durability."""
        where = server_url.shown
        if _numbers(self.version) < VERSION_MIN:
            raise UnavailableError(
                f'"{where}" is Redis {self.version}, expected 6.2 or later',
                hint="upgrade the server",
            )
        if durability == "none":
            return
        if durability == "full" and self.evicts:
            raise UsageError(
                f'durability "full" was asked of "{where}", which evicts keys when memory is short '
                f"(maxmemory-policy {self.shown_policy}): events would go",
                hint="CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or open "
                'with durability="process"',
            )
        if not self.appendonly:
            raise UsageError(
                f'durability "{durability}" was asked of "{where}", whose appendonly is no',
                hint="CONFIG SET appendonly yes, and the same in redis.conf; or open with "
                'durability="none"',
            )
        if self.waits(durability) and not self.has_waitaof:
            raise UsageError(
                f'durability "full" was asked of "{where}", {self._shortcoming()}',
                hint=f'{self._remedy(server_url)}, or open with durability="process"',
            )

    def _shortcoming(self) -> str:
        if self.appendfsync is None:
            return "which hides its settings (CONFIG is forbidden)"
        if self.appendfsync != "always":
            return f"whose appendfsync is {self.appendfsync}"
        return "whose no-appendfsync-on-rewrite is yes"

    def _remedy(self, server_url: RedisURL) -> str:
        if self.appendfsync is None and server_url.tenant:
            return "use a server from 7.2 up, on which each write is waited for"
        if self.appendfsync is None:
            return "allow CONFIG GET to this user"
        if self.appendfsync != "always":
            return "CONFIG SET appendfsync always, and the same in redis.conf"
        return "CONFIG SET no-appendfsync-on-rewrite no, and the same in redis.conf"


def server_of(info: bytes, append: list[bytes] | None, rewrite: list[bytes] | None) -> RedisServer:
    """Returns the server that the answers to QUESTIONS describe; a refused answer is None."""
    facts = dict(
        line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line
    )
    settings = {**_pairs(append), **_pairs(rewrite)}
    version = facts.get("redis_version", "0")
    is_valkey = "valkey_version" in facts
    unsynced = settings.get("no-appendfsync-on-rewrite")
    return RedisServer(
        name="valkey" if is_valkey else "redis",
        version=facts["valkey_version"] if is_valkey else version,
        run_id=facts.get("run_id", ""),
        role=facts.get("role", ""),
        master=f"{facts.get('master_host', '')}:{facts.get('master_port', '')}",
        replicas=int(facts.get("connected_slaves", "0")),
        is_cluster=facts.get("cluster_enabled") == "1",
        appendonly=facts.get("aof_enabled") == "1",
        appendfsync=settings.get("appendfsync"),
        syncs_on_rewrite=None if unsynced is None else unsynced == "no",
        has_waitaof=_numbers(version) >= _WAITAOF_FROM,
        maxmemory_policy=facts.get("maxmemory_policy", ""),
        evicted_keys=int(facts.get("evicted_keys", "0")),
        dataset_bytes=int(facts.get("used_memory_dataset", "0")),
    )


def _pairs(answer: list[bytes] | None) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in answer or ()]
    return dict(zip(words[::2], words[1::2], strict=True))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


FORMAT = 2
"""Format 2 has meta. A store of format 1 gets this number with its first event with meta."""
