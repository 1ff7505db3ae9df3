"""The store: what `holdfast.open` returns.

It has the scopes, what is done over several of them, and a room for each layer. A room is imported
and made when it is first entered, so a process pays for what it uses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from holdfast.backends.place import copy_reports
from holdfast.backends.protocol import Lease, Position
from holdfast.core.arguments import (
    Duration,
    check_alone,
    check_call,
    check_flag,
    check_since,
    check_timeout,
    check_whole,
    name_of,
)
from holdfast.core.check import Report, check_store, content_of
from holdfast.core.commit import CommitResult
from holdfast.core.consumers import follow_scope, follow_store
from holdfast.core.dispatcher import EVERY, OnError, Subscribed, Subscriber, Subscription
from holdfast.core.event import Change, Checkpoint, Event, to_datetime
from holdfast.core.intent import Recovered, Recovery
from holdfast.core.kernel import Kernel
from holdfast.core.listing import adopt_levels, first_words, scope_names, stored_prefix
from holdfast.core.meta import Meta
from holdfast.core.observe import Observed, Observer, Tracer
from holdfast.core.own_event import OwnEvent
from holdfast.core.page import PAGE_SIZE, Page, check_limit
from holdfast.core.paging import event_page
from holdfast.core.past import StateAt
from holdfast.core.retry import RETRIES, persist
from holdfast.core.transaction import PendingCommit, PendingScope, View
from holdfast.errors import CorruptError, UsageError, show_value
from holdfast.git.witness import loss_reports, remember
from holdfast.joint_commit import JointCommit, JointScope
from holdfast.names import CONVERSATION, GLOBAL, TEAM, WORKFLOW, check_level
from holdfast.query.form import TIMEOUT_S, Hits, Kind, Where, check_where
from holdfast.query.questions import Questions
from holdfast.record.context import RecordContext, Stale
from holdfast.record.decisions import Decisions
from holdfast.record.recovery import recover, stale
from holdfast.scope import ConversationScope, GlobalScope, Scope, Scopes, TeamScope, WorkflowScope
from holdfast.scratch import Scratches, ScratchScope

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    from holdfast.context.parts import PromptContext, Strategy
    from holdfast.decisions import DecisionsRoom
    from holdfast.facts import FactsRoom
    from holdfast.git.rewinds import Rewinds
    from holdfast.keys import KeysRoom
    from holdfast.nodes.room import NodesRoom
    from holdfast.projections.room import ProjectionsRoom
    from holdfast.projects.project import Project
    from holdfast.record.task_events import Task
    from holdfast.retention import RetentionRoom
    from holdfast.runs.room import RunsRoom
    from holdfast.schemas import SchemasRoom
    from holdfast.search import SearchRoom
    from holdfast.secrets import SecretsRoom
    from holdfast.sessions import SessionsRoom
    from holdfast.subjects import SubjectsRoom
    from holdfast.tasks import TasksRoom
    from holdfast.undo import Undone
    from holdfast.views.directory import FileView, Views
    from holdfast.workers import WorkersRoom

    S = _TypeVar("S", default=Any)
else:
    S = TypeVar("S")
R = TypeVar("R")


__all__ = [
    "Checkpoint",
    "CommitResult",
    "JointCommit",
    "JointScope",
    "Meta",
    "Observed",
    "Observer",
    "OwnEvent",
    "Page",
    "PendingCommit",
    "PendingScope",
    "Position",
    "Recovered",
    "Recovery",
    "Report",
    "ScratchScope",
    "StateAt",
    "Store",
    "Subscribed",
    "Subscriber",
    "View",
]


class Store:
    """Streams of events with scopes on them. Thread-safe; close it, or use it as a context."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._log = kernel.log
        self._scopes = kernel.part(Scopes)
        self._are_levels_looked_at = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from holdfast.renamed import STORE, no_attribute

            raise no_attribute("a store", name, STORE)

    @property
    def url(self) -> str:
        """Where the store is, without the secrets of it."""
        return self._kernel.url

    # --- scopes -----------------------------------------------------------------------------------

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
        `slides` too, so many seconds after its newest one: each write moves its end, and so does
        `life.touch`.
        Without `ttl_s` it lasts, unless `retention.expire` of its level says otherwise.
        With `subject`, the name of a person or of anybody else, the scope is that subject's from
        its first event on: all it holds is sealed by the subject's key, until `subjects.erase`.
        """
        return self._scopes.scope(
            level, id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
        )

    def scratch(self, id: str | None = None, *, parent: Scope | None = None) -> ScratchScope:
        """Returns a scope that is kept in the memory of this process and never reaches the store.

        It does what a scope does. The same id is the same scope in this handle; without one it is
        a new scope. `drop()`, the end of a `with` block, or closing the store frees it. `lookup`
        goes on to `parent`, a scope of the store, and to the global scope. A run that is resumed
        in another process finds it empty, and its body writes it again.
        """
        return self._kernel.part(Scratches).get(id, parent)

    def scopes(
        self,
        level: str | None = None,
        *,
        id: str | None = None,
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
        index on the path if there is one (`holdfast.index`). With `id` the scopes that have this
        id, of whatever level, widest first.
        """
        if id is not None:
            check_alone("id", level=level, prefix=prefix or None, where=where, after=after)
            return Page(self._scopes.of_id(id))
        limit = check_limit(limit)
        conditions = check_where(where)
        if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"prefix is text, found {show_value(prefix)}")
        if after is not None and not isinstance(after, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"after is the cursor of a page of scopes, found {show_value(after)}")
        if level is None or not self._kernel.levels.has(level):
            adopt_levels(self._log, self._kernel.levels)
        if level is None:
            self._report_unknown_levels()
            levels = self._kernel.levels.names()
        else:
            levels = [check_level(level)]
        most = None if limit is None else limit + 1
        wanted = stored_prefix(level, prefix)
        fitting = partial(self._kernel.part(Questions).fitting, conditions) if conditions else None
        names = scope_names(
            self._log, levels, prefix=wanted, after=after or "", limit=most, pages=fitting
        )
        found = names[:limit]
        scopes = self._scopes.named(found)
        return Page(scopes, more=len(found) < len(names), cursor=found[-1] if found else after)

    def _report_unknown_levels(self) -> None:
        """Says once of which levels there are scopes that nobody recorded, so they are not listed.

        Every level has been recorded since the first of its scopes was begun, but in a store that
        was written before that was so.
        """
        if self._are_levels_looked_at:
            return
        self._are_levels_looked_at = True
        for word in first_words(self._log):
            if word not in self._kernel.levels.reserved and not self._kernel.levels.has(word):
                self._log.report(
                    f'streams named "{word}/…" are of a level that is not recorded in the store: '
                    "they are not listed unless the store is opened with "
                    f'Settings(levels={{"{word}": …}})'
                )

    # --- several at once --------------------------------------------------------------------------

    @overload
    def commit(
        self,
        *,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
        waits: bool = True,
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
        waits: bool = True,
    ) -> JointCommit | R:
        """Commits over several scopes, all or nothing, fenced by a lease.

        Everything takes part: state, messages, turns, tasks, decisions, facts and marks.

        `with store.commit() as tx:` raises ConflictError if somebody changed what it has read.
        `store.commit(function)` calls function(tx) again on what is there now, up to `retries`
        times, and returns what the function returned. `meta` is kept with every event of it.
        `time` is for imports: when what it says happened, in scopes that it begins or that have
        imported events alone. It never goes back within a scope. With `waits=False` the end of the
        block only queues the commit, and `tx.wait()` waits: such commits keep their order, and are
        on disk before any later one is.
        """
        join = partial(
            JointCommit,
            self._kernel.part(RecordContext),
            self.scope,
            key=key,
            lease=lease,
            meta=meta,
            time=time,
            waits=check_flag(waits, "waits"),
        )
        if function is None:
            return join()
        check_call(function, "what commit is given")
        if not waits:
            raise UsageError("waits=False is for the block of a commit, not for a function")

        def attempt() -> R:
            with join() as tx:
                return function(tx)

        return persist(self._log, self._kernel.worker, check_whole(retries, "retries"), attempt)

    def view(self) -> View:
        """Returns all scopes as they are at this moment, together."""
        return View(self._log)

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

    # --- following --------------------------------------------------------------------------------

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
            find=self._kernel.part(Questions).find_positions,
        )

    @overload
    def follow(
        self,
        scope: Scope | str,
        *,
        after: int | None = None,
        timeout_s: Duration | None = None,
    ) -> Iterator[Change]: ...
    @overload
    def follow(
        self,
        *,
        after: Position | None = None,
        timeout_s: Duration | None = None,
        as_events: Literal[False] = False,
    ) -> Iterator[Change]: ...
    @overload
    def follow(
        self,
        *,
        after: Position | None = None,
        timeout_s: Duration | None = None,
        as_events: Literal[True],
    ) -> Iterator[Event]: ...
    def follow(
        self,
        scope: Scope | str | None = None,
        *,
        after: Any = None,
        timeout_s: Duration | None = None,
        as_events: bool = False,
    ) -> Iterator[Change] | Iterator[Event]:
        """Yields each change as it is committed, by whichever process (guarantee 5).

        Of one scope, from after a revision; or of the whole store, with old and new values, in the
        order of positions, from after a position. `after` is the newest one unless it is given.
        With `as_events` it yields the events of the whole store, of every kind, as they are. It
        waits for ever, or until nothing came for `timeout_s`.
        """
        left = check_timeout(timeout_s)
        if scope is not None:
            check_alone("a scope", as_events=as_events)
            name = scope.name if isinstance(scope, Scope) else scope
            since = None if after is None else check_whole(after, "after")
            return follow_scope(self._log, self.scope(name).name, since, left)
        begin = self.position if after is None else self._log.routes.position(after)
        if check_flag(as_events, "as_events"):
            return (self._log.event(one) for one in self._log.follow(after=begin, timeout_s=left))
        return follow_store(self._log, begin, left)

    def subscribe(self, subscriber: Subscriber, *, on_error: OnError | None = None) -> Subscribed:
        """Calls `subscriber(change)` for every change that this process makes, in any scope.

        One after the other in the order of positions; see `Scope.subscribe`. What other processes
        change is in `follow()`. Returns the function that ends it, whose `drain()` waits
        until all was told.
        """
        check_call(subscriber, "a subscriber")
        if on_error is not None:
            check_call(on_error, "on_error")
        return self._log.subscribe(EVERY, Subscription(subscriber, on_error))

    # --- questions --------------------------------------------------------------------------------

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
        return self._kernel.part(Questions).ask(
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
        scope: Scope | str = GLOBAL,
        budget: int = 8_000,
        task: Task | str | None = None,
        *,
        strategies: Strategy | Sequence[Strategy] = ("window", "summary", "retrieval"),
        window: int = 20,
        about: str | Sequence[str] = (),
        role: str | None = None,
        tokenizer: object = None,
        boot: bool = False,
        compact: bool = False,
    ) -> PromptContext:
        """Returns what an agent must know of a scope, as one text of at most `budget` tokens.

        Standing orders, goals and the task in hand (a task, its id, or what it says) are never
        left out; of the rest as much as there is room for, and what was left out, with where it
        is. `strategies` say which messages: full, window (the newest), summary, entity (those that
        mention a name in `about`), retrieval (those that have to do with the task). `role` leaves
        out the orders of other roles. `tokenizer` counts: the name of an encoding of tiktoken, an
        object with `encode`, or a function; without one, tokens may be an estimate, and
        `is_exact` says so. The same log gives the same bytes.

        With `boot` it is what an agent that knows nothing begins with: the order to decide first,
        what the role is, the goals, the vocabulary and the map of files (`boot` of the state), the
        newest decisions, the other scopes that have something to do, and of the messages only the
        newest: it asks no index. With `compact` too, orders, goals, open tasks and decisions, and
        facts in few tokens instead, one line for each, all of them.
        """
        from holdfast.context.build import BOOT_WINDOW, build, build_compact, check_wanted

        if check_flag(boot, "boot"):
            strategies, window = "window", BOOT_WINDOW
        elif check_flag(compact, "compact"):
            raise UsageError("compact is for what an agent begins with: expected boot=True with it")
        wanted = check_wanted(
            budget=budget,
            task=task,
            strategies=strategies,
            window=window,
            about=about,
            role=role,
            tokenizer=tokenizer,
            is_boot=boot,
        )
        found = scope if isinstance(scope, Scope) else self.scope(name_of(scope))
        record = self._kernel.part(RecordContext)
        if compact:
            return build_compact(record, found, wanted)
        return build(record, found, self.query, wanted)

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
        from holdfast.undo import Undoing

        now_us = self._log.clock.now_us()
        began = None if since is None else to_datetime(check_since(since, "since", now_us))
        undoing = Undoing(self._kernel)
        return undoing.undo(
            source=source,
            actor=actor,
            trust=trust,
            since=began,
            scope=None if scope is None else scope if isinstance(scope, str) else scope.name,
            dry_run=dry_run,
        )

    # --- rooms ------------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> RunsRoom:
        """Durable runs of functions: start, resume, answer, cancel, list."""
        from holdfast.runs.room import RunsRoom

        return self._kernel.part(RunsRoom)

    @cached_property
    def tasks(self) -> TasksRoom:
        """What is to be done in any scope."""
        from holdfast.tasks import TasksRoom

        return self._kernel.part(TasksRoom)

    @cached_property
    def decisions(self) -> DecisionsRoom:
        """What was decided in any scope, the policy about it, and what was caught."""
        from holdfast.decisions import DecisionsRoom

        return self._kernel.part(DecisionsRoom)

    @cached_property
    def facts(self) -> FactsRoom:
        """Claims about the outside world, of any scope."""
        from holdfast.facts import FactsRoom

        return self._kernel.part(FactsRoom)

    @cached_property
    def sessions(self) -> SessionsRoom:
        """Who is at work in which conversation."""
        from holdfast.sessions import SessionsRoom

        return self._kernel.part(SessionsRoom)

    @cached_property
    def nodes(self) -> NodesRoom:
        """Graphs of nodes: walked, explained, declared to count or not."""
        from holdfast.nodes.room import NodesRoom

        return self._kernel.part(NodesRoom)

    @cached_property
    def projections(self) -> ProjectionsRoom:
        """States that are folded from events of your own."""
        from holdfast.projections.room import ProjectionsRoom

        return self._kernel.part(ProjectionsRoom)

    @cached_property
    def search(self) -> SearchRoom:
        """Meaning, links and SQL over everything, and the index that answers."""
        from holdfast.search import SearchRoom

        return self._kernel.part(SearchRoom)

    @cached_property
    def retention(self) -> RetentionRoom:
        """What the store lets go of: policies, lifetimes, a bin, and holds against it."""
        from holdfast.retention import RetentionRoom

        return self._kernel.part(RetentionRoom)

    @cached_property
    def subjects(self) -> SubjectsRoom:
        """Whose data is here, and how it is erased for good."""
        from holdfast.subjects import SubjectsRoom

        return self._kernel.part(SubjectsRoom)

    @cached_property
    def keys(self) -> KeysRoom:
        """The keys of a store that is encrypted at rest."""
        from holdfast.keys import KeysRoom

        return self._kernel.part(KeysRoom)

    @cached_property
    def secrets(self) -> SecretsRoom:
        """What is done about secrets in what is written."""
        from holdfast.secrets import SecretsRoom

        return self._kernel.part(SecretsRoom)

    @cached_property
    def schemas(self) -> SchemasRoom:
        """What the store has the shapes of, and how states come to their versions."""
        from holdfast.schemas import SchemasRoom

        return self._kernel.part(SchemasRoom)

    @cached_property
    def workers(self) -> WorkersRoom:
        """The processes that have the store open, their leases, marks and groups."""
        from holdfast.workers import WorkersRoom

        return self._kernel.part(WorkersRoom)

    # --- directories ------------------------------------------------------------------------------

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
        from holdfast.views.directory import Views
        from holdfast.views.kept import KeptViews

        made = Views(self, directory, views, person=person)
        return self._kernel.part(KeptViews).keep(made)

    def git(self, work_tree: str | os.PathLike[str] = ".") -> Rewinds:
        """Returns the points to go back to, of scopes and of the files of a work tree of git.

        `hf.git().mark("before the change", [chat])` makes one; `rewind` goes back to it, and `undo`
        forth again.
        """
        from holdfast.git.rewinds import Rewinds

        own = self._log.describe().get("path")
        return Rewinds(self._kernel, work_tree, exclude=[str(own)] if own else [])

    def project(self, directory: str | os.PathLike[str] = ".") -> Project:
        """Returns the project in a directory."""
        from holdfast.projects.project import Project

        return Project(self, directory)

    # --- looking after it -------------------------------------------------------------------------

    def recover(self, *, scope: Scope | str | None = None) -> Recovery:
        """Judges what dead workers left open through its verifiers, and reports each.

        What was done is closed; what was not and has a registered act is done again, by one worker
        only; everything else is left open, for you.
        """
        from holdfast.runs.admin import recovered_steps
        from holdfast.runs.engine import Engine

        found = recover(Decisions(self._kernel.part(RecordContext)), scope=scope)
        steps = recovered_steps(self._kernel.part(Engine)) if scope is None else []
        return Recovery([*found.acts, *steps])

    def stale(self, *, verify: bool = True) -> list[Stale]:
        """Returns what is not to be trusted: facts past their time, facts that a verifier
        contradicts (each is asked, unless `verify` is False), acts that a silent worker left open,
        tasks whose owner is silent, sessions that a worker died in.
        """
        return stale(self._kernel.part(RecordContext), verify=check_flag(verify, "verify"))

    def check(self, *, read_all: bool = True, expect: str | None = None) -> Report:
        """Verifies the store: every link, and with `read_all` every byte (guarantee 6)."""
        return check_store(self._log, read_all=read_all, expect=expect)

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
        kept = [line for reports in self._kernel.reports for line in reports()]
        reports = [*facts["reports"], *copy_reports(facts), *taken, *self._log.reports, *kept]
        return {**facts, **counts, "worker": self._kernel.worker, "reports": reports}

    def close(self) -> None:
        """Closes the store. What was acknowledged is safe without it."""
        self._kernel.close()
        self._kernel.leases.close()
        if not self._kernel.read_only:
            remember(self._log)
        self._log.close()
        self._log.sealing.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url}>"
