"""The verbs, and what surrounds each: global options, errors, exit codes."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cyclopts import App, Group
from cyclopts.exceptions import CycloptsError, UnusedCliTokensError

import holdfast
from holdfast.cli import (
    architecture,
    audit,
    backup,
    boot,
    catches,
    completion,
    decisions,
    demo,
    doctor,
    events,
    expiry,
    facts,
    git,
    history,
    keys,
    messages,
    nodes,
    project,
    prose,
    query,
    retain,
    rewinds,
    runs,
    salvage,
    schemas,
    secrets,
    selftest,
    sessions,
    state,
    store,
    subjects,
    tasks,
    tenants,
    trust,
    undo,
    views,
)
from holdfast.cli.advise import advise_backend
from holdfast.cli.options import STORE_VARIABLE, command, place_of
from holdfast.cli.printing import abandon_output, is_terminal
from holdfast.errors import HoldfastError, ProgramError, UsageError
from holdfast.names import without_secrets
from holdfast.opening import DEFAULT_PLACE
from holdfast.render.store import error_document
from holdfast.render.text import clean, encode_json, escape_json

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from cyclopts.help.formatters.plain import PlainFormatter
    from rich.console import Console, ConsoleOptions

CLOSED_PIPE = 141
"""What a shell reports for a program that wrote into a closed pipe."""

HELP = """Durable, inspectable state for AI agents.

