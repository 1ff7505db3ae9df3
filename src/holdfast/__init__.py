"""Durable, inspectable state for AI agents."""

from logging import NullHandler as _NullHandler
from logging import getLogger as _getLogger

from holdfast.backends.protocol import Held, Lease, Mark, Position
from holdfast.context.parts import LeftOut, PromptContext, PromptPart
from holdfast.contrib.task_lifetimes import job
from holdfast.core.arguments import parse_path as path
from holdfast.core.check import Report
from holdfast.core.codec import ERASED
from holdfast.core.commit import CommitResult
from holdfast.core.consumers import Delivery, Group, GroupStatus
from holdfast.core.dispatcher import Subscriber
from holdfast.core.draft import Draft
from holdfast.core.encryption import KeyStatus
from holdfast.core.event import Change, Checkpoint, Event
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.intent import Done, NotDone, Recovered, Recovery, Unknown, act, verifier
from holdfast.core.key_ring import KeyringKeys
from holdfast.core.key_tables import TableKeys
from holdfast.core.keystore import CommandKeys, FolderKeys, KeyStore, SubjectKey
from holdfast.core.leases import HeldLease, Worker
from holdfast.core.limits import DiskWatch, Quota
from holdfast.core.meta import Meta
from holdfast.core.migrate import Migration, Outdated
from holdfast.core.observe import Observed, Observer
from holdfast.core.own_event import OwnEvent, event
from holdfast.core.page import Page
from holdfast.core.past import StateAt
from holdfast.core.provenance import provenance
from holdfast.core.redaction import SecretWarning
from holdfast.core.retention import Binned, Hold, LetGo, Retained, Retention
from holdfast.core.schema import downgrade, schema, upgrade
from holdfast.core.shape import Misfit
from holdfast.core.store_key import StoreKey
from holdfast.core.transaction import PendingCommit, PendingScope, View
from holdfast.core.tree import MISSING, List, Map
from holdfast.erasure import ErasedScope, ErasureReceipt, Subject
from holdfast.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    ErasedError,
    ExistsError,
    ExpiredError,
    FilesTakenError,
    FormatError,
    GitError,
    HeldError,
    HoldfastError,
    KeyMissingError,
    LeaseLostError,
    LetGoError,
    LimitError,
    LostCommitsError,
    NeedsAttentionError,
    NewerSchemaError,
    NodeError,
    NotFoundError,
    OtherStoreError,
    ProgramError,
    ProjectionError,
    RunCancelledError,
    RunFailedError,
    SchemaError,
    SecretError,
    StepError,
    StillRunningError,
    StoreKeyError,
    UnavailableError,
    UndecidedError,
    UntrustedError,
    UpgradeError,
    UsageError,
    ValueDomainError,
)
from holdfast.joint_commit import JointCommit, JointScope
from holdfast.nodes import (
    Applied,
    Artifact,
    Cause,
    Conflict,
    Graph,
    Node,
    NodeContext,
    NodeState,
    Plan,
    Planned,
    Resolved,
    StoredNode,
    Walk,
    Why,
    node,
    rule,
)
from holdfast.projections import Projected, Projection, projection
from holdfast.query.form import Hit, Hits, Rows, Where
from holdfast.query.links import DanglingLink
from holdfast.query.paths import StateIndex, index
from holdfast.query.questions import IndexStatus
from holdfast.query.vectors import Embedder, Similar
from holdfast.record.audit import Audit, AuditItem, Comparison
from holdfast.record.catches import Catch
from holdfast.record.context import Stale
from holdfast.record.decisions import Decision, Link, OpenDecision, Policy, UndecidedWarning
from holdfast.record.difference import Difference, MessageChange, Restored, TaskChange
from holdfast.record.facts import Contradicted, Fact, Facts, Holds
from holdfast.record.memory import Memory, MemoryItem, MemorySection
from holdfast.record.message_events import FileChange, Message
from holdfast.record.messages import Messages
from holdfast.record.read_as import read_as
from holdfast.record.repair import repair
from holdfast.record.retention_policies import RetentionPolicy
from holdfast.record.sessions import OpenTurn, Session
from holdfast.record.task_events import Task
from holdfast.record.tasks import Tasks
from holdfast.record.verifier_commands import load_verifiers
from holdfast.runs import (
    Context,
    Current,
    Outcome,
    Output,
    Progress,
    Retry,
    Run,
    StepContext,
    current,
    run,
    step,
)
from holdfast.runs.admin import RunSummary
from holdfast.scope import (
    AsyncState,
    ConversationScope,
    ConversationState,
    Edit,
    GlobalScope,
    GlobalState,
    Recalled,
    Scope,
    State,
    TeamScope,
    TeamState,
    WorkflowScope,
    WorkflowState,
    json_default,
)
from holdfast.scratch import ScratchScope
from holdfast.store import Store
from holdfast.store import open_store as open
from holdfast.tenants import NewTenant, Tenant, TenantReceipt, Tenants
from holdfast.thumbprint import register_thumb, thumb
from holdfast.undo import Dependent, NotTakenBack, TakenBack, Undone

