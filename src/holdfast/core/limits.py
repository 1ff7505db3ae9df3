"""Limits: quotas of scopes, and what is refused when a disk is nearly full (0049).

Both are off by default. They are checked before anything of a commit is written. What is stored
stays readable. What makes room is never refused: scopes can be removed and closed, and `retain` can
record what it lets go of, whatever the limits say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct, to_builtins

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Append, Record
from holdfast.core.arguments import check_whole
from holdfast.core.event import BASED, CLOSED, REMOVED, StreamState
from holdfast.core.layers import lasting_prefixes
from holdfast.errors import LimitError, UsageError, show_value

LOOK_S = 1.0
"""How long a look at the free space of a disk counts."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\Z", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MAKES_ROOM = frozenset((REMOVED, CLOSED, BASED))
_KNOWN_MAX = 65536


def check_size(value: object, what: str) -> int:
    """Returns bytes for a number or a text such as "500MB" (10^6) or "2GiB" (2^30)."""
    if isinstance(value, str) and (found := _SIZE.match(value)) is not None:
        unit = (found[2] or "").lower()
        factor = 1024 if unit.endswith("i") else 1000
        return check_whole(int(float(found[1]) * factor ** _UNITS[unit.rstrip("i")]), what, least=1)
    if isinstance(value, str):
        raise UsageError(f'{what} is a size such as 4096 or "500MB", found {show_value(value)}')
    return check_whole(value, what, least=1)


def check_pattern(scopes: object, what: str) -> str:
    """Returns a pattern of scope names; one that fits every scope is refused."""
    if not isinstance(scopes, str) or not scopes:
        raise UsageError(
            f'{what} names scopes by a pattern such as "conversation/*", found {show_value(scopes)}'
        )
    if not scopes.strip("*/"):
        raise UsageError(
            f"{what} is for {show_value(scopes)}, which is every scope of the store",
            hint='name a level, such as "conversation/*"',
        )
    return scopes


def fits(pattern: str) -> Callable[[str], bool]:
    """Returns a function that says whether a scope's name fits a pattern; * is any characters."""
    is_fit = re.compile(".*".join(map(re.escape, pattern.split("*"))) + r"\Z", re.DOTALL).match
    return lambda name: is_fit(name) is not None


class Quota(Struct, frozen=True):
    """How much each scope that fits a pattern may hold: events, and bytes of their data.

    A commit that would go over it is refused with LimitError. Bytes that were let go of do not
    count any more; events count since the scope was last removed.
    """

    scopes: str
    events: int | None = None
    bytes: int | str | None = None

    def __post_init__(self) -> None:
        check_pattern(self.scopes, "a quota")
        if self.events is None and self.bytes is None:
            raise UsageError(f'the quota of "{self.scopes}" limits nothing: give events or bytes')
        if self.events is not None:
            check_whole(self.events, "events", least=1)
        if self.bytes is not None:
            check_size(self.bytes, "bytes")


def quotas_of(settings: Mapping[str, Any]) -> list[Quota]:
    """Returns the quotas in settings that were stored as JSON (`quota_settings`)."""
    return [Quota(**one) for one in settings.get("quotas", ())]


def quota_settings(quotas: Sequence[Quota]) -> dict[str, Any]:
    """Returns quotas as settings that can be stored as JSON."""
    return {"quotas": [to_builtins(one) for one in quotas]}


class DiskWatch(Struct, frozen=True):
    """What a store on a local disk does when little space is left, in bytes or as "5%".

    Below `warn` it warns in its reports and in the log. Below `no_blobs` it takes no new large
    value. Below `no_commits` it takes no commit but those that make room. What is stored can always
    be read. `reserve` is kept free beside the store, so that `retain` can begin on a full disk.
    Without it, what was kept free before is freed.
    """

    warn: int | str | None = "10%"
    no_blobs: int | str | None = "5%"
    no_commits: int | str | None = "2%"
    reserve: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("warn", "no_blobs", "no_commits", "reserve"):
            if getattr(self, name) is not None:
                bound_of(getattr(self, name), name, 100)


def bound_of(value: object, what: str, total: int) -> int:
    """Returns a bound of free space in bytes, on a disk of `total` bytes."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            share = float(value[:-1])
        except ValueError:
            share = -1.0
        if not 0 < share < 100:
            raise UsageError(f"{what} is a part of the disk above 0%, found {show_value(value)}")
        return int(total * share / 100)
    return check_size(value, what)


Space = Callable[[str], tuple[int, int]]
"""Given a path, returns how many bytes are free on its disk, and how many there are in all."""


def disk_space(path: str) -> tuple[int, int]:
    """Returns the free bytes and all bytes of the disk that a path is on."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def local_places(facts: Mapping[str, Any]) -> list[str]:
    """Returns the paths of a store that are on disks of this host, from what `describe` says."""
    parts = cast("Mapping[str, Mapping[str, Any]]", facts.get("levels") or {"*": facts})
    return sorted({one["path"] for one in parts.values() if "path" in one})


DiskState = Literal["enough", "warn", "no_blobs", "no_commits"]


