"""The journals that a program left, without what differs from one execution to the next.

Types, paths, ordinals, inputs, digests and values stay. Times, owners and epochs go, and so do
claims and suspensions: whether a message was there before a run asked for it is chance.
How far a child was when its parent's end stopped it is chance, too.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast import Store
from holdfast.runs.engine import Engine
from tests.runs.corpus_steps import Program
from tests.runs.cuts import ID

Line = tuple[str, dict[str, Any]]

_LEFT_OUT = {"run.claimed", "run.suspended", "run.cancelling"}
_BY_CHANCE = {"now", "random", "uuid", "let"}


def lines(store: Store, program: Program) -> dict[str, list[Line]]:
    """Returns the journal of each run that the program made and saw to its end."""
    found: dict[str, list[Line]] = {}
    for stream in store._log._backend.streams(prefix="run/"):
        ended = store._kernel.part(Engine).ended(stream.removeprefix("run/"))
        if stream == f"run/{ID}" or (ended is not None and ended.status != "cancelled"):
            records = [one for one in store._log.records(stream) if one.type not in _LEFT_OUT]
            read = [(one.type, _data(program, json.loads(one.payload))) for one in records]
            found[stream] = _ordered(program, _without_losers(read))
    return found


def _without_losers(read: list[Line]) -> list[Line]:
    """Leaves out branches that a decided join did not wait for: how far they came is chance."""
    joins: dict[str, list[str]] = {}
    for type, data in read:
        path = str(data.get("path", ""))
        if path.rpartition("/")[2].startswith("parallel"):
            if type == "run.failed":
                joins[path] = []
            elif type == "run.done" and isinstance(data.get("value"), list):
                joins[path] = list(data["value"])
    return [
        line
        for line in read
        if all(
            not str(line[1].get("path", "")).startswith(f"{join}/")
            or str(line[1]["path"]).removeprefix(f"{join}/").partition("/")[0] in winners
            for join, winners in joins.items()
        )
    ]


def _data(program: Program, data: dict[str, Any]) -> dict[str, Any]:
    for name in ("due", "retry_at"):
        if name in data:
            data[name] = "some time"
    kind, leaf = data.get("kind"), data.get("path", "").rpartition("/")[2]
    if program.order == "path" and "taken" in data:
        data["taken"] = len(data["taken"])  # which of two answers came first
    if program.by_chance:
        data.pop("ordinal", None)
        if kind in _BY_CHANCE:
            data["value"] = data["digest"] = "by chance"
    if kind == "inbox":
        data["value"] = [message["value"] for message in data["value"]]
    if leaf.startswith("parallel") and "error" in data:
        data["error"].pop("traceback", None)  # which of two branches failed first
    if leaf.startswith("parallel") and isinstance(data.get("value"), list):
        data["value"] = sorted(data["value"])  # the order in which branches ended
    return data


def _ordered(program: Program, found: list[Line]) -> list[Line]:
    if program.order == "journal":
        return found
    # Branches are written as they come: the order counts within one path alone.
    return sorted(found, key=lambda line: line[1].get("path", ""))
