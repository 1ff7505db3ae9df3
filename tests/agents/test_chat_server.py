"""A chat server that misbehaves: an answer is whole or an error, and tells no credential."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

import holdfast
from holdfast import NeedsAttentionError, RunFailedError, StepError
from holdfast.agents import (
    AgentError,
    Answer,
    Call,
    Chat,
    IncompleteAnswerError,
    NotSentError,
    Question,
    RefusedAnswerError,
    load_executor,
)
from holdfast.agents import chat as chat_module
from holdfast.clock import SystemClock
from holdfast.errors import UntrustedError, UsageError
from tests.canaries import Canaries
from tests.misbehaving import Behaviour, Misbehaving, answering, for_ever, misbehaving

MODELS = {"default": "small"}


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


def completion(text: Any = "fine", reason: Any = "stop", **message: Any) -> dict[str, Any]:
    said = {"content": text, **message}
    return {"choices": [{"message": said, "finish_reason": reason}], "model": "small-1"}


def sent(*parts: bytes) -> Behaviour:
    def behave(connection: socket.socket, request: bytes) -> None:
        for part in parts:
            connection.sendall(part)

    return behave


def documents(document: Any) -> Behaviour:
    return sent(answering("200 OK", json.dumps(document).encode()))


def chat_with(server: Misbehaving, **how: Any) -> Chat:
    return Chat(f"http://127.0.0.1:{server.port}/v1", models=MODELS, key_variable="A_KEY", **how)


# --- complete, or an error by name ----------------------------------------------------------------

ENDS: list[tuple[dict[str, Any], type[AgentError], str]] = [
    (completion("half of i", "length"), IncompleteAnswerError, "finish_reason length"),
    (completion("half of i", "max_tokens"), IncompleteAnswerError, "finish_reason max_tokens"),
    (completion("", "content_filter"), RefusedAnswerError, "content_filter"),
    (completion("", "SAFETY"), RefusedAnswerError, "safety"),
    (completion(None, "stop", refusal="I will not"), RefusedAnswerError, "refused"),
    (completion("x", "stop", refusal="I will not"), RefusedAnswerError, "refused"),
    (completion(None, "tool_calls"), IncompleteAnswerError, "found tool_calls"),
    (completion("half", "error"), IncompleteAnswerError, "found error"),
    (completion("half", "else"), IncompleteAnswerError, "one that is not known"),
    (completion("half", None), IncompleteAnswerError, "found none"),
    (completion(None), IncompleteAnswerError, "without a text"),
    ({"choices": [{"message": {"content": "x"}}]}, IncompleteAnswerError, "found none"),
    (completion([{"type": "text", "text": "x"}]), AgentError, "no completion"),
    ({"error": {"message": "no"}}, AgentError, "no completion"),
]


@pytest.mark.parametrize(("document", "kind", "said"), ENDS)
def test_an_answer_is_whole_or_an_error(
    server: Misbehaving, document: dict[str, Any], kind: type[AgentError], said: str
):
    server.behaviour = documents(document)
    chat = chat_with(server)
    for ask in (
        lambda: chat.answer(Call("x")),
        lambda: chat.decide(Question("good?")),
        lambda: chat.summarise("long", 3),
        lambda: chat.reword("what?"),
    ):
        with pytest.raises(AgentError, match=said) as found:
            ask()
        assert type(found.value) is kind


@pytest.mark.parametrize("reason", ["stop", "eos_token", "end_turn"])
def test_an_answer_that_is_whole_is_one_also_if_it_is_empty(server: Misbehaving, reason: str):
    server.behaviour = documents(completion("", reason))
    assert chat_with(server).answer(Call("x")) == Answer(
        "", None, "asked: x\nanswered: ", "small-1"
    )


@holdfast.run(name="chat-asking")
def asking(ctx: Any, effect: str) -> str:
    return ctx.session("hello", effect=effect).text


def test_an_answer_that_was_cut_fails_the_session_by_name(server: Misbehaving):
    server.behaviour = documents(completion("half of i", "length"))
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(chat_with(server))
        run = hf.runs.start(asking, "idempotent")
        with pytest.raises(RunFailedError) as found:
            run.result()
        assert isinstance(found.value.__cause__, StepError)
        assert found.value.__cause__.kind == "IncompleteAnswerError"
        assert "half of i" not in str(run.journal.entries)


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{",),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n',),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFF\r\n{",),
        (b"HTTP/1.1 200 OK\r\nContent-Le",),
        (b"",),
        (b"\x00\x01\x02",),
        (answering("200 OK", b'{"choices": [{"message": {"content": "\xff"}}]}'),),
        (answering("200 OK", json.dumps(completion("\ud800")).encode()),),
        (answering("307 Temporary Redirect", b"", "Location: /elsewhere"),),
        (answering("204 No Content", b""),),
    ],
)
def test_what_is_no_answer_is_an_agent_error(server: Misbehaving, parts: tuple[bytes, ...]):
    server.behaviour = sent(*parts)
    with pytest.raises(AgentError) as found:
        chat_with(server).answer(Call("x"))
    assert type(found.value) is AgentError, "it was sent"
    assert len(server.asked) == 1, "nothing is asked again, or elsewhere"


def test_codes_of_servers_that_are_known_are_passed_on(server: Misbehaving):
    fault = {"message": "the model `x` does not exist", "code": "model_not_found", "type": "other"}
    server.behaviour = sent(answering("404 Gone", json.dumps({"error": fault}).encode()))
    with pytest.raises(AgentError, match=r"404 Not Found \(model_not_found\); .*name of the model"):
        chat_with(server).answer(Call("x"))


def test_a_question_of_any_text_and_key_can_be_asked(server: Misbehaving):
    """Output of tools has lone surrogates; the path of a run has any characters."""
    server.behaviour = documents(completion())
    assert chat_with(server).answer(Call("\ud800 ü", key="run/größe/a%41")).text == "fine"
    [request] = server.asked
    assert b"\r\nidempotency-key: run/gr%c3%b6%c3%9fe/a%41\r\n" in request.lower()


# --- limits on the whole --------------------------------------------------------------------------


class Ticking(SystemClock):
    """A clock that goes on by a second each time that somebody looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def boot_us(self) -> int:
        self.looks += 1
        return self.looks * 1_000_000


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"b"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    ],
)
def test_a_server_that_trickles_for_ever_is_left(server: Misbehaving, before: bytes, again: bytes):
    server.behaviour = for_ever(before, again)
    clock = Ticking()
    with pytest.raises(AgentError):
        chat_with(server, timeout_s=20, clock=clock).answer(Call("x"))
    assert clock.looks <= 22, "each look is a second, and there are twenty"


