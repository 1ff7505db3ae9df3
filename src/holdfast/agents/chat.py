"""A server that speaks the OpenAI-compatible protocol as an agent (extra `agents`: httpx)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from holdfast.agents.protocol import (
    AgentError,
    Answer,
    Call,
    NotSentError,
    Question,
    Usage,
    remembered,
)
from holdfast.errors import UsageError, show_value

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT_S = 600.0
REFUSED = frozenset((408, 425, 429, 503))
"""What a server answers that has not begun: too busy, too many requests."""
SHOWN_MAX = 300


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class _Tokens(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: _Tokens | None = None


class Chat:
    """An executor that asks a server: `POST <url>/chat/completions`.

    `models` maps the names that programs use to those of the server; "default" is asked for where
    a program names none. The key is read from an environment variable when it is needed, and is
    stored nowhere. The idempotency key of a call is sent as `Idempotency-Key`.
    """

    def __init__(
        self,
        url: str,
        *,
        models: Mapping[str, str],
        key_variable: str = KEY_VARIABLE,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"a chat server has a URL of http or https, found {show_value(url)}")
        if not models:
            raise UsageError("a chat server is told a model: models is empty")
        self._url = url.rstrip("/")
        self._models = dict(models)
        self._key_variable = key_variable
        self._timeout_s = timeout_s
        self._client: httpx.Client | None = None

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
        text = found.choices[0].message.content or ""
        tokens = found.usage
        usage = None if tokens is None else Usage(tokens.prompt_tokens, tokens.completion_tokens)
        return Answer(text, usage, remembered(call, text), found.model or call.model)

    def decide(self, question: Question, /) -> str:
        """Asks the server for one of the options."""
        messages = [{"role": "user", "content": question.prompt}]
        found = self._ask(None, messages, question.key)
        return question.choose(found.choices[0].message.content or "")

    def summarise(self, text: str, limit: int, /) -> str:
        """Asks the server for a shorter text, and cuts it if it is not short enough."""
        asked = f"Summarise this in at most {limit} characters:\n\n{text}"
        found = self._ask(None, [{"role": "user", "content": asked}], "")
        return (found.choices[0].message.content or "")[:limit]

    def reword(self, text: str, /) -> str:
        """Asks the server to word what a program wants of a person as one question."""
        asked = f"Ask a person for this, in one short question and nothing else:\n\n{text}"
        found = self._ask(None, [{"role": "user", "content": asked}], "")
        return found.choices[0].message.content or ""

    def close(self) -> None:
        """Closes the connections to the server."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, model: str | None, messages: list[dict[str, str]], key: str) -> _Completion:
        httpx = _load()
        client = self._client
        if client is None:
            client = self._client = httpx.Client(timeout=self._timeout_s)
        headers = {"Idempotency-Key": key} if key else {}
        secret = os.environ.get(self._key_variable)
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        document = {"model": self._model(model), "messages": messages}
        try:
            response = client.post(f"{self._url}/chat/completions", json=document, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotSentError(f"{self._url} cannot be reached: {error}") from error
        except httpx.HTTPError as error:
            raise AgentError(f"{self._url} did not answer: {error}") from error
        if response.status_code != 200:
            kind = NotSentError if response.status_code in REFUSED else AgentError
            raise kind(f"{self._url} answered {response.status_code}: {response.text[:SHOWN_MAX]}")
        return _read(response.content, self._url)

    def _model(self, name: str | None) -> str:
        found = self._models.get(name or "default")
        if found is None and name is None:
            found = next(iter(self._models.values()))
        if found is None:
            raise AgentError(
                f'no model of {self._url} is called "{name}": there are {", ".join(self._models)}'
            )
        return found


def _read(data: bytes, url: str) -> _Completion:
    try:
        found = msgspec.json.decode(data, type=_Completion)
    except msgspec.DecodeError as error:
        raise AgentError(f"{url} answered what is no completion: {error}") from error
    if not found.choices:
        raise AgentError(f"{url} answered a completion without a choice")
    return found


def _load() -> Any:
    try:
        import httpx
    except ModuleNotFoundError as absent:
        raise UsageError(
            "asking a chat server needs httpx", hint="pip install 'holdfast[agents]'"
        ) from absent
    return httpx
