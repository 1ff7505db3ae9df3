"""Documents of a store as a whole: status, scopes, workers, groups, reports, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from holdfast.core.check import Report
from holdfast.core.consumers import GroupStatus
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.leases import Worker
from holdfast.core.page import Page
from holdfast.errors import HoldfastError
from holdfast.render.text import page_document, time_text
from holdfast.transfer.salvage import Salvaged
from holdfast.transfer.sink import Copied

if TYPE_CHECKING:
    # Layers above this one make these reports; only their types are needed here.
    from holdfast.contrib.advise import Advice
    from holdfast.contrib.architecture import StateKind
    from holdfast.contrib.demo.story import Story
    from holdfast.selftest import SelftestReport


def created_document(facts: Mapping[str, Any], *, created: bool) -> dict[str, Any]:
    """Returns kind and place of a store, and whether it was created just now."""
    return {"made": created, "kind": facts["kind"], "place": facts["place"]}


def status_document(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts about a store that `Store.status` has."""
    return dict(facts)


class ScopeSummary(Struct, frozen=True):
    """What a scope's newest event tells about the scope."""

    name: str
    level: str
    id: str | None
    revision: int
    time: datetime
    is_closed: bool
    is_expired: bool


def scopes_document(scopes: Page[ScopeSummary]) -> dict[str, Any]:
    """Returns a page of scopes."""
    documents = [
        {
            "scope": scope.name,
            "level": scope.level,
            "id": scope.id,
            "revision": scope.revision,
            "time": time_text(scope.time),
            "is_closed": scope.is_closed,
            "is_expired": scope.is_expired,
        }
        for scope in scopes
    ]
    return {"scopes": documents, **page_document(scopes)}


def worker_document(worker: Worker) -> dict[str, Any]:
    """Returns a worker, with the leases and claims that it holds."""
    return {
        "id": worker.id,
        "alive": worker.alive,
        "silent_s": worker.silent_s,
        "last_heartbeat": time_text(worker.last_heartbeat),
        "host": worker.host,
        "pid": worker.pid,
        "actor": worker.actor,
        "started": worker.started and time_text(worker.started),
        "leases": worker.leases,
        "claims": [{"index": index, "key": key} for index, key in worker.claims],
    }


def workers_document(workers: Sequence[Worker]) -> dict[str, Any]:
    """Returns a list of workers."""
    return {"workers": [worker_document(worker) for worker in workers]}


def group_document(group: GroupStatus) -> dict[str, Any]:
    """Returns a consumer group; `position` is None if it is one of another store."""
    return {
        "group": group.name,
        "position": None if group.position is None else int(group.position),
        "member": group.member,
        "lag_events": group.lag_events,
        "waiting_since": group.waiting_since and time_text(group.waiting_since),
    }


def groups_document(groups: Sequence[GroupStatus]) -> dict[str, Any]:
    """Returns a list of consumer groups."""
    return {"groups": [group_document(group) for group in groups]}


def check_document(report: Report) -> dict[str, Any]:
    """Returns what a check found."""
    return {"ok": report.ok, **to_builtins(report)}


def doctor_document(checks: Sequence[Struct], *, ok: bool) -> dict[str, Any]:
    """Returns what the doctor examined."""
    return {"ok": ok, "checks": to_builtins(checks)}


def copy_document(source: str, target: str, copied: Copied, digest: str) -> dict[str, Any]:
    """Returns what was copied, and the digest that both stores have."""
    return {"from": source, "to": target, **to_builtins(copied), "digest": digest}


def salvage_document(
    source: str, target: str, salvaged: Salvaged, rest: str | None, digest: str
) -> dict[str, Any]:
    """Returns what was taken over, what is lost or in doubt, and the file of what is left."""
    document: dict[str, Any] = to_builtins(salvaged)
    copied: dict[str, Any] = document.pop("copied")
    del copied["is_behind"]
    places = {"ok": salvaged.ok, "from": source, "to": target}
    return {**places, **copied, **document, "rest": rest, "digest": digest}


def advice_document(advice: Advice) -> dict[str, Any]:
    """Returns a recommended backend with its reasons."""
    return to_builtins(advice)


def selftest_document(report: SelftestReport) -> dict[str, Any]:
    """Returns what a selftest of a disk found."""
    checks = [
        {
            "check": each.check,
            "verdict": each.verdict,
            "found": each.found,
            "fix": each.fix,
            "numbers": each.numbers,
        }
        for each in report.checks
    ]
    return {
        "ok": report.ok,
        "verdict": report.verdict,
        "disk": report.disk,
        "seed": report.seed,
        "seconds": report.seconds,
        "checks": checks,
        "unproven": list(report.unproven),
    }


def demo_document(story: Story, *, seconds: float) -> dict[str, Any]:
    """Returns what the demo did and claimed, scene by scene."""
    scenes = to_builtins(story.scenes)
    return {"ok": story.is_true, "store": story.place, "scenes": scenes, "seconds": seconds}


def error_document(error: HoldfastError) -> dict[str, Any]:
    """Returns an error with its ids, such as `expected` and `actual` of a conflict."""
    ids = {
        name: value if isinstance(value, str | int | bool | None) else list(value)
        for name, value in vars(error).items()
        if name not in ("message", "hint") and not name.startswith("_")
    }
    return {
        "error": {
            "class": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            **ids,
        }
    }


def secrets_document(rules: Mapping[str, str]) -> dict[str, Any]:
    """Returns what is done about secrets, by pattern of scopes."""
    return {"secrets": dict(sorted(rules.items()))}


def architecture_document(kinds: Sequence[StateKind]) -> dict[str, Any]:
    """Returns every kind of state with what it is for."""
    return {"kinds": [to_builtins(kind) for kind in kinds]}


def touched_document(scope: str, ends: datetime) -> dict[str, Any]:
    """Returns when a scope that was touched ends."""
    return {"scope": scope, "expires_at": time_text(ends)}


def expiry_document(terms: Mapping[str, ExpiryPolicy]) -> dict[str, Any]:
    """Returns how long the scopes of levels last, by level."""
    return {
        "expiry": {
            level: {"ttl_s": term.ttl_s, "slides": term.slides}
            for level, term in sorted(terms.items())
        }
    }
