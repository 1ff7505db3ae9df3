"""Events written into the messages of commits, so that a lost log can be rebuilt from them.

`commit_events` commits files on the branch that is checked out. The message has the events of a
scope since the last such commit, with two lines for each:

    Holdfast-Event: team/red@7
    Holdfast-Data: {"type":"changed","actor":"ann","time":…,"payload":[…]}

`rebuild_from_git` adds them to a store that lacks them, and compares those that it has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from holdfast.backends.protocol import GONE, Record
from holdfast.clock import SystemClock
from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import Event, ops_of, to_datetime
from holdfast.core.log import Log
from holdfast.core.meta import Meta, encode_meta
from holdfast.errors import GitError, HoldfastError, NotFoundError, UsageError
from holdfast.git.commits import TRAILER, EventPlace, events_named
from holdfast.git.repository import Commit, Entry, Repository
from holdfast.git.work_tree import WorkTree, is_safe
from holdfast.names import short_id
from holdfast.record.sessions import TURN_ENDED
from holdfast.record.trust import read_config
from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.git")

FILE = "holdfast.toml"
DATA = "Holdfast-Data"
EVENTS_MAX = 200
"""One commit has at most so many events; the next one continues."""
DATA_BYTES_MAX = 16_384
"""A larger event is only named in the message, without its data."""
COMMITS_MAX = 100_000
_NEWEST = 50
"""So many of the newest commits with events are searched: a merge may put them out of order."""
_ATTEMPTS = 3
SOURCE = "git commit"


CommitMode = Literal["off", "turn", "each"]


class GitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[git]` of holdfast.toml: when to commit, which files, and whose events.

    "each" commits after every event of the scope, "turn" when one of its turns has ended.
    """

    commit: CommitMode = "off"
    files: list[str] = []
    scope: str | None = None


class _File(Struct):
    git: GitSettings = GitSettings()


def read_settings(path: str | os.PathLike[str] = FILE) -> GitSettings:
    """Returns the section `[git]` of a configuration file; the defaults if there is no file."""
    import tomllib

    try:
        return msgspec.convert(tomllib.loads(read_config(path).data.decode()), _File).git
    except NotFoundError:
        return GitSettings()
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f'configuration file "{path}" cannot be read: {error}') from error
    except msgspec.ValidationError as error:
        raise UsageError(
            f'[git] of "{path}" cannot be read: {error}',
            hint='it has commit = "off", "turn" or "each", files = ["…"] and scope = "level/id"',
        ) from error


class Rebuilt(Struct, frozen=True):
    """How many events were added from commits, how many agree with the log, and which do not.

    `missing` are events that could not be added: no commit has their data, they do not fit, or an
    event before them in the scope is missing.
    """

    added: int
    agree: int
    differ: list[str]
    missing: list[str]


class _Told(Struct):
    type: str
    actor: str
    time: int
    payload: Raw
    key: str | None = None
    checkpoint: str | None = None


def commit_events(
    scope: Scope,
    repository: Repository,
    paths: Iterable[str | os.PathLike[str]],
    *,
    summary: str | None = None,
    most: int | None = None,
) -> Commit | None:
    """Commits files, with the events of a scope since the last such commit in the message.

    The commit goes to the branch that is checked out, and has only these files, whatever is
    staged. Its author is the actor of the newest event; it has at most `most` events. Returns None
    if there is nothing new. Processes take turns; if another program commits meanwhile, it is tried
    again. Raises UsageError for the scope of a subject.
    """
    if scope.subject is not None:
        raise UsageError(
            f'scope "{scope.name}" is a subject\'s: a commit would tell it in clear, for ever',
            hint="`holdfast backup` keeps it sealed",
        )
    inside = list(paths)
    for attempt in range(_ATTEMPTS):
        head = repository.head
        try:
            with repository.locked("commit"):
                return _commit_told(scope, repository, inside, summary, most or EVENTS_MAX)
        except GitError as error:
            # Another commit came first, or git has locked the index: both are over soon.
            if attempt == _ATTEMPTS - 1 or (repository.head == head and attempt):
                raise
            _logger.debug("the commit is begun again: %s", error)
    raise AssertionError("BUG: the last attempt returns or raises")


