"""The last text of a view file that the log knows: the base that an edit is compared with.

It is kept in `.holdfast-views` of the directory, one file for each view: a line of JSON, then the
text byte for byte. It names the newest event of the log at that time. If the log has no such event,
as after a restore of the store alone, the text belongs to another history and is ignored.

Losing these files loses no state. But then an edit cannot be told from an older text, so the log
counts where the two differ.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from holdfast.exchange import read_file, write_new

DIRECTORY = ".holdfast-views"


class LastText(Struct, frozen=True):
    """A text of a view that the log knows, and the newest event of the log at that time."""

    data: bytes = field(default=b"", name="_data")
    stream: str = ""
    revision: int = 0
    link: str = ""
    unread: dict[str, dict[str, Any] | None] = {}
    """Items that were different in the last text that somebody read, as they were there.

    None means that the item was not there. An edit is compared with the text that was read.
    """
    inode: int = 0
    atime_ns: int = 0
    """Inode and access time of the file that we wrote; if they differ now, somebody read it."""
    named: dict[str, list[str]] = {}
    """Ids of items whose line showed none when the text was read, by the line's signature."""
    strangers: list[str] | None = None
    """Ids in the text that the log did not know: typed by somebody, or refused.

    Any other id that the log no longer knows was taken back, as by a rewind. None: not noted.
    """

    @property
    def digest(self) -> str:
        """The digest of the text and its event; part of the key of an import."""
        head = f"{self.stream}\0{self.revision}\0{self.link}\0"
        return sha256(head.encode() + self.data).hexdigest()

    def encode(self) -> bytes:
        """Returns the bytes of the file in which it is kept."""
        head = msgspec.to_builtins(self)
        del head["_data"]
        head["sha256"] = sha256(self.data).hexdigest()
        return msgspec.json.encode(head) + b"\n" + self.data


def decode_last(stored: bytes | None) -> LastText | None:
    """Returns a text that was kept; None if it is missing or damaged."""
    if stored is None:
        return None
    line, _, data = stored.partition(b"\n")
    try:
        head = msgspec.json.decode(line)
        if head.pop("sha256") != sha256(data).hexdigest():
            return None
        return msgspec.structs.replace(msgspec.convert(head, LastText), data=data)
    except (msgspec.MsgspecError, KeyError, AttributeError, UnicodeDecodeError):
        return None


class KeptFiles(Struct, frozen=True):
    """The paths of the files that are kept beside one view."""

    directory: Path
    name: str

    @classmethod
    def of(cls, root: Path, path: str) -> KeptFiles:
        """Returns the paths for a view in a directory."""
        return cls(root / DIRECTORY, quote(path, safe=""))

    @property
    def last(self) -> Path:
        """The last text that the log knows."""
        return self.directory / f"{self.name}.last"

    @property
    def coming(self) -> Path:
        """The next `last`, which replaces it once the names are exchanged."""
        return self.directory / f"{self.name}.coming"

    @property
    def new(self) -> Path:
        """Before the exchange, the new text; after it, what the file held."""
        return self.directory / f"{self.name}.new"

    @property
    def again(self) -> Path:
        """Like `new`, for a second exchange while `new` holds what somebody saved."""
        return self.directory / f"{self.name}.again"

    def read(self) -> LastText | None:
        """Returns the last text; None if there is none."""
        return decode_last(read_file(self.last))

    def save(self, last: LastText) -> None:
        """Keeps a text as the last one."""
        write_new(self.coming, last.encode())
        self.coming.replace(self.last)
