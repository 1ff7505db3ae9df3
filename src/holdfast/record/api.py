"""The names of `holdfast.record`, imported together when the first is asked for."""

from holdfast.record.audit import Audit, AuditItem, Comparison
from holdfast.record.context import Stale
from holdfast.record.difference import Difference, MessageChange, Restored, TaskChange
from holdfast.record.history_repair import repair
from holdfast.record.memory import Memory, MemoryItem, MemorySection
from holdfast.record.message_events import FileChange
from holdfast.record.messages import Messages
from holdfast.record.typed_items import read_as
from holdfast.record.verifier_commands import load_verifiers

__all__ = [
    "Audit",
    "AuditItem",
    "Comparison",
    "Difference",
    "FileChange",
    "Memory",
    "MemoryItem",
    "MemorySection",
    "MessageChange",
    "Messages",
    "Restored",
    "Stale",
    "TaskChange",
    "load_verifiers",
    "read_as",
    "repair",
]
