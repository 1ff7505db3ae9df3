"""Points to go back to: revisions of scopes, and the files of a work tree as a commit of git.

A point is made in two steps: the files become a commit on a ref of ours, then one event in the log
names the revisions and that commit. A process that is killed in between leaves a ref that no event
names, and no point. A note in the repository records such a ref, and a later point removes it.

A rewind first makes a point of the present, so that it can be undone. Then it brings back the
scopes, then the files, each completely or not at all, and records in the log what it did. A rewind
that was killed has its first point in the log, but no closing event. Repeating it finishes it;
undoing it goes back.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from holdfast.backends.protocol import GONE, START, Position, Record
from holdfast.clock import SystemClock
from holdfast.core import codec
from holdfast.core.arguments import check_flag
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import Event, from_datetime, to_datetime
from holdfast.core.kernel import Kernel
from holdfast.errors import ConflictError, GitError, NotFoundError, UsageError, show_value
from holdfast.git.files import ProjectFile
from holdfast.git.repository import GITLINK, NAMESPACE, Entry, Repository
from holdfast.git.work_tree import Look, WorkTree, is_safe
from holdfast.names import check_name, short_id
from holdfast.record.context import RecordContext
from holdfast.record.difference import Difference
from holdfast.record.message_events import ADDED, FileChange, Message
from holdfast.scope import Scope, Scopes

What = Literal["conversation", "state", "files", "all"]
WHATS: tuple[What, ...] = ("conversation", "state", "files", "all")

STREAM = "rewind/points"
MARKED = "rewind.marked"
DONE = "rewind.done"
REFS = f"{NAMESPACE}points/"
FILES_LEFT_OUT = "files_left_out"
"""The metadata of a message that changed more files than it names: how many more."""
_PAGE = 200
_NOTES = "marking"
"""The folder of the notes about refs that are being made."""
_NOTED_S = 60
"""Younger notes are left alone: a server may still be about to commit the event of their ref."""


class RewindPoint(Struct, frozen=True, kw_only=True):
    """A point to go back to. `scopes` has the revision of each scope that goes back with it.

    `commit` has the files of the work tree, or None if they are not covered. `branch` and `head`
    are what was checked out. A rewind makes such a point before it starts, so that it can be
    undone; then `rewinds` is the id of the point that it went to.
    """

    id: str
    name: str
    time: datetime
    actor: str
    scopes: dict[str, int]
    commit: str | None = None
    tree: str | None = None
    branch: str | None = None
    head: str | None = None
    left_out: dict[str, str] = {}
    rewinds: str | None = None
    what: What = "all"


class FileStep(Struct, frozen=True):
    """A file that a rewind changes: it is written, made or removed."""

    path: str
    act: Literal["write", "make", "remove"]


class Rewound(Struct, frozen=True, kw_only=True):
    """What a rewind did. `before` is the point that undoes it.

    `skipped` has the files that were left unchanged, each with the reason. `stays` lists what a
    rewind cannot take back.
    """

    point: RewindPoint
    before: RewindPoint
    what: What
    scopes: dict[str, int]
    files: list[FileStep]
    skipped: dict[str, str]
    stays: list[str]


class Rewinds:
    """The points of a store, and the rewinds to them. `root` is a folder of the work tree."""

    def __init__(
        self,
        kernel: Kernel,
        root: str | os.PathLike[str] = ".",
        *,
        exclude: Iterable[str] = (),
    ) -> None:
        self._context = kernel.part(RecordContext)
        self._log = kernel.log
        self._scope_of = kernel.part(Scopes).scope
        self._root = root
        self._exclude = tuple(exclude)

    def __repr__(self) -> str:
        return f"<Rewinds of {os.fspath(self._root)}>"

    def work_tree(self) -> WorkTree:
        """Returns the work tree, or raises NotFoundError if there is none."""
        return WorkTree(Repository.find(self._root), exclude=self._exclude)

    # --- points ----------------------------------------------------------------------------------

    def mark(
        self, name: str, scopes: Iterable[Scope | str] = (), *, files: bool | None = None
    ) -> RewindPoint:
        """Makes a point of the present and returns it; it is durable then.

        `scopes` go back with it. `files` says whether the files of the work tree do; None means
        that they do if there is a git repository. Untracked files are covered, ignored ones are
        not. Raises UsageError if there would be neither scopes nor files.
        """
        check_name(name, "the name of a point")
        named = {(one if isinstance(one, Scope) else self._scope_of(one)).name: 0 for one in scopes}
        tree = None
        if files is not False and (files is None or check_flag(files, "files")):
            try:
                tree = self.work_tree()
            except NotFoundError:
                if files:
                    raise
        if tree is None and not named:
            raise UsageError(
                "a point needs scopes, or files in a git repository: found neither",
                hint="name a scope, or git init",
            )
        return self._mark(name, named, tree)

    def _mark(
        self,
        name: str,
        named: Mapping[str, int],
        tree: WorkTree | None,
        *,
        rewinds: str | None = None,
        what: What = "all",
        look: Look | None = None,
    ) -> RewindPoint:
        id = short_id(self._log.clock)
        about: dict[str, Any] = {"id": id, "name": name}
        with self._noted(tree, id):
            # The commit first, then the event that names it: an event never names a missing commit.
            if tree is not None:
                about |= _commit_files(tree, id, name, look)
            return _point(self._write(MARKED, self._about(about, named, rewinds, what)))

    def _about(
        self, about: dict[str, Any], named: Mapping[str, int], rewinds: str | None, what: What
    ) -> dict[str, Any]:
        # The revisions are read after the files. So a change of both that is made meanwhile may be
        # in the scopes and not in the files, never the other way round; the log shows it then.
        heads = zip(named, self._log.heads(list(named)), strict=True)
        about["scopes"] = {stream: head.revision if head else 0 for stream, head in heads}
        if rewinds is not None:
            about |= {"rewinds": rewinds, "what": what}
        return about

    @contextmanager
    def _noted(self, tree: WorkTree | None, name: str) -> Generator[None]:
        """Keeps a note that a ref is being made, until the event that names it is committed.

        The note stays if the process is killed, if an error is raised, or if the outcome of the
        commit is not known. A later call then removes the ref, unless the log names it. The
        process that makes the ref holds a lock on the note.
        """
        if tree is None:
            yield
            return
        repository = tree.repository
        self._remove_unnamed(repository)
        folder = os.path.join(repository.private_dir(), _NOTES)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        beside = os.path.join(folder, f".{name}")
        with open(beside, "xb") as note:
            fcntl.flock(note, fcntl.LOCK_EX)
            note.write(str(self._log.describe()["store"]).encode())
            note.flush()
            # Renamed only when it is locked and complete: nobody finds a note without either.
            os.rename(beside, os.path.join(folder, name))
            yield
            os.unlink(os.path.join(folder, name))

    def _remove_unnamed(self, repository: Repository) -> None:
        """Removes refs that killed processes made for this store and that its log does not name.

        Recent notes are left alone: a server may still be about to commit their events.
        """
        folder = os.path.join(repository.private_dir(), _NOTES)
        store = str(self._log.describe()["store"]).encode()
        now_s = SystemClock().now_us() / 1e6
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError, BlockingIOError), open(path, "rb") as note:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_old = now_s - os.fstat(note.fileno()).st_mtime > _NOTED_S
                if not is_old or (note.read() != store and not name.startswith(".")):
                    continue
                if not name.startswith(".") and name not in self._named():
                    repository.point_ref(f"{REFS}{name}", None)
                os.unlink(path)

    def _named(self) -> set[str]:
        """Returns the refs that the log names, without their common prefix."""
        return {
            event.data["id"] if event.type == MARKED else f"{event.data['before']}-after"
            for event in self._events()
        }

    def _write(self, type: str, data: dict[str, Any]) -> Event:
        """Commits one event to the stream of points, and returns it."""
        new_event = NewEvent(type, codec.encode_plain(data))
        write = StreamWrite(STREAM, (new_event,))
        result = self._log.commit(ProposedCommit((write,)))
        return self._log.event(self._log.record(STREAM, result.revision))

    def list(self) -> list[RewindPoint]:
        """Returns the points, newest first, including those that rewinds made before they began."""
        return [_point(event) for event in reversed(self._events()) if event.type == MARKED]

    def find(self, point: RewindPoint | str) -> RewindPoint:
        """Returns a point by its id, or the newest point of that name.

        Raises NotFoundError if there is none.
        """
        if isinstance(point, RewindPoint):
            return point
        if not isinstance(point, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a point is found by its id or name, found {show_value(point)}")
        points = self.list()
        for one in points:
            if one.id == point:
                return one
        for one in points:
            if one.name == point:
                return one
        raise NotFoundError(
            f"there is no point {show_value(point)} to go back to", hint="holdfast rewind list"
        )

    def interrupted(self) -> RewindPoint | None:
        """Returns the point that the newest rewind made, if that was then killed; else None.

        Points that were marked since do not change that. A later rewind does: it finished the one
        that was killed, took it back, or went somewhere else.
        """
        events = self._events()
        done = {event.data["before"] for event in events if event.type == DONE}
        # One that was refused has a closing event, too: it did nothing.
        begun = (event for event in reversed(events) if event.type == MARKED)
        newest = next((event for event in begun if "rewinds" in event.data), None)
        return None if newest is None or newest.data["id"] in done else _point(newest)

    def _events(self) -> list[Event]:
        head = self._log.head(STREAM)
        records = self._log.records(STREAM, until=head.revision) if head else []
        return [self._log.event(record) for record in records]

    # --- going back ------------------------------------------------------------------------------

    def preview(
        self,
        point: RewindPoint | str,
        *,
        what: What = "all",
        overwrite: bool = False,
        named_only: bool = False,
        also: Iterable[Scope | str] = (),
    ) -> Preview:
        """Returns what a rewind to a point would do; its `apply` does exactly that.

        `what` selects what goes back: the messages of the scopes ("conversation"), their state and
        tasks ("state"), the files, or all. If messages of these scopes, or of those in `also`, name
        a file, and it holds anything that they and the point do not lead to, then somebody else
        changed it: it is left unchanged, unless `overwrite` is true. `named_only` is for messages
        that name all files that they change: if any of them since the point names files, other
        files are left unchanged, too.
        """
        found = self.find(point)
        check_flag(overwrite, "overwrite")
        check_flag(named_only, "named_only")
        names = [(one if isinstance(one, Scope) else self._scope_of(one)).name for one in also]
        told = None if overwrite else _Told(self._messages_since(found, names), named_only)
        return self._preview(found, what, told=told)

    def preview_file(self, path: str | os.PathLike[str], commit: str = "HEAD") -> Preview:
        """Returns what would restore one file from a commit of git; `undo` takes it back.

        Content of the file that no commit has is not lost: the point that is made before the
        rewind keeps it, which `stays` says. Raises NotFoundError if the commit has no such file.
        """
        tree = self.work_tree()
        repository = tree.repository
        inside, found = repository.relative(path), repository.find_commit(commit)
        if not repository.files_of(found.id, under=inside):
            raise NotFoundError(f'commit {found.id[:12]} has no file "{inside}"')
        point = RewindPoint(
            id=f"commit:{found.id}",
            name=f"{inside} of {found.id[:12]}",
            time=found.time,
            actor=found.author,
            scopes={},
            commit=found.id,
            branch=repository.branch,
            head=repository.head,
        )
        preview = Preview(self, point, "files")
        preview.look_at_files(tree, (), only=inside)
        if ProjectFile(repository, path).diff(commit).lost:
            preview.stays.append(
                f"changes of {_shown(inside)} that no commit has: kept with the point before"
            )
        return preview

    def apply(self, preview: Preview) -> Rewound:
        """Does what the preview shows; the same as `preview.apply()`."""
        return preview.apply()

    def rewind(
        self, point: RewindPoint | str, *, what: What = "all", overwrite: bool = False
    ) -> Rewound:
        """Goes back to a point, which `undo` takes back; `preview` explains the arguments."""
        return self.preview(point, what=what, overwrite=overwrite).apply()

    def preview_undo(self) -> Preview:
        """Returns what `undo` would do.

        A rewind that was killed left each file as it was or as the point has it. Any other file was
        changed since, and stays.
        """
        events = self._events()
        done = {event.data["before"]: event.data for event in events if event.type == DONE}
        to_undo: list[RewindPoint] = []
        for before in (_point(event) for event in events if event.type == MARKED):
            if done.get(before.id, {}).get("refused"):
                continue
            ids = [one.id for one in to_undo]
            if before.rewinds in ids:
                del to_undo[ids.index(before.rewinds) :]  # this one was the undo of that one
            elif before.rewinds is not None:
                to_undo.append(before)
        if not to_undo:
            raise NotFoundError("there is no rewind to undo", hint="holdfast rewind list")
        before = to_undo[-1]
        if before.id in done:
            trees = [done[before.id].get("tree")]
        else:
            trees = [before.commit, self._commit_of(before.rewinds)]
        bases = tuple(tree for tree in trees if tree is not None)
        return self._preview(before, before.what, bases=bases)

    def _commit_of(self, rewound: str | None) -> str | None:
        """Returns the commit with the files that a rewind went to: a point's, or one of git's."""
        assert rewound is not None, "BUG: a rewind goes to a point"
        of_git = rewound.removeprefix("commit:")
        return self.find(rewound).commit if of_git == rewound else of_git

    def undo(self) -> Rewound:
        """Undoes the newest rewind that has not been undone yet.

        A file that was changed since that rewind is left unchanged. Raises NotFoundError if there
        is nothing to undo.
        """
        return self.preview_undo().apply()

    def _preview(
        self,
        point: RewindPoint,
        what: object,
        *,
        bases: tuple[str, ...] = (),
        told: _Told | None = None,
    ) -> Preview:
        if what not in WHATS:
            raise UsageError(
                f"what goes back is one of {', '.join(WHATS)}, found {show_value(what)}"
            )
        chosen = what
        has_files = chosen == "files" or (chosen == "all" and point.commit is not None)
        if has_files and point.commit is None:
            raise NotFoundError(
                f'the point "{point.name}" has no files', hint="--what state or conversation"
            )
        if chosen in ("conversation", "state") and not point.scopes:
            raise NotFoundError(f'the point "{point.name}" has no scopes', hint="--what files")
        preview = Preview(self, point, chosen)
        if chosen != "files":
            preview.look_at_scopes(self._scope_of)
        if has_files:
            preview.look_at_files(self.work_tree(), bases, told=told)
        return preview

    def _messages_since(self, point: RewindPoint, also: Iterable[str]) -> Iterator[Message]:
        """Yields the messages since a point, of its scopes and of others, as they were added.

        Events are read: a later rewind of a conversation, a compaction or an edit hides none.
        """
        marked = next(
            (one.record for one in self._events() if one.data.get("id") == point.id), None
        )
        began = from_datetime(point.time)
        for stream in dict.fromkeys((*point.scopes, *also)):
            if stream in point.scopes:
                records = self._log.records(stream, after=point.scopes[stream])
            else:
                records = self._records_after(stream, marked.position if marked else START)
            for record in records:
                if record.type != ADDED or record.payload == GONE:
                    continue
                message = Message(record, self._log.blobs.read)
                # What was said before the point may have been merged into a conversation since.
                if message.fields.get("said_at", began) >= began:
                    yield message

    def _records_after(self, stream: str, position: Position) -> list[Record]:
        """Returns the records of a stream after a position; reads back from the newest."""
        head = self._log.head(stream)
        last, found = 0 if head is None else head.revision, list[Record]()
        while last:
            page = self._log.records(stream, after=max(last - _PAGE, 0), until=last)
            later = [record for record in page if self._log.routes.is_after(record, position)]
            found = [*later, *found]
            last = page[0].revision - 1 if page and len(later) == len(page) else 0
        return found


class Preview:
    """What a rewind would change, and what it would leave unchanged; `apply` does it."""

    def __init__(self, rewinds: Rewinds, point: RewindPoint, what: What) -> None:
        self._rewinds = rewinds
        self.point = point
        self.what: What = what
        self.scopes: dict[str, Difference] = {}
        """What the rewind changes in each scope: state, messages and tasks."""
        self.files: list[FileStep] = []
        self.skipped: dict[str, str] = {}
        self.stays: list[str] = []
        self._tree: WorkTree | None = None
        self._now: dict[str, Entry] = {}
        self._then: dict[str, Entry] = {}

    # --- what it would do ------------------------------------------------------------------------

    def look_at_scopes(self, scope_of: Callable[[str], Scope]) -> None:
        """Finds what changes in the scopes, and which decisions and facts since then stay."""
        for name, revision in self.point.scopes.items():
            scope = scope_of(name)
            now = scope.revision
            self.scopes[name] = scope.diff(now, revision)
            since = scope.diff(revision, now) if revision < now else None
            for decision in since.decisions if since else ():
                self.stays.append(f"decision {decision.id}: {decision.decision}")
            for fact in since.facts if since else ():
                self.stays.append(f"fact {fact.name}@{name}")

    def look_at_files(
        self,
        tree: WorkTree,
        bases: Sequence[str],
        *,
        told: _Told | None = None,
        only: str | None = None,
    ) -> None:
        """Finds which files change, or with `only` whether that one does.

        A file is skipped if it differs from what each of the trees `bases` has. Without any every
        file is accepted as it is now. Views go back only to undo a whole rewind, which has one
        tree: a view shows the log and is written from it. An older text of one would be taken for
        somebody's edit.
        """
        repository = tree.repository
        assert self.point.commit is not None, "BUG: the point has files"
        self._tree = tree
        look = tree.look()
        self._now = look.files
        try:
            self._then = repository.files_of(self.point.commit)
            expected = [repository.files_of(base) for base in bases] or [self._now]
        except GitError as error:
            raise NotFoundError(
                f'the files of the point "{self.point.name}" are not in the repository '
                f'"{repository.root}" any more: {error.message}',
            ) from error
        theirs = {} if told is None else self._changed_by_others(told)
        has_views = len(bases) != 1 and only is None
        for path in sorted({*self._then, *self._now} if only is None else {only}):
            now, then = self._now.get(path), self._then.get(path)
            if now == then:
                continue
            if has_views and tree.is_view(path):
                self.skipped[path] = "a view: it is written from the log"
            elif reason := self._reason_to_skip(path, look, expected, theirs):
                self.skipped[path] = reason
            else:
                act = "make" if now is None else "remove" if then is None else "write"
                self.files.append(FileStep(path, act))
        if only is None:
            self._name_what_stays(repository, look)

    def _reason_to_skip(
        self,
        path: str,
        look: Look,
        expected: Sequence[Mapping[str, Entry]],
        theirs: Mapping[str, str],
    ) -> str | None:
        now, then = self._now.get(path), self._then.get(path)
        if path in look.left_out or path in self.point.left_out:
            return look.left_out.get(path) or self.point.left_out[path]
        if not is_safe(path):
            return "its name leads out of the work tree, or into the repository"
        if GITLINK in (now and now.mode, then and then.mode):
            return "a submodule"
        if all(files.get(path) != now for files in expected):
            return "changed since"
        assert self._tree is not None, "BUG: files are looked at with a tree"
        if now is None and self._tree.entry(path) is not None:
            return "ignored by git now: what it holds could not be brought back"
        return theirs.get(path)

    def _changed_by_others(self, told: _Told) -> dict[str, str]:
        """Returns the files that hold what the messages since the point do not lead to.

        With `named_only`, also those that no message names, if any names files.
        """
        assert self._tree is not None, "BUG: files are looked at with a tree"
        steps, is_whole = told.changes()
        found: dict[str, str] = {}
        if is_whole and steps:
            others = {*self._then, *self._now} - steps.keys()
            found = dict.fromkeys(others, "no message since says that it changed it")
        entries = {path: self._then[path] for path in steps if path in self._then}
        plain = [one.id for one in entries.values() if one.mode != GITLINK]
        held = self._tree.repository.read_objects(plain)
        for path, changes in steps.items():
            entry = entries.get(path)
            data = None if entry is None else held.get(entry.id)
            then = None if data is None else hashlib.sha256(data).hexdigest()
            now = _sha256(self._tree, path) if path in self._now else None
            if reason := _reason_of_others(then, now, changes):
                found[path] = reason
        return found

    def _name_what_stays(self, repository: Repository, look: Look) -> None:
        head, branch = repository.head, repository.branch
        if head != self.point.head:
            self.stays.append(
                f"commits: {branch or 'HEAD'} is at {_short(head)}, it was at "
                f"{_short(self.point.head)}"
            )
        elif branch != self.point.branch:
            self.stays.append(f"the branch: it is {branch}, was {self.point.branch}")
        for path, reason in sorted({**self.point.left_out, **look.left_out}.items()):
            self.stays.append(f"file {path}: {reason}")

    # --- doing it --------------------------------------------------------------------------------

    def apply(self) -> Rewound:
        """Makes a point of the present, then does what this preview shows.

        Raises ConflictError if a scope changed since the preview; then nothing was done. A file
        that changed since the preview is skipped.
        """
        rewinds = self._rewinds
        for name, difference in self.scopes.items():
            newest = rewinds._scope_of(name).revision
            if newest != difference.since:
                raise ConflictError(
                    f'scope "{name}" changed since the preview: it was at revision '
                    f"{difference.since} and is at {newest}; nothing was done",
                    stream=name,
                    expected=difference.since,
                    actual=newest,
                    hint="look at a new preview",
                )
        look = self._tree.look(keep=True) if self._tree is not None else None
        if self._tree is not None and look is not None:
            for path, reason in self._tree.remove_leftovers(look).items():
                self.skipped[path] = reason
        named = self.point.scopes if self.scopes else {}
        before = rewinds._mark(
            f"before rewind to {self.point.name}"[:200],
            named,
            self._tree,
            rewinds=self.point.id,
            what=self.what,
            look=look,
        )
        revisions: dict[str, int] = {}
        try:
            for name in self.scopes:
                revisions[name] = self._bring_back(name)
        except ConflictError:
            if not revisions:
                # Nothing was done: nobody is to finish this rewind, or to undo it.
                about = {"point": self.point.id, "before": before.id, "refused": True}
                rewinds._write(DONE, about)
            raise
        written = self._put_files(look) if look is not None else []
        self._say_done(before, written, revisions)
        return Rewound(
            point=self.point,
            before=before,
            what=self.what,
            scopes=revisions,
            files=written,
            skipped=self.skipped,
            stays=self.stays,
        )

    def _bring_back(self, name: str) -> int:
        """Brings one scope back and returns its new revision; it refuses a newer change."""
        scope, to = self._rewinds._scope_of(name), self.point.scopes[name]
        expected = self.scopes[name].since
        if to == expected:
            return expected
        if self.what == "conversation":
            scope.messages.rewind(to)
            return scope.revision
        return int(scope.restore(to, expected=expected, messages=self.what == "all"))

    def _put_files(self, look: Look) -> list[FileStep]:
        """Puts back the files that have not changed since the preview, and returns those."""
        tree = self._tree
        assert tree is not None, "BUG: files are put back into a tree"
        wanted = [
            step for step in self.files if look.files.get(step.path) == self._now.get(step.path)
        ]
        for step in self.files:
            if step not in wanted:
                self.skipped[step.path] = "changed since"
        done: list[FileStep] = []
        # Removals come first: a file may be in the place of a folder that is needed.
        wanted.sort(key=lambda step: step.act != "remove")
        for step in wanted:
            then = self._then.get(step.path)
            data = tree.repository.read_objects([then.id])[then.id] if then is not None else b""
            reason = tree.put(step.path, then, self._now.get(step.path), data)
            if reason is None:
                done.append(step)
            else:
                self.skipped[step.path] = reason
            if step.act == "remove":
                tree.remove_empty_folders([step.path])
        return done

    def _say_done(
        self, before: RewindPoint, written: list[FileStep], revisions: dict[str, int]
    ) -> None:
        about: dict[str, Any] = {
            "point": self.point.id,
            "before": before.id,
            "what": self.what,
            "scopes": revisions,
            "files": len(written),
            "skipped": {_shown(path): reason for path, reason in self.skipped.items()},
        }
        name = f"{before.id}-after"
        with self._rewinds._noted(self._tree, name):
            if self._tree is not None:
                # The files as the rewind left them: an undo skips those that differ from this.
                about["tree"] = self._tree.repository.write_tree(self._tree.look(keep=True).files)
                repository = self._tree.repository
                commit = repository.write_commit(
                    about["tree"], f"After the rewind to {self.point.name}\n", parents=[]
                )
                repository.point_ref(f"{REFS}{name}", commit)
            self._rewinds._write(DONE, about)


class _Told:
    """What the messages since a point tell of files. `named_only`: they name all that they change.

    The messages are read when that is asked for: only a rewind of files does.
    """

    def __init__(self, messages: Iterator[Message], named_only: bool) -> None:
        self._messages = messages
        self._named_only = named_only

    def changes(self) -> tuple[dict[str, list[tuple[str, FileChange]]], bool]:
        """Returns the changes of each file by their messages, and whether those are all files."""
        found: dict[str, list[tuple[str, FileChange]]] = {}
        is_whole = self._named_only
        for message in sorted(self._messages, key=lambda one: one.time):
            if FILES_LEFT_OUT in (message.metadata or {}):
                is_whole = False  # it changed files that it does not name
            for change in message.files:
                found.setdefault(change.path, []).append((message.id, change))
        return found, is_whole


def _reason_of_others(
    then: str | None, now: str | None, changes: Sequence[tuple[str, FileChange]]
) -> str | None:
    """Returns why a file is somebody else's, from its digests at the point, now, and in messages.

    What the work found must be what the point has or what the work left, in any order: a rewind may
    have come in between, and messages of several conversations have no common order.
    """
    known, left = {then}, list(changes)
    while more := [one for one in left if one[1].before in known]:
        left = [one for one in left if one[1].before not in known]
        known.update(change.after for _, change in more)
    if now in known:
        return None
    mixed = next((id for id, change in left if change.after == now), None)
    if mixed is not None:
        return f"changed by somebody else before message {mixed} did"
    return f"changed since message {changes[-1][0]} did"


def _commit_files(tree: WorkTree, id: str, name: str, look: Look | None) -> dict[str, Any]:
    """Writes the files of a work tree as a commit on a ref of ours; returns its event data."""
    repository = tree.repository
    look = look or tree.look(keep=True)
    written = repository.write_tree(look.files)
    head, branch = repository.head, repository.branch
    commit = repository.write_commit(
        written,
        f"Point: {name}\n\nHoldfast-Point: {id}\n",
        # The commit that was checked out is the parent, so git keeps it as long as the point.
        parents=[head] if head else [],
    )
    repository.point_ref(f"{REFS}{id}", commit)
    left_out = {_shown(path): reason for path, reason in look.left_out.items()}
    found = {"commit": commit, "tree": written, "branch": branch, "head": head}
    return {**found, **({"left_out": left_out} if left_out else {})}


def _point(event: Event) -> RewindPoint:
    data = event.data
    return msgspec.convert(
        {**data, "time": to_datetime(event.record.time), "actor": event.actor}, RewindPoint
    )


def _shown(path: str) -> str:
    """Returns a path as text for the log: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _short(id: str | None) -> str:
    return "no commit" if id is None else id[:12]


def _sha256(tree: WorkTree, path: str) -> str | None:
    try:
        with open(os.path.join(tree.repository.root, path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