def _commit_told(
    scope: Scope,
    repository: Repository,
    paths: Iterable[str | os.PathLike[str]],
    summary: str | None,
    most: int,
) -> Commit | None:
    told = told_until(repository, scope.name)
    events = [event.record for event in scope.history(after=told)][: min(most, EVENTS_MAX)]
    lines = [line for record in events for line in _lines(record)]
    text = summary or (f"{len(events)} events of {scope.name}" if events else "views")
    if "\n\n" in text or any(each in text for each in "\0\r"):
        raise UsageError("a summary is one paragraph of text")
    author = events[-1].actor if events else "holdfast"
    message = f"{text}\n\n" + "".join(f"{line}\n" for line in lines)
    return commit_files(repository, paths, message, author=author, even_if_same=bool(events))


def commit_as_told(
    events: Iterable[Event],
    scope: Scope,
    repository: Repository,
    paths: Sequence[str | os.PathLike[str]],
    mode: CommitMode,
) -> Iterator[Commit]:
    """Commits files for each due event of a scope among `events`; yields the commits."""
    for event in events:
        is_due = mode == "each" or (mode == "turn" and event.type == TURN_ENDED)
        if event.stream == scope.name and is_due:
            made = commit_events(scope, repository, paths)
            if made is not None:
                yield made


def commit_files(
    repository: Repository,
    paths: Iterable[str | os.PathLike[str]],
    message: str,
    *,
    author: str,
    even_if_same: bool = False,
) -> Commit | None:
    """Commits the present content of files on the branch that is checked out; runs no hooks.

    Other staged changes stay staged. Returns None if the last commit has the same files, unless
    `even_if_same`.
    """
    tree = WorkTree(repository)
    head = repository.head
    files = repository.files_of(head) if head else {}
    inside = [repository.relative(path) for path in paths]
    changed: dict[str, Entry | None] = {}
    for path in inside:
        if not is_safe(path):
            raise UsageError(f'"{path}" is no file that can be committed')
        changed[path] = tree.keep(path)
    now = {path: one for path, one in {**files, **changed}.items() if one is not None}
    made = None
    if now != files or even_if_same:
        made = repository.write_commit(
            repository.write_tree(now), message, parents=[head] if head else [], author=author
        )
        # Between the commit and the update of the index, the index still has the old files, and
        # the user's next commit would revert ours. The note, written first, lets a later process
        # complete the update after a crash.
        _note_index(repository, inside)
        old = head or "0" * len(made)
        subject = message.partition("\n")[0]
        repository.run("update-ref", "-m", f"holdfast: {subject}", "HEAD", made, old)
    finish_commit(repository)
    return repository.find_commit(made) if made else None


def finish_commit(repository: Repository) -> None:
    """Updates the index to our last commit, if a note says that this was not done yet."""
    path = _index_note(repository)
    try:
        with open(path, "rb") as file:
            paths = [os.fsdecode(one) for one in file.read().split(b"\0") if one]
    except FileNotFoundError:
        return
    head = repository.head
    files = repository.files_of(head) if head else {}
    none = "0" * (64 if repository.object_format == "sha256" else 40)
    lines: list[bytes] = []
    for one in paths:
        entry = files.get(one) or Entry("0", none)
        lines.append(f"{entry.mode} {entry.id}\t".encode() + os.fsencode(one) + b"\0")
    repository.run("update-index", "-z", "--index-info", data=b"".join(lines))
    os.unlink(path)


def _index_note(repository: Repository) -> str:
    return os.path.join(repository.private_dir(), "index-behind")


