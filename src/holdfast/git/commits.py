"""Links between commits of git and events of a store, in both directions.

A commit names events in trailers of its message, `Holdfast-Event: team/red@7`. An event names a
commit by a reference, `commit:<id>`. `record_commit` writes the second kind: an event of the type
`git_commit` in a scope, once for each commit. So each side leads to the other, and a loss on one
side shows on the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.own_event import OwnEvent
from holdfast.git.repository import Commit, Repository
from holdfast.scope import Scope

COMMIT_EVENT = "git_commit"
TRAILER = "Holdfast-Event"
_PLACE = re.compile(r"(?P<scope>\S+)@(?P<revision>[1-9][0-9]{0,17})\Z")


class EventPlace(Struct, frozen=True):
    """An event that a commit names: a scope and a revision."""

    scope: str
    revision: int

    def __str__(self) -> str:
        return f"{self.scope}@{self.revision}"


def events_named(commit: Commit) -> list[EventPlace]:
    """Returns the events that a commit names in its message, in order and without duplicates."""
    found = [_PLACE.match(value) for name, value in commit.trailers if name == TRAILER]
    places = [EventPlace(one["scope"], int(one["revision"])) for one in found if one is not None]
    return list(dict.fromkeys(places))


def commit_link(commit: str) -> str:
    """Returns the reference by which events name a commit."""
    return f"commit:{commit}"


def record_commit(
    scope: Scope, repository: Repository, commit: str = "HEAD", *, refs: Iterable[object] = ()
) -> OwnEvent:
    """Records a commit as an event of a scope; a commit is recorded only once.

    The event has the commit's id, branch, author and summary. It refers to the commit, to the
    events that its message names, and to `refs`, such as a decision or a task.
    """
    found = repository.find_commit(commit)
    named = [f"event:{place}" for place in events_named(found)]
    data = {
        "commit": found.id,
        "ref": repository.branch,
        "author": found.author,
        "time": found.time,
        "summary": found.summary,
    }
    return scope.record(
        COMMIT_EVENT,
        data,
        refs=[commit_link(found.id), *named, *refs],
        unchecked=True,
        key=f"git:{found.id}",
    )
