"""Durable, inspectable state for AI agents."""

from logging import NullHandler as _NullHandler
from logging import getLogger as _getLogger
from typing import TYPE_CHECKING as _TYPE_CHECKING

from holdfast.lazy import lazily as _lazily

if _TYPE_CHECKING:
    from holdfast.core.arguments import parse_path as path
    from holdfast.core.codec import ERASED
    from holdfast.core.draft import Draft
    from holdfast.core.event import Change, Event
    from holdfast.core.intent import Done, NotDone, Unknown, act, verifier
    from holdfast.core.own_event import event
    from holdfast.core.provenance import provenance
    from holdfast.core.schema import downgrade, schema, upgrade
    from holdfast.core.tree import MISSING, List, Map
    from holdfast.errors import (
        ClosedError,
        ConflictError,
        CorruptError,
        ErasedError,
        ExistsError,
        HoldfastError,
        LeaseLostError,
        LimitError,
        NeedsAttentionError,
        NotFoundError,
        RunFailedError,
        SchemaError,
        StepError,
        UnavailableError,
        UsageError,
    )
    from holdfast.nodes.context import NodeContext
    from holdfast.nodes.define import Graph, node, rule
    from holdfast.opening import open_store as open
    from holdfast.projections.define import projection
    from holdfast.query.paths import index
    from holdfast.record.decisions import Decision
    from holdfast.record.facts import Contradicted, Holds
    from holdfast.record.message_events import Message
    from holdfast.record.task_events import Task
    from holdfast.runs.ambient import current
    from holdfast.runs.context import Context
    from holdfast.runs.define import Retry, run, step
    from holdfast.runs.engine import Run
    from holdfast.runs.steps import StepContext
    from holdfast.scope import ConversationScope, GlobalScope, Scope, TeamScope, WorkflowScope
    from holdfast.settings import Settings
    from holdfast.store import Store

__version__ = "0.1.0"

# Without this handler, Python prints our warnings to the standard error of programs that do not
# configure logging.
_getLogger("holdfast").addHandler(_NullHandler())

_HOMES = {
    "path": "holdfast.core.arguments:parse_path",
    "ERASED": "holdfast.core.codec",
    "Draft": "holdfast.core.draft",
    "Change": "holdfast.core.event",
    "Event": "holdfast.core.event",
    "Done": "holdfast.core.intent",
    "NotDone": "holdfast.core.intent",
    "Unknown": "holdfast.core.intent",
    "act": "holdfast.core.intent",
    "verifier": "holdfast.core.intent",
    "event": "holdfast.core.own_event",
    "provenance": "holdfast.core.provenance",
    "downgrade": "holdfast.core.schema",
    "schema": "holdfast.core.schema",
    "upgrade": "holdfast.core.schema",
    "MISSING": "holdfast.core.tree",
    "List": "holdfast.core.tree",
    "Map": "holdfast.core.tree",
    "ClosedError": "holdfast.errors",
    "ConflictError": "holdfast.errors",
    "CorruptError": "holdfast.errors",
    "ErasedError": "holdfast.errors",
    "ExistsError": "holdfast.errors",
    "HoldfastError": "holdfast.errors",
    "LeaseLostError": "holdfast.errors",
    "LimitError": "holdfast.errors",
    "NeedsAttentionError": "holdfast.errors",
    "NotFoundError": "holdfast.errors",
    "RunFailedError": "holdfast.errors",
    "SchemaError": "holdfast.errors",
    "StepError": "holdfast.errors",
    "UnavailableError": "holdfast.errors",
    "UsageError": "holdfast.errors",
    "NodeContext": "holdfast.nodes.context",
    "Graph": "holdfast.nodes.define",
    "node": "holdfast.nodes.define",
    "rule": "holdfast.nodes.define",
    "open": "holdfast.opening:open_store",
    "projection": "holdfast.projections.define",
    "index": "holdfast.query.paths",
    "Decision": "holdfast.record.decisions",
    "Contradicted": "holdfast.record.facts",
    "Holds": "holdfast.record.facts",
    "Message": "holdfast.record.message_events",
    "Task": "holdfast.record.task_events",
    "current": "holdfast.runs.ambient",
    "Context": "holdfast.runs.context",
    "Retry": "holdfast.runs.define",
    "run": "holdfast.runs.define",
    "step": "holdfast.runs.define",
    "Run": "holdfast.runs.engine",
    "StepContext": "holdfast.runs.steps",
    "ConversationScope": "holdfast.scope",
    "GlobalScope": "holdfast.scope",
    "Scope": "holdfast.scope",
    "TeamScope": "holdfast.scope",
    "WorkflowScope": "holdfast.scope",
    "Settings": "holdfast.settings",
    "Store": "holdfast.store",
}
"""The module from which each name is imported at its first use."""

_find = _lazily(__name__, _HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        from holdfast.renamed import not_here

        if (moved := not_here(name)) is not None:
            raise moved
    return _find(name)


__all__ = [
    "ERASED",
    "MISSING",
    "Change",
    "ClosedError",
    "ConflictError",
    "Context",
    "Contradicted",
    "ConversationScope",
    "CorruptError",
    "Decision",
    "Done",
    "Draft",
    "ErasedError",
    "Event",
    "ExistsError",
    "GlobalScope",
    "Graph",
    "HoldfastError",
    "Holds",
    "LeaseLostError",
    "LimitError",
    "List",
    "Map",
    "Message",
    "NeedsAttentionError",
    "NodeContext",
    "NotDone",
    "NotFoundError",
    "Retry",
    "Run",
    "RunFailedError",
    "SchemaError",
    "Scope",
    "Settings",
    "StepContext",
    "StepError",
    "Store",
    "Task",
    "TeamScope",
    "UnavailableError",
    "Unknown",
    "UsageError",
    "WorkflowScope",
    "act",
    "current",
    "downgrade",
    "event",
    "index",
    "node",
    "open",
    "path",
    "projection",
    "provenance",
    "rule",
    "run",
    "schema",
    "step",
    "upgrade",
    "verifier",
]


def __dir__() -> list[str]:
    return [*__all__]
