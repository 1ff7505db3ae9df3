"""The store: what `holdfast.open` returns. It assembles the parts and decides nothing."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from msgspec.structs import replace

from holdfast.agents.command import Command
from holdfast.agents.protocol import Executor
from holdfast.backends.place import copy_reports
from holdfast.backends.protocol import (
    DURABILITIES,
    START,
    Backend,
    Durability,
    Held,
    Lease,
    Leftover,
    Mark,
    Position,
)
from holdfast.backends.registry import check_backend, looked_at, open_backend
from holdfast.backends.tenancy import TenantRecord, check_tenant
from holdfast.clock import Clock, SystemClock
from holdfast.context.parts import PromptContext, Strategy
from holdfast.core import mark_ends
from holdfast.core.arguments import (
    Duration,
    check_call,
    check_flag,
    check_seconds,
    check_since,
    check_text,
    check_timeout,
    check_ttl,
    check_whole,
    name_of,
)
from holdfast.core.check import Report, check_store, content_of
from holdfast.core.consumers import (
    LOOK_S,
    Follower,
    Group,
    Groups,
    GroupStatus,
    Start,
    StoreFollower,
)
from holdfast.core.dispatcher import (
    EVERY,
    OnError,
    Subscriber,
    Subscription,
)
from holdfast.core.encryption import Encryption, KeyStatus, check_plain
from holdfast.core.event import Change, Event, to_datetime
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.intent import Recovery, Verdict
from holdfast.core.kernel import Kernel
from holdfast.core.key_place import to_keys
from holdfast.core.key_tables import TableKeys
from holdfast.core.keystore import FolderKeys, KeyStore, default_folder, is_pseudonym
from holdfast.core.layers import kept_with, reserved_prefixes
from holdfast.core.leases import (
    HEARTBEAT_S,
    HeldLease,
    Worker,
    acquire,
    acquire_within,
    renew,
)
from holdfast.core.limits import DiskWatch, Quota, quotas_of
from holdfast.core.listing import (
    adopt_levels,
    first_words,
    note_level,
    scope_names,
    stored_prefix,
    whole_ids,
)
from holdfast.core.log import Log
from holdfast.core.meta import Meta
from holdfast.core.migrate import Migration, migrate, outdated, typed_scopes
from holdfast.core.observe import Observer, Tracer
from holdfast.core.page import (
    NO_LIMIT,
    PAGE_SIZE,
    Page,
    check_limit,
    cut,
    mark_key,
    read_mark,
    write_cursor,
)
from holdfast.core.paging import event_page
from holdfast.core.provenance import Said, Source, check_provenance
from holdfast.core.redaction import Mode, Redactor, check_rules, stricter
from holdfast.core.retention import GRACE_S, Binned, Hold, LetGo, Retainer, Retention
from holdfast.core.retry import RETRIES, persist
from holdfast.core.sealing import Sealing
from holdfast.core.store_key import StoreKey, to_store_key
from holdfast.core.transaction import View
from holdfast.core.tree import Map
from holdfast.core.typed import Typed
from holdfast.erasure import Erasure, ErasureReceipt, Subject
from holdfast.errors import (
    CorruptError,
    ExpiredError,
    HoldfastError,
    StoreKeyError,
    UsageError,
    show_value,
)
from holdfast.git.auto_commit import Configured
from holdfast.git.rewinds import Rewinds
from holdfast.git.witness import loss_reports, remember
from holdfast.joint_commit import JointCommit
from holdfast.names import (
    CONVERSATION,
    ESCAPE,
    GLOBAL,
    SCHEME,
    TEAM,
    WORKFLOW,
    Levels,
    check_lease_name,
    check_level,
    check_name,
    check_scope_name,
    has_digest,
    split_name,
    without_secrets,
    worker_id,
)
from holdfast.nodes import explain
from holdfast.nodes.define import Graph
from holdfast.nodes.explain import Plan, StoredNode, Why
from holdfast.nodes.process import Walk, process
from holdfast.nodes.results import NodeState
from holdfast.nodes.run import process_as_run
from holdfast.nodes.walk import Nodes
from holdfast.projections import Projected, Projection, Projections
from holdfast.projects.project import Project
from holdfast.query.form import (
    SQL_BYTES_MAX,
    SQL_ROWS_MAX,
    SQL_TIMEOUT_S,
    TIMEOUT_S,
    Hit,
    Hits,
    Kind,
    Rows,
    Where,
    check_where,
)
from holdfast.query.links import DanglingLink
from holdfast.query.paths import StateIndex, check_indexes
from holdfast.query.questions import IndexStatus, Questions
from holdfast.query.vectors import Embedder, Similar, check_embedder
from holdfast.record import catches, sessions
from holdfast.record.audit import Audit
from holdfast.record.catches import Catch
from holdfast.record.context import RecordContext, Stale
from holdfast.record.decisions import (
    Decision,
    Decisions,
    Policy,
    PolicyMode,
    secret_rules,
    set_policy,
    term_of_level,
    terms_of_levels,
)
from holdfast.record.recovery import recover, stale
from holdfast.record.retention_policies import (
    AppliedPolicies,
    Care,
    LevelRule,
    RetentionPolicy,
    in_bin,
    read_care,
    unretain,
)
from holdfast.record.sessions import Session
from holdfast.record.task_events import Task
from holdfast.record.tasks import open_tasks
from holdfast.record.trust import read_config
from holdfast.runs import admin
from holdfast.runs.admin import RunSummary, recovered_steps
from holdfast.runs.define import RunFunction, is_run
from holdfast.runs.engine import Engine, Run
from holdfast.runs.events import Status
from holdfast.runs.waits import check_id, message_name
from holdfast.scope import (
    ConversationScope,
    GlobalScope,
    Scope,
    TeamScope,
    WorkflowScope,
    scope_class,
)
from holdfast.scratch import Scratches, ScratchScope
from holdfast.undo import Undoing, Undone
from holdfast.views.config import state_views
from holdfast.views.directory import FileView, Views

_logger = logging.getLogger("holdfast.store")
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    S = _TypeVar("S", default=Any)
else:
    S = TypeVar("S")
_STATUSES = Status.__args__


def _files_follow(
    erase: Callable[Concatenate[Store, P], ErasureReceipt],
) -> Callable[Concatenate[Store, P], ErasureReceipt]:
    """Has the files that views of this handle show be written anew after an erasure.

    What somebody edited is taken in before it: else it would bring back what was erased. A file
    that cannot be written is told as left, and keeps nothing from being erased.
    """

    @functools.wraps(erase)
    def erased(self: Store, /, *given: P.args, **more: P.kwargs) -> ErasureReceipt:
        if more.get("dry_run"):
            return erase(self, *given, **more)
        self._sync_views()
        receipt = erase(self, *given, **more)
        return replace(receipt, left=[*receipt.left, *self._sync_views()])

    return erased


class _DefaultPlace(str):
    """The path of a store that none is named for: another object than the same path if given."""


DEFAULT_PLACE = _DefaultPlace(".holdfast")


class _StateFiles(str):
    """The path of a files store whose folder shows every state as a file (0051)."""

    directory: str
    suffix: str


EXPIRES_S = 3600.0
"""How long the scopes of a level last that is told to expire, unless another time is given."""


class Store:
    """Streams of events with scopes on them. Thread-safe; close it, or use it as a context."""

    def __init__(
        self,
        log: Log,
        *,
        url: str,
        worker: str,
        levels: Levels | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        read_only: bool = False,
        clear_ids: bool = False,
        retention: Sequence[RetentionPolicy] = (),
        indexes: Sequence[StateIndex] = (),
        embedder: Embedder | None = None,
        secrets: Mapping[str, Mode] | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self._kernel = Kernel(
            log,
            url=url,
            worker=worker,
            levels=levels or Levels(reserved=reserved_prefixes()),
            heartbeat_s=heartbeat_s,
            read_only=read_only,
            encryption=encryption,
        )
        self._log = log
        self._encryption = encryption
        self._clear_ids = clear_ids
        self._retention = retention
        self.lease_keeper = self._kernel.leases
        self._groups = Groups(log, self.lease_keeper)
        self.url = url
        self.worker = worker
        self._levels = self._kernel.levels
        for level in self._levels.registered():
            note_level(log, level)
        self._are_levels_looked_at = False
        self._context = RecordContext(log, self.lease_keeper)
        log.expiry.of_level = partial(term_of_level, log, self._levels.reserved)
        self._engine = Engine(self)
        self._nodes = Nodes(self)
        self._questions = Questions(
            self._context, read_only=read_only, indexes=indexes, embedder=embedder
        )
        self._context.find_decisions = self._questions.find_decisions
        self._retainer = Retainer(log, self.lease_keeper, self._forget_copies)
        self._erasure = Erasure(self._context, self._retainer, self._levels)
        self._projections = Projections(log)
        self._scratches = Scratches(log.clock, log.actor, self.global_())
        self._closing: list[Callable[[], object]] = []  # views that end before the log does
        self._views: list[Views] = []
        self._configured: Configured | None = None
        self._read_only = read_only
        self._use_secrets(secrets or {})
        self._async_stores: list[Any] = []  # one for each event loop that uses this store

    # --- scopes ----------------------------------------------------------------------------------

    def global_(self, schema: type[S] | None = None) -> GlobalScope[S]:
        """Returns the one global scope."""
        return cast("GlobalScope[S]", self.scope(GLOBAL, schema=schema))

    def team(
        self,
        id: str,
        schema: type[S] | None = None,
        *,
        parent: Scope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> TeamScope[S]:
        """Returns a team's scope."""
        return cast(
            "TeamScope[S]",
            self.scope(
                TEAM, id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
            ),
        )

    def workflow(
        self,
        id: str,
        schema: type[S] | None = None,
        *,
        parent: Scope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> WorkflowScope[S]:
        """Returns a workflow's scope."""
        return cast(
            "WorkflowScope[S]",
            self.scope(
                WORKFLOW, id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
            ),
        )

    def conversation(
        self,
        id: str,
        schema: type[S] | None = None,
        *,
        parent: Scope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> ConversationScope[S]:
        """Returns a conversation's scope."""
        return cast(
            "ConversationScope[S]",
            self.scope(
                CONVERSATION, id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
            ),
        )

    def scope(
        self,
        level: str,
        id: str | None = None,
        schema: type[S] | None = None,
        *,
        parent: Scope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> Scope[S]:
        """Returns a scope by level and id, or by its whole name such as `team/red`.

        An id is any text. One that a name cannot hold, because of its characters or its length, is
        escaped or has a digest in `scope.name`; `scope.id` is the id as it was given.
        `schema` is the class of its state, for type checkers: it must be the one that the store was
        opened with for this scope.
        With `ttl_s` the scope, if this process begins it, ends by itself so many seconds after its
        first event, by the backend's clock: then it is gone, and ExpiredError says so. With
        `slides` too, so many seconds after its newest one: each write moves its end, and `touch`.
        Without `ttl_s` it lasts, unless `expiry_policy` of its level says otherwise.
        With `subject`, the name of a person or of anybody else, the scope is that subject's from
        its first event on: all it holds is sealed by the subject's key, until `erase(subject)`.
        """
        if id is None and isinstance(level, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            level, id = split_name(level)
            is_stored = id is not None and ESCAPE in id
        else:
            is_stored = False
        if not self._levels.has(level):
            # Another process may have registered it. A store that is too damaged to tell still
            # reads what is whole of a level that is registered here.
            with contextlib.suppress(CorruptError):
                adopt_levels(self._log, self._levels)
        level, stored = self._levels.check_scope(level, id, is_stored=is_stored)
        if subject is not None:
            self._check_opaque(id, "scope id")
        if schema is not None:
            name = level if stored is None else f"{level}/{stored}"
            self._log.typed.check_schema(name, schema)
        return scope_class(level)(
            self._context,
            level,
            stored,
            levels=self._levels,
            parent=parent,
            ttl_s=ttl_s,
            slides=slides,
            given=None if is_stored else id,
            subject=subject,
        )

    def scratch(self, id: str | None = None, *, parent: Scope | None = None) -> ScratchScope:
        """Returns a scope that is kept in the memory of this process and never reaches the store.

        It does what a scope does. The same id is the same scope in this handle; without one it is
        a new scope. `drop()`, the end of a `with` block, or closing the store frees it. `lookup`
        goes on to `parent`, a scope of the store, and to the global scope. A run that is resumed
        in another process finds it empty, and its body writes it again.
        """
        return self._scratches.get(id, parent)

    def scopes(
        self,
        level: str | None = None,
        *,
        prefix: str = "",
        where: Mapping[str, Any] | Where | Sequence[Where] | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Scope]:
        """Returns the scopes that have events, by name: at most `limit`, and whether there is more.

        Of one level if given, then `prefix` is what their ids begin with; else what their names do.
        The cursor of a page, given as `after`, leads to the next one. It costs what it returns,
        however many scopes there are. Levels that another process registered are known too.

        With `where` only those whose state has something at a path, as in `query`: found by an
        index on the path if there is one (`holdfast.index`).
        """
        limit = check_limit(limit)
        conditions = check_where(where)
        if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"prefix is text, found {show_value(prefix)}")
        if after is not None and not isinstance(after, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"after is the cursor of a page of scopes, found {show_value(after)}")
        if level is None or not self._levels.has(level):
            adopt_levels(self._log, self._levels)
        if level is None:
            self._report_unknown_levels()
            levels = self._levels.names()
        else:
            levels = [check_level(level)]
        most = None if limit is None else limit + 1
        wanted = stored_prefix(level, prefix)
        fitting = partial(self._questions.fitting, conditions) if conditions else None
        names = scope_names(
            self._log, levels, prefix=wanted, after=after or "", limit=most, pages=fitting
        )
        found = names[:limit]
        scopes = self._named(found)
        return Page(scopes, more=len(found) < len(names), cursor=found[-1] if found else after)

    def _named(self, names: list[str]) -> list[Scope]:
        """Returns scopes by their stored names; the whole ids of long ones are read together."""
        long = [name for name in names if has_digest(name)]
        given: dict[str, str] = {}
        if len(long) > 1:
            # One that expired or is damaged says so itself, when its id is asked for.
            with contextlib.suppress(CorruptError, ExpiredError):
                given = dict(zip(long, whole_ids(self._log, long), strict=True))
        return [
            self.scope(split_name(name)[0], given[name]) if name in given else self.scope(name)
            for name in names
        ]

    def find(self, id: str) -> list[Scope]:
        """Returns the scopes that have this id, of whatever level, widest first."""
        adopt_levels(self._log, self._levels)
        scopes = [self.scope(level, id) for level in self._levels.names() if level != GLOBAL]
        heads = self._log.heads([scope.name for scope in scopes])
        found = [scope for scope, head in zip(scopes, heads, strict=True) if head is not None]
        removed = self._log.absent([scope.name for scope in found])
        return [scope for scope in found if scope.name not in removed]

    def _report_unknown_levels(self) -> None:
        """Says once of which levels there are scopes that nobody recorded, so they are not listed.

        Every level has been recorded since the first of its scopes was begun, but in a store that
        was written before that was so.
        """
        if self._are_levels_looked_at:
            return
        self._are_levels_looked_at = True
        for word in first_words(self._log):
            if word not in self._levels.reserved and not self._levels.has(word):
                self._log.report(
                    f'streams named "{word}/…" are of a level that is not recorded in the store: '
                    f'they are not listed before register_level("{word}", below=…)'
                )

    def states(self, scopes: Iterable[Scope | str]) -> dict[str, Map]:
        """Returns the newest states of many scopes by name, in one read where that is possible.

        That of a scope without events is empty; an expired one is left out.
        """
        names = [
            scope.name if isinstance(scope, Scope) else self.scope(scope).name for scope in scopes
        ]
        found = zip(names, self._log.newest_of(names), strict=True)
        return {name: self._log.show(state, name) for name, state in found if state is not None}

    def register_level(self, name: str, *, below: str, keep: bool = True) -> None:
        """Adds a level of scopes; `keep` says what closing one does to its state.

        The first scope of it that is begun records it in the store, for every other process.
        """
        self._levels.register(name, below=below, keep=keep)
        for level in self._levels.registered():
            if level.name == name:
                note_level(self._log, level)

    def close_policy(self, level: str, *, keep: bool) -> None:
        """Says what `close()` does to the state of a level's scopes, unless it is told otherwise.

        It is stored, and counts for every handle and process of the store from now on. With
        `keep=False` the state is dropped.
        """
        self.scope(level, None if level == GLOBAL else "any")  # raises unless there is such a level
        set_policy(self._context, ("keep", level), check_flag(keep, "keep"))

    def expiry_policy(
        self, level: str, *, ttl_s: Duration | None = EXPIRES_S, slides: bool = True
    ) -> None:
        """Says how long the scopes of a level last that are begun from now on without `ttl_s`.

        It is stored, and counts for every handle and process of the store. An hour unless said
        otherwise, which begins anew with each write; with `slides=False` the end is fixed when the
        scope begins. With `ttl_s=None` scopes of the level last again, those with an end keep it.
        """
        if level == GLOBAL:
            raise UsageError("the global scope lasts: there is one, and it cannot begin again")
        self.scope(level, "any")  # raises unless there is such a level
        check_flag(slides, "slides")
        said = None if ttl_s is None else {"ttl_s": check_ttl(ttl_s), "slides": slides}
        set_policy(self._context, ("expires", level), said)

    @property
    def expiry_policies(self) -> dict[str, ExpiryPolicy]:
        """How long new scopes of levels last, by level; those of other levels last for good."""
        return terms_of_levels(self._log)

    # --- schemas ---------------------------------------------------------------------------------

    def migrate(
        self,
        *,
        check: bool = False,
        dry_run: bool = False,
        to: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Migration:
        """Brings the state of every scope that has a schema to its version, by an event in each.

        The first write does the same for a scope. `check` only tells which scopes are not of their
        version; `dry_run` computes what would change, too. `to` is an older version to go down to,
        by the downgrades of the schemas. A run that was stopped is begun again and goes on.
        `progress(done, total)` is told after some scopes each.
        """
        if to is not None:
            check_whole(to, "to", least=1)
        if progress is not None:
            check_call(progress, "progress")
        if check_flag(check, "check") or check_flag(dry_run, "dry_run"):
            found = list(outdated(self._log, compute=dry_run, to=to))
            return Migration(len(typed_scopes(self._log)), 0, found, is_dry=not check)
        return migrate(self._log, to=to, progress=progress)

    # --- several at once -------------------------------------------------------------------------

    @overload
    def commit(
        self,
        *,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> JointCommit: ...
    @overload
    def commit(
        self,
        function: Callable[[JointCommit], R],
        *,
        retries: int = RETRIES,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> R: ...
    def commit(
        self,
        function: Callable[[JointCommit], R] | None = None,
        *,
        retries: int = RETRIES,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> JointCommit | R:
        """Commits over several scopes, all or nothing, fenced by a lease.

        Everything takes part: state, messages, turns, tasks, decisions, facts and marks.

        `with store.commit() as tx:` raises ConflictError if somebody changed what it has read.
        `store.commit(function)` calls function(tx) again on what is there now, up to `retries`
        times, and returns what the function returned. `meta` is kept with every event of it.
        `time` is for imports: when what it says happened, in scopes that it begins or that have
        imported events alone. It never goes back within a scope.
        """
        if function is None:
            return JointCommit(
                self._context, self.scope, key=key, lease=lease, meta=meta, time=time
            )
        check_call(function, "what commit is given")

        def attempt() -> R:
            with JointCommit(
                self._context, self.scope, key=key, lease=lease, meta=meta, time=time
            ) as tx:
                return function(tx)

        return persist(self._log, self.worker, check_whole(retries, "retries"), attempt)

    def submit(
        self,
        *,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> JointCommit:
        """Like `commit`, but the end of the block only queues it; `wait()` on it waits.

        Submitted commits keep their order, and are on disk before any later commit is.
        """
        return JointCommit(
            self._context, self.scope, key=key, lease=lease, meta=meta, time=time, waits=False
        )

    def observe(self, observer: Observer, *, trace: Tracer | None = None) -> Callable[[], None]:
        """Tells an observer what this process does with the store; returns what ends it.

        It is called with an `Observed` after each commit, read that left memory, step, attempt,
        wait, lease, recovery and retry. `trace` returns the W3C `traceparent` of its caller, or
        None: it is asked at each commit, and kept with the events (`Event.meta.trace`).
        """
        check_call(observer, "an observer")
        if trace is not None:
            check_call(trace, "what tells the trace")
        return self._log.observe(observer, trace)

    def view(self) -> View:
        """Returns all scopes as they are at this moment, together."""
        return View(self._log)

    # --- following -------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The newest position, to follow from."""
        return self._log.position()

    def events(
        self,
        *,
        before: Position | str | None = None,
        after: Position | str | None = None,
        limit: int | None = PAGE_SIZE,
        scope: Scope | str | None = None,
        type: str | type[Any] | None = None,
        actor: str | None = None,
        source: str | None = None,
        trust: str | None = None,
        since: datetime | timedelta | str | float | None = None,
        until: datetime | timedelta | str | float | None = None,
        newest_first: bool = False,
    ) -> Page[Event]:
        """Returns events of the whole store or of one scope: a page of the oldest, or the newest.

        `page.cursor` is where it ends: given as `after` (with `newest_first`, as `before`) it
        returns the next page. `page.start` is where it begins, for what lies on the other side. A
        position that an event has, or a revision of the scope, can be given too. A page holds whole
        commits, so it may hold a few events more than `limit`. `since` and `until` are times, or
        lengths of time before now ("7d"); what happened at `until` is left out. `source` and
        `trust` are what the writer said (`holdfast.provenance`). Without a scope, where a page by
        these, `type`, `actor` or times is long to fill, the index of `query` says where its events
        are; a store of several backends is looked through.
        """
        return event_page(
            self._log,
            before=before,
            after=after,
            limit=limit,
            scope=scope,
            type=type,
            actor=actor,
            source=source,
            trust=trust,
            newest_first=newest_first,
            since=since,
            until=until,
            find=self._questions.find_positions,
        )

    def follow_events(
        self, *, after: Position = START, timeout_s: Duration | None = 0
    ) -> Iterator[Event]:
        """Yields the events of the whole store after a position; see `follow` for the time."""
        after = self._log.routes.position(after)
        for record in self._log.follow(after=after, timeout_s=check_timeout(timeout_s)):
            yield self._log.event(record)

    def follow(
        self, scope: Scope | str, *, after: int | None = None, timeout_s: Duration | None = None
    ) -> Iterator[Change]:
        """Yields each change of a scope as it is committed, by whichever process (guarantee 5).

        It begins after revision `after`, by default after the newest one. It waits for ever,
        or until nothing came for `timeout_s`.
        """
        left = check_timeout(timeout_s)
        if after is not None:
            check_whole(after, "after")
        name = scope.name if isinstance(scope, Scope) else scope
        follower = Follower(self._log, self.scope(name).name, after)
        began = monotonic()
        while True:
            changes = follower.news()
            if changes is not None:
                yield from changes
                began = monotonic()
                continue
            left_s = LOOK_S if left is None else left - (monotonic() - began)
            if left_s <= 0:
                return
            self._log.wait_after(follower.position, min(left_s, LOOK_S))

    def follow_changes(
        self, *, after: Position | None = None, timeout_s: Duration | None = None
    ) -> Iterator[Change]:
        """Yields each change of the whole store, with old and new values, as it is committed.

        By whichever process, in the order of positions. It begins after a position, by default the
        newest. It waits for ever, or until nothing came for `timeout_s`.
        """
        left = check_timeout(timeout_s)
        begin = self.position if after is None else self._log.routes.position(after)
        follower = StoreFollower(self._log)
        for record in self._log.follow(after=begin, timeout_s=left):
            yield from follower.changes(record)

    def subscribe(
        self, subscriber: Subscriber, *, on_error: OnError | None = None
    ) -> Callable[[], None]:
        """Calls `subscriber(change)` for every change that this process makes, in any scope.

        One after the other in the order of positions; see `Scope.subscribe`. What other processes
        change is in `follow()`. Returns the function that ends it.
        """
        check_call(subscriber, "a subscriber")
        if on_error is not None:
            check_call(on_error, "on_error")
        return self._log.subscribe(EVERY, Subscription(subscriber, on_error))

    def drain(self, *, timeout_s: Duration = 30.0) -> bool:
        """Returns when subscribers were told of all that is committed; False if not in time."""
        return self._log.dispatcher.drain(check_seconds(timeout_s, "timeout_s", above=-1e-9))

    def group(
        self,
        name: str,
        *,
        prefix: str = "",
        types: tuple[str, ...] | None = None,
        start: Start = "first",
        batch: int = 100,
        ttl_s: Duration = 30.0,
    ) -> Group:
        """Returns a consumer group: its members get each event at least once, one at a time.

        It gets events of streams that begin with `prefix`, of the given `types`. A new group begins
        at `start`. After a death at most `batch` deliveries come again, marked so; on servers the
        next member takes over when the lease of `ttl_s` expired, on one host at once.
        """
        return self._groups.group(
            name, prefix=prefix, types=types, start=start, batch=batch, ttl_s=ttl_s
        )

    def groups(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[GroupStatus]:
        """Returns the consumer groups of the store: where each is, and how many events are left.

        By name. The cursor of a page, given as `after`, leads to the next one.
        """
        return self._groups.list(after=after, limit=limit)

    # --- leases and marks ------------------------------------------------------------------------

    def lease(
        self, name: str, *, ttl_s: Duration = 30.0, keep: bool = False, wait_s: Duration = 0.0
    ) -> HeldLease:
        """Takes a lease for this worker, or raises LeaseLostError naming who holds it.

        It waits up to `wait_s` for the lease to be given back, or for its holder to die.
        `with store.lease(name, wait_s=30):` keeps it until the block ends, and fences every commit
        that is made in the block. Or pass it to `commit(lease=…)`: such a commit is refused once
        the lease has passed on. With `keep` it is renewed until it is released or the store closed:
        ask `lease_keeper.lost`. In one worker a lease is taken once: for its threads it is no lock.
        """
        name = check_lease_name(name)
        check_flag(keep, "keep")
        wait_s = check_seconds(wait_s, "wait_s", above=-1e-9)
        ttl_s = check_seconds(ttl_s, "ttl_s")
        keeper = self.lease_keeper
        if keep:
            take = partial(keeper.take, name, ttl_s=ttl_s)
        else:
            take = partial(acquire, self._log, name, self.worker, ttl_s=ttl_s)
        lease = acquire_within(self._log.clock, take, wait_s)
        return HeldLease(lease.name, lease.owner, lease.epoch, lease.expires_us, keeper, ttl_s)

    def renew(self, lease: Lease, *, ttl_s: Duration = 30.0) -> Lease | None:
        """Returns the lease with a later end, None if it was lost."""
        return renew(self._log, lease, ttl_s=check_seconds(ttl_s, "ttl_s"))

    def release(self, lease: Lease) -> None:
        """Gives a lease back."""
        self.lease_keeper.give_back(lease)

    def workers(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Worker]:
        """Returns the registered workers that have not ended cleanly, with what they hold.

        By id. The cursor of a page, given as `after`, leads to the next one.
        """
        found = sorted(self.lease_keeper.workers(), key=_worker_id)
        return cut("workers", found, _worker_id, after=after, limit=limit)

    def suspects(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Worker]:
        """Returns the workers that are silent past their lease, with what they left: a page."""
        silent = [worker for worker in self.lease_keeper.workers() if not worker.alive]
        return cut("workers", sorted(silent, key=_worker_id), _worker_id, after=after, limit=limit)

    def claim(self, index: str, *, n: int = 1, ttl_s: Duration = 30.0) -> list[Mark]:
        """Takes up to n due marks of an index for this worker, under a lease of their own."""
        index = check_name(index, "index")
        ttl_s = check_seconds(ttl_s, "ttl_s")
        n = check_whole(n, "n", least=1)
        claimed: list[Mark] = []
        while len(claimed) < n:
            # One that has ended stays claimed, so that the next look passes over it.
            found = self._log.marks.claim(index, self.worker, n=n - len(claimed), ttl_s=ttl_s)
            claimed += mark_ends.living(self._log, found)
            if not found:
                break
        return claimed

    def marks(
        self,
        index: str | None = None,
        *,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Mark]:
        """Returns the marks that are set, claimed or not: highest priority first, then by due time.

        The cursor of a page, given as `after`, leads to the next one.
        """
        if index is not None:
            index = check_name(index, "index")
        limit = check_limit(limit)
        last = None if after is None else read_mark(after)
        most = NO_LIMIT if limit is None else limit + 1
        found = self._log.find_marks(index, after=last, limit=most)
        page = found[:limit]
        cursor = write_cursor("marks", *mark_key(page[-1])) if page else after
        living = mark_ends.living(self._log, page)
        shown = [self._log.opened_mark(mark) for mark in living]
        return Page(shown, more=len(page) < len(found), cursor=cursor)

    def leases(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Held]:
        """Returns the leases that were not released, by name: those held and those that lapsed."""
        limit = check_limit(limit)
        for text, what in ((prefix, "prefix"), (after or "", "after")):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{what} is text, found {show_value(text)}")
        most = NO_LIMIT if limit is None else limit
        found = self._log.leases.list(prefix=prefix, after=after or "", limit=most + 1)
        page = found[:limit]
        cursor = page[-1].name if page else after
        return Page(page, more=len(page) < len(found), cursor=cursor)

    # --- runs ------------------------------------------------------------------------------------

    # A type checker compares all arguments with the function's parameters or, beside settings, the
    # first two: Python has no way to write the type of arguments that stand among settings.
    @overload
    def start(
        self, function: RunFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        function: RunFunction[..., R],
        /,
        *,
        id: str,
        if_exists: str = ...,
        queue: str | None = ...,
        subject: str | None = ...,
        **kwargs: Any,
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        function: Callable[Concatenate[A, ...], R],
        first: A,
        /,
        *,
        id: str,
        if_exists: str = ...,
        queue: str | None = ...,
        subject: str | None = ...,
        **kwargs: Any,
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        function: Callable[Concatenate[A, B, ...], R],
        first: A,
        second: B,
        /,
        *rest: Any,
        id: str,
        if_exists: str = ...,
        queue: str | None = ...,
        subject: str | None = ...,
        **kwargs: Any,
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        function: RunFunction[..., R],
        /,
        *args: Any,
        queue: str,
        id: str | None = ...,
        if_exists: str = ...,
        subject: str | None = ...,
        **kwargs: Any,
    ) -> Run[R]: ...
    def start(
        self,
        function: Any,
        /,
        *args: Any,
        id: str | None = None,
        if_exists: str = "error",
        queue: str | None = None,
        subject: str | None = None,
        **kwargs: Any,
    ) -> Run[Any]:
        """Starts a run in this process; it exists for good when this returns.

        With a queue it is only queued, and `resume` executes it. A known id raises ExistsError
        unless `if_exists="attach"`.

        With `subject` the run is that subject's: its journal, its own state, what is sent to it and
        the runs that it starts are sealed by the subject's key, until `erase(subject)`, which ends
        and removes it.
        """
        if is_run(function):
            other = None if if_exists == "error" else if_exists
            function.signature.check_settings(
                "start", args, id=id, queue=queue, if_exists=other, subject=subject
            )
        if subject is not None:
            subject = check_name(subject, "subject")
            if id is not None:
                self._check_opaque(id, "run id")
        return self._engine.start(
            function, args, kwargs, id=id, if_exists=if_exists, queue=queue, subject=subject
        )

    def _check_opaque(self, id: str | None, what: str) -> None:
        """Raises UsageError if an id may tell who a subject is."""
        if not self._clear_ids and not is_pseudonym(id or ""):
            raise UsageError(
                f"{what} {show_value(id)} may tell who the subject is, and ids are stored in "
                "clear: expected a pseudonym, a UUID or a random id",
                hint="hf.pseudonym(…) makes one from any text; open(clear_ids=True) allows any id",
            )

    def use_executor(self, executor: Executor | Command | None) -> None:
        """Says who answers for agents in the runs that this process executes.

        It is a choice of the caller's: nothing of it is stored.
        """
        self._engine.agents.executor = executor

    def resume(self, id: str) -> Run[Any]:
        """Goes on with a run: takes over from a dead owner, attaches to a living one."""
        return self._engine.resume(id)

    def run(self, id: str) -> Run[Any]:
        """Returns a run that exists, and leaves it alone."""
        self._engine.ended(check_id(id))
        return Run(self._engine, id)

    def runs(
        self,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[RunSummary]:
        """Returns the runs of the store by id, of one status if given.

        Unfinished ones are found by their marks, without reading a stream. The cursor of a page,
        given as `after`, leads to the next one.
        """
        if status is not None and status not in _STATUSES:
            raise UsageError(
                f"a status is one of {', '.join(_STATUSES)}, found {show_value(status)}"
            )
        return admin.runs(self._engine, status, after=after, limit=limit)

    def cancel(self, run: str, *, now: bool = False) -> None:
        """Asks a run to stop at its next operation; one that is not being executed ends now.

        One that has cleanups to do (`ctx.cleanup`, `finally` of a program) ends when they are done,
        by whoever executes it next. With `now` one that nobody executes ends without them.
        """
        self._engine.cancel(run, now=now)

    def answer(self, run: str, name: str, value: Any = None) -> None:
        """Answers what a run waits for; the first answer counts, a second is an ExistsError."""
        admin.answer(self._engine, run, name, value)

    def signal(self, run: str, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Sends a signal, which `ctx.signal(name)` takes exactly once; an `id` is sent once."""
        self._engine.send(run, "steer", value, name=message_name("signal", name), key=id)

    def send(
        self,
        run: str,
        kind: str,
        value: Any = None,
        *,
        name: str | None = None,
        id: str | None = None,
    ) -> None:
        """Puts a message into a run's inbox: stop, interrupt, steer, follow-up or ambient."""
        if kind == "stop":
            self._engine.cancel(run)
            return
        self._engine.send(run, kind, value, name=name, key=id)

    def settle(self, run: str, path: str, verdict: Verdict) -> None:
        """Says whether an uncertain act of a parked run was done: Done(output) or NotDone()."""
        admin.settle(self._engine, run, path, verdict)

    def adopt(self, run: str) -> None:
        """Accepts the divergence that a run is parked for; `resume` then goes on."""
        admin.adopt(self._engine, run)

    def remove_run(self, run: str) -> list[str]:
        """Removes a run that has ended, and its children: their ids can begin again.

        Journal, inbox and own state are gone for every reader, in one commit. Returns the ids, its
        own first. Nothing is deleted: forks keep what they refer to, and `events(scope="run/…")`
        still tells what it did. Raises NotFoundError if there is no such run, and UsageError, which
        names it, if it, a child or its parent has not ended, or its state is in use.
        """
        return admin.remove(self._engine, run)

    def fork(
        self,
        run: str,
        at: str | int,
        *,
        id: str | None = None,
        edit: Mapping[str, Any] | None = None,
        effects: str = "ask",
        signals: str = "drop",
        children: str = "share",
    ) -> Run[Any]:
        """Returns a new run that begins where another was before the step `at`; resume it to go on.

        `edit` gives recorded operations other values. `effects` says what becomes of acts: "ask"
        parks before the first, "live" performs them, "dry" leaves them out.
        """
        return admin.fork(
            self._engine,
            run,
            at,
            new=id,
            edit=edit,
            effects=effects,
            signals=signals,
            children=children,
        )

    # --- nodes -----------------------------------------------------------------------------------

    def process(
        self,
        graph: Graph,
        scope: Scope | str,
        /,
        *,
        cache: bool = True,
        force: bool | Collection[str] = False,
        run: str | None = None,
        **inputs: Any,
    ) -> Walk:
        """Walks a graph for a scope: every node is taken as it was, or computed if it must be.

        `force` computes all nodes, or those that it names; with `cache=False` nothing stored is
        looked at, and nothing is stored. With `run` the walk is the run of that id, and each node a
        step of it: after a crash it goes on where it was.
        """
        if run is not None:
            if not check_flag(cache, "cache"):
                raise UsageError("a walk that is a run keeps what it computes: cache stays True")
            return process_as_run(
                self._nodes, self._engine, graph, scope, inputs, id=run, force=force
            )
        return process(self._nodes, graph, scope, inputs, cache=cache, force=force)

    def nodes(
        self,
        graph: str | None = None,
        scope: Scope | str | None = None,
        *,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[StoredNode]:
        """Returns the newest stored result of every node, of one graph or scope if given.

        The cursor of a page, given as `after`, leads to the next one.
        """
        return explain.stored_nodes(self._nodes, graph, scope, after=after, limit=limit)

    def why(self, graph: Graph | str, name: str, scope: Scope | str) -> Why:
        """Returns why a node's newest result was computed, as it was recorded with it."""
        return explain.why(self._nodes, graph, name, scope)

    def plan(self, graph: Graph, target: str | None, scope: Scope | str, /, **inputs: Any) -> Plan:
        """Says what a walk to a node, or with None the whole walk, would do; it writes nothing."""
        return explain.plan(self._nodes, graph, target, scope, inputs)

    def accept(
        self,
        graph: Graph,
        name: str,
        scope: Scope | str,
        /,
        *,
        author: str | None = None,
        because: str = "",
        **inputs: Any,
    ) -> NodeState:
        """Declares that what changed since a node's newest result does not matter to it."""
        return explain.accept(
            self._nodes, graph, name, scope, inputs, author=author, because=because
        )

    def invalidate(
        self,
        graph: Graph | str,
        scope: Scope | str,
        name: str | None = None,
        *,
        author: str | None = None,
        because: str = "",
    ) -> None:
        """Says that the results so far no longer count, of one node or of a whole graph."""
        explain.invalidate(self._nodes, graph, scope, name, author=author, because=because)

    def forget_nodes(self, graph: Graph | str, scope: Scope | str) -> None:
        """Removes the results of a graph for a scope: it is as if it had never been walked.

        The removal of a scope does that for every graph. Raises NotFoundError if there is none.
        """
        explain.forget(self._nodes, graph, scope)

    # --- projections -----------------------------------------------------------------------------

    def project(self, directory: str | os.PathLike[str] = ".") -> Project:
        """Returns the project in a directory."""
        return Project(self, directory)

    def projected(self, projection: Projection, over: Scope | str | None = None) -> Projected:
        """Returns the state of a projection over some scopes.

        Over a scope, the scopes that match a pattern such as `conversation/support-*`, or the whole
        store. What it shows is up to date whenever it is looked at, for the price of what was
        recorded since.
        """
        return self._projections.projected(projection, over)

    # --- the record ------------------------------------------------------------------------------

    def decisions(
        self,
        *,
        incomplete: bool = False,
        scope: Scope | str | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
        before: int | None = None,
        older_than: object = None,
    ) -> Page[Decision]:
        """Returns decisions of one scope or of all, newest first, or those `before` a revision.

        The cursor of a page, given as `after`, leads to the next one.

        With `incomplete` only the open ones, highest priority first, then oldest: found by their
        marks, without reading any stream. `older_than` is a length of time since the last change.
        The others of a long conversation, or of a large store, are found by the index for questions
        (`hf.query`), as soon as that has followed the log.
        """
        return Decisions(self._context).list(
            incomplete=incomplete,
            scope=scope,
            after=after,
            limit=limit,
            before=before,
            older_than=older_than,
        )

    def decision(self, id: str) -> Decision:
        """Returns the decision with that id, as it is now."""
        return Decisions(self._context).get(id)

    def outcome(self, id: str, text: str) -> Decision:
        """Closes an open decision by its id: one of this worker, or one whose worker is dead."""
        return Decisions(self._context).close(id, text)

    def prioritise(self, id: str, priority: int | str) -> Decision:
        """Gives an open decision or a standing order another priority."""
        return Decisions(self._context).prioritise(id, priority)

    def recover(self, *, scope: Scope | str | None = None) -> Recovery:
        """Judges what dead workers left open through its verifiers, and reports each.

        What was done is closed; what was not and has a registered act is done again, by one worker
        only; everything else is left open, for you.
        """
        found = recover(Decisions(self._context), scope=scope)
        steps = recovered_steps(self._engine) if scope is None else []
        return Recovery([*found.acts, *steps])

    def stale(self, *, verify: bool = True) -> list[Stale]:
        """Returns what is not to be trusted: facts past their time, facts that a verifier
        contradicts (each is asked, unless `verify` is False), acts that a silent worker left open,
        tasks whose owner is silent, sessions that a worker died in.
        """
        return stale(self._context, verify=check_flag(verify, "verify"))

    def tasks(
        self,
        *,
        status: str | Sequence[str] | None = None,
        owner: str | None = None,
        epic: str | None = None,
        tag: str | None = None,
        suspect: bool | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Task]:
        """Returns the tasks of all scopes that are not closed, highest priority first, then oldest.

        They are found by their marks; `suspect=True` are those whose owner is silent. The cursor
        of a page, given as `after`, leads to the next one.
        """
        return open_tasks(
            self._context,
            status=status,
            owner=owner,
            epic=epic,
            tag=tag,
            suspect=suspect,
            after=after,
            limit=limit,
        )

    def sessions(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Session]:
        """Returns the sessions that have not ended, active or crashed, oldest first.

        The cursor of a page, given as `after`, leads to the next one.
        """
        found = sessions.unended_sessions(self._context)
        return cut("sessions", found, sessions.begun_first, after=after, limit=limit)

    def audit(self, scope: Scope | str) -> Audit:
        """Returns the audit of a scope's state: what changes how often, and in its block what is
        read. `with store.audit("team/red") as audit:`, then `audit.unread()`.
        """
        name = scope.name if isinstance(scope, Scope) else scope
        return Audit(self._context, self.scope(name))

    def policy(self, mode: PolicyMode) -> Policy:
        """Says what happens to an effect without an open decision: off, warn or refuse.

        It is stored, and counts for every handle and process of the store from now on; a run that
        is under way elsewhere heeds it after five seconds at most. Used as a block, it is as before
        when the block ends. Each such effect is recorded in its scope.
        """
        return Policy(self._context, mode)

    def catches(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Catch]:
        """Returns what was caught in all scopes, newest first; `scope.catches()` has one scope's.

        The cursor of a page, given as `after`, leads to the next one.
        """
        hits = self.query(kind="log", type=catches.TYPES, limit=limit, after=after)
        found = [catches.read_catch(self._log.record(hit.scope, hit.revision)) for hit in hits]
        return Page(found, more=hits.more, cursor=hits.cursor)

    def guard_secrets(self, mode: Mode, *, scope: Scope | str = "*") -> None:
        """Says what is done about secrets in what is written to scopes: off, warn, redact, refuse.

        `scope` is a name, or a pattern in which * is any characters; runs are `run/*`. Of several
        that fit the longest counts. It is stored: this handle heeds it at once, and every one that
        is opened from now on. What `open(secrets=…)` says counts too where it is stricter.
        """
        pattern = scope if isinstance(scope, str) else scope.name
        set_policy(self._context, ("secrets", pattern), check_rules({pattern: mode})[pattern])
        self._use_secrets()

    @property
    def secrets(self) -> dict[str, Mode]:
        """What is done about secrets here, by pattern of scopes; where none fits, nothing."""
        return {} if self._log.redactor is None else dict(self._log.redactor.rules)

    def _use_secrets(self, given: Mapping[str, Mode] | None = None) -> None:
        """Has the log heed what the store and the opener of this handle say about secrets."""
        if given is not None:
            self._secrets_given = dict(given)
        stored: dict[str, Mode] = {}
        try:
            stored = secret_rules(self._context)
        except HoldfastError as error:
            # A store that is too damaged to tell is still read; what is written is guarded by what
            # the opener says.
            _logger.warning("what the store says about secrets cannot be read: %s", error)
        rules = stricter(stored, self._secrets_given)
        is_on = any(mode != "off" for mode in rules.values())
        self._log.use_redactor(Redactor(rules) if is_on else None)

    # --- files -----------------------------------------------------------------------------------

    def views(
        self,
        directory: str | os.PathLike[str],
        views: Sequence[FileView],
        *,
        person: str | None = None,
    ) -> Views:
        """Returns a directory in which files show what is here, and may be edited.

        `sync()` of it imports what somebody edited, in their name, and writes what has changed;
        `holdfast.views` has the kinds of files that there are. `person` is in whose name edits are
        imported; without it, in that of the user who owns the file.
        """
        made = Views(self, directory, views, person=person)
        self._closing.append(made.close)
        self._views.append(made)
        return made

    # --- questions -------------------------------------------------------------------------------

    def query(
        self,
        *,
        kind: Kind | Sequence[Kind] | None = None,
        type: str | Sequence[str] | None = None,
        actor: str | None = None,
        source: str | None = None,
        trust: str | None = None,
        scope: Scope | str | None = None,
        since: datetime | timedelta | str | float | None = None,
        until: datetime | timedelta | str | float | None = None,
        text: str | None = None,
        tag: str | None = None,
        status: str | Sequence[str] | None = None,
        links: str | Sequence[str] | None = None,
        where: Mapping[str, Any] | Where | Sequence[Where] | None = None,
        limit: int | None = PAGE_SIZE,
        after: str | None = None,
        timeout: float = TIMEOUT_S,
        stale_ok: bool = False,
        **unknown: Any,
    ) -> Hits:
        """Returns what was recorded and fits, newest first: of every kind, over all scopes.

        Kinds are message, decision, task, fact, state, run, event (of your own) and, if named, log:
        every event that was ever written. `actor`, `source` and `trust` are what its writer said
        of it (`holdfast.provenance`); of a state, what the writer of its newest change said.
        `scope` is a name, or a pattern in which * is any
        characters. `since` and `until` are times, or lengths of time before now ("7d"); what
        happened at `until` is left out. `text` is words that all must occur, "a phrase" in quotes,
        or a beginning (`manag*`). `where` compares what the state has at paths: ("customer.id",
        "=", 7). The cursor of a page, given as `after`, leads to the next one.

        The answer has everything that was acknowledged before the call. It waits at most `timeout`
        seconds for its index; then it raises UnavailableError, or with `stale_ok` returns what the
        index has so far, and says how far `behind` that is.
        """
        return self._questions.ask(
            kind=kind,
            type=type,
            actor=actor,
            source=source,
            trust=trust,
            scope=scope,
            since=since,
            until=until,
            text=text,
            tag=tag,
            status=status,
            links=links,
            where=where,
            limit=limit,
            after=after,
            timeout=timeout,
            stale_ok=stale_ok,
            **unknown,
        )

    def context(
        self,
        scope: Scope | str,
        budget: int = 8_000,
        task: Task | str | None = None,
        *,
        strategies: Strategy | Sequence[Strategy] = ("window", "summary", "retrieval"),
        window: int = 20,
        about: str | Sequence[str] = (),
        role: str | None = None,
        tokenizer: object = None,
    ) -> PromptContext:
        """Returns what an agent must know of a scope, as one text of at most `budget` tokens.

        Standing orders, goals and the task in hand (a task, its id, or what it says) are never
        left out; of the rest as much as there is room for, and what was left out, with where it
        is. `strategies` say which messages: full, window (the newest), summary, entity (those that
        mention a name in `about`), retrieval (those that have to do with the task). `role` leaves
        out the orders of other roles. `tokenizer` counts: the name of an encoding of tiktoken, an
        object with `encode`, or a function; without one, tokens may be an estimate, and
        `is_exact` says so. The same log gives the same bytes.
        """
        from holdfast.context.build import build, check_wanted

        wanted = check_wanted(
            budget=budget,
            task=task,
            strategies=strategies,
            window=window,
            about=about,
            role=role,
            tokenizer=tokenizer,
        )
        found = scope if isinstance(scope, Scope) else self.scope(name_of(scope))
        return build(self._context, found, self.query, wanted)

    def boot(
        self,
        scope: Scope | str = GLOBAL,
        budget: int = 8_000,
        task: Task | str | None = None,
        *,
        role: str | None = None,
        compact: bool = False,
        tokenizer: object = None,
    ) -> PromptContext:
        """Returns what an agent that knows nothing begins with: its context, and how to go on.

        It has the order to decide first, what the role is, the goals, the vocabulary and the map
        of files (`boot` of the state), the newest decisions, the other scopes that have something
        to do, and of the messages only the newest: it asks no index. `compact` gives orders, goals,
        open tasks and decisions, and facts in few tokens instead, one line for each, all of them.
        """
        from holdfast.context.build import BOOT_WINDOW, build, build_compact, check_wanted

        wanted = check_wanted(
            budget=budget,
            task=task,
            strategies="window",
            window=BOOT_WINDOW,
            role=role,
            tokenizer=tokenizer,
            is_boot=True,
        )
        found = scope if isinstance(scope, Scope) else self.scope(name_of(scope))
        if check_flag(compact, "compact"):
            return build_compact(self._context, found, wanted)
        return build(self._context, found, self.query, wanted)

    def similar(
        self, to: str, *, limit: int = 10, embedder: Embedder | None = None, **question: Any
    ) -> list[Similar]:
        """Returns what is nearest to a text in meaning, the nearest first, each with its score.

        By the `embedder`, or the one that the store was opened with. What it has not seen yet it is
        given first. Messages, decisions, tasks, facts and events of your own are compared. The
        other arguments are those of `query`, and leave out what does not fit.
        """
        return self._questions.similar(to, limit, check_embedder(embedder), **question)

    def resolve(self, link: str, *, scope: Scope | str = GLOBAL) -> Hit | None:
        """Returns what a link such as "decision:d7@team/red" leads to; None if it leads nowhere.

        An id without a scope is looked for in `scope`. What lies outside the store (`file:…`,
        `commit:…`, `https:…`) is not followed.
        """
        return self._questions.resolve(link, name_of(scope))

    def dangling_links(self) -> list[DanglingLink]:
        """Returns every link that should lead to something in the store and does not."""
        return self._questions.dangling()

    def sql(
        self,
        statement: str,
        *,
        timeout: float = SQL_TIMEOUT_S,
        max_rows: int = SQL_ROWS_MAX,
        max_bytes: int = SQL_BYTES_MAX,
    ) -> Rows:
        """Runs a SELECT on read-only tables of everything recorded, and returns columns and rows.

        The tables are scopes, events, state, messages, decisions, tasks, facts and runs. They are
        brought up to date first, and lie apart from the store: any client may read them too. A
        statement that takes more seconds, rows or bytes than it may is ended with a LimitError.
        """
        return self._questions.select(statement, timeout, max_rows, max_bytes)

    def refresh_tables(self) -> str:
        """Brings the tables for outside tools up to date; returns where they are."""
        return self._questions.refresh_tables()

    def index_status(self) -> IndexStatus:
        """Returns where the index for questions is, and how far it has followed the log."""
        return self._questions.status()

    def rebuild_index(self) -> None:
        """Makes the index for questions again from the log; nothing else depends on it."""
        self._questions.rebuild()

    def undo(
        self,
        *,
        source: str | None = None,
        actor: str | None = None,
        trust: str | None = None,
        since: datetime | timedelta | str | float | None = None,
        scope: Scope | str | None = None,
        dry_run: bool = False,
    ) -> Undone:
        """Takes back what somebody wrote to the states of all scopes, or of those that are named.

        By what the writer said of itself (`holdfast.provenance`): everything that is given must
        fit. A path whose newest writer it is goes back to what it was before, by one new event in
        each scope. What somebody else has written over since stays, and so do messages, decisions,
        facts, tasks and runs: those are listed, and so is what depends on what was taken back.
        `dry_run` only looks. `scope` is a name, or a pattern in which * is any characters.
        """
        now_us = self._log.clock.now_us()
        began = None if since is None else to_datetime(check_since(since, "since", now_us))
        undoing = Undoing(self._log, self.scope, self.query, self._nodes_stored)
        return undoing.undo(
            source=source,
            actor=actor,
            trust=trust,
            since=began,
            scope=None if scope is None else scope if isinstance(scope, str) else scope.name,
            dry_run=dry_run,
        )

    def _nodes_stored(self) -> Iterator[StoredNode]:
        return iter(self.nodes(limit=None))

    # --- looking after it ------------------------------------------------------------------------

    def check(self, *, read_all: bool = True, expect: str | None = None) -> Report:
        """Verifies the store: every link, and with `read_all` every byte (guarantee 6)."""
        return check_store(self._log, read_all=read_all, expect=expect)

    def _forget_copies(self) -> None:
        """Has made again what this handle keeps of events that were let go of."""
        self._context.scans.forget()
        self._context.tables.forget()
        self._questions.let_go()

    def retain(
        self,
        *,
        grace_s: float = GRACE_S,
        whole: bool = False,
        dry_run: bool = False,
        wait_s: float = 0.0,
        policies: Sequence[RetentionPolicy] | None = None,
    ) -> Retention:
        """Lets go of what nobody can ask for any more, and says what went and what is left.

        That is what removed scopes held, those closed without their state, and those whose
        lifetime is over, each for `grace_s` at least. Held scopes keep everything. `policies`, or
        those that the store was opened with, first remove the scopes that they are for, and say
        which own events go. `dry_run` says what would go and changes no byte; `whole` takes its
        time to make the store smaller, and looks for blobs that nobody names. While another retain
        is at work it waits `wait_s`, then raises LeaseLostError.
        """
        check_seconds(grace_s, "grace_s", above=-1e-9)
        check_seconds(wait_s, "wait_s", above=-1e-9)
        rules = self._retention if policies is None else _check_policies(policies)
        applied = AppliedPolicies(
            self._log,
            self._retainer,
            rules,
            levels=self._level_names,
            scope_of=self.scope,
            grace_s=grace_s,
        )
        if dry_run:
            return self._retainer.plan(grace_s=grace_s, policies=applied if rules else None)
        mark_ends.sweep(self._log)
        return self._retainer.run(
            grace_s=grace_s, whole=whole, wait_s=wait_s, policies=applied if rules else None
        )

    def _level_names(self) -> Sequence[str]:
        adopt_levels(self._log, self._levels)
        return self._levels.names()

    def _scope_names(self) -> list[str]:
        return scope_names(self._log, self._level_names(), prefix="", after="", limit=None)

    def binned(self) -> list[Binned]:
        """Returns the scopes that policies have removed and `unretain` can bring back, by name."""
        return in_bin(self._log, self._retainer)

    def unretain(self, scope: Scope | str) -> int:
        """Brings a scope back that a policy has removed, whole; returns its new revision.

        It counts as written to now, so the policy finds it again when it is that old again; `hold`
        keeps it for longer. Raises NotFoundError if it is not in the bin.
        """
        found = scope if isinstance(scope, Scope) else self.scope(scope)
        return unretain(self._log, self._retainer, found)

    def hold(self, scope: Scope | str, reason: str | None = None) -> None:
        """Keeps everything of a scope from `retain`, also when it is removed, until `unhold`."""
        name = scope.name if isinstance(scope, Scope) else self.scope(scope).name
        self._retainer.hold(name, check_text(reason, "reason", optional=True) or "")

    def unhold(self, scope: Scope | str) -> None:
        """Ends a hold."""
        name = scope.name if isinstance(scope, Scope) else self.scope(scope).name
        self._retainer.release(name)

    def holds(self) -> list[Hold]:
        """Returns the scopes that are held, by name, with since when and why."""
        return self._retainer.holds()

    def let_go(self) -> list[LetGo]:
        """Returns every letting-go that there was, oldest first."""
        return self._retainer.let_go()

    def rewinds(self, work_tree: str | os.PathLike[str] = ".") -> Rewinds:
        """Returns the points to go back to, of scopes and of the files of a work tree of git.

        `hf.rewinds().mark("before the change", [chat])` makes one; `rewind` goes back to it, and
        `undo` forth again.
        """
        own = self._log.describe().get("path")
        exclude = [str(own)] if own else []
        return Rewinds(self._context, self.scope, work_tree, exclude=exclude)

    # --- encryption at rest ----------------------------------------------------------------------

    def key_status(self) -> KeyStatus:
        """Says whether the store is encrypted, and by which keys."""
        if self._encryption is None:
            return KeyStatus(is_encrypted=False)
        return self._encryption.status()

    def rotate_key(self) -> KeyStatus:
        """Has everything that is written from now on encrypted with a new data key.

        What is stored keeps the key that it has, and nothing of it is read or written. Processes
        that have the store open go on with the key that they know until they meet the new one.
        """
        return self._encrypted().rotate()

    def rewrap_key(self, new: str | bytes | StoreKey) -> KeyStatus:
        """Has another store key open the store, from now on alone. No data is read or written.

        Killed at any point it leaves a store that the old or the new key opens; done again with
        the same new key it goes on. Backups made before still open with the old key.
        """
        return self._encrypted().rewrap(to_store_key(new))

    def _encrypted(self) -> Encryption:
        if self._encryption is None:
            raise StoreKeyError(
                "this store is not encrypted: it has no keys",
                hint="copy it into a new store that is opened with store_key=…",
            )
        return self._encryption

    # --- subjects --------------------------------------------------------------------------------

    def pseudonym(self, text: str) -> str:
        """Returns an id for a scope from any text: a digest that needs the key store to be made.

        The same text gives the same pseudonym wherever the same keys are used.
        """
        return self._log.sealing.keys.pseudonym(check_text(text, "what a pseudonym is made from"))

    def subjects(self) -> list[Subject]:
        """Returns the subjects that have data here and were not erased, by name."""
        return self._erasure.subjects()

    def subject(self, name: str) -> Subject:
        """Returns one subject: its random id, its scopes, and whether it is held."""
        return self._erasure.subject(check_name(name, "subject"))

    def hold_subject(self, name: str, reason: str | None = None) -> None:
        """Keeps a subject from being erased until `unhold_subject`: a legal hold."""
        text = check_text(reason, "reason", optional=True)
        self._erasure.hold(check_name(name, "subject"), text or "")

    def unhold_subject(self, name: str) -> None:
        """Ends a legal hold of a subject."""
        self._erasure.release(check_name(name, "subject"))

    @_files_follow
    def erase(
        self,
        subject: str | None = None,
        *,
        scope: Scope | str | None = None,
        match: str | None = None,
        ignore_case: bool = False,
        dry_run: bool = False,
        wait_s: float = 60.0,
    ) -> ErasureReceipt:
        """Erases a subject: destroys its key, removes its scopes and their bytes, says what went.

        From then on nothing of it can be read, here or in any copy, backup or export that was made
        before. It cannot be undone. Raises HeldError if the subject, or one of its scopes, is held,
        and NotFoundError if there is no such subject. A call that was killed is made again, or
        `finish_erasures` does the rest. While a `retain` is at work it waits `wait_s`.

        With `scope` it erases what one scope held that was never sealed: it is removed, and its
        bytes go at once. Copies that were made before still have it.

        With `match` it cuts a text out of everything that was never sealed, or of the `scope` that
        is given with it: values, keys and words of paths, in any event. What is around it stays.
        The text itself is stored nowhere. `dry_run` says what would go, and changes nothing.
        Raises HeldError if a scope that has it is held, and UsageError if an unfinished run has.
        """
        check_seconds(wait_s, "wait_s", above=-1e-9)
        check_flag(ignore_case, "ignore_case")
        check_flag(dry_run, "dry_run")
        if match is not None and subject is None:
            name = scope.name if isinstance(scope, Scope) else scope
            name = None if name is None else check_scope_name(name)
            return self._erasure.erase_match(
                match, ignore_case=ignore_case, scope=name, dry_run=dry_run, wait_s=wait_s
            )
        if (subject is None) == (scope is None) or match is not None:
            raise UsageError("expected the name of a subject, a scope, or a text as match")
        if ignore_case or dry_run:
            raise UsageError("ignore_case and dry_run are for a match: hf.erase(match=…)")
        if scope is not None:
            one = scope if isinstance(scope, Scope) else self.scope(scope)
            return self._erasure.erase_scope(one.name, one.remove, wait_s=wait_s)
        return self._erasure.erase(check_name(subject, "subject"), wait_s=wait_s)

    def finish_erasures(self, *, wait_s: float = 60.0) -> list[ErasureReceipt]:
        """Finishes the erasures that were begun and are not done, because a process was killed.

        As after `erase`, the files of views that this handle has are written anew.
        """
        check_seconds(wait_s, "wait_s", above=-1e-9)
        if not self._erasure.is_pending():
            return []
        self._sync_views()
        done = self._erasure.finish(wait_s=wait_s)
        left = self._sync_views()
        return [replace(receipt, left=[*receipt.left, *left]) for receipt in done]

    def _sync_views(self) -> list[Leftover]:
        """Writes the files of all views that this handle has; returns those that are behind."""
        configured = None if self._configured is None else self._configured.views
        left: list[Leftover] = []
        for views in [*self._views, *([] if configured is None else [configured])]:
            try:
                views.sync()
                views.forget_read()
                behind = [one for one in views.status() if one.status not in ("fresh", "missing")]
                left += [
                    Leftover(
                        str(views.directory / one.file),
                        f"the file is {one.status}, and may show what was erased: `holdfast views "
                        "status` says why, `views reject` writes it anew",
                    )
                    for one in behind
                ]
            except (HoldfastError, OSError) as error:
                _logger.warning("files of %s were not written: %s", views.directory, error)
                remedy = f"its files were not written ({error}): `holdfast views write` does it"
                left.append(Leftover(str(views.directory), remedy))
        return left

    def erasures(self) -> list[dict[str, Any]]:
        """Returns the receipts of all erasures, by the id of the subject."""
        return self._erasure.receipts()

    def status(self) -> dict[str, Any]:
        """Returns plain facts about the store: kind, place, format, durability, size, reports,
        how many scopes and events there are, and the digest that `check` compares.

        The last three are None of a store that is too damaged to tell.
        """
        facts = self._log.describe()
        counts: dict[str, Any] = {"scopes": None, "events": None, "digest": None}
        with contextlib.suppress(CorruptError):
            content = content_of(self._log)
            counts = {"scopes": content.streams, "events": content.events, "digest": content.digest}
        taken: list[str] = []
        with contextlib.suppress(CorruptError):
            taken = loss_reports(self._log)
        kept = [] if self._configured is None else self._configured.reports()
        reports = [*facts["reports"], *copy_reports(facts), *taken, *self._log.reports, *kept]
        return {**facts, **counts, "worker": self.worker, "reports": reports}

    def close(self) -> None:
        """Closes the store. What was acknowledged is safe without it."""
        while self._closing:
            self._closing.pop()()
        self._scratches.close()
        self._engine.close()
        self._projections.close()
        self._groups.close()
        self.lease_keeper.close()
        self._questions.close()
        if not self._read_only:
            remember(self._log)
        self._log.close()
        self._log.sealing.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url}>"


def open_store(
    url: object = DEFAULT_PLACE,
    *,
    durability: Durability = "full",
    actor: str | None = None,
    source: Source | None = None,
    trust: str | None = None,
    create: bool = True,
    read_only: bool = False,
    clock: Clock | None = None,
    heartbeat_s: float = HEARTBEAT_S,
    levels: Mapping[str, str] | None = None,
    backend: Backend | None = None,
    secrets: Mode | Mapping[str, Mode] = "off",
    schemas: Sequence[type[Any]] = (),
    unchecked: bool = False,
    retention: Sequence[RetentionPolicy] = (),
    quotas: Sequence[Quota] = (),
    disk_watch: DiskWatch | None = None,
    indexes: Sequence[StateIndex] = (),
    embedder: Embedder | None = None,
    keys: str | os.PathLike[str] | KeyStore | None = None,
    clear_ids: bool = False,
    store_key: str | bytes | StoreKey | None = None,
    config: str | os.PathLike[str] | None = None,
    tenant: str | None = None,
    **options: Any,
) -> Store:
    """Opens a store, making it if it is not there.

    `url` is a folder's path (plain files, the default `./.holdfast`), "sqlite:state.db",
    "postgresql://…", "redis://…" or "memory:"; a mapping from level to URL, with "*" for the rest,
    or a TOML file that holds one; or "yaml:FOLDER", plain files with every state as a YAML file.
    `levels` registers levels, each with the one above it. `actor` is in every event; by default
    this worker's id, which says each `heartbeat_s` that it lives. `source` and `trust` tell where
    it came from. `backend` is an open one in place of a URL; the store closes it. `schemas` are
    classes that `@holdfast.schema` made; a scope that has another is not written to, unless
    `unchecked`. `indexes` and `embedder` serve questions. `retention`, `quotas` and `disk_watch`
    say what goes and what is refused; `secrets` what is done about them. `keys` is where keys of
    subjects are, such as a folder or a database; `clear_ids` allows any id. `store_key`
    encrypts it. `config` is a holdfast.toml, done meanwhile. `tenant` opens that tenant's store.
    """
    _check_options(durability, create, read_only, heartbeat_s, clock)
    said, rules = check_provenance(source, actor, trust), check_rules(secrets)
    typed, declared = _check_schemas(schemas, unchecked), check_indexes(indexes)
    embedder, clock = check_embedder(embedder), clock or SystemClock()
    worker, (url, named, stored, named_key, lodger) = worker_id(clock, actor), _read_mix(url)
    encryption = _encryption(store_key or named_key, url, clock, worker, read_only=read_only)
    care, known = _with_care(stored, retention, quotas, disk_watch), _known_levels(named, levels)
    options = {"durability": durability, "create": create, "read_only": read_only, **options}
    entry = _Entry(_which_tenant(tenant, lodger, backend, url))
    opened, shown = _open_or_take(backend, url, known, clock, encryption, entry, options)
    said = said._replace(actor=said.actor or worker)
    log = _make_log(opened, clock, said, typed, entry.with_quotas(care), entry.keys(keys), shown)
    log.use_place(backend or _place_of(shown) or opened)
    return _with_files(Store(
        log, url=shown, worker=worker, levels=known, heartbeat_s=heartbeat_s, read_only=read_only,
        clear_ids=check_flag(clear_ids, "clear_ids"), retention=care.retention, indexes=declared,
        embedder=embedder, secrets=rules, encryption=encryption,
    ), url, config, care.levels, read_only=read_only)  # fmt: skip


def _with_files(
    store: Store,
    url: object,
    config: str | os.PathLike[str] | None,
    rules: Mapping[str, LevelRule],
    *,
    read_only: bool,
) -> Store:
    """Returns the store, with the files kept beside it that its URL or a configuration says.

    What the file that names the store says of levels is stored first.
    """
    try:
        if not read_only:
            _store_rules(store, rules)
        if isinstance(url, _StateFiles) and not read_only:
            files = Views(store, url.directory, [], more=partial(state_views, store, url.suffix))
            store._closing.append(files.close)
            store._views.append(files)
            files.sync()
            files.keep_fresh()
        if config is not None:
            read_config(config)  # one that is not there is a mistake here
            store._configured = Configured(store, config)
            if not read_only:
                store._closing.append(store._configured.close)
                store._configured.start()
    except BaseException:
        store.close()
        raise
    return store


def _store_rules(store: Store, rules: Mapping[str, LevelRule]) -> None:
    """Stores what a file says of levels; what is stored already is not written again."""
    for level, rule in rules.items():
        if rule.expires is not None:
            store.expiry_policy(level, ttl_s=rule.expires, slides=rule.slides)
        if rule.on_close is not None:
            store.close_policy(level, keep=rule.on_close == "keep")


def _make_log(
    backend: Backend,
    clock: Clock,
    said: Said,
    typed: Typed,
    care: Care,
    keys: object,
    shown: str,
) -> Log:
    sealing = _sealing(keys, shown, backend)
    log = Log(backend, clock=clock, actor=said.actor or "", sealing=sealing)
    log.said = said if said.meta is not None else None
    log.use_schemas(typed)
    log.use_limits(care.quotas, care.disk)
    return log


def _sealing(keys: object, shown: str, backend: Backend) -> Sealing:
    return Sealing(
        partial(_keys_apart, keys, shown, backend), closes=not isinstance(keys, KeyStore)
    )


def _keys_apart(given: object, shown: str, backend: Backend) -> KeyStore:
    """Returns where keys are, or raises UsageError if that is inside the store.

    Whoever copies or backs up the store would have the keys too, and erasing would do nothing.
    """
    keys = to_keys(given)
    if isinstance(keys, TableKeys):
        try:
            for part in _described(backend):
                keys.check_apart(part)
            _check_outside(keys.path, _paths(backend))
        except BaseException:
            if keys is not given:
                keys.close()
            raise
    elif isinstance(keys, FolderKeys):
        place = _place_of(shown)
        if hasattr(backend, "routing"):
            _check_outside(keys.path, _paths(backend))
        elif place is not None and "://" not in place:
            _check_outside(keys.path, [place.partition(":")[2]])
    return keys


def _described(backend: Backend) -> list[dict[str, Any]]:
    """Returns what a backend says of itself, or each part of one that has several."""
    facts = backend.inspect.describe()
    return list(facts["levels"].values()) if "levels" in facts else [facts]


def _paths(backend: Backend) -> list[str]:
    return [part["path"] for part in _described(backend) if "path" in part]


def _check_outside(keys: str | os.PathLike[str] | None, stores: Sequence[str]) -> None:
    """Raises UsageError if keys are below one of these places."""
    for store in map(os.path.realpath, stores if keys is not None else ()):
        inside = os.path.realpath(cast("str", keys))
        if os.path.commonpath([store, inside]) == store:
            raise UsageError(
                f'the keys in "{inside}" are inside the store "{store}": a backup of it would have '
                "them too",
                hint="keep keys in a folder of their own: keys=… or HOLDFAST_KEYS",
            )


def _open_or_take(
    given: object,
    url: object,
    known: Levels,
    clock: Clock,
    encryption: Encryption | None,
    entry: _Entry,
    options: dict[str, Any],
) -> tuple[Backend, str]:
    """Returns the backend of a store, and where it is, as it should be shown.

    It is encrypted, or looked at whether it is.
    """
    each = check_plain if encryption is None else encryption.wrap
    if given is not None:
        taken, shown = _take_backend(given, url, options)
        if not hasattr(taken, "routing"):
            return looked_at(taken, each), shown
        if encryption is not None:
            raise UsageError(
                "a given backend of several parts cannot be encrypted: its parts are open already",
                hint="give the parts as URLs: holdfast.open({level: url}, store_key=…)",
            )
        return looked_at(taken, _check_plain_parts), shown
    return open_backend(
        url,
        levels=known.names(),
        kept_with=kept_with(),
        clock=clock,
        each=each,
        tenant=entry.name,
        entered=entry.records.append,
        **options,
    )


class _Entry:
    """The tenant that is asked for, and what is recorded of it where its store is."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.records: list[TenantRecord] = []

    def with_quotas(self, care: Care) -> Care:
        """Returns the care with the quotas that the administrator gave the tenant."""
        given = [quota for one in self.records for quota in quotas_of(one.settings)]
        added = tuple(quota for quota in dict.fromkeys(given) if quota not in care.quotas)
        return Care(care.retention, (*care.quotas, *added), care.disk, care.levels)

    def keys(self, given: object) -> object:
        """Returns where keys are: by default each tenant has a folder of its own for them."""
        return tenant_keys(self.records[0].id) if given is None and self.records else given


def tenant_keys(id: str) -> str | None:
    """Returns the folder of the keys of a tenant's subjects, unless another place is given.

    None if HOLDFAST_KEYS names what is no folder: then tenants share it, as other stores do.
    """
    folder = os.environ.get("HOLDFAST_KEYS") or str(default_folder())
    return None if SCHEME.match(folder) else os.path.join(folder, "tenants", id)


def _which_tenant(given: object, named: str | None, backend: object, url: object) -> str | None:
    """Returns the tenant that is asked for, by the call or by the file that names the store."""
    if given is None and named is None:
        return None
    if backend is not None or isinstance(url, _StateFiles):
        raise UsageError(
            "a tenant is one of a place that a URL names, found an open backend or files of states",
            hint="open the store by its URL: holdfast.open(url, tenant=…)",
        )
    if given is not None and named is not None and given != named:
        raise UsageError(f'the file names tenant "{named}", found tenant {show_value(given)}')
    return check_tenant(named if given is None else given)


def _check_plain_parts(mixed: Backend) -> Backend:
    for part in cast("Sequence[Backend]", getattr(mixed, "parts", ())):
        check_plain(part)
    return mixed


def _encryption(
    given: object, url: object, clock: Clock, actor: str, *, read_only: bool
) -> Encryption | None:
    """Returns what encrypts a store, None if nothing does. The key is read before any file is."""
    if given is None:
        return None
    if isinstance(url, _StateFiles):
        raise UsageError(
            "a store whose states are files in clear cannot be encrypted",
            hint="open the folder itself, without yaml: or json:",
        )
    return Encryption(to_store_key(given), clock, actor, create=not read_only)


def _known_levels(named: Mapping[str, str], levels: object) -> Levels:
    """Returns the levels of a store: the built-in ones, those of its file, and those given."""
    known = Levels(reserved=reserved_prefixes())
    for name, below in {**named, **_check_levels(levels)}.items():
        known.register(name, below=below)
    return known


def _check_policies(policies: object) -> tuple[RetentionPolicy, ...]:
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        raise UsageError(f"retention policies are a list, found {show_value(policies)}")
    for one in cast("Sequence[object]", policies):
        if not isinstance(one, RetentionPolicy):
            raise UsageError(f"expected a RetentionPolicy, found {show_value(one)}")
    return tuple(cast("Sequence[RetentionPolicy]", policies))


def _with_care(stored: Care | None, retention: object, quotas: object, disk: object) -> Care:
    """Returns the care that is taken of a store: what its file says, and what was given."""
    stored = stored or Care()
    limits, watch = _check_limits(quotas, disk)
    policies = (*stored.retention, *_check_policies(retention))
    return Care(policies, (*stored.quotas, *limits), watch or stored.disk, stored.levels)


def _check_limits(quotas: object, disk: object) -> tuple[Sequence[Quota], DiskWatch | None]:
    if not isinstance(quotas, Sequence) or isinstance(quotas, str):
        raise UsageError(f"quotas are a list, found {show_value(quotas)}")
    for one in cast("Sequence[object]", quotas):
        if not isinstance(one, Quota):
            raise UsageError(f"expected a Quota, found {show_value(one)}")
    if disk is not None and not isinstance(disk, DiskWatch):
        raise UsageError(f"disk_watch is a DiskWatch, found {show_value(disk)}")
    return cast("Sequence[Quota]", quotas), disk


def _check_options(
    durability: object, create: object, read_only: object, heartbeat_s: object, clock: object
) -> None:
    """Raises UsageError for an option that is none, for every backend alike.

    A misspelt durability must not become a weak one.
    """
    if durability not in DURABILITIES:
        raise UsageError(
            f"durability is one of {', '.join(DURABILITIES)}, found {show_value(durability)}"
        )
    check_flag(create, "create")
    check_flag(read_only, "read_only")
    check_seconds(heartbeat_s, "heartbeat_s")
    if clock is not None and not hasattr(clock, "boot_us"):
        raise UsageError(f"clock is a Clock or None, found {show_value(clock)}")


def _worker_id(worker: Worker) -> tuple[str]:
    return (worker.id,)


def _place_of(shown: str) -> str | None:
    """Returns what names a store's place in this process; None if it is in memory, even in part."""
    if "memory:" in shown:
        return None
    scheme, colon, rest = shown.partition(":")
    is_path = not colon or "//" not in rest
    return f"{scheme if colon else ''}:{os.path.realpath(rest or shown)}" if is_path else shown


_OF_A_URL = {"durability": "full", "create": True, "read_only": False}


def _take_backend(backend: object, url: object, options: dict[str, Any]) -> tuple[Backend, str]:
    """Returns a backend that the caller opened, and where it is, as it should be shown."""
    if url is not DEFAULT_PLACE:
        raise UsageError(
            "a store is opened by its url or on a backend, found both", hint="leave one of them out"
        )
    if given := [name for name in options if options[name] != _OF_A_URL.get(name)]:
        raise UsageError(
            f"{', '.join(given)} is not an option of a store on a backend, which is open already",
            hint="open the backend with it",
        )
    backend = check_backend(backend, "backend")
    return backend, without_secrets(str(backend.inspect.describe()["place"]))


def _read_mix(
    url: object,
) -> tuple[object, dict[str, str], Care | None, str | None, str | None]:
    """Returns what a TOML file says of a store: URLs, levels, care, its key's place, its tenant."""
    if isinstance(url, str) and url.startswith(("yaml:", "json:")):
        suffix, _, directory = url.partition(":")
        place = _StateFiles(os.path.join(directory or ".", DEFAULT_PLACE))
        place.directory, place.suffix = directory or ".", suffix
        return place, {}, None, None, None
    is_path = isinstance(url, str | os.PathLike)
    path: object = os.fspath(cast("str", url)) if is_path else None
    # Also of one that is not there: a folder in its place would be another, empty store.
    if isinstance(path, str) and path.endswith(".toml") and not os.path.isdir(path):
        from holdfast.backends.mixed import read_mix

        urls, levels, tables = read_mix(path)
        lodger = tables.pop("tenant", None)
        if lodger is not None and not isinstance(lodger, str):
            raise UsageError(f'tenant in "{path}" is a name, found {show_value(lodger)}')
        return urls, levels, read_care(path, tables), _named_key(path, tables), lodger
    return url, {}, None, None, None


def _named_key(path: str, tables: Mapping[str, Any]) -> str | None:
    """Returns where the key of a store is, as `[encryption]` of its file says it.

    A file may come from others, so it names no command, and never the key itself.
    """
    table: object = tables.get("encryption")
    if table is None:
        return None
    found = cast("dict[str, object]", table).get("key") if isinstance(table, dict) else None
    if not isinstance(found, str) or not found.startswith(("env:", "file:", "keyring:")):
        raise UsageError(
            f'[encryption] of "{path}" names where the key is: key = "env:NAME", "file:PATH" or '
            '"keyring:SERVICE/NAME"',
            hint="a command, or the key itself, is given as store_key=… or HOLDFAST_STORE_KEY",
        )
    if len(cast("dict[str, object]", table)) > 1:
        raise UsageError(f'[encryption] of "{path}" has one line, key = …')
    return found


def _check_schemas(schemas: object, unchecked: object) -> Typed:
    if not isinstance(schemas, Sequence) or isinstance(schemas, str):
        raise UsageError(f"schemas is a list of classes, found {show_value(schemas)}")
    classes = cast("Sequence[type[Any]]", schemas)
    return Typed(classes, unchecked=check_flag(unchecked, "unchecked"))


def _check_levels(levels: object) -> Mapping[str, str]:
    if levels is not None and not isinstance(levels, Mapping):
        raise UsageError(
            f"levels is a mapping from a level to the one above it, found {show_value(levels)}"
        )
    return cast("Mapping[str, str]", levels or {})
