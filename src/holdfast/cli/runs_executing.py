"""Verbs that execute runs in this process: start, resume, retry. Code comes from the words typed.

The run lives in threads (or on an event loop) of its own; the thread that was typed at only looks
on. So Ctrl-C always leaves at once: the run stays where it is, and `runs resume` goes on with it.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.options import DEFAULTS, Flag, Options, command, open_reading, open_writing
from holdfast.cli.printing import clean, print_json, print_line, print_note
from holdfast.cli.runs_code import check_has, load, load_run
from holdfast.cli.runs_watching import LOOK_S, Watcher, screen
from holdfast.cli.shapes import encode_value
from holdfast.cli.states import print_value
from holdfast.cli.words import parse_value
from holdfast.errors import (
    ExistsError,
    HoldfastError,
    NeedsAttentionError,
    RunFailedError,
    StillRunningError,
    UsageError,
)
from holdfast.runs.define import RunFunction
from holdfast.runs.failing import place_to_retry
from holdfast.runs.handle import Run
from holdfast.store import Store

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
            run = store.engine.start(function, args, named, id=id, if_exists=if_exists, queue=queue)
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
        if store.log.head(f"run/{name}") is None:
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
    from holdfast.aio.thread import looping

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
    clock = store.log.clock
    begun = clock.boot_us()
    with screen(store, wanted=not is_json) as picture:
        while True:
            try:
                return run.result(timeout=LOOK_S)
            except StillRunningError:
                spent_s = (clock.boot_us() - begun) / 1e6
                rests = stay.leave and run.id not in store.engine.active and run.status == "waiting"
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
