"""Facts: claims about the outside world, with how to verify them and until when they count.

    fact.stated        {"name", "value", "about"?, "verify"?, "valid_s"?, "at"?, "by"}
    fact.verified      {"name", "of", "by", "at", "found"?}  a verifier said that it still holds
    fact.contradicted  {"name", "of", "by", "found"?}     a verifier found otherwise
    fact.withdrawn     {"name", "of", "by"}

`of` is the number of the statement that an event is about, so a fact that was verified a thousand
times is read with two lookups. `at` is the writer's own clock. The times of events cannot be used:
they never fall within a stream, so one writer whose clock was ahead would make every later fact in
the stream last longer. Whether a fact is stale is judged when it is read, before anybody can act on
it. A fact that counts has a mark that is due when its time is over, so facts past their time are
found without reading any stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Mark, Record
from holdfast.core import codec
from holdfast.core.arguments import check_duration, check_text, older_bound
from holdfast.core.commit import NewEvent, StreamWrite
from holdfast.core.event import to_datetime
from holdfast.core.intent import Unknown, verifiers
from holdfast.core.log import scope_stream
from holdfast.core.page import NO_LIMIT
from holdfast.core.sealing import Seal
from holdfast.core.tree import Op
from holdfast.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    ExpiredError,
    NotFoundError,
    show_error,
    show_value,
)
from holdfast.names import check_name
from holdfast.record import keyed_item
from holdfast.record.context import RecordContext, Stale
from holdfast.record.in_run import refuse_in_body
from holdfast.record.keyed_item import KeyedItem

if TYPE_CHECKING:
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.record")

STATED = "fact.stated"
VERIFIED = "fact.verified"
CONTRADICTED = "fact.contradicted"
WITHDRAWN = "fact.withdrawn"

KIND = "fact"
INDEX = "fact"
"""Has a mark for each fact that counts, due when its time is over."""
INDEX_KEPT = "fact.kept"
"""Has the marks of facts that need no more attention: withdrawn, or in closed scopes."""
NEVER_US = 1 << 62


class Holds(Struct, frozen=True):
    """A verifier's answer that a fact is still true; `found` is what it saw."""

    found: Any = None


class Contradicted(Struct, frozen=True):
    """A verifier's answer that a fact is no longer true; `found` is what it saw instead."""

    found: Any = None


class Fact(Struct, frozen=True, kw_only=True):
    """A fact at the time it was read. If it is `stale`, do not act on it; `reason` says why."""

    name: str
    value: Any
    scope: str
    about: str | None = None
    stated_at: datetime
    stated_by: str
    updated_at: datetime
    verify: str | None = None
    valid_until: datetime | None = None
    valid_s: float | None = None
    verified_at: datetime | None = None
    contradicted_at: datetime | None = None
    found: Any = None
    """What the last verifier saw."""
    stale: bool = False
    reason: str | None = None

    @property
    def key(self) -> str:
        """Its name, for verifiers that are also used for decisions, which have a key."""
        return self.name


class FactCheck(Struct, frozen=True):
    """A fact, and its verifier's answer of just now."""

    fact: Fact
    verdict: Holds | Contradicted | Unknown


