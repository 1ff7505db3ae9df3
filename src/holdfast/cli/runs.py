"""Verbs that look at runs: list, show, tail."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.options import DEFAULTS, Flag, Options, command, open_reading, open_writing
from holdfast.cli.parsing import parse_value
from holdfast.cli.printing import (
    console,
    is_terminal,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
)
from holdfast.cli.runs_code import check_has, load, load_run
from holdfast.cli.runs_watch import (
    LOOK_S,
    Node,
    Seen,
    Watcher,
    draw,
    facts_of,
    glance,
    line_of,
    looks,
    print_events,
    run_shape,
    screen,
    see,
    summary_shape,
    tree_of,
)
from holdfast.cli.state import print_value
from holdfast.core import intent
from holdfast.errors import (
    ExistsError,
    HoldfastError,
    NeedsAttentionError,
    NotFoundError,
    RunFailedError,
    StillRunningError,
    UsageError,
)
from holdfast.render import clean, encode_value, show_time
from holdfast.runs.admin import place_to_retry
from holdfast.runs.define import RunFunction
from holdfast.runs.engine import Run
from holdfast.runs.events import ENDED
from holdfast.store import Store

# --- runs_executing -------------------------------------------------------------------------------
#
# Verbs that execute runs in this process: start, resume, retry. Code comes from the words typed.
#
# The run lives in threads (or on an event loop) of its own; the thread that was typed at only looks
# on. So Ctrl-C always leaves at once: the run stays where it is, and `runs resume` goes on with it.


Words = Annotated[list[str] | None, Parameter(negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class Stay:
    """What every verb takes that executes a run here."""

    module: Words = None
    """A further FILE.py or module to load first, with verifiers or children; may be given again."""
    leave: Flag = False
    """End when the run waits for something, instead of waiting with it: exit code 15."""
    timeout: float | None = None
    """Leave the run after this many seconds: exit code 15."""

    def check(self) -> None:
        """Raises UsageError for a time that cannot be waited."""
        if self.timeout is not None and not self.timeout >= 0:
            raise UsageError(f"--timeout is a number of seconds, at least 0, found {self.timeout}")


TO_THE_END = Stay()


def start(
    code: str,
    /,
    *arguments: str,
    id: str | None = None,
    input: Words = None,
    queue: str | None = None,
    if_exists: str = "error",
    stay: Stay = TO_THE_END,
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
        The run's id, to resume it by. Without it a new one is made.
    input
        An argument by its name, as NAME=VALUE; may be given again.
    queue
        Only put the run in line, under this name; runs resume executes it.
    if_exists
        What to do with an id that is taken: error, or attach to go on with that run.
    """
    stay.check()
    function = load_run(code, stay.module)
    values = [parse_value(word, is_text=False) for word in arguments]
    named = dict(parse_named(word, "--input") for word in input or ())
    with executing(options, function) as store:
        refuse_misfit(function, values, named)
        # Not by Store.start: a parameter of the run may be named like one of its options.
        args = tuple(values)
        try:
            run = store._engine.start(
                function, args, named, id=id, if_exists=if_exists, queue=queue
            )
        except ExistsError as error:
            again = f"holdfast runs resume {shlex.quote(str(id))} {shlex.quote(code)}"
            error.hint = f"{again}, or start it with --if-exists attach"
            raise
        if queue is not None:
            print_run(run, options)
            return
        attend(store, run, code, stay, options)


def resume(
    id: str,
    code: str,
    /,
    *,
    stay: Stay = TO_THE_END,
    options: Options = DEFAULTS,
) -> None:
    """Go on with a run whose process died, that was left or that waits; print its result.

    Parameters
    ----------
    id
        The run's id.
    code
        Where its code is: FILE.py, or package.module.
    """
    with resuming(id, code, stay, options) as store:
        run = store.resume(id)
        attend(store, run, code, stay, options)


