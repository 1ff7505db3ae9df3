"""Decisions: written before the act, closed by an outcome, found again after a crash.

The `opened` event and the mark that makes it findable are one commit, and `open` returns when that
is durable: whatever the caller does next, the decision can be found later. Closing is one commit
too: it writes the event and clears the mark. A crash between opening and closing leaves an open
decision of a dead worker, and `recovery.py` judges it.

    decision.opened       {"key", "decision", "owner", …}   durable before the act; with the tool
                          "call"?, "arguments"?, "more"?    call that it belongs to, and further
                                                            fields of the program
    decision.failed       {"key", "error", "by"}            the act raised; still open
    decision.taken        {"key", "owner", "why"}           another worker is responsible from here
    decision.closed       {"key", "outcome", "by", "how", "output"?}
    decision.prioritized  {"key", "priority"}
    decision.superseded   {"key", "by"}                     closed, by the decision with that id

Older programs wrote other types (`_OLD`), and their decisions are identified by their number in
the stream. An event never changes, so old forms are converted on reading, here and nowhere else.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Cleared, Mark, Record
from holdfast.core import codec, tree
from holdfast.core.arguments import (
    TEXT_CHARACTERS_MAX,
    check_flag,
    check_text,
    check_whole,
    name_of,
    older_bound,
)
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, changed
from holdfast.core.event import Event, from_datetime, to_datetime, version_of
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.intent import acts, verifiers
from holdfast.core.layers import reserved_prefixes
from holdfast.core.log import Log, scope_stream
from holdfast.core.meta import joined, source_and_trust
from holdfast.core.page import (
    NO_LIMIT,
    Key,
    Page,
    check_limit,
    is_after,
    mark_key,
    read_cursor,
    write_cursor,
)
from holdfast.core.redaction import MODES, Mode
from holdfast.core.sealing import noted_reads, tell_reader
from holdfast.core.tree import Op
from holdfast.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    ExistsError,
    ExpiredError,
    HoldfastError,
    NotFoundError,
    UndecidedError,
    UsageError,
    show_error,
    show_value,
)
from holdfast.names import check_name, check_scope_name, new_id, split_name
from holdfast.record import keyed_item
from holdfast.record.context import RecordContext, Stale
from holdfast.record.in_run import is_in_run, next_place, unjournalled
from holdfast.record.keyed_item import PRIORITIES, KeyedItem, parse_priority
from holdfast.record.message_events import ADDED as MESSAGE_ADDED
from holdfast.record.message_events import check_fields, encode
from holdfast.record.message_events import make_id as make_message_id

if TYPE_CHECKING:
    from holdfast.scope import Scope


_logger = logging.getLogger("holdfast.record")

OPENED = "decision.opened"
FAILED = "decision.failed"
TAKEN = "decision.taken"
CLOSED = "decision.closed"
PRIORITIZED = "decision.prioritized"
SUPERSEDED = "decision.superseded"
NO_OUTCOME = "no outcome stated"
_LINK_KIND = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


DecisionStatus = Literal["open", "standing", "closed", "superseded", "abandoned"]


class Link(Struct, frozen=True):
    """What a decision is about; `kind` is message, task, file, commit, or any other such word."""

    kind: str
    to: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.to}"


class Decision(Struct, frozen=True, kw_only=True):
    """A decision at the time it was read; `hf.decisions.close(d.id, …)` closes an open one."""

    id: str
    key: str
    """The idempotency key for the act: it never changes, and is the same for every worker."""
    scope: str
    timestamp: datetime
    decision: str
    rationale: str | None = None
    planned_action: str | None = None
    outcome: str | None = None
    completed_at: datetime | None = None
    output: Any = None
    """What a verifier or an act returned when recovery closed it."""
    status: DecisionStatus = "open"
    owner: str
    owner_alive: bool | None = None
    """Whether the worker that is responsible for it is alive; None if it is no longer open, or if
    a person is responsible."""
    is_personal: bool = False
    """Whether its owner is a person, so that no worker's life says anything about it."""
    actor: str = ""
    error: str | None = None
    closed_by: str | None = None
    how: str | None = None
    verify: str | None = None
    act: str | None = None
    call: str | None = None
    """The id of the tool call that it belongs to; the outcome becomes the result of that call."""
    arguments: Any = None
    """What the tool was called with."""
    alternatives: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    supersedes: str | None = None
    superseded_by: str | None = None
    place: str | None = None
    """The place in a run's body where it was made."""
    priority: int = 0
    updated_at: datetime
    revision: int
    events: int = 1
    more: dict[str, Any] = {}
    """Further fields that the program gave, under names that are not attributes of a decision."""
    version: int = 0
    """The version of the schema that the program had for it; 0 if it had none."""
    source: str | None = None
    """Where it came from, as the writer said."""
    trust: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has no outcome yet: the act may or may not have been done."""
        return self.status == "open"


def make_id(key: str, stream: str) -> str:
    """Returns the id of a decision: its key, and the scope that it was made in."""
    return f"{key}@{stream}"


def split_id(id: object) -> tuple[str, str]:
    """Returns the key and the scope in a decision's id, or raises UsageError."""
    key, at, stream = id.partition("@") if isinstance(id, str) else ("", "", "")
    if not key or not at or not stream:
        raise UsageError(
            f"a decision's id is its key, @ and its scope, found {show_value(id)}",
            hint="list the decisions: each has its id",
        )
    check_name(key, "a decision's key")
    return key, check_scope_name(stream)


def parse_link(link: object) -> Link:
    """Returns a link given as "file:src/a.py", as a pair or as a Link, or raises UsageError.

    The name of a scope is a link to it, kept as "scope:NAME".
    """
    kind, to = None, None
    if isinstance(link, Link):
        kind, to = link.kind, link.to
    elif isinstance(link, str):
        kind, _, to = link.partition(":")
        if "/" in kind:  # the name of a scope
            kind, to = "scope", link
    elif isinstance(link, tuple):
        pair = cast("tuple[object, ...]", link)
        kind, to = pair if len(pair) == 2 else (None, None)
    is_word = isinstance(kind, str) and _LINK_KIND.fullmatch(kind)
    if not is_word or not isinstance(to, str) or not to:
        raise UsageError(
            'a link is text such as "file:src/a.py": a word in small letters, a colon, and a name, '
            f"found {show_value(cast('object', link))}"
        )
    return Link(str(kind), to)


