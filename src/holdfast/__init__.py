"""Durable, inspectable state for AI agents."""

from logging import NullHandler as _NullHandler
from logging import getLogger as _getLogger

from holdfast.contrib.task_lifetimes import job
from holdfast.core.consumers import Delivery, Group
from holdfast.core.event import Change, Checkpoint, Event
from holdfast.core.intent import Done, NotDone, Recovered, Recovery, Unknown, act, verifier
from holdfast.core.leases import Worker
from holdfast.core.tree import MISSING
from holdfast.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    ExistsError,
    FormatError,
    HoldfastError,
    LeaseLostError,
    LostCommitsError,
    NeedsAttentionError,
    NotFoundError,
    OtherStoreError,
    RunCancelledError,
    RunFailedError,
    StepError,
    StillRunningError,
    UnavailableError,
    UndecidedError,
    UsageError,
    ValueDomainError,
)
from holdfast.record.audit import Audit
from holdfast.record.context import Stale
from holdfast.record.decisions import Decision, Link, UndecidedWarning
from holdfast.record.facts import Contradicted, Fact, Holds
from holdfast.record.message_events import FileChange, Message
from holdfast.record.repair import repair
from holdfast.record.sessions import Session
from holdfast.record.task_events import Task
from holdfast.record.verifier_commands import load_verifiers
from holdfast.runs import Context, Outcome, Output, Progress, Retry, Run, run, step
from holdfast.scope import ConversationState, GlobalState, Scope, State, TeamState, WorkflowState
from holdfast.store import Store
from holdfast.store import open_store as open

__version__ = "0.1.0"

# A program that does not configure logging sees nothing of ours on its standard error.
_getLogger("holdfast").addHandler(_NullHandler())

__all__ = [
    "MISSING",
    "Audit",
    "Change",
    "Checkpoint",
    "ClosedError",
    "ConflictError",
    "Context",
    "Contradicted",
    "ConversationState",
    "CorruptError",
    "Decision",
    "Delivery",
    "Done",
    "Event",
    "ExistsError",
    "Fact",
    "FileChange",
    "FormatError",
    "GlobalState",
    "Group",
    "HoldfastError",
    "Holds",
    "LeaseLostError",
    "Link",
    "LostCommitsError",
    "Message",
    "NeedsAttentionError",
    "NotDone",
    "NotFoundError",
    "OtherStoreError",
    "Outcome",
    "Output",
    "Progress",
    "Recovered",
    "Recovery",
    "Retry",
    "Run",
    "RunCancelledError",
    "RunFailedError",
    "Scope",
    "Session",
    "Stale",
    "State",
    "StepError",
    "StillRunningError",
    "Store",
    "Task",
    "TeamState",
    "UnavailableError",
    "UndecidedError",
    "UndecidedWarning",
    "Unknown",
    "UsageError",
    "ValueDomainError",
    "Worker",
    "WorkflowState",
    "act",
    "job",
    "load_verifiers",
    "open",
    "repair",
    "run",
    "step",
    "verifier",
]
