"""Which backend keeps a store: a table by scheme, and entry points for backends of others.

A backend is imported when its scheme is first used. Another distribution adds a scheme with an
entry point in the group "holdfast.backends". The name of the entry point is the scheme. It refers
to a class or function that is called with the URL and the options `clock`, `durability`, `create`
and `read_only`, and returns a backend. The schemes of the table cannot be replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from holdfast.backends.place import note_place
from holdfast.backends.protocol import (
    DURABILITIES,
    Backend,
    Inspection,
    Leases,
    Marks,
    Objects,
)
from holdfast.backends.tenancy import TenantHost, TenantRecord, url_of_tenant
from holdfast.clock import Clock
from holdfast.errors import UsageError, show_value, unloaded
from holdfast.names import SCHEME, is_connection_string, unwrapped, without_secrets

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from holdfast.backends.key_rows import KeyRows

ENTRY_POINTS = "holdfast.backends"


class BuiltIn(NamedTuple):
    """A backend of ours: where its class is, and what the class takes in place of the URL."""

    module: str
    name: str
    takes: Literal["nothing", "path", "url"]
    extra: str = ""  # the extra of holdfast that installs what it needs, if it needs more
    what: str = ""  # what needs that extra, if it is not a store


_MEMORY = BuiltIn("holdfast.backends.memory", "MemoryBackend", "nothing")
_FILES = BuiltIn("holdfast.backends.files", "FilesBackend", "path")
_SQLITE = BuiltIn("holdfast.backends.sqlite", "SqliteBackend", "path")
_POSTGRESQL = BuiltIn("holdfast.backends.postgresql", "PostgresqlBackend", "url", extra="postgres")
_SQLITE_KEYS = BuiltIn("holdfast.backends.key_rows", "SqliteKeyRows", "path")
_POSTGRESQL_KEYS = BuiltIn(
    "holdfast.backends.postgresql.key_rows", "PostgresqlKeyRows", "url", "postgres",
    what="keys in PostgreSQL",
)  # fmt: skip
_REDIS = BuiltIn("holdfast.backends.redis", "RedisBackend", "url", extra="redis")
_TENANTS = {
    _POSTGRESQL: BuiltIn(
        "holdfast.backends.postgresql.tenancy", "PostgresqlTenants", "url", extra="postgres"
    ),
    _REDIS: BuiltIn("holdfast.backends.redis.tenancy", "RedisTenants", "url", extra="redis"),
}
"""The classes that make tenants on a server; on this host tenants are folders."""

BUILT_IN: Mapping[str, BuiltIn] = {
    "memory": _MEMORY,
    "files": _FILES,
    "file": _FILES,
    "sqlite": _SQLITE,
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
}
OPTIONS = frozenset(("clock", "durability", "create", "read_only", "reach", "disk"))


def open_backend(
    url: object,
    *,
    levels: Sequence[str] = (),
    kept_with: Mapping[str, str | None] = MappingProxyType({}),
    each: Callable[[Backend], Backend] | None = None,
    tenant: str | None = None,
    entered: Callable[[TenantRecord], None] = lambda _: None,
    **options: Any,
) -> tuple[Backend, str]:
    """Returns the backend that a URL or path names, and the URL as it should be shown.

    A plain path means files. A mapping from level to URL means a mixed store: `levels` are the
    levels that can be routed, `kept_with` says which other streams are kept with them. `options`
    are those of every backend: clock, durability, create, read_only, and the seams for tests
    (`reach`, `disk`). `each` is called with every backend that was opened and returns the one to
    use in its place; if it raises, the backend is closed. `entered` is called with each tenant
    whose store was opened.
    """
    if isinstance(url, Mapping):
        from holdfast.backends.mixed import open_mix

        urls = cast("Mapping[object, object]", url)
        return open_mix(
            urls,
            levels,
            kept_with,
            lambda one: open_backend(one, each=each, tenant=tenant, entered=entered, **options),
        )
    if each is not None:
        opened, shown = open_backend(url, tenant=tenant, entered=entered, **options)
        return looked_at(opened, each), shown
    if isinstance(url, os.PathLike):
        url = os.fspath(url)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if unknown := options.keys() - OPTIONS:
        raise UsageError(f"there is no option {', '.join(sorted(unknown))} of a store")
    if not isinstance(url, str) or not _can_be_a_path(url):
        raise UsageError(
            "a store is named by a path or a URL, found "
            + show_value(without_secrets(url) if isinstance(url, str) else cast("object", url)),
            hint='use a folder such as ".holdfast", "sqlite:state.db" or "memory:"',
        )
    scheme, built_in = _find(url)
    record = None
    if tenant is not None and (built_in is None or built_in.takes != "nothing"):
        url, record = _enter(built_in, scheme, url, tenant, options)
    if built_in is None:
        return _open_foreign(scheme, url, options)
    opened, shown = _open_built_in(built_in, scheme, url, options)
    if (record := record or getattr(opened, "tenant", None)) is not None:
        entered(record)
    return opened, shown


def open_tenants(url: object, clock: Clock) -> TenantHost:
    """Returns the host of a place's tenants; on a server it uses the login of the URL."""
    if isinstance(url, os.PathLike):
        url = os.fspath(url)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not isinstance(url, str) or not _can_be_a_path(url) or url.endswith(".toml"):
        raise UsageError(
            "tenants are those of one place, named by a path or a URL, found "
            + show_value(without_secrets(url) if isinstance(url, str) else cast("object", url)),
            hint="of a store of several parts, name each part by itself",
        )
    scheme, built_in = _find(url)
    if built_in is not None and built_in.takes == "path":
        from holdfast.backends.tenant_folders import TenantFolders

        return TenantFolders(_path(url, f"{scheme}:") if scheme else url, scheme, clock)
    if built_in is None or built_in not in _TENANTS:
        raise _no_tenants(scheme)
    return _load(_TENANTS[built_in])(url, clock)


