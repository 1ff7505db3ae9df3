"""The tasks of all scopes of a store, and what becomes of a scope's when it ends or goes back.

They are found by their marks, without reading a stream that has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast import codec
from holdfast.arguments import check_whole
from holdfast.errors import ConflictError, ExpiredError
from holdfast.record import task as forms
from holdfast.record import thing as things
from holdfast.record.book import Book
from holdfast.record.owners import Eyes
from holdfast.record.recorder import Recorder
from holdfast.record.stale import Stale
from holdfast.record.table import INDEX, INDEX_CLAIMED, Table, indexes
from holdfast.record.task import Said, Task, check_wish
from holdfast.record.thing import Thing
from holdfast.wanted import Cleared, Mark, Proposal

_ALL = 1 << 31


def across(book: Book, index: str = INDEX) -> Iterator[tuple[Table, Task]]:
    """Yields the tasks of all scopes that a mark leads to, highest priority first."""
    gone: set[str] = set()
    tables: dict[str, Table] = {}
    for mark in book.log.backend.marks.list(index, limit=_ALL):
        thing = things.of_mark(INDEX, mark)
        if thing.stream not in tables and thing.stream not in gone:
            table = book.tables.of(thing.stream)
            try:
                table.refresh()
            except ExpiredError:
                gone.add(thing.stream)  # with its scope, which ended by itself: the mark stayed
                continue
            tables[thing.stream] = table
        table = tables.get(thing.stream)
        task = None if table is None else table.tasks.get(thing.name)
        # It may have been closed since the marks were listed.
        if table is not None and task is not None and index in indexes(task):
            yield table, task


def unclosed(
    book: Book,
    *,
    status: str | Sequence[str] | None,
    owner: str | None,
    epic: str | None,
    tag: str | None,
    suspect: bool | None,
    limit: int | None,
) -> list[Task]:
    """Returns the tasks of all scopes that are not closed, highest priority first, then oldest."""
    wish = check_wish(status, owner, epic, tag, suspect)
    limit = _ALL if limit is None else check_whole(limit, "limit", least=1)
    eyes = Eyes(book)
    found = [
        seen
        for table, task in across(book)
        if wish.fits(task)
        and suspect in (None, (seen := eyes.look(table.stream, table.tasks, task)).suspect)
    ]
    return sorted(found, key=lambda task: (-task.priority, task.created_at))[:limit]


def left_in_progress(book: Book) -> Iterator[Stale]:
    """Yields the tasks whose owner is silent (BOOT-70)."""
    eyes = Eyes(book)
    for table, task in across(book, INDEX_CLAIMED):
        if not eyes.is_held(task):
            said = f'"{task.owner}" is silent: {task.title}'
            yield Stale("task", task.id, table.stream, "owner silent", said, task.updated_at)


def end(book: Book, scope: Recorder, outcome: str) -> None:
    """Cancels what is not closed, in one commit, because the scope is being closed."""
    table = book.tables.of(scope.name)
    with table.lock:
        while True:
            table.refresh()
            if all(task.is_closed for task in table.tasks.values()):
                return
            try:
                table.commit(scope, forms.ENDED, {"outcome": outcome, "by": book.worker})
            except ConflictError:
                continue
            return


def left_in(book: Book, stream: str) -> bool:
    """Says whether a scope has a task that is not closed."""
    table = book.tables.of(stream)
    with table.lock:
        table.refresh()
        return not all(task.is_closed for task in table.tasks.values())


class Restored(Struct, frozen=True):
    """What a restore of a scope must add to its commit so that its tasks go back too."""

    events: Thing
    number: int
    proposal: Proposal
    marks: tuple[Mark | Cleared, ...]

    @property
    def key(self) -> str:
        return self.events.key(self.number)


def restored(book: Book, stream: str, to: int) -> Restored | None:
    """Returns what brings a scope's tasks back to a revision; None if they are as they were."""
    table = book.tables.of(stream)
    with table.lock:
        table.refresh()
        back = forms.bring_back(table.tasks, table.at(to)) if table.number else None
        if not back:
            return None
        number = table.number + 1
        said = {"to": to, "tasks": back, "by": book.worker}
        marks = table.marks(forms.advance(table.tasks, Said(forms.RESTORED, said, 0, number)))
        proposal = Proposal(forms.RESTORED, codec.encode_plain(said))
        return Restored(table.events, number, proposal, marks)
