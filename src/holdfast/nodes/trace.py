"""Records what nodes read while they are computed, and checks later whether that has changed.

A read has a stamp, which is compared first, and a digest. An equal stamp proves that nothing
changed; if the stamp differs, the digest decides. The digest is of what the node was given. So a
change elsewhere in the same scope, or a file rewritten with the same bytes, does not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any

from msgspec import Raw

from holdfast.clock import SystemClock
from holdfast.core import codec, tree
from holdfast.core.arguments import check_duration
from holdfast.core.event import to_datetime
from holdfast.core.tree import MISSING
from holdfast.errors import ClosedError, ErasedError, NotFoundError, ValueDomainError, show_value
from holdfast.nodes.results import Read
from holdfast.record.message_events import Message
from holdfast.scope import Scopes
from holdfast.thumbprint import thumb

SETTLED_US = 2_000_000
"""A file that was changed less than this before it was read has no stamp.

The kernel's clock advances in ticks, and a second change within one tick leaves the stamp as it
was. So a stamp is trusted only if it was older than this when the file was read.
"""

ABSENT = "absent"
_SHOWN_MAX = 80

Path = tuple[str | int, ...]


class Observed:
    """What one read found: the value, its digest and its stamp."""

    __slots__ = ("shown", "stamp", "thumb", "value")

    def __init__(self, value: Any, thumb: str, stamp: Any = None, shown: str = "") -> None:
        self.value = value
        self.thumb = thumb
        self.stamp = stamp
        self.shown = shown


class Sources:
    """Everything that a node can read besides other nodes, as one walk sees it."""

    def __init__(
        self,
        scopes: Scopes,
        now_us: int,
        known: dict[Any, tuple[Any, str]],
        about: str | None = None,
    ) -> None:
        """`about` is the scope that the results are stored for."""
        self._about = about
        self._scopes = scopes
        self._log = scopes.log
        self.now_us = now_us
        self._revisions: dict[str, int] = {}
        self._known = known

    def forget(self) -> None:
        """Forgets the revisions of scopes, which a node that was computed may have changed."""
        self._revisions.clear()

    def revision(self, scope: str) -> int:
        """Returns the newest revision of a scope, asked for once until `forget`."""
        revision = self._revisions.get(scope)
        if revision is None:
            head = self._log.head(scope)
            revision = self._revisions[scope] = 0 if head is None else head.revision
        return revision

    def state(self, scope: str, path: Path | None) -> Observed:
        """Reads a path of a scope's state, or all of it."""
        newest = self._log.newest(scope)
        root = self._log.show(newest, scope)
        value = root if path is None else tree.get(root, path, MISSING)
        if value is MISSING:
            return Observed(MISSING, ABSENT, newest.revision)
        with codec.kept_closed():  # a digest, or a few words of it, would be stored in clear
            kept = root if path is None else tree.get(root, path, MISSING)
            digest, text = self._thumb_of((scope, path), kept), shown(kept)
        return Observed(value, *self._closed(scope, digest, newest.revision, text))

    def _closed(self, scope: str, digest: str, stamp: int, text: str) -> tuple[str, int, str]:
        """Returns what a trace keeps of a read, without the content of a subject's scope.

        Results for a scope of the same subject are sealed for them anyway, and keep the plain
        digest. Elsewhere the digest is made with the subject's key: a plain digest would let
        anybody who guesses the content confirm the guess.
        """
        subject = self._log.subject_of(scope)
        if subject is None or (self._about and subject == self._log.subject_of(self._about)):
            return digest, stamp, text
        try:
            return self._log.sealing.of(subject).digest("read", digest), stamp, "[sealed]"
        except ErasedError:
            return ABSENT, stamp, "[erased]"

    def _thumb_of(self, place: Any, value: Any) -> str:
        """Returns the digest of a value of a state; the same frozen object is digested once."""
        known = self._known.get(place)
        if known is not None and known[0] is value:
            return known[1]
        digest = ordered_thumb(value)
        if isinstance(value, tree.Map | tree.List | str | bytes):
            if len(self._known) >= 65536:
                self._known.pop(next(iter(self._known)), None)
            self._known[place] = value, digest
        return digest

    def messages(self, scope: str, last: int | None) -> Observed:
        """Reads the messages of a conversation, or the last few."""
        found = self._scopes.scope(scope)
        revision = found.revision
        messages: list[Message] = (
            list(found.messages) if last is None else found.messages.last(last)
        )
        content = [[one.id, one.role, one.stored_fields] for one in messages]
        text = f"{len(messages)} messages"
        return Observed(messages, *self._closed(scope, ordered_thumb(content), revision, text))

    def file(self, path: str) -> Observed:
        """Reads a file's bytes; None if it does not exist.

        The stamp is taken before and after. If they differ, somebody is writing the file, so the
        bytes get no stamp, and the next check compares digests.
        """
        stamp = stamp_of(path)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return Observed(None, ABSENT)
        if stamp_of(path) != stamp:
            stamp = None
        digest = sha256(content).hexdigest()
        if stamp is not None and stamp[0] > (SystemClock().now_us() - SETTLED_US) * 1000:
            stamp = None
        return Observed(content, digest, stamp, f"{len(content)} bytes")

    def env(self, name: str) -> Observed:
        """Reads an environment variable; it may be secret, so the trace keeps only its digest."""
        value = os.environ.get(name)
        return Observed(value, ABSENT if value is None else thumb(value))

    def clock(self, length: str) -> Observed:
        """Returns the time of the walk, rounded down to a multiple of `length`."""
        length_us = round(check_duration(length, "a length of time") * 1_000_000)
        bucket = self.now_us // length_us
        begin: datetime = to_datetime(bucket * length_us)
        return Observed(begin, str(bucket), shown=begin.isoformat())

    def source(
        self, stamp: Callable[..., Any] | None, read: Callable[..., Any], args: list[Any]
    ) -> Observed:
        """Reads something outside through the user's functions, after taking its stamp."""
        mark = None if stamp is None else codec.decode(codec.encode(stamp(*args)))
        value = read(*args)
        return Observed(value, ordered_thumb(value), mark, shown(value))


