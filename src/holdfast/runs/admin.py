"""Operations on runs from outside: settle, adopt, fork, remove, answer, recover, list."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

from msgspec import Struct

from holdfast.core import codec, event, inbox, intent
from holdfast.core.commit import Cleared, Mark, NewEvent, ProposedCommit, StreamWrite
from holdfast.core.intent import Recovered, Verdict, judge, verdict_name
from holdfast.core.page import NO_LIMIT, Page, check_limit
from holdfast.errors import (
    ConflictError,
    ExistsError,
    LeaseLostError,
    NotFoundError,
    UsageError,
    show_value,
)
from holdfast.names import new_id
from holdfast.record.context import context_of
from holdfast.record.removal import along, check_nothing_under_way, leased, removal
from holdfast.runs import events, values
from holdfast.runs.engine import Engine, Run
from holdfast.runs.execution import INDEX, new_event, status_marks, streams_of
from holdfast.runs.journal import Entry, Journal
from holdfast.runs.steps import begun_of, settled
from holdfast.runs.waits import check_id, message_name

_BLOCKS = frozenset(
    ("branch", "parallel", "iteration", "run", "fold", "each", "repeat", "loop", "block")
)
"""Kinds of operations that fail because something inside them failed."""


def place_to_retry(journal: Journal, id: str) -> str | int:
    """Returns where to fork a failed run in order to retry it: a step, or its last record.

    The step is the newest one with the same error as the run. If there is none, the run failed in
    its body: then all its steps are replayed, and the body runs on from there again.
    """
    ended = journal.ended
    if ended is None or ended.error is None:
        raise UsageError(
            f'run "{id}" has not failed: it is {journal.status}',
            hint="resume a run that has not ended; fork one at any step",
        )
    fault = ended.error
    failed = [
        entry
        for entry in journal.entries.values()
        if entry.error is not None
        and entry.state == "failed"
        and entry.kind not in _BLOCKS
        and (entry.error.kind, entry.error.message) == (fault.kind, fault.message)
    ]
    if not failed:
        return journal.revision - 1
    return max(failed, key=lambda entry: entry.revision).path


_EFFECTS = ("ask", "live", "dry")
_SIGNALS = ("drop", "copy")
_CHILDREN = ("share", "drop")
_PAGE = 1 << 20
REMOVE_RETRIES = 20
_logger = logging.getLogger("holdfast.runs")


class RunSummary(Struct, frozen=True):
    """A run in a list."""

    id: str
    status: events.Status


class HeldRun:
    """A run's journal, under the lease of a worker that does not execute the run."""

    def __init__(self, engine: Engine, id: str, lease: Any) -> None:
        self._engine = engine
        self._id = id
        self._lease = lease
        self.journal = engine.journal_of(id)

    def add(self, added: Any) -> None:
        """Appends an event, under the run's lease, with the marks of the resulting status.

        After the end only verdicts are allowed, on acts that were under way when the run ended. A
        verdict does not change how the run ended.
        """
        if self.journal.ended is not None and not isinstance(added, events.Settled):
            raise UsageError(
                f'run "{self._id}" has ended: nothing is added to it any more',
                hint="fork it from before that step to go on from there",
            )
        self.journal.apply(added)
        marks = status_marks(self._id, self.journal.status)
        self._engine.append(self._id, self._lease, [added], marks)


@contextmanager
def hold(engine: Engine, id: str) -> Generator[HeldRun]:
    """Takes a run's lease for a moment; raises LeaseLostError if somebody executes the run."""
    with engine.only_one(id):
        lease = None if id in engine.active else engine.acquire_lease(id)
        if lease is None:
            raise LeaseLostError(
                f'run "{id}" is running', lease=f"run/{id}", epoch=0, hint="wait until it rests"
            )
        try:
            yield HeldRun(engine, id, lease)
        finally:
            engine.release_lease(lease)