class Facts:
    """The facts of one scope, including those that a fork inherited."""

    def __init__(self, context: RecordContext, scope: Scope) -> None:
        self._context = context
        self._log = context.log
        self._scope = scope

    def state(
        self,
        name: str,
        value: Any,
        *,
        verify: object = None,
        valid_for: object = None,
        about: str | None = None,
        subject: str | None = None,
    ) -> Fact:
        """States a fact, which replaces an earlier one of that name; durable when it returns.

        `verify` is a registered verifier or its name. `valid_for` is a length of time such as "1h".
        With `subject`, value and `about` are sealed with that subject's key, and read as ERASED
        after `erase`. The name is not sealed, because facts are found by it.
        """
        refuse_in_body("a fact")
        item = KeyedItem(KIND, self._scope.name, keyed_item.check_item_name(name, "a fact's name"))
        data: dict[str, Any] = {"name": name, "by": self._context.worker}
        seal = None
        if subject is not None:
            seal = self._log.seal_for(self._scope.name, check_name(subject, "subject"))
        if about is not None:
            data["about"] = check_text(about, "about")
            if seal is not None:
                data["about"] = sealed(self._context, item.stream, data["about"], seal)
        if verify is not None:
            data["verify"] = verifiers.name(verify)
        if valid_for is not None:
            data["valid_s"] = check_duration(valid_for, "valid_for")
            data["at"] = self._log.clock.now_us()
        op = Op("set", ("value",), Raw(codec.encode(value)))
        blobs = self._log.blobs
        spilled = blobs.spill(op, item.stream) if seal is None else None
        raw = (spilled or blobs.sealed(op, item.stream, cast("Seal", seal))).value
        fields = {field: Raw(codec.encode(one)) for field, one in data.items()}
        of = () if seal is None else (seal.subject,)
        payload = codec.encode_plain({**fields, "value": raw})
        new_event = NewEvent(STATED, payload, sealed_for=of)

        def make(number: int, _of: int) -> StreamWrite:
            return scope_stream(self._scope).write((new_event,), key=item.key(number))

        append(self._context, item, make, _due(data.get("at", 0), data.get("valid_s")))
        return self.get(name)

    def get(self, name: str) -> Fact:
        """Returns a fact, marked stale if its time is over or a verifier contradicted it."""
        fact = self._find(keyed_item.check_item_name(name, "a fact's name"))
        if fact is None:
            raise NotFoundError(
                f'"{self._scope.name}" has no fact {show_value(name)}',
                hint="list the facts of the scope: each has its name",
            )
        return fact

    def list(self, *, older_than: object = None) -> list[Fact]:
        """Returns the facts of the scope by name, or those not updated for `older_than`."""
        keyed_item.check_not_dropped(self._log, self._scope.name)
        names = {
            name
            for stream, until in keyed_item.lineage(self._log, self._scope.name)
            for name in self._names_in(stream, until)
        }
        found = [fact for name in sorted(names) if (fact := self._find(name)) is not None]
        if older_than is None:
            return found
        latest = older_bound(self._log.clock.now_us(), older_than)
        return [fact for fact in found if fact.updated_at <= latest]

    def _names_in(self, stream: str, until: int | None) -> Iterator[str]:
        """Yields the names of the facts that may count in a stream, found by their marks.

        A removal clears the marks. What a fork inherited from before is then found by its events.
        """
        if keyed_item.is_removed_since(self._log, stream, until):
            for record in self._log.read(stream, after=self._log.life(stream, until), until=until):
                if record.type == STATED:
                    yield _data(self._context, record)["name"]
            return
        for index in (INDEX, INDEX_KEPT):
            for mark in self._log.find_marks(index, group=stream):
                yield KeyedItem.from_mark(KIND, mark, self._log).name

    def check(self, name: str) -> Fact:
        """Asks the fact's verifier now, records its answer and returns the fact."""
        refuse_in_body("asking about a fact")
        fact = self.get(name)
        if fact.scope == self._scope.name:
            return check_fact(self._context, fact).fact
        # The fact is inherited. The answer is not recorded, because a fork does not write to the
        # stream of its origin.
        return _with_verdict(fact, ask_verifier(fact))

    def withdraw(self, name: str) -> None:
        """Withdraws a fact, which is not listed any more; its history stays."""
        refuse_in_body("withdrawing a fact")
        fact = self.get(name)
        item = KeyedItem(KIND, self._scope.name, fact.name)
        data = {"name": fact.name, "by": self._context.worker}
        append(self._context, item, _event_about(item, WITHDRAWN, data), None)

    def _find(self, name: str) -> Fact | None:
        """Returns a fact by its name; None if there is none, or it was withdrawn."""
        records = current_records(self._context, self._scope.name, name)
        return None if records is None else fold(self._context, *records)