def test_a_server_that_says_nothing_is_left_after_the_time_that_was_given(server: Misbehaving):
    server.behaviour = lambda connection, request: [*iter(lambda: connection.recv(9), b"")] and None
    with pytest.raises(AgentError, match=r"longer than 0\.05 s in all"):
        chat_with(server, timeout_s=0.05).answer(Call("x"))


def test_an_answer_without_an_end_is_left(server: Misbehaving, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_module, "ANSWER_BYTES_MAX", 1 << 16)
    server.behaviour = for_ever(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 4096)
    with pytest.raises(AgentError, match="too large"):
        chat_with(server).answer(Call("x"))


# --- credentials ----------------------------------------------------------------------------------

CANARIES = Canaries(31)
KEY, PASSWORD, PARAMETER = (CANARIES.new(field) for field in ("key", "password", "parameter"))


def percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(one):04x}" for one in text)


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper": str.upper,
    "percent": percent,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64-1": lambda text: base64.b64encode(b"a" + text.encode()).decode(),
    "base64-2": lambda text: base64.urlsafe_b64encode(b"ab" + text.encode() + b"c").decode(),
    "hex": lambda text: text.encode().hex(),
    "markup": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "escapes": escaped,
    "marked-up": escape,
}


def echoes() -> dict[str, Behaviour]:
    """Ways in which a server sends back what it was sent, by name."""

    def told(make: Callable[[str], bytes]) -> Behaviour:
        def behave(connection: socket.socket, request: bytes) -> None:
            for one in (KEY, PASSWORD, PARAMETER):
                if one.encode() in request:
                    break
            else:
                one = PASSWORD  # sent as base64 of the user and the password
            connection.sendall(make(one))

        return behave

    def of_document(make: Callable[[str], Any]) -> Behaviour:
        return told(lambda one: answering("200 OK", json.dumps(make(one)).encode()))

    ways: dict[str, Behaviour] = {
        "itself": lambda connection, request: connection.sendall(request),
        "400": lambda connection, request: connection.sendall(answering("400 Bad", request)),
        "429": lambda connection, request: connection.sendall(answering("429 Busy", request)),
        "200": lambda connection, request: connection.sendall(answering("200 OK", request)),
        "no UTF-8": told(lambda one: answering("200 OK", b'{"a":"' + one.encode() + b'\xff"}')),
        "cut": told(lambda one: answering("200 OK", one.encode() * 9)[:-5]),
        "reason": told(lambda one: answering(f"401 {one}", b"")),
        "status": told(lambda one: f"HTTP/1.1 {one} OK\r\n\r\n".encode()),
        "header": told(lambda one: f"HTTP/1.1 200 OK\r\n{one}\r\n\r\n".encode()),
        "headers": told(lambda one: answering("500 No", b"", f"X-{one}: {one}")),
        "length": told(lambda one: f"HTTP/1.1 200 OK\r\nContent-Length: {one}\r\n\r\n".encode()),
        "chunk": told(
            lambda one: f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{one}\r\n".encode()
        ),
        "redirect": told(lambda one: answering("307 On", b"", f"Location: /?key={one}")),
        "far": told(lambda one: answering("302 On", b"", f"Location: http://{one}.invalid/")),
        "code": told(
            lambda one: answering("400 Bad", json.dumps({"error": {"code": one}}).encode())
        ),
        "finish": of_document(lambda one: completion("x", one)),
        "refusal": of_document(lambda one: completion(None, "stop", refusal=one)),
        "model": of_document(lambda one: {**completion(), "model": one}),
        "type": of_document(lambda one: completion({one: one})),
    }
    for name, form in FORMS.items():
        ways[f"answer, {name}"] = of_document(lambda one, form=form: completion(f"it: {form(one)}"))
    return ways


