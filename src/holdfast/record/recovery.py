"""Recovery after a crash: judges each open decision of a dead worker by its verifier.

An act is done again only if its verifier says that it was not done. Before it acts, the recovering
worker makes the decision its own, by an event that two workers cannot both write (`keyed_item.py`).
So two workers that recover at the same time never both act. (Two threads of one worker would write
the same event; so the second leaves the decision to the first.) A worker that dies between that
event and the outcome leaves an open decision of a dead worker, as before: the next recovery asks
the verifier again, and learns whether the act was done.

`stale` lists what can no longer be trusted, and `sweep` clears marks of things that have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.backends.protocol import Cleared, Mark
from holdfast.core import codec, mark_ends
from holdfast.core.arguments import TEXT_CHARACTERS_MAX
from holdfast.core.commit import ProposedCommit
from holdfast.core.expiry import EXPIRING
from holdfast.core.intent import Done, Recovered, Recovery, Unknown, Verdict, acts, judge
from holdfast.core.intent import verdict_name as name_verdict
from holdfast.core.layers import Layer, register_layer, stale_sources, swept_indexes
from holdfast.core.log import Log
from holdfast.core.page import NO_LIMIT
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
from holdfast.record.decisions import Decision, Decisions
from holdfast.record.tasks import stale_tasks, tasks_in_progress

if TYPE_CHECKING:
    from holdfast.scope import Scope

# --- sweep ----------------------------------------------------------------------------------------
#
# `recover` also clears left-over marks.
#
# A mark is cleared in the commit that ends the thing it stands for. Two kinds of ends have no
# commit: a scope expires, or a worker dies in a turn, which then reads as interrupted for ever.
# Readers skip such marks; sweeping keeps them from accumulating.


_logger = logging.getLogger("holdfast.record")

_DECISION_INDEXES = (
    decisions.INDEX_OPEN,
    decisions.INDEX_STANDING,
    decisions.INDEX_SUPERSEDING,
)


def sweep(context: RecordContext) -> int:
    """Clears the marks of things that ended without a commit; returns how many it cleared."""
    found = {(mark.index, mark.key) for mark in (*_expired(context.log), *_interrupted(context))}
    for index, key in found:
        # One commit for each: in a mixed store the marks may be in different backends.
        context.log.commit(ProposedCommit((), marks=(Cleared(index, key),)))
    return len(found) + mark_ends.sweep(context.log)


def _expired(log: Log) -> Iterator[Mark]:
    if not log.marks.list(EXPIRING, limit=1):
        return  # nothing in this store expires
    ended: dict[str, bool] = {}
    for index in swept_indexes():
        for mark in log.marks.list(index, limit=NO_LIMIT):
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
    for mark in context.log.marks.list(sessions.INDEX_TURN, limit=NO_LIMIT):
        if not context.lease_keeper.is_alive(sessions.worker_of(mark)):
            yield mark


# --- recovery -------------------------------------------------------------------------------------


def recover(decisions: Decisions, *, scope: Scope | str | None = None) -> Recovery:
    """Judges every open decision whose worker is dead, and returns a report on each."""
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
    """Recovers one decision and reports on it; None if its owner is alive or it is closed."""
    with decisions.context.recovering(entry.id) as is_first:
        if not is_first:
            _logger.debug('decision "%s" is recovered by another thread', entry.id)
            return None
        try:
            # Read it again: it was listed a while ago, before other decisions were judged.
            return _judge(decisions, decisions.get(entry.id))
        except ExpiredError:
            _logger.debug('decision "%s" has ended with its scope', entry.id)
            return None


def _judge(decisions: Decisions, entry: Decision) -> Recovered | None:
    while entry.is_open and _is_left(decisions, entry):
        verdict = judge(entry.verify, entry)
        try:
            return _settle(decisions, entry, verdict)
        except ConflictError:
            # Another worker changed this decision first, so judge its new status.
            _logger.debug('decision "%s" changed: judging it again', entry.id)
            entry = decisions.get(entry.id)
        except ExistsError:
            _logger.debug('decision "%s" was closed by another worker', entry.id)
            return None
        except ClosedError as closed:
            _logger.warning('decision "%s" stays open: %s', entry.id, closed.message)
            return _report(entry, verdict, "left open", closed.message)
    return None


def _is_left(decisions: Decisions, entry: Decision) -> bool:
    """Returns whether nobody works on a decision: its owner is dead, or failed to recover it here.

    Whether a person still works on a decision cannot be known. So the verifier of a personal
    decision is asked, if it has one.
    """
    if entry.is_personal:
        return entry.verify is not None
    if not entry.owner_alive:
        return True
    context = decisions.context
    return entry.owner == context.worker and entry.id in context.unfinished_recoveries


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
    unfinished = decisions.context.unfinished_recoveries
    try:
        mine = decisions.take_over(entry, "recover")
    except UnavailableError:
        # The outcome is unknown: this worker may own the decision now. It is alive and does nothing
        # about it, so no other worker would recover the decision; the next recovery here does.
        unfinished.add(entry.id)
        raise
    # If this ends without an outcome, the next recovery here tries again.
    unfinished.add(mine.id)
    try:
        output = act(mine)
    except Exception as error:
        _logger.warning('the act of decision "%s" raised %s', entry.id, type(error).__name__)
        decisions.fail(mine, error)
        return _report(entry, verdict, "left open", show_error(error)[:200])
    text = report = _text(output)
    try:
        decisions.close_entry(mine, text, how="done again", output=_storable(output))
    except (ConflictError, ExistsError) as overtaken:
        # This worker was silent for so long that others took it for dead. It has done the act
        # nevertheless, and the report must say so.
        _logger.warning('decision "%s" was taken over during its act', entry.id)
        report = f"{text}; {overtaken.message}"
    unfinished.discard(mine.id)
    return _report(entry, verdict, "done again", report)


def _report(entry: Decision, verdict: Verdict, did: Any, text: str) -> Recovered:
    return Recovered("decision", entry.id, entry.scope, name_verdict(verdict), did, text)


def _text(output: Any) -> str:
    """Returns the output of an act as the text of an outcome."""
    if output is None:
        return "done"
    text = output if isinstance(output, str) and output.strip() else show_value(output)
    return text[:TEXT_CHARACTERS_MAX]


def _storable(output: Any) -> Any:
    """Returns the output if it can be stored, else None: recording the outcome matters more."""
    try:
        codec.encode(output)
    except HoldfastError as error:
        _logger.warning("the output of an act is not stored: %s", error.message)
        return None
    return output


# --- what is stale --------------------------------------------------------------------------------


def stale(context: RecordContext, *, verify: bool) -> list[Stale]:
    """Returns what can no longer be trusted, by layer; with `verify`, asks the facts' verifiers."""
    return [one for list_stale in stale_sources() for one in list_stale(context, verify)]


