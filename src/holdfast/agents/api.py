"""The names of `holdfast.agents`, imported together when the first is asked for."""

from holdfast.agents.chat import Chat
from holdfast.agents.command import Command
from holdfast.agents.config import load_executor
from holdfast.agents.protocol import (
    AgentError,
    Answer,
    Call,
    Executor,
    IncompleteAnswerError,
    NotSentError,
    Question,
    RefusedAnswerError,
    Usage,
)
from holdfast.agents.scripted import Scripted

__all__ = [
    "AgentError",
    "Answer",
    "Call",
    "Chat",
    "Command",
    "Executor",
    "IncompleteAnswerError",
    "NotSentError",
    "Question",
    "RefusedAnswerError",
    "Scripted",
    "Usage",
    "load_executor",
]
