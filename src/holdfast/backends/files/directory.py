"""The store's directory: what makes it a store, and who may open it.

    holdfast.json   {"format":2,"store":"<id>","created":"…"}, written last of all
    head.json       {"end":N,"position":N,"digest":"…","closed":true}, written at a clean close;
                    `closed` is taken back before the first write after it
    .gitignore      names what belongs to this machine and this moment only

`holdfast.json` comes last because it makes the directory a store: a creation that is killed before
it can simply be done again.

The files of a store are opened through the directory's descriptor, never through a path, and never
through a symbolic link. So it has no effect if somebody replaces the directory by a link after it
was checked.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from msgspec import DecodeError, Struct, ValidationError
from msgspec import json as json_codec

from holdfast.backends.files.disk import Disk, read_file, replace_file, reported, write_all
from holdfast.backends.files.index import LogCursor
from holdfast.backends.local_path import check_private, refuse_network
from holdfast.clock import Clock
from holdfast.errors import CorruptError, FormatError, NotFoundError
from holdfast.names import new_id

# --- the shared page ------------------------------------------------------------------------------
#
# One page of memory that all processes of a store see, backed by a file.
#
# Native-endian 64-bit words, in the order of the constants below. It coordinates the processes of
# one boot and is never the truth: the first process in, after a reboot, a crash of the last process
# or a clean close, makes it again from the ring and the text.
#
# Words are written under the store lock only. Readers look at END without it. END is one aligned
# word, so it is never read half written, and everything below it is in the text already (a system
# call wrote the text before). A look costs 0.1 µs and no system call, and makes reads linearizable.


NAME = "shared"
PAGE_BYTES = 4096

(
    MAGIC,  # what this file is, and the layout of the words
    BOOT,  # digest of the boot id under which it was made
    END,  # log offset after the newest line that may be read
    BUSY,  # 1 while a commit is under way: found under a free lock, its writer died
    CLOSED,  # 1 when the last process has closed the store: the page is out of use
    SEGMENT,  # log offset at which the newest segment begins
    POSITION,  # of the newest line
    SYNCED_END,  # log offset up to which the text is synced
    UNRINGED,  # 1 if text above SYNCED_END is in no ring (written at a weaker durability)
    RING_NUMBER,  # of the newest batch; 0 while there is no ring
    RING_OFFSET,  # where in the ring the next batch goes
    RING_FREE,  # ring bytes that may be overwritten before the text must be synced
    LEASES,  # grows with each change of leases.json
    LOCK,  # inode of the lock file that all writers use; 0 if it was not noted
    REWRITTEN,  # grows each time that a rewritten segment takes the place of a sealed one
) = range(15)

NO_PAGE = memoryview(bytes((0xFF,)) * 8 * 16).cast("Q")
"""Words that match no state of any store; they stand for a page that is not there."""

_MAGIC = int.from_bytes(b"HFSHARE1", "little")


class SharedPage:
    """The mapped page; `words[END]` and so on."""

    def __init__(self, disk: Disk, fd: int, *, read_only: bool) -> None:
        self._disk = disk
        self.fd = fd
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
        self._map = mmap.mmap(fd, PAGE_BYTES, access=access)
        self._view = memoryview(self._map)
        self.words = self._view.cast("Q")

    def is_of(self, boot_id: str) -> bool:
        """Returns whether the page was made in this boot, by code that knows this layout."""
        return self.words[MAGIC] == _MAGIC and self.words[BOOT] == _boot_word(boot_id)

    def make(self, boot_id: str) -> None:
        """Clears every word and claims the page for this boot; the count of lease changes grows."""
        leases = self.words[LEASES]
        for number in range(len(self.words)):
            self.words[number] = 0
        self.words[LEASES] = leases + 1
        self.words[BOOT] = _boot_word(boot_id)
        self.words[MAGIC] = _MAGIC

    def close(self) -> None:
        """Unmaps the page and closes its descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self.words.release()
            self._view.release()
            self._map.close()
            self._disk.close(fd)


def open_page(disk: Disk, *, at: int, read_only: bool) -> SharedPage | None:
    """Opens the page, and makes it if needed; None if there is none and `read_only` is set."""
    flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
    try:
        fd = disk.open(NAME, flags, at=at)
    except FileNotFoundError:
        return None
    try:
        if disk.size(fd) != PAGE_BYTES:
            if read_only:
                disk.close(fd)
                return None
            # Written, not only extended: the kernel would fill a hole at a page fault, and on a
            # full disk that ends the process with a signal, not with an error.
            write_all(disk, fd, bytes(PAGE_BYTES), 0)
            disk.truncate(fd, PAGE_BYTES)
        return SharedPage(disk, fd, read_only=read_only)
    except BaseException:
        disk.close(fd)
        raise


