"""Verbs that look after runs which others execute, or nobody: what a person says to them."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from holdfast import intent
from holdfast.cli.options import DEFAULTS, Flag, Options, open_writing
from holdfast.cli.printing import print_facts, print_json, print_note
from holdfast.cli.runs_executing import Words, parse_named
from holdfast.cli.runs_shapes import Seen
from holdfast.cli.runs_watching import see
from holdfast.cli.words import parse_value
from holdfast.errors import NotFoundError, UsageError
from holdfast.store import Store

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
