"""Backups: a folder that holds a copy of a store, and a list of points to restore it at.

    DEST/backup.json      the ids of the source and of the store in DEST, and how many points
    DEST/store/           events and blobs, as a files store: every verb of the command line reads
                          it
    DEST/marks/p3.jsonl   the marks as they were at the point p3
    DEST/points.jsonl     a line for each point, with its own digest and that of the line before it

A backup is made while others write. It takes a moment of the source (clause 20), copies the events
of that moment that the backup lacks and the marks of the same moment (clause 35), reads back what
it wrote and verifies it against the links. The point is added last. So a backup that is killed
leaves no point, only events that the next backup finds and need not copy again.

Positions do not survive a copy, so the line of a point says how far the store in the backup
reaches. To restore the point, its events are copied into a new store, and the digest of that store
is compared with the one in the line. A time stands for the newest point that is not later.

Data that the source lets go of after a backup is still in the folder. The event that records this
is part of the next point, and no restore of that point or a later one has the data. A restore of an
older point has it, unless it was erased: what the backup knows to be erased is never restored.
`prune` removes all of it from the folder.

The backup of an encrypted store is encrypted too, with the same store key and a separate data key
(0046); names, times and marks are in clear in both. Restoring it needs the key.

Every byte of the folder is verified, or has no effect: `backup.json` and each line by a digest of
themselves, marks by the line of their point, events by their links and by the digest of the point.
`backup.json` counts the points, so lines that were cut off are noticed. Lines of format 1 have no
digest of themselves: such a point is not proved (`Point.is_proved`), and how far it says that the
source was read is not relied on.

A damaged store is backed up too. What verifies is copied, and the point names every stream of which
something is missing. If the backup has more of a stream than the source, it keeps that.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import Settings
from holdfast.backends.protocol import (
    GONE,
    START,
    Backend,
    Head,
    Leftover,
    Mark,
    MarksAtMoment,
    Position,
    Record,
    marks_at_moment,
)
from holdfast.clock import Clock
from holdfast.core.check import add_up, all_heads, content_of
from holdfast.core.erased_ledger import Ledger
from holdfast.core.event import ORIGIN, from_datetime, to_datetime
from holdfast.core.expiry import HOLDS
from holdfast.core.kernel import kernel_of
from holdfast.core.log import Log
from holdfast.core.matching import done_again
from holdfast.core.retention import STREAM as LEDGER
from holdfast.core.retention import Told, drop, ledger, told_by
from holdfast.core.store_key import StoreKey
from holdfast.core.verify import Verification, verified_end
from holdfast.errors import (
    ConflictError,
    CorruptError,
    ExistsError,
    FormatError,
    NotFoundError,
    OtherStoreError,
    StoreKeyError,
    UnavailableError,
    UsageError,
    show_value,
)
from holdfast.interchange import UNREADABLE
from holdfast.names import check_name
from holdfast.opening import open_store
from holdfast.store import Store
from holdfast.transfer.compare import check_beginning, have_one_past
from holdfast.transfer.sink import Copied, Progress, Sink
from holdfast.transfer.source import (
    OVER,
    DamagedSource,
    Needed,
    Source,
    commits_of,
    commits_until,
    count_events,
    heads_of,
    only,
)

__all__ = [
    "Point",
    "Progress",
    "Pruned",
    "Restored",
    "backup",
    "drill",
    "points",
    "prune",
    "restore",
]

FORMAT = 2
"""Format 1 had no digests of lines, and no id of the store in the backup."""
_DRILL = "drill-"
_ENDS_WITH_DIGEST = re.compile(rb'(.*),"sha256":"([0-9a-f]{64})"\}', re.DOTALL)


class Point(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One state of a store that can be restored, by its `name`, its `label` or a time."""

    name: str
    at_us: int
    label: str = ""
    position: int
    """The position in the backup's store at which this point ends."""
    sources: list[int]
    """The position up to which the source was read, for each of its backends."""
    streams: int
    events: int
    new_events: int
    digest: str
    """The digest that `check` shows for a store restored to this point."""
    marks: int
    marks_digest: str
    marks_exact: bool = True
    """False if the source's backend cannot read marks of one moment: they may be newer."""
    damaged: dict[str, str] = {}
    """The streams of which something is missing, and why."""
    let_go: int = 0
    """How many events of older points the store has let go of since the last one."""
    previous: str = ""
    """The digest of the line before this one."""
    sha256: str = ""
    """The digest of the line without this field; empty in lines of format 1."""

    @property
    def at(self) -> datetime:
        """The time at which it was made."""
        return to_datetime(self.at_us)

    @property
    def is_proved(self) -> bool:
        """False for lines of format 1, in which a changed time, label or number goes unnoticed."""
        return bool(self.sha256)