# --- the fold -------------------------------------------------------------------------------------


def project(events: Iterable[Event]) -> dict[str, Decision]:
    """Returns the decisions that one stream's events make, by id, in the order they were made.

    Skips events of other types, and events of decisions that were opened in another stream.
    """
    found: dict[str, Decision] = {}
    made = 0
    for event in events:
        if not is_of_decision(event.type):
            continue
        with _readable(event):
            type, data = upcast(event.type, event.data)
            made += type == OPENED
            key = str(data.get("key", made))  # old ones are known by their number
            id = make_id(key, event.stream)
            if type == OPENED:
                found[id] = opened(event.record, {**data, "key": key})
            elif id in found:
                found[id] = advance(found[id], event.time, type, data)
    return found


def fold(events: Iterable[Event]) -> Decision | None:
    """Folds all events of one decision, oldest first; returns None if there are none."""
    decision = None
    for event in events:
        with _readable(event):
            type, data = upcast(event.type, event.data)
            if decision is None:
                decision = opened(event.record, data)
            else:
                decision = advance(decision, event.time, type, data)
    return decision


def key_of(event: Event) -> str:
    """Returns the key of the decision that an event of today's types is about."""
    with _readable(event):
        return event.data["key"]


@contextmanager
def _readable(event: Event) -> Generator[None]:
    """Turns errors from data that no version of Holdfast writes into a CorruptError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f'event {event.revision} of "{event.stream}" has no valid data of "{event.type}"',
            stream=event.stream,
            revision=event.revision,
        ) from error


class Envelope(Protocol):
    """The fields of an event around its data, as far as a decision needs them."""

    @property
    def stream(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def time(self) -> int: ...
    @property
    def actor(self) -> str: ...
    @property
    def meta(self) -> str | None: ...


def opened(envelope: Envelope, data: dict[str, Any]) -> Decision:
    """Returns the decision that an `opened` event makes."""
    key, time = data["key"], to_datetime(envelope.time)
    source, trust = source_and_trust(envelope.meta)
    return Decision(
        id=make_id(key, envelope.stream),
        key=key,
        scope=envelope.stream,
        timestamp=time,
        decision=data["decision"],
        rationale=data.get("rationale"),
        planned_action=data.get("planned_action"),
        status="standing" if data.get("standing") else "open",
        owner=data.get("owner", envelope.actor),
        is_personal=data.get("person") is not None,
        actor=envelope.actor,
        verify=data.get("verify"),
        act=data.get("act"),
        call=data.get("call"),
        arguments=data.get("arguments"),
        alternatives=tuple(data.get("alternatives", ())),
        links=tuple(Link(kind, to) for kind, to in data.get("links", ())),
        supersedes=data.get("supersedes"),
        place=data.get("place"),
        priority=data.get("priority", 0),
        updated_at=time,
        revision=envelope.revision,
        more=data.get("more", {}),
        version=version_of(envelope.meta),
        source=source,
        trust=trust,
    )


def advance(decision: Decision, time: datetime, type: str, data: dict[str, Any]) -> Decision:
    """Applies one event to a decision; an unknown type changes only its time and event count."""
    more = {**decision.more, **data["more"]} if data.get("more") else decision.more
    decision = replace(decision, updated_at=time, events=decision.events + 1, more=more)
    if type == CLOSED:
        return replace(
            decision,
            status="abandoned" if data.get("how") == "abandoned" else "closed",
            outcome=data.get("outcome"),
            output=data.get("output"),
            completed_at=time,
            closed_by=data.get("by"),
            how=data.get("how"),
        )
    if type == SUPERSEDED:
        return replace(decision, status="superseded", superseded_by=data["by"], completed_at=time)
    if type == FAILED:
        return replace(decision, error=data["error"])
    if type == TAKEN:
        return replace(decision, owner=data["owner"], is_personal=False)
    if type == PRIORITIZED:
        return replace(decision, priority=data["priority"])
    return decision


# --- old forms ------------------------------------------------------------------------------------


def is_of_decision(type: str) -> bool:
    """Returns whether an event of that type is about a decision."""
    return type.startswith("decision.") or type in _OLD


def is_old(type: str) -> bool:
    """Returns whether only older programs write events of that type."""
    return type in _OLD


def upcast(type: str, data: Any) -> tuple[str, dict[str, Any]]:
    """Converts an event of any form ever written to the type and data that are written today."""
    if type in _OLD:
        newer, convert = _OLD[type]
        return newer, convert(data)
    return type, data


def _convert_opened(data: dict[str, Any]) -> dict[str, Any]:
    made = {"decision": data.get("decision", data.get("text", ""))}
    if "priority" in data:
        made["priority"] = _old_priority(data["priority"])
    same = {name: data[name] for name in ("key", "rationale", "planned_action") if name in data}
    return {**same, **made, "more": _others(data, "text", *same, *made)}


def _convert_closed(data: dict[str, Any]) -> dict[str, Any]:
    outcome = data.get("result", data.get("outcome"))
    more = _others(data, "decision_id", "result" if "result" in data else "outcome")
    return {"key": data["decision_id"], "outcome": outcome, "how": "stated", "more": more}


def _convert_prioritized(data: dict[str, Any]) -> dict[str, Any]:
    more = _others(data, "decision_id", "priority")
    return {"key": data["decision_id"], "priority": _old_priority(data["priority"]), "more": more}


def _others(data: dict[str, Any], *known: str) -> dict[str, Any]:
    """Returns the fields of an old event that have no place in today's form."""
    return {name: value for name, value in data.items() if name not in known}


def _old_priority(priority: Any) -> int:
    return PRIORITIES.get(priority, 0) if isinstance(priority, str) else int(priority)


_OLD: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "decision_made": (OPENED, _convert_opened),
    "decision_outcome": (CLOSED, _convert_closed),
    "decision_result": (CLOSED, _convert_closed),
    "decision_prioritized": (PRIORITIZED, _convert_prioritized),
}