def _no_tenants(scheme: str) -> UsageError:
    return UsageError(
        f'a store of "{scheme}:" has no tenants',
        hint="tenants are in folders of files, SQLite databases, PostgreSQL and Redis",
    )


def _enter(
    built_in: BuiltIn | None, scheme: str, url: str, tenant: str, options: dict[str, Any]
) -> tuple[str, TenantRecord | None]:
    """Returns the URL of a tenant's store; on this host, makes its folder if that is allowed."""
    if built_in in _TENANTS:
        return url_of_tenant(url, tenant), None  # the server has the record
    if built_in is None or built_in.takes == "url":
        raise _no_tenants(scheme)
    from holdfast.backends.tenant_folders import enter_folder

    path = _path(url, f"{scheme}:") if scheme else url
    create = options.get("create", True) and not options.get("read_only", False)
    inside, record = enter_folder(path, scheme, tenant, options["clock"], create=create)
    return f"{scheme}:{inside}" if scheme else inside, record


def looked_at(opened: Backend, each: Callable[[Backend], Backend]) -> Backend:
    """Returns what `each` returns for an open backend; closes the backend if `each` raises."""
    try:
        return each(opened)
    except BaseException:
        opened.close()
        raise


def _find(url: str) -> tuple[str, BuiltIn | None]:
    """Returns the scheme of a URL, "" for a path, and the built-in backend for it, if any."""
    _check_spelling(url)
    found = SCHEME.match(url)
    scheme = "" if found is None else found.group(1)
    return scheme, BUILT_IN.get(scheme) if scheme else _FILES


def _check_spelling(url: str) -> None:
    """Raises UsageError for a misspelt URL that would be taken for a path.

    A folder with that name would be made, and the name could hold a password.
    """
    bare = unwrapped(url)
    if is_connection_string(bare):
        raise UsageError(
            "a store is named by a path or a URL, found the connection string of a PostgreSQL "
            f"client: {without_secrets(url)}",
            hint='write it as "postgresql://user@host/database"',
        )
    if bare != url and (found := SCHEME.match(bare)) and found.group(2):
        raise UsageError(
            f"a URL has no space or quotes around it, found them around {without_secrets(url)}",
            hint="remove them; a folder of that name is written with ./ before it",
        )


def _can_be_a_path(url: str) -> bool:
    try:
        return bool(url) and b"\0" not in os.fsencode(url)
    except UnicodeEncodeError:  # half a character
        return False


# --- backends of ours -----------------------------------------------------------------------------


def _open_built_in(
    built_in: BuiltIn, scheme: str, url: str, options: dict[str, Any]
) -> tuple[Backend, str]:
    if built_in.takes == "url":
        return _load(built_in)(url, **options), without_secrets(url)
    if built_in.takes == "path":
        path = _path(url, f"{scheme}:") if scheme else url
        return _noted(_load(built_in)(path, **options), path, options), url
    if url not in ("memory:", "memory://"):
        raise UsageError(f'a memory store has no place, found "{url}"', hint='use "memory:"')
    # A store in memory survives nothing, whatever durability was asked for; its status says so.
    backend = _load(built_in)(clock=options["clock"], read_only=options["read_only"])
    return backend, "memory:"


