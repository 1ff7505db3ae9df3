"""Configuration files that the user has read and trusts; only these may name commands to run.

The user who clones a repository owns its files, so the owner of a file says nothing about its
author. A file is trusted only after its user has read it and said so with `holdfast trust`. What is
trusted is these bytes at this path. A file that changes, also by `git pull`, must be trusted again.

A file that somebody else may write is never trusted: neither the file nor any directory above it
may belong to another user or be writable by others. (A directory with the sticky bit, such as /tmp,
is allowed, because only the owner of a file can replace it there.) The file is read once, so the
bytes that are checked are the bytes that are parsed.

The list is kept in the user's own data directory, one file for each path:
`$XDG_DATA_HOME/holdfast/trusted/<digest of the path>`, with the path and the digest of the bytes.
The programs that a command runs are not part of it: who trusts `make check` trusts the Makefile
too.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from hashlib import sha256
from pathlib import Path

from msgspec import DecodeError, Struct, ValidationError
from msgspec import json as json_codec

from holdfast.errors import (
    NotFoundError,
    UnavailableError,
    UntrustedError,
    UsageError,
    show_value,
)

BYTES_MAX = 1 << 20
SHOWN_CHARACTERS_MAX = 300
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us waiting
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ConfigFile(Struct, frozen=True):
    """A configuration file that only its user can write, read once."""

    path: str
    """Its path, with symbolic links resolved."""
    data: bytes

    @property
    def digest(self) -> str:
        return sha256(self.data).hexdigest()


class TrustedFile(Struct, frozen=True):
    """The record of a file that was trusted."""

    path: str
    digest: str


def _trusted_owners() -> set[int]:
    """Returns whose files may be trusted: this user's and root's, who can write everything."""
    return {os.geteuid(), 0}


def read_config(path: str | os.PathLike[str]) -> ConfigFile:
    """Reads a configuration file, once; refuses one that somebody else may write."""
    real = _real(path)
    try:
        for folder in reversed(Path(real).parents):
            _check_owner(str(folder), os.lstat(folder), "directory ")
        fd = os.open(real, _READ)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f'configuration file "{real}" is not a regular file')
            _check_owner(real, found, "")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(BYTES_MAX + 1)
        finally:
            os.close(fd)
    except FileNotFoundError as absent:
        raise NotFoundError(f'there is no configuration file "{path}"') from absent
    except OSError as error:
        raise UsageError(f'configuration file "{path}" cannot be read: {error}') from error
    if len(data) > BYTES_MAX:
        raise UsageError(f'configuration file "{real}" is larger than {BYTES_MAX} bytes')
    return ConfigFile(real, data)


def is_trusted(found: ConfigFile) -> bool:
    """Returns whether this user trusts exactly these bytes at this path."""
    kept = _kept(found.path)
    return kept is not None and kept == TrustedFile(found.path, found.digest)


def was_trusted(found: ConfigFile) -> bool:
    """Returns whether this user once trusted a file at this path."""
    return _kept(found.path) is not None


def untrusted_error(found: ConfigFile, commands: dict[str, str]) -> UntrustedError:
    """Returns the error for a file that is not trusted, with what it would run, by name."""
    shown = "; ".join(f"{name}: {text}" for name, text in commands.items())
    if len(shown) > SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:SHOWN_CHARACTERS_MAX]}…"
    why = (
        "has changed since you trusted it"
        if was_trusted(found)
        else "names commands, and you have not trusted it"
    )
    return UntrustedError(
        f'configuration file "{found.path}" {why}; it would run {shown}',
        hint=f"read it; then, if you trust it: holdfast trust {shlex.quote(found.path)}",
    )


def add(found: ConfigFile) -> None:
    """Trusts these bytes at this path from now on, instead of any earlier ones."""
    folder = _checked_directory(create=True)
    data = json_codec.encode(TrustedFile(found.path, found.digest)) + b"\n"
    target = folder / _name(found.path)
    new = folder / f"{target.name}.{os.getpid()}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = os.open(new, _NEW, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(new, target)
    except OSError as error:
        raise _unavailable(folder, error) from error


def revoke(path: str | os.PathLike[str]) -> str:
    """Stops trusting a file, which need not exist any more; returns its path."""
    real = _real(path)
    folder = _checked_directory(create=False)
    try:
        os.unlink(folder / _name(real))
    except FileNotFoundError as absent:
        raise NotFoundError(f'"{real}" is not trusted', hint="holdfast trust --list") from absent
    except OSError as error:
        raise _unavailable(folder, error) from error
    return real


def states() -> list[tuple[str, str]]:
    """Returns each path of the list with its state: trusted, changed, gone, unsafe or damaged."""
    folder = _checked_directory(create=False)
    found: list[tuple[str, str]] = []
    for kept_in in sorted(folder.glob("*")) if folder.is_dir() else ():
        kept = _decode(kept_in)
        if kept is None:
            found.append((str(kept_in), "damaged"))
            continue
        try:
            state = "trusted" if read_config(kept.path).digest == kept.digest else "changed"
        except NotFoundError:
            state = "gone"
        except UsageError:
            state = "unsafe"
        found.append((kept.path, state))
    return sorted(found)


def directory() -> Path:
    """Returns the directory of the list."""
    # The specification of this variable says to ignore relative paths.
    given = os.environ.get("XDG_DATA_HOME", "")
    data = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "share"
    return data / "holdfast" / "trusted"


def _kept(path: str) -> TrustedFile | None:
    return _decode(_checked_directory(create=False) / _name(path))


def _decode(kept_in: Path) -> TrustedFile | None:
    try:
        return json_codec.decode(kept_in.read_bytes(), type=TrustedFile)
    except FileNotFoundError:
        return None
    except (DecodeError, ValidationError, UnicodeDecodeError):
        return None
    except OSError as error:
        raise _unavailable(kept_in.parent, error) from error


def _real(path: str | os.PathLike[str]) -> str:
    try:
        real = os.path.realpath(path)
        os.fsencode(real)
    except ValueError as error:  # a zero byte, or text that no file system can hold
        raise UsageError(f"{show_value(path)} is not the name of a file: {error}") from error
    return real


def _name(path: str) -> str:
    return sha256(os.fsencode(path)).hexdigest()


def _checked_directory(*, create: bool) -> Path:
    """Returns the directory of the list, which nobody else may write."""
    folder = directory()
    try:
        if create:
            folder.parent.parent.mkdir(0o700, parents=True, exist_ok=True)
            for each in (folder.parent, folder):
                each.mkdir(0o700, exist_ok=True)
        for each in (folder.parent, folder):
            _check_owner(str(each), os.lstat(each), "directory ")
    except FileNotFoundError:
        pass  # nothing was trusted yet
    except OSError as error:
        raise _unavailable(folder, error) from error
    return folder


def _check_owner(path: str, found: os.stat_result, kind: str) -> None:
    """Raises UsageError if anybody but this user and root may write it."""
    if found.st_uid not in _trusted_owners():
        raise UsageError(
            f'{kind}"{path}" belongs to user {found.st_uid}: who owns it decides what would be run',
            hint="put the configuration file into a place of your own",
        )
    is_sticky = bool(kind) and bool(found.st_mode & stat.S_ISVTX)
    if found.st_mode & _OTHERS_MAY_WRITE and not is_sticky:
        raise UsageError(
            f'{kind}"{path}" can be written by others (mode {stat.S_IMODE(found.st_mode):04o}): '
            "anyone of them could decide what would be run",
            hint=f"chmod go-w {shlex.quote(path)}",
        )


def _unavailable(folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(f'the list of trusted files in "{folder}" cannot be used: {error}')
