"""Retention policies: which data of living scopes is let go, by age, number and size (0049).

A policy without types is about whole scopes. The scopes that it does not keep are removed, as
`remove` does it, and are then in the bin: until the time of grace is over, `retention.bring_back`
restores them completely; after that `retain` lets go of their bytes. A policy with types is about
own events in scopes that stay, or, with the word `messages`, about what was said there. That data
goes when it is as old as the policy and the time of grace together. A policy with the type `state`
is about the changes of states; before they go, a base is made of them (`compaction.py`).

Nothing that is under way is removed: an open decision, an unfinished run, a live worker. A hold
overrides every policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, Head
from holdfast.core import compaction
from holdfast.core.arguments import Duration, check_duration, check_flag, check_ttl, check_whole
from holdfast.core.event import CORE_TYPES, to_datetime
from holdfast.core.layers import held_by
from holdfast.core.limits import DiskWatch, Quota, check_pattern, check_size, fits
from holdfast.core.listing import scope_names
from holdfast.core.log import READ_CHUNK, Log
from holdfast.core.own_event import OWN
from holdfast.core.retention import (
    Binned,
    Condemned,
    Retainer,
    Retention,
    is_named,
    kept_for_forks,
)
from holdfast.errors import (
    ConflictError,
    KeyMissingError,
    NotFoundError,
    UsageError,
    show_value,
)
from holdfast.record import message_events
from holdfast.record.context import context_of

if TYPE_CHECKING:
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.retention")

M = TypeVar("M")
MESSAGES = "messages"
"""In place of types: all messages, whoever wrote them, with tool calls and their results."""
_SAID = (message_events.ADDED, message_events.EDITED)
STATE = "state"
"""In place of types: the changes of the state, which are folded into a base."""


class RetentionPolicy(Struct, frozen=True):
    """What is kept of the scopes that match a pattern; `hf.retention.run()` lets go of the rest.

    Without `types` it removes scopes: those not written to for `older_than`, all but the newest
    `count`, and all but the newest that together hold at most `bytes` of data.

    With `types` scopes stay, and in each of them the data of these events goes by the same three
    limits. Types are names of your own events (`*` at the end matches any ending), or "messages"
    for all messages with their tool calls and results. Messages that went are not listed any more;
    summaries of compacted messages stay. With `types=["state"]` old changes of the state go;
    checkpoints, and every state since the cut, can still be read.

    If several policies match, data goes as soon as one of them does not keep it.
    """

    scopes: str
    types: Sequence[str] = ()
    older_than: Duration | None = None
    count: int | None = None
    bytes: int | str | None = None

    def __post_init__(self) -> None:
        check_pattern(self.scopes, "a retention policy")
        if self.older_than is None and self.count is None and self.bytes is None:
            raise UsageError(
                f"{self} keeps everything: give older_than, count or bytes",
                hint='RetentionPolicy("conversation/*", older_than="90d")',
            )
        if self.older_than is not None:
            check_duration(self.older_than, "older_than")
        if self.count is not None:
            check_whole(self.count, "count", least=1)
        if self.bytes is not None:
            check_size(self.bytes, "bytes")
        _stored_types(self)

    def __str__(self) -> str:
        said = [f"{name}={getattr(self, name)}" for name in ("older_than", "count", "bytes")
                if getattr(self, name) is not None]  # fmt: skip
        types = f" {','.join(self.types)}" if self.types else ""
        return f"{self.scopes}{types} {' '.join(said)}".strip()

    @property
    def age_us(self) -> int:
        """`older_than` in microseconds; 0 if the policy has no age limit."""
        return 0 if self.older_than is None else round(_seconds(self.older_than) * 1_000_000)


def _seconds(value: Duration) -> float:
    return check_duration(value, "older_than")


def _stored_types(policy: RetentionPolicy) -> tuple[str, ...]:
    """Returns the event types that a policy is about, as events have them; or raises UsageError."""
    types: object = policy.types
    if isinstance(types, str) or not isinstance(types, list | tuple):
        raise UsageError(f"types is a list of names, found {show_value(types)}")
    if STATE in policy.types:
        if len(policy.types) > 1:
            raise UsageError(
                f'"{STATE}" stands alone among the types of a policy, found {show_value(types)}',
                hint="write a policy for each",
            )
        return compaction.CHANGES
    for type in policy.types:
        if type == MESSAGES:
            continue
        if not isinstance(type, str) or not type:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a type is the name of an own event, found {show_value(type)}")
        if type in CORE_TYPES or "." in type:
            raise UsageError(
                f'a policy is for types of your own events, found "{type}": data of that type says '
                "how scopes hang together",
                hint=f'leave types out to have whole scopes removed; "{MESSAGES}" is what was said',
            )
    own = [type for type in policy.types if type != MESSAGES]
    said = _SAID if MESSAGES in policy.types else ()
    return (*said, *(OWN + type for type in own))


class _Due(Struct, frozen=True):
    """A scope that a policy removes, with its head at the time of the look."""

    scope: str
    policy: RetentionPolicy
    head: Head


class AppliedPolicies:
    """The policies of one run of `retain`, applied to the scopes of the store."""

    def __init__(
        self,
        log: Log,
        retainer: Retainer,
        policies: Sequence[RetentionPolicy],
        *,
        levels: Callable[[], Sequence[str]],
        scope_of: Callable[[str], Scope],
        grace_s: float,
        before: Callable[[str, Head], None] | None = None,
        said: str = "",
        is_lasting: bool = True,
    ) -> None:
        """Takes the policies, and the functions that list levels and return scopes.

        `before` is called before a scope is removed; if it raises, the scope stays. `said` is put
        before the policy in reports. Without `is_lasting` the policies are for this run only.
        """
        self._is_lasting = is_lasting
        self._before = before
        self._said = said
        self._log = log
        self._retainer = retainer
        self._policies = policies
        self._levels = levels
        self._scope_of = scope_of
        self._now_us = log.clock.now_us()
        self._grace_us = round(grace_s * 1_000_000)
        self._found: list[tuple[RetentionPolicy, dict[str, Head]]] | None = None
        self._removed: set[str] = set()
        self.refused: dict[str, str] = {}
        self.warnings: list[str] = []

    # --- whole scopes ----------------------------------------------------------------------------

    def plan(self, held: set[str]) -> Retention:
        """Returns which scopes would be removed; raises UsageError if a policy can match none."""
        due = self._due()
        binned = [_binned(one) for one in due if one.scope not in held]
        kept = [one.scope for one in due if one.scope in held]
        return Retention([], 0, kept, [], True, binned, self.refused, warnings=self.warnings)

    def apply(self, held: set[str]) -> Retention:
        """Removes these scopes, each noted in the bin first; one in use stays, and is named.

        The note comes first, so that a crash cannot leave a removed scope that the bin does not
        list. A note without a removal is harmless: `in_bin` checks that the scope was removed.
        """
        binned, kept, refused = list[Binned](), list[str](), self.refused
        for one in self._due():
            if one.scope in held:
                kept.append(one.scope)
                continue
            if self._before is not None:
                self._before(one.scope, one.head)
            policy = f"{self._said}{one.policy}"
            self._retainer.tell_binned(one.scope, one.head.revision, policy)
            self._removed.add(one.scope)
            try:
                self._scope_of(one.scope).remove(expected=one.head.revision)
                binned.append(_binned(one))
            except (ConflictError, NotFoundError) as error:
                refused[one.scope] = f"it was written to meanwhile: {error.message}"
            except (UsageError, KeyMissingError) as error:
                refused[one.scope] = error.message
        return Retention([], 0, kept, [], False, binned, refused, warnings=self.warnings)

    def _due(self) -> list[_Due]:
        """Returns the scopes that any policy removes, each once."""
        found: dict[str, _Due] = {}
        for policy, heads in self._matched():
            if not policy.types:
                for name in self._over(policy, heads):
                    found.setdefault(name, _Due(name, policy, heads[name]))
        return [found[name] for name in sorted(found)]

    def _matched(self) -> list[tuple[RetentionPolicy, dict[str, Head]]]:
        """Returns each policy with the scopes that it matches, as they were at the first call.

        Raises UsageError if no scope can match a policy.
        """
        if self._found is None:
            self._found = list(self._match())
        return self._found

    def _match(self) -> Iterator[tuple[RetentionPolicy, dict[str, Head]]]:
        levels = self._levels()
        names = scope_names(self._log, levels, prefix="", after="", limit=None)
        heads = {
            name: head
            for name, head in zip(names, self._log.heads(names), strict=True)
            if head is not None and not self._log.expiry.has_ended(name, head)
        }
        for policy in self._policies:
            is_fit = fits(policy.scopes)
            matched = {name: head for name, head in heads.items() if is_fit(name)}
            if not matched and not self._has_fitted(policy, levels):
                self._tell_useless(policy, levels)
            yield policy, matched

    def _has_fitted(self, policy: RetentionPolicy, levels: Sequence[str]) -> bool:
        """Returns whether any known scope matches, including those that ended or were removed.

        So a policy that has done all its work is not refused, which would stop the others too.
        """
        is_fit = fits(policy.scopes)
        names = self._log.streams(prefix=policy.scopes.partition("*")[0])
        return any(is_fit(name) and name.partition("/")[0] in levels for name in names)

    def _tell_useless(self, policy: RetentionPolicy, levels: Sequence[str]) -> None:
        """Warns of a policy that no scope has matched yet; raises UsageError if none can match."""
        says = f'the retention policy "{policy}" is for no scope of the store'
        if not self._is_lasting or policy.scopes.partition("/")[0] not in levels:
            raise UsageError(
                f"{says}: nothing was let go of",
                hint="holdfast scopes lists the names that there are",
            )
        self.warnings.append(f"{says}, and for none that ever was: is it spelt as it should be?")
        _logger.warning("%s", self.warnings[-1])

    def _over(self, policy: RetentionPolicy, heads: Mapping[str, Head]) -> Iterator[str]:
        """Yields the scopes that a policy does not keep, newest first."""
        newest_first = sorted(heads, key=lambda name: (-heads[name].time, name))
        most = None if policy.bytes is None else check_size(policy.bytes, "bytes")
        total = 0
        for number, name in enumerate(newest_first):
            is_old = policy.age_us and heads[name].time <= self._now_us - policy.age_us
            if most is not None:
                total += self._size(name, heads[name])
            if (
                is_old
                or (policy.count is not None and number >= policy.count)
                or (most is not None and total > most)
            ):
                yield name

    def _size(self, name: str, head: Head) -> int:
        size, after = 0, max(self._log.life(name, head.revision), head.first - 1)
        while after < head.revision:
            page = self._log.read(name, after=after, until=head.revision, limit=READ_CHUNK)
            size += sum(len(record.payload) for record in page)
            after = page[-1].revision
        return size

    # --- events of scopes that stay --------------------------------------------------------------

    def condemned(self, *, dry_run: bool) -> Iterator[Condemned]:
        """Yields the data that goes in scopes that stay; data younger than the grace never goes.

        Before old changes of a state go, a base is written with the state that they led to.
        """
        typed = [(policy, heads) for policy, heads in self._matched() if policy.types]
        kept = kept_for_forks(self._log) if typed else {}
        for policy, heads in typed:
            types = _stored_types(policy)
            for name in sorted(heads.keys() - self._removed):  # the bin keeps what it has
                head = heads[name]
                after = max(kept.get(name, 0), head.first - 1)
                after = max(after, self._log.life(name, head.revision))
                until = self._cut(policy, types, name, head, after)
                if until <= after:
                    continue
                try:
                    one = self._condemned(policy, name, head, after, until, dry_run)
                except KeyMissingError as error:
                    self.refused[name] = error.message  # one lost key stops no other scope
                    continue
                if one is not None:
                    yield one

    def _condemned(
        self,
        policy: RetentionPolicy,
        name: str,
        head: Head,
        after: int,
        until: int,
        dry_run: bool,
    ) -> Condemned | None:
        if MESSAGES in policy.types and (under_way := self._under_way(name)):
            self.refused[name] = under_way  # whoever works there may still need the past
            return None
        if STATE in policy.types:
            return self._compacted(name, head, after, until, dry_run)
        return Condemned(name, "policy", self._now_us, after, until, _stored_types(policy))

    def _under_way(self, name: str) -> str:
        context = context_of(self._scope_of(name))
        return "; ".join(held_by(context, name))

    def _compacted(
        self, name: str, head: Head, after: int, cut: int, dry_run: bool
    ) -> Condemned | None:
        """Returns which changes of a state go, after writing a base with the state they led to.

        None if nothing would go, or if the scope does not allow it: it is closed, was written to
        meanwhile, or has something under way that may still need the past.
        """
        after = max(after, compaction.folded_until(self._log, name, after))
        if cut <= after:
            return None
        found = Condemned(name, "compacted", self._now_us, after, cut, compaction.TYPES)
        if dry_run or name in self._retainer.held():
            return replace(found, kept=compaction.must_stay(self._log, name, head))
        under_way = self._under_way(name)
        if under_way or self._scope_of(name).life.is_closed:
            self.refused[name] = under_way or "it is closed, and takes no base"
            return None
        try:
            held = compaction.write_base(self._log, name, head, after=after, cut=cut)
        except ConflictError as error:
            self.refused[name] = f"it was written to meanwhile: {error.message}"
            return None
        return None if held is None else replace(found, kept=held)

    def _cut(
        self,
        policy: RetentionPolicy,
        types: tuple[str, ...],
        name: str,
        head: Head,
        after: int,
    ) -> int:
        """Returns the revision up to which events of some types go; `after` if none do."""
        latest = self._log.revision_at_time(name, self._now_us - self._grace_us)
        cut = after
        if policy.age_us:
            cut = self._log.revision_at_time(name, self._now_us - policy.age_us - self._grace_us)
        most = None if policy.bytes is None else check_size(policy.bytes, "bytes")
        count = size = 0
        until = head.revision
        while until > cut and (policy.count is not None or most is not None):
            begin = max(until - READ_CHUNK, cut)
            for record in reversed(self._log.stored(name, after=begin, until=until)):
                if not is_named(record.type, types):
                    continue
                count += 1
                size += len(record.payload)
                is_over = policy.count is not None and count > policy.count
                if is_over or (most is not None and size > most):
                    return max(cut, min(record.revision, latest))
            until = begin
        return max(cut, after)


def _binned(one: _Due) -> Binned:
    return Binned(one.scope, str(one.policy), to_datetime(one.head.time), one.head.revision)


def in_bin(log: Log, retainer: Retainer) -> list[Binned]:
    """Returns the scopes that policies have removed and that can still be brought back, by name."""
    found: list[Binned] = []
    for name, (revision, policy) in sorted(retainer.binned().items()):
        removed_at = log.life(name)
        [head] = log.heads([name])
        if head is None or head.revision != removed_at or removed_at != revision + 1:
            continue
        before = log.record(name, revision)
        if before.payload != GONE:
            since = to_datetime(log.record(name, removed_at).time)
            found.append(Binned(name, policy, since, revision))
    return found


def unretain(log: Log, retainer: Retainer, scope: Scope) -> int:
    """Takes a scope out of the bin by undoing its removal; returns the new revision.

    Raises NotFoundError if it is not in the bin: no policy has removed it, or its bytes are gone.
    """
    if all(one.scope != scope.name for one in in_bin(log, retainer)):
        raise NotFoundError(
            f'scope "{scope.name}" is not in the bin: no policy has removed it, or its bytes went',
            hint="undo takes back a removal by hand; hf.retention.bin() lists the bin",
        )
    return scope.undo()


# --- in a file ------------------------------------------------------------------------------------


class LevelRule:
    """A TOML file's rule for the scopes of a level: when they end, and what closing one does."""

    def __init__(
        self,
        *,
        expires: Duration | None = None,
        slides: bool = True,
        on_close: Literal["keep", "drop"] | None = None,
    ) -> None:
        if expires is not None:
            check_ttl(expires)
        if on_close not in (None, "keep", "drop"):
            raise UsageError(f'on_close is "keep" or "drop", found {show_value(on_close)}')
        self.expires = expires
        self.slides = check_flag(slides, "slides")
        self.on_close = on_close