def sealed(context: RecordContext, stream: str, value: Any, seal: Seal) -> codec.SealedLeaf:
    """Returns a value of a subject's fact, sealed."""
    op = Op("set", ("value",), Raw(codec.encode(value)))
    return codec.SealedLeaf(bytes(context.log.blobs.sealed(op, stream, seal).value))


def current_records(context: RecordContext, stream: str, name: str) -> tuple[Record, Record] | None:
    """Does the same as `read_records`, in the scope or else in the scopes it was forked from."""
    for one, until in keyed_item.lineage(context.log, stream):
        records = read_records(context, KeyedItem(KIND, one, name), until)
        if records is not None:
            return records
    return None


def read_records(
    context: RecordContext, item: KeyedItem, until: int | None = None
) -> tuple[Record, Record] | None:
    """Returns the statement that counts and the newest event about it; None if there is none."""
    found = _current(context, item, until)
    return None if found is None else found[1:]


def _current(
    context: RecordContext, item: KeyedItem, until: int | None = None
) -> tuple[int, Record, Record] | None:
    """Returns the same as `read_records`, with the number of the statement first."""
    known = context.known_numbers.get(item, 0)
    newest = keyed_item.newest_record(context.log, item, known=known, until=until)
    if newest is None:
        return None
    number, record = newest
    if until is None:
        context.remember_number(item, number)
    if record.type in (STATED, WITHDRAWN):
        return number, record, record
    of = _data(context, record)["of"]
    revision = keyed_item.find_event(context.log, item, of)
    return of, keyed_item.record_at(context.log, item, revision), record


def fold(context: RecordContext, stated: Record, newest: Record) -> Fact | None:
    """Returns the fact that a statement and the newest event about it make; None if withdrawn."""
    if newest.type == WITHDRAWN:
        return None
    data, later = _data(context, stated), _data(context, newest)
    valid_s = data.get("valid_s")
    since, record = (later, newest) if newest.type == VERIFIED else (data, stated)
    since_us = since.get("at", record.time)
    reason = None
    if newest.type == CONTRADICTED:
        reason = _reason(data.get("verify"), later.get("found"))
    elif valid_s is not None:
        reason = _expiry_reason(since_us, valid_s, context.log.clock.now_us())
    return Fact(
        name=data["name"],
        value=data["value"],
        scope=stated.stream,
        about=data.get("about"),
        stated_at=to_datetime(stated.time),
        stated_by=data["by"],
        updated_at=to_datetime(newest.time),
        verify=data.get("verify"),
        valid_until=None if valid_s is None else to_datetime(_due(since_us, valid_s)),
        valid_s=valid_s,
        verified_at=None if newest.type != VERIFIED else to_datetime(newest.time),
        contradicted_at=None if newest.type != CONTRADICTED else to_datetime(newest.time),
        found=later.get("found"),
        stale=reason is not None,
        reason=reason,
    )


def append(
    context: RecordContext,
    item: KeyedItem,
    make: Callable[[int, int], StreamWrite],
    due: int | None,
    *,
    about: int | None = None,
) -> None:
    """Commits a fact's next event; `make` gets its number and that of the statement it is about.

    `due` is when the fact's time is over. None means that the fact is withdrawn: its mark moves to
    `INDEX_KEPT`, because a fork from before still lists it. With `about` the event is written only
    while the statement of that number counts, because a verifier's answer about one statement says
    nothing about the next.
    """
    marks = (item.cleared(INDEX), item.mark(INDEX_KEPT)) if due is None else ()
    marks = marks or (item.mark(INDEX, due=due or 0),)
    while True:
        of, number, follows = 0, 0, 0
        newest = keyed_item.newest_record(
            context.log, item, known=context.known_numbers.get(item, 0)
        )
        if newest is not None:
            (number, record), follows = newest, newest[1].revision
            of = number if record.type == STATED else _data(context, record)["of"]
            if about is not None and (of != about or record.type == WITHDRAWN):
                return
        elif about is not None:
            return  # the scope was removed, and the statement with it
        write = make(number + 1, of)
        try:
            keyed_item.append(context.log, item, number + 1, write, marks=marks, follows=follows)
        except ConflictError:
            # Another worker wrote an event of this fact first. This one gets the next number.
            _logger.debug('fact "%s" of "%s" changed: writing again', item.name, item.stream)
            continue
        context.remember_number(item, number + 1)
        return