def retry(
    id: str,
    code: str,
    /,
    *,
    at: str | None = None,
    new_id: str | None = None,
    effects: str = "ask",
    stay: Stay = TO_THE_END,
    options: Options = DEFAULTS,
) -> None:
    """Try a failed run again, as a fork from before the step that it failed with.

    Parameters
    ----------
    id
        The id of the run that failed.
    code
        Where its code is: FILE.py, or package.module.
    at
        The path of another step to begin at.
    new_id
        The id of the new run. Without it ID-retry, ID-retry-2 and so on.
    effects
        What becomes of acts: ask parks before the first, live performs them, dry leaves them out.
    """
    with resuming(id, code, stay, options) as store:
        place = place_to_retry(store.run(id).journal, id)
        target = new_id or free_id(store, id)
        store.fork(id, at or place, id=target, effects=effects, signals="copy")
        run = store.resume(target)
        attend(store, run, code, stay, options)


def free_id(store: Store, id: str) -> str:
    """Returns an id for a retry that no run has."""
    number = 1
    while True:
        name = f"{id}-retry" if number == 1 else f"{id}-retry-{number}"
        if store._log.head(f"run/{name}") is None:
            return name
        number += 1


def parse_named(word: str, option: str, sign: str = "=") -> tuple[str, Any]:
    """Returns the name and the value that stand on both sides of a sign."""
    name, found, value = word.partition(sign)
    if not found or not name:
        raise UsageError(f'{option} is a name, {sign} and a value, found "{word}"')
    return name, parse_value(value, is_text=False)


def refuse_misfit(function: RunFunction[Any], values: list[Any], named: dict[str, Any]) -> None:
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


def name_of(options: Options, id: str) -> str:
    """Returns the name of a run's function; it is compared with what was loaded, never imported."""
    with open_reading(options) as store:
        created = store.run(id).journal.created
    assert created is not None, "BUG: a run that was not created"
    return created.name


@contextmanager
def executing(options: Options, function: RunFunction[Any]) -> Generator[Store]:
    """Opens the store to execute runs; an `async def` one gets an event loop in a thread."""
    if not function.is_async:
        with open_writing(options) as store:
            yield store
        return
    from holdfast.aio.store import looping

    with looping(open_writing(options)) as store:
        yield store


@contextmanager
def resuming(id: str, code: str, stay: Stay, options: Options) -> Generator[Store]:
    """Opens the store to go on with a run, whose code must be what was typed."""
    stay.check()
    load(code, stay.module)
    with executing(options, check_has(name_of(options, id), id, code)) as store:
        yield store


def attend(store: Store, run: Run, code: str, stay: Stay, options: Options) -> None:
    """Looks on until the run ends, and prints its result, or says how to go on."""
    again = f"runs resume {shlex.quote(run.id)} {shlex.quote(code)}"
    try:
        result = await_result(store, run, stay, is_json=options.json)
    except KeyboardInterrupt:
        print_note(f"\nrun {run.id} is left as it is: {command(again, options.place)}")
        raise
    except StillRunningError as error:
        error.hint = f"holdfast {again}"
        raise
    except RunFailedError as error:
        error.hint = error.hint or f"holdfast runs retry {again.removeprefix('runs resume ')}"
        raise
    except HoldfastError as error:
        error.hint = hint_for(error, run, command(again, options.place))
        raise
    if options.json:
        print_json({"run": run.id, "status": "completed", "result": encode_value(result)})
    else:
        print_value(result)


def hint_for(error: HoldfastError, run: Run, again: str) -> str | None:
    """Returns what to type after a run stopped short of its end."""
    if not isinstance(error, NeedsAttentionError):
        return error.hint
    id, diverged = shlex.quote(run.id), run.journal.diverged
    if diverged is None:
        path = shlex.quote(error.path)
        return f"holdfast runs settle {id} {path} --done RESULT (or --not-done), then {again}"
    if diverged.problem == "kind":
        return f"mend the code, or fork the run: holdfast runs show {id} has the steps"
    return f"holdfast runs adopt {id} accepts it, then {again}; or mend the code"