# --- policy ---------------------------------------------------------------------------------------
#
# A policy can demand that no effect happens without an open decision.
#
# An effect is covered by the decision in whose block it runs, or by one that this worker has open
# in the same scope. An effect that is not covered leaves the event `policy.breached` in the stream
# of its scope, so that it can be found later. The mode "refuse" then raises before the effect.
#
# The policy is stored in a stream of its own. So it binds every handle and process at once, and its
# history says who set it and when. It is read before every effect, with one exception: a run may
# have effects by the thousand, so if the policy was off, a run reads it again after `POLICY_S`.


BREACHED = "policy.breached"
POLICY_S = 5.0
"""How long a run relies on having seen that the policy is off, before it reads it again."""
POLICY_STREAM = "policy/store"
"""Its state holds the stored policies: "effects", "keep" and "expires" by level, and "secrets" by
pattern of scopes."""

PolicyMode = Literal["off", "warn", "refuse"]


class UndecidedWarning(UserWarning):
    """An effect was not covered by an open decision; the policy "warn" lets it pass."""


def policy_of(context: RecordContext) -> PolicyMode:
    """Returns the store's policy for effects without an open decision."""
    mode = context.policy_log.newest(POLICY_STREAM).root.get("effects", "off")
    # An unknown mode was set by a newer version: too strict is safer than too lax.
    return mode if mode in get_args(PolicyMode) else "refuse"


def kept_when_closed(context: RecordContext, level: str) -> bool | None:
    """Returns whether closed scopes of a level keep their state; None if the policy is silent."""
    kept = context.policy_log.newest(POLICY_STREAM).root.get("keep", {})
    return kept.get(level)


def term_of_level(log: Log, reserved: frozenset[str], level: str) -> ExpiryPolicy | None:
    """Returns how long new scopes of a level last by the store's policy; None for ever.

    Reserved levels belong to layers, and no policy of a user applies to their streams. The log
    keeps this function, and a thread keeps the log; so it takes the log alone and no larger object
    that would be kept alive with it.
    """
    if level in reserved:
        return None
    return terms_of_levels(log).get(level)


def terms_of_levels(log: Log) -> dict[str, ExpiryPolicy]:
    """Returns the store's policy on how long new scopes last, by level."""
    said = log.newest(POLICY_STREAM).root.get("expires", {})
    return {
        level: ExpiryPolicy(one["ttl_s"], one["slides"])
        for level, one in said.items()
        if one is not None
    }


def secret_rules(context: RecordContext) -> dict[str, Mode]:
    """Returns the store's policy on secrets, by pattern of scopes."""
    found = context.policy_log.newest(POLICY_STREAM).root.get("secrets", {})
    # An unknown mode was set by a newer version: too strict is safer than too lax.
    return {name: mode if mode in MODES else "refuse" for name, mode in found.items()}


def set_policy(context: RecordContext, path: tuple[str, ...], value: object) -> None:
    """Stores one value of the policy, unless it has that value already."""
    log = context.policy_log
    context.policy_due = 0.0
    if tree.get(log.newest(POLICY_STREAM).root, path, None) != value:
        with unjournalled():
            log.commit(
                ProposedCommit(
                    (StreamWrite(POLICY_STREAM, (changed([tree.set_op(path, value)]),)),)
                )
            )


class Policy:
    """What `hf.decisions.policy(mode)` returns; as a block, it restores the old mode at the end."""

    def __init__(self, context: RecordContext, mode: PolicyMode) -> None:
        if mode not in get_args(PolicyMode):
            raise UsageError(
                f"a policy is one of {', '.join(get_args(PolicyMode))}, found {show_value(mode)}"
            )
        self._context = context
        self._before = policy_of(context)
        set_policy(context, ("effects",), mode)

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        set_policy(self._context, ("effects",), self._before)


def is_covered(context: RecordContext, scope: Scope) -> bool:
    """Returns whether an open decision covers what is done in this scope now."""
    if any(id in context.open_decisions for id in context.deciding.get()):
        return True
    return scope.name in context.open_decisions.values()


def check_effect(context: RecordContext, scope: Scope, effect: str) -> None:
    """Records an effect that no open decision covers, and warns or refuses it by the policy.

    Call it before the effect.
    """
    mode = policy_of(context)
    context.policy_seen, context.policy_due = mode, monotonic() + POLICY_S
    if mode == "off" or is_covered(context, scope):
        return
    data = {"effect": check_text(effect, "an effect"), "policy": mode, "worker": context.worker}
    write = scope_stream(scope).write((NewEvent(BREACHED, codec.encode(data)),))
    with unjournalled():
        context.log.commit(ProposedCommit((write,)))
    message = f'effect {show_value(effect)} in "{scope.name}" has no open decision'
    if mode == "refuse":
        raise UndecidedError(message, hint="decide() first, and do it inside the block")
    warnings.warn(message, UndecidedWarning, stacklevel=3)


KIND = "decision"
INDEX_OPEN = "decision"
INDEX_STANDING = "order"
INDEX_SUPERSEDING = "superseding"
PAGE = 200
LOOKED_MAX = 2_000
"""How many events are searched for decisions before the index is asked where the others are. If
a store, or the part of a stream in question, has no more events, the index is not used."""
_CALL_BYTES_MAX = 256

IfExists = Literal["raise", "attach"]


# --- the decisions of a store ---------------------------------------------------------------------


