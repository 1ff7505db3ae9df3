"""A note of what a files store had when it was closed, kept where git does not revert it.

A store in a git repository goes back with `git checkout`, `reset` or `stash`, like every file, and
is then an older store without any damage. Nothing in it shows the loss. So when the store is
closed, the end of each stream is noted in the repository's folder,
`.git/holdfast/stores/<id>.json`. An end that is missing later stays noted until it is back, or
somebody accepts its loss.

The note is only a hint: one that cannot be read or written is ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os

import msgspec
from msgspec import Struct

from holdfast.backends.protocol import Record
from holdfast.clock import SystemClock
from holdfast.core import codec
from holdfast.core.log import Log
from holdfast.core.meta import decode_meta
from holdfast.errors import HoldfastError
from holdfast.git.repository import find_git_dir
from holdfast.names import short_id

STREAMS_MAX = 2_000
"""With more streams than this, nothing is noted: it would cost more than the close itself."""
OF_PROCESSES = ("store", "lease")
"""The levels of streams about processes; the loss of these does not matter."""
MERGES = "git/merges"
"""The stream with an event for every merge of another branch: what was added, what did not fit."""
SOURCE = "merge:"
"""The prefix of the source of an event from another branch; its old link follows."""

_logger = logging.getLogger("holdfast.git")


class Seen(Struct, frozen=True, array_like=True):
    """The end of a stream: its newest revision, and the link of that revision in hex."""

    revision: int
    link: str


class Witness(Struct, frozen=True):
    """A note: the newest end of each stream, the ends that are gone, and the accepted losses."""

    heads: dict[str, Seen] = {}
    gone: list[tuple[str, Seen]] = []
    accepted: list[str] = []


def witness_file(log: Log) -> str | None:
    """Returns the path of a store's note; None if the store has no folder or no repository."""
    found = log.folder()
    if found is None:
        return None
    folder, store = found
    try:
        git_dir = find_git_dir(folder)
    except HoldfastError as error:
        _logger.debug("nothing is noted of the store: %s", error)
        return None
    return git_dir and os.path.join(git_dir, "holdfast", "stores", f"{store}.json")


def read_witness(path: str) -> Witness:
    """Returns the note; an empty one if there is none, or it cannot be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Witness)
    except FileNotFoundError:
        return Witness()
    except (OSError, msgspec.DecodeError) as error:
        _logger.debug('the note "%s" cannot be read: %s', path, error)
        return Witness()


def write_witness(path: str, witness: Witness) -> None:
    """Replaces the note; a failure is only logged. It is not synced, since it is only a hint."""
    beside = f"{path}.{short_id(SystemClock())}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(beside, "xb") as file:
            file.write(msgspec.json.encode(witness))
        os.replace(beside, path)
    except OSError as error:
        _logger.debug('the note "%s" cannot be written: %s', path, error)
        with contextlib.suppress(OSError):
            os.unlink(beside)


def heads_of(log: Log) -> dict[str, Seen] | None:
    """Returns the end of each stream; None if there are too many."""
    names: list[str] = []
    for name in log.streams():
        if name.partition("/")[0] in OF_PROCESSES:
            continue
        names.append(name)
        if len(names) > STREAMS_MAX:
            return None
    heads = zip(names, log.heads(names), strict=True)
    return {name: Seen(one.revision, one.link.hex()) for name, one in heads if one is not None}


def is_there(log: Log, stream: str, seen: Seen, head: Seen | None) -> bool:
    """Returns whether a stream still has the event that once was its end."""
    if head is None or head.revision < seen.revision:
        return False
    if head.revision == seen.revision:
        return head.link == seen.link
    found = log.read(stream, after=seen.revision - 1, until=seen.revision)
    return bool(found) and found[0].link.hex() == seen.link


def remember(log: Log) -> None:
    """Notes the ends of the streams of a store that is being closed; failures are only logged."""
    try:
        path = witness_file(log)
        heads = heads_of(log) if path is not None else None
        if path is None or heads is None:
            return
        before = read_witness(path)
        if before.heads == heads:
            return
        known = [*before.heads.items(), *before.gone]
        gone = [
            (stream, seen)
            for stream, seen in dict.fromkeys(known)
            if heads.get(stream) != seen and not is_there(log, stream, seen, heads.get(stream))
        ]
        write_witness(path, Witness(heads, gone, before.accepted))
    except HoldfastError as error:
        _logger.debug("nothing is noted of the store: %s", error)


class NotedLoss(Struct, frozen=True):
    """Revisions of a stream that were there when the store was closed, and are not now."""

    stream: str
    first: int
    last: int
    is_diverged: bool


def noted_losses(log: Log, witness: Witness, known: set[str]) -> list[NotedLoss]:
    """Returns the noted losses, one for each stream; ends whose link is in `known` do not count."""
    gone: dict[str, Seen] = {}
    ends: dict[str, int] = {}
    for stream, seen in [*witness.heads.items(), *witness.gone]:
        [head] = log.heads([stream])
        now = None if head is None else Seen(head.revision, head.link.hex())
        if seen.link in known or is_there(log, stream, seen, now):
            continue
        ends[stream] = now.revision if now else 0
        if stream not in gone or gone[stream].revision < seen.revision:
            gone[stream] = seen
    return [
        NotedLoss(
            stream,
            min(ends[stream] + 1, seen.revision),
            seen.revision,
            ends[stream] >= seen.revision,
        )
        for stream, seen in gone.items()
    ]


def loss_reports(log: Log) -> list[str]:
    """Returns a line for each stream that lost revisions to git."""
    path = witness_file(log)
    if path is None or not os.path.exists(path):
        return []
    witness = read_witness(path)
    found = noted_losses(log, witness, set())
    if found:
        found = noted_losses(log, witness, merged_links(log))
    return [
        f'revisions {one.first} to {one.last} of "{one.stream}" were here and are not: git took '
        "them back; holdfast recover --from-git brings back what a commit has"
        for one in found
    ]


def merged_links(log: Log) -> set[str]:
    """Returns the old links of events of other branches that a merge added or found not to fit."""
    known: set[str] = set()
    head = log.head(MERGES)
    for record in log.records(MERGES, until=head.revision) if head else []:
        data = codec.decode(record.payload)
        known |= {one["link"] for one in data["not_applied"]}
        known |= set(data.get("same", ()))  # links of one event on several branches
        for stream, since in data["streams"].items():
            known |= merged_from(log, stream, since).keys()
    return known


def merged_from(log: Log, stream: str, since: int) -> dict[str, int]:
    """Returns the old links of a stream's events from other branches, with their revisions."""
    found: dict[str, int] = {}
    for one in log.read(stream, after=since):
        if origin := merged_as(one):
            found[origin] = one.revision
    return found


def merged_as(record: Record) -> str:
    """Returns the link that an event had on another branch; "" if it was not merged from one."""
    source = decode_meta(record.meta).source if record.meta else None
    return source.removeprefix(SOURCE) if source and source.startswith(SOURCE) else ""
