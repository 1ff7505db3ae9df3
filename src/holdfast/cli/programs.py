"""Verbs for programs that run: run, resume, show and fork them.

A program is a run like any other; `holdfast runs` works on it, too. These verbs need no code: the
program is stored with its run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from holdfast.agents.command import Command
from holdfast.agents.config import FILE, load_executor
from holdfast.agents.protocol import Executor
from holdfast.agents.scripted import Scripted
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    command,
    open_reading,
    open_writing,
)
from holdfast.cli.printing import print_facts, print_json, print_note
from holdfast.cli.runs import (
    WaitOptions,
    end_and_print,
    open_for_run,
    parse_named,
    print_status,
    view_run,
)
from holdfast.cli.state import print_value
from holdfast.errors import NotFoundError, UsageError
from holdfast.prose.config import load_config
from holdfast.prose.edits import edited_answers
from holdfast.prose.program import NAME, Stored, gather, put_edited, start, stored_of
from holdfast.prose.settings import Settings
from holdfast.prose.variables import variables_of
from holdfast.render.programs import program_document, program_facts
from holdfast.runs.events import ENDED
from holdfast.store import Store

ANNOUNCED_MAX = 20
"""How many unfinished runs are looked at, to say that one of the same program is there."""


@Parameter(name="*")
@dataclass(frozen=True)
class ProgramOptions:
    """The options of every verb that executes a program in this process."""

    script: Path | None = None
    """A JSON file that answers for all agents, instead of [agents] of holdfast.toml."""
    leave: Flag = False
    """Leave the program when it waits for something: exit code 15."""
    timeout: float | None = None
    """Leave the program after this many seconds: exit code 15."""

    @property
    def waiting(self) -> WaitOptions:
        """How long is waited for its end."""
        found = WaitOptions(leave=self.leave, timeout=self.timeout)
        found.check()
        return found

    def executor(self) -> Executor | Command:
        """Returns who answers for agents."""
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
    id: str | None = None,
    sessions: str = "idempotent",
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
        The class of its sessions: idempotent ones are asked again after a crash, effect ones not.
    """
    waiting = how.waiting
    config, imports = load_config()
    program = gather(file, imports)
    given = dict(parse_named(word, "an input") for word in inputs)
    settings = Settings(sessions, config.backoff_scale, config.verbatim_max, config.summarised_max)
    executor = how.executor()
    with open_writing(options) as store:
        store.use_executor(executor)
        announce_unfinished(store, program, options)
        started = start(store, program, given, id=id, settings=settings)
        print_note(f"run {started.id}")
        end_and_print(store, started, verbs_after(started.id), waiting, options)


def resume(
    id: str,
    file: Path | None = None,
    /,
    *,
    how: ProgramOptions = AS_CONFIGURED,
    options: Options = DEFAULTS,
) -> None:
    """Continue a program whose process died, that was left or that waits; print its result.

    Parameters
    ----------
    id
        The run's id.
    file
        The program as it was edited since; without it the one that was stored.
    """
    waiting = how.waiting
    edited = None if file is None else gather(file, load_config()[1])
    executor = how.executor()
    with open_writing(options) as store:
        store.use_executor(executor)
        stored_of(store, id)
        if edited is not None:
            put_edited(store, id, as_stored(edited, stored_of(store, id)))
        end_and_print(store, store.resume(id), verbs_after(id), waiting, options)


def as_stored(edited: Stored, stored: Stored) -> Stored:
    """Returns an edited program under the name that it was started by."""
    if edited.main == stored.main:
        return edited
    sources = {**edited.sources, stored.main: edited.source}
    return Stored(stored.main, sources)


def show(id: str, /, *, value: str | None = None, options: Options = DEFAULTS) -> None:
    """Show where a program stands: statement, loops, variables, sessions, attempts.

    Parameters
    ----------
    id
        The run's id.
    value
        Print the newest value of this name alone, as it is.
    """
    with open_reading(options) as store:
        program = stored_of(store, id)
        found = view_run(store, id)
        if value is not None:
            print_value(value_of(found, value))
        elif options.json:
            print_json(program_document(found, program))
        else:
            print_facts(program_facts(found, program))


def value_of(found: Any, name: str) -> Any:
    """Returns the newest value of a name of the program itself."""
    bound = {known: one for (scope, known), one in variables_of(found.journal).items() if not scope}
    if name not in bound:
        listed = ", ".join(bound) or "none"
        raise NotFoundError(f'run "{found.id}" has no name "{name}" yet: it has {listed}')
    entry = bound[name].entry
    return found.load(entry.value) if entry.value else None


def fork(
    id: str,
    at: str | None = None,
    /,
    *,
    edit: Words = None,
    new_id: str | None = None,
    effects: str = "live",
    options: Options = DEFAULTS,
) -> None:
    """Create a program that goes on from where another was; resume it to continue.

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
        journal = store.run(id).journal
        found = edited_answers(journal, edits, store._engine.load)
        place: str | int = last_place(journal)
        if at is not None:
            place = at
        elif found:
            place = min(one.bound - 1 for one in found)
        paths = {one.path: one.value for one in found}
        made = store.fork(id, place, id=new_id, edit=paths, effects=effects, signals="copy")
        put_edited(store, made.id, stored_of(store, id))
        print_status(store, made.id, options)


def last_place(journal: Any) -> int:
    """Returns the revision after the last record that is not about the end of the run."""
    return journal.revision - 1 if journal.ended is not None else journal.revision


def announce_unfinished(store: Store, program: Stored, options: Options) -> None:
    """Says that a run of the same program has not ended: it is resumed, never inherited."""
    unfinished = [one.id for one in store.runs() if one.status not in ENDED]
    for id in unfinished[:ANNOUNCED_MAX]:
        created = store.run(id).journal.created
        is_program = created is not None and created.name == NAME
        if is_program and stored_of(store, id).main == program.main:
            again = command(f"prose resume {shlex.quote(id)}", options.place)
            print_note(f"run {id} of {program.main} has not ended: {again}")


def verbs_after(id: str) -> tuple[str, str]:
    """Returns the verbs that go on with a program, and that look at one that failed."""
    word = shlex.quote(id)
    return f"prose resume {word}", f"prose show {word}"
