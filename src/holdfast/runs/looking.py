"""What the store's journals say of its runs, whoever owns them: reads, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from msgspec import Raw

from holdfast import codec, inbox
from holdfast.errors import NotFoundError
from holdfast.log import Log
from holdfast.record.scope import RecordedScope
from holdfast.runs import events, values
from holdfast.runs.execution import stored
from holdfast.runs.journal import Journal
from holdfast.scope import Scope
from holdfast.workers import Heart


class Host(Protocol):
    """The store, as far as the engine needs it."""

    log: Log
    heart: Heart
    worker: str

    def workflow(self, id: str) -> RecordedScope: ...


class Looking:
    """A way to every run of a store."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def log(self) -> Log:
        """The store's log."""
        return self.host.log

    def journal_of(self, id: str) -> Journal:
        """Reads a run's journal, or raises NotFoundError."""
        journal = Journal()
        for record in self.log.records(f"run/{id}"):
            journal.apply(events.read(record.type, record.payload))
        if journal.created is None:
            raise no_run(id)
        return journal

    def created_of(self, id: str) -> events.Created:
        """Returns what a run was asked for with, from its first record alone."""
        for record in self.log.records(f"run/{id}", until=1):
            return codec.decode_as(record.payload, events.Created)
        raise no_run(id)

    def ended(self, id: str) -> events.Ended | None:
        """Returns the end of a run, from its last record alone; None if it has none yet."""
        head = self.log.head(f"run/{id}")
        if head is None:
            raise no_run(id)
        [record] = self.log.records(f"run/{id}", after=head.revision - 1, until=head.revision)
        event = events.read(record.type, record.payload)
        return event if isinstance(event, events.Ended) else None

    def load(self, raw: Any) -> Any:
        """Returns a recorded value."""
        return values.decode(raw, self.log.blobs.read)

    def storing(self, id: str) -> Callable[[bytes], Raw]:
        """Returns what turns encoded values into those of a run's events: large ones are blobs."""
        return partial(stored, self.log, f"run/{id}")

    def state_of(self, id: str) -> Scope:
        """Returns the scope of a run's own state."""
        return self.host.workflow(id)

    def is_due(self, id: str, waits: events.Suspended) -> bool:
        """Says whether a suspended run has something to do: its time, or news for it.

        Whoever waits for it asks: the process that had it suspended, and would have woken it, may
        be dead.
        """
        if (waits.until or 1 << 62) <= self.log.clock.now_us():
            return True
        head = self.log.head(inbox.stream_of(f"run/{id}"))
        return (head is not None and head.revision > waits.seen) or self.any_ended(waits.children)

    def any_ended(self, ids: tuple[str, ...]) -> bool:
        """Says whether one of these runs has ended."""
        return any(self.ended(id) is not None for id in ids)


def no_run(id: str) -> NotFoundError:
    """Returns the error for a run that is not there."""
    return NotFoundError(f'there is no run "{id}"', hint="store.runs() lists those there are")
