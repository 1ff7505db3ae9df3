"""Documents of schemas: what a program says, what a store has, what a migration does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from holdfast.core.event import Change
from holdfast.core.migrate import Migration, SchemaSummary
from holdfast.core.schema import Schema
from holdfast.core.shape import show_type
from holdfast.render.history import change_document


def schemas_document(found: Sequence[SchemaSummary]) -> dict[str, Any]:
    """Returns schemas with the versions that are stored."""
    return {"schemas": [to_builtins(one) for one in found]}


def schema_document(schema: Schema[Any]) -> dict[str, Any]:
    """Returns what a schema says: its fields, and the steps between its versions."""
    fields = schema.shape.parts.fields or {}
    return {
        "name": schema.name,
        "kind": schema.kind,
        "type": schema.type.__name__,
        "version": schema.version,
        "upgrades": schema.upgrades,
        "downgrades": schema.downgrades,
        "aliases": schema.aliases,
        "fields": [
            {
                "name": name,
                "type": show_type(part.shape.annotation),
                "required": part.required,
            }
            for name, part in fields.items()
        ],
    }


def schema_diff_document(
    scope: str, stored: int, version: int, changes: Sequence[Change]
) -> dict[str, Any]:
    """Returns what differs between a state as it is stored and as a program has it."""
    return {
        "scope": scope,
        "stored": stored,
        "version": version,
        "changes": [change_document(one) for one in changes],
    }


def migration_document(migration: Migration) -> dict[str, Any]:
    """Returns what a migration found and did."""
    return {
        "ok": migration.ok,
        "scopes": migration.scopes,
        "migrated": migration.migrated,
        "outdated": [to_builtins(one) for one in migration.outdated],
    }
