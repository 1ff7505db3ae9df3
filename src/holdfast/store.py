"""The store: what `holdfast.open` returns.

It has the scopes, the operations over several scopes, and a room for each layer. A room is imported
and made at its first use, so a process pays only for what it uses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
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
from holdfast.lazy import Loading, loaded_property
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
    """An open store: `holdfast.open(url)` returns one.

    All methods are safe to call from several threads. Close the store when you are done with it, or
    use it as a context manager: `with holdfast.open(url) as hf:`.
    """

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
        """The URL of the store, without passwords."""
        return self._kernel.url

    # --- scopes -----------------------------------------------------------------------------------

    def global_(self, schema: type[S] | None = None) -> GlobalScope[S]:
        """Returns the global scope, of which every store has exactly one."""
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
        """Returns the scope of a team; see `scope` for the arguments."""
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
        """Returns the scope of a workflow; see `scope` for the arguments."""
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
        """Returns the scope of a conversation; see `scope` for the arguments."""
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

        Nothing is written: the first write to the scope creates it.

        An id is any text. If a name cannot hold it, because of its characters or its length,
        `scope.name` has it escaped or shortened with a digest; `scope.id` is always the id as it
        was given.

        `schema` is the class of the state, for type checkers. It must be the one that the store was
        opened with for this scope.

        `parent` is a scope of a wider level, in which `lookup` goes on.

        `ttl_s` gives the scope a lifetime, in seconds or as text such as "1h", if this process
        begins it. It ends so long after its first event, or with `slides` after its newest one:
        then each write moves the end, and so does `life.touch`. The backend's clock decides. A
        scope that has ended raises ExpiredError. Without `ttl_s` the scope lasts, unless
        `retention.expire` set a lifetime for its level.

        `subject` names the person or other party that the scope belongs to, from its first event
        on. Everything in it is sealed with that subject's key, which `subjects.erase` destroys.
        """
        return self._scopes.scope(
            level, id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
        )

    def scratch(self, id: str | None = None, *, parent: Scope | None = None) -> ScratchScope:
        """Returns a scope that is kept in the memory of this process and never reaches the store.

        It can do all that other scopes can. Within this handle the same id returns the same scope;
        without an id, each call returns a new one. `drop()`, the end of a `with` block, or closing
        the store frees it. `lookup` continues in `parent`, a scope of the store, and then in the
        global scope. A run that is resumed in another process finds it empty, and its body writes
        it again.
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
        """Returns a page of the scopes that have events, in the order of their names.

        With `level`, only scopes of that level, and `prefix` is the beginning of their ids; without
        it, `prefix` is the beginning of whole names. Pass the cursor of a page as `after` to get
        the next page. The cost depends on the size of the page, not on the number of scopes. Levels
        that other processes registered are included.

        `where` selects by what the state holds at a path, as in `query`; an index on the path
        (`holdfast.index`) is used if there is one. `id` returns the scopes with that id at any
        level, widest level first; it cannot be combined with the other filters.
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
        """Reports, once, scopes that are not listed because their level is not recorded.

        The first scope of a level records it. Stores of earlier versions may lack this.
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
        """Commits writes to several scopes as one: all of them are made, or none.

        State, messages, turns, tasks, decisions, facts and marks can all take part.

        `with store.commit() as tx:` commits at the end of the block, and raises ConflictError if
        somebody changed what the block had read. `store.commit(function)` calls `function(tx)`, and
        after a conflict calls it again on the newer state, up to `retries` times; it returns what
        the function returned.

        `key` makes the commit idempotent: sent twice with one key, it is written once. With `lease`
        the commit is refused once the lease has passed to another worker. `meta` is stored with
        each of its events. `time` is for imports: it is when the events happened. It is allowed in
        scopes that this commit begins, or that have only imported events so far, and never goes
        back within a scope.

        With `waits=False` the end of the block only queues the commit, and `tx.wait()` waits for
        it. Queued commits keep their order, and each is durable before any later one.
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
        """Returns a view of all scopes as they are at this one moment."""
        return View(self._log)

    def observe(self, observer: Observer, *, trace: Tracer | None = None) -> Callable[[], None]:
        """Calls `observer` with what this process does in the store; returns a function to end it.

        The observer gets an `Observed` after each commit, each read that memory could not answer,
        and each step, attempt, wait, lease, recovery and retry. `trace` is a function that returns
        the W3C `traceparent` of its caller, or None. It is called at each commit, and its answer is
        stored with the events (`Event.meta.trace`).
        """
        check_call(observer, "an observer")
        if trace is not None:
            check_call(trace, "what tells the trace")
        return self._log.observe(observer, trace)

    # --- following --------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The newest position of the store, to follow from."""
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
        """Returns a page of events of the whole store or of one scope, oldest or newest first.

        `page.cursor` is where the page ends: pass it as `after` (with `newest_first`, as `before`)
        to get the next page. `page.start` is where the page begins, to go the other way. The
        position of an event, or a revision of the scope, can be passed as well. A page holds whole
        commits, so it may have a few more events than `limit`.

        `type`, `actor`, `source` and `trust` select events; the last two are what the writer said
        (`holdfast.provenance`). `since` and `until` are times, or lengths of time before now
        ("7d"); what happened exactly at `until` is left out. Without a scope, a selection that few
        events fit is answered by the index of `query`; a store of several backends has to be read
        through.
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
        """Yields each change after it was committed, by any process (guarantee 5).

        With `scope`, the changes of that scope that follow the revision `after`. Without it, the
        changes of the whole store that follow the position `after`, in the order of positions, with
        old and new values. By default it begins after the newest one. With `as_events` it yields
        all events of the whole store instead, of every type. It waits for more without end, or
        until nothing came for `timeout_s`.
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

        The calls come one after the other, in the order of positions; see `Scope.subscribe`. Use
        `follow()` for the changes of other processes. Returns a function that ends the
        subscription; its `drain()` waits until all changes so far were delivered.
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
        """Searches everything recorded, of every kind and in all scopes; returns it newest first.

        `kind` is one or several of message, decision, task, fact, state, run and event (your own
        types). The kind log, every event ever written, is searched only if it is named. `actor`,
        `source` and `trust` are what the writer said (`holdfast.provenance`); for a state, what the
        writer of its newest change said. `scope` is a name, or a pattern in which * stands for any
        characters. `since` and `until` are times, or lengths of time before now ("7d"); what
        happened exactly at `until` is left out. `text` is words that must all occur, "a phrase" in
        quotes, or the beginning of a word (`manag*`). `where` compares what the state holds at
        paths: ("customer.id", "=", 7). Pass the cursor of a page as `after` to get the next page.

        The answer includes everything that was acknowledged before the call. The call waits at most
        `timeout` seconds for the index to catch up. Then it raises UnavailableError, or with
        `stale_ok` it returns what the index has so far; `behind` says how far that is.
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
        """Returns what an agent needs to know of a scope, as one text of at most `budget` tokens.

        Standing orders, goals and the task in hand (a task, its id, or its text) are never left
        out. The rest is added as far as there is room; the result lists what was left out and
        where to find it. `strategies` choose the messages: full, window (the newest `window`),
        summary, entity (those that mention a name in `about`) and retrieval (those related to the
        task). `role` leaves out the orders of other roles. `tokenizer` counts tokens: the name of a
        tiktoken encoding, an object with `encode`, or a function. Without one the count may be an
        estimate, and `is_exact` is False then. The same log gives the same bytes.

        With `boot` it is what an agent that knows nothing starts from: the order to decide first,
        its role, the goals, the vocabulary and the map of files (from `boot` in the state), the
        newest decisions, other scopes with open work, and only the newest messages. It asks no
        index. With `compact` as well, it is a shorter text: one line for each order, goal, open
        task, open decision and fact, without leaving any out.
        """
        with Loading("context"):
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
        """Takes back what a writer changed in the states of all scopes, or of those named.

        The writer is selected by what it said of itself (`holdfast.provenance`): `source`, `actor`
        and `trust`, of which all that are given must fit. Each path that it wrote last returns to
        its earlier value, by one new event per scope. What somebody else has written over since
        stays. Messages, decisions, facts, tasks and runs stay too: the result lists them, and also
        what depends on the values taken back. `scope` is a name, or a pattern in which * stands for
        any characters. With `dry_run` nothing is written.
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

    @loaded_property
    def runs(self) -> RunsRoom:
        """Durable runs of functions: starts, resumes, answers, cancels and lists them."""
        from holdfast.runs.room import RunsRoom

        return self._kernel.part(RunsRoom)

    @loaded_property
    def tasks(self) -> TasksRoom:
        """The tasks of all scopes."""
        from holdfast.tasks import TasksRoom

        return self._kernel.part(TasksRoom)

    @loaded_property
    def decisions(self) -> DecisionsRoom:
        """The decisions of all scopes, the policy about undecided effects, and catches."""
        from holdfast.decisions import DecisionsRoom

        return self._kernel.part(DecisionsRoom)

    @loaded_property
    def facts(self) -> FactsRoom:
        """The facts of all scopes: claims about the outside world."""
        from holdfast.facts import FactsRoom

        return self._kernel.part(FactsRoom)

    @loaded_property
    def sessions(self) -> SessionsRoom:
        """The sessions that have not ended: which worker is in which conversation."""
        from holdfast.sessions import SessionsRoom

        return self._kernel.part(SessionsRoom)

    @loaded_property
    def nodes(self) -> NodesRoom:
        """Graphs of nodes: walks them, explains results, accepts or invalidates them."""
        from holdfast.nodes.room import NodesRoom

        return self._kernel.part(NodesRoom)

    @loaded_property
    def projections(self) -> ProjectionsRoom:
        """Projections: states that your handlers fold from your own events."""
        from holdfast.projections.room import ProjectionsRoom

        return self._kernel.part(ProjectionsRoom)

    @loaded_property
    def search(self) -> SearchRoom:
        """Search by meaning, links and SQL, and the state of the index that answers."""
        from holdfast.search import SearchRoom

        return self._kernel.part(SearchRoom)

    @loaded_property
    def retention(self) -> RetentionRoom:
        """Retention: policies, lifetimes, the bin, and holds."""
        from holdfast.retention import RetentionRoom

        return self._kernel.part(RetentionRoom)

    @loaded_property
    def subjects(self) -> SubjectsRoom:
        """The subjects whose data is in the store, and how to erase it for good."""
        from holdfast.subjects import SubjectsRoom

        return self._kernel.part(SubjectsRoom)

    @loaded_property
    def keys(self) -> KeysRoom:
        """The keys of a store that is encrypted at rest."""
        from holdfast.keys import KeysRoom

        return self._kernel.part(KeysRoom)

    @loaded_property
    def secrets(self) -> SecretsRoom:
        """What happens to secrets in what is written."""
        from holdfast.secrets import SecretsRoom

        return self._kernel.part(SecretsRoom)

    @loaded_property
    def schemas(self) -> SchemasRoom:
        """The schemas of states, and their migrations."""
        from holdfast.schemas import SchemasRoom

        return self._kernel.part(SchemasRoom)

    @loaded_property
    def workers(self) -> WorkersRoom:
        """The processes that have the store open, and their leases, marks and groups."""
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
        """Returns a directory of files that show the store, and that people may edit.

        Its `sync()` imports the edits that people made, in their name, and writes the files whose
        content has changed. `holdfast.views` has the kinds of files. Edits are imported in the name
        of `person`, or without it in the name of the user who owns the file.
        """
        from holdfast.views.directory import Views
        from holdfast.views.kept import KeptViews

        made = Views(self, directory, views, person=person)
        return self._kernel.part(KeptViews).keep(made)

    def git(self, work_tree: str | os.PathLike[str] = ".") -> Rewinds:
        """Returns the rewind points of a git work tree: for scopes and files together.

        `hf.git().mark("before the change", [chat])` makes one, `rewind` goes back to it, and `undo`
        takes a rewind back.
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
        """Asks the verifiers about what dead workers left open, and returns a report of each.

        What was done is closed. What was not done and has a registered act is done again, by one
        worker only. Everything else stays open for you to decide. With `scope`, only the decisions
        of that scope are looked at, and no steps of runs.
        """
        from holdfast.runs.admin import recovered_steps
        from holdfast.runs.engine import Engine

        found = recover(Decisions(self._kernel.part(RecordContext)), scope=scope)
        steps = recovered_steps(self._kernel.part(Engine)) if scope is None else []
        return Recovery([*found.acts, *steps])

    def stale(self, *, verify: bool = True) -> list[Stale]:
        """Returns what can no longer be trusted.

        That is: facts past their time, facts that a verifier contradicts (each verifier is called,
        unless `verify` is False), acts that a silent worker left open, tasks whose owner is silent,
        and sessions whose worker died.
        """
        return stale(self._kernel.part(RecordContext), verify=check_flag(verify, "verify"))

    def check(self, *, read_all: bool = True, expect: str | None = None) -> Report:
        """Verifies the store (guarantee 6); with `read_all` it reads every byte and every link.

        `expect` is the digest that the store should have, as `status` or an earlier check gave it.
        What is wrong is in the report; damage raises nothing.
        """
        return check_store(self._log, read_all=read_all, expect=expect)

    def status(self) -> dict[str, Any]:
        """Returns facts about the store: kind, place, format, durability, size, reports and more.

        `scopes` and `events` are counts, and `digest` is what `check(expect=…)` compares. These
        three are None if the store is too damaged to compute them.
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
        """Closes the store. Acknowledged commits are safe even if it is never called."""
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
