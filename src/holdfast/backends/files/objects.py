"""Named bytes beside the log: `objects/<kind>/<path>`.

A name without a slash lies in a folder of its first two characters: `objects/blob/ab/abcdef…`. In a
name with slashes, each part but the last is a folder with `=` at its end: `12ab/7` is
`objects/snapshot/12ab=/7`. A last part that begins with a dot gets `=` in front, an empty one is
`=-`. No name contains `=`. So no two names share a path, no path is both a folder and a file, and
no name leads out of the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from holdfast.backends.files.disk import read_file, replace_file, unavailable
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.backends.files.backend import FilesBackend

ROOT = "objects"
OBJECT_BYTES_MAX = 1 << 31
TEMP = "=new-"
_EMPTY = "=-"
_KINDS = ("blob", "snapshot")
_NAME = re.compile(r"[0-9a-z./-]{1,120}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class FileObjects:
    """Blobs and snapshots as files. A blob is durable when `put` returns.

    Snapshots are not synced, because they can be made again. After a power loss one may be torn or
    empty: its reader must notice that, by a digest in it.
    """

    def __init__(self, backend: FilesBackend) -> None:
        self._backend = backend
        self._disk = backend.directory.disk
        self._durable: set[str] = set()  # paths of folders whose names this handle has synced
        self._writing: set[str] = set()  # names of files that are being written by this handle

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        self._backend.check_open()
        folders, file = path_of(kind, name)
        self._backend.check_writable()
        durable = kind == "blob"
        temp = TEMP + self._backend.clock.random_bytes(8).hex()
        self._writing.add(temp)
        try:
            with (
                self._reported(kind, name),
                self._folder(folders, create=True, durable=durable) as at,
            ):
                replace_file(self._disk, file, data, at=at, temp=temp, durable=durable)
        finally:
            self._writing.discard(temp)

    def get(self, kind: str, name: str) -> bytes | None:
        self._backend.check_open()
        folders, file = path_of(kind, name)
        missing = contextlib.suppress(FileNotFoundError)
        with self._reported(kind, name), missing, self._folder(folders) as at:
            return read_file(self._disk, file, at=at, size_max=OBJECT_BYTES_MAX)
        return None

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        self._backend.check_open()
        if kind not in _KINDS:
            raise _unknown_kind(kind)
        with self._reported(kind, prefix):
            return sorted(name for name, _ in self.walk(kind, prefix))

    def delete(self, kind: str, name: str) -> None:
        self._backend.check_open()
        folders, file = path_of(kind, name)
        self._backend.check_writable()
        missing = contextlib.suppress(FileNotFoundError)
        with self._reported(kind, name), missing, self._folder(folders) as at:
            self._disk.unlink(file, at=at)
            # Else a power loss could bring back a blob that its caller takes for deleted.
            if kind == "blob":
                self._disk.sync_directory(at)

    def unfinished(self, *, remove: bool) -> int:
        """Counts the files that interrupted writes have left, and removes them if asked to.

        They hold parts of what was to be stored. Only a handle that is alone may remove them: for
        another process they may be a write that is under way.
        """
        found = 0
        for kind in _KINDS:
            missing = contextlib.suppress(FileNotFoundError)
            with self._reported(kind, ""), missing, self._folder([ROOT, kind]) as at:
                for folder in self._disk.listdir(at):
                    found += self._unfinished(at, folder, remove=remove)
        return found

    def _unfinished(self, at: int, folder: str, *, remove: bool) -> int:
        fd = self._disk.open(folder, _FOLDER, at=at)
        try:
            entries = self._disk.listdir(fd)
            cut_off = [one for one in entries if one.startswith(TEMP) and one not in self._writing]
            if remove and cut_off:
                for entry in cut_off:
                    self._disk.unlink(entry, at=fd)
                self._disk.sync_directory(fd)
            folders = [entry for entry in entries if entry.endswith("=")]
            return len(cut_off) + sum(self._unfinished(fd, one, remove=remove) for one in folders)
        finally:
            self._disk.close(fd)

    def walk(self, kind: str, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Yields the names that begin with `prefix`, with the paths of their files."""
        with contextlib.suppress(FileNotFoundError), self._folder([ROOT, kind]) as at:
            for entry in sorted(self._disk.listdir(at)):
                begin = entry[:-1] + "/" if entry.endswith("=") else ""
                yield from self._walk(at, entry, begin, prefix, f"{ROOT}/{kind}")

    def _walk(
        self, at: int, folder: str, begin: str, prefix: str, path: str
    ) -> Iterator[tuple[str, str]]:
        if not (begin.startswith(prefix) or prefix.startswith(begin)):
            return
        fd = self._disk.open(folder, _FOLDER, at=at)
        try:
            for entry in sorted(self._disk.listdir(fd)):
                if entry.endswith("="):
                    yield from self._walk(
                        fd, entry, f"{begin}{entry[:-1]}/", prefix, f"{path}/{folder}"
                    )
                elif not entry.startswith(TEMP):
                    name = begin + ("" if entry == _EMPTY else entry.removeprefix("="))
                    if name.startswith(prefix):
                        yield name, f"{path}/{folder}/{entry}"
        finally:
            self._disk.close(fd)

    @contextlib.contextmanager
    def _folder(
        self, folders: list[str], *, create: bool = False, durable: bool = False
    ) -> Generator[int]:
        """Opens a folder step by step; no step may be a symbolic link.

        If `durable`, the name of every folder on the way is synced, even of one that was there
        before: it may have been made for a snapshot, which is not synced, or by a process that was
        killed before its sync. A power loss could take the name, and the blob with it. Each folder
        is synced once in the life of the handle.
        """
        at = self._backend.directory.fd
        path = ""
        opened: list[int] = []
        try:
            for folder in folders:
                try:
                    fd = self._disk.open(folder, _FOLDER, at=at)
                except FileNotFoundError:
                    if not create:
                        raise
                    with contextlib.suppress(FileExistsError):
                        self._disk.mkdir(folder, at=at)
                    fd = self._disk.open(folder, _FOLDER, at=at)
                opened.append(fd)
                path += folder + "/"
                if durable and path not in self._durable:
                    self._disk.sync_directory(at)
                    self._durable.add(path)
                at = fd
            yield at
        finally:
            for fd in opened:
                self._disk.close(fd)

    @contextlib.contextmanager
    def _reported(self, kind: str, name: str) -> Generator[None]:
        try:
            yield
        except OSError as exc:
            self._backend.check_open()  # closed by another thread, and the descriptors with it
            subject = f'{kind} "{name}" of "{self._backend.directory.path}" is out of reach'
            raise unavailable(exc, subject) from exc


def path_of(kind: str, name: str) -> tuple[list[str], str]:
    """Returns the folders and the file of an object; raises UsageError for an invalid name."""
    if kind not in _KINDS:
        raise _unknown_kind(kind)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of an object: expected 1 to 120 of [0-9a-z./-]")
    *folders, last = name.split("/")
    file = "=" + last if last.startswith(".") else last or _EMPTY
    if folders:
        return [ROOT, kind, *(folder + "=" for folder in folders)], file
    return [ROOT, kind, f"{file:_<2}"[:2].replace("=", "_").replace(".", "_")], file


def _unknown_kind(kind: str) -> UsageError:
    return UsageError(f"{kind!r} is not a kind of object: expected one of {', '.join(_KINDS)}")
