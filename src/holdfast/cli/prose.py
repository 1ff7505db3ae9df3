"""Verbs for `.prose` programs: check, run, resume, show and fork them.

A program is a run like any other; `holdfast runs` works on it, too. These verbs need no code: the
program is stored with its run.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cyclopts import Parameter

import holdfast
from holdfast.agents.command import Command
from holdfast.agents.config import FILE, load_executor
from holdfast.agents.protocol import Executor
from holdfast.agents.scripted import Scripted
from holdfast.cli.completion import RunId
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Seconds,
    Words,
    command,
    open_reading,
    open_writing,
)
from holdfast.cli.parsing import find_run
from holdfast.cli.printing import print_facts, print_json, print_line, print_note, warn
from holdfast.cli.runs import (
    WaitOptions,
    end_and_print,
    open_for_run,
    parse_named,
    print_status,
    view_run,
)
from holdfast.cli.state import print_value
from holdfast.clock import SystemClock
from holdfast.core.kernel import kernel_of
from holdfast.errors import (
    ExistsError,
    NeedsAttentionError,
    NotFoundError,
    StillRunningError,
    UnavailableError,
    UsageError,
)
from holdfast.names import new_id
from holdfast.prose import Problem, check
from holdfast.prose.fetching import Fetcher
from holdfast.prose.narration import Narrator, Transcript, read_transcript
from holdfast.prose.problems import show_problems
from holdfast.prose.program import (
    NAME,
    Stored,
    gather,
    put_edited,
    read_program_file,
    start,
    stored_of,
)
from holdfast.prose.settings import Limits, Settings, load_config, settings_of
from holdfast.prose.transcript import (
    MovedError,
    Telling,
    moved,
    put_into,
    reason_to_store,
    rebuild,
)
from holdfast.prose.variables import edited_answers, variables_of
from holdfast.prose.view_files import ViewDirectory
from holdfast.prose.views import render_const, state_path
from holdfast.render.prose import check_document, program_document, program_facts
from holdfast.render.runs import run_result_document
from holdfast.render.text import clean
from holdfast.runs.engine import Engine, Run
from holdfast.runs.events import ENDED
from holdfast.store import Store

ANNOUNCED_MAX = 20
"""How many unfinished runs are searched for runs of the same program, to announce those."""


def check_programs(*files: str, json: Flag = False) -> int:
    """Check programs: print every error and warning with its place; run nothing.

    Parameters
    ----------
    files
        Files with programs.
    json
        Print one JSON document.
    """
    if not files:
        raise UsageError("no file is given", hint="holdfast prose check FILE…")
    found: dict[str, list[Problem]] = {}
    for file in files:
        data = read_program_file(Path(file))
        found[file] = check(data, file)
        if not json:
            _print_problems(found[file], data.decode("utf-8", "replace"), file)
    if json:
        print_json(check_document(found))
    errors = [one for problems in found.values() for one in problems if one.severity == "error"]
    return UsageError.exit_code if errors else 0


def _print_problems(problems: list[Problem], text: str, file: str) -> None:
    for shown in show_problems(problems, text, file):
        for line in shown.split("\n"):
            print_line(clean(line))
    errors = sum(problem.severity == "error" for problem in problems)
    print_line(
        clean(f"{file}: {_count(errors, 'error')}, {_count(len(problems) - errors, 'warning')}")
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number or 'no'} {what}s"


@Parameter(name="*")
@dataclass(frozen=True)
class ProgramOptions:
    """The options of every verb that executes a program in this process."""

    script: Path | None = None
    """A JSON file that answers for all agents, instead of [agents] of holdfast.toml."""
    leave: Flag = False
    """Leave the program when it waits for something: exit code 15."""
    timeout: Seconds = None
    """Leave the program after this time, in seconds or such as 1h30m: exit code 15."""
    fetch: Flag = False
    """Fetch programs that are named by URL; what was fetched is kept with the run."""

    @property
    def waiting(self) -> WaitOptions:
        """How long to wait for the end of the program."""
        return WaitOptions(leave=self.leave, timeout=self.timeout)

    def gather(self, file: Path, imports: list[Path]) -> Stored:
        """Returns a program with all that it uses."""
        return gather(file, imports, Fetcher() if self.fetch else None)

    def executor(self) -> Executor | Command:
        """Returns the executor that answers for agents."""
        if self.script is not None:
            return Scripted(self.script)
        if not Path(FILE).exists():
            raise UsageError(
                "nobody answers for agents: there is no holdfast.toml here",
                hint='put [agents] command = ["claude", "-p"] into it, or give --script FILE',
            )
        return load_executor(FILE)


AS_CONFIGURED = ProgramOptions()


def run(
    file: Path,
    /,
    *inputs: str,
    id: RunId | None = None,
    sessions: str = "idempotent",
    in_context: Flag = False,
    views: Path | None = None,
    subject: str | None = None,
    how: ProgramOptions = AS_CONFIGURED,
    options: Options = DEFAULTS,
) -> None:
    """Run a program, and print its result.

    Parameters
    ----------
    file
        The program: FILE.prose.
    inputs
        Its inputs, each as NAME=VALUE: JSON if it parses, else text.
    id
        The run's id, to resume it by. Without it a new id.
    sessions
        The class of its sessions: after a crash idempotent ones are asked again, effect ones not.
    in_context
        Keep nothing on disk: print each event as a line on standard error instead.
    views
        A directory that shows variables, branches and a checkpoint as files; without a name .prose.
    subject
        The subject that the run belongs to: all that it records is sealed, until subject erase.
    """
    waiting = how.waiting
    _check_shown(in_context, views, subject)
    config, imports = load_config()
    program = how.gather(file, imports)
    given = dict(parse_named(word, "an input") for word in inputs)
    settings = Settings(
        sessions,
        config.backoff_scale,
        config.verbatim_max,
        config.summarised_max,
        None if views is None else str(views.absolute()),
    )
    executor = how.executor()
    if in_context:
        reason = reason_to_store(program, config.limits)
        if reason is None:
            start_told(program, given, settings, id, executor, waiting, options)
            return
        warn(f"the program is kept in the store: {reason}")
    with open_writing(options) as store:
        store.runs.use_executor(executor)
        announce_unfinished(store, program, options)
        id = new_id(kernel_of(store).clock) if id is None else id
        check_new(store, id)
        if views is not None:
            ViewDirectory(views).claim(id, partial(is_unfinished, store))
        started = start(store, program, given, id=id, settings=settings, subject=subject)
        print_note(f"run {started.id}")
        end_and_print(store, started, verbs_after(started.id), waiting, options, has_code=False)


def _check_shown(in_context: bool, views: Path | None, subject: str | None) -> None:
    """Raises UsageError for options that contradict each other about what is kept and shown."""
    if in_context and views is not None:
        raise UsageError("--in-context keeps nothing on disk, and --views does: give one of them")
    if subject is not None and (in_context or views is not None):
        raise UsageError(
            "--subject seals what a program does, and --views and --in-context show it in clear",
            hint="give one of them",
        )


def resume(
    id: RunId | None = None,
    file: Path | None = None,
    /,
    *,
    transcript: Path | None = None,
    how: ProgramOptions = AS_CONFIGURED,
    options: Options = DEFAULTS,
) -> None:
    """Continue a program that waits, was left, or lost its process; print its result.

    Parameters
    ----------
    id
        The run's id, unless --transcript is given.
    file
        The program as edited since; without it the one that was stored.
    transcript
        What prose run --in-context printed: the program continues from there, in context.
    """
    waiting = how.waiting
    if transcript is not None:
        resume_told(transcript, how.executor(), waiting, options)
        return
    id = check_given(id)
    edited = None if file is None else how.gather(file, load_config()[1])
    executor = how.executor()
    with open_writing(options) as store:
        store.runs.use_executor(executor)
        id = find_run(store, id)
        stored_of(store, id)
        if edited is not None:
            put_edited(store, id, as_stored(edited, stored_of(store, id)))
        end_and_print(
            store, store.runs.resume(id), verbs_after(id), waiting, options, has_code=False
        )


def as_stored(edited: Stored, stored: Stored) -> Stored:
    """Returns an edited program under the name that it was started by."""
    if edited.main == stored.main:
        return edited
    sources = {**edited.sources, stored.main: edited.source}
    return Stored(stored.main, sources)


def show(
    id: RunId | None = None,
    /,
    *,
    value: str | None = None,
    transcript: Path | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Show where a program stands: statement, loops, variables, sessions, attempts.

    Parameters
    ----------
    id
        The run's id, unless --transcript is given.
    value
        Print the newest value of this name alone, as it is.
    transcript
        What prose run --in-context printed: shows its program; no store is needed.
    """
    told = None if transcript is None else rebuild(read_told(transcript))
    id = check_given(id) if told is None else told.id
    with open_reading(options) if told is None else holdfast.open("memory:") as store:
        if told is not None:
            put_into(store, told)
        id = find_run(store, id)
        program = stored_of(store, id)
        found = view_run(store, id)
        if value is not None:
            print_value(value_of(found, value))
        elif options.json:
            print_json(program_document(found, program))
        else:
            print_facts(program_facts(found, program))