class Restored(Struct, frozen=True):
    """What a restore did."""

    point: Point
    copied: Copied
    digest: str


class Pruned(Struct, frozen=True):
    """What `prune` removed from a backup, and where some of it may be left."""

    events: int
    bytes: int
    blobs: int
    left: list[Leftover]


class _About(Struct, frozen=True, omit_defaults=True):
    """The content of `backup.json`: the stores that were backed up, and what must be there."""

    format: int
    stores: list[str]
    copy: str = ""
    """The id of the backup's own store; "" before the first point, and in format 1."""
    points: int = 0
    """How many points there are; one more if a backup was killed just after adding it."""
    unproved: int = 0
    """How many of the first lines are of format 1, and have no digest."""
    sha256: str = ""
    """The digest of this file without this field."""


class _Points(Struct, frozen=True):
    """The points that were read, and the bytes of their file, to which a line can be added."""

    found: list[Point]
    raw: bytes
    """Ends with a line break, unless it is empty."""

    @property
    def last(self) -> Point | None:
        return self.found[-1] if self.found else None

    @property
    def last_digest(self) -> str:
        lines = self.raw.splitlines()
        return sha256(lines[-1]).hexdigest() if lines else ""


class _Identity(Struct):
    """The id of a files store, in its `holdfast.json`."""

    store: str


# --- making --------------------------------------------------------------------------------------


def backup(
    source: Store,
    folder: str | os.PathLike[str],
    *,
    label: str = "",
    progress: Progress | None = None,
) -> Point:
    """Adds a point to the backup in a folder; creates the backup if it is not there.

    The first backup copies everything, later ones only what is new. If the process is killed, make
    the same call again. Raises UnavailableError while another backup into the folder is under way,
    ExistsError if the label is taken, OtherStoreError if the folder has a backup of another store,
    and CorruptError if the backup is damaged.
    """
    label = check_name(label, "label") if label else ""
    place = Path(folder)
    log = kernel_of(source).log
    stores = log.store_ids
    if not _is_backup(place):
        _begin(place, stores)
    about = _read_about(place)
    if about.stores != stores:
        raise OtherStoreError(
            f'"{place}" is a backup of another store: expected {" and ".join(stores)}, found '
            f"{' and '.join(about.stores)}",
            hint="make the backup in another folder",
        )
    with _alone(place):
        about = _read_about(place)  # another backup may have added a point meanwhile
        known = _read_points(place, about)
        if label and any(label in (one.label, one.name) for one in known.found):
            raise ExistsError(f'"{place}" has a point "{label}" already')
        if known.found:
            _check_copy_id(place, about)
        if about.format < FORMAT:
            about = _renewed(place, about, known)
        key, has_copy = _key_of(source), bool(known.found)
        with open_store(
            place / "store", create=not has_copy, store_key=key, settings=Settings(clock=log.clock)
        ) as opened:
            target = kernel_of(opened).log
            _check_copy(log, target, place, known.last)
            increment = _Increment(log, target, place, about, known, progress)
            point = increment.run(label)
        # The point is added after the copy was closed: then all of it is in the files that a reader
        # takes. Before that some of it may be in the journal alone. After a power loss it would be
        # whole, but a restore, which only reads the copy, could not see it.
        return increment.add(point)


def _renewed(place: Path, about: _About, known: _Points) -> _About:
    """Brings a backup from format 1 to the present one. Its lines stay unchanged, not proved.

    The list of points is written first, without the half line that a killed writer may have left.
    In format 1, where lines were appended, that was allowed. In format 2, where the file is always
    replaced as a whole, it would count as damage.
    """
    _write(place / "points.jsonl", known.raw)
    count = len(known.found)
    return _write_about(place, _About(FORMAT, about.stores, about.copy, count, count))


