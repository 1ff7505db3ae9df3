"""Which backend keeps a store: one table by scheme, and entry points for backends of others.

A backend is imported when its scheme is asked for. Another distribution adds a scheme of its own
with an entry point in the group "holdfast.backends": its name is the scheme, and it leads to what
is called with the URL and the options `clock`, `durability`, `create` and `read_only`, and returns
a backend. The schemes of the table cannot be taken over.
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
from holdfast.errors import UsageError, show_value, unloaded
from holdfast.names import SCHEME, is_connection_string, unwrapped, without_secrets

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "holdfast.backends"


class BuiltIn(NamedTuple):
    """A backend of ours: where its class is, and what the class takes in place of the URL."""

    module: str
    name: str
    takes: Literal["nothing", "path", "url"]
    extra: str = ""  # what is to be installed with holdfast, if it needs more than holdfast does


_MEMORY = BuiltIn("holdfast.backends.memory", "MemoryBackend", "nothing")
_FILES = BuiltIn("holdfast.backends.files", "FilesBackend", "path")
_SQLITE = BuiltIn("holdfast.backends.sqlite", "SqliteBackend", "path")
_POSTGRESQL = BuiltIn("holdfast.backends.postgresql", "PostgresqlBackend", "url", extra="postgres")
_REDIS = BuiltIn("holdfast.backends.redis", "RedisBackend", "url", extra="redis")

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
    **options: Any,
) -> tuple[Backend, str]:
    """Returns the backend that a URL or path names, and the URL as it should be shown.

    A plain path means files. A mapping from level to URL means several: `levels` are those that can
    be routed, `kept_with` says what else is kept with them. `options` are those of every backend:
    clock, durability, create, read_only, and the seams for tests (`reach`, `disk`). `each` looks at
    every backend that was opened and returns what stands for it; if it raises, that is closed.
    """
    if isinstance(url, Mapping):
        from holdfast.backends.mixed import open_mix

        urls = cast("Mapping[object, object]", url)
        return open_mix(
            urls, levels, kept_with, lambda one: open_backend(one, each=each, **options)
        )
    if each is not None:
        opened, shown = open_backend(url, **options)
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
    _check_spelling(url)
    found = SCHEME.match(url)
    if found is None:
        return _noted(_load(_FILES)(url, **options), url, options), url
    scheme = found.group(1)
    built_in = BUILT_IN.get(scheme)
    if built_in is None:
        return _open_foreign(scheme, url, options)
    return _open_built_in(built_in, scheme, url, options)


def looked_at(opened: Backend, each: Callable[[Backend], Backend]) -> Backend:
    """Returns what stands for an open backend, which is closed if it is refused."""
    try:
        return each(opened)
    except BaseException:
        opened.close()
        raise


def _check_spelling(url: str) -> None:
    """Raises UsageError for a URL that would become the name of a folder, password and all."""
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
        path = _path(url, f"{scheme}:")
        return _noted(_load(built_in)(path, **options), path, options), url
    if url not in ("memory:", "memory://"):
        raise UsageError(f'a memory store has no place, found "{url}"', hint='use "memory:"')
    # A store in memory survives nothing, whatever was asked for; it says so in its status.
    backend = _load(built_in)(clock=options["clock"], read_only=options["read_only"])
    return backend, "memory:"


def _noted(backend: Backend, path: str, options: dict[str, Any]) -> Backend:
    """Returns a backend whose place on this machine is noted, so that a copy of it can be told."""
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
            f"a store of {built_in.name} needs the package {exc.name}, which is not installed",
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

        # The same one may be found twice, where a package is installed and on the path as well.
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
"""What the log does without, for backends that were written before it was in the protocol."""
_COMPANIONS = {"objects": Objects, "leases": Leases, "marks": Marks, "inspect": Inspection}


def check_backend(backend: object, what: str) -> Backend:
    """Returns the backend, or raises UsageError that names what it lacks of the protocol."""
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