def check_given(id: str | None) -> str:
    """Returns the id of a run that was typed."""
    if id is None:
        raise UsageError("the id of a run is missing", hint="give it, or --transcript FILE")
    return id


def value_of(found: Any, name: str) -> Any:
    """Returns the newest value of a name that is bound at the top level of the program."""
    bound = {known: one for (scope, known), one in variables_of(found.journal).items() if not scope}
    if name not in bound:
        listed = ", ".join(bound) or "none"
        raise NotFoundError(f'run "{found.id}" has no name "{name}" yet: it has {listed}')
    entry = bound[name].entry
    return found.load(entry.value) if entry.value else None


def fork(
    id: RunId,
    at: str | None = None,
    /,
    *,
    edit: Words = None,
    new_id: str | None = None,
    effects: str = "live",
    options: Options = DEFAULTS,
) -> None:
    """Fork a program at an earlier place; resume the fork to continue.

    Parameters
    ----------
    id
        The run's id.
    at
        The path of an operation, as runs show prints it; it is done again. Without it the place
        where the first edited name was bound, else the end.
    edit
        Another value for a name that a session or an input gave, as NAME=VALUE; may be given again.
    new_id
        The id of the new run. Without it a new id.
    effects
        How to treat sessions: live asks them, ask parks before the first, dry skips them.
    """
    edits = dict(parse_named(word, "--edit") for word in edit or ())
    with open_for_run(id, options) as (store, id):
        stored_of(store, id)
        journal = store.runs.get(id).journal
        found = edited_answers(journal, edits, kernel_of(store).part(Engine).load)
        place: str | int = last_place(journal)
        if at is not None:
            place = at
        elif found:
            place = min(one.bound - 1 for one in found)
        paths = {one.path: one.value for one in found}
        made = store.runs.fork(id, place, id=new_id, edit=paths, effects=effects, signals="copy")
        put_edited(store, made.id, stored_of(store, id))
        print_status(store, made.id, options)


