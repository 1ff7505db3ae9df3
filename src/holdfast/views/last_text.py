"""The last text of a view file that the log knows: what an edit by hand is compared with.

It is kept in `.holdfast-views` of the directory, one file for each view: a line of JSON, then the
text byte for byte. It names the event of the log that it follows. If the log has no such event, as
after a restore of the store alone, the text is of another history and says nothing.

Losing these files loses no state: then nothing tells an edit from an older text, and the log's word
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
    """The text of a view that the log knows, and the event of the log that it follows."""

    data: bytes = field(default=b"", name="_data")
    stream: str = ""
    revision: int = 0
    link: str = ""
    unread: dict[str, dict[str, Any] | None] = {}
    """Items as they were in the last text that anybody read, where this one has them otherwise.

    None: it was not there. An edit is one of the text that was read.
    """
    inode: int = 0
    atime_ns: int = 0
    """Of the file that we wrote: if its time of access is another one, somebody read it."""
    named: dict[str, list[str]] = {}
    """Ids of items whose line had none when the text was read, by what the line said."""
    strangers: list[str] | None = None
    """Ids in the text that the log did not know: what somebody typed, and what was refused.

    Any other that the log does not know any more was taken back. None: it was not noted.
    """

    @property
    def digest(self) -> str:
        """What names this text of this moment."""
        head = f"{self.stream}\0{self.revision}\0{self.link}\0"
        return sha256(head.encode() + self.data).hexdigest()

    def encode(self) -> bytes:
        """Returns it as it is kept."""
        head = msgspec.to_builtins(self)
        del head["_data"]
        head["sha256"] = sha256(self.data).hexdigest()
        return msgspec.json.encode(head) + b"\n" + self.data


def decode_last(stored: bytes | None) -> LastText | None:
    """Returns a text that was kept; None if it is not there or not whole."""
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
    """Where the files beside one view are."""

    directory: Path
    name: str

    @classmethod
    def of(cls, root: Path, path: str) -> KeptFiles:
        """Returns those of a view in a directory."""
        return cls(root / DIRECTORY, quote(path, safe=""))

    @property
    def last(self) -> Path:
        """The last text that the log knows."""
        return self.directory / f"{self.name}.last"

    @property
    def coming(self) -> Path:
        """What `last` will be once the names are exchanged."""
        return self.directory / f"{self.name}.coming"

    @property
    def new(self) -> Path:
        """The text before the exchange; after it, what the file held."""
        return self.directory / f"{self.name}.new"

    @property
    def again(self) -> Path:
        """The same for a second exchange, while `new` holds what somebody saved."""
        return self.directory / f"{self.name}.again"

    def read(self) -> LastText | None:
        """Returns the last text; None if there is none."""
        return decode_last(read_file(self.last))

    def save(self, last: LastText) -> None:
        """Keeps a text as the last one."""
        write_new(self.coming, last.encode())
        self.coming.replace(self.last)