class Decisions:
    """The decisions of one store."""

    def __init__(self, context: RecordContext) -> None:
        self.context = context
        self.log = context.log

    # --- writing ---------------------------------------------------------------------------------

    def open(
        self,
        scope: Scope,
        decision: str,
        *,
        because: str | None,
        action: str | None,
        verify: object,
        act: object,
        alternatives: Sequence[str],
        links: Sequence[Link | str | tuple[str, str]],
        call: str | None,
        arguments: Mapping[str, Any] | None,
        key: str | None,
        priority: int | str,
        supersedes: str | None,
        standing: bool,
        owner: str | None,
        more: Mapping[str, Any] | None,
        if_exists: IfExists,
    ) -> OpenDecision:
        """Writes a decision and returns the handle that closes it."""
        if if_exists not in ("raise", "attach"):
            raise UsageError(f"if_exists is raise or attach, found {show_value(if_exists)}")
        data: dict[str, Any] = {
            "decision": check_text(decision, "a decision"),
            "rationale": check_text(because, "because", optional=True),
            "planned_action": check_text(action, "action", optional=True),
            "verify": None if verify is None else verifiers.name(verify),
            "act": None if act is None else acts.name(act),
            "alternatives": _check_alternatives(alternatives),
            "links": _check_links(links),
            "call": None if call is None else check_fields({"role": "tool", "id": call})["id"],
            "arguments": None if arguments is None else _check_arguments(arguments),
            "supersedes": supersedes,
            "priority": parse_priority(priority),
            "standing": check_flag(standing, "standing"),
            "person": check_text(owner, "owner", optional=True),
            "more": _check_more(more) or None,
        }
        data = {name: value for name, value in data.items() if value not in (None, [], False)}
        if key is not None and "@" in keyed_item.check_item_name(key, "a decision's key"):
            raise UsageError(f"a decision's key has no @, found {show_value(key)}")
        place = next_place()
        if place is not None:
            data["place"] = place
        name = key or (None if call is None else _call_key(call)) or place
        if owner is None:
            self.context.lease_keeper.register()
        while True:
            found = None if name is None else self.find(scope.name, name)
            if found is not None:
                return self._attach(found, data, if_exists)
            if supersedes is not None:
                self._check_superseded(supersedes)
            try:
                return self._open(scope, name or new_id(self.log.clock), data)
            except ConflictError:
                # Another writer used the same key: its decision is found now.
                _logger.debug('decision "%s" was just made: looking again', name)

    def find(self, stream: str, key: str) -> Decision | None:
        """Returns the decision with that key in a scope, or in a scope that it was forked from."""
        for name, until in keyed_item.lineage(self.log, stream):
            found = self._read(KeyedItem(KIND, name, key))
            if found is not None and (until is None or found.revision <= until):
                return found
        return None

    def _open(self, scope: Scope, key: str, data: dict[str, Any]) -> OpenDecision:
        item = KeyedItem(KIND, scope.name, key)
        data = {"key": key, **data, "owner": data.get("person", self.context.worker)}
        index = INDEX_STANDING if data.get("standing") else INDEX_OPEN
        now_us = self.log.clock.now_us()
        marks = [item.mark(index, due=now_us, priority=data.get("priority", 0))]
        if "supersedes" in data:
            marks.append(item.mark(INDEX_SUPERSEDING, due=now_us))
        said = self.log.typed.item_meta(KIND, scope.name)
        opening = NewEvent(OPENED, codec.encode(data), meta=said)
        write = scope_stream(scope).write((opening,), key=item.key(1))
        result = keyed_item.append(self.log, item, 1, write, marks=tuple(marks))
        after = result.after[0]
        if result.redacted:
            data = codec.decode(result.written(write).new_events[-1].payload)
        actor, meta = self.log.provenance
        meta = meta if said is None else joined(meta, said)
        envelope = _Envelope(scope.name, after.revision, after.time, actor, meta)
        entry = self._with_liveness(opened(envelope, data))
        if entry.is_open and not entry.is_personal:
            self.context.open_decisions[entry.id] = entry.scope
        if entry.supersedes is not None:
            self.supersede(entry)
        handle = OpenDecision(self, entry)
        self.log.when_placed(scope.name, after.revision, handle._place)
        return handle

    def _check_superseded(self, id: str) -> None:
        """Raises unless a decision may be superseded by this worker now."""
        entry = self.get(id)
        _check_not_closed(entry)
        if entry.is_open:
            self._check_owner(entry)

    def supersede(self, newer: Decision) -> None:
        """Closes the decision that a newer one supersedes, in a commit of its own.

        The newer one is durable first, with a mark that the older one is still to be closed. After
        a crash in between both count, and `recover` closes the older one. The other order could
        lose a standing order and have nothing in its place.
        """
        assert newer.supersedes is not None, "BUG: a decision that supersedes none"
        done = _keyed_item(newer).cleared(INDEX_SUPERSEDING)
        while True:
            try:
                older = self.get(newer.supersedes)
                if older.status not in ("open", "standing"):
                    break
                cleared = [_keyed_item(older).cleared(_index(older))]
                if older.scope == newer.scope:  # else it may be kept by another backend
                    cleared.append(done)
                data = {"key": older.key, "by": newer.id}
                self._append(older, SUPERSEDED, data, *cleared)
            except ConflictError:
                _logger.debug('decision "%s" changed: superseding again', newer.supersedes)
                continue
            except (ClosedError, ExpiredError):
                _logger.debug('decision "%s" has ended with its scope', newer.supersedes)
                break
            self.context.open_decisions.pop(older.id, None)
            if done in cleared:
                return
        # This commit writes no event, so the log cannot tell which subject the mark belongs to.
        marks = self.log.closed_marks(newer.scope, (done,), self.log.subject_of(newer.scope))
        self.log.commit(ProposedCommit((), marks=marks))

    def abandon(self, scope: Scope, why: str) -> None:
        """Abandons the open and standing decisions of a scope that is being closed, one by one."""
        for index in (INDEX_OPEN, INDEX_STANDING):
            for entry in self._marked(index, scope.name):
                try:
                    self.close_entry(entry, why, how="abandoned")
                except ExistsError:
                    _logger.debug('decision "%s" was closed meanwhile', entry.id)

    def has_open(self, scope: str) -> bool:
        """Returns whether a scope has an open or standing decision."""
        found = (self._marked(index, scope) for index in (INDEX_OPEN, INDEX_STANDING))
        return any(any(True for _ in entries) for entries in found)

    def open_in(self, scope: str) -> Iterator[Decision]:
        """Yields the decisions of a scope that have no outcome yet."""
        return self._marked(INDEX_OPEN, scope)

    def pending_supersedes(self) -> list[Decision]:
        """Returns decisions that a crash kept from closing the decision that they supersede."""
        return list(self._marked(INDEX_SUPERSEDING, None))

    def _attach(self, found: Decision, data: dict[str, Any], if_exists: IfExists) -> OpenDecision:
        """Returns the handle of an existing decision, if it is the same and free to take over.

        The place in a run that made it always gets it back, whichever worker has the run by now.
        """
        is_own = found.place is not None and found.place == data.get("place")
        if if_exists == "raise" and not is_own:
            raise ExistsError(
                f'decision "{found.id}" exists already',
                hint='use a new key, or if_exists="attach"',
            )
        if (found.decision, found.planned_action) != (data["decision"], data.get("planned_action")):
            raise UsageError(
                f'decision "{found.id}" is another one: its text is {show_value(found.decision)}, '
                f"its action {show_value(found.planned_action)}",
                hint="use a new key",
            )
        if found.is_personal and data.get("person") == found.owner:
            return OpenDecision(self, found)
        while found.is_open and found.owner != self.context.worker:
            if not is_own:
                self._check_owner(found)
            try:
                found = self.take_over(found, "resume" if is_own else "attach")
            except ConflictError:
                _logger.debug('decision "%s" changed: attaching again', found.id)
                found = self.get(found.id)
        if found.is_open:
            # From here on this worker is at work on it.
            self.context.unfinished_recoveries.discard(found.id)
            self.context.open_decisions[found.id] = found.scope
        return OpenDecision(self, found)

    def close(self, id: str, outcome: str) -> Decision:
        """Closes an open decision with its outcome, and returns the closed decision."""
        return self.close_entry(self.get(id), outcome)

    def close_entry(
        self, entry: Decision, outcome: str, *, how: str = "stated", output: Any = None
    ) -> Decision:
        """Closes a decision that was read earlier; raises ExistsError if it is closed already."""
        data: dict[str, Any] = {"key": entry.key, "outcome": check_text(outcome, "an outcome")}
        data |= {"by": self.context.worker, "how": how}
        if output is not None:
            data["output"] = output
        while True:
            _check_not_closed(entry)
            if entry.is_open and how != "abandoned":
                self._check_owner(entry)
            cleared = _keyed_item(entry).cleared(_index(entry))
            result = (
                () if entry.call is None or how == "abandoned" else (self._result(entry, data),)
            )
            try:
                closed = self._append(entry, CLOSED, data, cleared, more=result)
            except ConflictError:
                # No limit is needed: each round means that another writer added an event to this
                # one decision, and there are few of them.
                _logger.debug('decision "%s" changed: closing again', entry.id)
                entry = self.get(entry.id)
            else:
                self.context.open_decisions.pop(entry.id, None)
                return closed

    def fail(self, entry: Decision, error: BaseException) -> Decision:
        """Records that the act raised; the decision stays open."""
        text = show_error(error)[:TEXT_CHARACTERS_MAX]
        data = {"key": entry.key, "error": text, "by": self.context.worker}
        while entry.is_open:
            if entry.error == text and is_in_run():
                return entry  # recorded by an earlier pass of the run
            try:
                return self._append(entry, FAILED, data)
            except ConflictError:
                _logger.debug('decision "%s" changed: recording the error again', entry.id)
                entry = self.get(entry.id)
        return entry

    def take_over(self, entry: Decision, why: str) -> Decision:
        """Makes this worker the owner; raises ConflictError if the decision changed meanwhile."""
        self.context.lease_keeper.register()
        data = {"key": entry.key, "owner": self.context.worker, "why": why}
        return self._append(entry, TAKEN, data)

    def prioritise(self, id: str, priority: int | str) -> Decision:
        """Gives a decision that is not closed another priority."""
        data = {"priority": parse_priority(priority)}
        while True:
            entry = self.get(id)
            _check_not_closed(entry)
            due = from_datetime(entry.timestamp)
            mark = _keyed_item(entry).mark(_index(entry), due=due, priority=data["priority"])
            try:
                return self._append(entry, PRIORITIZED, {"key": entry.key, **data}, mark)
            except ConflictError:
                _logger.debug('decision "%s" changed: prioritising again', id)

    def _result(self, entry: Decision, data: dict[str, Any]) -> NewEvent:
        """Returns the message that answers the tool call of a decision with its outcome.

        It is part of the commit that closes the decision, whether the owner or recovery closes it.
        Otherwise a crash could leave an act that was done and a call without a result, and the
        model would ask for the same act again.
        """
        output = data.get("output")
        content = data["outcome"] if output is None else output
        if not isinstance(content, str):
            content = codec.encode(content).decode()
        fields = check_fields({"role": "tool", "content": content, "tool_call_id": entry.call})
        fields = {"id": make_message_id(self.log.clock, fields), **fields}

        def spill(raw: bytes) -> bytes:
            return bytes(self.log.blobs.spill(Op("set", "message", Raw(raw)), entry.scope).value)

        meta = self.log.typed.item_meta("message", entry.scope)
        return NewEvent(MESSAGE_ADDED, encode(fields, spill), meta=meta)

    def _append(
        self,
        entry: Decision,
        type: str,
        data: dict[str, Any],
        *marks: Mark | Cleared,
        more: tuple[NewEvent, ...] = (),
    ) -> Decision:
        item, number = _keyed_item(entry), entry.events + 1
        write = keyed_item.next_write(item, number, NewEvent(type, codec.encode(data)), *more)
        result = keyed_item.append(
            self.log, item, number, write, marks=marks, follows=entry.revision
        )
        time = to_datetime(result.after[0].time)
        return self._with_liveness(advance(entry, time, type, data))

    def _check_owner(self, entry: Decision) -> None:
        if entry.owner != self.context.worker and self.context.lease_keeper.is_alive(entry.owner):
            raise ConflictError(
                f'decision "{entry.id}" belongs to worker "{entry.owner}", which is alive',
                stream=entry.scope,
                expected=entry.revision,
                actual=entry.revision,
                hint="let its owner close it, or wait until that worker has ended",
            )

    # --- reading ---------------------------------------------------------------------------------

    def get(self, id: str) -> Decision:
        """Returns the decision with that id, or raises NotFoundError."""
        key, stream = split_id(id)
        entry = self._read(KeyedItem(KIND, stream, key)) or self._read_old(id, stream)
        if entry is None:
            raise NotFoundError(
                f'there is no decision "{id}"', hint="list the decisions: each has its id"
            )
        return entry

    def _read(self, item: KeyedItem) -> Decision | None:
        found = fold(Event(record) for record in keyed_item.records_of(self.log, item))
        return None if found is None else self._with_liveness(found)

    def _read_old(self, id: str, stream: str) -> Decision | None:
        key = split_id(id)[0]
        if not key.isdecimal():
            return None
        records = self.log.records(stream, after=self.log.life(stream))
        found = project(map(Event, records)).get(id)
        return None if found is None else self._with_liveness(found)

    def _with_liveness(self, entry: Decision) -> Decision:
        """Returns the decision with `owner_alive` judged now."""
        is_judged = entry.is_open and not entry.is_personal
        alive = self.context.lease_keeper.is_alive(entry.owner) if is_judged else None
        return replace(entry, owner_alive=alive)

    def list(
        self,
        *,
        incomplete: bool = False,
        scope: Scope | str | None = None,
        after: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        older_than: object = None,
    ) -> Page[Decision]:
        """Returns a page of decisions: the open ones by priority and age, or all, newest first."""
        check_flag(incomplete, "incomplete")
        most = check_limit(limit)
        if before is not None:
            check_whole(before, "before", least=1)
        stream = None if scope is None else name_of(scope)
        passed = None if after is None else read_cursor("decisions", after)
        found: Iterator[tuple[Key, Decision]]
        if incomplete:
            found = self._open_after(stream, passed)
        elif stream is not None:
            last = before if passed is None else _revision_of(passed, after, before)
            found = (((entry.revision,), entry) for entry in self._decided_in(stream, last))
        elif before is not None:
            raise UsageError("before is a revision of one scope: name the scope too")
        else:
            found = self._anywhere_after(most, passed)
        if older_than is not None:
            latest = older_bound(self.log.clock.now_us(), older_than)
            found = (pair for pair in found if pair[1].updated_at <= latest)
        pairs = list(islice(found, None if most is None else most + 1))
        page = pairs[:most]
        cursor = write_cursor("decisions", *page[-1][0]) if page else after
        return Page([entry for _, entry in page], more=len(page) < len(pairs), cursor=cursor)

    def _open_after(self, stream: str | None, passed: Key | None) -> Iterator[tuple[Key, Decision]]:
        """Yields the open decisions with their sort keys; reads no further than needed."""
        for mark in self.log.find_marks(INDEX_OPEN, group=stream):
            key = mark_key(mark)
            if passed is None or is_after(key, passed):
                for entry in self._read_marks(INDEX_OPEN, [mark]):
                    yield key, entry

    def _anywhere_after(
        self, limit: int | None, passed: Key | None
    ) -> Iterator[tuple[Key, Decision]]:
        """Yields the decisions of all scopes, newest first, with their sort keys.

        They are found by the index, unless the store is small or has no index.
        """
        find, events = self.context.find_decisions, int(self.log.position())
        is_place = passed is None or tuple(map(type, passed)) == (int, str)
        while find is not None and is_place and events > LOOKED_MAX:
            found = find(None, passed, events)
            if found is None:
                break
            if not found:
                return
            for passed, id, streams in found:
                for entry in self._chosen(id, streams):
                    yield passed, entry
        # With a cursor, the newest decisions of a scope may all be before it: so the number that
        # is read of each scope cannot be limited then.
        most = NO_LIMIT if limit is None or passed is not None else limit + 1
        for entry in self._decided_anywhere(most):
            key = _newest_first(entry)
            if passed is None or is_after(key, passed):
                yield key, entry

    def standing(self, streams: Sequence[str]) -> list[Decision]:
        """Returns the standing orders of these scopes, one scope after the other."""
        found: list[Decision] = []
        for stream in streams:
            for name, until in keyed_item.lineage(self.log, stream):
                if until is not None and keyed_item.is_removed_since(self.log, name, until):
                    made = self._read_back(name, until, until, self.log.life(name, until))
                    found += reversed([one for one in made if one.status == "standing"])
                    continue
                marks = self.log.find_marks(INDEX_STANDING, group=name)
                made = self._read_marks(INDEX_STANDING, marks)
                found += (entry for entry in made if until is None or entry.revision <= until)
        return found

    def recent(self, scope: Scope, limit: int) -> list[Decision]:
        """Returns the last decisions of a scope, newest first, without standing orders."""
        made = self._decided_in(scope.name, None)
        return list(islice((entry for entry in made if entry.status != "standing"), limit))

    def _marked(self, index: str, stream: str | None) -> Iterator[Decision]:
        return self._read_marks(index, self.log.find_marks(index, group=stream))

    def _read_marks(self, index: str, marks: Iterable[Mark]) -> Iterator[Decision]:
        for mark in marks:
            try:
                entry = self._read(KeyedItem.from_mark(KIND, mark, self.log))
            except ExpiredError:
                _logger.debug('mark "%s" is of an expired scope: passed over', mark.key)
                continue
            # The marks were listed earlier: the decision may have been closed since.
            if entry is not None and index in (_index(entry), INDEX_SUPERSEDING):
                yield entry

    def all_in(self, stream: str) -> Iterator[Decision]:
        """Yields the decisions of a scope, newest first, including those that it inherited.

        It reads all events and uses no index, so an index can be built from it.
        """
        head = self.log.head(stream)
        newest = head.revision if head else 0
        yield from self._read_back(stream, newest, newest, self.log.life(stream))

    def newest(self, id: str) -> Decision | None:
        """Returns the decision with that id; None if its scope has none."""
        key, stream = split_id(id)
        return self._read(KeyedItem(KIND, stream, key))

    def _decided_in(self, stream: str, before: int | None) -> Iterator[Decision]:
        """Yields the decisions of one stream, newest first, and reads no further than needed.

        In a long stream it searches the newest events, and asks the index for older decisions.
        """
        head = self.log.head(stream)
        newest = head.revision if head else 0
        last = min(before - 1 if before else NO_LIMIT, newest)
        first = self.log.life(stream)
        find = self.context.find_decisions
        low = first if find is None else max(newest - LOOKED_MAX, first)
        is_whole = yield from self._read_back(stream, last, newest, low)
        if find is None or is_whole or low == first:
            return
        last = min(last, low)
        while found := find(stream, (last + 1,), newest - first):
            for _, id, _ in found:
                entry = self.as_had_by(stream, id)
                if entry is None:  # in an old form, or gone since
                    yield from self._read_back(stream, last, newest, first)
                    return
                yield entry
                last = entry.revision - 1
        if found is None:
            yield from self._read_back(stream, last, newest, first)

    def as_had_by(self, stream: str, id: str) -> Decision | None:
        """Returns the decision with that id as a scope has it, or None if it cannot be read.

        A fork has it as it was at the fork.
        """
        key, of = split_id(id)
        item = KeyedItem(KIND, of, key)
        if of == stream:
            return self._read(item)
        for name, until in keyed_item.lineage(self.log, stream):
            if name == of:
                try:
                    records = keyed_item.records_of(self.log, item, until)
                except ExpiredError:
                    return None  # the fork still has what it inherited
                entry = fold(map(Event, records))
                return None if entry is None else self._as_it_is_now(stream, entry)
        return None

    def _as_it_is_now(self, stream: str, entry: Decision) -> Decision:
        """Returns the current form of a decision that was read from the events of a scope.

        A decision that a fork inherited open is still one act in the world: so what counts is its
        present status in the scope that it was made in.
        """
        if entry.scope != stream and _index(entry):
            entry = self._read(_keyed_item(entry)) or entry
        return self._with_liveness(entry)

    def _chosen(self, id: str, streams: Sequence[str]) -> Iterator[Decision]:
        """Yields the decision as these scopes have it: the copy with the most events, if any."""
        key, of = split_id(id)
        try:
            own = self._read(KeyedItem(KIND, of, key)) if of in streams else None
            own = own or (self._read_old(id, of) if of in streams else None)
            copies = [own] if own else [self.as_had_by(stream, id) for stream in streams]
        except ExpiredError:
            _logger.debug('decision "%s" is of an expired scope: passed over', id)
            return
        found = [entry for entry in copies if entry is not None]
        if found:
            yield max(found, key=lambda entry: entry.events)

    def _read_back(
        self, stream: str, last: int, newest: int, first: int
    ) -> Generator[Decision, None, bool]:
        """Yields the decisions that were opened after `first` and up to `last`, newest first.

        It reads backwards from `newest`, so it meets the later events of a decision before the one
        that opened it. Returns True if it met an event of an old form; it has then yielded all
        decisions of the stream up to there.
        """
        later: dict[tuple[str, str], list[Event]] = {}
        while newest > first:
            records = self.log.records(stream, after=max(newest - PAGE, first), until=newest)
            for record in reversed(records):
                if is_old(record.type):
                    yield from self._decided_in_old_form(stream, min(record.revision, last))
                    return True
                if not is_of_decision(record.type):
                    continue
                event = Event(record)
                if event.is_let_go:
                    continue  # its payload is gone: it was sealed for a subject, erased since
                key = record.stream, key_of(event)
                if record.type != OPENED:
                    later.setdefault(key, []).append(event)
                elif record.revision <= last:
                    entry = fold([event, *reversed(later.pop(key, []))])
                    assert entry is not None, "BUG: a decision without an event"
                    yield self._as_it_is_now(stream, entry)
            newest -= PAGE
        return False

    def _decided_in_old_form(self, stream: str, last: int) -> Iterator[Decision]:
        """Yields the decisions up to a revision, for a stream with events of old forms.

        Old decisions are numbered from the start of the stream, so all of it is read.
        """
        records = self.log.records(stream, after=self.log.life(stream))
        entries = project(map(Event, records)).values()
        for entry in reversed(entries):
            if entry.revision <= last:
                yield self._with_liveness(entry)

    def _decided_anywhere(self, limit: int) -> Iterator[Decision]:
        """Yields the decisions of all scopes, newest first; it visits every scope of the store."""
        found: dict[str, tuple[Decision, set[str]]] = {}
        reserved = reserved_prefixes()
        for name in self.log.streams():
            if split_name(name)[0] in reserved:
                continue
            try:
                with noted_reads() as subjects:
                    entries = list(islice(self._decided_in(name, None), limit))
            except ExpiredError:
                _logger.debug('scope "%s" has expired: passed over', name)
                continue
            for entry in entries:
                known = found.get(entry.id)
                # A fork also lists what it inherited: keep the copy with the most events.
                if known is None or known[0].events < entry.events:
                    found[entry.id] = entry, subjects
        for entry, subjects in sorted(found.values(), key=lambda pair: _newest_first(pair[0])):
            for subject in subjects:
                tell_reader(self.log.sealing, subject)
            yield entry