Start with: holdfast init, then holdfast set team/support stage triage, then holdfast log.
Or see it work: holdfast demo. Every verb takes --store, --json and --help.
holdfast -v VERB shows the log on standard error.
"""

_START = Group("Get started", sort_key=1)
_LOOK = Group("Look", sort_key=2)
_CHANGE = Group("Change", sort_key=3)
_CARE = Group("Look after a store", sort_key=4)
_RUNS = Group("Runs", sort_key=5)
_SHELL = Group("Shell", sort_key=6)

VERBS: list[tuple[str, Any, Group]] = [
    ("init", store.init, _START),
    ("demo", demo.demo, _START),
    ("advise", advise_backend, _START),
    ("boot", boot.boot, _START),
    ("status", store.status, _LOOK),
    ("scopes", store.scopes, _LOOK),
    ("show", state.show, _LOOK),
    ("get", state.get, _LOOK),
    ("log", history.log, _LOOK),
    ("diff", history.diff, _LOOK),
    ("checkpoints", history.checkpoints, _LOOK),
    ("follow", history.follow, _LOOK),
    ("workers", store.workers, _LOOK),
    ("groups", store.groups, _LOOK),
    ("decisions", decisions.decisions, _LOOK),
    ("query", query.query, _LOOK),
    ("similar", query.similar, _LOOK),
    ("sql", query.sql, _LOOK),
    ("stale", facts.stale, _LOOK),
    ("audit", state.audit, _LOOK),
    ("audit export", audit.export, _CARE),
    ("architecture", architecture.architecture, _LOOK),
    ("messages", messages.messages, _LOOK),
    ("task list", tasks.list_tasks, _LOOK),
    ("schema list", schemas.list_schemas, _LOOK),
    ("schema show", schemas.show_schema, _LOOK),
    ("schema diff", schemas.diff_schema, _LOOK),
    ("event list", events.list_events, _LOOK),
    ("projection", events.projection, _LOOK),
    ("project status", project.status, _LOOK),
    ("project survey", project.survey, _LOOK),
    ("project watch", project.watch, _LOOK),
    ("project tasks", project.tasks, _LOOK),
    ("project sessions", project.sessions, _LOOK),
    ("session list", sessions.list_sessions, _LOOK),
    ("session export", sessions.export_session, _CARE),
    ("set", state.set_value, _CHANGE),
    ("delete", state.delete, _CHANGE),
    ("checkpoint", history.checkpoint, _CHANGE),
    ("touch", expiry.touch, _CHANGE),
    ("restore", history.restore, _CHANGE),
    ("undo", undo.undo, _CHANGE),
    ("rewind", rewinds.rewind, _CHANGE),
    ("rewind mark", rewinds.mark, _CHANGE),
    ("rewind list", rewinds.list_points, _LOOK),
    ("file", git.file, _LOOK),
    ("git status", git.git_status, _LOOK),
    ("git log", git.git_log, _LOOK),
    ("git record", git.git_record, _CHANGE),
    ("git commit", git.git_commit, _CHANGE),
    ("git hook", git.git_hook, _CARE),
    ("git lost", git.git_lost, _LOOK),
    ("rebuild", git.rebuild, _CARE),
    ("git merge-driver", git.merge_driver, _CARE),
    ("rewind undo", rewinds.undo, _CHANGE),
    ("remove", history.remove, _CHANGE),
    ("fork", history.fork, _CHANGE),
    ("say", messages.say, _CHANGE),
    ("event record", events.record, _CHANGE),
    ("task add", tasks.add, _CHANGE),
    ("task claim", tasks.claim, _CHANGE),
    ("task update", tasks.update, _CHANGE),
    ("task close", tasks.close, _CHANGE),
    ("decide", decisions.decide, _CHANGE),
    ("outcome", decisions.outcome, _CHANGE),
    ("fact", facts.fact, _CHANGE),
    ("catch", catches.catch, _CHANGE),
    ("catch list", catches.list_catches, _LOOK),
    ("catch scan", catches.scan, _CHANGE),
    ("recover", decisions.recover, _CARE),
    ("trust", trust.trust, _CARE),
    ("secrets", secrets.secrets, _CARE),
    ("expiry", expiry.expiry, _CARE),
    ("retain", retain.retain, _CARE),
    ("archive", retain.archive, _CARE),
    ("unretain", retain.unretain, _CARE),
    ("hold", retain.hold, _CARE),
    ("unhold", retain.unhold, _CARE),
    ("subject list", subjects.list_subjects, _LOOK),
    ("subject show", subjects.show_subject, _LOOK),
    ("subject export", subjects.export_subject, _LOOK),
    ("subject erase", subjects.erase_subject, _CARE),
    ("subject hold", subjects.hold_subject, _CARE),
    ("subject readmit", subjects.readmit_subject, _CARE),
    ("erase", subjects.erase, _CARE),
    ("tenant create", tenants.create, _CARE),
    ("tenant list", tenants.list_tenants, _LOOK),
    ("tenant show", tenants.show, _LOOK),
    ("tenant change", tenants.change, _CARE),
    ("tenant renew", tenants.renew, _CARE),
    ("tenant remove", tenants.remove, _CARE),
    ("key new", keys.new_key, _CARE),
    ("key status", keys.status, _LOOK),
    ("key rotate", keys.rotate, _CARE),
    ("key rewrap", keys.rewrap, _CARE),
    ("check", store.check, _CARE),
    ("doctor", doctor.doctor, _CARE),
    ("migrate", schemas.migrate, _CARE),
    ("copy", store.copy_store, _CARE),
    ("salvage", salvage.salvage_store, _CARE),
    ("backup", backup.make, _CARE),
    ("backup list", backup.list_points, _LOOK),
    ("backup restore", backup.restore, _CARE),
    ("backup drill", backup.drill, _CARE),
    ("backup prune", backup.prune, _CARE),
    ("export", backup.export, _CARE),
    ("import", backup.import_file, _CARE),
    ("selftest", selftest.selftest, _CARE),
    ("runs list", runs.list_runs, _LOOK),
    ("runs show", runs.show, _LOOK),
    ("runs tail", runs.tail, _LOOK),
    ("runs start", runs.start, _RUNS),
    ("runs resume", runs.resume, _RUNS),
    ("runs retry", runs.retry, _RUNS),
    ("runs cancel", runs.cancel, _CHANGE),
    ("runs remove", runs.remove, _CHANGE),
    ("runs answer", runs.answer, _CHANGE),
    ("runs signal", runs.signal, _CHANGE),
    ("runs settle", runs.settle, _CHANGE),
    ("runs adopt", runs.adopt, _CHANGE),
    ("runs fork", runs.fork, _CHANGE),
    ("prose check", prose.check_programs, _LOOK),
    ("prose show", prose.show, _LOOK),
    ("prose run", prose.run, _RUNS),
    ("prose resume", prose.resume, _RUNS),
    ("prose restore", prose.restore, _CHANGE),
    ("prose fork", prose.fork, _CHANGE),
    ("project do", project.do, _RUNS),
    ("project chat", project.chat, _RUNS),
    ("project stop", project.stop, _CHANGE),
    ("project interrupt", project.interrupt, _CHANGE),
    ("project steer", project.steer, _CHANGE),
    ("project follow-up", project.follow_up, _CHANGE),
    ("project note", project.note, _CHANGE),
    ("project recover", project.recover, _CARE),
    ("project doctor", project.doctor, _CARE),
    ("project restore", project.restore, _CARE),
    ("project prune", project.prune, _CARE),
    ("project checkpoint", project.checkpoint, _CHANGE),
    ("project rewind", project.rewind, _CHANGE),
    ("project alias", project.alias, _START),
    ("views status", views.status, _LOOK),
    ("views write", views.write, _CHANGE),
    ("views watch", views.watch, _RUNS),
    ("views accept", views.accept, _CHANGE),
    ("views reject", views.reject, _CHANGE),
    ("nodes list", nodes.list_nodes, _LOOK),
    ("nodes show", nodes.show, _LOOK),
    ("nodes why", nodes.why, _LOOK),
    ("nodes plan", nodes.plan, _LOOK),
    ("nodes graph", nodes.graph, _LOOK),
    ("nodes process", nodes.process, _RUNS),
    ("nodes accept", nodes.accept, _CHANGE),
    ("nodes invalidate", nodes.invalidate, _CHANGE),
    ("nodes forget", nodes.forget, _CHANGE),
]

ALIASES = {
    "decision open": "decide",
    "decision close": "outcome",
    "decision list": "decisions",
    "message add": "say",
    "message list": "messages",
}
"""The long names of verbs that are typed often: a noun, then what to do with it."""

_FAMILIES = {
    "audit": "What a state is made of: audit SCOPE; export what a store holds, signed.",
    "backup": "Make a backup: backup DEST; list its points, restore one, try whether it can be.",
    "catch": "Log what a control has caught: catch SCOPE TEXT; list it, find unrecorded decisions.",
    "decision": "Open, close and list decisions; the short forms: decide, outcome, decisions.",
    "event": "Record and list events of your own.",
    "git": "The git repository here: its state, and commits linked to events.",
    "key": "The keys of an encrypted store: make one, rotate and rewrap them, see how it stands.",
    "message": "Add and list messages; the short forms: say, messages.",
    "nodes": "Walk graphs of nodes, and say why something was computed.",
    "project": "Work in the project of this directory: talk, give tasks, recover, go back.",
    "prose": "Check, run and look after programs of agents: .prose files.",
    "rewind": "Go back to a point: rewind POINT; make and list points, take a rewind back.",
    "runs": "Start, watch and look after runs: programs whose position survives anything.",
    "schema": "List, show and compare the schemas of a program and of a store.",
    "session": "List sessions that have not ended, and write one as a JSON document.",
    "subject": "List, show, export, hold, erase and readmit people whose data is sealed.",
    "tenant": "Several owners of stores in one place: make, list, show, change and remove them.",
    "task": "Add, list, claim, change and close tasks.",
    "views": "Files that people edit: write them, keep them fresh, see how they stand.",
}
"""Words that take a verb after them, such as `runs list`; some are verbs by themselves too."""

_WITH_VALUE = ("--store", "--store-key", "--actor", "--tenant")
VIEWS = ".prose"
"""The directory of views, if `--views` names none."""
_VERBOSE = ("--verbose", "-v")
_COMPLETE = "__complete"
"""The hidden verb by which the script of a shell asks for the words to offer."""


_NO_SCREEN = 10_000
"""How wide a line of help may be where it goes to no terminal: nothing is wrapped."""


class PipedHelp:
    """Help where there is no screen: one line for each verb and option, however long it is."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        self._plain(console)(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        self._plain(console).render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, text: object) -> None:
        self._plain(console).render_description(console, options, text)

    def _plain(self, console: Console) -> PlainFormatter:
        # Imported only for help: every other command would wait for the import.
        from cyclopts.help.formatters.plain import PlainFormatter

        console.width = _NO_SCREEN
        return PlainFormatter()