def ordered_thumb(value: Any) -> str:
    """Returns the digest of a value in which the order of keys counts, as a node can see it."""
    try:
        return sha256(codec.encode(value)).hexdigest()
    except ValueDomainError:
        return thumb(value)


def stamp_of(path: str) -> list[int] | None:
    """Returns times, size and inode of a file; they miss only changes within one clock tick."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [
        max(found.st_mtime_ns, found.st_ctime_ns),
        found.st_mtime_ns,
        found.st_size,
        found.st_ino,
    ]


def shown(value: Any) -> str:
    """Returns the part of a value that fits on a line."""
    plain = value.thaw() if isinstance(value, codec.Thawable) else value
    return show_value(plain)[:_SHOWN_MAX].encode("utf-8", "backslashreplace").decode()


class Checked:
    """Whether something is unchanged since it was read, and what was found if it was read again."""

    __slots__ = ("is_same", "seen", "stamp")

    def __init__(self, is_same: bool, seen: Observed | None = None, stamp: Any = None) -> None:
        self.is_same = is_same
        self.seen = seen
        self.stamp = stamp


SAME = Checked(True)


def check(
    read: Read, stamp: Any, sources: Sources, functions: dict[str, Callable[..., Any]]
) -> Checked:
    """Checks whether something is unchanged since a node read it.

    `functions` are those that the node's own code names: a stored name never calls anything else.
    """
    try:
        if read.kind in ("state", "messages") and sources.revision(read.name) == stamp:
            return SAME
        if read.kind == "file" and stamp is not None and stamp_of(read.name) == stamp:
            return SAME
        if read.kind == "source":
            return _check_source(read, stamp, sources, functions)
        seen = look(read, sources)
    except (ClosedError, NotFoundError, OSError):
        # What cannot be read counts as changed. If the node still needs it, it will raise then.
        return Checked(False, Observed(None, ABSENT))
    return Checked(seen.thumb == read.thumb, seen, seen.stamp)


def look(read: Read, sources: Sources) -> Observed:
    """Reads again what a read has read."""
    if read.kind == "state":
        return sources.state(read.name, read.path)
    if read.kind == "messages":
        return sources.messages(read.name, None if read.path is None else int(read.path[0]))
    if read.kind == "file":
        return sources.file(read.name)
    if read.kind == "env":
        return sources.env(read.name)
    assert read.kind == "clock", f"BUG: a read of the kind {read.kind}"
    return sources.clock(read.name)


def _check_source(
    read: Read, stamp: Any, sources: Sources, functions: dict[str, Callable[..., Any]]
) -> Checked:
    names: list[str] = [str(step) for step in read.path or ()]
    found = [functions.get(name) for name in names if name]
    if None in found:
        # The code no longer names the functions, so nothing can be checked: it counts as changed.
        return Checked(False)
    args: list[Any] = codec.decode(read.args) if read.args else []
    mark = None
    if names[0]:
        mark = codec.decode(codec.encode(functions[names[0]](*args)))
        if mark == stamp:
            return SAME
    # The stamp was taken before the content, so a change in between gives another stamp next time.
    # In the other order, the new stamp would hide that the content is older.
    seen = sources.source(None, functions[names[1]], args)
    return Checked(seen.thumb == read.thumb, seen, mark)


def source_read(
    name: str,
    stamp: str,
    read: str,
    args: list[Any],
    seen: Observed,
) -> Read:
    """Returns the record of a read of something outside."""
    return Read(
        "source",
        name,
        seen.thumb,
        path=(stamp, read),
        stamp=seen.stamp,
        args=Raw(codec.encode(args)) if args else Raw(b""),
        shown=seen.shown,
    )