def _newest_first(entry: Decision) -> Key:
    return -from_datetime(entry.timestamp), entry.id


def _revision_of(passed: Key, cursor: str | None, before: int | None) -> int:
    """Returns the revision before which the next page of one scope's decisions begins."""
    if len(passed) != 1 or not isinstance(passed[0], int):
        raise UsageError(
            f"{show_value(cursor)} is not a cursor of the decisions of one scope",
            hint="give the cursor of the page before, with the same arguments",
        )
    return passed[0] if before is None else min(passed[0], before)


def open_here(context: RecordContext, stream: str) -> Iterator[str]:
    """Yields a text for each open decision of a scope: the reasons not to remove it."""
    for entry in Decisions(context).open_in(stream):
        yield f'decision "{entry.id}" is open'


def _call_key(call: str) -> str:
    """Returns the key of a tool call's decision, so that each call is decided once."""
    key = f"call:{call}"
    if "@" in key or not key.isprintable() or len(key.encode(errors="replace")) > _CALL_BYTES_MAX:
        return f"call:sha256:{sha256(call.encode(errors='surrogatepass')).hexdigest()}"
    return key


def _check_arguments(arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, Mapping):
        raise UsageError(f"arguments are a mapping, found {show_value(arguments)}")
    return dict(cast("Mapping[str, Any]", arguments))