def make_app() -> App:
    """Returns the parser of the whole command line."""
    app = App(
        name="holdfast",
        help=HELP,
        version=f"holdfast {holdfast.__version__}",
        help_format="plaintext",
        help_formatter="default" if is_terminal() else PipedHelp(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for family, text in _FAMILIES.items():
        group = _RUNS if family in ("nodes", "project", "runs") else _CHANGE
        group = _CARE if family in ("backup", "key", "subject", "tenant") else group
        app.command(App(name=family, help=text, group=group))
    verbs = {name: (function, group) for name, function, group in VERBS}
    aliases = [(alias, *verbs[name]) for alias, name in ALIASES.items()]
    for name, function, group in [*VERBS, *aliases]:
        *families, verb = name.split()
        owner = app[families[0]] if families else app
        if not families and verb in _FAMILIES:
            app[verb].default(function)
        else:
            owner.command(function, name=verb, group=group)
    completion.register(app, group=_SHELL)
    for flag in ("--help", "--version"):
        app[flag].group = (_SHELL,)
    return app


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # Text that the encoding of the terminal lacks is printed as escapes, not as an error.
            reconfigure(errors="backslashreplace")
    words, is_verbose = take_verbose(arguments)
    if words[:1] == [_COMPLETE]:
        words = [_COMPLETE, *put_verb_first(words[1:])]
    else:
        words = name_views(put_verb_first(name_task(words)))
    options = words[: words.index("--")] if "--" in words else words
    is_json = "--json" in options
    try:
        with log_shown(is_verbose or "--verbose" in options):
            result = make_app()(words, print_error=False, exit_on_error=False)
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_output()
        return CLOSED_PIPE
    except HoldfastError as error:
        return report(error, place=typed_store(words), is_json=is_json)
    except CycloptsError as mistake:
        return report(usage_error(mistake, words), place=None, is_json=is_json)
    return result if isinstance(result, int) else 0


def take_verbose(arguments: list[str]) -> tuple[list[str], bool]:
    """Returns the arguments without -v and --verbose before the verb, and whether one was there.

    They are not moved after the verb, because some verbs work on no store and take no such option.
    """
    words = list(arguments)
    at, is_verbose = 0, False
    while at < len(words) and words[at].startswith("-"):
        if words[at] in _VERBOSE:
            del words[at]
            is_verbose = True
        else:
            at += 2 if words[at] in _WITH_VALUE else 1
    return words, is_verbose


@contextmanager
def log_shown(is_shown: bool) -> Generator[None]:
    """Shows the log of the library on standard error, if it is asked for."""
    if not is_shown:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class LogFormatter(logging.Formatter):
    """Makes lines that cannot drive a terminal, whatever a message quotes."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record), keep="\n")


def put_verb_first(arguments: list[str]) -> list[str]:
    """Returns the arguments with the global options before the verb moved after it."""
    words = list(arguments)
    moved: list[str] = []
    while words and words[0].startswith(("--store", "--actor", "--tenant", "--json")):
        count = 2 if words[0] in _WITH_VALUE else 1
        moved += words[:count]
        del words[:count]
    count = verb_length(words)
    return [*words[:count], *moved, *words[count:]] if words else moved


def name_task(words: list[str]) -> list[str]:
    """Returns the words of a command that `project alias` wrote, with a verb for the parser.

    Such a command calls `project - WORDS`; words that begin with no verb of projects are a task.
    """
    if words[:2] != ["project", "-"]:
        return words
    verbs = {name.partition(" ")[2] for name, _, _ in VERBS if name.startswith("project ")}
    rest = words[2:]
    is_verb = not rest or rest[0] in verbs or rest[0] in ("--help", "--version")
    return ["project", *rest] if is_verb else ["project", "do", *rest]


def name_views(words: list[str]) -> list[str]:
    """Returns the words of `prose run` with the default directory after a `--views` without one.

    The parser knows no option whose value may be left out. What follows a bare `--views` is another
    option, an input (NAME=VALUE) or the file of the program.
    """
    if words[:2] != ["prose", "run"]:
        return words
    found: list[str] = []
    for number, word in enumerate(words):
        after = words[number + 1] if number + 1 < len(words) else "--"
        is_bare = after.startswith("-") or "=" in after or os.path.isfile(after)
        is_views = word == "--views" and "--" not in found
        found.append(f"--views={VIEWS}" if is_views and is_bare else word)
    return found


def verb_length(words: list[str]) -> int:
    """Returns how many words the verb has."""
    return 2 if words[:1] and words[0] in _FAMILIES else 1


def usage_error(mistake: CycloptsError, words: list[str]) -> UsageError:
    """Returns a mistake in what was typed as one of our errors."""
    # The list of verbs that may follow is cut off in the middle: the hint helps more.
    message = str(mistake).partition(" Available commands:")[0].strip().removesuffix(".")
    if isinstance(mistake, UnusedCliTokensError):
        extra = " ".join(shlex.quote(word) for word in mistake.unused_tokens or ())
        message = f"nothing takes {extra}: there are more words than the verb has places for"
    # The parser quotes what was typed, which may be a URL with a password.
    for word in words:
        message = message.replace(word, without_secrets(word)) if word else message
    verbs = {*ALIASES, *(name for name, _, _ in VERBS)}
    typed = " ".join(words[: verb_length(words)])
    family = words[0] if words and words[0] in _FAMILIES else ""
    known = typed if typed in verbs else family
    return UsageError(
        message[:1].lower() + message[1:],
        hint=f"holdfast {known} --help" if known else "holdfast --help",
    )


def typed_store(words: list[str]) -> str | None:
    """Returns the store that was named on the command line, with the tenant that was."""
    store, tenant = typed_option(words, "--store"), typed_option(words, "--tenant")
    if store is None and tenant is None:
        return None
    return place_of(store or os.environ.get(STORE_VARIABLE) or DEFAULT_PLACE, tenant)


def typed_option(words: list[str], option: str) -> str | None:
    """Returns the value that an option was given on the command line."""
    for index, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and index + 1 < len(words):
            return words[index + 1]
    return None


def report(error: HoldfastError, *, place: str | None, is_json: bool) -> int:
    """Prints an error on standard error and returns its exit code.

    A hint that is a command gets the store that was named, so that it can be typed as it stands.
    """
    program, _, verb = (error.hint or "").partition(" ")
    is_whole = verb.startswith(("--store", "--tenant"))
    if place is not None and program == "holdfast" and not is_whole:
        error.hint = command(verb, place)
    try:
        if is_json:
            text = escape_json(encode_json(error_document(error)).decode())
        else:
            # The errors of a program stand on lines of their own, each with its caret.
            keep = "\n" if isinstance(error, ProgramError) else ""
            text = f"error: {clean(error.message, keep=keep)}"
            if error.hint:
                text += f"\nhint: {clean(error.hint)}"
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        pass  # nobody reads errors either: the exit code still tells
    return error.exit_code