def await_result(store: Store, run: Run, stay: Stay, *, is_json: bool) -> Any:
    """Returns the run's result, redrawing its tree meanwhile where a person looks."""
    watcher = Watcher(store, run.id)
    clock = store._log.clock
    begun = clock.boot_us()
    with screen(store, wanted=not is_json) as picture:
        while True:
            try:
                return run.result(timeout=LOOK_S)
            except StillRunningError:
                spent_s = (clock.boot_us() - begun) / 1e6
                rests = (
                    stay.leave and run.id not in store._engine.active and run.status == "waiting"
                )
                if rests or (stay.timeout is not None and spent_s >= stay.timeout):
                    raise
            finally:
                if picture is not None:
                    picture.show(watcher.seen)


def print_run(run: Run, options: Options) -> None:
    """Prints a run that this command leaves alone: its id and where it stands."""
    status = run.status
    if options.json:
        print_json({"run": run.id, "status": status})
    else:
        print_line(clean(run.id))


COLUMNS = ("run", "status", "updated", "code", "doing")
TAIL = 10


def list_runs(*, status: str | None = None, limit: int = 50, options: Options = DEFAULTS) -> None:
    """List runs: those that have not ended first, then the others, newest ids first.

    Parameters
    ----------
    status
        Only those that are pending, running, waiting, needs_attention, cancelling, completed,
        failed or cancelled.
    limit
        How many at most.
    """
    if limit < 1:
        raise UsageError(f"--limit is at least 1, found {limit}")
    with open_reading(options) as store:
        known = sorted(store.runs(status=status), key=lambda run: run.id, reverse=True)
        known.sort(key=lambda run: run.status in ENDED)
        found = [glance(store, run) for run in known[:limit]]
        if options.json:
            print_json({"runs": [summary_shape(run) for run in found], "count": len(known)})
            return
        rows = [_row(run) for run in found]
    if rows:
        print_table(COLUMNS, rows)
        if len(known) > limit:
            print_note(f"{len(known) - limit:,} more: --limit {len(known)}")
    else:
        print_note(f"no run is {status}" if status else "no runs")


def _row(run: Seen) -> tuple[str, ...]:
    doing = ""
    if run.status not in ENDED:
        doing = "; ".join([*run.progress.blocks, *run.progress.statements])
    elif run.journal.ended is not None and run.journal.ended.error is not None:
        doing = f"{run.journal.ended.error.kind}: {run.journal.ended.error.message}"
    status = run.standing if is_terminal() else run.status
    return run.id, status, show_time(run.updated), run.name, doing


def show(id: str, /, *, options: Options = DEFAULTS) -> None:
    """Show what a run is doing and has done: a tree of its blocks and steps.

    Parameters
    ----------
    id
        The run's id.
    """
    with open_reading(options) as store:
        run = see(store, id)
        if options.json:
            print_json(run_shape(run))
        elif is_terminal():
            console().print(draw(run))
        else:
            print_facts(facts_of(run))
            for cells in _entry_rows(tree_of(run.journal), run):
                print_line("\t".join(clean(cell) for cell in cells))


def _entry_rows(node: Node, run: Seen) -> Iterator[tuple[str, ...]]:
    if (entry := node.entry) is not None:
        state = "uncertain" if entry.is_uncertain and run.owner is None else entry.state
        state = "done" if state == "open" and node.is_over else state
        yield entry.path, entry.kind, state, line_of(node, run)
    for child in node.inside.values():
        yield from _entry_rows(child, run)