class Care(Struct, frozen=True):
    """The settings of a store in a TOML file, apart from its location."""

    retention: tuple[RetentionPolicy, ...] = ()
    quotas: tuple[Quota, ...] = ()
    disk: DiskWatch | None = None
    levels: dict[str, LevelRule] = {}


def check_policies(policies: object) -> tuple[RetentionPolicy, ...]:
    """Returns the retention policies given to a store as a tuple, or raises UsageError."""
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        raise UsageError(f"retention policies are a list, found {show_value(policies)}")
    for one in cast("Sequence[object]", policies):
        if not isinstance(one, RetentionPolicy):
            raise UsageError(f"expected a RetentionPolicy, found {show_value(one)}")
    return tuple(cast("Sequence[RetentionPolicy]", policies))


_EXAMPLE = 'write [[retention]], then lines such as scopes = "conversation/*", older_than = "90d"'


def read_care(path: str, tables: Mapping[str, Any]) -> Care:
    """Reads the tables `[[retention]]`, `[[quotas]]`, `[disk_watch]` and `[levels.NAME]` of a file.

    Raises UsageError, which names the table.
    """
    policies = _each(path, tables, "retention", RetentionPolicy)
    quotas = _each(path, tables, "quotas", Quota)
    disk = None
    if "disk_watch" in tables:
        disk = _made(path, "[disk_watch]", DiskWatch, tables["disk_watch"])
    levels = cast("dict[str, object]", tables.get("levels", {}))
    rules = {name: _made(path, f"[levels.{name}]", LevelRule, one) for name, one in levels.items()}
    return Care(tuple(policies), tuple(quotas), disk, rules)


def _each(path: str, tables: Mapping[str, Any], name: str, kind: Callable[..., M]) -> Iterator[M]:
    found: object = tables.get(name, [])
    if not isinstance(found, list):
        raise UsageError(f'"{path}" has one [{name}]: expected [[{name}]]', hint=_EXAMPLE)
    for table in cast("list[object]", found):
        yield _made(path, f"[[{name}]]", kind, table)


def _made(path: str, where: str, kind: Callable[..., M], table: object) -> M:
    if not isinstance(table, dict):
        raise UsageError(f'"{path}" has no table {where}: found {show_value(table)}', hint=_EXAMPLE)
    try:
        return kind(**cast("dict[str, Any]", table))
    except TypeError as error:
        raise UsageError(f'"{path}" has a {where} that is none: {error}', hint=_EXAMPLE) from error
    except UsageError as error:
        raise UsageError(f'"{path}", {where}: {error.message}', hint=error.hint) from error
