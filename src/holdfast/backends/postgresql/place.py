"""What a URL says: where the server is, which store is meant, and how long a call may take.

    postgresql://user@host:5432/database?application=shop&schema=holdfast&timeout=30&pool=8
    postgresql://user@/database?host=/var/run/postgresql

`application`, `schema`, `timeout` and `pool` are ours. Everything else is libpq's and goes there as
it is, with its environment variables and password files. A password is never part of what is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn

from holdfast.errors import UsageError
from holdfast.ids import check_name
from holdfast.url import number, without, without_secrets

SCHEMES = ("postgresql://", "postgres://")
APPLICATION_BYTES_MAX = 128
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
_WHOLE_NUMBERS = {
    "connect_timeout",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "tcp_user_timeout",
}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class Place(Struct, frozen=True):
    """One store on one server."""

    shown: str  # the URL without secrets
    parameters: dict[str, str | int]  # libpq's
    secrets: tuple[str, ...]
    application: str = "default"
    schema: str = "holdfast"
    timeout_s: float = 30.0
    pool: int = 8

    def hide(self, text: str) -> str:
        """Returns a message of libpq's or the server's without anything secret in it."""
        return without(self.secrets, text)


def place_of(url: str) -> Place:
    """Returns what the URL says, or raises UsageError without repeating a password."""
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    try:
        parts = urlsplit(url)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in ("application", "schema", "timeout", "pool"):
                ours[name] = value
            else:
                theirs.append((name, value))
        # libpq reads %20, not +, as a space.
        query = urlencode(theirs, quote_via=quote)
        found = conninfo_to_dict(urlunsplit(parts._replace(scheme="postgresql", query=query)))
        _check_values(found)
    except (ProgrammingError, ValueError) as exc:
        raise UsageError(
            f'"{without_secrets(url)}" is not a URL of a PostgreSQL database: {_reason(exc)}',
            hint='write it as "postgresql://user@host/database" or '
            '"postgresql://user@/database?host=/var/run/postgresql"',
        ) from None
    parameters: dict[str, str | int] = {
        name: value for name, value in found.items() if value is not None
    }
    given = [parameters[name] for name in _SECRETS if parameters.get(name)]
    secrets = {str(secret) for secret in given} | {quote(str(secret)) for secret in given}
    return Place(
        shown=without_secrets(url),
        parameters=parameters,
        secrets=tuple(sorted(secrets, key=len, reverse=True)),
        application=_application(ours.get("application", "default")),
        schema=_schema(ours.get("schema", "holdfast")),
        timeout_s=number(ours.get("timeout", "30"), "timeout", least=0.1, most=86_400),
        pool=int(number(ours.get("pool", "8"), "pool", least=1, most=1000)),
    )


def _check_values(found: Mapping[str, str | int | None]) -> None:
    """Raises ValueError for a value that libpq would refuse when it connects, and only then.

    It is let try where nothing is: it looks at what it was given before it looks for a server.
    """
    given: dict[str, Any] = {name: text for name, text in found.items() if text is not None}
    for name in _WHOLE_NUMBERS & given.keys():
        int(given[name])
    hosts = str(given.get("host", "")).count(",") + 1
    given.pop("hostaddr", None)
    nowhere = ",".join(["/holdfast/no/such/place"] * hosts)
    tried = PGconn.connect_start(make_conninfo(**{**given, "host": nowhere}).encode())
    said = tried.error_message.decode("utf-8", "replace").strip()
    tried.finish()
    if said.startswith("invalid "):
        raise ValueError(said)


def _application(name: str) -> str:
    check_name(name, "application")
    if len(name.encode()) > APPLICATION_BYTES_MAX:
        raise UsageError(f"application is at most {APPLICATION_BYTES_MAX} bytes, found {name!r}")
    return name


def _schema(name: str) -> str:
    if not _SCHEMA.match(name):
        raise UsageError(
            f"schema must be a lower-case letter or '_', then at most 62 letters, digits or '_', "
            f"found {name!r}"
        )
    return name


def _reason(exc: Exception) -> str:
    """Returns libpq's own words, unless they quote a part of the URL that may be secret."""
    text = str(exc).strip()
    return text if ":" not in text.replace(": ", "") and "@" not in text else "it cannot be parsed"