def settle(engine: Engine, id: str, path: str, verdict: Verdict) -> None:
    """Records a person's verdict on an uncertain act."""
    if not isinstance(verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a verdict is Done, NotDone or Unknown, found {show_value(verdict)}")
    with hold(engine, check_id(id)) as run:
        entry = run.journal.entries.get(path)
        if entry is None or not entry.is_uncertain:
            known = ", ".join(e.path for e in run.journal.uncertain()) or "none"
            raise NotFoundError(f'run "{id}" has no uncertain act "{path}": it has {known}')
        store = engine.storing(id)
        run.add(settled(path, verdict, engine.log.actor, store))


def adopt(engine: Engine, id: str) -> None:
    """Accepts the divergence that a run is parked for."""
    with hold(engine, check_id(id)) as run:
        diverged = run.journal.diverged
        if diverged is None:
            raise NotFoundError(f'run "{id}" is not parked for a divergence')
        if diverged.problem == "kind":
            raise UsageError(
                f'"{diverged.path}" is of another kind in the journal: there is nothing to adopt',
                hint="correct the code, or fork the run from before it",
            )
        run.add(events.Adopted(diverged.path, diverged.problem, engine.log.actor))


def fork(
    engine: Engine,
    id: str,
    at: str | int,
    *,
    new: str | None,
    edit: Mapping[str, Any] | None,
    effects: str,
    signals: str,
    children: str,
) -> Run[Any]:
    """Creates a run that begins where another one was before a step (rule 12)."""
    for what, value, allowed in (
        ("effects", effects, _EFFECTS),
        ("signals", signals, _SIGNALS),
        ("children", children, _CHILDREN),
    ):
        if value not in allowed:
            raise UsageError(f"{what} is one of {', '.join(allowed)}, found {show_value(value)}")
    id = check_id(id)
    target = check_id(new_id(engine.log.clock) if new is None else new)
    stream = f"run/{id}"
    revision = _fork_point(engine.journal_of(id), id, at)
    journal = Journal()
    for record in engine.log.records(stream, until=revision):
        journal.apply(events.read(record.type, record.payload))
    new_events = [NewEvent(event.FORKED, codec.encode_plain({"from": stream, "at": revision}))]
    for one in streams_of(target):
        engine.log.give_as(one, stream)
    store = engine.storing(target)
    added: list[Any] = [events.Forked(id, effects, signals, children)]
    for path, value in (edit or {}).items():
        if path not in journal.entries:
            raise NotFoundError(f'"{path}" is not recorded before the fork: nothing to edit')
        added.append(events.StepDone(path, store(values.encode(value))))
    new_events += [new_event(one) for one in added]
    write = StreamWrite(f"run/{target}", tuple(new_events), origin=(stream, revision))
    writes = [write]
    if signals == "copy":
        # In the same commit, so that a run that is resumed at once finds what it waits for.
        writes += _copied_messages(engine, stream, f"run/{target}", journal.taken)
    engine.log.commit(ProposedCommit(tuple(writes), marks=status_marks(target, "pending")))
    return Run(engine, target)


def _fork_point(journal: Journal, id: str, at: str | int) -> int:
    if isinstance(at, int) and not isinstance(at, bool):
        if not 1 <= at <= journal.revision:
            raise NotFoundError(f'run "{id}" has revisions 1 to {journal.revision}, found {at}')
        return at
    entry = journal.entries.get(str(at))
    if entry is None:
        raise NotFoundError(f'run "{id}" has no step {show_value(at)}')
    return entry.revision - 1


def _copied_messages(
    engine: Engine, source: str, target: str, taken: set[int]
) -> list[StreamWrite]:
    """Returns the writes that copy the messages that a run has not taken to another's inbox."""
    box = inbox.Inbox(engine.log, source)
    box.look()
    waiting = sorted(box.waiting(taken), key=lambda message: message.revision)
    copied = [inbox.sent_event(one.kind, one.value, one.name) for one in waiting]
    left = [one for one, message in zip(copied, waiting, strict=True) if message.kind != "stop"]
    return [StreamWrite(inbox.stream_of(target), tuple(left))] if left else []


def remove(engine: Engine, id: str) -> list[str]:
    """Removes a run that has ended, with its children; their ids can be used again (0025).

    One commit ends the journal, the inbox and the own state of each. It is guarded by the revisions
    at which they were checked. The lease of a journal is not needed, because nothing is added to a
    run that has ended. The leases of the own states are held meanwhile, as for every removal.
    """
    id = check_id(id)
    for _ in range(REMOVE_RETRIES):
        removing: dict[str, Journal] = {}
        writes: list[StreamWrite] = []
        marks: list[Mark | Cleared] = []
        ids = list(_with_children(engine, id, removing))
        states = [engine.state_of(one) for one in ids]
        try:
            with leased(context_of(states[0]), *[state.name for state in states]) as fence:
                for one in ids:
                    found, changes = _removal_of(engine, one, removing[one].revision)
                    writes += found
                    marks += changes
                engine.log.commit(ProposedCommit(tuple(writes), fence=fence, marks=tuple(marks)))
        except (ConflictError, LeaseLostError) as error:
            if isinstance(error, LeaseLostError) and error.lease != states[0].name:
                raise
            _logger.debug('the removal of run "%s" is tried again: %s', id, error)
            continue
        return list(removing)
    raise UsageError(
        f'run "{id}" changed {REMOVE_RETRIES} times while it was being removed',
        hint="stop what writes to its state, or to that of its children",
    )


def _with_children(engine: Engine, id: str, known: dict[str, Journal]) -> Iterator[str]:
    """Yields a run and all that it started, at any depth; raises UsageError if one goes on."""
    if (active := engine.active.get(id)) is not None and engine.ended(id) is not None:
        active.over.wait()  # it has ended, and its thread is about to leave
    journal = known[id] = engine.journal_of(id)
    if journal.ended is None:
        raise _cannot_remove(next(iter(known)), f'run "{id}" is {journal.status}')
    assert journal.created is not None, "BUG: a run that was not created"
    parent = journal.created.parent
    if parent is not None and parent not in known and _is_unfinished(engine, parent):
        raise _cannot_remove(id, f'its parent, run "{parent}", has not ended')
    yield id
    children = [entry.child for entry in journal.entries.values() if entry.origin is None]
    for child in children:
        if child is None or child in known or engine.free_after(child) is not None:
            continue  # not a child, or one that was removed before
        if engine.created_of(child).parent == id:  # else the id belongs to another run's child
            yield from _with_children(engine, child, known)


def _is_unfinished(engine: Engine, id: str) -> bool:
    return engine.free_after(id) is None and engine.ended(id) is None


def _cannot_remove(id: str, reason: str) -> UsageError:
    return UsageError(
        f'run "{id}" cannot be removed: {reason}', hint="wait until it has ended, or cancel it"
    )


def _removal_of(
    engine: Engine, id: str, revision: int
) -> tuple[list[StreamWrite], tuple[Mark | Cleared, ...]]:
    """Returns the writes that end the streams of one run, and the changes of marks."""
    log, state = engine.log, engine.state_of(id)
    gone = NewEvent(event.REMOVED, event.removed_payload([]))
    writes = [StreamWrite(f"run/{id}", (gone,), revision, checkpoint=event.LIFE)]
    box = inbox.stream_of(f"run/{id}")
    [head] = log.heads((box,))
    if head is not None and log.life(box, head.revision) != head.revision:
        writes.append(StreamWrite(box, (gone,), head.revision, checkpoint=event.LIFE))
    now = log.newest(state.name)
    if now.is_absent:
        return writes, ()
    record = context_of(state)
    check_nothing_under_way(record, state.name)
    new_event, marks = removal(record, state.name)
    writes.append(StreamWrite(state.name, (new_event,), now.revision, checkpoint=event.LIFE))
    writes += along(record, state.name)
    return writes, marks


def answer(engine: Engine, id: str, name: str, value: Any) -> None:
    """Answers a wait, by its name or its path; the first answer counts."""
    journal = engine.journal_of(check_id(id))
    waits = [e for e in journal.entries.values() if e.kind == "wait" and name in (e.name, e.path)]
    entry = next((e for e in waits if e.state == "open"), None)
    if entry is None:
        if waits:
            raise ExistsError(f'wait "{name}" of run "{id}" was answered already, or is over')
        raise NotFoundError(f'run "{id}" waits for nothing named "{name}"')
    sent_as = message_name("answer", entry.path)
    key = message_name("answer", f"{entry.path}/{entry.refused}")
    try:
        engine.send(id, "steer", value, name=sent_as, key=key)
    except UsageError as error:
        if isinstance(error, codec.ValueDomainError) or "key" not in error.message:
            raise
        raise ExistsError(f'wait "{name}" of run "{id}" was answered already') from error


def recovered_steps(engine: Engine) -> list[Recovered]:
    """Judges the uncertain acts of runs that nobody executes, and records the verdicts."""
    found: list[Recovered] = []
    for mark in engine.log.marks.list(INDEX, limit=_PAGE):
        id = mark.key
        if id in engine.active or engine.log.leases.holder(f"run/{id}") is not None:
            continue
        if not any(entry.verdict is None for entry in engine.journal_of(id).uncertain()):
            continue
        try:
            with hold(engine, id) as run:
                acts = [] if run.journal.ended is not None else run.journal.uncertain()
                open_acts = [entry for entry in acts if entry.verdict is None]
                found += [_judge(engine, id, run, entry) for entry in open_acts]
        except LeaseLostError as error:
            # Another worker took the run first, and judges its acts.
            _logger.debug('the acts of run "%s" are not judged here: %s', id, error)
            continue
    return found


def _judge(engine: Engine, id: str, run: HeldRun, entry: Entry) -> Recovered:
    verdict = judge(entry.verify, begun_of(id, entry, engine.load))
    run.add(settled(entry.path, verdict, "verifier", engine.storing(id)))
    did: Literal["closed", "left open"] = "closed"
    text = ""
    if isinstance(verdict, intent.Unknown):
        did, text = "left open", verdict.reason
    elif isinstance(verdict, intent.NotDone):
        text = "the run does it again when it is resumed"
    return Recovered("step", entry.path, f"run/{id}", verdict_name(verdict), did, text)


def runs(
    engine: Engine, status: str | None, *, after: str | None, limit: int | None
) -> Page[RunSummary]:
    """Returns a page of runs by id: unfinished ones by their marks, finished ones by a scan."""
    limit = check_limit(limit)
    if after is not None:
        check_id(after)
    found: list[RunSummary] = []
    most = NO_LIMIT if limit is None else limit
    for one in _runs(engine, status, after or ""):
        if len(found) == most:
            return Page(found, more=True, cursor=found[-1].id)
        found.append(one)
    return Page(found, cursor=found[-1].id if found else after)


def _runs(engine: Engine, status: str | None, after: str) -> Iterator[RunSummary]:
    marks = engine.log.marks.list(INDEX, limit=_PAGE)
    unfinished: dict[str, events.Status] = {
        mark.key: cast("events.Status", mark.group) for mark in marks
    }
    if status is not None and status not in events.ENDED:
        for id in sorted(unfinished):
            if id > after and unfinished[id] == status:
                yield RunSummary(id, unfinished[id])
        return
    # The streams include those of marked runs: a run's mark is set in the commit that begins its
    # stream.
    for name in engine.log.streams(prefix="run/", after=f"run/{after}"):
        id = name.removeprefix("run/")
        if id not in unfinished:
            ended = None if engine.free_after(id) is not None else engine.ended(id)
            if ended is not None and status in (None, ended.status):
                yield RunSummary(id, ended.status)
        elif status is None:
            yield RunSummary(id, unfinished[id])