def marked_facts(context: RecordContext, *, due_before: int | None = None) -> Iterator[Fact]:
    """Yields the facts of all scopes, or those whose time is over, found by their marks."""
    return _facts_of(context, _marks(context, due_before))


def all_facts(context: RecordContext) -> Iterator[Fact]:
    """Yields the facts of all scopes that count, those that last and those with a time."""
    marks = [
        mark
        for index in (INDEX, INDEX_KEPT)
        for mark in context.log.find_marks(index, limit=NO_LIMIT)
    ]
    # One that was withdrawn and stated again has a mark in both.
    return _facts_of(context, {mark.key: mark for mark in marks}.values())


def _facts_of(context: RecordContext, marks: Iterable[Mark]) -> Iterator[Fact]:
    """Yields the facts that marks stand for and that count; those of expired scopes do not."""
    for mark in marks:
        try:
            records = read_records(context, KeyedItem.from_mark(KIND, mark, context.log))
        except ExpiredError:
            _logger.debug('mark "%s" is of an expired scope: passed over', mark.key)
            continue
        fact = None if records is None else fold(context, *records)
        if fact is not None:
            yield fact


def marks_at_close(
    context: RecordContext, stream: str, *, keep: bool
) -> tuple[Mark | Cleared, ...]:
    """Returns the changes of marks for the facts of a scope that is being closed."""
    changed: list[Mark | Cleared] = []
    for mark in _marks(context, None):
        if mark.group == stream:
            item = KeyedItem.from_mark(KIND, mark, context.log)
            changed.append(item.cleared(INDEX))
            changed += [item.mark(INDEX_KEPT, due=mark.due)] * keep
    return tuple(changed)


def check_fact(context: RecordContext, fact: Fact) -> FactCheck:
    """Asks a fact's verifier, and records the answer if it changes anything.

    That a fact without a time limit still holds changes nothing, nor does an unknown answer.
    """
    item = KeyedItem(KIND, fact.scope, fact.name)
    found = _current(context, item)
    now = None if found is None else fold(context, *found[1:])
    if found is None or now is None:
        return FactCheck(fact, Unknown("it was withdrawn"))
    if now.value is codec.ERASED:
        return FactCheck(now, Unknown("it was a subject's, which is erased"))
    fact, verdict = now, ask_verifier(now)
    if keyed_item.is_closed(context.log, fact.scope):
        return FactCheck(_with_verdict(fact, verdict), verdict)
    contradicted = isinstance(verdict, Contradicted)
    was_contradicted = fact.contradicted_at is not None
    is_news = contradicted != was_contradicted or fact.valid_until is not None
    if isinstance(verdict, Unknown) or not is_news:
        return FactCheck(fact, verdict)
    data: dict[str, Any] = {"name": fact.name, "by": context.worker}
    subjects = codec.subjects_in(found[1].payload)
    if verdict.found is not None:
        data["found"] = verdict.found
        for subject in subjects:
            seal = context.log.sealing.of(subject)
            data["found"] = sealed(context, fact.scope, verdict.found, seal)
    type = CONTRADICTED if contradicted else VERIFIED
    due = 0
    if not contradicted:
        data["at"] = context.log.clock.now_us()
        due = _due(data["at"], fact.valid_s)
    try:
        append(context, item, _event_about(item, type, data), due, about=found[0])
    except ClosedError:
        _logger.debug('scope "%s" was closed meanwhile: the answer is not recorded', fact.scope)
        return FactCheck(_with_verdict(fact, verdict), verdict)
    records = read_records(context, item)
    if records is None:
        return FactCheck(fact, Unknown("its scope was removed"))
    return FactCheck(fold(context, *records) or fact, verdict)


