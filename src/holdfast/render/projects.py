"""Documents of projects: what was found, where they stand, what came of a task or a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from holdfast.projects.coordinator import Holder
from holdfast.projects.doctor import Ailment
from holdfast.projects.inbox import WaitingMessage
from holdfast.projects.outcome import Outcome, Summary
from holdfast.projects.project import ProjectStatus
from holdfast.projects.recovery import RecoveryReport
from holdfast.projects.sessions import ProjectSession
from holdfast.projects.survey import Survey
from holdfast.render.text import time_text


def survey_document(found: Survey) -> dict[str, Any]:
    """Returns what a directory shows of a project, each with its value or why it is absent."""
    findings = {
        one.name: {"found": one.is_found, "value": to_builtins(one.value), "absent": one.absent}
        for one in found.findings
    }
    return {"root": found.root, **findings}


def status_document(status: ProjectStatus) -> dict[str, Any]:
    """Returns where a project stands."""
    return {
        "project": status.id,
        "root": status.root,
        "mode": status.mode,
        "coordinator": None if status.coordinator is None else holder_document(status.coordinator),
        "work": status.work,
        "children": [{"run": run, **child} for run, child in status.children.items()],
        "waiting": [waiting_document(one) for one in status.waiting],
        "tasks": status.tasks,
        "session": status.session,
    }


def holder_document(holder: Holder) -> dict[str, Any]:
    """Returns who coordinates a project."""
    return {
        "worker": holder.worker,
        "host": holder.host,
        "pid": holder.pid,
        "age_s": round(holder.age_s, 3),
        "epoch": holder.epoch,
    }


def waiting_document(message: WaitingMessage) -> dict[str, Any]:
    """Returns a message to the coordinator that nobody took yet."""
    return {
        "revision": message.revision,
        "kind": message.kind,
        "text": message.text,
        "sender": message.sender,
        "time": time_text(message.time),
    }


def sent_document(kind: str, revision: int, taken: bool | None) -> dict[str, Any]:
    """Returns a message that was sent; `taken` is None if nobody waited for that."""
    return {"kind": kind, "revision": revision, "taken": taken}


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Returns what came of a task."""
    return {
        "task": outcome.task,
        "status": outcome.status,
        "answer": outcome.answer,
        "files": list(outcome.files),
        "decisions": list(outcome.decisions),
        "tasks": list(outcome.tasks),
        "usage": outcome.usage,
    }


def project_sessions_document(project: str, found: Sequence[ProjectSession]) -> dict[str, Any]:
    """Returns the sessions of a project."""
    return {"project": project, "sessions": [project_session_document(one) for one in found]}


def project_session_document(session: ProjectSession) -> dict[str, Any]:
    """Returns one session as a picker shows it."""
    return {
        "id": session.id,
        "title": session.title,
        "status": session.status,
        "first": session.first,
        "last": session.last,
        "begun_at": None if session.begun_at is None else time_text(session.begun_at),
        "updated_at": None if session.updated_at is None else time_text(session.updated_at),
        "branch": session.branch,
        "linked": list(session.linked),
    }


def summary_document(summary: Summary) -> dict[str, Any]:
    """Returns what a session leaves."""

    def short(tasks: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"id": one.id, "title": one.title, "status": one.status} for one in tasks]

    return {
        "session": summary.session,
        "done": short(summary.done),
        "open": short(summary.open),
        "files": list(summary.files),
        "next": short(summary.next),
    }


def recovery_report_document(report: RecoveryReport) -> dict[str, Any]:
    """Returns what was recovered, each fact with its source, and which side of differences won."""
    return {
        "facts": [to_builtins(one) for one in report.facts],
        "differences": [to_builtins(one) for one in report.differences],
        "work": list(report.work),
        "results": [to_builtins(one) for one in report.results],
    }


def ailments_document(project: str, found: Sequence[Ailment]) -> dict[str, Any]:
    """Returns what is wrong with a project."""
    return {"project": project, "ailments": [to_builtins(one) for one in found]}


def restored_document(file: str, remedy: str, done: Sequence[str]) -> dict[str, Any]:
    """Returns what the restoring of a file did."""
    return {"file": file, "remedy": remedy, "done": list(done)}


def alias_document(name: str, path: str) -> dict[str, Any]:
    """Returns where a short command for a project's verbs was written."""
    return {"alias": name, "path": path}
