"""The files of a work tree: what they hold now, and how one is put back without losing an edit.

Files are compared and kept byte by byte, as they are on the disk. The filters and line-end
conversions that a repository configures are never applied: what is put back is what was there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.clock import SystemClock
from holdfast.errors import GitError
from holdfast.exchange import exchange, put
from holdfast.git.repository import GITLINK, SYMLINK, Entry, Repository
from holdfast.names import short_id
from holdfast.views.last_text import DIRECTORY as KEPT_BY_VIEWS
from holdfast.views.last_text import KeptFiles

UNTRACKED_BYTES_MAX = 100 << 20
"""A larger file that git does not track is left out of a point, and reported."""
LEFTOVER = ".holdfast-rewind-"
"""The prefix of the temporary files of a rewind; one that was killed leaves such files."""

_BESIDE_SQLITE = ("-wal", "-shm", "-journal", "-witness")
_CACHE = "files.json"
_CACHE_RACY_NS = 2_000_000_000
"""Files changed within this time before a look are not cached; see `_write_cache`."""
_CHUNK = 1 << 20
_ATTEMPTS = 3

_logger = logging.getLogger("holdfast.git")

Change = Literal["added", "modified", "deleted", "untracked"]


class Look(Struct, frozen=True):
    """What the files of a work tree hold, by path, and which are left out, each with the reason."""

    files: dict[str, Entry]
    left_out: dict[str, str]
    leftovers: tuple[str, ...] = ()


class FileStatus(Struct, frozen=True):
    """How the index differs from the last commit in a file, and the file on disk from the index."""

    path: str
    staged: Change | None
    changed: Change | None


class _Known(Struct, frozen=True, array_like=True):
    """The id of a file's content, with the times, size and inode it had then.

    The file is not read again while these are the same.
    """

    stamp: tuple[int, int, int, int]
    id: str


class _Listed(Struct, frozen=True):
    entry: Entry
    is_skipped: bool  # of a sparse checkout: it is not on the disk


class WorkTree:
    """The files of one work tree. `exclude` are folders and files that do not belong to it.

    Stores are never among its files: going back to a point with an old store would lose revisions.
    What views keep beside their files is not among them, either.
    """

    def __init__(self, repository: Repository, *, exclude: Iterable[str] = ()) -> None:
        self.repository = repository
        self._root = repository.root
        self._excluded: set[str] = set()
        for path in exclude:
            with contextlib.suppress(Exception):  # outside of the work tree: not listed anyway
                self._excluded.add(repository.relative(path))

    # --- looking ---------------------------------------------------------------------------------

    def look(self, *, keep: bool = False) -> Look:
        """Returns what every file holds, both tracked and untracked, but not ignored.

        With `keep`, the contents are also written into the repository, as objects.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._look(keep=keep)
            except (GitError, FileNotFoundError) as error:
                # A file was removed or replaced between two looks at it.
                if attempt == _ATTEMPTS - 1:
                    raise
                _logger.debug("the work tree is looked at again: %s", error)
        raise AssertionError("BUG: the last attempt returns or raises")

    def _look(self, *, keep: bool) -> Look:
        listed = self._listed()
        untracked = [path for path in self._untracked() if path not in listed]
        stores = self._stores([*listed, *untracked])
        files: dict[str, Entry] = {}
        left_out: dict[str, str] = {}
        leftovers: list[str] = []
        known, began = self._read_cache(), SystemClock().now_us() * 1000
        seen: dict[str, _Known] = {}
        for path in [*listed, *untracked]:
            if self._is_excluded(path, stores):
                continue
            if os.path.basename(path).startswith(LEFTOVER):
                leftovers.append(path)
                continue
            there = listed.get(path)
            if there is not None and (there.entry.mode == GITLINK or there.is_skipped):
                files[path] = there.entry
                if there.entry.mode == GITLINK:
                    left_out[path] = "a submodule: its own files are not looked at"
                continue
            if path.endswith("/"):
                left_out[path] = "a repository of its own"
                continue
            entry, reason = self._entry(path, known, seen, is_tracked=there is not None)
            if entry is not None:
                files[path] = entry
            elif reason:
                left_out[path] = reason
        self._write_cache(seen, began)
        if keep:
            self._keep(files)
        return Look(files, left_out, tuple(leftovers))

    def status(self) -> list[FileStatus]:
        """Returns the files that differ from the last commit or from the index, sorted by path."""
        head = self.repository.head
        committed = self.repository.files_of(head) if head else {}
        listed = self._listed()
        look = self.look()
        found: list[FileStatus] = []
        for path in sorted({*committed, *listed, *look.files}):
            index = listed[path].entry if path in listed else None
            staged = _change(committed.get(path), index)
            changed = _change(index, look.files.get(path))
            if path not in listed and path in look.files:
                changed = "untracked"
            if path not in look.files and (path in look.left_out or self._is_of_store(path)):
                changed = None
            if staged or changed:
                found.append(FileStatus(path, staged, changed))
        return found

    def entry(self, path: str) -> Entry | None:
        """Returns what one file holds now, or None if there is no such file."""
        try:
            folder = self._open_folder(path)
        except FileNotFoundError:
            return None
        try:
            return self._entry_in(folder, os.path.basename(path))
        finally:
            os.close(folder)

    def is_view(self, path: str) -> bool:
        """Returns whether a file is a view, which shows the log and is written from it."""
        place = PurePosixPath(path)
        return any(
            KeptFiles.of(Path(self._root, folder), str(place.relative_to(folder))).last.exists()
            for folder in place.parents
        )

    def _listed(self) -> dict[str, _Listed]:
        """Returns the entries of the index; for a file in conflict, its first stage."""
        found: dict[str, _Listed] = {}
        printed = self.repository.run("ls-files", "-z", "-t", "-s")[1]
        for item in printed.split(b"\0"):
            if item:
                about, _, path = item.partition(b"\t")
                tag, mode, id, _ = about.decode().split(" ")
                entry = Entry(mode, id)
                found.setdefault(os.fsdecode(path), _Listed(entry, tag == "S"))
        return found

    def _untracked(self) -> Iterator[str]:
        printed = self.repository.run("ls-files", "-z", "-o", "--exclude-standard")[1]
        return (os.fsdecode(path) for path in printed.split(b"\0") if path)

    def _stores(self, paths: Iterable[str]) -> list[str]:
        """Returns the folders that are stores, each with a slash at its end."""
        return [
            path.removesuffix("holdfast.json")
            for path in paths
            if path.endswith("/holdfast.json")
            and os.path.isdir(os.path.join(self._root, os.path.dirname(path), "log"))
        ]

    def _is_excluded(self, path: str, stores: list[str]) -> bool:
        # What views keep beside their files matches the log: it must not go back without it.
        if any(path.startswith(store) for store in stores) or KEPT_BY_VIEWS in path.split("/"):
            return True
        return any(
            path in (each, *(each + suffix for suffix in _BESIDE_SQLITE))
            or path.startswith((f"{each}/", f"{each}.query/"))
            for each in self._excluded
        )

    def _is_of_store(self, path: str) -> bool:
        return self._is_excluded(path, self._stores([path.partition("/")[0] + "/holdfast.json"]))

    def _entry(
        self, path: str, known: dict[str, _Known], seen: dict[str, _Known], *, is_tracked: bool
    ) -> tuple[Entry | None, str]:
        """Returns what a file holds; or None with the reason, which is empty if it is not there."""
        whole = os.path.join(self._root, path)
        try:
            found = os.lstat(whole)
        except (FileNotFoundError, NotADirectoryError):
            return None, ""
        except OSError as error:
            return None, f"cannot be read: {error.strerror}"
        if not is_tracked and found.st_size > UNTRACKED_BYTES_MAX:
            return None, f"larger than {UNTRACKED_BYTES_MAX >> 20} MiB, and git does not know it"
        stamp = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        before = known.get(path)
        if before is not None and before.stamp == stamp and stat.S_ISREG(found.st_mode):
            seen[path] = before
            return Entry(_mode(found), before.id), ""
        try:
            entry = self.entry(path)
        except OSError as error:
            return None, f"cannot be read: {error.strerror}"
        if entry is None:
            return None, "" if stat.S_ISDIR(found.st_mode) else "no file and no link"
        if stat.S_ISREG(found.st_mode) and path.isprintable():
            seen[path] = _Known(stamp, entry.id)
        return entry, ""

    # --- what it held when it was looked at last -------------------------------------------------

    def _read_cache(self) -> dict[str, _Known]:
        try:
            with open(os.path.join(self.repository.private_dir(), _CACHE), "rb") as file:
                found = msgspec.json.decode(file.read(), type=dict[str, _Known])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            _logger.debug("every file is read: %s", error)
            return {}
        length = 64 if self.repository.object_format == "sha256" else 40
        return {path: one for path, one in found.items() if len(one.id) == length}

    def _write_cache(self, seen: dict[str, _Known], began: int) -> None:
        """Keeps what was read for the next look, except for files that changed just now.

        A file that is changed twice within one tick of the file system's clock keeps its times, so
        times and size cannot show the second change.
        """
        old = {
            path: one
            for path, one in seen.items()
            if max(one.stamp[0], one.stamp[1]) < began - _CACHE_RACY_NS
        }
        folder = self.repository.private_dir()
        beside = os.path.join(folder, f"{_CACHE}.{short_id(SystemClock())}")
        try:
            with open(beside, "xb") as file:
                file.write(msgspec.json.encode(old))
            os.replace(beside, os.path.join(folder, _CACHE))
        except OSError as error:
            _logger.debug("the next look reads every file: %s", error)
            with contextlib.suppress(OSError):
                os.unlink(beside)

    # --- into the repository ---------------------------------------------------------------------

    def _keep(self, files: dict[str, Entry]) -> None:
        """Writes the contents of files into the repository, as objects."""
        absent = self.repository.missing(one.id for one in files.values() if one.mode != GITLINK)
        paths = [path for path, one in files.items() if one.id in absent]
        regular = [path for path in paths if files[path].mode != SYMLINK]
        for path in paths:
            if files[path].mode == SYMLINK:
                target = os.fsencode(os.readlink(os.path.join(self._root, path)))
                self.repository.run("hash-object", "-w", "--no-filters", "--stdin", data=target)
        if regular:
            data = b"".join(_quoted(path) + b"\n" for path in regular)
            printed = self.repository.run(
                "hash-object", "-w", "--no-filters", "--stdin-paths", data=data
            )[1]
            for path, id in zip(regular, printed.decode().split(), strict=True):
                files[path] = Entry(files[path].mode, id)  # it may have changed since the look

    def keep(self, path: str) -> Entry | None:
        """Writes the content of one file into the repository; None if there is no such file."""
        entry = self.entry(path)
        if entry is None:
            return None
        files = {path: entry}
        self._keep(files)
        return files[path]

    # --- putting back ----------------------------------------------------------------------------

    def put(
        self, path: str, entry: Entry | None, expected: Entry | None, data: bytes
    ) -> str | None:
        """Makes a file hold `data`, or removes it if `entry` is None.

        Returns None if that was done, else the reason why not. It is done only if the file holds
        what is expected, so what another program wrote meanwhile stays. A reader of the file sees
        the old content or the new one, never a part.
        """
        if not is_safe(path):
            return "its name leads out of the work tree, or into the repository"
        try:
            folder = self._open_folder(path, make=entry is not None)
        except FileNotFoundError:
            return None if entry is None else "its folder cannot be made"
        except OSError as error:
            return f"its folder cannot be used: {error.strerror}"
        name = os.path.basename(path)
        beside = LEFTOVER + short_id(SystemClock())
        try:
            if self._entry_in(folder, name) != expected:
                return "changed since"
            if entry is None:
                return self._remove(folder, name, beside, expected)
            _write_beside(folder, beside, entry, data, name)
            return self._replace(folder, name, beside, expected, entry)
        except OSError as error:
            return f"cannot be written: {error.strerror}"
        finally:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            os.close(folder)

    def _replace(
        self, folder: int, name: str, beside: str, expected: Entry | None, entry: Entry
    ) -> str | None:
        if expected is None:
            return None if put(beside, name, folder=folder) else "changed since"
        # An exchange, not a rename over the name: what came out can be compared with what was
        # expected. So an edit that was saved after the last look is found, and put back.
        outcome = exchange(beside, name, folder=folder)
        if outcome == "absent":
            return "changed since"
        try:
            if self._entry_in(folder, beside) == expected:
                return None if outcome == "exchanged" else "changed since"
            if outcome == "exchanged":
                outcome = exchange(beside, name, folder=folder)
            if self._entry_in(folder, beside) not in (entry, expected):
                # Saved twice meanwhile: the name has the second text, only this file has the first.
                return f"changed since, twice; what was saved first is {_save(folder, beside)}"
        except OSError as error:
            # It may be the only copy of what somebody saved.
            return f"cannot be read: {error.strerror}; it is {_save(folder, beside)}"
        return "changed since"

    def _remove(self, folder: int, name: str, beside: str, expected: Entry | None) -> str | None:
        os.rename(name, beside, src_dir_fd=folder, dst_dir_fd=folder)
        try:
            if self._entry_in(folder, beside) == expected:
                return None
            if put(beside, name, folder=folder):
                return "changed since"
        except OSError as error:
            _logger.warning("%s is not put back: %s", name, error)
        # There is a new file of that name by now, or this file system has no hard links.
        return f"changed since, twice; what was saved first is {_save(folder, beside)}"

    def remove_leftovers(self, look: Look) -> dict[str, str]:
        """Removes the temporary files of killed rewinds whose content the repository has.

        Returns those that stay, with the reason: they may be the only copy of an edit.
        """
        entries = {path: self.entry(path) for path in look.leftovers}
        absent = self.repository.missing(one.id for one in entries.values() if one is not None)
        kept: dict[str, str] = {}
        for path, one in entries.items():
            if one is None or one.id not in absent:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._root, path))
            else:
                kept[path] = "was left by a rewind, and nothing else has it"
        return kept

    def remove_empty_folders(self, paths: Iterable[str]) -> None:
        """Removes the folders of these files that are empty now, and their empty parents."""
        for path in sorted(paths, reverse=True):
            folder = os.path.dirname(path)
            while folder:
                try:
                    os.rmdir(os.path.join(self._root, folder))
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def _open_folder(self, path: str, *, make: bool = False) -> int:
        """Opens the folder of a file and returns its descriptor; follows no symbolic links."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in path.split("/")[:-1]:
            try:
                try:
                    inner = os.open(name, flags, dir_fd=folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(name, dir_fd=folder)
                    inner = os.open(name, flags, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _entry_in(self, folder: int, name: str) -> Entry | None:
        """Returns what a file or link holds; None for a folder, or if there is nothing."""
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=folder))
            return Entry(SYMLINK, self._digest(len(target), [target]))
        if not stat.S_ISREG(found.st_mode):
            return None
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with open(descriptor, "rb", buffering=0) as file:
            opened = os.fstat(descriptor)
            return Entry(_mode(opened), self._digest(opened.st_size, _chunks(file, opened.st_size)))

    def _digest(self, size: int, chunks: Iterable[bytes]) -> str:
        """Returns the id that git gives to what a file holds."""
        kind = self.repository.object_format
        digest = hashlib.new(kind, b"blob %d\0" % size, usedforsecurity=False)
        for chunk in chunks:
            digest.update(chunk)
        return digest.hexdigest()


def _save(folder: int, beside: str) -> str:
    """Renames the only copy of a text, so that it is not removed; returns the new name."""
    os.rename(beside, f"{beside}.saved", src_dir_fd=folder, dst_dir_fd=folder)
    return f"{beside}.saved"


def _chunks(file: FileIO, size: int) -> Iterator[bytes]:
    """Yields so many bytes of a file; raises FileNotFoundError if it becomes shorter meanwhile."""
    while size:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            raise FileNotFoundError(errno.ENOENT, "it was cut while it was read")
        size -= len(chunk)
        yield chunk


def is_safe(path: str) -> bool:
    """Returns whether a path of a tree stays within the work tree and outside of .git.

    A tree of a foreign repository may contain any names.
    """
    parts = path.split("/")
    return all(
        part not in ("", ".", "..")
        and part.casefold().rstrip(" .") != ".git"
        and not part.casefold().startswith("git~")
        and "\0" not in part
        for part in parts
    )


def _mode(found: os.stat_result) -> str:
    return "100755" if found.st_mode & stat.S_IXUSR else "100644"


def _change(old: Entry | None, new: Entry | None) -> Change | None:
    if old == new:
        return None
    return "added" if old is None else "deleted" if new is None else "modified"


def _quoted(path: str) -> bytes:
    """Returns a path in the quoting that git reads from a line, for any bytes."""
    raw = os.fsencode(path)
    escaped = b"".join(
        b"\\%03o" % byte if byte < 32 or byte in b'"\\' else bytes((byte,)) for byte in raw
    )
    return b'"' + escaped + b'"'


def _write_beside(folder: int, beside: str, entry: Entry, data: bytes, name: str) -> None:
    """Writes the new content under a temporary name, with the permissions of the old file."""
    if entry.mode == SYMLINK:
        os.symlink(os.fsdecode(data), beside, dir_fd=folder)
        return
    mode = 0o777 if entry.mode == "100755" else 0o666
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, mode, dir_fd=folder)
    with open(descriptor, "wb") as file:
        file.write(data)
        with contextlib.suppress(FileNotFoundError):
            old = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(old.st_mode) and _mode(old) == entry.mode:
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