def ask_verifier(fact: Fact) -> Holds | Contradicted | Unknown:
    """Asks the fact's verifier; never raises: a failure of the verifier is `Unknown`.

    A verifier of facts may also answer True or False.
    """
    if fact.verify is None:
        return Unknown("it has no verifier")
    function = verifiers.find(fact.verify)
    if function is None:
        return Unknown(f'verifier "{fact.verify}" is not registered in this process')
    try:
        answer = function(fact)
    except Exception as error:
        _logger.warning('verifier "%s" raised %s', fact.verify, type(error).__name__)
        return Unknown(f'verifier "{fact.verify}" raised {show_error(error)[:200]}')
    if isinstance(answer, bool):
        return Holds() if answer else Contradicted()
    if isinstance(answer, Holds | Contradicted | Unknown):
        return answer
    return Unknown(
        f'verifier "{fact.verify}" answered {show_value(answer)}, '
        "not Holds, Contradicted or Unknown"
    )


def _event_about(
    item: KeyedItem, type: str, data: dict[str, Any]
) -> Callable[[int, int], StreamWrite]:
    """Returns a function for `append` that makes an event of that type about a statement."""

    def make(number: int, of: int) -> StreamWrite:
        new_event = NewEvent(type, codec.encode({**data, "of": of}))
        return keyed_item.next_write(item, number, new_event)

    return make


def _reason(verify: str | None, found: Any) -> str:
    return f"contradicted by {verify}" + ("" if found is None else f": {show_value(found)}")


def _with_verdict(fact: Fact, verdict: Holds | Contradicted | Unknown) -> Fact:
    """Returns a fact with a verdict that is not recorded in the store."""
    if not isinstance(verdict, Contradicted):
        return fact
    return replace(fact, stale=True, reason=_reason(fact.verify, verdict.found))


def _due(since_us: int, valid_s: float | None) -> int:
    """Returns when a fact's time is over."""
    return NEVER_US if valid_s is None else min(since_us + round(valid_s * 1e6), NEVER_US)


def _expiry_reason(since_us: int, valid_s: float, now_us: int) -> str | None:
    """Returns why a fact with a time limit does not count now; None if it does.

    If the fact was stated further in the future than it may last, a clock was wrong, and nobody
    knows how old the fact is. So it counts as stale; otherwise it could be believed for years.
    """
    due = _due(since_us, valid_s)
    if now_us >= due:
        return f"past its time since {to_datetime(due)}"
    if since_us - now_us > round(valid_s * 1e6):
        return f"its clock was ahead of this one: it says {to_datetime(since_us)}"
    return None


def _marks(context: RecordContext, due_before: int | None) -> list[Mark]:
    return context.log.marks.list(INDEX, due_before=due_before, limit=NO_LIMIT)


def _data(context: RecordContext, record: Record) -> dict[str, Any]:
    def blob(name: str, size: int) -> Any:
        return codec.decode(context.log.blobs.read(name, size))

    data = codec.decode(record.payload, blob=blob)
    required = ("name", "value", "by") if record.type == STATED else ("name", "of", "by")
    if not isinstance(data, dict) or not all(field in data for field in required):
        raise CorruptError(
            f'event {record.revision} of "{record.stream}" has no valid data of "{record.type}"',
            stream=record.stream,
            revision=record.revision,
        )
    return cast("dict[str, Any]", data)


def stale_facts(context: RecordContext, *, verify: bool) -> Iterator[Stale]:
    """Yields the facts that are stale; with `verify` every verifier is asked now.

    A verifier that says a fact still holds makes it fresh again, even one past its time.
    """
    due_before = None if verify else context.log.clock.now_us()
    for fact in marked_facts(context, due_before=due_before):
        if verify and fact.verify is not None:
            try:
                fact = check_fact(context, fact).fact
            except ExpiredError:
                _logger.debug('scope "%s" expired while its fact was verified', fact.scope)
                continue
        if fact.contradicted_at is not None:
            since, why = fact.contradicted_at, "contradicted"
        elif fact.stale and fact.valid_until is not None:
            since, why = fact.valid_until, "past its time"
        else:
            continue
        yield Stale("fact", fact.name, fact.scope, why, fact.reason or "", since)
