"""Tenants on this host: a folder each, `PLACE.tenants/NAME`, with the tenant's store in it.

    PLACE.tenants/NAME/tenant.json   the record of the tenant
    PLACE.tenants/NAME/store         its store, if PLACE is a folder of files
    PLACE.tenants/NAME/state.db      its store, if PLACE is an SQLite database
    PLACE.tenants/.locked-ID         a tenant that is locked out and still whole
    PLACE.tenants/.removing-ID       a tenant that is being removed
    PLACE.tenants/.removed/ID.json   the receipt of one that was

NAME is the tenant's name, encoded so that it cannot be a path. Only their owner can read the
folders. Everything that runs as that system user can read all of them: this keeps programs from
confusing tenants, but it does not keep out other programs of the same account.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from msgspec import DecodeError, ValidationError
from msgspec import json as json_codec
from msgspec.structs import replace

from holdfast.backends.in_use import is_in_use
from holdfast.backends.protocol import Leftover
from holdfast.backends.rescue import sync_directory, sync_way
from holdfast.backends.tenancy import (
    Dropped,
    TenantLogin,
    TenantRecord,
    folder_name,
    new_tenant_id,
)
from holdfast.clock import Clock
from holdfast.errors import (
    CorruptError,
    ExistsError,
    NotFoundError,
    UnavailableError,
    UsageError,
)

_RECORD = "tenant.json"
_LOCKED = ".locked-"
_REMOVING = ".removing-"
_REMOVED = ".removed"
_STORES = {"sqlite": "state.db"}
_RECORD_BYTES_MAX = 1 << 20
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


def enter_folder(
    path: str, scheme: str, tenant: str, clock: Clock, *, create: bool
) -> tuple[str, TenantRecord]:
    """Returns the path of a tenant's store and the tenant's record; makes both with `create`."""
    host = TenantFolders(path, scheme, clock)
    found = host.find(tenant)
    if found is None:
        if not create:
            raise NotFoundError(
                f'there is no tenant "{tenant}" at "{path}"',
                hint="holdfast init",
            )
        found = host.make(tenant, {})
    return host.store_path(found), found


class TenantFolders:
    """The tenants of one place on this host."""

    def __init__(self, path: str, scheme: str, clock: Clock) -> None:
        self._scheme = scheme
        self._url = f"{scheme}:{path}" if scheme else path
        self._folder = f"{path.rstrip('/') or path}.tenants"
        self._clock = clock

    # --- what there is -----------------------------------------------------------------------

    def find(self, name: str) -> TenantRecord | None:
        """Returns a tenant by its name; None if there is none."""
        return _read_record(os.path.join(self._folder, folder_name(name)))

    def list(self) -> list[TenantRecord]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        found: list[TenantRecord] = []
        for name in names:
            is_going = name.startswith(_REMOVING)
            if name.startswith(".") and not name.startswith((_LOCKED, _REMOVING)):
                continue
            record = _read_record(os.path.join(self._folder, name))
            if record is not None:
                found.append(replace(record, state="removing") if is_going else record)
        return sorted(found, key=lambda one: one.name)

    def store_path(self, tenant: TenantRecord) -> str:
        """Returns where the store of a tenant is."""
        return os.path.join(self._home(tenant), _STORES.get(self._scheme, "store"))

    def store_url(self, tenant: TenantRecord) -> str:
        path = self.store_path(tenant)
        return f"{self._scheme}:{path}" if self._scheme else path

    def _home(self, tenant: TenantRecord) -> str:
        if tenant.state == "removing":
            return os.path.join(self._folder, _REMOVING + tenant.id)
        locked = self._locked(tenant)
        return locked if os.path.isdir(locked) else self._open_home(tenant)

    def _locked(self, tenant: TenantRecord) -> str:
        return os.path.join(self._folder, _LOCKED + tenant.id)

    def _open_home(self, tenant: TenantRecord) -> str:
        """Returns the folder that the name of the tenant leads to."""
        return os.path.join(self._folder, folder_name(tenant.name))

    # --- making one --------------------------------------------------------------------------

    def create(self, name: str, settings: dict[str, Any]) -> TenantLogin:
        if self.find(name) is not None:
            raise ExistsError(f'there is a tenant "{name}" already')
        made = self.make(name, settings)
        return TenantLogin(made, self._url)

    def make(self, name: str, settings: dict[str, Any]) -> TenantRecord:
        """Makes the folder of a tenant and, atomically, its record; returns the record.

        If another process makes the same tenant at the same time, its record is returned.
        """
        record = TenantRecord(name, new_tenant_id(self._clock), self._clock.now_us(), settings)
        home = self._home(record)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        try:
            os.mkdir(home, 0o700)
        except FileExistsError:
            _check_folder(home)
        # The names on the way are durable before the record is: a tenant that was answered for must
        # be there after a power loss, whether or not a store was made in it since.
        sync_way(self._folder)
        sync_directory(self._folder)
        _write_record(home, record, is_new=True)
        found = _read_record(home)
        assert found is not None, "BUG: a record that was just written"
        return found

    def change(self, tenant: TenantRecord, settings: dict[str, Any]) -> None:
        _write_record(self._home(tenant), replace(tenant, settings=settings), is_new=False)

    def renew(self, tenant: TenantRecord) -> TenantLogin:
        raise UsageError(
            f'tenant "{tenant.name}" is a folder of this host and has no password',
            hint="who may read it is said by the permissions of the folder",
        )

    def problems(self, tenant: TenantRecord | None) -> list[str]:
        """Returns the folders that users other than their owner may enter."""
        found: list[str] = []
        for one in self.list() if tenant is None else [tenant]:
            if os.stat(self._home(one)).st_mode & 0o077:
                found.append(f'others may enter "{self._home(one)}": chmod 700 it')
        return found

    # --- removing one ------------------------------------------------------------------------

    def lock_out(self, tenant: TenantRecord) -> None:
        """Moves the folder away: opening the tenant from now on makes a new one."""
        if self._home(tenant) == self._locked(tenant):
            return
        if is_in_use(self.store_url(tenant)):
            raise UnavailableError(
                f'the store of tenant "{tenant.name}" is open in some process; nothing was removed',
                hint="close it there, then try again",
            )
        os.rename(self._home(tenant), self._locked(tenant))
        sync_directory(self._folder)

    def let_in(self, tenant: TenantRecord) -> None:
        if self._home(tenant) != self._locked(tenant):
            return
        try:
            os.rename(self._locked(tenant), self._open_home(tenant))
        except OSError as error:
            raise UnavailableError(
                f'tenant "{tenant.name}" was not removed and is whole in "{self._locked(tenant)}", '
                "but a new tenant of that name was made meanwhile",
                hint=f'move "{self._open_home(tenant)}" away, then try again',
            ) from error
        sync_directory(self._folder)

    def begin_removal(self, tenant: TenantRecord) -> None:
        if tenant.state == "active":
            os.rename(self._locked(tenant), self._home(replace(tenant, state="removing")))
            sync_directory(self._folder)

    def drop(self, tenant: TenantRecord, *, whole: bool) -> Dropped:
        going = replace(tenant, state="removing")
        home, store = self._home(going), self.store_path(going)
        # The store loses its name in one step, and durably, before any of its files is deleted:
        # nobody can open half a store, also after a crash.
        if os.path.exists(store):
            os.rename(store, f"{store}.dropped")
            sync_directory(home)
        files = size = 0
        for folder, _, names in os.walk(home):
            for name in names:
                if name != _RECORD:
                    files += 1
                    size += os.lstat(os.path.join(folder, name)).st_size
        for name in os.listdir(home):
            path = os.path.join(home, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif name != _RECORD:
                os.unlink(path)
        sync_directory(home)
        left = Leftover(
            "free space of the disk",
            "a disk keeps the bytes of deleted files until others take their place: encrypt it",
        )
        return Dropped({"files": files, "bytes": size}, [left])

    def end_removal(self, tenant: TenantRecord, receipt: str) -> None:
        removed = os.path.join(self._folder, _REMOVED)
        os.makedirs(removed, mode=0o700, exist_ok=True)
        path = os.path.join(removed, f"{tenant.id}.json")
        # After a crash this runs again, when the data is gone: only the first receipt has the
        # counts. It is durable before the record goes, or the removal would leave no trace.
        if not os.path.exists(path):
            _write(f"{path}.new", receipt.encode())
            os.replace(f"{path}.new", path)
        sync_directory(removed)
        shutil.rmtree(self._home(replace(tenant, state="removing")), ignore_errors=True)
        sync_directory(self._folder)

    def receipts(self) -> list[str]:
        folder = os.path.join(self._folder, _REMOVED)
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        paths = [os.path.join(folder, name) for name in names if name.endswith(".json")]
        paths.sort(key=lambda path: (os.stat(path).st_mtime_ns, path))
        return [_read(path).decode() for path in paths]

    def close(self) -> None:
        """There is nothing to close."""


# --- records ------------------------------------------------------------------------------------


def _check_folder(path: str) -> None:
    """Raises UsageError if a tenant's folder is a link or a file: a link may lead elsewhere."""
    if os.path.islink(path) or not os.path.isdir(path):
        raise UsageError(f'"{path}" is not a folder, and a tenant is kept in one')


