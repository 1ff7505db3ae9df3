"""What a URL says: where the server is, which store is meant, and how long a call may take.

    redis://user:password@host:6379/0?application=shop&timeout=30&pool=8
    rediss://host:6380/0?ssl_ca_certs=/etc/ssl/redis.pem
    unix:///run/redis/redis.sock?db=0&application=shop

`application`, `timeout` and `pool` are ours. The rest is redis-py's: what a text can say of a
connection, and of TLS where the scheme has it. A name that it would stumble upon later is refused
here. A password is never part of what is shown.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from redis import RedisError, connection

from holdfast.errors import UsageError, show_value
from holdfast.ids import check_name
from holdfast.url import number, without, without_secrets

SCHEMES = ("redis://", "rediss://", "unix://")
APPLICATION_BYTES_MAX = 128
_OURS = ("application", "timeout", "pool")
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


class Place(Struct, frozen=True):
    """One store on one server, or in one cluster."""

    shown: str  # the URL without secrets
    parameters: dict[str, Any]  # those of a connection of redis-py
    secrets: tuple[str, ...]
    application: str = "default"
    timeout_s: float = 30.0
    pool: int = 8

    def hide(self, text: str) -> str:
        """Returns a message of redis-py's or the server's without anything secret in it."""
        return without(self.secrets, text)


def place_of(url: str) -> Place:
    """Returns what the URL says, or raises UsageError without repeating a password."""
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    try:
        parts = urlsplit(url)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in _OURS:
                ours[name] = value
            else:
                _check_known(parts.scheme, name)
                theirs.append((name, value))
        bare = urlunsplit(parts._replace(query=urlencode(theirs, quote_via=quote)))
        parameters: dict[str, Any] = connection.parse_url(bare)  # pyright: ignore
        _check(parts.scheme, parts.path, parameters)
    except (ValueError, TypeError, RedisError):
        raise UsageError(
            f'"{without_secrets(url)}" is not a URL of a Redis server',
            hint='write it as "redis://host:6379/0" or "unix:///run/redis/redis.sock"',
        ) from None
    given = [str(parameters[name]) for name in _SECRETS if parameters.get(name)]
    secrets = {*given, *map(quote, given)}
    return Place(
        shown=without_secrets(url),
        parameters=parameters,
        secrets=tuple(sorted(secrets, key=len, reverse=True)),
        application=_application(ours.get("application", "default")),
        timeout_s=number(ours.get("timeout", "30"), "timeout", least=0.1, most=86_400),
        pool=int(number(ours.get("pool", "8"), "pool", least=1, most=1000)),
    )


def _check(scheme: str, path: str, parameters: dict[str, Any]) -> None:
    """Raises an error for what redis-py would pass over, or only stumble upon later."""
    # Made, and never connected: that is when redis-py looks at what it was given.
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
