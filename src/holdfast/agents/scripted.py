"""Answers from a script: the same call always gets the same answer.

    {"sessions":   [{"match": "review", "answer": "fine"},
                    {"match": "draft", "answer": ["first try", "second try"], "delay": 0.5},
                    {"match": "pay", "answer": {"fail": "no money"}}],
     "conditions": [{"match": "good enough", "answer": ["no", "yes"]}]}

The first rule whose pattern is found in the prompt counts. A list is indexed by the place of the
call: its occurrence in its block, plus the number of the innermost iteration, plus the failed
attempts; past the end, the last item is used. Nothing is counted while a program runs, so answers
do not depend on crashes or on the order of branches. Without a rule, a session is answered
`ok: <prompt>`, a condition of `while` with no, any other with yes, and a choice with its first
option.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.agents.protocol import (
    NO,
    YES,
    AgentError,
    Answer,
    Call,
    NotSentError,
    Question,
    Usage,
    remembered,
)
from holdfast.clock import Clock, SystemClock
from holdfast.errors import NotFoundError, UsageError

_OCCURRENCE = re.compile(r"[#:.](\d+)(?=[.]|$)")
_ITERATION = re.compile(r"\[(\d+)\]")


class Failing(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer that is a failure; `sent` says whether the agent may have been reached."""

    fail: str
    sent: bool = True


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """The answers to prompts in which a pattern is found."""

    match: str
    answer: str | Failing | list[str | Failing] | UnsetType = UNSET
    delay: float = 0.0


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    sessions: list[Rule] = []
    conditions: list[Rule] = []


class Scripted:
    """An executor that answers from a script, given as a file or as its content."""

    def __init__(
        self, script: str | os.PathLike[str] | dict[str, Any], *, clock: Clock | None = None
    ) -> None:
        name, data = "the script", b""
        try:
            if isinstance(script, dict):
                read = msgspec.convert(script, Script)
            else:
                name = f'script "{os.fspath(script)}"'
                data = Path(script).read_bytes()
                read = msgspec.json.decode(data, type=Script)
            self._sessions = _compiled(read.sessions)
            self._conditions = _compiled(read.conditions)
        except FileNotFoundError as absent:
            raise NotFoundError(f'there is no script "{script}"') from absent
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error}") from error
        except (msgspec.DecodeError, re.error) as error:
            raise UsageError(
                f"{name} cannot be used: {error}",
                hint='it has lists "sessions" and "conditions" of {"match": regex, "answer": text}',
            ) from error
        self._clock = clock or SystemClock()

    def answer(self, call: Call, /) -> Answer:
        """Returns the script's answer to a call."""
        text = self._said(self._sessions, call.prompt, call.place, call.attempt)
        text = f"ok: {call.prompt}" if text is None else text
        usage = Usage(len(call.prompt), len(text))
        return Answer(text, usage, remembered(call, text), call.model)

    def decide(self, question: Question, /) -> str:
        """Returns the script's answer to a question."""
        said = self._said(self._conditions, question.text, question.place, question.attempt)
        if said is not None:
            return said
        if question.kind == "choice":
            return question.options[0]
        return NO if question.kind == "while" else YES

    def summarise(self, text: str, limit: int, /) -> str:
        """Returns the beginning of a text."""
        return text[:limit]

    def _said(self, rules: list[_CompiledRule], text: str, place: str, attempt: int) -> str | None:
        for pattern, answers, delay in rules:
            if pattern.search(text) is None:
                continue
            if delay:
                self._clock.sleep(delay)
            if not answers:
                return None
            found = answers[min(index_of(place, attempt), len(answers) - 1)]
            if isinstance(found, Failing):
                raise (AgentError if found.sent else NotSentError)(found.fail)
            return found
        return None


_CompiledRule = tuple[re.Pattern[str], list[str | Failing], float]


def _compiled(rules: list[Rule]) -> list[_CompiledRule]:
    found: list[_CompiledRule] = []
    for rule in rules:
        answers: list[str | Failing] = []
        if isinstance(rule.answer, list):
            answers = rule.answer
        elif rule.answer is not UNSET:
            answers = [rule.answer]
        found.append((re.compile(rule.match), answers, rule.delay))
    return found


def index_of(place: str, attempt: int) -> int:
    """Returns the index of the answer for a call, from its path in the journal and its attempt."""
    leaf = place.rpartition("/")[2]
    again = sum(int(number) - 1 for number in _OCCURRENCE.findall(leaf))
    iterations = _ITERATION.findall(place)
    return again + (int(iterations[-1]) if iterations else 0) + attempt - 1