def tail(
    id: str,
    /,
    *,
    after: int | None = None,
    timeout: float | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Follow a run until it ends: a live tree on a terminal, else a line for each event.

    Parameters
    ----------
    id
        The run's id.
    after
        Begin behind this revision of its journal instead of ten events before its end.
    timeout
        Stop when nothing came for this many seconds.
    """
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"--timeout is a number of seconds, at least 0, found {timeout}")
    if after is not None and after < 0:
        raise UsageError(f"--after is at least 0, found {after}")
    with open_reading(options) as store:
        if is_terminal() and not options.json:
            _tail_tree(store, id, timeout)
        else:
            _tail_lines(store, id, after, timeout, options)


def _tail_tree(store: Store, id: str, timeout: float | None) -> None:
    with screen(store) as picture:
        assert picture is not None, "BUG: a tree without a terminal"
        for run in looks(Watcher(store, id), timeout):
            picture.show(run)


def _tail_lines(
    store: Store, id: str, after: int | None, timeout: float | None, options: Options
) -> None:
    watcher = Watcher(store, id)
    first = watcher.news
    first = first[-TAIL:] if after is None else [e for e in first if e.revision > after]
    print_events(watcher, first, is_json=options.json)
    for _ in looks(watcher, timeout):
        print_events(watcher, watcher.news, is_json=options.json)


# --- runs_tending ---------------------------------------------------------------------------------
#
# Verbs that look after runs which others execute, or nobody: what a person says to them.


Value = Annotated[str, Parameter(allow_leading_hyphen=True)]


def cancel(id: str, /, *, options: Options = DEFAULTS) -> None:
    """Ask a run to stop: its owner does at its next operation; one that nobody executes ends now.

    Parameters
    ----------
    id
        The run's id.
    """
    with tending(id, options) as store:
        store.cancel(id)
        print_standing(store, id, options)


def answer(
    id: str, name: str, value: Value = "null", /, *, text: Flag = False, options: Options = DEFAULTS
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
        Take the value as text, also if it looks like JSON.
    """
    with tending(id, options) as store:
        store.answer(id, name, parse_value(value, is_text=text))
        print_standing(store, id, options)


def signal(
    id: str,
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
        Take the value as text, also if it looks like JSON.
    key
        An idempotency key: a second signal with the same key is not sent.
    """
    with tending(id, options) as store:
        store.signal(id, name, parse_value(value, is_text=text), id=key)
        print_standing(store, id, options)


def settle(
    id: str,
    path: str,
    /,
    *,
    done: str | None = None,
    not_done: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Say whether an act was done whose outcome nobody knows; then resume the run.

    Parameters
    ----------
    id
        The run's id.
    path
        The path of the uncertain step, as runs show has it.
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
    with tending(id, options) as store:
        store.settle(id, path, verdict)
        print_standing(store, id, options)


def adopt(id: str, /, *, options: Options = DEFAULTS) -> None:
    """Accept the difference between code and journal that a run is parked for; then resume it.

    Parameters
    ----------
    id
        The run's id.
    """
    with tending(id, options) as store:
        store.adopt(id)
        print_standing(store, id, options)


def fork(
    id: str,
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
    """Make a run that begins where another was before a step; resume it to go on.

    Parameters
    ----------
    id
        The run's id.
    at
        The path of the step, as runs show has it, or a revision of the journal.
    new_id
        The id of the new run. Without it one is made.
    edit
        Another value for a recorded operation, as PATH:=VALUE; may be given again.
    effects
        What becomes of acts: ask parks before the first, live performs them, dry leaves them out.
    signals
        What becomes of messages not taken yet: drop, or copy.
    children
        What becomes of child runs: share, or drop those that have not ended.
    """
    edits = dict(parse_named(word, "--edit", sign=":=") for word in edit or ())
    with tending(id, options) as store:
        place = int(at) if at.isdecimal() else at
        made = store.fork(
            id,
            place,
            id=new_id,
            edit=edits,
            effects=effects,
            signals=signals,
            children=children,
        )
        print_standing(store, made.id, options)


@contextmanager
def tending(id: str, options: Options) -> Generator[Store]:
    """Opens the store to do something about a run; the hint for what it lacks is to look at it."""
    with open_writing(options) as store:
        try:
            yield store
        except NotFoundError as error:
            error.hint = error.hint or f"holdfast runs show {shlex.quote(id)}"
            raise


def print_standing(store: Store, id: str, options: Options) -> None:
    """Prints where a run stands after what was said to it, and what a person does next."""
    run = see(store, id)
    if options.json:
        print_json({"run": id, "status": run.status, "worker": run.owner})
        return
    print_facts([("run", id), ("status", run.standing)])
    if run.journal.ended is None and run.owner is None:
        print_note(f"nobody executes it: {next_command(run)}")


def next_command(run: Seen) -> str:
    """Returns the command that goes on with a run, the place of its code left to the person."""
    return f"holdfast runs resume {shlex.quote(run.id)} FILE.py"