def restore(id: RunId, name: str, /, *, options: Options = DEFAULTS) -> None:
    """Write the view of a name again as the store has it, after somebody modified its file.

    Parameters
    ----------
    id
        The run's id.
    name
        The name of the program whose file is put back.
    """
    with open_reading(options) as store:
        id = find_run(store, id)
        program = stored_of(store, id)
        place = settings_of(program.settings).views
        if place is None:
            raise UsageError(f'run "{id}" has no views: it was started without --views')
        found = view_run(store, id)
        value = value_of(found, name)
        is_const = variables_of(found.journal)["", name].kind == "const"
        directory, path = ViewDirectory(place), state_path(name)
        if is_const:
            directory.write(path, render_const(name, value))
        else:
            directory.remove(path)  # when it was updated is known when the program goes on
        print_status(store, id, options)


def check_new(store: Store, id: str) -> None:
    """Raises ExistsError if there is a run of that id, before its views are touched."""
    if kernel_of(store).part(Engine).free_after(id) is None:
        again = f"holdfast prose resume {shlex.quote(id)}"
        raise ExistsError(f'run "{id}" exists already', hint=again)


def is_unfinished(store: Store, id: str) -> bool:
    """Returns whether a run exists and has not ended."""
    try:
        return store.runs.get(id).status not in ENDED
    except (NotFoundError, UsageError):
        return False


def last_place(journal: Any) -> int:
    """Returns the newest revision of a journal, or the one before the event that ended its run."""
    return journal.revision - 1 if journal.ended is not None else journal.revision


