"""A program as an agent: it reads the prompt on its standard input and prints its answer.

This module only says what to run. A run executes it as a process step (`ctx.process`), so that the
process ends with the run, and its arguments and input are in the journal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import cast

from holdfast.agents.protocol import Answer, Call, Question, remembered
from holdfast.errors import UsageError, show_value


class Command:
    """An executor that runs a program without a shell, such as `claude -p` or `codex exec`.

    `decide` is another command for decisions; without it the same command is used. `models` has
    arguments to add for a model, such as {"opus": ["--model", "opus"]}: a name in a program never
    becomes an argument by itself. The environment variables HOLDFAST_MODEL and HOLDFAST_AGENT name
    the model and the agent. The command runs in the directory that a call names, else in `cwd`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        decide: Sequence[str] | None = None,
        models: Mapping[str, Sequence[str]] | None = None,
        timeout: float | str | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._argv = _words(argv, "a command")
        self._decide = self._argv if decide is None else _words(decide, "the command of decide")
        self._models = {
            name: _words(words, f'the words of model "{name}"')
            for name, words in (models or {}).items()
        }
        self.timeout = timeout
        self.cwd = None if cwd is None else os.fspath(cwd)

    def words_for(self, asked: Call | Question) -> list[str]:
        """Returns the command line for a call or a question."""
        if isinstance(asked, Question):
            return self._decide
        return [*self._argv, *self._models.get(asked.model or "", ())]

    def input_for(self, asked: Call | Question) -> str:
        """Returns the text for the standard input of the process."""
        return asked.prompt if isinstance(asked, Question) else asked.text

    def directory_for(self, asked: Call | Question) -> str | None:
        """Returns the directory to run in; None for the current one."""
        named = None if isinstance(asked, Question) else asked.directory
        return self.cwd if named is None else named

    def environment_for(self, asked: Call | Question) -> dict[str, str]:
        """Returns the environment variables to add for the process."""
        if isinstance(asked, Question):
            return {}
        told = {"HOLDFAST_MODEL": asked.model, "HOLDFAST_AGENT": asked.agent}
        return {name: value for name, value in told.items() if value}

    def answer_of(self, call: Call, printed: str) -> Answer:
        """Returns the output of the process as an answer."""
        text = printed.removesuffix("\n")
        return Answer(text, None, remembered(call, text), call.model)

    def summary_of(self, text: str, limit: int) -> Call:
        """Returns the call that asks for a summary of a text."""
        return Call(f"Summarise this in at most {limit} characters:\n\n{text}")


def _words(words: object, what: str) -> list[str]:
    if isinstance(words, str | bytes) or not isinstance(words, Sequence) or not words:
        raise UsageError(
            f"{what} is a list of words, found {show_value(cast('object', words))}",
            hint='["claude", "-p"]: no shell reads it',
        )
    found: list[str] = []
    for word in cast("Sequence[object]", words):
        if not isinstance(word, str) or "\0" in word:
            raise UsageError(f"{what} holds text without a zero byte, found {show_value(word)}")
        found.append(word)
    return found
