"""The views in a configuration file: `[views]` of holdfast.toml.

    [views]
    scope = "workflow/site"         # whose, unless a file says otherwise; default: global
    directory = "notes"             # where the files are, below the folder of this file
    states = "yaml"                 # the newest state of every scope, state/NAME.yaml; or "json"

    [views.files]
    "RALPH_TASKS.md" = "tasks"
    "AGENT.md" = { kind = "learnings", scope = "team/red" }

The section names no commands, so it needs no trust. Still, a file that another user may write is
refused.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from holdfast.core.page import Page
from holdfast.errors import NotFoundError, UsageError
from holdfast.record.trust import read_config
from holdfast.scope import Scope
from holdfast.views.directory import FileView, StoreOfViews, Views
from holdfast.views.kinds import make_view, state_file

FILE = "holdfast.toml"
STATES = "state"
"""The directory of the newest states."""


class ViewSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[views]`."""

    scope: str = "global"
    directory: str = "."
    person: str | None = None
    states: Literal["json", "yaml"] | None = None
    files: dict[str, str | dict[str, Any]] = {}


class StoreOfScopes(StoreOfViews, Protocol):
    """What configured views need of a store."""

    def scope(self, level: str, /) -> Scope: ...
    def scopes(self, *, limit: int | None) -> Page[Scope]: ...


def read_settings(path: str | os.PathLike[str] = FILE) -> ViewSettings | None:
    """Returns the section `[views]` of a file; None if there is no such file or section."""
    try:
        found = read_config(path)
    except NotFoundError:
        return None
    try:
        section = tomllib.loads(found.data.decode()).get("views")
        return None if section is None else msgspec.convert(section, ViewSettings)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f'[views] of "{path}" cannot be read: {error}') from error


def configured_views(store: StoreOfScopes, path: str | os.PathLike[str] = FILE) -> Views:
    """Returns the views of a configuration file; raises NotFoundError if it has no `[views]`."""
    settings = read_settings(path)
    if settings is None:
        raise NotFoundError(
            f'"{path}" names no views', hint="write a section [views] with files or states"
        )
    beside = Path(path).parent
    root = beside / settings.directory
    folder, own = os.path.realpath(root), os.path.realpath(beside)
    if os.path.commonpath((folder, own)) != own:
        # A cloned folder must not make us write files elsewhere on the disk.
        raise UsageError(
            f'[views] directory of "{path}" leads out of the folder of that file, to "{folder}"',
            hint="name a folder below it, or `holdfast views watch` that one",
        )
    views = [_view(store, settings, file, said) for file, said in settings.files.items()]
    more = None if settings.states is None else partial(state_views, store, settings.states)
    return Views(store, root, views, person=settings.person, more=more)


def _view(
    store: StoreOfScopes, settings: ViewSettings, file: str, said: str | dict[str, Any]
) -> FileView:
    options = {"kind": said} if isinstance(said, str) else dict(said)
    kind, scope = options.pop("kind", None), options.pop("scope", settings.scope)
    if not isinstance(kind, str) or not isinstance(scope, str):
        raise UsageError(f'the view "{file}" needs a kind, and the scope is a name')
    try:
        return make_view(kind, store.scope(scope), file, **options)
    except TypeError as error:
        raise UsageError(f'the view "{file}" cannot be made: {error}') from error


def state_views(store: StoreOfScopes, suffix: str) -> Iterator[FileView]:
    """Yields a view of the newest state of every scope that has one and is no subject's."""
    for scope in store.scopes(limit=None):
        if scope.subject is None and scope.state:
            yield state_file(scope, f"{STATES}/{quote(scope.name, safe='')}.{suffix}")