def announce_unfinished(store: Store, program: Stored, options: Options) -> None:
    """Names unfinished runs of the same program, which a new run never continues by itself."""
    unfinished = [one.id for one in store.runs.list() if one.status not in ENDED]
    for id in unfinished[:ANNOUNCED_MAX]:
        created = store.runs.get(id).journal.created
        is_program = created is not None and created.name == NAME
        if is_program and stored_of(store, id).main == program.main:
            again = command(f"prose resume {shlex.quote(id)}", options.place)
            print_note(f"run {id} of {program.main} has not ended: {again}")


def verbs_after(id: str) -> tuple[str, str]:
    """Returns the verbs that go on with a program, and that look at one that failed."""
    word = shlex.quote(id)
    return f"prose resume {word}", f"prose show {word}"


# Programs in context.

WATCH_S = 0.05
"""How often to look, in seconds, whether a program in context must move to the store."""
NONCE_BYTES = 32


@contextmanager
def tell_aloud(
    id: str, narrator: Narrator, executor: Executor | Command, limits: Limits
) -> Generator[Telling]:
    """Opens a store in memory, and yields what prints the events of its run on standard error."""
    with holdfast.open("memory:") as memory:
        memory.runs.use_executor(executor)
        yield Telling(memory, id, narrator, say, limits.characters)


def say(line: str) -> None:
    """Prints one line of a transcript, at once."""
    print(line, file=sys.stderr, flush=True)


def read_told(path: Path) -> Transcript:
    """Reads a transcript; bytes that are not UTF-8 belong to lines that do not count."""
    try:
        return read_transcript(path.read_bytes().decode("utf-8", "replace"))
    except FileNotFoundError as absent:
        raise NotFoundError(f'there is no transcript "{path}"') from absent
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f'transcript "{path}" cannot be read: {reason}') from error


def start_told(
    program: Stored,
    given: dict[str, Any],
    settings: Settings,
    id: str | None,
    executor: Executor | Command,
    waiting: WaitOptions,
    options: Options,
) -> None:
    """Runs a program in context, and prints its transcript from the first line on."""
    clock = SystemClock()
    id = new_id(clock) if id is None else id
    narrator = Narrator(clock.random_bytes(NONCE_BYTES).hex())
    with tell_aloud(id, narrator, executor, load_config()[0].limits) as telling:
        telling.begin()
        started = start(telling.store, program, given, id=id, settings=settings)
        end_told(telling, started, waiting, options)


def resume_told(
    path: Path, executor: Executor | Command, waiting: WaitOptions, options: Options
) -> None:
    """Continues a program from its transcript, and prints what comes after."""
    transcript = read_told(path)
    found = rebuild(transcript)
    assert transcript.nonce is not None, "BUG: rebuilt without a nonce"
    narrator = Narrator(transcript.nonce, found.count)
    with tell_aloud(found.id, narrator, executor, load_config()[0].limits) as telling:
        put_into(telling.store, found)
        if transcript.is_torn:
            say("")
        telling.go_on(found.told)
        end_told(telling, telling.store.runs.resume(found.id), waiting, options)


def end_told(telling: Telling, run: Run[Any], waiting: WaitOptions, options: Options) -> None:
    """Waits for the end of a program in context; moves it to the store if it cannot end there.

    It moves when its transcript is full, when it waits, and when it needs a person.
    """
    reason = "it waits"
    clock = SystemClock()
    begun = clock.boot_us()
    while True:
        try:
            result = run.result(timeout=WATCH_S)
        except MovedError as full:
            reason = full.message
            break
        except NeedsAttentionError:
            reason = "it needs a person"
            break
        except StillRunningError:
            if telling.waits and run.id not in kernel_of(telling.store).part(Engine).active:
                break
            spent_s = (clock.boot_us() - begun) / 1e6
            if waiting.timeout is not None and spent_s >= waiting.timeout:
                raise
            continue
        if options.json:
            print_json(run_result_document(run.id, result))
        else:
            print_value(result)
        return
    executor = kernel_of(telling.store).part(Engine).agents.executor
    telling.store.close()
    with open_writing(options) as store:
        store.runs.use_executor(executor)
        put_into(store, moved(telling))
        telling.tell_moved(options.place)
        warn(f"the program moves to the store: {reason}")
        found = store.runs.resume(run.id)
        end_and_print(store, found, verbs_after(run.id), waiting, options, has_code=False)
