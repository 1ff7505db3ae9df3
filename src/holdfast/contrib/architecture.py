"""Describes the state that a project keeps, as a table with one row for each kind.

A folder has a row for each file of state, recognised by its name (`AGENTS.md`, `events.yaml`,
`backlog.yaml` and so on) or by its form and content. A store has a row for each kind of thing that
it keeps. Nothing is written, no link is followed, and a file that cannot be read is listed as such.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.kernel import kernel_of
from holdfast.errors import HoldfastError, NotFoundError, UsageError
from holdfast.git.files import ProjectFile
from holdfast.git.repository import Repository
from holdfast.names import CONVERSATION, GLOBAL
from holdfast.record.decisions import INDEX_OPEN, INDEX_STANDING
from holdfast.record.facts import INDEX as INDEX_FACT
from holdfast.record.task_events import INDEX_TASK
from holdfast.store import Store

FORMS = {
    ".md": "markdown", ".markdown": "markdown", ".json": "json", ".jsonl": "lines", ".log": "lines",
    ".ndjson": "lines", ".tsv": "table", ".csv": "table", ".yaml": "yaml", ".yml": "yaml",
    ".toml": "settings",
}  # fmt: skip
READ_BYTES_MAX = 8 << 20
FILES_MAX = 500
_PASSED_OVER = {".git", ".holdfast", ".venv", "node_modules", "__pycache__"}


class StateKind(Struct, frozen=True, kw_only=True):
    """One kind of state: what it is, and what depends on it."""

    name: str
    category: str
    where: str = ""
    content: str
    lifetime: str
    writer: str
    update: str
    lost: str
    stale: str
    locking: str
    recovery: str
    sqlite: str


COLUMNS = (
    ("name", "what"),
    ("category", "category"),
    ("update", "update pattern"),
    ("content", "what it stores"),
    ("lost", "if it is lost"),
    ("stale", "stale risk"),
    ("where", "where"),
    ("lifetime", "lifetime"),
    ("writer", "who writes"),
    ("locking", "locking"),
    ("recovery", "recovery"),
    ("sqlite", "what SQLite would change"),
)
"""The columns of the table: field and heading."""

_DIFFS = "queries and transactions; diffs and reading without tools would be lost"
_KNOWN: dict[str, StateKind] = {
    "AGENTS.md": StateKind(
        name="AGENTS.md",
        category="boot state",
        content="goals, standing orders, vocabulary, recent decisions, where things are",
        lifetime="the project",
        writer="people; `holdfast boot --write` keeps one block of it",
        update="full rewrite, seldom",
        lost="new sessions begin without any knowledge of the project",
        stale="high: it is believed at every start, and nothing checks what it says",
        locking="none; one writer at a time is enough",
        recovery="the newest commit; the block comes from the log at any time",
        sqlite="nothing is gained: it is read whole; people could no longer review it",
    ),
    "events.yaml": StateKind(
        name="events.yaml",
        category="event log",
        content="what happened: date, type, agent, commit, summary, references",
        lifetime="for ever",
        writer="every agent",
        update="append-only",
        lost="history is gone; work goes on",
        stale="low: what happened stays so",
        locking="needed for each append; with the log, commits do it",
        recovery="the newest commit; in part from the messages of commits",
        sqlite="queries by time and type, appends that do not read it; no plain diffs",
    ),
    "session-decisions-index.yaml": StateKind(
        name="session-decisions-index.yaml",
        category="decision index",
        content="standing orders, and a window of the newest decisions",
        lifetime="the project; decisions rotate out of the window",
        writer="whoever decides",
        update="read-modify-write, curated",
        lost="orientation suffers; orders are rebuilt from AGENTS.md, decisions from their chain",
        stale="high: an order that was superseded is still obeyed",
        locking="needed: two writers would each drop the other's entry",
        recovery="the newest commit, or rendered from the decisions of the log",
        sqlite=_DIFFS,
    ),
    ".keel-state": StateKind(
        name=".keel-state",
        category="runtime state",
        content="head, bearing, officer, gate status, counts of tests",
        lifetime="the session; made again with defaults",
        writer="one monitoring program",
        update="read-modify-write, often",
        lost="monitoring starts from its defaults; nothing else",
        stale="high: head and counts of tests change with every commit",
        locking="an exclusive lock around each change",
        recovery="rendered again with defaults",
        sqlite="a transaction in place of the lock; nobody reviews its diffs, so little is lost",
    ),
    "catch-log.tsv": StateKind(
        name="catch-log.tsv",
        category="control log",
        content="what controls caught: date, control, what, agent, outcome, notes",
        lifetime="for ever",
        writer="reviewers and controls",
        update="append-only",
        lost="history of the controls is gone; work goes on",
        stale="low: what was caught stays so",
        locking="none for one line at a time on one host; a lock for several hosts",
        recovery="the newest commit, or rendered from the catches of the log",
        sqlite="counts by control and time; plain appends and diffs would be lost",
    ),
    "backlog.yaml": StateKind(
        name="backlog.yaml",
        category="task tracking",
        content="tasks: id, title, priority, status, epic, tags",
        lifetime="the project",
        writer="a command that checks its schema",
        update="read-modify-write",
        lost="tasks are rebuilt from events and commits, with pains",
        stale="medium: a task that is done may be done again",
        locking="needed: two agents that claim a task would both have it",
        recovery="the newest commit, or rendered from the tasks of the log",
        sqlite="claims that exactly one agent wins, queries by status; no diffs of one line",
    ),
}
_FORM_KINDS: dict[str, StateKind] = {
    "markdown": replace(
        _KNOWN["AGENTS.md"], category="notes", content="text for people and agents",
        writer="people", lost="what it says is known to nobody", recovery="the newest commit",
        stale="medium: it is believed, and nothing checks what it says",
    ),
    "tasks": replace(
        _KNOWN["backlog.yaml"], content="a list of things to do", writer="people and agents",
        recovery="the newest commit",
    ),
    "json": replace(
        _KNOWN[".keel-state"], content="one value", lifetime="unknown", writer="a program",
        lost="its program starts from its defaults, or fails", recovery="the newest commit",
        stale="medium: it says what was true when it was written",
        locking="needed as soon as two processes change it",
    ),
    "yaml": replace(
        _KNOWN["session-decisions-index.yaml"], category="records", content="a list of records",
        lifetime="unknown", writer="people and programs", recovery="the newest commit",
        lost="its records are gone", stale="medium: nothing says when a record stops being true",
    ),
    "table": replace(
        _KNOWN["catch-log.tsv"], category="records", content="one record in each line",
        lifetime="unknown", writer="programs", lost="its records are gone",
        recovery="the newest commit",
    ),
    "lines": replace(
        _KNOWN["events.yaml"], content="one record in each line", lifetime="unknown",
        writer="programs", recovery="the newest commit",
    ),
    "settings": replace(
        _KNOWN["AGENTS.md"], category="settings", content="what programs are told",
        writer="people", lost="programs run with their defaults", recovery="the newest commit",
        stale="low: a program reads it each time",
    ),
}  # fmt: skip


# --- a folder -------------------------------------------------------------------------------------


def of_folder(path: str) -> list[StateKind]:
    """Returns a row for each file of state in a folder and below it, well-known files first."""
    if not os.path.isdir(path):
        raise NotFoundError(f'"{path}" is no folder')
    try:
        repository: Repository | None = Repository.find(path)
    except HoldfastError:
        repository = None  # no git, or a repository of another user
    found = [_row(path, name, repository) for name in _files(path)]
    return sorted(found, key=lambda kind: (kind.name not in _KNOWN, kind.where))


def _files(folder: str) -> Iterator[str]:
    """Yields the files that may hold state, as paths relative to the folder."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _PASSED_OVER)
        for name in sorted(names):
            if name not in _KNOWN and os.path.splitext(name)[1].lower() not in FORMS:
                continue
            count += 1
            if count > FILES_MAX:
                raise UsageError(
                    f'"{folder}" has more than {FILES_MAX} files that may hold state',
                    hint="name the folder that the state is in",
                )
            yield os.path.relpath(os.path.join(place, name), folder)


