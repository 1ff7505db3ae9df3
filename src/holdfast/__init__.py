"""Durable, inspectable state for AI agents."""

from holdfast.changes import Change
from holdfast.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    ExistsError,
    FormatError,
    HoldfastError,
    LeaseLostError,
    NotFoundError,
    UnavailableError,
    UsageError,
    ValueDomainError,
)
from holdfast.event import Checkpoint, Event
from holdfast.scope import Scope
from holdfast.states import ConversationState, GlobalState, State, TeamState, WorkflowState
from holdfast.store import Store
from holdfast.store import open_store as open
from holdfast.tree import MISSING

__version__ = "0.1.0"

__all__ = [
    "MISSING",
    "Change",
    "Checkpoint",
    "ClosedError",
    "ConflictError",
    "ConversationState",
    "CorruptError",
    "Event",
    "ExistsError",
    "FormatError",
    "GlobalState",
    "HoldfastError",
    "LeaseLostError",
    "NotFoundError",
    "Scope",
    "State",
    "Store",
    "TeamState",
    "UnavailableError",
    "UsageError",
    "ValueDomainError",
    "WorkflowState",
    "open",
]
