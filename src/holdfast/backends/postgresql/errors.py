"""What an error of PostgreSQL means to a caller. Nothing above this package sees one of psycopg's.

Two questions decide: may the call be tried again, and is it known what became of it? A server that
answered with an error has rolled the transaction back. A connection that broke says nothing.
"""

from __future__ import annotations

import psycopg

from holdfast.backends.lines import DeadlineError, unavailable
from holdfast.backends.postgresql.place import Place
from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    NotFoundError,
    UsageError,
)

# Serialization failures, deadlocks: the transaction is gone, the next one may succeed.
_AGAIN = frozenset(("40001", "40P01"))
# The server is going down or coming up, was switched, or has no room for one more connection.
_ELSEWHERE = frozenset(("57P01", "57P02", "57P03", "25006", "53300", "HF004"))
_REMEDIES = {
    "53100": "free some space on the server's disk, then try again",
    "58030": "the server's disk fails: mend it, then try again",
    "53200": "give the server more memory, then try again",
    "42501": "grant the user what it needs: see docs/guides/postgresql.md",
    "28000": "check the user and the server's pg_hba.conf",
    "28P01": "check the user's password",
    "25006": "the server takes no writes: name the primary, or several hosts",
    "HF001": "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
    "HF002": 'ALTER ROLE … SET synchronous_commit = on, or open with durability="process"',
}


def is_lost(exc: BaseException) -> bool:
    """Returns whether the connection went, so that nobody knows what the server did."""
    if isinstance(exc, DeadlineError):
        return True
    if isinstance(exc, psycopg.Error) and exc.diag.severity_nonlocalized == "PANIC":
        # The server ends itself, in the middle of whatever it did: a commit may be on its disk.
        return True
    if not isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = exc.sqlstate
    return state is None or state.startswith("08") or state in ("57P01", "57P02")


def may_retry(exc: BaseException) -> bool:
    """Returns whether the same call on another connection may succeed."""
    if isinstance(exc, DeadlineError):
        return False
    state = exc.sqlstate if isinstance(exc, psycopg.Error) else None
    return is_lost(exc) or state in _AGAIN or state in _ELSEWHERE


def translate(exc: BaseException, place: Place, *, outcome_known: bool) -> HoldfastError | None:
    """Returns the error to raise in place of psycopg's, None for one that is not psycopg's."""
    if isinstance(exc, DeadlineError):
        said = f"did not answer within {place.timeout_s:g} s"
        return unavailable(place.shown, said, outcome_known=outcome_known)
    if isinstance(exc, UnicodeEncodeError):
        return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
    if isinstance(exc, UnicodeDecodeError):
        return UsageError("a payload is not UTF-8 text")
    if not isinstance(exc, psycopg.Error):
        return None
    state = exc.sqlstate or ""
    said = place.hide(exc.diag.message_primary or str(exc).strip() or type(exc).__name__)
    if state.startswith("22") or isinstance(exc, psycopg.DataError):
        return UsageError(f"PostgreSQL cannot store this value: {said}")
    if state in ("XX001", "XX002", "58P01"):  # damage found, or a file that is not there
        return CorruptError(f'"{place.shown}" is damaged: {said}', where=place.shown)
    if state in ("42P01", "42883", "42703", "3F000"):
        return FormatError(
            f'"{place.shown}" has lost tables or functions of its schema: {said}',
            hint="restore the schema from a backup",
        )
    if state == "3D000":
        return NotFoundError(f'"{place.shown}": {said}', hint="create the database first")
    remedy = _REMEDIES.get(state)
    return unavailable(
        place.shown, f"is unavailable: {said}", outcome_known=outcome_known, remedy=remedy
    )
