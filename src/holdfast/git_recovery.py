"""For a store that people keep in git: brings back lost revisions, and merges two branches.

`find_lost` returns the revisions that this work tree had and lacks now, after a checkout, a reset,
a stash or a switch of branches. `bring_back` takes them from the commits that have them. A stream
that only lacks its end gets exactly that end back, with every link. A stream that has other events
by now keeps them: the events of the other side are added after them, with new revisions and links,
and with their old link as their source. Events that no longer fit are listed and not applied.
Nothing is brought back or forgotten unless somebody asks for it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from holdfast.backends.in_use import is_in_use
from holdfast.backends.protocol import GONE, Head, Mark, Record
from holdfast.core import codec, event, tree
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.erased_ledger import Ledger
from holdfast.core.event import to_datetime
from holdfast.core.expiry import HOLDS
from holdfast.core.kernel import kernel_of
from holdfast.core.layers import reserved_prefixes
from holdfast.core.log import NO_LIMIT, Log
from holdfast.core.meta import Meta, joined
from holdfast.core.own_event import OWN
from holdfast.errors import CorruptError, HoldfastError, NotFoundError, UsageError
from holdfast.git.repository import Repository
from holdfast.git.versions import StoreVersion, segments_of, store_versions, take_out
from holdfast.git.witness import (
    MERGES,
    OF_PROCESSES,
    SOURCE,
    Witness,
    merged_as,
    merged_from,
    merged_links,
    noted_losses,
    read_witness,
    witness_file,
    write_witness,
)
from holdfast.opening import open_store
from holdfast.record import message_events
from holdfast.store import Store
from holdfast.transfer.sink import Sink
from holdfast.transfer.source import Source, only

__all__ = [
    "BroughtBack",
    "LostRevisions",
    "NotApplied",
    "accept_loss",
    "bring_back",
    "find_lost",
    "merge_file",
]

_logger = logging.getLogger("holdfast.git")

MERGED = "git.merged"
_BY_REVISION = frozenset((message_events.EDITED, message_events.DELETED, message_events.POPPED))
_FIT = (message_events.ADDED, event.CHECKPOINTED, event.CHANGED)
_FIT_PREFIXES = (OWN, "decision.", "fact.", "task.", "turn.", "session.")


class LostRevisions(Struct, frozen=True):
    """Revisions of a stream that were here and are gone; `commit` has them, or is None.

    `is_diverged` is whether the stream has other events in their place.
    """

    stream: str
    first: int
    last: int
    commit: str | None
    is_diverged: bool


class NotApplied(Struct, frozen=True):
    """An event of the other side that does not fit after the events here, and why."""

    stream: str
    revision: int
    type: str
    why: str
    link: str


class BroughtBack(Struct, frozen=True):
    """What was brought back: revisions unchanged, and events of another branch added after ours."""

    regained: list[LostRevisions]
    merged: list[LostRevisions]
    events: int
    not_applied: list[NotApplied]


class _Branch(Struct, frozen=True):
    """A stream that another version has too: up to where both are equal, and where each ends."""

    stream: str
    common: int
    ours: int
    theirs: int


# --- what is lost --------------------------------------------------------------------------------


def find_lost(store: Store) -> list[LostRevisions]:
    """Returns the revisions that this work tree had and the store lacks now, by stream.

    Returns nothing if the store is not on plain files, or not in a git repository.
    """
    log = kernel_of(store).log
    place = witness_file(log)
    if place is None:
        return []
    witness = read_witness(place)
    found: list[LostRevisions] = []
    known = merged_links(log)
    with _beyond(log, None, witness) as versions:
        for commit, theirs in versions:
            for branch in _branches(log, theirs):
                left = _unmerged(log, theirs, branch, known)
                if left:
                    is_diverged = branch.ours > branch.common
                    lost = LostRevisions(
                        branch.stream, left[0].revision, left[-1].revision, commit, is_diverged
                    )
                    if not any((one.stream, one.last) == (lost.stream, lost.last) for one in found):
                        found.append(lost)
                known |= {record.link.hex() for record in left}
                known |= {merged_as(record) for record in left} - {""}
    found += [
        LostRevisions(one.stream, one.first, one.last, None, one.is_diverged)
        for one in noted_losses(log, witness, known)
    ]
    return sorted(found, key=lambda one: (one.stream, one.first))


def accept_loss(store: Store) -> list[LostRevisions]:
    """Accepts all present losses, so that they are not reported again, and returns them."""
    lost = find_lost(store)
    log = kernel_of(store).log
    place = witness_file(log)
    if place is not None and lost:
        repository, inside = _place_of(log)
        witness = read_witness(place)
        accepted = [version.log for version in store_versions(repository, inside)]
        write_witness(place, Witness({}, [], [*witness.accepted, *accepted]))
    return lost


def _place_of(log: Log) -> tuple[Repository, str]:
    path = str(log.describe()["path"])
    repository = Repository.find(os.path.dirname(path))
    return repository, repository.relative(path)


@contextmanager
def _beyond(
    log: Log, commits: Iterable[str] | None, witness: Witness
) -> Generator[Iterator[tuple[str, Log]]]:
    """Yields the versions that have something the store lacks, each opened in turn."""
    repository, inside = _place_of(log)
    path = str(log.describe()["path"])
    versions = store_versions(repository, inside, commits)
    if commits is None:
        versions = [one for one in versions if one.log not in witness.accepted]
    wanted = _greatest(repository, versions, os.path.join(path, "log"))

    def opened() -> Generator[tuple[str, Log]]:
        for version in wanted:
            with tempfile.TemporaryDirectory(prefix="holdfast-version-") as folder:
                inner = os.path.join(folder, "store")
                os.mkdir(inner, 0o700)
                take_out(repository, inside, version, inner, beside=path)
                with open_store(inner, create=False, durability="none") as store:
                    theirs = kernel_of(store).log
                    if theirs.describe()["store"] == log.describe()["store"]:
                        yield version.commit, theirs

    with closing(opened()) as found:  # closes the opened version even if the block raises
        yield found


def _greatest(
    repository: Repository, versions: list[StoreVersion], folder: str
) -> list[StoreVersion]:
    """Returns the versions whose text is not a prefix of the store's, nor of another version's."""
    texts: list[tuple[StoreVersion, dict[str, str], bytes]] = []
    for version in versions:
        segments = segments_of(repository, version)
        if not segments:
            continue
        name = max(segments)
        text = repository.read_objects([segments[name]])[segments[name]]
        if _begins(os.path.join(folder, name), text):
            continue
        texts = [
            (other, theirs, longest)
            for other, theirs, longest in texts
            if not (max(theirs) == name and text.startswith(longest))
        ]
        if not any(
            theirs.get(name) == segments[name] or (max(theirs) == name and other.startswith(text))
            for _, theirs, other in texts
        ):
            texts.append((version, segments, text))
    return [version for version, _, _ in texts]


def _begins(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(text)) == text
    except FileNotFoundError:
        return False


def _branches(ours: Log, theirs: Log) -> Iterator[_Branch]:
    """Yields the streams of another version that have events which ours lacks."""
    names = [name for name in theirs.streams() if name.partition("/")[0] not in OF_PROCESSES]
    for name, mine, other in zip(names, ours.heads(names), theirs.heads(names), strict=True):
        if other is None or (mine is not None and mine.link == other.link):
            continue
        common = _common(ours, theirs, name, mine, other)
        if common < other.revision:
            yield _Branch(name, common, mine.revision if mine else 0, other.revision)


def _common(ours: Log, theirs: Log, stream: str, mine: Head | None, other: Head) -> int:
    """Returns the newest revision up to which two streams are equal, by binary search.

    Links are chained, so an equal link proves that all earlier events are equal.
    """
    if mine is None:
        return 0
    low, high = 0, min(mine.revision, other.revision)
    while low < high:
        middle = (low + high + 1) // 2
        links = [
            [one.link for one in log.read(stream, after=middle - 1, until=middle)]
            for log in (ours, theirs)
        ]
        if links[0] == links[1]:
            low = middle
        else:
            high = middle - 1
    return low


def _unmerged(ours: Log, theirs: Log, branch: _Branch, known: set[str]) -> list[Record]:
    """Returns the records of the other side that were neither merged nor listed before.

    A merge that was killed has added events, but not listed them yet: they are found by the source
    that each of them names. A record that is itself a merged event counts as its original.
    """
    there = known | merged_from(ours, branch.stream, branch.common).keys()
    records = theirs.read(branch.stream, after=branch.common)
    return [one for one in records if not there & {one.link.hex(), merged_as(one)}]


# --- bringing it back ----------------------------------------------------------------------------


def bring_back(
    place: str | os.PathLike[str], *, commit: str | None = None, actor: str | None = None
) -> BroughtBack:
    """Brings back what git took from a store, or with `commit` what that commit has and it lacks.

    Events written since then stay. A second call changes nothing more. If the store was open when
    git took its files, it is repaired first, from the rescued files or from a commit.
    """
    _mend(os.fspath(place))
    done = BroughtBack([], [], 0, [])
    with open_store(os.fspath(place), create=False, actor=actor) as store:
        log = kernel_of(store).log
        noted = witness_file(log)
        if noted is None:
            raise UsageError(
                f'"{os.fspath(place)}" is no store on plain files in a git repository',
                hint="name the folder of a store that git tracks",
            )
        commits = None
        if commit is not None:
            repository, inside = _place_of(log)
            commits = [repository.find_commit(commit).id]
            if not store_versions(repository, inside, commits):
                raise NotFoundError(f'commit {commits[0][:12]} has no store in "{inside}"')
        with _beyond(log, commits, read_witness(noted)) as versions:
            for id, theirs in versions:
                done = _bring_from(log, theirs, id, done)
    return done


def _mend(place: str) -> None:
    """Restores the newer text of a store that was open when git replaced it by an older one.

    The journal of such a store continues the newer text, so it does not connect to the older one. A
    text that begins with exactly the bytes that are there is a continuation of them; the longest
    one is taken. This is safe because the next open verifies every line of it.
    """
    folder = os.path.join(place, "log")
    if not os.path.isdir(folder) or is_in_use(place):
        return
    with open_store(place, create=False, read_only=True) as store:
        try:
            next(kernel_of(store).log.streams(), None)
            return
        except CorruptError as error:
            _logger.warning("the store lacks text: %s", error.message)
    for name, texts in _texts_elsewhere(place).items():
        path = os.path.join(folder, name)
        longest = max(texts, key=len)
        if _is_beginning(path, longest):
            with open(path, "r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(longest[file.tell() :])
                file.flush()
                os.fsync(file.fileno())


def _texts_elsewhere(place: str) -> dict[str, list[bytes]]:
    """Returns the texts of segments, by name, from commits and from rescued files."""
    found: dict[str, list[bytes]] = {}
    here = os.path.realpath(place)
    for beside in (os.path.dirname(here), here):
        for path in sorted(Path(beside).glob("rescued/*/log/*.jsonl")):
            found.setdefault(path.name, []).append(path.read_bytes())
    repository = Repository.find(os.path.dirname(here))
    for version in store_versions(repository, repository.relative(here)):
        for name, id in segments_of(repository, version).items():
            found.setdefault(name, []).append(repository.read_objects([id])[id])
    current = set(os.listdir(os.path.join(place, "log")))
    return {name: texts for name, texts in found.items() if name in current}


def _is_beginning(path: str, text: bytes) -> bool:
    with open(path, "rb") as file:
        there = file.read(len(text) + 1)
    return len(there) < len(text) and text.startswith(there)


def _bring_from(log: Log, theirs: Log, commit: str, done: BroughtBack) -> BroughtBack:
    branches = list(_branches(log, theirs))
    straight = {one.stream: one for one in branches if one.ours <= one.common}
    regained = [
        LostRevisions(one.stream, one.common + 1, one.theirs, commit, is_diverged=False)
        for one in straight.values()
    ]
    events = _copy_streams(log, theirs, set(straight)) if straight else 0
    known = merged_links(log)
    merged: list[LostRevisions] = []
    not_applied: list[NotApplied] = []
    since: dict[str, int] = {}
    same: set[str] = set()
    for branch in branches:
        if branch.stream in straight:
            continue
        for record in theirs.read(branch.stream, after=branch.common):
            if origin := merged_as(record):
                same |= {record.link.hex(), origin}
        records = _unmerged(log, theirs, branch, known)
        # A merge that was killed may have added events without recording the merge.
        if records or merged_from(log, branch.stream, branch.common).keys() - known:
            since[branch.stream] = branch.common
        if not records:
            continue
        merge = _Merge(log, theirs, branch)
        for record in records:
            merge.add(record)
        merge.take_marks()
        not_applied += merge.not_applied
        events += merge.applied
        last = records[-1].revision
        merged.append(
            LostRevisions(branch.stream, records[0].revision, last, commit, is_diverged=True)
        )
    if since or same - known:
        about = {
            "commit": commit,
            "streams": since,
            "same": sorted(same),
            "not_applied": [msgspec.to_builtins(one) for one in not_applied],
        }
        write = StreamWrite(MERGES, (NewEvent(MERGED, codec.encode_plain(about)),))
        log.commit(ProposedCommit((write,)))
    return BroughtBack(
        [*done.regained, *regained],
        [*done.merged, *merged],
        done.events + events,
        [*done.not_applied, *not_applied],
    )


def _copy_streams(log: Log, theirs: Log, streams: set[str]) -> int:
    """Copies the missing ends of streams, unchanged and with their marks; counts the events."""
    sink, source = Sink(log, ledger=Ledger(log)), Source(theirs)
    sink.take(source, only(source.commits(), streams.__contains__))
    sink.tell_erased()
    _take_marks(sink, log, theirs, dict.fromkeys(streams))
    return sink.copied().events


def _take_marks(sink: Sink, log: Log, theirs: Log, of: Mapping[str, set[str] | None]) -> None:
    """Replaces the marks about streams, or only about the named items, by the other side's.

    A hold that is set here stays: a commit of git must not release one.
    """

    def is_about(log: Log, mark: Mark) -> bool:
        stream = mark.group if mark.group in of else mark.key
        items = of.get(stream, set())
        return items is None or bool(items and log.opened_mark(mark).key.partition(":")[2] in items)

    marks = [mark for mark in theirs.marks.list(limit=NO_LIMIT) if is_about(theirs, mark)]
    sink.set_marks(marks, lambda mark: mark.index != HOLDS and is_about(log, mark))


class _Merge:
    """The events of another branch of one stream, added after ours."""

    def __init__(self, log: Log, theirs: Log, branch: _Branch) -> None:
        self._log = log
        self._theirs = theirs
        self._stream = branch.stream
        self._common = branch.common
        self._is_reserved = branch.stream.partition("/")[0] in reserved_prefixes()
        merged = merged_from(log, branch.stream, branch.common)
        self._places: dict[int, int] = {
            one.revision: merged[one.link.hex()]
            for one in theirs.read(branch.stream, after=branch.common)
            if one.link.hex() in merged
        }
        self._items: set[str] = set()
        self.not_applied: list[NotApplied] = []
        self.applied = 0
        old = log.at(branch.stream, branch.common).root if branch.common else tree.Map()
        # Our own changes end where a merge that was killed has begun to add events.
        until = min(merged.values(), default=branch.ours + 1) - 1
        now = log.at(branch.stream, until).root
        self._changed = [one.path for one in tree.diff(old, now)]
        ours = log.read(branch.stream, after=branch.common)
        # Each side numbers its tasks by itself, so one id may stand for two different tasks.
        self._tasks = {_task_of(one) for one in ours if one.revision <= until} - {None}
        self._task_number = max((_task_number(one.key) for one in ours), default=0)
        numbers = (_task_number(one.key) for one in theirs.read(branch.stream, after=branch.common))
        first = min((number for number in numbers if number), default=1)
        self._task_number = max(self._task_number, first - 1)

    def add(self, record: Record) -> None:
        """Adds one event, or lists it with the reason why it does not fit."""
        why, payload = self._check(record)
        if why is None:
            try:
                write = self._write(record, payload)
                result = self._log.commit(ProposedCommit((write,), actor=record.actor))
                self._places[record.revision] = result.after[0].revision
                self.applied += 1
            except HoldfastError as error:
                why = error.message
        if why is not None:
            link = record.link.hex()
            entry = NotApplied(self._stream, record.revision, record.type, why, link)
            self.not_applied.append(entry)
        elif (task := _task_of(record)) is not None:
            self._items.add(task)
        elif record.key is not None and "#" in record.key:
            self._items.add(record.key.partition(":")[2])

    def _write(self, record: Record, payload: bytes) -> StreamWrite:
        source = f"{SOURCE}{record.link.hex()}"
        said = codec.encode_plain(Meta(source=source, original_time=to_datetime(record.time)))
        ops = tree.decode_ops(payload) if record.type == event.CHANGED else ()
        new_event = NewEvent(record.type, payload, ops, meta=joined(record.meta, said.decode()))
        key = record.key
        if _task_number(key):
            # The key of a task's event has a running number: this one continues ours.
            self._task_number += 1
            key = f"tasks#{self._task_number}:all"
        return StreamWrite(self._stream, (new_event,), None, key, record.checkpoint)

    def _check(self, record: Record) -> tuple[str | None, bytes]:
        """Returns why an event does not fit, or None, and its payload with our revisions in it."""
        payload = record.payload
        if self._is_reserved:
            return "the stream is written by holdfast itself", payload
        if (task := _task_of(record)) in self._tasks:
            return f'task "{task}" was changed here too', payload
        is_numbered = _task_number(record.key) > 0
        if record.key and not is_numbered and self._log.find(self._stream, key=record.key):
            return f"its key {record.key!r:.60} was used here too", payload
        if record.type in _BY_REVISION:
            data = cast("dict[str, Any]", codec.decode(payload))
            at = data["at"]
            if at > self._common and at not in self._places:
                return f"the event {at} that it is about was not applied", payload
            return None, codec.encode_plain({**data, "at": self._places.get(at, at)})
        is_of_all_tasks = record.type.startswith("task.") and task is None
        is_known = record.type in _FIT or record.type.startswith(_FIT_PREFIXES)
        if is_of_all_tasks or not is_known:
            return "it would take back, or end, what was written here", payload
        if record.type == event.CHANGED:
            return self._misfit(tree.decode_ops(payload)), payload
        return None, payload

    def _misfit(self, ops: Iterable[tree.Op]) -> str | None:
        """Returns a text naming a place of the state that both sides changed, or None."""
        for op in ops:
            if op.kind in ("append", "increment"):
                continue
            keys = op.keys
            for path in self._changed:
                length = min(len(keys), len(path))
                if keys[:length] == path[:length]:
                    shown = ".".join(map(str, path)) or "the whole state"
                    return f"{shown} was changed here too"
        return None

    def take_marks(self) -> None:
        """Copies the marks of the items whose events were added."""
        if self._items:
            _take_marks(Sink(self._log), self._log, self._theirs, {self._stream: self._items})


_TASK_KEY = re.compile(r"tasks#([1-9][0-9]*):all\Z")


def _task_of(record: Record) -> str | None:
    """Returns the id of the task that an event is about, or None."""
    if not record.type.startswith("task.") or record.payload == GONE:
        return None
    id = cast("dict[str, Any]", codec.decode(record.payload)).get("id")
    return id if isinstance(id, str) else None


def _task_number(key: str | None) -> int:
    """Returns the number in the key of a task's event; 0 for any other key."""
    found = _TASK_KEY.match(key or "")
    return int(found[1]) if found else 0


