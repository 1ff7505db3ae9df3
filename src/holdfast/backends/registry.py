"""Which URL means which backend: one explicit table, each backend imported when it is used."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.backends.protocol import Backend
from holdfast.errors import UsageError, show_value
from holdfast.names import without_secrets

SCHEMES = (
    *("memory:", "sqlite:", "files:", "file:", "postgresql:", "postgres:"),
    *("redis:", "rediss:", "unix:"),
)
OPTIONS = frozenset(("clock", "durability", "create", "read_only", "reach", "disk"))
# Two letters at least: "C:" is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def open_backend(url: object, *, levels: Sequence[str] = (), **options: Any) -> tuple[Backend, str]:
    """Returns the backend that a URL or path names, and the URL as it should be shown.

    A plain path means files. A mapping from level to URL means several, and `levels` are those that
    can be routed. `options` are those of every backend: clock, durability, create, read_only, and
    the seams for tests (`reach`, `disk`).
    """
    if isinstance(url, Mapping):
        from holdfast.backends.mixed import open_mix

        urls = cast("Mapping[object, object]", url)
        return open_mix(urls, levels, lambda one: open_backend(one, **options))
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
    if url.startswith("memory:"):
        return _memory(url, options), "memory:"
    if url.startswith("sqlite:"):
        from holdfast.backends.sqlite import SqliteBackend

        return SqliteBackend(_path(url, "sqlite:"), **options), url
    if url.startswith(("postgresql:", "postgres:")):
        return _postgresql(url, options)
    if url.startswith(("redis:", "rediss:", "unix:")):
        return _redis(url, options)
    scheme = _SCHEME.match(url)
    if scheme and not url.startswith(SCHEMES):
        shown = without_secrets(url)
        raise UsageError(
            f'"{scheme.group(1)}" is not a backend that is built in, found in "{shown}"',
            hint=f'use "sqlite:state.db", "memory:" or a path; "./{shown}" is one',
        )
    from holdfast.backends.files import FilesBackend

    for scheme in ("files:", "file:"):
        if url.startswith(scheme):
            return FilesBackend(_path(url, scheme), **options), url
    return FilesBackend(url, **options), url


def _postgresql(url: str, options: dict[str, Any]) -> tuple[Backend, str]:
    try:
        from holdfast.backends.postgresql import PostgresqlBackend
    except ModuleNotFoundError as exc:
        raise UsageError(
            f"a PostgreSQL store needs the package {exc.name}, which is not installed",
            hint='pip install "holdfast[postgres]"',
        ) from None
    backend = PostgresqlBackend(url, **options)
    return backend, backend.place.shown


def _redis(url: str, options: dict[str, Any]) -> tuple[Backend, str]:
    try:
        from holdfast.backends.redis import RedisBackend
    except ModuleNotFoundError as exc:
        raise UsageError(
            f"a Redis store needs the package {exc.name}, which is not installed",
            hint='pip install "holdfast[redis]"',
        ) from None
    backend = RedisBackend(url, **options)
    return backend, backend.place.shown


def _can_be_a_path(url: str) -> bool:
    try:
        return bool(url) and b"\0" not in os.fsencode(url)
    except UnicodeEncodeError:  # half a character
        return False


def _memory(url: str, options: dict[str, Any]) -> Backend:
    from holdfast.backends.memory import MemoryBackend

    if url not in ("memory:", "memory://"):
        raise UsageError(f'a memory store has no place, found "{url}"', hint='use "memory:"')
    # A store in memory survives nothing, whatever was asked for; it says so in its status.
    return MemoryBackend(clock=options["clock"], read_only=options["read_only"])


def _path(url: str, scheme: str) -> str:
    path = url[len(scheme) :]
    if path.startswith("//"):
        path = path[2:]
    if path == ":memory:":
        raise UsageError(f'"{url}" would keep nothing', hint='use "memory:" for a store in memory')
    if not path:
        raise UsageError(f'"{url}" names no path', hint=f'write it as "{scheme}some/path"')
    return path
