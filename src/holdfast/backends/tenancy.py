"""Tenants: stores of several owners in one place, each kept from the others (0077).

A tenant has a name, which people choose, and a random id. Where other tenants could see one of
them, in a server's lists of roles, users and keys, the id is used. How tenants are kept apart
depends on the backend:

    files, SQLite   a folder each, `PLACE.tenants/…`
    PostgreSQL      a role each, and row security on every table; the id is role and application
    Redis, Valkey   a user each, and keys that begin with its id

`TenantHost` is the administrator's side. The tenant's own side is only its login: a store opened
with it is the store of the tenant that the login belongs to, or opening it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from msgspec import Struct

from holdfast.backends.protocol import Leftover
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.names import check_name, without_secrets

NAME_BYTES_MAX = 128
TENANT_ID = "hft_"
"""What the ids of tenants begin with."""
ID_BYTES = 12
PASSWORD_BYTES = 24
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_FOLDER_CHARACTERS = 120

TenantState = Literal["active", "removing"]


class TenantRecord(Struct, frozen=True):
    """What is recorded of a tenant. `settings` are those of its store; none of them is secret."""

    name: str
    id: str
    made_us: int
    settings: dict[str, Any] = {}
    state: TenantState = "active"


class TenantLogin(Struct, frozen=True):
    """A tenant that was just made, and the URL, with its password, that its application opens."""

    tenant: TenantRecord
    url: str

    def __repr__(self) -> str:
        return f"<TenantLogin of {self.tenant.name}>"


class Dropped(Struct, frozen=True):
    """How much of a tenant was deleted, by kind, and what must be done by hand."""

    counts: dict[str, int]
    left: list[Leftover]


class TenantHost(Protocol):
    """Makes and removes tenants, with the rights of an administrator.

    Every method can be called again after it was stopped at any point, and then goes on.
    """

    def create(self, name: str, settings: dict[str, Any]) -> TenantLogin:
        """Makes a tenant, its store and its login; raises ExistsError if the name is taken.

        If it was stopped, the name is free, or the tenant is whole and `renew` gives it a login.
        """
        ...

    def list(self) -> list[TenantRecord]:
        """Returns all tenants, by name."""
        ...

    def change(self, tenant: TenantRecord, settings: dict[str, Any]) -> None:
        """Replaces the settings of a tenant; handles that are open keep the old ones."""
        ...

    def renew(self, tenant: TenantRecord) -> TenantLogin:
        """Gives a tenant a new password; the old one no longer works."""
        ...

    def problems(self, tenant: TenantRecord | None) -> Sequence[str]:
        """Returns the weaknesses in how tenants are kept apart: of all tenants, or of one."""
        ...

    def lock_out(self, tenant: TenantRecord) -> None:
        """Locks an active tenant out: from now on nothing that it writes is accepted."""
        ...

    def let_in(self, tenant: TenantRecord) -> None:
        """Gives a tenant that was locked out its access back; leaves any other tenant alone."""
        ...

    def begin_removal(self, tenant: TenantRecord) -> None:
        """Notes that a locked-out tenant is being removed: from now on there is no way back."""
        ...

    def drop(self, tenant: TenantRecord, *, whole: bool) -> Dropped:
        """Deletes everything of a tenant except its record."""
        ...

    def end_removal(self, tenant: TenantRecord, receipt: str) -> None:
        """Removes login and record; stores the receipt, in which the tenant's name is not."""
        ...

    def receipts(self) -> list[str]:
        """Returns the receipts of the tenants that were removed, oldest first."""
        ...

    def store_url(self, tenant: TenantRecord) -> str:
        """Returns the URL by which the administrator opens the store of a tenant."""
        ...

    def close(self) -> None: ...


def check_tenant(name: object) -> str:
    """Returns the name of a tenant: any printable text of at most 128 bytes, else UsageError."""
    checked = check_name(name, "tenant")
    if len(checked.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"tenant {checked[:40]!r}… is too long: at most {NAME_BYTES_MAX} bytes fit"
        )
    return checked


def new_tenant_id(clock: Clock) -> str:
    """Returns a random id that cannot be guessed and is valid as the name of a role or user."""
    return f"{TENANT_ID}{clock.random_bytes(ID_BYTES).hex()}"


def new_password(clock: Clock) -> str:
    return clock.random_bytes(PASSWORD_BYTES).hex()


def folder_name(tenant: str) -> str:
    """Returns the name of a tenant's folder, which is different for each tenant.

    Small letters, digits, "_" and "-" are kept; everything else is written as bytes. So names stay
    different on a file system without capitals, none leads out of the folder, and none begins with
    a dot.
    """
    text = "".join(
        one if one in _PLAIN else "".join(f"={byte:02x}" for byte in one.encode()) for one in tenant
    )
    if len(text) <= _FOLDER_CHARACTERS:
        return text
    return f"{text[:_FOLDER_CHARACTERS]}=={sha256(tenant.encode()).hexdigest()}"


def url_of_tenant(url: str, tenant: str) -> str:
    """Returns the URL of a server with `tenant=` in it; raises UsageError if it names another."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    for name, value in pairs:
        if name == "application":
            raise UsageError(
                f'"{without_secrets(url)}" names an application, and a tenant has one of its own',
                hint="leave application= out of the URL",
            )
        if name == "tenant" and value != tenant:
            raise UsageError(f'"{without_secrets(url)}" is the URL of tenant "{value}"')
    if any(name == "tenant" for name, _ in pairs):
        return url
    bare = url.rstrip("?&")
    return f"{bare}{'&' if parts.query else '?'}tenant={quote(tenant, safe='')}"


def login_url(url: str, user: str, password: str, drop: Sequence[str]) -> str:
    """Returns a URL of a server with another login, and without some parameters."""
    parts = urlsplit(url)
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in drop]
    host = parts.netloc.rpartition("@")[2]
    query = urlencode(kept, quote_via=quote)
    # Not by urlunsplit: before Python 3.12 it makes unix:/run of unix:///run.
    bare = f"{parts.scheme}://{quote(user)}:{quote(password)}@{host}{parts.path}"
    return f"{bare}?{query}" if query else bare