# --- the merge driver of git ---------------------------------------------------------------------


def merge_file(path: str, ours: str, theirs: str) -> None:
    """Merges one file of a store for git's merge driver: writes to the file `ours`, or raises.

    `path` is its place in the work tree, which is the current folder. In a segment of the log the
    other side's events are added after ours. `head.json` is marked as not closed, which says that
    the text may continue beyond the end that it names, so the next open verifies the rest.
    """
    store, name = os.path.split(path)
    if name == "head.json":
        with open(ours, "rb") as file:
            head = msgspec.json.decode(file.read(), type=dict[str, Any])
        with open(ours, "wb") as file:
            file.write(msgspec.json.encode({**head, "closed": False}) + b"\n")
        return
    store = os.path.dirname(store)
    repository = Repository.find(".")
    [version] = store_versions(repository, store, [str(repository.head)]) or [None]
    if version is None:
        raise NotFoundError(f'the commit that is checked out has no store in "{store}"')
    with tempfile.TemporaryDirectory(prefix="holdfast-merge-") as folder:
        sides: list[str] = []
        for side, text in (("ours", ours), ("theirs", theirs)):
            place = os.path.join(folder, side)
            os.mkdir(place, 0o700)
            take_out(repository, store, version, place, beside=os.path.abspath(store))
            shutil.copyfile(text, os.path.join(place, "log", name))
            sides.append(place)
        segments = set(os.listdir(os.path.join(sides[0], "log")))
        with (
            open_store(sides[0], durability="none", create=False) as mine,
            open_store(sides[1], durability="none", create=False) as other,
        ):
            logs = kernel_of(mine).log, kernel_of(other).log
            _bring_from(*logs, _merged_commit(), BroughtBack([], [], 0, []))
        if set(os.listdir(os.path.join(sides[0], "log"))) != segments:
            raise UsageError(
                "the merged log needs another segment, which a merge driver cannot add",
                hint="keep our side, then holdfast recover --from-git --commit OTHER",
            )
        shutil.copyfile(os.path.join(sides[0], "log", name), ours)


def _merged_commit() -> str:
    """Returns the commit that git is merging, from GITHEAD_… variables; "" if that is unclear."""
    named = [name for name in os.environ if name.startswith("GITHEAD_")]
    return named[0].removeprefix("GITHEAD_") if len(named) == 1 else ""
