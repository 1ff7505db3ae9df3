"""The questions to agents and their answers. Only data and a protocol: nothing here does I/O."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

SUMMARY_MAX = 2000
"""The default limit of a summary, in characters."""

Kind = Literal["if", "until", "while", "filter", "choice"]
"""Where a question is asked; an executor's default answer depends on it."""

YES, NO = "yes", "no"


class AgentError(Exception):
    """An agent could not answer, or its answer cannot be used. It may have acted or not."""


class NotSentError(AgentError):
    """The agent was never reached. Nothing was sent, so asking again is safe."""


class IncompleteAnswerError(AgentError):
    """An answer was not finished: it was cut at a length limit, or the agent stopped."""


class RefusedAnswerError(AgentError):
    """The agent refused to answer, or a filter withheld its answer."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """The tokens that an answer used, as far as the executor knows."""

    input: int | None = None
    output: int | None = None


class Call(Struct, frozen=True):
    """One session: what an agent is asked.

    `context` has names and texts, in reading order. `memory` is what the agent remembers of earlier
    sessions. `directory` is where it works, if given. `place`, `attempt` and `key` identify the
    call in its run: they are the same when it is repeated after a crash, and differ between
    iterations.
    """

    prompt: str
    system: str | None = None
    context: tuple[tuple[str, str], ...] = ()
    model: str | None = None
    agent: str | None = None
    memory: str | None = None
    skills: tuple[str, ...] = ()
    permissions: dict[str, Any] | None = None
    directory: str | None = None
    place: str = ""
    attempt: int = 1
    key: str = ""

    @property
    def text(self) -> str:
        """The whole call as one text, for an agent that takes only a prompt."""
        parts: list[str] = []
        if self.system:
            parts.append(self.system)
        if self.memory:
            parts.append(f"What was said before:\n{self.memory}")
        parts += [f"{name}:\n{text}" for name, text in self.context]
        parts.append(self.prompt)
        return "\n\n".join(parts)


class Answer(Struct, frozen=True):
    """An agent's answer; `memory` is given to the agent in its next session."""

    text: str
    usage: Usage | None = None
    memory: str | None = None
    model: str | None = None


class Question(Struct, frozen=True):
    """A decision for an agent: yes or no, or one of several options."""

    text: str
    kind: Kind = "if"
    options: tuple[str, ...] = (YES, NO)
    context: tuple[tuple[str, str], ...] = ()
    place: str = ""
    attempt: int = 1
    key: str = ""

    @property
    def prompt(self) -> str:
        """The question as one text."""
        parts = [f"{name}:\n{text}" for name, text in self.context]
        parts.append(self.text)
        listed = "\n".join(self.options)
        parts.append(f"Answer with exactly one of these and nothing else:\n{listed}")
        return "\n\n".join(parts)

    def choose(self, said: str) -> str:
        """Returns the option that an answer names, or the answer itself if it names none."""
        text = said.strip().strip("*_`\"'.").strip().casefold()
        for option in self.options:
            if text == option.casefold():
                return option
        if self.options == (YES, NO):
            first = text.replace(",", " ").replace(".", " ").split()[:1]
            if first in (["yes"], ["true"]):
                return YES
            if first in (["no"], ["false"]):
                return NO
        return said


class Executor(Protocol):
    """Answers for agents. Methods may be `async def` if only async runs use them.

    A method may be called again with the same `key` after a crash. It raises NotSentError if it
    knows that nothing was sent; after any other exception, the agent may have been reached.
    """

    def answer(self, call: Call, /) -> Any:
        """Returns the `Answer` of one session."""
        ...

    def decide(self, question: Question, /) -> Any:
        """Returns one of the question's options as text."""
        ...

    def summarise(self, text: str, limit: int, /) -> Any:
        """Returns a summary of a text, of at most `limit` characters."""
        ...


@runtime_checkable
class Rewording(Executor, Protocol):
    """An executor that also phrases questions to people, for `input` with a condition."""

    def reword(self, text: str, /) -> Any:
        """Returns the question to show to a person."""
        ...


def remembered(call: Call, answer: str) -> str:
    """Returns an agent's memory with one more exchange added."""
    said = f"asked: {call.prompt}\nanswered: {answer}"
    return f"{call.memory}\n{said}" if call.memory else said