def _read_record(home: str) -> TenantRecord | None:
    path = os.path.join(home, _RECORD)
    try:
        _check_folder(home)
        data = _read(path)
    except (FileNotFoundError, UsageError):
        if os.path.lexists(home):
            _check_folder(home)
        return None
    try:
        return json_codec.decode(data, type=TenantRecord)
    except (DecodeError, ValidationError, UnicodeDecodeError) as error:
        raise CorruptError(
            f'"{path}" is not the record of a tenant', where=path, hint="restore it from a backup"
        ) from error


def _write_record(home: str, record: TenantRecord, *, is_new: bool) -> None:
    """Writes a record atomically. A new one does not replace the record of another process.

    A new record is linked and not renamed to its name, because `link` fails if the name exists.
    """
    path = os.path.join(home, _RECORD)
    beside = f"{path}.{record.id}.new"
    _write(beside, json_codec.encode(record))
    try:
        if is_new:
            os.link(beside, path)
        else:
            os.replace(beside, path)
            beside = ""
    except FileExistsError:
        pass  # another process made the same tenant at the same time: its record counts
    finally:
        if beside:
            os.unlink(beside)
    sync_directory(home)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | _OPEN)
    with open(descriptor, "rb") as file:
        return file.read(_RECORD_BYTES_MAX)


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