def _check_copy_id(place: Path, about: _About) -> str:
    """Returns the id of the store in a backup; raises CorruptError if it is missing or another.

    This is checked before anything is opened or copied. Otherwise a new store in its place would
    accept the new events, without the events that the earlier points need.
    """
    path = place / "store" / "holdfast.json"
    raw = _read(path)
    if raw is None:
        raise _wrong_copy(place, f'"{place}" has points, but its store is gone')
    try:
        found = msgspec.json.decode(raw, type=_Identity).store
    except UNREADABLE as error:
        raise CorruptError(f'"{path}" cannot be read: {error}', where=str(path)) from None
    if about.copy and found != about.copy:
        raise _wrong_copy(
            place,
            f'the store in "{place}" is not the one that its points were made in: expected '
            f"{about.copy}, found {found}",
        )
    return found


def _wrong_copy(place: Path, problem: str) -> CorruptError:
    return CorruptError(
        problem,
        where=str(place / "store"),
        hint="put back the store that belongs to its points, or make the backup in another folder",
    )


def _check_copy(source: Log, target: Log, place: Path, last: Point | None) -> None:
    """Raises unless the store in a backup is what it was at its last point.

    This is checked before anything is copied. Events that a killed backup left after that point do
    not count. If no proved point vouches for it, the past is also compared with the source's.
    """
    if last is not None:
        is_there = target.position() >= last.position
        # Streams whose lifetime is over count too: their heads stay in the store of a backup.
        found = add_up(_heads_at(target, last)) if is_there else None
        if found is None or found.digest != last.digest:
            raise _wrong_copy(
                place,
                f'the store in "{place}" is not what it was at {last.name}: its digest is '
                f"{found.digest if found else 'of fewer commits'}, expected {last.digest}",
            )
    if last is None or not last.is_proved:
        _check_past(source, target, place)


def _heads_at(log: Log, point: Point) -> Iterator[tuple[str, Head | None]]:
    """Yields the streams of the store in a backup, with the heads that they had at a point."""
    later: dict[str, int] = {}
    for commit in commits_until(log.parts()[0], Position(point.position), log.position()):
        for record in commit:
            later.setdefault(record.stream, record.revision)
    for name, head in all_heads(log):
        since = later.get(name)
        if head is None or since is None:
            yield name, head
        elif since > head.first:
            link = log.link_at(name, since - 1) or ORIGIN
            yield name, replace(head, revision=since - 1, link=link)


def _check_past(source: Log, target: Log, place: Path) -> None:
    """Raises OtherStoreError if the store in a backup has another past than the source."""
    for name in target.streams():
        try:
            is_other = not have_one_past(source, target, name)
        except CorruptError:
            continue  # a damaged source is backed up as far as it verifies
        if is_other:
            raise OtherStoreError(
                f'the store in "{place}" has other events in "{name}" than the one to be backed up',
                hint="make the backup in another folder",
            )


def _key_of(store: Store) -> StoreKey | None:
    """Returns the key of an encrypted store, so that no copy of it is written in clear."""
    return kernel_of(store).store_key


def _is_backup(place: Path) -> bool:
    """Returns whether a backup was begun here; raises ExistsError if something else is there."""
    if (place / "backup.json").exists():
        return True
    if not os.path.lexists(place):
        return False
    with _reporting(place, "read"):
        found = os.listdir(place)
    if any(name not in ("marks", "backup.json.new") for name in found):
        raise ExistsError(
            f'"{place}" is not empty, and is no backup', hint="make the backup elsewhere"
        )
    return False


def _begin(place: Path, stores: list[str]) -> None:
    with _reporting(place, "made"):
        (place / "marks").mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(place, 0o700)
    _write_about(place, _About(FORMAT, stores))


def _write_about(place: Path, about: _About) -> _About:
    _write(place / "backup.json", _with_digest(about) + b"\n")
    return about


def _with_digest(document: Point | _About) -> bytes:
    """Returns a document as a line that ends with the digest of the rest of the line."""
    raw = msgspec.json.encode(document)
    return b'%b,"sha256":"%b"}' % (raw[:-1], sha256(raw).hexdigest().encode())


def _has_digest(line: bytes) -> bool | None:
    """Returns whether a line is unchanged, by its own digest; None if it has no digest."""
    found = _ENDS_WITH_DIGEST.fullmatch(line)
    if found is None:
        return None
    return sha256(found[1] + b"}").hexdigest().encode() == found[2]


