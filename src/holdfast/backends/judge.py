"""Whether a commit may be written: clauses 4 to 8, 18, 26, 37, for backends that judge in Python.

A backend that applies each commit before it judges the next passes its own lookups to `judge`. A
backend that writes a whole list at once judges against an `Overlay`: the present heads and keys,
and over them those of the commits of the list that were accepted so far.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.backends.protocol import Append, Commit, Fence, Head, Position, Refusal

HeadOf = Callable[[str], Head | None]
KeyOf = Callable[[str, str], int | None]
"""Returns the revision of a stream that has a key, or None."""


def judge(
    commit: Commit,
    head_of: HeadOf,
    key_of: KeyOf,
    fence_holds: Callable[[Fence], bool],
    now_us: Callable[[], int],
) -> Refusal | None:
    """Returns why the commit is refused, or None if it is accepted."""
    check_shape(commit)
    for append in commit.appends:
        if append.expires_us and append.expires_us <= now_us():
            return Refusal("expired", append.stream, append.expected)
    for stream, ends_us in commit.read_ends:
        if ends_us <= now_us():
            return Refusal("expired", stream, dict(commit.reads)[stream])
    for append in commit.appends:
        for record in append.records:
            if record.key is not None:
                revision = key_of(append.stream, record.key)
                if revision is not None:
                    return Refusal("duplicate", append.stream, append.expected, revision=revision)
    if commit.fence is not None and not fence_holds(commit.fence):
        return Refusal("fenced", commit.fence.name)
    for append in commit.appends:
        head = head_of(append.stream)
        if append.fork or head is None:
            fits = head is None and (append.fork or append.expected == 0)
        else:
            # The revision alone is not enough. A commit may have been prepared on top of one that
            # was refused meanwhile, and find another writer's event at the revision it expects. The
            # link tells the two apart.
            fits = head.revision == append.expected and append.previous in (None, head.link)
        if not fits:
            return Refusal("conflict", append.stream, append.expected, head)
    for stream, expected in commit.reads:
        head = head_of(stream)
        if _revision(head) != expected:
            return Refusal("conflict", stream, expected, head)
    return None


def check_shape(commit: Commit) -> None:
    """Asserts the shape of a commit: a mistake is a bug in the layers above, never a user's."""
    if len(commit.appends) > 1:
        streams = [append.stream for append in commit.appends]
        assert len(set(streams)) == len(streams), f"BUG: a stream twice in one commit: {streams}"
    if commit.marks:
        marks = [(mark.index, mark.key) for mark in commit.marks]
        assert len(set(marks)) == len(marks), f"BUG: a mark twice in one commit: {marks}"
    for append in commit.appends:
        assert append.records, f"BUG: no records to append to {append.stream!r}"
        assert append.expected >= 0, f"BUG: {append.stream!r} cannot be at {append.expected}"
        for revision, record in enumerate(append.records, append.expected + 1):
            assert (record.stream, record.revision) == (append.stream, revision), (
                f"BUG: {record.stream!r}@{record.revision} in place of {append.stream!r}@{revision}"
            )
            assert (record.time, record.actor) == (commit.time, commit.actor), (
                f"BUG: {record.stream!r}@{revision} has another time or actor than its commit"
            )
        if len(append.records) > 1:
            keys = [record.key for record in append.records if record.key is not None]
            assert len(set(keys)) == len(keys), f"BUG: a key twice in {append.stream!r}: {keys}"


def head_after(append: Append, before: Head | None, position: Position) -> Head:
    """Returns the stream's head once the append is there."""
    last = append.records[-1]
    first = append.expected + 1 if before is None else before.first
    return Head(last.revision, last.link, last.time, position, first)


class Overlay:
    """Heads and keys as they will be when the commits accepted so far are written."""

    def __init__(self, head_of: HeadOf, key_of: KeyOf) -> None:
        self._head_of = head_of
        self._key_of = key_of
        self._heads: dict[str, Head] = {}
        self._keys: dict[tuple[str, str], int] = {}

    def head_of(self, stream: str) -> Head | None:
        return self._heads.get(stream) or self._head_of(stream)

    def key_of(self, stream: str, key: str) -> int | None:
        return self._keys.get((stream, key)) or self._key_of(stream, key)

    def accept(self, commit: Commit, position: Position) -> None:
        """Adds a commit that `judge` accepted to those that will be written."""
        for append in commit.appends:
            before = self._heads.get(append.stream) or self._head_of(append.stream)
            self._heads[append.stream] = head_after(append, before, position)
            for record in append.records:
                if record.key is not None:
                    self._keys[append.stream, record.key] = record.revision

    def news(self, commit: Commit) -> dict[str, int]:
        """Returns the newest revisions of the streams that the commit watches, for its receipt."""
        news: dict[str, int] = {}
        for stream in commit.watch:
            head = self._heads.get(stream) or self._head_of(stream)
            news[stream] = 0 if head is None else head.revision
        return news


def _revision(head: Head | None) -> int:
    return 0 if head is None else head.revision
