"""Verbs for runs: execute them, look at them, and look after them.

A command executes a run in other threads (or on an event loop there); the main thread only watches.
So Ctrl-C always returns at once: the run stays where it is, and `runs resume` continues it.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.cli.completion import RunId
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Seconds,
    Words,
    command,
    confirm_removal,
    open_reading,
    open_writing,
    print_more,
)
from holdfast.cli.parsing import find_run, parse_limit, parse_value
from holdfast.cli.printing import (
    CHILDREN_MAX,
    console,
    is_terminal,
    print_aside,
    print_facts,
    print_json,
    print_json_line,
    print_line,
    print_note,
    print_table,
)
from holdfast.cli.state import print_value
from holdfast.cli.user_code import load, load_run, run_by_name
from holdfast.clock import Clock
from holdfast.core import intent
from holdfast.core.event import Event, to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.core.page import Key, Page, cut
from holdfast.errors import (
    ExistsError,
    HoldfastError,
    NeedsAttentionError,
    NotFoundError,
    RunFailedError,
    StillRunningError,
    UsageError,
)
from holdfast.prose.program import NAME as PROSE
from holdfast.render.history import event_document
from holdfast.render.runs import (
    RunView,
    TreeNode,
    event_text,
    failure_lines,
    journal_tree,
    node_symbol,
    node_text,
    removed_runs_document,
    run_document,
    run_facts,
    run_result_document,
    run_status_document,
    runs_document,
    show_seconds,
    started_run_document,
    tree_rows,
)
from holdfast.render.text import clean, shorten, show_time
from holdfast.runs import events
from holdfast.runs.admin import RunSummary, place_to_retry
from holdfast.runs.blocks import recorded_progress
from holdfast.runs.define import RunFunction
from holdfast.runs.engine import Engine, Run, check_id
from holdfast.runs.events import ENDED
from holdfast.runs.journal import Journal
from holdfast.scope import Scopes
from holdfast.store import Store

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


# Executing runs in this process.


@Parameter(name="*")
@dataclass(frozen=True)
class WaitOptions:
    """The options of every verb that executes a run in this process."""

    module: Words = None
    """Another FILE.py or module to load first, with verifiers or children; may be given again."""
    leave: Flag = False
    """Leave the run when it waits for something: exit code 15."""
    timeout: Seconds = None
    """Leave the run after this time, in seconds or such as 1h30m: exit code 15."""


UNTIL_IT_ENDS = WaitOptions()


def start(
    code: str,
    /,
    *arguments: str,
    id: RunId | None = None,
    input: Words = None,
    queue: str | None = None,
    if_exists: str = "error",
    subject: str | None = None,
    waiting: WaitOptions = UNTIL_IT_ENDS,
    options: Options = DEFAULTS,
) -> None:
    """Start a run of your own code, execute it here, and print its result.

    Parameters
    ----------
    code
        The run: FILE.py:function, or package.module:function.
    arguments
        Its arguments, each JSON if it parses, else text.
    id
        The run's id, to resume it by. Without it a new id.
    input
        An argument by its name, as NAME=VALUE; may be given again.
    queue
        Only put the run into this queue; runs resume executes it.
    if_exists
        If the id is taken: error, or attach to continue that run.
    subject
        The subject that the run belongs to: all that it records is sealed, until subject erase.
    """
    function = load_run(code, waiting.module)
    values = [parse_value(word, is_text=False) for word in arguments]
    named = dict(parse_named(word, "--input") for word in input or ())
    with executing(options, function) as store:
        check_arguments(function, values, named)
        # Not by store.runs.start: a parameter of the run may be named like one of its options.
        args = tuple(values)
        if subject is not None and id is not None:
            kernel_of(store).part(Scopes).check_opaque(id, "run id")
        try:
            engine = kernel_of(store).part(Engine)
            run = engine.start(
                function, args, named, id=id, if_exists=if_exists, queue=queue, subject=subject
            )
        except ExistsError as error:
            again = f"holdfast runs resume {shlex.quote(str(id))} {shlex.quote(code)}"
            error.hint = f"{again}, or start it with --if-exists attach"
            raise
        if queue is not None:
            print_run(run, options)
            return
        wait_and_print(store, run, code, waiting, options)


def resume(
    id: RunId,
    code: str,
    /,
    *,
    waiting: WaitOptions = UNTIL_IT_ENDS,
    options: Options = DEFAULTS,
) -> None:
    """Continue a run that waits, was left, or lost its process; print its result.

    Parameters
    ----------
    id
        The run's id.
    code
        Where its code is: FILE.py, or package.module.
    """
    with resuming(id, code, waiting, options) as (store, id):
        run = store.runs.resume(id)
        wait_and_print(store, run, code, waiting, options)


def retry(
    id: RunId,
    code: str,
    /,
    *,
    at: str | None = None,
    new_id: str | None = None,
    effects: str = "ask",
    waiting: WaitOptions = UNTIL_IT_ENDS,
    options: Options = DEFAULTS,
) -> None:
    """Retry a failed run, in a fork that begins just before the step that failed.

    Parameters
    ----------
    id
        The id of the run that failed.
    code
        Where its code is: FILE.py, or package.module.
    at
        The path of another step to start at.
    new_id
        The id of the new run. Without it ID-retry, ID-retry-2 and so on.
    effects
        How to treat acts: ask parks before the first, live performs them, dry skips them.
    """
    with resuming(id, code, waiting, options) as (store, id):
        place = place_to_retry(store.runs.get(id).journal, id)
        target = new_id or unused_id(store, id)
        store.runs.fork(id, at or place, id=target, effects=effects, signals="copy")
        run = store.runs.resume(target)
        wait_and_print(store, run, code, waiting, options)


def unused_id(store: Store, id: str) -> str:
    """Returns an unused id for a retry: ID-retry, then ID-retry-2 and so on."""
    number = 1
    while True:
        name = f"{id}-retry" if number == 1 else f"{id}-retry-{number}"
        if kernel_of(store).log.head(f"run/{name}") is None:
            return name
        number += 1


def parse_named(word: str, option: str, sign: str = "=") -> tuple[str, Any]:
    """Returns the name before a sign and the value after it."""
    name, found, value = word.partition(sign)
    if not found or not name:
        raise UsageError(f'{option} expects NAME{sign}VALUE, found "{word}"')
    return name, parse_value(value, is_text=False)


def check_arguments(
    function: RunFunction[..., Any], values: list[Any], named: dict[str, Any]
) -> None:
    """Raises UsageError for arguments that the function does not take, before the run exists."""
    signature = inspect.signature(function.function)
    first = [None] if function.signature.first == "ctx" else []
    try:
        signature.bind(*first, *values, **named)
    except TypeError as error:
        takes = ", ".join(str(p) for p in list(signature.parameters.values())[len(first) :])
        raise UsageError(
            f"the arguments do not fit: {error}", hint=f"{function.name} takes ({takes})"
        ) from error


def function_name(options: Options, id: str) -> tuple[str, str]:
    """Returns the whole id of a run and the name of its function.

    The name is compared with what was loaded, and never imported.
    """
    with open_reading(options) as store:
        id = find_run(store, id)
        created = store.runs.get(id).journal.created
    assert created is not None, "BUG: a run that was not created"
    return id, created.name


@contextmanager
def executing(options: Options, function: RunFunction[..., Any]) -> Generator[Store]:
    """Opens the store to execute a run; an `async def` run gets an event loop in a thread."""
    if not function.is_async:
        with open_writing(options) as store:
            yield store
        return
    from holdfast.aio.store import looping

    with looping(open_writing(options)) as store:
        yield store


@contextmanager
def resuming(
    id: str, code: str, waiting: WaitOptions, options: Options
) -> Generator[tuple[Store, str]]:
    """Loads the code of a run and opens the store to continue it; yields store and whole id."""
    load(code, waiting.module)
    id, name = function_name(options, id)
    with executing(options, run_by_name(name, id, code)) as store:
        yield store, id


def wait_and_print(
    store: Store, run: Run[Any], code: str, waiting: WaitOptions, options: Options
) -> None:
    """Waits until the run ends and prints its result, or says how to go on."""
    words = f"{shlex.quote(run.id)} {shlex.quote(code)}"
    end_and_print(store, run, (f"runs resume {words}", f"runs retry {words}"), waiting, options)


def end_and_print(
    store: Store,
    run: Run[Any],
    next: tuple[str, str],
    waiting: WaitOptions,
    options: Options,
    *,
    has_code: bool = True,
) -> None:
    """Waits until the run ends and prints its result, for any front end.

    `next` holds the verb that continues the run, and the one to use after a failure. A run without
    code of the user's (`has_code` is False) prints no traceback: it would only show the library.
    """
    again, after_failure = next
    try:
        result = await_result(store, run, waiting, is_json=options.json)
    except KeyboardInterrupt:
        print_note(f"\nrun {run.id} is left as it is: {command(again, options.place)}")
        raise
    except StillRunningError as error:
        error.hint = f"holdfast {again}"
        raise
    except RunFailedError as error:
        if has_code and error.traceback and not (options.json or is_terminal()):
            # On a terminal the tree shows it, and the JSON document of the error includes it.
            print(clean(error.traceback.rstrip(), keep="\n"), file=sys.stderr, flush=True)
        error.hint = error.hint or f"holdfast {after_failure}"
        raise
    except HoldfastError as error:
        error.hint = hint_for(error, run, command(again, options.place))
        raise
    if options.json:
        print_json(run_result_document(run.id, result))
    else:
        print_value(result)


def hint_for(error: HoldfastError, run: Run[Any], again: str) -> str | None:
    """Returns what to type after a run that stopped before its end."""
    if not isinstance(error, NeedsAttentionError):
        return error.hint
    id, diverged = shlex.quote(run.id), run.journal.diverged
    if diverged is None and not error.path:
        return f"put that right, then {again}"  # no act is uncertain: its reason says what is wrong
    if diverged is None:
        path = shlex.quote(error.path)
        return f"holdfast runs settle {id} {path} --done RESULT (or --not-done), then {again}"
    if diverged.problem == "kind":
        return f"correct the code, or fork the run: holdfast runs show {id} lists its steps"
    return f"holdfast runs adopt {id} accepts it, then {again}; or correct the code"


def await_result(store: Store, run: Run[Any], waiting: WaitOptions, *, is_json: bool) -> Any:
    """Returns the run's result, and redraws its tree on a terminal meanwhile."""
    watcher = Watcher(store, run.id)
    clock = kernel_of(store).clock
    begun = clock.boot_us()
    with live_tree(store, wanted=not is_json) as tree:
        while True:
            try:
                return run.result(timeout=WATCH_S)
            except StillRunningError:
                spent_s = (clock.boot_us() - begun) / 1e6
                rests = (
                    waiting.leave
                    and run.id not in kernel_of(store).part(Engine).active
                    and run.status == "waiting"
                )
                if rests or (waiting.timeout is not None and spent_s >= waiting.timeout):
                    raise
            finally:
                if tree is not None:
                    tree.show(watcher.run)


