"""`.prose` programs as documents: their problems, and where they stand when they run. Pure.

Flow, variables, outputs, loops and recovery are read from the journal, so every process that asks
gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from holdfast.core.event import to_datetime
from holdfast.prose import Problem
from holdfast.prose.program import Stored
from holdfast.prose.variables import Variable, variables_of
from holdfast.render.runs import RunView, fault_document, run_summary_document
from holdfast.render.text import encode_value, preview, shorten, time_text
from holdfast.runs.blocks import at_work, loops_at
from holdfast.runs.journal import Entry, Journal, block_of


def check_document(found: Mapping[str, Iterable[Problem]]) -> Any:
    """Returns the problems of each file, errors and warnings apart."""
    files: list[Any] = []
    for file, problems in found.items():
        documents: dict[str, list[Any]] = {"error": [], "warning": []}
        for one in problems:
            documents[one.severity].append(problem_document(one))
        files.append({"file": file, "errors": documents["error"], "warnings": documents["warning"]})
    return {"files": files}


def problem_document(problem: Problem) -> Any:
    """Returns one problem."""
    return {
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "message": problem.message,
    }


def program_document(run: RunView, program: Stored) -> dict[str, Any]:
    """Returns all that is known of a program that runs or has run."""
    journal = run.journal
    bound = variables_of(journal)
    ended = journal.ended
    return {
        **run_summary_document(run),
        "program": program.main,
        "flow": _flow(run),
        "variables": {
            name: _variable(one, run) for (scope, name), one in bound.items() if not scope
        },
        "inner_variables": [
            {"scope": scope, "name": name, **_variable(one, run)}
            for (scope, name), one in bound.items()
            if scope
        ],
        "outputs": {
            "result": encode_value(run.load(ended.value) if ended and ended.value else None),
            "sessions": [
                session_document(one, run) for one in journal.entries.values() if is_session(one)
            ],
        },
        "loops": _loops(journal),
        "recovery": _recovery(run),
    }


def is_session(entry: Entry) -> bool:
    """Returns whether an operation is an agent session."""
    return entry.kind == "step" and entry.name == "session"


def last_session(journal: Journal) -> Entry | None:
    """Returns the session that was answered last."""
    done = [e for e in journal.entries.values() if is_session(e) and e.state == "done"]
    return max(done, key=lambda entry: entry.closed, default=None)


def _flow(run: RunView) -> dict[str, Any]:
    journal = run.journal
    last = last_session(journal)
    working = [] if journal.ended is not None else at_work(journal)
    return {
        "status": run.status,
        "last_session": None if last is None else last.path,
        "statements": [
            {
                "path": entry.path,
                "source": entry.source,
                "kind": entry.kind,
                "blocks": [part for part in block_of(entry.path).split("/") if part],
                "iterations": [str(loop) for loop in loops_at(journal, entry.path)],
                "attempt": entry.attempt + (entry.retry_at is not None),
                "attempts": entry.attempts,
            }
            for entry in working
        ],
    }


def _loops(journal: Journal) -> list[dict[str, Any]]:
    working = {} if journal.ended is not None else {e.path: e for e in at_work(journal)}
    found: dict[str, dict[str, Any]] = {}
    for path in working:
        for loop in loops_at(journal, path):
            found[str(loop)] = {
                "name": loop.name,
                "iteration": loop.index + 1,
                "total": loop.total,
                "text": str(loop),
            }
    return list(found.values())


def _recovery(run: RunView) -> dict[str, Any]:
    journal = run.journal
    tried = [e for e in journal.entries.values() if e.attempts > 1 or e.error is not None]
    diverged = journal.diverged
    return {
        "reason": None if journal.suspended is None else journal.suspended.reason,
        "uncertain": [entry.path for entry in journal.uncertain()],
        "diverged": None if diverged is None else diverged.path,
        "attempts": [
            {
                "path": entry.path,
                "state": entry.state,
                "attempt": entry.attempt,
                "attempts": entry.attempts,
                "retry_at": _time(entry.retry_at),
                "error": None if entry.error is None else fault_document(entry.error, run),
            }
            for entry in tried
        ],
        "waits": [
            {"name": e.name, "prompt": e.label}
            for e in journal.entries.values()
            if e.kind == "wait" and e.state == "open"
        ],
    }


def _failed_at(journal: Journal) -> list[str]:
    """Returns the sessions that failed for good, with how often each was tried."""
    return [
        f"{entry.source or entry.path}, attempt {entry.attempt} of {entry.attempts}"
        for entry in journal.entries.values()
        if is_session(entry) and entry.state == "failed"
    ]


def _time(us: int | None) -> str | None:
    return None if us is None else time_text(to_datetime(us))


def _variable(one: Variable, run: RunView) -> dict[str, Any]:
    value = run.load(one.entry.value) if one.entry.value else None
    return {"kind": one.kind, "value": encode_value(value), "path": one.entry.path}


def session_document(entry: Entry, run: RunView) -> dict[str, Any]:
    """Returns what an agent was asked and answered."""
    asked: Any = (run.load(entry.inputs) if entry.inputs else None) or {}
    said: Any = run.load(entry.value) if entry.value else None
    answer = cast("dict[str, Any]", said if isinstance(said, dict) else {})
    return {
        "path": entry.path,
        "source": entry.source,
        "state": entry.state,
        "prompt": asked.get("prompt", asked.get("stdin")),
        "agent": asked.get("agent"),
        "model": answer.get("model", asked.get("model")),
        "text": answer.get("text", answer.get("out")),
        "usage": answer.get("usage"),
    }


def program_facts(run: RunView, program: Stored) -> list[tuple[str, str]]:
    """Returns where a program stands, in short, as names and values for people."""
    document = program_document(run, program)
    flow = document["flow"]
    facts = [("program", program.main), ("run", run.id), ("status", run.standing)]
    if flow["last_session"] is not None:
        facts.append(("last session", flow["last_session"]))
    for statement in flow["statements"]:
        tries = f", attempt {statement['attempt']} of {statement['attempts']}"
        more = tries if statement["attempts"] > 1 else ""
        facts.append(("at", f"{statement['source'] or statement['path']}{more}"))
        facts += [("in", text) for text in statement["iterations"]]
    for wait in document["recovery"]["waits"]:
        facts.append(("waits for", f"{wait['name']}: {wait['prompt'] or ''}"))
    for (scope, name), one in variables_of(run.journal).items():
        if not scope:
            value = run.load(one.entry.value) if one.entry.value else None
            facts.append((f"{one.kind} {name}", shorten(preview(value))))
    ended = run.journal.ended
    if ended is not None and ended.error is not None:
        facts += [("failed at", one) for one in _failed_at(run.journal)]
        facts.append(("error", f"{ended.error.kind}: {ended.error.message}"))
    elif ended is not None and ended.value:
        facts.append(("result", shorten(preview(run.load(ended.value)))))
    if document["recovery"]["reason"]:
        facts.append(("reason", document["recovery"]["reason"]))
    return facts
