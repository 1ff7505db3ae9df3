"""What an error of SQLite means to a caller. Nothing above this package sees one of apsw's."""

from __future__ import annotations

from typing import Literal

import apsw

from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    UnavailableError,
    UsageError,
)

_UNAVAILABLE: dict[type[apsw.Error], tuple[str, str]] = {
    apsw.FullError: ("the disk or the database is full", "free some space, then try again"),
    apsw.ReadOnlyError: ("it cannot be written", "check permissions of the file and its directory"),
    apsw.CantOpenError: ("it cannot be opened", "check that its directory exists and is writable"),
    apsw.PermissionsError: ("permission was denied", "check who owns the file and its directory"),
    apsw.AuthError: ("permission was denied", "check who owns the file and its directory"),
    apsw.BusyError: (
        "another process kept it locked for half a minute",
        "try again, or find the process that holds it",
    ),
    apsw.LockedError: ("another connection holds it", "try again"),
    apsw.ProtocolError: ("its locks could not be taken", "try again"),
    apsw.NoMemError: ("memory ran out", "free some memory, then try again"),
    apsw.NoLFSError: ("the file system cannot hold a file of this size", "choose another place"),
    apsw.InterruptError: ("the call was interrupted", "try again"),
    apsw.IOError: ("reading or writing failed", "check the disk, then open the store again"),
}


_LATE_TABLES = tuple(
    f"no such table: {name}"
    for name in ("keys", "checkpoints", "leases", "marks", "claims", "objects")
)


def translate(exc: BaseException, path: str) -> HoldfastError | None:
    """Returns the error to raise in place of SQLite's, None for one that is not SQLite's."""
    match exc:
        case apsw.ConnectionClosedError() | apsw.CursorClosedError():
            return UsageError("store is closed")
        case apsw.NotADBError():
            return FormatError(
                f'"{path}" is not a SQLite database', hint="look elsewhere, or choose a new name"
            )
        case apsw.SQLError() if str(exc).endswith(_LATE_TABLES):
            # Such a table is asked for only if it was seen. Where locks fail, SQLite may read the
            # file without its WAL: no damage. Damage that looks the same is found by `check`.
            return UnavailableError(
                f'"{path}" is unavailable: {exc}',
                hint='open the store again; if that does not help, run "holdfast check"',
            )
        case (
            apsw.CorruptError()
            | apsw.ConstraintError()
            | apsw.SQLError()
            | apsw.SchemaChangeError()
        ):
            return CorruptError(f'"{path}" is damaged: {exc}', where=path)
        case UnicodeDecodeError():
            return CorruptError(f'"{path}" is damaged: text in it is not UTF-8', where=path)
        case UnicodeEncodeError():
            return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
        case apsw.TooBigError():
            return UsageError(f'a value is too big for one row of "{path}"')
        case apsw.Error():
            found, hint = "SQLite refused", "open the store again"
            for kind, (text, remedy) in _UNAVAILABLE.items():
                if isinstance(exc, kind):
                    found, hint = text, remedy
            return UnavailableError(f'"{path}" is unavailable: {found} ({exc})', hint=hint)
        case _:
            return None


class Translated:
    """`with` this, every error of SQLite leaves as one of ours, with the original as its cause."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, _: object) -> Literal[False]:
        if exc is not None:
            ours = translate(exc, self._path)
            if ours is not None:
                raise ours from exc
        return False
