"""The numbered SQL files: which were run, and running those that are missing, under a lock.

A file's text never changes once it was released: its digest is kept beside its number. Two stores
that are opened at the same time take turns by an advisory lock of the transaction.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from holdfast.backends.postgresql.batch import lock_of
from holdfast.backends.postgresql.lines import Line
from holdfast.errors import CorruptError, FormatError, NotFoundError

FORMAT = 1
# Asked of the catalog's own rows: a name that was not there when this session last looked may stay
# unknown to to_regclass until the transaction ends.
_HAS_TABLE = """SELECT count(*) FROM pg_catalog.pg_class c
 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = 'migrations'"""
_HAS_SCHEMA = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = %s"
_CREATE_SCHEMA = 'CREATE SCHEMA "holdfast"'
_DONE = "SELECT number, digest FROM holdfast.migrations ORDER BY number"
_ADD = "INSERT INTO holdfast.migrations (number, digest) VALUES (%s, %s)"


@cache
def file_text(number: int) -> str:
    """Returns the file's statements, as written for the schema `holdfast`."""
    name = f"postgresql_{number:04}.sql"
    return files("holdfast.backends").joinpath("sql", name).read_text("utf-8")


@cache
def in_schema(statement: str, schema: str) -> str:
    """Returns a statement with the schema's own name in it, which `place` has checked."""
    return statement.replace("holdfast.", f"{schema}.").replace('"holdfast"', f'"{schema}"')


def digest_of(number: int) -> str:
    return sha256(file_text(number).encode()).hexdigest()


def prepare_schema(line: Line, schema: str, *, create: bool, where: str) -> None:
    """Makes sure that the schema has format 1: makes or completes it if that is wanted."""
    done = _done(line, schema)
    _check(done, where)
    if len(done) == FORMAT:
        return
    if not create:
        raise NotFoundError(
            f'there is no store in "{where}": schema "{schema}" has no tables of ours',
            hint="check the URL, or create the store",
        )
    with line.transaction():
        line.execute("SELECT pg_advisory_xact_lock(%s)", (lock_of("schema", schema),))
        done = _done(line, schema)
        _check(done, where)
        # An administrator may have made it: then the right to make one is not needed.
        if line.ask(_HAS_SCHEMA, (schema,)) == [(0,)]:
            line.ask(in_schema(_CREATE_SCHEMA, schema))
        for number in range(len(done) + 1, FORMAT + 1):
            line.execute(in_schema(file_text(number), schema).encode())
            line.execute(in_schema(_ADD, schema).encode(), (number, digest_of(number)))


def _done(line: Line, schema: str) -> dict[int, str]:
    if line.ask(_HAS_TABLE, (schema,)) == [(0,)]:
        return {}
    return dict(line.ask(in_schema(_DONE, schema)))


def _check(done: dict[int, str], where: str) -> None:
    if max(done, default=0) > FORMAT:
        raise FormatError(
            f'"{where}" has format {max(done)}, this holdfast knows formats up to {FORMAT}',
            hint="upgrade holdfast",
        )
    for number, digest in done.items():
        if digest != digest_of(number):
            raise CorruptError(
                f'"{where}" was made by another file number {number} than this holdfast has',
                where=where,
                hint="use the release of holdfast that made it",
            )
