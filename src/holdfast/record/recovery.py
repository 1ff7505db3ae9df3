"""After a crash: the decisions whose worker is dead, judged one by one through their verifiers.

An act is done again only if its verifier said that it was not done, and only under an intent of
its own: the recovering worker first makes the decision its own, with an event that two workers
cannot both write (`item.py`). So two that recover at once never both act. (Two threads of one
worker would write the same event; so one of them leaves it to the other.) One that dies between
that event and the outcome leaves an open decision of a dead worker, which is where it began: the
next one asks the verifier again, and finds what was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.backends.protocol import Cleared, Mark
from holdfast.core import codec
from holdfast.core.arguments import TEXT_CHARACTERS_MAX
from holdfast.core.commit import ProposedCommit
from holdfast.core.expiry import EXPIRING
from holdfast.core.intent import Done, Recovered, Recovery, Unknown, Verdict, acts, judge
from holdfast.core.intent import verdict_name as name_verdict
from holdfast.core.log import Log
from holdfast.errors import (
    ClosedError,
    ConflictError,
    ExistsError,
    ExpiredError,
    HoldfastError,
    UnavailableError,
    show_error,
    show_value,
)
from holdfast.record import decisions, facts, sessions, task_events
from holdfast.record.context import RecordContext, Stale
from holdfast.record.decisions import Decision, Decisions, stale_decisions
from holdfast.record.facts import stale_facts

if TYPE_CHECKING:
    from holdfast.scope import Scope

# --- sweep ----------------------------------------------------------------------------------------
#
# Marks that lead nowhere any more, taken away by `recover`.
#
# A mark is cleared in the commit that ends what it stands for. Two ends come without a commit: a
# scope that expires, and a worker that dies in a turn, which then reads as interrupted for good.
# Readers pass such marks over; swept away they do not pile up.


_ALL = 1 << 31
_INDEXES = (
    decisions.INDEX_OPEN,
    decisions.INDEX_STANDING,
    decisions.INDEX_SUPERSEDING,
    facts.INDEX,
    facts.INDEX_KEPT,
    task_events.INDEX_TASK,
    task_events.INDEX_CLAIM,
    sessions.INDEX_TURN,
)


def sweep(context: RecordContext) -> int:
    """Clears the marks of the record that lead nowhere; returns how many."""
    found = {(mark.index, mark.key) for mark in (*_expired(context.log), *_interrupted(context))}
    for index, key in found:
        # One commit each: in a store over several backends they may be kept apart.
        context.log.commit(ProposedCommit((), marks=(Cleared(index, key),)))
    return len(found)


def _expired(log: Log) -> Iterator[Mark]:
    if not log.marks.list(EXPIRING, limit=1):
        return  # nothing here expires
    ended: dict[str, bool] = {}
    for index in _INDEXES:
        for mark in log.marks.list(index, limit=_ALL):
            if mark.group not in ended:
                ended[mark.group] = _has_ended(log, mark.group)
            if ended[mark.group]:
                yield mark


def _has_ended(log: Log, stream: str) -> bool:
    try:
        log.head(stream)
    except ExpiredError:
        return True
    return False


def _interrupted(context: RecordContext) -> Iterator[Mark]:
    for mark in context.log.marks.list(sessions.INDEX_TURN, limit=_ALL):
        if not context.lease_keeper.is_alive(sessions.worker_of(mark)):
            yield mark


def recover(decisions: Decisions, *, scope: Scope | str | None = None) -> Recovery:
    """Judges every open decision whose worker is dead, and reports each."""
    for newer in decisions.pending_supersedes():
        decisions.supersede(newer)
    found = [
        report
        for entry in decisions.list(incomplete=True, scope=scope)
        if (report := _recover(decisions, entry)) is not None
    ]
    if scope is None:
        sweep(decisions.context)
    return Recovery(found)


def _recover(decisions: Decisions, entry: Decision) -> Recovered | None:
    """Returns what became of one; None if it is in living hands, or closed, by now."""
    with decisions.context.recovering(entry.id) as is_first, suppress(ExpiredError):
        # It was listed a while ago: verifiers of others were asked since.
        return _judge(decisions, decisions.get(entry.id)) if is_first else None
    return None  # it has ended with its scope


def _judge(decisions: Decisions, entry: Decision) -> Recovered | None:
    while entry.is_open and _is_left(decisions, entry):
        verdict = judge(entry.verify, entry)
        try:
            return _settle(decisions, entry, verdict)
        except ConflictError:
            # Another worker was faster with this very decision: what it is now counts.
            entry = decisions.get(entry.id)
        except ExistsError:
            return None  # that other worker has closed it
        except ClosedError as closed:
            return _report(entry, verdict, "left open", closed.message)
    return None


def _is_left(decisions: Decisions, entry: Decision) -> bool:
    """Says whether nobody is at work on a decision: its owner is dead, or gave it up here."""
    if not entry.owner_alive:
        return True
    return (
        entry.owner == decisions.context.worker
        and entry.id in decisions.context.unfinished_recoveries
    )


def _settle(decisions: Decisions, entry: Decision, verdict: Verdict) -> Recovered:
    if isinstance(verdict, Done):
        text = _text(verdict.output)
        decisions.close_entry(entry, text, how="verified", output=_storable(verdict.output))
        return _report(entry, verdict, "closed", text)
    if isinstance(verdict, Unknown):
        return _report(entry, verdict, "left open", verdict.reason)
    act = None if entry.act is None else acts.find(entry.act)
    if act is None:
        reason = (
            "it has no act" if entry.act is None else f'act "{entry.act}" is not registered here'
        )
        return _report(entry, verdict, "left open", reason)
    unfinished_recoveries = decisions.context.unfinished_recoveries
    try:
        mine = decisions.take_over(entry, "recover")
    except UnavailableError:
        unfinished_recoveries.add(
            entry.id
        )  # it may be this worker's by now, which lives and does nothing
        raise
    # Whatever ends this without an outcome leaves the decision to the next recovery here.
    unfinished_recoveries.add(mine.id)
    try:
        output = act(mine)
    except Exception as error:
        decisions.fail(mine, error)
        return _report(entry, verdict, "left open", show_error(error)[:200])
    text = report = _text(output)
    try:
        decisions.close_entry(mine, text, how="done again", output=_storable(output))
    except (ConflictError, ExistsError) as overtaken:
        # This worker was silent for so long that it was taken for dead. It did the act all the
        # same, and whoever reads the report must know.
        report = f"{text}; {overtaken.message}"
    unfinished_recoveries.discard(mine.id)
    return _report(entry, verdict, "done again", report)


def _report(entry: Decision, verdict: Verdict, did: Any, text: str) -> Recovered:
    return Recovered("decision", entry.id, entry.scope, name_verdict(verdict), did, text)


def _text(output: Any) -> str:
    """Returns what came of an act as the text of an outcome."""
    if output is None:
        return "done"
    text = output if isinstance(output, str) and output.strip() else show_value(output)
    return text[:TEXT_CHARACTERS_MAX]


def _storable(output: Any) -> Any:
    """Returns an output that can be stored, else None: that it was done is worth more."""
    try:
        codec.encode(output)
    except HoldfastError:
        return None
    return output


def stale(context: RecordContext, *, verify: bool) -> list[Stale]:
    """Returns all of it: facts first, then what each source of the book has."""
    found = [*stale_facts(context, verify=verify), *stale_decisions(Decisions(context))]
    for source in context.stale_sources:
        found += source()
    return found