# The record's layers, in the order in which `stale` lists their items.
register_layer(
    Layer(
        name="facts",
        indexes=(facts.INDEX, facts.INDEX_KEPT),
        swept=(facts.INDEX, facts.INDEX_KEPT),
        named=(facts.INDEX, facts.INDEX_KEPT),
        stale=lambda context, verify: facts.stale_facts(context, verify=verify),
    )
)
register_layer(
    Layer(
        name="decisions",
        prefixes=("policy",),
        indexes=_DECISION_INDEXES,
        swept=_DECISION_INDEXES,
        named=_DECISION_INDEXES,
        holds=decisions.open_here,
        stale=lambda context, _: decisions.stale_decisions(Decisions(context)),
    )
)
register_layer(
    Layer(
        name="tasks",
        indexes=(task_events.INDEX_TASK, task_events.INDEX_CLAIM),
        swept=(task_events.INDEX_TASK, task_events.INDEX_CLAIM),
        named=(task_events.INDEX_TASK, task_events.INDEX_CLAIM),
        holds=tasks_in_progress,
        stale=lambda context, _: stale_tasks(context),
    )
)
register_layer(
    Layer(
        name="sessions",
        indexes=(sessions.INDEX_SESSION, sessions.INDEX_TURN),
        swept=(sessions.INDEX_TURN,),
        holds=sessions.live_here,
        stale=lambda context, _: sessions.stale_sessions(context),
    )
)