@contextmanager
def _alone(place: Path) -> Generator[None]:
    """Keeps other backups out of the folder, or raises UnavailableError."""
    with _lock(place / "lock") as (_, is_alone):
        if not is_alone:
            raise UnavailableError(
                f'another backup into "{place}" is under way', hint="wait until it has ended"
            )
        yield


@contextmanager
def _lock(path: Path) -> Generator[tuple[int, bool]]:
    """Yields a file descriptor, and whether its lock was taken; another process may have it.

    The system releases the lock when the process ends. A lease would be an event in the store, and
    so a part of the copy.
    """
    import fcntl  # not there on Windows

    with _reporting(path, "opened", hint="look what is in its place"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_alone = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_alone = False
        yield fd, is_alone
    finally:
        os.close(fd)


class _Increment:
    """One backup: copies what the source has had since the last point, and adds a point."""

    def __init__(
        self,
        source: Log,
        target: Log,
        place: Path,
        about: _About,
        known: _Points,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._target = target
        self._place = place
        self._about = about
        self._known = known
        self._last = known.last
        self._sink = Sink(target, progress=progress, keeps=True)
        self._damaged: dict[str, str] = {}

    def run(self, label: str) -> Point:
        """Copies what is new and verifies it; returns the point, which `add` adds to the list."""
        parts = self._source.parts()
        moments = [self._moment(part) for part in parts]
        at_us = self._source.clock.now_us()
        afters = self._last.sources if self._last else [START] * len(parts)
        for part, after, seen in zip(parts, afters, moments, strict=True):
            if seen.moment.position < after:
                raise _is_older(seen.moment.position, after)
            if self._last is not None and not self._last.is_proved:
                after = START  # a damaged number here would leave out commits for ever
            self._sink.total += int(seen.newest) - after
            self._copy(part, Position(after), seen)
        marks = [mark for seen in moments for mark in seen.marks]
        self._verify()
        content = content_of(self._target)
        name = f"p{len(self._known.found) + 1}"
        return Point(
            name=name,
            at_us=at_us,
            label=label,
            position=int(self._target.position()),
            sources=[int(seen.moment.position) for seen in moments],
            streams=content.streams,
            events=content.events,
            new_events=self._sink.copied().events,
            digest=content.digest,
            marks=len(marks),
            marks_digest=_write_marks(self._place, name, marks),
            marks_exact=all(seen.exact for seen in moments),
            damaged=self._damaged,
            let_go=self._count_let_go(),
            previous=self._known.last_digest,
        )

    def add(self, point: Point) -> Point:
        """Adds the line of a point to the list, then counts it; returns the point as read back.

        The list is replaced as a whole. So half a line is always damage, and never the remains of a
        killed backup. The count in `backup.json` is written after it: one line more than counted
        does no harm, while one line less is a loss and is reported. In the other order a kill
        between the two would look like such a loss.
        """
        line = _with_digest(point)
        copy = _check_copy_id(self._place, self._about)
        _write(self._place / "points.jsonl", self._known.raw + line + b"\n")
        count = len(self._known.found) + 1
        _write_about(self._place, replace(self._about, copy=copy, points=count, sha256=""))
        return msgspec.json.decode(line, type=Point)

    def _moment(self, part: Backend) -> MarksAtMoment:
        """Returns a moment of one backend with its marks, or without them if they are damaged."""
        try:
            return marks_at_moment(part)
        except CorruptError as error:
            self._damaged[error.where or "marks"] = error.message
            moment = part.moment()
            return MarksAtMoment(moment, moment.position, [], exact=False)

    # --- events ----------------------------------------------------------------------------------

    def _copy(self, part: Backend, after: Position, seen: MarksAtMoment) -> None:
        """Copies what the backup lacks of a moment.

        What it has already it keeps, including data that the source has let go of since.
        """
        try:
            if self._last and self._last.damaged:
                raise CorruptError("it was damaged at the last point")
            self._sink.take(Source(self._source), commits_of(part, after, seen))
        except CorruptError:
            # Everything is read again, past the damage: an increment cannot tell what follows it.
            left = DamagedSource(
                self._source, part, link_at=self._sink.link_at, within=seen.moment.has
            )
            self._sink.take(left)
            self._note_damage(left.verification)

    def _note_damage(self, found: Verification) -> None:
        for finding in found.findings:
            if not finding.harmless:
                for stream in finding.streams or (finding.where,):
                    self._damaged[stream] = finding.problem
        for cut in found.cut.values():
            self._damaged[cut.stream] = cut.problem
        for stream in found.doubtful():
            self._damaged.setdefault(stream, "its newest events may be lost")

    def _count_let_go(self) -> int:
        """Counts the events of older points whose data the source has let go of since."""
        if self._last is None or LEDGER not in self._sink.began:
            return 0
        began = self._sink.began
        new = self._target.read(LEDGER, after=began[LEDGER][0])
        gone = {name for record in new for name, _ in told_by(record)}
        # A stream to which nothing was added belongs to older points as a whole.
        return sum(stream not in began or revision <= began[stream][0] for stream, revision in gone)

    # --- verifying -------------------------------------------------------------------------------

    def _verify(self) -> None:
        """Reads back what was written: every link, every blob. Raises CorruptError."""
        for stream, known in self._sink.began.items():
            revision, link = verified_end(self._target, stream, known)
            [head] = self._target.heads([stream])
            is_whole = revision == (head.revision if head is not None else 0)
            is_equal = link == self._sink.taken[stream] or self._is_excused(stream)
            if not is_whole or not is_equal:
                raise self._not_written(f"{stream}@{revision + 1}")

    def _is_excused(self, stream: str) -> bool:
        """Returns whether a stream may end elsewhere: if damaged, or its lifetime is over."""
        if stream in self._damaged:
            return True
        [head] = self._source.heads([stream])
        return head is not None and self._source.expiry.has_ended(stream, head)

    def _not_written(self, where: str) -> CorruptError:
        return CorruptError(
            f'the backup in "{self._place}" does not hold what was written to it at {where}',
            where=where,
            hint="look at the disk, then make the backup in another folder",
        )


def _is_older(position: int, after: int) -> ConflictError:
    return ConflictError(
        f"the store is older than its backup: its newest commit is at {position}, the backup has "
        f"it up to {after}",
        stream="store",
        expected=after,
        actual=position,
        hint="was it restored? then make the backup in another folder",
    )


# --- points --------------------------------------------------------------------------------------


def points(folder: str | os.PathLike[str]) -> list[Point]:
    """Returns the points of a backup, oldest first."""
    place = Path(folder)
    return _read_points(place, _read_about(place)).found


def _read_about(place: Path) -> _About:
    path = place / "backup.json"
    raw = _read(path)
    if raw is None:
        raise NotFoundError(f'"{place}" is no backup: it has no backup.json')
    raw = raw.strip()
    try:
        about = msgspec.json.decode(raw, type=_About)
    except UNREADABLE as error:
        raise _damaged(path, f"cannot be read: {error}") from None
    if about.format > FORMAT:
        raise FormatError(
            f'"{place}" is a backup of format {about.format}: this holdfast reads up to {FORMAT}',
            hint="upgrade holdfast",
        )
    is_old = about.format < FORMAT
    if not (msgspec.json.encode(about) == raw if is_old else _has_digest(raw)):
        raise _damaged(path, "is damaged: it was changed since it was written")
    return about


def _damaged(path: Path, problem: str, which: str = "") -> CorruptError:
    return CorruptError(
        f'{which}"{path}" {problem}',
        where=str(path),
        hint=f"the events are in its store: holdfast copy {path.parent / 'store'} NEW",
    )


def _read_points(place: Path, about: _About) -> _Points:
    """Returns the points, each verified by its own digest and by the line after it.

    In format 1, where lines were appended, half a line at the end is the remains of a killed writer
    and is ignored.
    """
    path = place / "points.jsonl"
    lines = (_read(path) or b"").split(b"\n")
    if about.format < FORMAT and _is_half(lines[-1]):
        lines[-1] = b""
    if not lines[-1]:
        lines.pop()
    found: list[Point] = []
    previous = ""
    for number, line in enumerate(lines, 1):
        is_old = about.format < FORMAT or number <= about.unproved
        try:
            point = _read_point(line, is_old=is_old)
            if point.previous != previous:
                raise CorruptError("it does not follow the line before it")
        except CorruptError as error:
            raise _damaged(path, f"is damaged: {error.message}", f"line {number} of ") from None
        found.append(point)
        previous = sha256(line).hexdigest()
    if len(found) < about.points:
        problem = f"it has {len(found)} lines, backup.json tells of {about.points}"
        raise _damaged(path, f"is damaged: {problem}", "the end of ")
    return _Points(found, b"".join(line + b"\n" for line in lines))


def _read_point(line: bytes, *, is_old: bool) -> Point:
    """Returns the point of a line; raises CorruptError if the line was changed.

    A line of format 1 has no digest: it is only checked that encoding it again gives the same text.
    """
    try:
        point = msgspec.json.decode(line, type=Point)
    except UNREADABLE as error:
        raise CorruptError(str(error)) from None
    if is_old and not point.sha256:
        if msgspec.json.encode(point) != line:
            raise CorruptError("it was changed since it was written")
    elif not _has_digest(line):
        raise CorruptError("it was changed since it was written, or has no digest of itself")
    return point


def _is_half(tail: bytes) -> bool:
    """Returns whether the last line is only the beginning of one.

    A whole line stays, with or without its line break. If the line break was changed, it is damage.
    """
    for line in (tail, tail[:-1]):
        try:
            _read_point(line, is_old=True)
        except CorruptError:
            continue
        return False
    return True


def find_point(folder: str | os.PathLike[str], at: str | datetime | None) -> Point:
    """Returns the point with a name or label, or the newest that is not later than a time.

    Without `at` it is the newest point. Raises NotFoundError if there is no such point.
    """
    found = points(folder)
    if not found:
        raise NotFoundError(f'"{os.fspath(folder)}" has no point yet', hint="holdfast backup DEST")
    if at is None:
        return found[-1]
    if isinstance(at, datetime):
        until = from_datetime(at)
        earlier = [point for point in found if point.at_us <= until]
        if not earlier:
            raise NotFoundError(
                f"the backup has no point at {at.isoformat()} or before; the first is "
                f"{found[0].name}, of {found[0].at.isoformat()}"
            )
        return earlier[-1]
    if not isinstance(at, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"at is the name of a point, a time or None, found {show_value(at)}")
    for point in found:
        if at in (point.name, point.label):
            return point
    raise NotFoundError(
        f'the backup has no point "{at}"; it has {_some([point.name for point in found])}',
        hint="holdfast backup list DEST",
    )


def _some(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 6 else [*names[:2], "…", *names[-3:]])


# --- restoring -----------------------------------------------------------------------------------


def restore(
    folder: str | os.PathLike[str],
    target: Store,
    *,
    at: str | datetime | None = None,
    scope: str | None = None,
    store_key: str | bytes | StoreKey | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Copies a store, or one scope of it, as it was at a point into a new store.

    `at` is the name or label of a point, or a time; without it, the newest point is restored. The
    target must be empty, or hold what an earlier restore of this backup wrote, up to this point or
    an earlier one. The store that the backup was made of is always refused.

    `scope` restores one scope with what it needs: the scopes that it was forked from, and what
    layers keep with it. `store_key` opens the backup of an encrypted store; without it, the
    target's key is tried.
    """
    point = find_point(folder, at)
    place, log = Path(folder), kernel_of(target).log
    marks = _read_marks(place, point)
    # By a digest: a scope's name may be as long as a key.
    part = "" if scope is None else f" {sha256(scope.encode()).hexdigest()[:16]}"
    key = f"restored {point.name} {point.digest}{part}"
    if log.find(LEDGER, key=key):  # an earlier restore had written everything
        return Restored(point, Copied(0, 0, 0, 0, point.events, 0, False), point.digest)
    with _open_copy(place, log.clock, store_key or _key_of(target)) as kept:
        if kept.position() < point.position:
            raise CorruptError(
                f'the store in "{place}" ends before {point.name}: expected commits up to '
                f"{point.position}, found {kept.position()}",
                where=str(place / "store"),
                hint=f"holdfast check --store {place / 'store'}",
            )
        # A restore of single scopes tells in a ledger of the target's own what was let go of.
        there = dict(_heads_at(kept, point))
        if scope is None and (found := add_up(iter(there.items())).digest) != point.digest:
            raise _is_not(f'the store in "{place}"', point, place, found)
        _check_target(kept, log, place, point, there, None if scope is None else LEDGER)
        sink = Sink(log, ledger=Ledger(kept, log), progress=progress, total=point.events)
        held = {mark.key for mark in marks if mark.index == HOLDS}
        source = Source(kept, until=Position(point.position), clock=log, held=held)
        known, gone = ledger(kept), dict[tuple[str, int], Told]()
        commits, among = source.commits(), None
        if scope is not None:
            needed = Needed(kept, [scope])
            commits = only(commits, needed.has)
            marks, among = needed.marks(marks), needed.has_mark
            sink.total = count_events(heads_of(kept, needed.streams(kept)))
        sink.take(
            source, ([_as_let_go(one, known, point, gone) for one in commit] for commit in commits)
        )
        # Marks come last, after the digest was compared: they have no history, so marks cleared in
        # a wrong target could not be brought back.
        digest = content_of(log).digest
        if scope is None and digest != point.digest:
            _check_heads(source, log, there, _is_not("the restored store", point, place, digest))
        sink.set_marks(marks, among)
    sink.tell_erased(gone, key)
    return Restored(point, sink.copied(), digest)


def _check_target(
    kept: Log,
    target: Log,
    place: Path,
    point: Point,
    there: Mapping[str, Head | None],
    besides: str | None,
) -> None:
    """Raises unless a store may be the target of a restore; called before anything is written.

    The original store is refused even if its events are all in the backup. A restore sets the marks
    of the target to those of the point, so a hold that was set since the backup would be lost, and
    the next `retain` would take what it protected. A store that is ahead of the point is refused
    for the same reason.
    """
    about = _read_about(place)
    own = {*about.stores, _check_copy_id(place, about)}
    if own.intersection(target.store_ids):
        raise UsageError(
            "a backup cannot be restored into the store that it was made of, nor into its own: "
            "what was set there since would be lost",
            hint="restore it into a new store, and use that; holdfast export and import bring "
            "single scopes over",
        )
    check_beginning(kept, target, besides=besides)
    for name, theirs in all_heads(target):
        ours = there.get(name)
        if (
            theirs is not None
            and name != besides
            and (ours is None or theirs.revision > ours.revision)
        ):
            raise ConflictError(
                f'the target has "{name}" up to revision {theirs.revision}, and {point.name} has '
                f"it up to {ours.revision if ours else 0}: it is ahead of the point",
                stream=name,
                expected=ours.revision if ours else 0,
                actual=theirs.revision,
                hint="restore into an empty store, or restore a later point",
            )


def check_readable(
    folder: str | os.PathLike[str],
    scope: str | None,
    *,
    store_key: str | bytes | StoreKey | None = None,
) -> None:
    """Raises unless a backup can be read and has the scope; for use before a target is made."""
    with _open_copy(Path(folder), None, store_key) as kept:
        if scope is not None:
            Needed(kept, [scope])


def _as_let_go(
    record: Record,
    known: dict[tuple[str, int], Told],
    point: Point,
    gone: dict[tuple[str, int], Told],
) -> Record:
    """Returns an event without its data, if that was let go of by the point or erased since.

    What is missing is noted in `gone`: the restored store must have a record of it, because
    otherwise `check` would take it for damage there.
    """
    told = known.get((record.stream, record.revision))
    if told is None:
        return record
    payload = done_again(record.payload, told.steps)
    is_gone = told.is_gone and (
        payload == GONE or told.position <= point.position or told.why == "erased"
    )
    if not is_gone and not told.steps:
        return record
    gone[record.stream, record.revision] = replace(told, is_gone=is_gone)
    return replace(record, payload=GONE if is_gone else payload)


def _check_heads(
    source: Source, target: Log, there: Mapping[str, Head | None], error: CorruptError
) -> None:
    """Raises an error if a restored store differs from its point by more than ended streams.

    They are not restored, so the digest of the target cannot be the point's. Of every other stream
    the target must have the head that the copy had.
    """
    found = heads_of(target, there)
    lacks = [
        name
        for (name, ours), (_, theirs) in zip(there.items(), found, strict=True)
        if ours is not None
        and (theirs is None or (ours.revision, ours.link) != (theirs.revision, theirs.link))
    ]
    if not lacks or any(end != OVER for end in source.ends(lacks).values()):
        raise error


def _is_not(what: str, point: Point, place: Path, digest: str) -> CorruptError:
    return CorruptError(
        f"{what} is not what it was at {point.name}: its digest is {digest}, expected "
        f"{point.digest}",
        where=str(place),
        hint=f"holdfast check --store {place / 'store'}",
    )


def prune(
    folder: str | os.PathLike[str], *, store_key: str | bytes | StoreKey | None = None
) -> Pruned:
    """Removes data from a backup that its store has let go of since, at every point.

    When restored, such an event has its name, time and link, but no data. If the process is killed,
    make the same call again. `store_key` opens the backup of an encrypted store.
    """
    place = Path(folder)
    points(place)
    _check_copy_id(place, _read_about(place))
    with _alone(place), open_store(place / "store", create=False, store_key=store_key) as kept:
        kernel_of(kept).forget_copies()
        events, size, blobs, left = drop(kernel_of(kept).log)
    with _drilling(place) as is_alone:
        if not is_alone:
            remedy = "a drill is under way, and has a copy: prune again when it has ended"
            left = [*left, Leftover(str(place), remedy)]
    return Pruned(events, size, blobs, left)


def drill(
    folder: str | os.PathLike[str],
    *,
    at: str | datetime | None = None,
    store_key: str | bytes | StoreKey | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Tests a point: restores it into a temporary store, verifies all of that, and deletes it.

    Raises CorruptError if anything is wrong. It needs as much space as the store, in the folder of
    the backup.
    """
    place = Path(folder)
    find_point(place, at)
    with (
        _scratch(place) as scratch,
        open_store(scratch / "store", store_key=store_key) as target,
    ):
        restored = restore(place, target, at=at, progress=progress)
        report = target.check()
        for finding in report.findings:
            if not finding.harmless:
                raise CorruptError(
                    f"{finding.where}: {finding.problem}",
                    where=finding.where,
                    hint="make a new backup in another folder",
                )
    return restored


@contextmanager
def _scratch(place: Path) -> Generator[Path]:
    """Yields a folder for the store of a drill, and removes it at the end."""
    with _drilling(place):
        with _reporting(place, "written"):
            scratch = Path(tempfile.mkdtemp(prefix=_DRILL, dir=place))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _drilling(place: Path) -> Generator[bool]:
    """Yields whether no other drill is under way; if so, first removes what killed ones left.

    The lock is then held shared, so that several drills can run side by side, and whoever gets it
    exclusively knows that none is at work.
    """
    import fcntl  # not there on Windows

    with _lock(place / "drills") as (fd, is_alone):
        for left in place.glob(f"{_DRILL}*") if is_alone else ():
            shutil.rmtree(left, ignore_errors=True)
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield is_alone


@contextmanager
def _open_copy(
    place: Path, clock: Clock | None, key: str | bytes | StoreKey | None
) -> Generator[Log]:
    """Opens the log of a backup, with the key and else without.

    The key may be that of the target of a restore, which may be encrypted while the backup is not.
    """
    name = place / "store"
    _check_copy_id(place, _read_about(place))
    opened = partial(open_store, name, create=False, read_only=True, settings=Settings(clock=clock))
    try:
        store = opened(store_key=key)
    except StoreKeyError as error:
        try:
            store = opened()
        except StoreKeyError:
            raise error from None
    with store:
        yield kernel_of(store).log


# --- files ---------------------------------------------------------------------------------------


def _write_marks(place: Path, name: str, marks: list[Mark]) -> str:
    raw = b"".join(msgspec.json.encode(mark) + b"\n" for mark in marks)
    _write(place / "marks" / f"{name}.jsonl", raw)
    return sha256(raw).hexdigest()


def _read_marks(place: Path, point: Point) -> list[Mark]:
    path = place / "marks" / f"{point.name}.jsonl"
    raw = _read(path)
    if raw is None or sha256(raw).hexdigest() != point.marks_digest:
        found = "it is gone" if raw is None else "it was changed"
        raise CorruptError(f'the marks of {point.name}, "{path}": {found}', where=str(path))
    return [msgspec.json.decode(line, type=Mark) for line in raw.splitlines()]


def _write(path: Path, raw: bytes) -> None:
    """Replaces a file as a whole: after a crash it has all of its old or all of its new bytes.

    The bytes are synced before the rename, so that the name never leads to a file without them. The
    folder is synced after it, so that the rename itself survives.
    """
    beside = path.with_name(path.name + ".new")
    with _reporting(path, "written"):
        with open(beside, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)


def _read(path: Path) -> bytes | None:
    """Returns the content of a file, or None if it is not there."""
    with _reporting(path, "read"):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


@contextmanager
def _reporting(path: Path, done: str, *, hint: str | None = None) -> Generator[None]:
    """Turns an OSError about a file or folder into an UnavailableError."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f'"{path}" cannot be {done}: {error.strerror}', hint=hint) from error


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