def _row(folder: str, name: str, repository: Repository | None) -> StateKind:
    base = os.path.basename(name)
    known = _KNOWN.get(base)
    data, problem = _read(os.path.join(folder, name))
    form = FORMS.get(os.path.splitext(base)[1].lower(), "json")
    if problem is None:
        amount, problem = _amount(form, data)
    else:
        amount = ""
    is_list = form == "markdown" and bool(re.search(rb"^\s*[-*] \[.\] ", data, re.M))
    kind = known or _FORM_KINDS["tasks" if is_list else form]
    said = f"{kind.content} ({amount})" if amount else kind.content
    recovery = _recovery(kind, os.path.join(folder, name), repository)
    if problem is not None:
        said = f"cannot be read: {problem}"
    locking = kind.locking
    if os.path.exists(os.path.join(folder, f"{name}.lock")):
        locking = f"{name}.lock is there; {locking}"
    return replace(kind, name=base, where=name, content=said, locking=locking, recovery=recovery)


def _read(path: str) -> tuple[bytes, str | None]:
    """Returns the content of a file, and why it cannot be read; None if it can."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return b"", f"it is a link to {os.readlink(path)}"
        if not stat.S_ISREG(status.st_mode):
            return b"", "it is no plain file"
        if status.st_size > READ_BYTES_MAX:
            return b"", f"{status.st_size} bytes are too many to look at"
        with open(path, "rb") as file:
            return file.read(), None
    except OSError as error:
        return b"", str(error.strerror)


def _amount(form: str, data: bytes) -> tuple[str, str | None]:
    """Returns the number of entries in a file, in words, and what is wrong with it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return "", f"no UTF-8 at byte {error.start}"
    lines = [line for line in text.splitlines() if line.strip()]
    match form:
        case "json":
            try:
                value: object = json.loads(text)
            except (ValueError, RecursionError) as error:
                return "", f"no JSON: {error}"
            if isinstance(value, dict):
                return _count(len(cast("dict[str, object]", value)), "field"), None
            size = len(cast("list[object]", value)) if isinstance(value, list) else 1
            return _count(size, "value"), None
        case "yaml":
            return _count(sum(bool(re.match(r"\s*- ", line)) for line in lines), "entry"), None
        case "markdown":
            boxes = sum(bool(re.match(r"\s*[-*] \[.\] ", line)) for line in lines)
            headings = sum(line.startswith("#") for line in lines)
            return (_count(boxes, "box") if boxes else _count(headings, "section")), None
        case _:
            return _count(len(lines), "line"), None