def print_run(run: Run[Any], options: Options) -> None:
    """Prints a run that was only put into a queue."""
    if options.json:
        print_json(started_run_document(run.id, run.status))
    else:
        print_line(clean(run.id))


# Looking at runs.

COLUMNS = ("run", "status", "updated", "code", "doing")
TAIL = 10


def list_runs(
    *,
    status: str | None = None,
    limit: int = 50,
    after: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List runs: those that have not ended first, then the others, newest ids first.

    Parameters
    ----------
    status
        Only those that are pending, running, waiting, needs_attention, cancelling, completed,
        failed or cancelled.
    limit
        How many at most.
    after
        Continue after this cursor, which the page before ended with.
    """
    with open_reading(options) as store:
        known = sorted(store.runs.list(status=status, limit=None), key=_unfinished_and_newest_first)
        page = cut(
            "runs", known, _unfinished_and_newest_first, after=after, limit=parse_limit(limit)
        )
        views = [view_briefly(store, run) for run in page]
        found = Page(views, more=page.more, cursor=page.cursor)
        if options.json:
            print_json(runs_document(found, len(known)))
            return
        rows = [_row(run) for run in found]
    if rows:
        print_table(COLUMNS, rows)
    else:
        print_note(f"no run is {status}" if status else "no runs")
    words = ["runs", "list", *(["--status", status] if status else [])]
    print_more(found, words, options, limit)


def _unfinished_and_newest_first(run: RunSummary) -> Key:
    """Returns the key that sorts unfinished runs before the others, and newest ids first.

    Ids that the store makes sort by their time. Negated letters reverse that order; the 1 at the
    end puts an id after the longer ids that begin with it, as a reversed order must.
    """
    return run.status in ENDED, [*(-ord(letter) for letter in run.id), 1]


def _row(run: RunView) -> tuple[str, ...]:
    doing = ""
    if run.status not in ENDED:
        doing = "; ".join([*run.progress.blocks, *run.progress.statements])
    elif run.journal.ended is not None and run.journal.ended.error is not None:
        doing = f"{run.journal.ended.error.kind}: {run.journal.ended.error.message}"
    status = run.standing if is_terminal() else run.status
    return run.id, status, show_time(run.updated), run.name, doing


def show(id: RunId, /, *, options: Options = DEFAULTS) -> None:
    """Show what a run is doing and has done: a tree of its blocks and steps.

    Parameters
    ----------
    id
        The run's id.
    """
    with open_reading(options) as store:
        run = view_run(store, find_run(store, id))
        if options.json:
            print_json(run_document(run))
        elif is_terminal():
            console().print(draw(run))
        else:
            print_facts(run_facts(run))
            for cells in tree_rows(journal_tree(run.journal), run):
                print_line("\t".join(clean(cell) for cell in cells))
            for line in failure_lines(run):
                print_line(line)


def tail(
    id: RunId,
    /,
    *,
    after: int | None = None,
    timeout: Seconds = None,
    options: Options = DEFAULTS,
) -> None:
    """Follow a run until it ends: a live tree on a terminal, else a line for each event.

    Parameters
    ----------
    id
        The run's id.
    after
        Start after this revision of its journal instead of with its last ten events.
    timeout
        Stop after this time without an event, in seconds or such as 1h30m.
    """
    if after is not None and after < 0:
        raise UsageError(f"--after must be at least 0, found {after}")
    with open_reading(options) as store:
        id = find_run(store, id)
        if is_terminal() and not options.json:
            _tail_tree(store, id, timeout)
        else:
            _tail_lines(store, id, after, timeout, options)


def _tail_tree(store: Store, id: str, timeout: float | None) -> None:
    with live_tree(store) as tree:
        assert tree is not None, "BUG: a tree without a terminal"
        for run in watch(Watcher(store, id), timeout):
            tree.show(run)


def _tail_lines(
    store: Store, id: str, after: int | None, timeout: float | None, options: Options
) -> None:
    watcher = Watcher(store, id)
    first = watcher.new_events
    first = first[-TAIL:] if after is None else [e for e in first if e.revision > after]
    print_events(watcher, first, is_json=options.json)
    for _ in watch(watcher, timeout):
        print_events(watcher, watcher.new_events, is_json=options.json)


# Looking after runs that others execute, or that nobody executes.

Value = Annotated[str, Parameter(allow_leading_hyphen=True)]


def cancel(id: RunId, /, *, now: Flag = False, options: Options = DEFAULTS) -> None:
    """Cancel a run: its worker stops at its next operation; without a worker it ends now.

    A run with cleanups to do (`finally` of a program) and no worker ends when it is resumed.

    Parameters
    ----------
    id
        The run's id.
    now
        End a run that has no worker without its cleanups.
    """
    with open_for_run(id, options) as (store, id):
        store.runs.cancel(id, now=now)
        journal = store.runs.get(id).journal
        is_left = journal.ended is None and kernel_of(store).log.leases.holder(f"run/{id}") is None
        if is_left and journal.cleanups:
            is_program = journal.created is not None and journal.created.name == PROSE
            again = f"{'prose' if is_program else 'runs'} resume {shlex.quote(id)}"
            print_aside(f"it has cleanups to do: {command(again, options.place)}")
        print_status(store, id, options)


def remove(id: RunId, /, *, yes: Flag = False, options: Options = DEFAULTS) -> int:
    """Remove a run that has ended, and its children: their ids can be used again. Asks first.

    Parameters
    ----------
    id
        The run's id.
    yes
        Do not ask; for scripts.
    """
    with open_for_run(id, options) as (store, id):
        if not yes and not confirm_removal(f"run {clean(id)}", options):
            print_line("nothing was removed")
            return 1
        removed = store.runs.remove(id)
    if options.json:
        print_json(removed_runs_document(id, removed))
    else:
        for one in removed:
            print_line(f"run {clean(one)} was removed")
    return 0


def answer(
    id: RunId,
    name: str,
    value: Value = "null",
    /,
    *,
    text: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Answer what a run waits for; the first answer counts, a second is exit code 4.

    Parameters
    ----------
    id
        The run's id.
    name
        The name or the path of the wait.
    value
        The answer: JSON if it parses, else text.
    text
        Take the value as text, even if it looks like JSON.
    """
    with open_for_run(id, options) as (store, id):
        store.runs.answer(id, name, parse_value(value, is_text=text))
        print_status(store, id, options)


def signal(
    id: RunId,
    name: str,
    value: Value = "null",
    /,
    *,
    text: Flag = False,
    key: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Send a run a signal, which it takes exactly once.

    Parameters
    ----------
    id
        The run's id.
    name
        The name of the signal.
    value
        What it carries: JSON if it parses, else text.
    text
        Take the value as text, even if it looks like JSON.
    key
        An idempotency key: a second signal with the same key is not sent.
    """
    with open_for_run(id, options) as (store, id):
        store.runs.signal(id, name, parse_value(value, is_text=text), id=key)
        print_status(store, id, options)


def settle(
    id: RunId,
    path: str,
    /,
    *,
    done: str | None = None,
    not_done: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Record whether an uncertain act was done; then resume the run.

    Parameters
    ----------
    id
        The run's id.
    path
        The path of the uncertain step, as runs show prints it.
    done
        It was done, and this is its result: JSON if it parses, else text.
    not_done
        It was not done: the run does it again when it is resumed.
    """
    if (done is None) != not_done:
        raise UsageError(
            "settle takes one of --done RESULT and --not-done",
            hint=f"holdfast runs settle {shlex.quote(id)} {shlex.quote(path)} --done null",
        )
    verdict = intent.NotDone() if done is None else intent.Done(parse_value(done, is_text=False))
    with open_for_run(id, options) as (store, id):
        store.runs.settle(id, path, verdict)
        print_status(store, id, options)


def adopt(id: RunId, /, *, options: Options = DEFAULTS) -> None:
    """Accept the divergence of code and journal that a run is parked for; then resume it.

    Parameters
    ----------
    id
        The run's id.
    """
    with open_for_run(id, options) as (store, id):
        store.runs.adopt(id)
        print_status(store, id, options)


def fork(
    id: RunId,
    at: str,
    /,
    *,
    new_id: str | None = None,
    edit: Words = None,
    effects: str = "ask",
    signals: str = "drop",
    children: str = "share",
    options: Options = DEFAULTS,
) -> None:
    """Fork a run as it was just before a step; resume the fork to continue.

    Parameters
    ----------
    id
        The run's id.
    at
        The path of the step, as runs show prints it, or a revision of the journal.
    new_id
        The id of the new run. Without it a new id.
    edit
        Another value for a recorded operation, as PATH:=VALUE; may be given again.
    effects
        How to treat acts: ask parks before the first, live performs them, dry skips them.
    signals
        How to treat signals not taken yet: drop, or copy.
    children
        How to treat child runs: share, or drop those that have not ended.
    """
    edits = dict(parse_named(word, "--edit", sign=":=") for word in edit or ())
    with open_for_run(id, options) as (store, id):
        place = int(at) if at.isdecimal() else at
        made = store.runs.fork(
            id,
            place,
            id=new_id,
            edit=edits,
            effects=effects,
            signals=signals,
            children=children,
        )
        print_status(store, made.id, options)


@contextmanager
def open_for_run(id: str, options: Options) -> Generator[tuple[Store, str]]:
    """Opens the store to change a run; yields the store and the whole id of the run.

    If something is not found in the run, the hint is to show the run.
    """
    with open_writing(options) as store:
        id = find_run(store, id)
        try:
            yield store, id
        except NotFoundError as error:
            error.hint = error.hint or f"holdfast runs show {shlex.quote(id)}"
            raise


def print_status(store: Store, id: str, options: Options) -> None:
    """Prints the status of a run after a change, and what to do next."""
    run = view_run(store, id)
    if options.json:
        print_json(run_status_document(run))
        return
    print_facts([("run", id), ("status", run.standing)])
    if run.journal.ended is None and run.owner is None:
        # The user fills in where its code is.
        again = command(f"runs resume {shlex.quote(run.id)} FILE.py", options.place)
        print_note(f"nobody executes it: {again}")


# Reading a run again and again while it goes on, and drawing it.

WATCH_S = 0.1
"""How often a run that goes on is read again."""
LIVE_CHILDREN = 8
"""How many lines of a block a live tree shows: the newest ones."""
BRIEF_RECORDS = 300
"""How many of its newest records a list reads of a long run."""
STYLES = {"✓": "green", "✗": "bold red", "?": "bold yellow", "●": "bold cyan"}


class Watcher:
    """Reads a run's journal again and again, each time only what is new."""

    def __init__(self, store: Store, id: str) -> None:
        self.store = store
        self.id = check_id(id)
        self._journal = Journal()
        self._created = self._updated = 0
        self._times: dict[int, int] = {}
        self.new_events: list[Event] = []
        self.read_on()
        if self._journal.created is None:
            raise NotFoundError(f'there is no run "{id}"', hint="holdfast runs list")

    def read_on(self) -> RunView | None:
        """Reads what is new and returns the run as it stands; None if there is no such run."""
        log = kernel_of(self.store).log
        self.new_events = []
        for record in log.records(f"run/{self.id}", after=self._journal.revision):
            self._journal.apply(events.read(record.type, record.payload))
            if self._journal.began == record.revision:
                self._created, self.new_events = 0, []  # before it: an earlier run of this id
                continue
            self._created = self._created or record.time
            self._updated = self._times[record.revision] = record.time
            self.new_events.append(Event(record))
        if self._journal.created is None:
            return None
        holder = log.leases.holder(f"run/{self.id}")
        engine = kernel_of(self.store).part(Engine)
        is_here = self.id in engine.active
        return RunView(
            self.id,
            self._journal,
            to_datetime(self._created),
            to_datetime(self._updated),
            None if holder is None else holder.owner,
            engine.progress_of(self.id) if is_here else recorded_progress(self._journal),
            engine.load,
            self._times,
        )

    @property
    def run(self) -> RunView:
        """The run, read to its newest record."""
        run = self.read_on()
        assert run is not None, "BUG: a run that was there is gone"
        return run


def watch(watcher: Watcher, timeout: float | None) -> Iterator[RunView]:
    """Yields a run again and again until it has ended, or nothing came for `timeout` seconds."""
    log = kernel_of(watcher.store).log
    last = log.clock.boot_us()
    while True:
        position = log.position()
        run = watcher.run
        if watcher.new_events:
            last = log.clock.boot_us()
        yield run
        is_idle = timeout is not None and log.clock.boot_us() - last >= timeout * 1e6
        if run.journal.ended is not None or is_idle:
            return
        log.wait_after(position, timeout_s=WATCH_S)


def view_briefly(store: Store, summary: RunSummary) -> RunView:
    """Returns a run for a list; reads only the first and the newest records of a long run.

    The newest records say what it is doing, except for loops that began before them.
    """
    stream, log = f"run/{summary.id}", kernel_of(store).log
    head = log.head(stream)
    began = log.life(stream)
    if head is None or head.revision - began <= BRIEF_RECORDS:
        return view_run(store, summary.id)
    journal = Journal()
    first, *newest = (
        *log.records(stream, after=began, until=began + 1),
        *log.records(stream, after=head.revision - BRIEF_RECORDS),
    )
    for record in (first, *newest):
        event: Any = events.read(record.type, record.payload)
        if isinstance(event, events.Settled | events.Refused) and event.path not in journal.entries:
            continue  # it is about an operation before those that were read
        journal.apply(event)
    holder = log.leases.holder(stream)
    return RunView(
        summary.id,
        journal,
        to_datetime(first.time),
        to_datetime(newest[-1].time),
        None if holder is None else holder.owner,
        replace(recorded_progress(journal), status=summary.status),
        kernel_of(store).part(Engine).load,
    )


def view_run(store: Store, id: str) -> RunView:
    """Returns a run as it stands now, or raises NotFoundError."""
    return Watcher(store, id).run


def draw(run: RunView, *, most: int = CHILDREN_MAX) -> RenderableType:
    """Returns the tree of a run, with the facts about the whole run above it."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    def grow(branch: Tree, node: TreeNode) -> None:
        children = list(node.children.values())
        if len(children) > most:
            left = len(children) - most
            branch.add(Text(f"… {left:,} before: --json shows all", style="dim"))
            children = children[-most:]
        for child in children:
            sign = node_symbol(child, run)
            said = shorten(clean(node_text(child, run)))
            text = Text.assemble((f"{sign} ", STYLES[sign]), (clean(child.name), "bold"))
            took = show_seconds(None if child.entry is None else run.seconds_of(child.entry))
            text = text.append(f"  {said}") if said else text
            grow(branch.add(text.append(f"  {took}", style="dim") if took else text), child)

    facts = run_facts(run)
    width = max(len(name) for name, _ in facts) + 2
    above = [Text.assemble((name.ljust(width), "bold"), clean(value)) for name, value in facts]
    tree = Tree(Text("", style="bold"), hide_root=True)
    grow(tree, journal_tree(run.journal))
    below = [Text(line, style="dim") for line in failure_lines(run)]
    return Group(*above, tree, *below)


class LiveTree:
    """A run on the terminal, drawn again and again."""

    def __init__(self, live: Live, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._next_us = 0

    def show(self, run: RunView) -> None:
        """Draws the newest state of a run; all of it once it has ended.

        Drawing a long run takes time, and this very process may be executing the run. So the next
        drawing comes only after ten times as long as this one took.
        """
        over, now_us = run.journal.ended is not None, self._clock.boot_us()
        if over or now_us >= self._next_us:
            most = CHILDREN_MAX if over else LIVE_CHILDREN
            self._live.update(draw(run, most=most), refresh=True)
            self._next_us = now_us + 10 * (self._clock.boot_us() - now_us)


@contextmanager
def live_tree(store: Store, *, wanted: bool = True) -> Generator[LiveTree | None]:
    """Yields a tree on the terminal that can be redrawn; None without a terminal."""
    if not wanted or not is_terminal():
        yield None
        return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveTree(live, kernel_of(store).clock)


def print_events(watcher: Watcher, found: list[Event], *, is_json: bool) -> None:
    """Prints events of a journal, each on a line of its own."""
    for event in found:
        if is_json:
            print_json_line(event_document(event))
            continue
        cells = event_row(event, watcher.store)
        print_line("\t".join(clean(cell) for cell in cells))
    sys.stdout.flush()


def event_row(event: Event, store: Store) -> tuple[str, ...]:
    """Returns revision, time, event, path and what happened."""
    known: Any = events.read(event.type, event.record.payload)
    load = kernel_of(store).part(Engine).load
    path, what = ("", "") if known is None else event_text(known, load)
    name = event.type.removeprefix("run.")
    return str(event.revision), show_time(event.time), name, path, what
