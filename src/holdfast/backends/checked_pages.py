"""SQLite files whose pages carry a checksum, for what can be made again when it is damaged.

SQLite itself notices damage only where it breaks the structure of a page: zeros or a flipped bit in
a row are read as they are. Its extension `cksumvfs` keeps a checksum in the last bytes of each page
and compares it whenever a page is read from the disk. Other programs can read such a file; what
they write has no checksum, and counts as damage.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import apsw
import apsw.sqlite_extra

_BYTES = 8


@cache
def checking_vfs() -> str:
    """Returns the name of the SQLite VFS that adds checksums to pages and compares them."""
    before = apsw.vfs_names()[0]
    apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
    # Loading makes it the default of the process; other users of SQLite here did not ask for it.
    apsw.set_default_vfs(before)
    return "cksmvfs"


def make_room(connection: Any) -> None:
    """Reserves the bytes of the checksums; only before the first page of a new file is written.

    Later it would take a VACUUM.
    """
    connection.reserve_bytes(reserve=_BYTES)


def has_room(connection: Any) -> bool:
    """Returns whether the file says that its pages have checksums: else none is compared."""
    return connection.reserve_bytes() == _BYTES


def is_mismatch(error: apsw.Error) -> bool:
    """Returns whether a page was read whose checksum does not fit it."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
