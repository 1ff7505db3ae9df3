"""What nodes read while they are computed: looked at, recorded, and checked later in the same order

A read has a stamp, which is asked for first, and a digest. A stamp says for certain that nothing
changed; if it is another one, the digest decides. The digest is of what the node was given, so a
change elsewhere in the same scope, or a file that was written with the same bytes, is no change.
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

The time of a change has the grain of the kernel's clock: a second change within one grain leaves
the stamp as it is. So a stamp is believed only if it was old when the file was read.
"""

ABSENT = "absent"
_SHOWN_MAX = 80

Path = tuple[str | int, ...]


class Observed:
    """What was found when something was looked at: the value, its digest, its stamp."""

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
        """`about` is the scope that results are kept for."""
        self._about = about
        self._scopes = scopes
        self._log = scopes.log
        self.now_us = now_us
        self._revisions: dict[str, int] = {}
        self._known = known

    def forget(self) -> None:
        """Forgets where scopes are: a node was computed, which may have changed them."""
        self._revisions.clear()

    def revision(self, scope: str) -> int:
        """Returns the newest revision of a scope, asked for once in a walk."""
        revision = self._revisions.get(scope)
        if revision is None:
            head = self._log.head(scope)
            revision = self._revisions[scope] = 0 if head is None else head.revision
        return revision

    def state(self, scope: str, path: Path | None) -> Observed:
        """Looks at a place in a scope's state, or at the whole."""
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
        """Returns what is kept of a look at a scope: of a subject's nothing that tells what it is.

        Results for a scope of the same subject are sealed with it, and have it as it is. The digest
        is made with the subject's key: who guesses what was read cannot confirm it.
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
        """Looks at the messages of a conversation, or at the last few."""
        found = self._scopes.scope(scope)
        revision = found.revision
        messages: list[Message] = (
            list(found.messages) if last is None else found.messages.last(last)
        )
        content = [[one.id, one.role, one.stored_fields] for one in messages]
        text = f"{len(messages)} messages"
        return Observed(messages, *self._closed(scope, ordered_thumb(content), revision, text))

    def file(self, path: str) -> Observed:
        """Looks at a file's bytes; one that is not there is None."""
        stamp = stamp_of(path)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return Observed(None, ABSENT)
        if stamp_of(path) != stamp:
            stamp = None  # it is being written: what was read has no stamp
        digest = sha256(content).hexdigest()
        if stamp is not None and stamp[0] > (SystemClock().now_us() - SETTLED_US) * 1000:
            stamp = None
        return Observed(content, digest, stamp, f"{len(content)} bytes")

    def env(self, name: str) -> Observed:
        """Looks at a variable of the environment; it may be secret, so only its digest is kept."""
        value = os.environ.get(name)
        return Observed(value, ABSENT if value is None else thumb(value))

    def clock(self, length: str) -> Observed:
        """Looks at the clock: the time is that of the walk, cut off to whole lengths."""
        length_us = round(check_duration(length, "a length of time") * 1_000_000)
        bucket = self.now_us // length_us
        begin: datetime = to_datetime(bucket * length_us)
        return Observed(begin, str(bucket), shown=begin.isoformat())

    def source(
        self, stamp: Callable[..., Any] | None, read: Callable[..., Any], args: list[Any]
    ) -> Observed:
        """Looks at something outside through the user's functions: the stamp first."""
        mark = None if stamp is None else codec.decode(codec.encode(stamp(*args)))
        value = read(*args)
        return Observed(value, ordered_thumb(value), mark, shown(value))


def ordered_thumb(value: Any) -> str:
    """Returns the digest of something that a node is shown as it is: the order of keys counts."""
    try:
        return sha256(codec.encode(value)).hexdigest()
    except ValueDomainError:
        return thumb(value)


def stamp_of(path: str) -> list[int] | None:
    """Returns what changes whenever a file does, but for changes within one tick of the clock."""
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
    """Returns what of a value fits on a line."""
    plain = value.thaw() if isinstance(value, codec.Thawable) else value
    return show_value(plain)[:_SHOWN_MAX].encode("utf-8", "backslashreplace").decode()


class Checked:
    """The answer to whether something is as it was read: if not, what it is now."""

    __slots__ = ("is_same", "seen", "stamp")

    def __init__(self, is_same: bool, seen: Observed | None = None, stamp: Any = None) -> None:
        self.is_same = is_same
        self.seen = seen
        self.stamp = stamp


SAME = Checked(True)


def check(
    read: Read, stamp: Any, sources: Sources, functions: dict[str, Callable[..., Any]]
) -> Checked:
    """Says whether something that was read is as it was.

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
        # What cannot be looked at is not as it was. If the node still needs it, it will say so.
        return Checked(False, Observed(None, ABSENT))
    return Checked(seen.thumb == read.thumb, seen, seen.stamp)


def look(read: Read, sources: Sources) -> Observed:
    """Looks again at what a read looked at."""
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
        # The code no longer names them, so nobody can look: then it counts as changed.
        return Checked(False)
    args: list[Any] = codec.decode(read.args) if read.args else []
    mark = None
    if names[0]:
        mark = codec.decode(codec.encode(functions[names[0]](*args)))
        if mark == stamp:
            return SAME
    # The stamp was taken before the content: a change in between shows in the next stamp.
    seen = sources.source(None, functions[names[1]], args)
    return Checked(seen.thumb == read.thumb, seen, mark)


def source_read(
    name: str,
    stamp: str,
    read: str,
    args: list[Any],
    seen: Observed,
) -> Read:
    """Returns the record of a look at something outside."""
    return Read(
        "source",
        name,
        seen.thumb,
        path=(stamp, read),
        stamp=seen.stamp,
        args=Raw(codec.encode(args)) if args else Raw(b""),
        shown=seen.shown,
    )