def shown(error: BaseException) -> Iterator[str]:
    """Yields all that an error shows, with whatever it was caused by or came during."""
    yield "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    waiting: list[BaseException | None] = [error]
    known: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in known:
            known.add(id(one))
            yield f"{one!s} {one!r} {one.args!r} {vars(one)!r}"
            waiting += (one.__cause__, one.__context__)


def ask_of(server: Misbehaving, where: str) -> Chat:
    """Returns who is asked, with credentials in the key, in the URL, or in its query."""
    at = f"127.0.0.1:{server.port}/v1"
    url = {
        "key": f"http://{at}",
        "password": f"http://ada:{PASSWORD}@{at}",
        "query": f"http://{at}?api-version=2026-01-01&api-key={PARAMETER}",
    }[where]
    return Chat(url, models=MODELS, key_variable="A_KEY" if where == "key" else "NO_KEY")


def told_by(hf: holdfast.Store, chat: Chat, effect: str) -> str:
    """Returns all that a session shows whose server misbehaves; it must not succeed."""
    hf.runs.use_executor(chat)
    run = hf.runs.start(asking, effect)
    with pytest.raises((RunFailedError, NeedsAttentionError)) as found:
        run.result()
    return "\n".join([*shown(found.value), str(run.journal), repr(chat)])