class Limits:
    """The limits of one store, and how much its scopes are known to hold."""

    def __init__(
        self,
        quotas: Sequence[Quota],
        disk: DiskWatch | None,
        *,
        places: Sequence[str],
        read: Callable[[str, int], list[Record]],
        life: Callable[[str, int], int],
        report: Callable[[str], None],
        space: Space | None = None,
    ) -> None:
        """`read(stream, after)` returns a page of records; `life(stream, until)` the revision of
        the newest removal; `report` notes a warning.
        """
        self._quotas = [(fits(quota.scopes), quota) for quota in quotas]
        self._disk = disk
        self._places = places
        self._read = read
        self._life = life
        self._report = report
        self._space = space or disk_space
        self._lasting = lasting_prefixes()
        self._sizes: dict[str, tuple[int, int]] = {}  # by stream: a revision, and bytes up to it
        self._state: DiskState = "enough"
        self._text = ""
        self._look_at = 0.0

    # --- disks -----------------------------------------------------------------------------------

    def disk_state(self) -> DiskState:
        """Returns what the fullest disk allows, looked at once a second at most."""
        disk, now = self._disk, monotonic()
        if disk is None or now < self._look_at:
            return self._state
        self._look_at = now + LOOK_S
        before: DiskState = self._state
        state: DiskState = "enough"
        for place in self._places:
            free, total = self._space(place)
            for name in _BOUNDS:
                bound = getattr(disk, name)
                if bound is not None and free < bound_of(bound, name, total):
                    if _ORDER.index(name) < _ORDER.index(state):
                        state = name
                        self._text = f'the disk of "{place}" has {free:,} of {total:,} bytes left'
                    break
        self._state = state
        if state != before and state != "enough":
            self._report(f"{self._text}: {_SAYS[self._state]}")
        return self._state

    def reserves(self) -> list[tuple[str, int]]:
        """Returns what is to be kept free for letting go: places of the store, each with bytes.

        Without a DiskWatch that is nobody's to say, as in a command that is run beside a program.
        """
        if self._disk is None:
            return []
        wanted = self._disk.reserve
        if wanted is None:
            return [(place, 0) for place in self._places]
        return [
            (place, bound_of(wanted, "reserve", self._space(place)[1])) for place in self._places
        ]

    def check_blob(self) -> None:
        """Raises LimitError if no large value may be written any more."""
        if self.disk_state() in ("no_blobs", "no_commits"):
            raise LimitError(
                f"{self._text}: no large value is taken", hint="make room, or retain --now"
            )

    # --- commits ---------------------------------------------------------------------------------

    def check(self, appends: Sequence[Append], before: Sequence[StreamState]) -> None:
        """Raises LimitError if a commit would go over a quota, or the disk takes none."""
        is_full = self.disk_state() == "no_commits"
        for append, base in zip(appends, before, strict=True):
            word = append.stream.partition("/")[0]
            if word in self._lasting or append.records[-1].type in _MAKES_ROOM:
                continue
            if is_full:
                raise LimitError(
                    f"{self._text}: nothing is written; what is there can be read",
                    stream=append.stream,
                    hint="make room, or retain --now",
                )
            for is_fit, quota in self._quotas:
                if is_fit(append.stream):
                    self._check_quota(quota, append, base)

    def _check_quota(self, quota: Quota, append: Append, base: StreamState) -> None:
        stream = append.stream
        events = base.revision + len(append.records) - max(base.removed_at, 0)
        if quota.events is not None and events > quota.events:
            if base.removed_at < 0:
                # Where this life began is not known, and asked only when it decides: it is a read.
                events -= self._life(stream, base.revision)
            if events > quota.events:
                raise _over(stream, f"{quota.events:,} events", f"it would have {events:,}")
        if quota.bytes is not None:
            most = check_size(quota.bytes, "bytes")
            size = sum(len(record.payload) for record in append.records)
            if size + self._size(stream, base.revision) > most:
                self._sizes.pop(stream, None)  # read again: some may have been let go of since
                used = self._size(stream, base.revision)
                if size + used > most:
                    raise _over(stream, f"{most:,} bytes", f"it has {used:,}, and {size:,} come")

    def _size(self, stream: str, until: int) -> int:
        """Returns how many bytes of data a stream has; reads only what came since the last call."""
        revision, size = self._sizes.get(stream, (0, 0))
        if revision > until:
            revision, size = 0, 0
        while revision < until:
            page = self._read(stream, revision)
            if not page:
                break
            for record in page:
                if record.type == REMOVED:
                    size = 0
                size += len(record.payload)
            revision = page[-1].revision
        if len(self._sizes) >= _KNOWN_MAX:
            self._sizes.clear()
        self._sizes[stream] = revision, size
        return size


_BOUNDS: tuple[DiskState, ...] = ("no_commits", "no_blobs", "warn")
_ORDER: tuple[DiskState, ...] = (*_BOUNDS, "enough")
_SAYS: dict[str, str] = {
    "warn": "little space is left",
    "no_blobs": "no large value is taken any more",
    "no_commits": "nothing is written any more; what is there can be read",
}


def _over(stream: str, most: str, found: str) -> LimitError:
    return LimitError(
        f'scope "{stream}" may hold {most}: {found}',
        stream=stream,
        hint="let go of some of it, write to another scope, or raise the quota",
    )