def _noted(backend: Backend, path: str, options: dict[str, Any]) -> Backend:
    """Returns the backend after noting its place on this machine, to recognise copies of it."""
    if not options.get("read_only"):
        note_place(os.path.realpath(path), options["clock"])
    return backend


def _load(built_in: BuiltIn) -> Any:
    try:
        module = import_module(built_in.module)
    except OSError as exc:
        raise unloaded(built_in.module, exc) from exc
    except ModuleNotFoundError as exc:
        if not built_in.extra:
            raise
        raise UsageError(
            f"{built_in.what or f'a store of {built_in.name}'} needs the package {exc.name}, which "
            "is not installed",
            hint=f'pip install "holdfast[{built_in.extra}]"',
        ) from None
    return getattr(module, built_in.name)


def _path(url: str, scheme: str) -> str:
    path = url[len(scheme) :]
    if path.startswith("//"):
        path = path[2:]
    if path == ":memory:":
        raise UsageError(f'"{url}" would keep nothing', hint='use "memory:" for a store in memory')
    if not path:
        raise UsageError(f'"{url}" names no path', hint=f'write it as "{scheme}some/path"')
    return path


def open_key_rows(url: str) -> KeyRows:
    """Returns the tables of a key store in the database that a URL names."""
    _check_spelling(url)
    if url.startswith("sqlite:"):
        return _load(_SQLITE_KEYS)(_path(url, "sqlite:"))
    return _load(_POSTGRESQL_KEYS)(url)


# --- backends of others ---------------------------------------------------------------------------


def _open_foreign(scheme: str, url: str, options: dict[str, Any]) -> tuple[Backend, str]:
    shown = without_secrets(url)
    entry_point = _entry_point(scheme)
    if entry_point is None:
        raise UsageError(
            f'"{scheme}" is not a backend that is installed, found in "{shown}"',
            hint=f'use "sqlite:state.db", "memory:" or a path; "./{shown}" is one',
        )
    where = f'the entry point "{scheme} = {entry_point.value}" of {ENTRY_POINTS}'
    try:
        factory = entry_point.load()
    except Exception as exc:  # importing what is not ours may raise anything
        raise UsageError(
            f'"{shown}" cannot be opened: {where} cannot be loaded: {type(exc).__name__}: {exc}',
            hint="install the package that it belongs to again, or ask who maintains it",
        ) from exc
    if not callable(factory):
        raise UsageError(f"{where} leads to {show_value(factory)}: expected a class or a function")
    return check_backend(factory(url, **options), f"what {where} returned"), shown


def _entry_point(scheme: str) -> EntryPoint | None:
    try:
        from importlib.metadata import entry_points  # slow to import, and rarely needed

        # One entry point may be found twice, if its package is installed and on the path as well.
        found = {each.value: each for each in entry_points(group=ENTRY_POINTS, name=scheme)}
    except OSError as exc:
        raise unloaded("the list of installed backends", exc) from exc
    if len(found) > 1:
        raise UsageError(
            f'several packages offer a backend for "{scheme}:": {", ".join(sorted(found))}',
            hint="uninstall all but one of them",
        )
    return next(iter(found.values()), None)


_OPTIONAL = frozenset(("leases.renew_many",))
"""Methods that the log can do without, for backends written before these were in the protocol."""
_COMPANIONS = {"objects": Objects, "leases": Leases, "marks": Marks, "inspect": Inspection}


def check_backend(backend: object, what: str) -> Backend:
    """Returns the backend, or raises UsageError that names the parts of the protocol it lacks."""
    lacks = ["durability"] if not hasattr(backend, "durability") else []
    lacks += _missing(backend, Backend, "")
    for name, companion in _COMPANIONS.items():
        found = getattr(backend, name, None)
        lacks += [name] if found is None else _missing(found, companion, f"{name}.")
    if lacks:
        is_class = " (it is a class: make an object of it)" if isinstance(backend, type) else ""
        raise UsageError(
            f"{what} is not a backend: {show_value(backend)}{is_class} has no {', '.join(lacks)}",
            hint="holdfast.backends.protocol.Backend says what a backend has",
        )
    whole = cast("Backend", backend)
    if whole.durability not in DURABILITIES:
        raise UsageError(
            f"{what} has the durability {show_value(whole.durability)}: expected one of "
            f"{', '.join(DURABILITIES)}"
        )
    return whole


def _missing(found: object, protocol: type, prefix: str) -> list[str]:
    """Returns the methods of a protocol that an object does not have."""
    methods = [name for name, value in vars(protocol).items() if callable(value)]
    return [
        prefix + name
        for name in methods
        if not name.startswith("_")
        and prefix + name not in _OPTIONAL
        and not callable(getattr(found, name, None))
    ]
