"""A server that speaks the OpenAI-compatible protocol, as an agent.

An answer is complete, or an error is raised: `finish_reason` says how the answer ended, and an
answer that was cut, withheld or refused does not count.

Apart from an answer, nothing that a server says is passed on. Its error messages may repeat what it
was sent, credentials included, and an error of an executor is stored with the run. Only the status
and codes that are known here are reported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from holdfast.agents.credentials import Endpoint, sendable
from holdfast.agents.protocol import (
    AgentError,
    Answer,
    Call,
    IncompleteAnswerError,
    NotSentError,
    Question,
    RefusedAnswerError,
    Usage,
    remembered,
)
from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.http_request import Budget, HttpRequest, Reply, RequestError

KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT_S = 600.0
ANSWER_BYTES_MAX = 32 << 20
HEADERS_BYTES_MAX = 1 << 20
REFUSED = frozenset((408, 425, 429, 503))
"""Statuses of a server that has not begun to answer, so that asking again is safe."""
_FINISHED = frozenset(("stop", "eos_token", "end_turn"))
"""The finish reasons of complete answers: that of the protocol, and two that servers use."""
_CUT = frozenset(("length", "max_tokens", "model_length"))
_WITHHELD = frozenset(("content_filter", "safety", "recitation", "refusal"))
_OTHERWISE = frozenset(("tool_calls", "function_call", "error", "abort", "cancelled"))
_CODES = frozenset(
    [
        "invalid_api_key",
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "model_not_found",
        "context_length_exceeded",
        "string_above_max_length",
        "rate_limit_exceeded",
        "rate_limit_error",
        "insufficient_quota",
        "billing_hard_limit_reached",
        "server_error",
        "api_error",
        "overloaded_error",
        "content_filter",
        "content_policy_violation",
        "unsupported_parameter",
        "unsupported_value",
        "invalid_value",
        "missing_required_parameter",
    ]
)
"""The codes of servers that are reported; any other code may contain what was sent."""
_ADVICE = {
    401: "is the key in {variable} the right one?",
    403: "is the key in {variable} the right one?",
    404: "are the URL and the name of the model right?",
}


class _Message(Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None


class _Tokens(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: _Tokens | None = None


class _Fault(Struct):
    code: str | int | None = None
    type: str | None = None


class _Refusal(Struct):
    error: _Fault


class _Said(Struct, frozen=True):
    """A complete answer of the server."""

    text: str
    model: str | None
    usage: Usage | None


class Chat:
    """An executor that asks a server: `POST <url>/chat/completions`.

    `models` maps the names that programs use to those of the server; "default" is used where a
    program names none. The key is read from an environment variable at each question. Neither the
    key nor a user, password or parameter of the URL is ever stored, and an answer that contains one
    is an error. The idempotency key of a call is sent as `Idempotency-Key`. `timeout_s` limits one
    question in all.
    """

    def __init__(
        self,
        url: str,
        *,
        models: Mapping[str, str],
        key_variable: str = KEY_VARIABLE,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, "/chat/completions")
        if not models:
            raise UsageError("a chat server is told a model: models is empty")
        self._name = f"the chat server {self._endpoint.shown}"
        self._models = dict(models)
        self._key_variable = key_variable
        self._timeout_s = timeout_s
        self._clock = clock

    def __repr__(self) -> str:
        return f"Chat({self._endpoint.shown!r})"

    def answer(self, call: Call, /) -> Answer:
        """Asks the server for one completion."""
        messages: list[dict[str, str]] = []
        if call.system:
            messages.append({"role": "system", "content": call.system})
        if call.memory:
            said = f"What was said before:\n{call.memory}"
            messages.append({"role": "system", "content": said})
        parts = [f"{name}:\n{text}" for name, text in call.context]
        messages.append({"role": "user", "content": "\n\n".join([*parts, call.prompt])})
        found = self._ask(call.model, messages, call.key)
        memory = remembered(call, found.text)
        return Answer(found.text, found.usage, memory, found.model or call.model)

    def decide(self, question: Question, /) -> str:
        """Asks the server for one of the options."""
        messages = [{"role": "user", "content": question.prompt}]
        return question.choose(self._ask(None, messages, question.key).text)

    def summarise(self, text: str, limit: int, /) -> str:
        """Asks the server for a shorter text, and cuts it if it is not short enough."""
        asked = f"Summarise this in at most {limit} characters:\n\n{text}"
        return self._ask(None, [{"role": "user", "content": asked}], "").text[:limit]

    def reword(self, text: str, /) -> str:
        """Asks the server to phrase what a program needs from a person as one question."""
        asked = f"Ask a person for this, in one short question and nothing else:\n\n{text}"
        return self._ask(None, [{"role": "user", "content": asked}], "").text

    def close(self) -> None:
        """Does nothing: no connection is kept between two questions."""

    def _ask(self, model: str | None, messages: list[dict[str, str]], key: str) -> _Said:
        found = self._outcome({"model": self._model(model), "messages": messages}, key)
        if isinstance(found, _Said):
            return found
        # Raised here, in a frame without the request or the reply. An exception keeps its causes
        # and the frames that it passed, and whoever prints or stores it could show a credential.
        raise found

    def _outcome(self, document: dict[str, Any], key: str) -> _Said | AgentError:
        budget = Budget(self._timeout_s, ANSWER_BYTES_MAX + HEADERS_BYTES_MAX, self._clock)
        try:
            request = self._request(json.dumps(document).encode(), key)
            said = self._said(request.perform(budget, ANSWER_BYTES_MAX))
        except RequestError as error:
            if error.was_sent:
                return AgentError(f"{self._name} gave no answer: {error}")
            return NotSentError(f"{self._name} cannot be reached: {error}")
        except AgentError as error:
            return error.with_traceback(None)
        if self._tells_credential(said):
            return AgentError(
                f"{self._name} sent back a credential that it was sent; nothing of its answer is "
                f"kept (looked for is what {self._key_variable} and the URL hold)"
            )
        return said

    def _key(self) -> str | None:
        return sendable(os.environ.get(self._key_variable, ""))

    def _request(self, data: bytes, key: str) -> HttpRequest:
        headers = {"Content-Type": "application/json", "User-Agent": "holdfast"}
        if key:
            # The path of a run may contain any character, but a header only some.
            headers["Idempotency-Key"] = quote(key, safe="".join(map(chr, range(0x20, 0x7F))))
        secret = self._key()
        if secret is None:
            raise NotSentError(
                f"{self._name} is not asked: the key in {self._key_variable} is no text that a "
                "header can hold, such as letters and digits in one line"
            )
        if authorization := self._endpoint.authorization(secret):
            headers["Authorization"] = authorization
        return HttpRequest(self._endpoint.url, headers, data)

    def _tells_credential(self, said: _Said) -> bool:
        texts = [said.text, said.model or ""]
        return any(self._endpoint.is_told_in(text, self._key() or "") for text in texts)

    def _refusal(self, reply: Reply) -> AgentError:
        try:
            phrase = f" {HTTPStatus(reply.status).phrase}"
        except ValueError:
            phrase = ""
        try:
            fault = msgspec.json.decode(reply.body, type=_Refusal).error
            codes = [code for code in (fault.code, fault.type) if code in _CODES]
        except ValueError:  # not JSON, or JSON of another form
            codes = []
        said = f"{self._name} answered {reply.status}{phrase}"
        if codes:
            said += f" ({', '.join(map(str, codes))})"
        if advice := _ADVICE.get(reply.status):
            said += f"; {advice.format(variable=self._key_variable)}"
        return (NotSentError if reply.status in REFUSED else AgentError)(said)

    def _said(self, reply: Reply) -> _Said:
        if reply.status != 200:
            raise self._refusal(reply)
        try:
            found = msgspec.json.decode(reply.body, type=_Completion)
        except ValueError:  # both errors quote the reply, so the error is raised outside
            found = None
        if found is None:
            raise AgentError(f"{self._name} answered what is no completion")
        if not found.choices:
            raise AgentError(f"{self._name} answered a completion without a choice")
        choice, tokens = found.choices[0], found.usage
        usage = None if tokens is None else Usage(tokens.prompt_tokens, tokens.completion_tokens)
        text = _whole(choice, self._name)
        return _Said(text, found.model, usage)

    def _model(self, name: str | None) -> str:
        found = self._models.get(name or "default")
        if found is None and name is None:
            found = next(iter(self._models.values()))
        if found is None:
            raise AgentError(
                f'no model of {self._name} is called "{name}": there are {", ".join(self._models)}'
            )
        return found


def _whole(choice: _Choice, name: str) -> str:
    """Returns the text of a complete answer, or raises the error that says why it is not one."""
    reason, message = (choice.finish_reason or "").casefold(), choice.message
    if message.refusal or reason in _WITHHELD:
        why = f" (finish_reason {reason})" if reason in _WITHHELD else ""
        raise RefusedAnswerError(f"{name} refused to answer{why}; ask otherwise, or another model")
    if reason in _CUT:
        raise IncompleteAnswerError(
            f"{name} cut its answer (finish_reason {reason}); ask for less at a time, or let the "
            "server answer at greater length"
        )
    if reason not in _FINISHED:
        found = reason if reason in _OTHERWISE else "one that is not known" if reason else "none"
        raise IncompleteAnswerError(
            f"{name} did not finish its answer: expected finish_reason stop, found {found}"
        )
    if message.content is None:
        raise IncompleteAnswerError(f"{name} finished an answer without a text")
    return message.content
