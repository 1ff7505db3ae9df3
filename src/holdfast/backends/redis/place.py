"""What a URL says: where the server is, which store is meant, and how long a call may take.

    redis://user:password@host:6379/0?application=shop&timeout=30&pool=8
    rediss://host:6380/0?ssl_ca_certs=/etc/ssl/redis.pem
    unix:///run/redis/redis.sock?db=0&application=shop

`application`, `timeout` and `pool` are ours. Everything else is redis-py's and goes there as it is.
A password is never part of what is shown.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from redis import connection

from holdfast.errors import UsageError
from holdfast.ids import check_name
from holdfast.url import number, without_secrets

SCHEMES = ("redis://", "rediss://", "unix://")
APPLICATION_BYTES_MAX = 128
_OURS = ("application", "timeout", "pool")
_SECRETS = ("password", "ssl_password")
# What a line sets itself.
_NOT_THEIRS = ("protocol", "decode_responses", "socket_timeout", "socket_connect_timeout", "retry")


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
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


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
                theirs.append((name, value))
        bare = urlunsplit(parts._replace(query=urlencode(theirs, quote_via=quote)))
        parameters: dict[str, Any] = connection.parse_url(bare)  # pyright: ignore
        _check(parts.scheme, parts.path, parameters)
    except ValueError:
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
    """Raises ValueError for what redis-py would pass over, or only stumble upon later."""
    if any(name in parameters for name in _NOT_THEIRS):
        raise ValueError
    if scheme == "unix" and not parameters.get("path"):
        raise ValueError
    database = path.strip("/")
    if scheme != "unix" and database and not database.isdecimal():
        raise ValueError
    int(parameters.get("db", 0))


def _application(name: str) -> str:
    check_name(name, "application")
    if len(name.encode()) > APPLICATION_BYTES_MAX:
        raise UsageError(f"application is at most {APPLICATION_BYTES_MAX} bytes, found {name!r}")
    if "{" in name or "}" in name:
        raise UsageError(f"application is a hash tag and has no braces in it, found {name!r}")
    return name