@pytest.mark.parametrize(
    ("scheme", "where"),
    [("files", "key"), ("files", "password"), ("files", "query"), ("sqlite", "key")],
)
def test_no_credential_is_stored_logged_or_shown(
    server: Misbehaving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    scheme: str,
    where: str,
):
    """Whatever `secrets` says, and however the server sends back what it was sent."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("A_KEY", KEY)
    store = tmp_path / "store"
    told: dict[str, str] = {}
    with holdfast.open(f"sqlite:{store}.db" if scheme == "sqlite" else str(store)) as hf:
        for name, server.behaviour in echoes().items():
            for effect in ("idempotent", "effect"):
                told[f"{name}, {effect}"] = told_by(hf, ask_of(server, where), effect)
    assert KEY.encode() in b"".join(server.asked) or where != "key", "it was sent"
    for name, text in told.items():
        assert not seen(text.encode("utf-8", "replace")), name
    assert not seen(caplog.text.encode())
    assert not seen("".join(capfd.readouterr()).encode())
    assert CANARIES.found_below(tmp_path) == {}


def seen(data: bytes) -> set[str]:
    return CANARIES.found_in(data) | CANARIES.found_in(unquote_to_bytes(data))


def test_the_search_finds_what_an_answer_may_hold():
    """The search of these tests is not the one that is tested, and it finds every form."""
    for name, form in FORMS.items():
        if name != "markup":
            assert seen(f"it: {form(KEY)}".encode()) == {"key"}, name


@pytest.mark.parametrize(
    ("more", "said"),
    [("\r\nX: y", "one line"), ("ü", "letters and digits"), ("\ud800", "letters")],
)
def test_a_key_that_no_header_holds_is_not_sent_and_not_shown(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch, more: str, said: str
):
    monkeypatch.setattr(os, "environ", {**os.environ, "A_KEY": f"{KEY}{more}"})
    with pytest.raises(NotSentError, match=f"A_KEY.*{said}") as found:
        chat_with(server).answer(Call("x"))
    assert not seen("".join(shown(found.value)).encode("utf-8", "replace"))
    assert server.asked == []


def test_a_line_end_after_a_key_is_not_part_of_it(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("A_KEY", f"{KEY}\n")
    server.behaviour = documents(completion())
    assert chat_with(server).answer(Call("x")).text == "fine"
    assert f"Bearer {KEY}\r\n".encode() in server.asked[0]


def test_the_url_is_asked_with_all_that_it_says(server: Misbehaving):
    server.behaviour = documents(completion())
    url = f"http://a%40b:{PASSWORD}%2F@127.0.0.1:{server.port}/v1/?api-version=1&api-key=%2Fä"
    assert Chat(url, models=MODELS, key_variable="NO_KEY").answer(Call("x")).text == "fine"
    [request] = server.asked
    assert request.startswith(
        b"POST /v1/chat/completions?api-version=1&api-key=%2F%C3%A4 HTTP/1.1\r\n"
    )
    basic = base64.b64encode(f"a@b:{PASSWORD}/".encode())
    assert b"Authorization: Basic " + basic + b"\r\n" in request


def test_a_word_that_stands_for_no_key_may_be_in_an_answer(
    server: Misbehaving, monkeypatch: pytest.MonkeyPatch
):
    server.behaviour = documents(completion("the list is EMPTY, it is true"))
    for secret in ("EMPTY", "no", ""):
        monkeypatch.setenv("A_KEY", secret)
        assert chat_with(server).answer(Call("x")).text.endswith("true")


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://ada:{PASSWORD}@x",
        f"http://ada:{PASSWORD}@x:no",
        f"http://ada:{PASSWORD}@",
        f"http://ada:12/{PASSWORD}@x",
        f"http://ada:{PASSWORD}\n@x",
        f"http://[{PASSWORD}",
        f"{PASSWORD}",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_not_shown(url: str):
    with pytest.raises(UsageError, match="http") as found:
        Chat(url, models=MODELS)
    assert not seen(str(found.value).encode())
    assert found.value.__cause__ is None
    assert found.value.__context__ is None


def test_what_a_file_would_ask_is_shown_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    tmp_path.chmod(0o700)
    config = tmp_path / "holdfast.toml"
    config.write_text(
        f'[agents]\nurl = "https://ada:{PASSWORD}@models.example/v1?key={PARAMETER}"\n'
    )
    config.chmod(0o600)
    with pytest.raises(UntrustedError, match=r"https://…@models\.example/v1\?…") as found:
        load_executor(config)
    assert not seen(str(found.value).encode())