def _count(number: int, noun: str) -> str:
    plural = {"entry": "entries", "box": "boxes"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"


def _recovery(kind: StateKind, path: str, repository: Repository | None) -> str:
    """Returns how a file can be recovered, with what git has of it now."""
    if repository is None:
        return f"{kind.recovery}; it is in no git repository: nothing brings it back by itself"
    try:
        file = ProjectFile(repository, path)
        commits = file.log(1)
        if not commits:
            return f"{kind.recovery}; git has no commit of it: it would be lost"
        lost = "; changes since then are not committed and would be lost"
        return f"{kind.recovery} ({commits[0].id[:12]}){lost if file.diff().lost else ''}"
    except HoldfastError as error:
        return f"{kind.recovery}; git cannot be asked: {error.message}"


# --- a store --------------------------------------------------------------------------------------

Kind = Callable[..., StateKind]
_COMMITTED = "none needed: a commit is whole, and a guard refuses what is out of date"


def of_store(store: Store) -> list[StateKind]:
    """Returns a row for each kind of state that a store keeps, without reading a scope."""
    log = kernel_of(store).log
    place = str(log.describe()["place"])
    sql = "it is one of its tables already" if log.describe()["kind"] == "sqlite" else (
        "`holdfast copy` moves it there; `holdfast sql` asks in SQL without that"
    )  # fmt: skip
    counts = {
        index: len(log.find_marks(index))
        for index in (INDEX_STANDING, INDEX_OPEN, INDEX_TASK, INDEX_FACT)
    }

    def kind(**fields: str) -> StateKind:
        given = {
            "where": place, "locking": _COMMITTED, "sqlite": sql,
            "recovery": "the log itself; a backup; another copy", **fields,
        }  # fmt: skip
        return StateKind(**given)

    return [*_scope_rows(store, kind), *_record_rows(counts, kind), *_derived_rows(kind)]


def _scope_rows(store: Store, kind: Kind) -> Iterable[StateKind]:
    for level in kernel_of(store).levels.names():
        page = store.scopes(level, limit=100)
        if not page:
            continue
        count = f"{len(page)}{'+' if page.more else ''}"
        is_session = level == CONVERSATION
        lasts = {GLOBAL: "for ever", CONVERSATION: "the session, until it is closed"}
        yield kind(
            name=f"state of {level} scopes",
            category="session state" if is_session else "persistent state",
            content=f"what programs set ({count} scopes)",
            lifetime=lasts.get(level, "until the scope is closed or removed"),
            writer="every process, by guarded commits",
            update="append-only events; the state is their fold",
            lost="what every agent knows of it",
            stale="medium: `updated_at` and `older_than` tell its age",
        )


def _record_rows(counts: dict[str, int], kind: Kind) -> Iterable[StateKind]:
    orders, decisions = counts[INDEX_STANDING], counts[INDEX_OPEN]
    yield kind(
        name="messages", category="event log", content="what was said, tools and files",
        lifetime="that of their scope", writer="people and agents", update="append-only",
        lost="conversations begin anew", stale="low: what was said stays so",
    )  # fmt: skip
    yield kind(
        name="decisions", category="decision log",
        content=f"why and what, with outcomes ({orders} standing orders, {decisions} open)",
        lifetime="for ever", writer="whoever decides, before the act", update="append-only",
        lost="what was begun before a crash is done twice or never",
        stale="medium: an open decision of a silent worker; `holdfast recover` asks its verifier",
    )  # fmt: skip
    yield kind(
        name="tasks", category="task tracking",
        content=f"what is to be done, by whom ({counts[INDEX_TASK]} not closed)",
        lifetime="that of their scope", writer="agents and people, by claims",
        update="append-only events; the table is their fold",
        lost="work is done twice or never",
        stale="medium: a task in progress whose owner is silent; `holdfast stale` lists it",
    )  # fmt: skip
    yield kind(
        name="facts", category="runtime state",
        content=f"claims about the world outside ({counts[INDEX_FACT]} count)",
        lifetime="until their time is over", writer="agents", update="append-only events",
        lost="they are looked up again",
        stale="high, and said: a fact has a verifier and a time; `holdfast stale` lists it",
    )  # fmt: skip
    yield kind(
        name="working memory", category="session state",
        content="files, notes, results, errors, settings",
        lifetime="a turn, the session, the project or for ever, by item", writer="agents",
        update="keys of the state", lost="what was at hand is found again, slowly",
        stale="medium: `older_than` lists old items",
    )  # fmt: skip
    yield kind(
        name="runs", category="runtime state", content="journals: every step and its result",
        lifetime="until they are removed", writer="the worker that owns the run",
        update="append-only", lost="programs start from the beginning",
        stale="low: a run whose owner is silent is resumed by another",
    )  # fmt: skip
    yield kind(
        name="policy and catches", category="control log",
        content="what the store demands, and what was caught", lifetime="for ever",
        writer="people; the policy itself", update="append-only",
        lost="effects without a decision pass unseen", stale="low",
    )  # fmt: skip


def _derived_rows(kind: Kind) -> Iterable[StateKind]:
    yield kind(
        name="index for questions", category="derived", content="words and fields of the record",
        lifetime="until it is deleted", writer="whoever asks first",
        where="beside the store", update="it follows the log", lost="nothing",
        stale="none: a question waits until it is up to date",
        recovery="`holdfast query --rebuild`", sqlite="it is SQLite, but in PostgreSQL",
    )  # fmt: skip
    yield kind(
        name="snapshots", category="derived", content="states at some revisions, to start from",
        lifetime="the garbage collector's", writer="every process", update="written once",
        lost="nothing: the first read takes longer", stale="none: each names its revision",
        recovery="made again from the log",
    )  # fmt: skip


# --- as a table -----------------------------------------------------------------------------------


def to_markdown(kinds: Iterable[StateKind]) -> str:
    """Returns the table as markdown, one line for each kind."""
    lines = [
        "| " + " | ".join(heading for _, heading in COLUMNS) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
    ]
    for kind in kinds:
        cells = (str(getattr(kind, field)) for field, _ in COLUMNS)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
