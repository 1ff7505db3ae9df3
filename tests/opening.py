"""How tests that are given options of a store open one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from inspect import signature
from typing import Any

from holdfast import Settings, Store
from holdfast.core.kernel import Kernel
from holdfast.core.layers import reserved_prefixes
from holdfast.core.leases import HEARTBEAT_S
from holdfast.core.log import Log
from holdfast.names import Levels
from holdfast.opening import open_store, store_of

FIELDS = {field.name for field in fields(Settings)}
PARAMETERS = signature(open_store).parameters.keys()


def settled(given: Mapping[str, Any], /, **more: Any) -> dict[str, Any]:
    """Returns the arguments of `holdfast.open`: settings, and what only the backend takes, inside.

    Tests are given their options by name, whoever heeds them.
    """
    given = {**given, **more}
    settings = given.pop("settings", Settings())
    chosen = {name: given.pop(name) for name in FIELDS & given.keys()}
    options = {name: given.pop(name) for name in given.keys() - PARAMETERS}
    if options:
        chosen["options"] = {**settings.options, **chosen.get("options", {}), **options}
    return {**given, "settings": replace(settings, **chosen)}


def store_of_log(
    log: Log,
    *,
    url: str = "memory:",
    worker: str,
    levels: Levels | None = None,
    read_only: bool = False,
    **settings: Any,
) -> Store:
    """Returns a store on a log that a test made, with what fails or waits below it."""
    return store_of(
        Kernel(
            log,
            url=url,
            worker=worker,
            levels=levels or Levels(reserved=reserved_prefixes()),
            heartbeat_s=settings.get("heartbeat_s", HEARTBEAT_S),
            read_only=read_only,
            settings=Settings(**settings),
        )
    )