__version__ = "0.1.0"

# A program that does not configure logging sees nothing of ours on its standard error.
_getLogger("holdfast").addHandler(_NullHandler())

__all__ = [
    "ERASED",
    "MISSING",
    "Applied",
    "Artifact",
    "AsyncState",
    "Audit",
    "AuditItem",
    "Binned",
    "Catch",
    "Cause",
    "Change",
    "Checkpoint",
    "ClosedError",
    "CommandKeys",
    "CommitResult",
    "Comparison",
    "Conflict",
    "ConflictError",
    "Context",
    "Contradicted",
    "ConversationScope",
    "ConversationState",
    "CorruptError",
    "Current",
    "DanglingLink",
    "Decision",
    "Delivery",
    "Dependent",
    "Difference",
    "DiskWatch",
    "Done",
    "Draft",
    "Edit",
    "Embedder",
    "ErasedError",
    "ErasedScope",
    "ErasureReceipt",
    "Event",
    "ExistsError",
    "ExpiredError",
    "ExpiryPolicy",
    "Fact",
    "Facts",
    "FileChange",
    "FilesTakenError",
    "FolderKeys",
    "FormatError",
    "GitError",
    "GlobalScope",
    "GlobalState",
    "Graph",
    "Group",
    "GroupStatus",
    "Held",
    "HeldError",
    "HeldLease",
    "Hit",
    "Hits",
    "Hold",
    "HoldfastError",
    "Holds",
    "IndexStatus",
    "JointCommit",
    "JointScope",
    "KeyMissingError",
    "KeyStatus",
    "KeyStore",
    "KeyringKeys",
    "Lease",
    "LeaseLostError",
    "LeftOut",
    "LetGo",
    "LetGoError",
    "LimitError",
    "Link",
    "List",
    "LostCommitsError",
    "Map",
    "Mark",
    "Memory",
    "MemoryItem",
    "MemorySection",
    "Message",
    "MessageChange",
    "Messages",
    "Meta",
    "Migration",
    "Misfit",
    "NeedsAttentionError",
    "NewTenant",
    "NewerSchemaError",
    "Node",
    "NodeContext",
    "NodeError",
    "NodeState",
    "NotDone",
    "NotFoundError",
    "NotTakenBack",
    "Observed",
    "Observer",
    "OpenDecision",
    "OpenTurn",
    "OtherStoreError",
    "Outcome",
    "Outdated",
    "Output",
    "OwnEvent",
    "Page",
    "PendingCommit",
    "PendingScope",
    "Plan",
    "Planned",
    "Policy",
    "Position",
    "ProgramError",
    "Progress",
    "Projected",
    "Projection",
    "ProjectionError",
    "PromptContext",
    "PromptPart",
    "Quota",
    "Recalled",
    "Recovered",
    "Recovery",
    "Report",
    "Resolved",
    "Restored",
    "Retained",
    "Retention",
    "RetentionPolicy",
    "Retry",
    "Rows",
    "Run",
    "RunCancelledError",
    "RunFailedError",
    "RunSummary",
    "SchemaError",
    "Scope",
    "ScratchScope",
    "SecretError",
    "SecretWarning",
    "Session",
    "Similar",
    "Stale",
    "State",
    "StateAt",
    "StateIndex",
    "StepContext",
    "StepError",
    "StillRunningError",
    "Store",
    "StoreKey",
    "StoreKeyError",
    "StoredNode",
    "Subject",
    "SubjectKey",
    "Subscriber",
    "TableKeys",
    "TakenBack",
    "Task",
    "TaskChange",
    "Tasks",
    "TeamScope",
    "TeamState",
    "Tenant",
    "TenantReceipt",
    "Tenants",
    "UnavailableError",
    "UndecidedError",
    "UndecidedWarning",
    "Undone",
    "Unknown",
    "UntrustedError",
    "UpgradeError",
    "UsageError",
    "ValueDomainError",
    "View",
    "Walk",
    "Where",
    "Why",
    "Worker",
    "WorkflowScope",
    "WorkflowState",
    "act",
    "current",
    "downgrade",
    "event",
    "index",
    "job",
    "json_default",
    "load_verifiers",
    "node",
    "open",
    "path",
    "projection",
    "provenance",
    "read_as",
    "register_thumb",
    "repair",
    "rule",
    "run",
    "schema",
    "step",
    "thumb",
    "upgrade",
    "verifier",
]
