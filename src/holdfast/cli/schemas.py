"""Schemas: what a program has and what a store has, and `migrate`, which brings them together."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.cli.history import print_differing
from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading, open_writing
from holdfast.cli.parsing import find_scope
from holdfast.cli.printing import print_facts, print_json, print_line, print_note, print_table
from holdfast.cli.store import progress_shown
from holdfast.cli.user_code import load_schemas
from holdfast.core import tree
from holdfast.core.kernel import kernel_of
from holdfast.core.migrate import Migration, SchemaSummary
from holdfast.core.schema import Schema, schema_of
from holdfast.errors import NotFoundError, UpgradeError
from holdfast.render.schemas import (
    migration_document,
    schema_diff_document,
    schema_document,
    schemas_document,
)
from holdfast.render.text import change_cells, clean


def migrate(
    code: str,
    /,
    *,
    check: Flag = False,
    dry_run: Flag = False,
    to: int | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Bring the state of every scope to the version of its schema; resumable.

    Parameters
    ----------
    code
        The file or module with the schemas: app.py, package.module, or app.py:Ticket for one.
    check
        Only list the scopes that are not at their schema's version; exit code 1 if there are any.
    dry_run
        Compute what would change, and write nothing.
    to
        An older version to go back to, by the downgrades of the schemas.
    """
    schemas = load_schemas(code)
    opened = open_reading if check or dry_run else open_writing
    with (
        opened(options, schemas=schemas) as store,
        progress_shown(quiet=options.json, what="migrating scopes", unit="scopes") as progress,
    ):
        found = store.schemas.migrate(check=check, dry_run=dry_run, to=to, progress=progress)
    if options.json:
        print_json(migration_document(found))
    else:
        print_migration(found)
    if check:
        return 1 if found.outdated else 0
    return 0 if found.ok else UpgradeError.exit_code


def print_migration(found: Migration) -> None:
    """Prints what a migration found and did."""
    if found.outdated:
        rows = [
            (
                clean(one.scope),
                str(one.stored),
                str(one.version),
                str(one.changes),
                clean(one.error or (f"has {', '.join(one.both)} too" if one.both else "")),
            )
            for one in found.outdated
        ]
        print_table(("scope", "stored", "version", "changes", "problem"), rows)
    print_line(
        f"{found.migrated} of {found.scopes} scopes were migrated"
        + (f", {len(found.outdated)} are not of their version" if found.outdated else "")
    )


def list_schemas(code: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """List schemas, and how many scopes of each version are stored.

    Parameters
    ----------
    code
        The file or module with the schemas; without it, the versions that the store has by level.
    """
    schemas = [] if code is None else load_schemas(code, items=True)
    with open_reading(options, schemas=schemas) as store:
        found = store.schemas.list()
    if options.json:
        print_json(schemas_document(found))
        return
    rows = [
        (
            _shown_name(one),
            one.type or "",
            "" if one.version is None else str(one.version),
            ", ".join(f"{each.scopes} of version {each.version}" for each in one.stored),
        )
        for one in found
    ]
    print_table(("name", "type", "version", "stored"), rows)


def _shown_name(one: SchemaSummary | Schema[Any]) -> str:
    """Returns what a schema is for: the level or pattern, and which items of it if any."""
    return clean(one.name) + f" ({one.kind}s)" * (one.kind != "state")


def show_schema(code: str, name: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """Show a schema: its fields, and the steps between its versions.

    Parameters
    ----------
    code
        The file or module with the schema.
    name
        The class, or the level or pattern that it is for, if there are several.
    """
    schema = find_schema(code, name)
    if options.json:
        print_json(schema_document(schema))
        return
    document = schema_document(schema)
    print_facts(
        [
            ("name", clean(schema.name)),
            ("of", f"its {schema.kind}" + "s" * (schema.kind != "state")),
            ("type", schema.type.__name__),
            ("version", str(schema.version)),
            ("upgrades from", ", ".join(map(str, schema.upgrades)) or "none"),
            ("downgrades from", ", ".join(map(str, schema.downgrades)) or "none"),
            ("aliases", ", ".join(f"{a} is {b}" for a, b in schema.aliases.items()) or "none"),
        ]
    )
    rows = [
        (clean(one["name"]), clean(one["type"]), "required" if one["required"] else "")
        for one in document["fields"]
    ]
    print_table(("field", "type", ""), rows)


def find_schema(code: str, name: str | None) -> Schema[Any]:
    """Returns the one schema of a module, or the one of a name."""
    schemas = [schema_of(one) for one in load_schemas(code, items=True)]
    found = [one for one in schemas if name in (None, one.name, one.type.__name__)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{one.type.__name__} ({_shown_name(one)})" for one in schemas)
    several = f'"{code}" has several schemas' + (f' "{name}"' if name else "")
    raise NotFoundError(
        several if found else f'"{code}" has no schema "{name}"',
        hint=f"it has {listed}",
    )


def diff_schema(code: str, scope: str, /, *, options: Options = DEFAULTS) -> None:
    """Show how the stored state of a scope differs from what the program reads.

    Parameters
    ----------
    code
        The file or module with the schema.
    scope
        The scope, such as conversation/c1.
    """
    with open_reading(options, schemas=load_schemas(code)) as store:
        found = find_scope(store, scope)
        log = kernel_of(store).log
        schema = log.typed.of(found.name)
        if schema is None:
            raise NotFoundError(f'"{code}" has no schema for scope "{found.name}"')
        revision = found.revision
        stored = log.at(found.name, revision).version
        old, new = found.at(revision, raw=True), found.at(revision)
        changes = [
            holdfast.Change(found.name, revision, one.path, one.old, one.new)
            for one in tree.diff(old, new)
        ]
    if options.json:
        print_json(schema_diff_document(found.name, stored, schema.version, changes))
        return
    print_differing([change_cells(one) for one in changes])
    if not changes:
        print_note(f"{clean(found.name)} is what version {schema.version} says")