def _boot_word(boot_id: str) -> int:
    return int.from_bytes(sha256(boot_id.encode()).digest()[:8], "little")


FORMAT = 3
"""Format 2 has meta, and keys after the first event; format 3 has packed segments (0086). A store
is raised before the first use of what is new."""
_MADE = 2
_IDENTITY = "holdfast.json"
_HEAD = "head.json"
_IGNORED = (
    "ring\nring.new\nshared\nindex*\nlock\nworkers/\nleases.json\n*.new\ntorn/\nrescued/\n"
    "objects/snapshot/\n"
)
# What an interrupted creation may leave. Anything else is not ours.
_OURS_UNFINISHED = {"lock", "log", "workers", ".gitignore", f"{_IDENTITY}.new", ".gitignore.new"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class _Identity(Struct):
    format: int
    store: str
    created: str


class _Head(Struct):
    end: int
    position: int
    digest: str
    closed: bool = False


class Directory:
    """An opened store directory; `fd` is its descriptor."""

    def __init__(self, path: str, disk: Disk, fd: int) -> None:
        self.path = path
        self.disk = disk
        self.fd = fd
        self.store = ""
        self.format = 0  # what this handle knows; another one may have raised it since
        self.identity = b""  # what holdfast.json says
        self._fds = [fd]

    def folder(self, name: str, *, create: bool = True) -> int:
        """Opens a directory below for the life of the handle, and makes it if needed."""
        if create:
            with contextlib.suppress(FileExistsError):
                # Synced at once, because a usual commit syncs files only and no directory.
                self.disk.mkdir(name, at=self.fd)
                self.disk.sync_directory(self.fd)
        fd = self.disk.open(name, _FOLDER, at=self.fd)
        self._fds.append(fd)
        return fd

    def leads_here(self) -> bool:
        """Returns whether the path still leads to this directory."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def open_lock(self) -> int:
        fd = self.disk.open("lock", os.O_RDWR | os.O_CREAT, at=self.fd)
        self._fds.append(fd)
        return fd

    def has_identity(self) -> bool:
        return read_file(self.disk, _IDENTITY, at=self.fd) is not None

    def identify(self, clock: Clock, *, create: bool) -> None:
        """Reads which store this is, or makes one if `create` is set; the caller has the lock."""
        data = read_file(self.disk, _IDENTITY, at=self.fd)
        if data is None:
            if not create:
                raise self.not_a_store()
            data = self._create(clock)
        format = self._decode(data, dict[str, Any], _IDENTITY).get("format")
        if type(format) is not int or not 1 <= format <= FORMAT:
            raise FormatError(
                f'"{self.path}" has format {format!r}: this holdfast reads up to {FORMAT}',
                hint="upgrade holdfast",
            )
        self.store = self._decode(data, _Identity, _IDENTITY).store
        self.identity, self.format = data, format

    def read_format(self) -> int:
        """Returns the format that the store has now."""
        data = read_file(self.disk, _IDENTITY, at=self.fd)
        return self.format if data is None else self._decode(data, _Identity, _IDENTITY).format

    def upgrade(self, clock: Clock, to: int = _MADE) -> None:
        """Raises a store to a format, durably; the caller has the store lock.

        This comes before the first line, or segment, that a lower format cannot hold. A holdfast
        that knows only that format then refuses the store by its number when it opens it. Otherwise
        it would take such a line for damage, or after a crash for a torn end, and cut it off.
        """
        self.identify(clock, create=False)
        if self.format < to:
            data = self.identity_in(to)
            self.replace(_IDENTITY, data, durable=True)
            self.identity, self.format = data, to

    def identity_in(self, format: int) -> bytes:
        """Returns holdfast.json with the number of another format."""
        identity = self._decode(self.identity, dict[str, Any], _IDENTITY)
        return json_codec.encode({**identity, "format": format}) + b"\n"

    def _create(self, clock: Clock) -> bytes:
        self._sync_way()
        self.folder("log")
        self.replace(".gitignore", _IGNORED.encode(), durable=False)
        created = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.now_us())
        identity = _Identity(_MADE, new_id(clock), created.isoformat())
        data = json_codec.encode(identity) + b"\n"
        self.replace(_IDENTITY, data, durable=True)
        return data

    def _sync_way(self) -> None:
        """Syncs every directory above the store, up to the root of the file system.

        The name of the store, and of each directory on the way to it, must survive a power loss as
        surely as the commits in it. They are synced no matter who made them: a process may have
        made some and been killed before it synced them. This happens before the store has its
        identity, because no later open does it. A directory that this user may not read was not
        made by this user, and is left out.
        """
        device = os.fstat(self.fd).st_dev
        above, path = os.path.dirname(self.path), self.path
        while above != path and os.stat(above).st_dev == device:
            with contextlib.suppress(PermissionError):
                fd = os.open(above, _FOLDER | os.O_CLOEXEC)
                try:
                    self.disk.sync_directory(fd)
                finally:
                    os.close(fd)
            above, path = os.path.dirname(above), above

    def check_ours(self) -> None:
        """Raises FormatError unless the directory is a store, empty, or a store half made."""
        names = set(self.disk.listdir(self.fd))
        if _IDENTITY not in names and not names <= _OURS_UNFINISHED:
            raise self.not_a_store()

    def not_a_store(self) -> FormatError:
        return FormatError(
            f'"{self.path}" is not a holdfast store: it has no {_IDENTITY}',
            hint="name an empty directory to make one, or the directory of a store",
        )

    def read_head(self) -> LogCursor | None:
        """Returns the durable end that head.json records, None if there is no head.json."""
        return self.read_recorded()[0]

    def read_recorded(self) -> tuple[LogCursor | None, bool]:
        """Returns the recorded durable end, and whether the text must end exactly there.

        The second is True from a clean close until the first write after it.
        """
        data = read_file(self.disk, _HEAD, at=self.fd)
        if data is None:
            return None, False
        head = self._decode(data, _Head, _HEAD)
        try:
            digest = bytes.fromhex(head.digest)
        except ValueError as exc:
            raise CorruptError(f"{_HEAD} has a digest that is not hex", where=_HEAD) from exc
        return LogCursor(head.end, head.position, digest), head.closed

    def write_head(self, cursor: LogCursor, *, closed: bool) -> None:
        """Records the durable end; the caller has synced the text up to there."""
        head = _Head(cursor.end, cursor.position, cursor.digest.hex(), closed)
        data = json_codec.encode(head) + b"\n"
        self.replace(_HEAD, data, durable=True)

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Replaces a file; the caller has the lock, so that one temporary name is enough."""
        temp = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(temp, at=self.fd)
        replace_file(self.disk, name, data, at=self.fd, temp=temp, durable=durable)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(name, at=self.fd)

    def close(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _decode(self, data: bytes, kind: type[Any], name: str) -> Any:
        try:
            return json_codec.decode(data, type=kind)
        except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as exc:
            raise CorruptError(f"{name} cannot be read: {exc}", where=name) from exc


def open_directory(
    path: str | os.PathLike[str], disk: Disk, *, create: bool, read_only: bool
) -> Directory:
    """Opens a directory that is a store or may become one, and that is safe to use.

    Raises NotFoundError if it is not there and may not be made, and FormatError if it is no store.
    """
    name: str = os.path.abspath(str(os.fspath(path)))
    refuse_network(name)
    if not os.path.lexists(name):
        if not create or read_only:
            raise NotFoundError(
                f'there is no store at "{name}"', hint="create it, or look elsewhere"
            )
        with reported(f'the directory "{name}" cannot be made'):
            _make(name, disk)
    if not stat.S_ISDIR(check_private(name).st_mode):
        raise FormatError(
            f'"{name}" is a file: expected the directory of a store',
            hint=f'name another place, or "sqlite:{path}" if it is a database',
        )
    with reported(f'the store "{name}" cannot be opened'):
        fd = os.open(name, _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC)
    directory = Directory(name, disk, fd)
    try:
        with reported(f'the store "{name}" cannot be opened'):
            directory.check_ours()
    except BaseException:
        directory.close()
        raise
    return directory


def _make(name: str, disk: Disk) -> None:
    parent, last = os.path.split(name)
    _make_above(parent)
    fd = os.open(parent, _FOLDER | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):
            disk.mkdir(last, at=fd)
    finally:
        os.close(fd)


def _make_above(path: str) -> None:
    """Makes a directory and the missing ones above it, each for its owner alone.

    `os.makedirs` gives its mode to the last one only, and the umask decides who may use the others.
    But anybody who may write to a directory above a store can put another store in its place.
    """
    if not os.path.isdir(path):
        _make_above(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