def _note_index(repository: Repository, paths: list[str]) -> None:
    path = _index_note(repository)
    beside = f"{path}.{short_id(SystemClock())}"
    with open(beside, "xb") as file:
        file.write(b"".join(os.fsencode(one) + b"\0" for one in paths))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def told_until(repository: Repository, stream: str) -> int:
    """Returns the newest revision of a stream that a commit of this branch names, or 0.

    Git itself skips the commits that do not mention the stream, so it may be far back.
    """
    found = repository.last_commits(_NEWEST, mention=f"{TRAILER}: {stream}@")
    revisions = [one.revision for each in found for one in events_named(each)
                 if one.scope == stream]  # fmt: skip
    return max(revisions, default=0)


def _lines(record: Record) -> list[str]:
    named = f"{TRAILER}: {record.stream}@{record.revision}"
    if record.subject is not None or record.payload == GONE:
        return [named]  # data that can be erased, or was, must not stay in a commit
    about: dict[str, Any] = {
        "type": record.type,
        "actor": record.actor,
        "time": record.time,
        "payload": Raw(record.payload),
    }
    about |= {"key": record.key} if record.key is not None else {}
    about |= {"checkpoint": record.checkpoint} if record.checkpoint is not None else {}
    data = codec.encode_plain(about).decode()
    return [named] if len(data) > DATA_BYTES_MAX else [named, f"{DATA}: {data}"]


# --- reading it back -----------------------------------------------------------------------------


def rebuild_from_git(log: Log, repository: Repository) -> Rebuilt:
    """Adds the events in commits that the log lacks, and compares those that it has.

    An event keeps its type, data, actor, key, checkpoint name and revision. It gets a new time and
    link; its meta has the original time, and that it came from a commit. Commits have no marks, so
    what is found by marks, such as open decisions over all scopes, is not rebuilt.
    """
    told = _told_by_commits(repository)
    added = agree = 0
    differ: list[str] = []
    missing: list[str] = []
    for stream in sorted({place.scope for place in told}):
        places = sorted(one.revision for one in told if one.scope == stream)
        head = log.head(stream)
        end = head.revision if head else 0
        for revision in places:
            place = EventPlace(stream, revision)
            event = told[place]
            if revision <= end:
                same = event is None or _is_same(log.record(stream, revision), event)
                agree += same
                differ += [] if same else [str(place)]
            elif event is None or revision != end + 1:
                missing.append(str(place))
            elif _append(log, place, event):
                end, added = revision, added + 1
            else:
                missing.append(str(place))
    return Rebuilt(added, agree, differ, missing)


def _told_by_commits(repository: Repository) -> dict[EventPlace, _Told | None]:
    """Returns every event that a commit names, with its data; None where no commit has the data."""
    found: dict[EventPlace, _Told | None] = {}
    for commit in reversed(repository.last_commits(COMMITS_MAX)):
        place: EventPlace | None = None
        named = {str(one): one for one in events_named(commit)}
        for name, value in commit.trailers:
            if name == TRAILER:
                place = named.get(value)
                if place is not None:
                    found.setdefault(place, None)
            elif name == DATA and place is not None:
                try:
                    found[place] = msgspec.json.decode(value, type=_Told)
                except msgspec.DecodeError:
                    continue  # somebody edited it: it counts as missing
    return found


def _is_same(record: Record, event: _Told) -> bool:
    return (record.type, record.actor, record.payload) == (
        event.type,
        event.actor,
        bytes(event.payload),
    )


def _append(log: Log, place: EventPlace, event: _Told) -> bool:
    """Appends one event to the log; returns False if the log refuses it."""
    payload = bytes(event.payload)
    record = Record(place.scope, place.revision, event.time, event.type, event.actor, payload, b"")
    meta = encode_meta(Meta(source=SOURCE, original_time=to_datetime(event.time)))
    try:
        ops = tuple(ops_of(record) or ())
        new_event = NewEvent(event.type, payload, ops, meta=meta)
        write = StreamWrite(
            place.scope, (new_event,), place.revision - 1, event.key, event.checkpoint
        )
        log.commit(ProposedCommit((write,), actor=event.actor))
    except HoldfastError as error:
        _logger.warning("event %s is not rebuilt: %s", place, error)
        return False
    return True