def _check_more(more: object) -> dict[str, Any]:
    """Returns the program's further fields, or raises UsageError."""
    if more is not None and not isinstance(more, Mapping):
        raise UsageError(f"more is a mapping, found {show_value(more)}")
    found = dict(cast("Mapping[str, Any]", more or {}))
    if taken := sorted(str(name) for name in found if name in Decision.__struct_fields__):
        raise UsageError(
            f"every decision has {', '.join(taken)}: more is for fields of your own",
            hint="give it as an argument of its own, or another name",
        )
    return found


class _Envelope(Struct, frozen=True):
    """The envelope of a decision that was just written."""

    stream: str
    revision: int
    time: int
    actor: str
    meta: str | None


def _keyed_item(entry: Decision) -> KeyedItem:
    return KeyedItem(KIND, entry.scope, entry.key)


def _index(entry: Decision) -> str:
    """Returns the index that has a decision's mark; an empty text if it is closed."""
    return {"open": INDEX_OPEN, "standing": INDEX_STANDING}.get(entry.status, "")


def _check_alternatives(given: Sequence[str]) -> list[str]:
    _check_list(given, "alternatives")
    return [check_text(one, "an alternative") for one in given]


def _check_links(given: Sequence[Link | str | tuple[str, str]]) -> list[list[str]]:
    _check_list(given, "links")
    return [[link.kind, link.to] for link in map(parse_link, given)]


