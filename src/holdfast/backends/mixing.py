"""Which URLs make up a mixed store: a mapping from level to URL, or a TOML file that holds one.

    [store]
    conversation = "redis://cache.example/0"
    "*" = "postgresql://db.example/agents"

    [levels]                        # levels of the application's own, each with the one above it
    session = "conversation"

Paths in the file are those of its own folder.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from holdfast.backends.mixed import REST, MixedBackend
from holdfast.backends.protocol import Backend
from holdfast.errors import HoldfastError, NotFoundError, UsageError, show_value

_FILE_BYTES_MAX = 1 << 20
_LOCAL = ("sqlite:", "files:", "file:")

Opener = Callable[[object], tuple[Backend, str]]


def read_mix(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the URLs and the levels that a TOML file names, or raises UsageError."""
    try:
        with open(path, "rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
        if len(text) > _FILE_BYTES_MAX:
            raise UsageError(
                f'"{path}" has more than {_FILE_BYTES_MAX} bytes: expected a few lines'
            )
        document = tomllib.loads(text.decode())
    except FileNotFoundError as error:
        raise NotFoundError(
            f'there is no file "{path}": a name that ends in .toml is a file that names stores',
            hint=_EXAMPLE,
        ) from error
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {error.strerror}') from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        # What stands in the file is not repeated: it may hold a password.
        raise UsageError(f'"{path}" is not TOML', hint=_EXAMPLE) from error
    if unknown := document.keys() - {"store", "levels"}:
        raise UsageError(f'"{path}" has a table {sorted(unknown)[0]!r}', hint=_EXAMPLE)
    urls, levels = (_table(path, document, name) for name in ("store", "levels"))
    folder = os.path.dirname(os.path.abspath(path))
    return {level: _beside(folder, url) for level, url in urls.items()}, levels


_EXAMPLE = (
    """write [store], then lines such as conversation = "redis://…" and "*" = "postgresql://…\""""
)


def _table(path: str, document: dict[str, Any], name: str) -> dict[str, str]:
    table = document.get(name, {})
    if not isinstance(table, dict) or not all(
        isinstance(value, str) for value in cast("dict[str, object]", table).values()
    ):
        raise UsageError(f'"{path}" must have text for every key of [{name}]', hint=_EXAMPLE)
    return cast("dict[str, str]", table)


def _beside(folder: str, url: str) -> str:
    """Returns the URL with a relative path in it taken from the file's folder."""
    scheme = next((one for one in _LOCAL if url.startswith(one)), "")
    path = url[len(scheme) :].removeprefix("//")
    if not path or (not scheme and ":" in path.partition("/")[0]):
        return url
    return scheme + os.path.join(folder, path)


def open_mix(
    urls: Mapping[Any, Any], levels: Sequence[str], open_one: Opener
) -> tuple[Backend, str]:
    """Opens every backend that is named, and returns them as one, with how that is shown."""
    _check(urls, levels)
    opened: dict[object, tuple[Backend, str]] = {}
    try:
        for url in urls.values():
            # The same URL twice is one backend, so its levels can be committed to together.
            if _same(url) not in opened:
                opened[_same(url)] = open_one(url)
        shown = {level: opened[_same(url)][1] for level, url in urls.items()}
        if len(opened) == 1:
            return next(iter(opened.values()))
        routes = {level: opened[_same(url)][0] for level, url in urls.items()}
        mixed = MixedBackend(routes, shown)
        _check_apart(mixed)
        mixed.check_places()
    except BaseException:
        for backend, _ in opened.values():
            try:
                backend.close()
            except HoldfastError:
                continue  # what was wrong first is told
        raise
    return mixed, ", ".join(f"{level}={shown[level]}" for level in sorted(shown))


def _same(url: object) -> object:
    return os.fspath(cast("os.PathLike[str]", url)) if isinstance(url, os.PathLike) else url


def _check(urls: Mapping[Any, Any], levels: Sequence[str]) -> None:
    for level, url in urls.items():
        if level != REST and level not in levels:
            raise UsageError(
                f"there is no level {show_value(level)} to route: expected one of "
                f'{", ".join(levels)}, or "*" for all others',
                hint='a level of your own is named when the store is opened: levels={"mine": '
                '"conversation"} registers it below "conversation"',
            )
        if str(_same(url)).endswith(".toml") and not os.path.isdir(str(_same(url))):
            raise UsageError(
                f'level "{level}" is routed to {show_value(url)}: expected a store, not a file '
                "that names some",
                hint="name the stores themselves",
            )
        if not isinstance(url, str | os.PathLike):
            raise UsageError(f'level "{level}" is routed to {show_value(url)}: expected a URL')
    if REST not in urls:
        left = [level for level in levels if level not in urls]
        raise UsageError(
            f'"*" is missing: {", ".join([*left, "leases and workers"])} would be kept nowhere',
            hint='name a backend for the rest, such as {"*": "sqlite:state.db"}',
        )


def _check_apart(mixed: MixedBackend) -> None:
    """Raises UsageError if two different URLs lead to one store."""
    seen: dict[str, int] = {}
    for place, part in enumerate(mixed.parts):
        store = str(part.inspect.describe()["store"])
        if (other := seen.setdefault(store, place)) != place:
            raise UsageError(
                f"{mixed.shown(other)} and {mixed.shown(place)} are the same store",
                hint="write both as the same URL: then they are one backend",
            )
