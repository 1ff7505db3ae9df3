"""What an agent is asked and answers. Data and a protocol only: nothing here does I/O."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

SUMMARY_MAX = 2000
"""How long a summary may be if nobody says."""

Kind = Literal["if", "until", "while", "filter", "choice"]
"""Where a question is asked: what it means when nothing is known differs."""

YES, NO = "yes", "no"


class AgentError(Exception):
    """An agent could not answer, or its answer cannot be used. What it did is unknown."""


class NotSentError(AgentError):
    """The agent was never reached: nothing was sent, so that asking again repeats nothing."""


class IncompleteAnswerError(AgentError):
    """An answer was begun and not finished: it was cut at a length, or the agent broke off."""


class RefusedAnswerError(AgentError):
    """The agent refused to answer, or a filter withheld what it answered."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """What an answer cost, in tokens, as far as the executor was told."""

    input: int | None = None
    output: int | None = None


class Call(Struct, frozen=True):
    """One session: what an agent is asked.

    `context` has names and texts in the order in which they are to be read. `memory` is what the
    agent remembers of earlier sessions. `directory` is where it works, if that is said. `place`,
    `attempt` and `key` say which call of a run it is: the same again after a crash, and another for
    another iteration.
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
        """All of it as one text, for an agent that reads nothing else."""
        parts: list[str] = []
        if self.system:
            parts.append(self.system)
        if self.memory:
            parts.append(f"What was said before:\n{self.memory}")
        parts += [f"{name}:\n{text}" for name, text in self.context]
        parts.append(self.prompt)
        return "\n\n".join(parts)


class Answer(Struct, frozen=True):
    """What an agent answered; `memory` is what it is to be given the next time."""

    text: str
    usage: Usage | None = None
    memory: str | None = None
    model: str | None = None


class Question(Struct, frozen=True):
    """A decision that an agent is asked for: yes or no, or one of several options."""

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
        """Returns the option that an answer names; the answer itself if it names none."""
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
    """Whoever answers for agents. Methods may be `async def` if only async runs use them.

    A method may be called again with the same `key` after a crash. One that knows that nothing was
    sent raises NotSentError; any other exception leaves open whether the agent was reached.
    """

    def answer(self, call: Call, /) -> Any:
        """Returns the `Answer` of one session."""
        ...

    def decide(self, question: Question, /) -> Any:
        """Returns one of the question's options as text."""
        ...

    def summarise(self, text: str, limit: int, /) -> Any:
        """Returns a shorter text, of at most `limit` characters."""
        ...


@runtime_checkable
class Rewording(Executor, Protocol):
    """An executor that also words questions to people; `input` with a condition asks it."""

    def reword(self, text: str, /) -> Any:
        """Returns a question to a person, as it is to be shown."""
        ...


def remembered(call: Call, answer: str) -> str:
    """Returns an agent's memory with one more exchange in it."""
    said = f"asked: {call.prompt}\nanswered: {answer}"
    return f"{call.memory}\n{said}" if call.memory else said