def _check_list(given: object, what: str) -> None:
    if not isinstance(given, list | tuple):
        raise UsageError(f"{what} is a list, found {show_value(given)}")


def _check_not_closed(entry: Decision) -> None:
    if entry.status in ("open", "standing"):
        return
    outcome = "" if entry.outcome is None else f": {show_value(entry.outcome)}"
    raise ExistsError(
        f'decision "{entry.id}" was already {entry.status} at {entry.completed_at}{outcome}',
        hint="an outcome is never replaced; make a new decision that supersedes it",
    )


def stale_decisions(decisions: Decisions) -> Iterator[Stale]:
    """Yields the open decisions whose worker is silent."""
    for entry in decisions.list(incomplete=True):
        if entry.owner_alive is False:
            text = f'worker "{entry.owner}" is silent: {entry.decision}'
            yield Stale("decision", entry.id, entry.scope, "owner silent", text, entry.updated_at)


# --- the handle of a decision ---------------------------------------------------------------------


CLOSED_BY_RECOVERY = ("verified", "done again")
"""The values of `how` in decisions that recovery closed."""


class OpenDecision:
    """A decision that this worker is responsible for: the block of `with scope.decide(…) as d:`.

    It is durable before the block begins. `outcome` closes it. Leaving the block without an outcome
    closes it as "no outcome stated". An exception that leaves the block is recorded, and the
    decision stays open: nobody knows yet whether the act was done.
    """

    def __init__(self, decisions: Decisions, entry: Decision) -> None:
        self._opened_by = decisions
        self.stored = entry
        """The decision as it was last read or written."""
        self.id = entry.id
        self.key = entry.key
        self._was_closed = entry.status == "closed"

    @property
    def _decisions(self) -> Decisions:
        """What it is written with: the decisions of a joint commit until that is durable."""
        settled = self._opened_by.context.settled
        return self._opened_by if settled is None else Decisions(settled)

    def _place(self, record: Record) -> None:
        """Takes its id, revision and time, once the joint commit that opened it is durable."""
        self.key = key_of(Event(record))
        self.id = make_id(self.key, record.stream)
        at = to_datetime(record.time)
        place = {"revision": record.revision, "timestamp": at}
        self.stored = replace(self.stored, id=self.id, key=self.key, **place)

    def outcome(self, text: str, *, output: Any = None) -> Decision:
        """Closes it with its outcome and output, and returns the closed decision.

        A program that is run again from its start attaches to a decision that is already closed.
        Such a handle may repeat the same outcome. An outcome that recovery found stands, whatever
        is said here.
        """
        if self._was_closed and (
            text == self.stored.outcome or self.stored.how in CLOSED_BY_RECOVERY
        ):
            return self.stored
        self.stored = self._decisions.close_entry(self.stored, text, output=output)
        return self.stored

    def prioritise(self, priority: int | str) -> Decision:
        """Changes its priority, to a whole number, or low, normal or high."""
        self.stored = self._decisions.prioritise(self.id, priority)
        return self.stored

    def _enter(self) -> None:
        """Makes this decision cover the effects of this context from here on."""
        if self.stored.status == "standing":
            raise UsageError(
                "a standing order has no block: it counts until it is superseded",
                hint="keep what decide() returns, or leave standing out",
            )
        deciding = self._decisions.context.deciding
        self._token = deciding.set((*deciding.get(), self.id))

    def _leave(self) -> None:
        """Ends what `_enter` began."""
        self._decisions.context.deciding.reset(self._token)

    def _settle(self, error: BaseException | None) -> None:
        """Records how the block ended; never hides the error that ended it."""
        if not self.stored.is_open:
            return
        if error is not None and not isinstance(error, Exception) and is_in_run():
            return  # the run waits or is stopped: when it is resumed it enters this block again
        try:
            if error is None:
                stated = NO_OUTCOME
                self.stored = self._decisions.close_entry(self.stored, stated, how="unstated")
            else:
                self.stored = self._decisions.fail(self.stored, error)
        except ExistsError:
            # Code in the block closed it by its id or superseded it.
            _logger.debug('decision "%s" was closed within its block', self.id)
            self.stored = self._decisions.get(self.id)
        except HoldfastError as trouble:
            if error is None:
                raise
            _logger.warning('decision "%s" does not have its error: %s', self.id, trouble)
            error.add_note(f'decision "{self.id}" is open, without this error: {trouble}')

    def __enter__(self) -> OpenDecision:
        self._enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> Literal[False]:
        self._leave()
        self._settle(error)
        return False

    def __repr__(self) -> str:
        return f"<OpenDecision {self.id} {self.stored.status}>"
