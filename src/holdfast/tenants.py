"""Tenants of one place: made, listed and removed with the rights of an administrator (0077).

    tenants = Tenants("postgresql://admin@db/agents")
    login = tenants.create("acme")                # its URL has a password, and is shown once
    holdfast.open(login.url, tenant="acme")       # what the application of that tenant does

A tenant is removed in the order below. So a process may be killed at any point: the tenant can read
nothing from then on, and the same call made again continues.

    (1) holds are checked; a held scope or subject refuses the removal
    (2) the tenant is locked out
    (3) holds are checked again, because one may have been set before (2); if so, it is let in again
    (4) the removal is recorded; from here there is no way back
    (5) the keys of its subjects are destroyed, then its data is dropped
    (6) its login and record are deleted, and the receipt is kept
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec import json as json_codec
from msgspec.structs import replace

from holdfast.backends.protocol import Leftover
from holdfast.backends.registry import open_tenants
from holdfast.backends.tenancy import TenantRecord, TenantState, check_tenant
from holdfast.clock import Clock, SystemClock
from holdfast.core.event import to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.core.keystore import KeyStore
from holdfast.core.limits import Quota, quota_settings, quotas_of
from holdfast.core.store_key import StoreKey
from holdfast.errors import (
    CorruptError,
    ExistsError,
    FormatError,
    HeldError,
    NotFoundError,
    UsageError,
    show_value,
)
from holdfast.names import without_secrets
from holdfast.opening import DEFAULT_PLACE, open_store, tenant_keys
from holdfast.settings import Settings
from holdfast.store import Store

BEYOND = (
    "backups, copies and exports of the tenant that were made before: delete them, or let them "
    "expire; sealed data in them is opened by nothing, because the keys are destroyed",
    "write-ahead archives, replicas and snapshots of a server, and of the disk under it",
    "indexes in the caches of other machines that asked questions (~/.cache/holdfast/query)",
    "copies of the keys themselves, if somebody made some",
)
"""What no process can reach from here."""


class Tenant(Struct, frozen=True):
    """One tenant. `id` replaces the name wherever others could read it; quotas are per scope."""

    name: str
    id: str
    made_at: datetime
    quotas: tuple[Quota, ...] = ()
    state: TenantState = "active"


class NewTenant(Struct, frozen=True):
    """A tenant and the URL that its application opens, with its password: it is shown once."""

    tenant: Tenant
    url: str

    def __repr__(self) -> str:
        return f"NewTenant({self.tenant!r}, {without_secrets(self.url)!r})"


class TenantReceipt(Struct, frozen=True):
    """The receipt of a removed tenant: its id, when, counts, keys destroyed, and what is left.

    If the removal was stopped and continued, `counts` and `keys` are those of the last call.
    """

    tenant: str
    removed_at: datetime
    counts: dict[str, int]
    keys: int
    left: list[Leftover]
    beyond: tuple[str, ...] = BEYOND


class Tenants:
    """The tenants of one place: a folder, an SQLite or PostgreSQL database, or a Redis server."""

    def __init__(self, url: object = DEFAULT_PLACE, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._host = open_tenants(url, self._clock)

    def create(self, name: str, *, quotas: Sequence[Quota] = ()) -> NewTenant:
        """Makes a tenant with its own login; raises ExistsError if the name is taken.

        The tenant's store is created when it is first opened with `create`, as every store is.
        `quotas` apply to every handle of that store, whatever settings it is opened with.
        """
        settings = _settings(quotas)
        if self._find(check_tenant(name)) is not None:
            raise ExistsError(
                f'there is a tenant "{name}" already', hint="tenant renew gives it a new password"
            )
        made = self._host.create(name, settings)
        return NewTenant(_tenant(made.tenant), made.url)

    def list(self) -> list[Tenant]:
        """Returns the tenants, by name; with the login of a tenant, only that tenant."""
        return [_tenant(one) for one in self._host.list()]

    def get(self, name: str) -> Tenant:
        """Returns a tenant by its name; raises NotFoundError."""
        return _tenant(self._get(name))

    def set_quotas(self, name: str, quotas: Sequence[Quota]) -> Tenant:
        """Replaces the quotas of a tenant; open handles keep the old ones until reopened."""
        self._host.change(self._get(name), _settings(quotas))
        return self.get(name)

    def renew(self, name: str) -> NewTenant:
        """Gives a tenant a new password; the old one opens nothing from now on."""
        renewed = self._host.renew(self._get(name))
        return NewTenant(_tenant(renewed.tenant), renewed.url)

    def problems(self, name: str | None = None) -> list[str]:
        """Returns what separates tenants less than it should, and what to do about it."""
        return list(self._host.problems(None if name is None else self._get(name)))

    def receipts(self) -> list[TenantReceipt]:
        """Returns the receipts of the tenants that were removed, oldest first."""
        return [json_codec.decode(one, type=TenantReceipt) for one in self._host.receipts()]

    def remove(
        self,
        name: str,
        *,
        whole: bool = False,
        keys: str | os.PathLike[str] | KeyStore | None = None,
        store_key: str | bytes | StoreKey | None = None,
    ) -> TenantReceipt:
        """Erases a tenant for good: its login, its keys, and everything that it stored.

        Raises HeldError if one of its scopes or subjects is held. `keys` and `store_key` are those
        that its store is opened with. With `whole` the server rewrites its tables, which takes time
        and locks them; without it the receipt says what is left. If the call was stopped, make it
        again: it continues.
        """
        record = self._get(name)
        opening = {"keys": keys, "store_key": store_key, "settings": Settings(clock=self._clock)}
        if record.state == "active":
            self._check_holds(record, opening)
            self._host.lock_out(record)
            self._check_holds(record, opening)  # one may have been set before it was locked out
            self._host.begin_removal(record)
            record = replace(record, state="removing")
        destroyed, kept = self._destroy_keys(record, opening)
        dropped = self._host.drop(record, whole=whole)
        at = to_datetime(self._clock.now_us())
        receipt = TenantReceipt(record.id, at, dropped.counts, destroyed, [*dropped.left, *kept])
        self._host.end_removal(record, json_codec.encode(receipt).decode())
        return receipt

    def _check_holds(self, record: TenantRecord, opening: dict[str, Any]) -> None:
        """Raises HeldError if anything of a tenant is held; a tenant locked out is let in again."""
        # Opened for writing, although it only reads: the last writer to close a store leaves
        # nothing behind that looks as if the store were still open.
        with self._opened(record, {**opening, "create": False}) as store:
            held = [] if store is None else _held(store)
        if held:
            self._host.let_in(record)
            raise HeldError(
                f'tenant "{record.name}" cannot be removed: {held[0]} is held; nothing was removed',
                hint="end the holds first: holdfast hold, holdfast subject list",
            )

    @contextlib.contextmanager
    def _opened(self, record: TenantRecord, opening: dict[str, Any]) -> Generator[Store | None]:
        """Yields the store of a tenant, or None if it was never created."""
        options = dict(opening)
        if options["keys"] is None:
            options["keys"] = tenant_keys(record.id)
        try:
            store = open_store(self._host.store_url(record), **options)
        except NotFoundError:
            yield None
            return
        with store:
            yield store

    def _destroy_keys(
        self, record: TenantRecord, opening: dict[str, Any]
    ) -> tuple[int, list[Leftover]]:
        """Destroys the keys of the tenant's subjects; returns how many, and where some are left.

        Keys in a place that other tenants share are not destroyed: a subject of theirs may have the
        same name, and so the same key.
        """
        from holdfast.query.place import forget_folder  # who removes nobody does not load SQLite

        own = tenant_keys(record.id) if opening["keys"] is None else None
        count, left = 0, list[Leftover]()
        try:
            with self._opened(record, {**opening, "read_only": True}) as store:
                subjects = [] if store is None else list(store.subjects.list())
                keys: Any = None if store is None else kernel_of(store).log.sealing.keys
                for subject in subjects:
                    if own is None and opening["keys"] is None:
                        remedy = f"destroy the key of {subject.id} there, if it is nobody else's"
                        left.append(Leftover(f"keys that tenants share: {keys!r}", remedy))
                        continue
                    keys.destroy(subject.id)
                    count += 1
                if store is not None:
                    forget_folder(kernel_of(store).log)
        except (CorruptError, FormatError) as error:
            # An earlier call may have been stopped while it dropped the data, and left a store that
            # cannot be read. It had been through all keys before it began to drop.
            if own is None:
                remedy = f"see whether some are left: the store could not be read ({error})"
                left.append(Leftover("keys of the tenant's subjects", remedy))
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        return count, left

    def _find(self, name: str) -> TenantRecord | None:
        return next((one for one in self._host.list() if one.name == name), None)

    def _get(self, name: str) -> TenantRecord:
        found = self._find(check_tenant(name))
        if found is None:
            raise NotFoundError(f'there is no tenant "{name}"', hint="holdfast tenant list")
        return found

    def close(self) -> None:
        """Closes the connection to the server."""
        self._host.close()

    def __enter__(self) -> Tenants:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tenant(record: TenantRecord) -> Tenant:
    quotas = tuple(quotas_of(record.settings))
    return Tenant(record.name, record.id, to_datetime(record.made_us), quotas, record.state)


def _settings(quotas: Sequence[Quota]) -> dict[str, Any]:
    if not isinstance(quotas, Sequence) or isinstance(quotas, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"quotas are a list, found {show_value(quotas)}")
    for one in quotas:
        if not isinstance(one, Quota):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"expected a Quota, found {show_value(one)}")
    return quota_settings(quotas)


def _held(store: Store) -> list[str]:
    """Returns what is held in a store."""
    held = [f'scope "{hold.scope}"' for hold in store.retention.holds()]
    return held + [f'subject "{one.name}"' for one in store.subjects.list() if one.hold is not None]
