"""Executors by themselves: scripts, a real chat server, and the configuration that names one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import (
    AgentError,
    Answer,
    Call,
    Chat,
    Command,
    NotSentError,
    Question,
    Scripted,
    Usage,
    load_executor,
)
from holdfast.agents.config import parse_agents
from holdfast.agents.scripted import index_of
from holdfast.clock import SystemClock
from holdfast.errors import NotFoundError, UntrustedError, UsageError
from holdfast.record import trust


def question(text: str, kind: Any = "if", **how: Any) -> Question:
    return Question(text, kind, **how)


# --- scripts --------------------------------------------------------------------------------------


def test_without_a_rule_each_kind_has_its_default():
    script = Scripted({})
    assert script.answer(Call("hello")).text == "ok: hello"
    assert [script.decide(question("c", kind)) for kind in ("if", "until", "filter")] == ["yes"] * 3
    assert script.decide(question("c", "while")) == "no"
    assert script.decide(question("c", "choice", options=("left", "right"))) == "left"
    assert script.summarise("abcdef", 3) == "abc"


def test_the_first_rule_that_matches_counts(tmp_path: Path):
    path = tmp_path / "script.json"
    rules = {
        "sessions": [{"match": "^draft", "answer": "one"}, {"match": "draft", "answer": "two"}],
        "conditions": [{"match": "good", "answer": "no"}],
    }
    path.write_text(json.dumps(rules))
    script = Scripted(path)
    assert script.answer(Call("draft it")).text == "one"
    assert script.answer(Call("the draft")).text == "two"
    assert script.decide(question("is it good?")) == "no"


@pytest.mark.parametrize(
    ("place", "attempt", "index"),
    [
        ("session", 1, 0),
        ("session", 3, 2),
        ("session#2", 1, 1),
        ("session=x", 1, 0),
        ("session=x:2", 1, 1),
        ("session=x.3", 1, 2),
        ("session=x:2.3", 1, 3),
        ("repeat[4]/session", 1, 4),
        ("repeat[4]/session", 2, 5),
        ("each[7]/repeat[1]/session", 1, 1),
        ("parallel/a/session#2", 2, 2),
    ],
)
def test_an_answer_is_chosen_by_place_and_attempt_alone(place: str, attempt: int, index: int):
    assert index_of(place, attempt) == index


def test_a_list_gives_its_last_answer_from_its_end_on():
    script = Scripted({"sessions": [{"match": "x", "answer": ["a", {"fail": "b"}, "c"]}]})
    assert script.answer(Call("x", place="repeat[0]/session")).text == "a"
    with pytest.raises(AgentError, match="b"):
        script.answer(Call("x", place="repeat[1]/session"))
    assert script.answer(Call("x", place="repeat[9]/session")).text == "c"
    # Asked again at the same place it answers the same: nothing is counted.
    assert script.answer(Call("x", place="repeat[0]/session")).text == "a"


def test_a_failure_says_whether_it_was_sent():
    script = Scripted({"sessions": [{"match": "", "answer": {"fail": "no line", "sent": False}}]})
    with pytest.raises(NotSentError, match="no line"):
        script.answer(Call("x"))


def test_a_delay_is_slept():
    slept: list[float] = []

    class Clock(SystemClock):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    script = Scripted({"sessions": [{"match": "slow", "delay": 1.5}]}, clock=Clock())
    assert script.answer(Call("slow one")).text == "ok: slow one"
    assert slept == [1.5]


def test_memory_gathers_what_was_said():
    script = Scripted({})
    first = script.answer(Call("a"))
    second = script.answer(Call("b", memory=first.memory))
    assert second.memory == "asked: a\nanswered: ok: a\nasked: b\nanswered: ok: b"


@pytest.mark.parametrize(
    "text", ["{", '{"sessions": 1}', '{"sessions": [{"match": "("}]}', '{"other": []}']
)
def test_a_script_that_cannot_be_used_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"script\.json"):
        Scripted(path)
    with pytest.raises(NotFoundError):
        Scripted(tmp_path / "absent.json")


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "chosen"),
    [("Yes.", "yes"), ("**no**", "no"), ("True, because", "yes"), ("no: x", "no: x"), ("", "")],
)
def test_an_answer_is_read_as_an_option(said: str, chosen: str):
    assert question("c").choose(said) == chosen


def test_a_choice_takes_a_label_in_any_case():
    assert question("c", "choice", options=("Ship it", "Wait")).choose(" ship it ") == "Ship it"


# --- a chat server --------------------------------------------------------------------------------


class Model(BaseHTTPRequestHandler):
    """A server that speaks the protocol, as its `answers` say."""

    answers: list[tuple[int, Any]]
    asked: list[tuple[dict[str, str], Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(({k.lower(): v for k, v in self.headers.items()}, body))
        status, document = type(self).answers.pop(0)
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Model]]]:
    class Own(Model):
        pass

    Own.answers, Own.asked = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/v1", Own
        http.shutdown()
        thread.join()


@pytest.fixture
def chat(server: tuple[str, type[Model]]) -> Iterator[Chat]:
    chat = Chat(server[0], models={"default": "small", "opus": "large"}, key_variable="A_KEY")
    yield chat
    chat.close()


def completion(text: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "model": "large-1", "usage": usage}


def test_a_chat_server_is_asked_and_answers(
    chat: Chat, server: tuple[str, type[Model]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("A_KEY", "secret")
    model = server[1]
    model.answers.append((200, completion("fine")))
    call = Call("review it", "be brief", (("text", "abc"),), "opus", key="run/session")
    assert chat.answer(call) == Answer(
        "fine", Usage(3, 5), "asked: review it\nanswered: fine", "large-1"
    )
    [(headers, body)] = model.asked
    assert body["model"] == "large"
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "text:\nabc\n\nreview it"},
    ]
    assert headers["authorization"] == "Bearer secret"
    assert headers["idempotency-key"] == "run/session"


def test_a_chat_server_decides_and_summarises(chat: Chat, server: tuple[str, type[Model]]):
    server[1].answers += [(200, completion("No.")), (200, completion("shorter"))]
    assert chat.decide(question("is it done?")) == "no"
    assert chat.summarise("long", 5) == "short"
    assert [body["model"] for _, body in server[1].asked] == ["small", "small"]


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (429, {}, NotSentError),
        (503, {}, NotSentError),
        (500, {}, AgentError),
        (200, b"{", AgentError),
        (200, {"choices": []}, AgentError),
    ],
)
def test_what_a_chat_server_refuses_says_whether_it_was_sent(
    chat: Chat, server: tuple[str, type[Model]], status: int, document: Any, kind: type
):
    server[1].answers.append((status, document))
    with pytest.raises(AgentError) as found:
        chat.answer(Call("x"))
    assert type(found.value) is kind


def test_a_chat_server_that_is_not_there_was_not_sent_to():
    chat = Chat("http://127.0.0.1:9/v1", models={"default": "m"})
    with pytest.raises(NotSentError, match="cannot be reached"):
        chat.answer(Call("x"))
    chat.close()


def test_a_model_that_nobody_mapped_is_named(chat: Chat):
    with pytest.raises(AgentError, match='"haiku"'):
        chat.answer(Call("x", model="haiku"))


def test_a_chat_server_needs_a_url_and_a_model():
    with pytest.raises(UsageError, match="http"):
        Chat("ftp://x", models={"default": "m"})
    with pytest.raises(UsageError, match="models"):
        Chat("http://x", models={})


# --- the configuration ----------------------------------------------------------------------------

COMMAND = '[agents]\ncommand = ["claude", "-p"]\nmodels = {opus = ["--model", "opus"]}\n'
CHAT = '[agents]\nurl = "http://127.0.0.1:9/v1"\nmodels = {default = "small"}\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    tmp_path.chmod(0o700)
    return tmp_path / "holdfast.toml"


@pytest.mark.parametrize(("text", "kind"), [(COMMAND, Command), (CHAT, Chat)])
def test_a_configuration_counts_when_it_is_trusted(config: Path, text: str, kind: type):
    config.write_text(text)
    config.chmod(0o600)
    with pytest.raises(UntrustedError, match="agents"):
        load_executor(config)
    assert isinstance(load_executor(config, trust=True), kind)
    trust.add(trust.read_config(config))
    assert isinstance(load_executor(config), kind)
    config.write_text(f"{text}# changed\n")
    with pytest.raises(UntrustedError, match="has changed"):
        load_executor(config)


def test_the_words_of_a_model_come_from_the_configuration(config: Path):
    config.write_text(COMMAND)
    config.chmod(0o600)
    command = load_executor(config, trust=True)
    assert isinstance(command, Command)
    assert command.words_for(Call("x", model="opus")) == ["claude", "-p", "--model", "opus"]
    assert command.words_for(Call("x", model="; rm")) == ["claude", "-p"]
    assert command.words_for(question("x")) == ["claude", "-p"]


@pytest.mark.parametrize(
    "text",
    ["[agents]\n", '[agents]\ncommand = ["a"]\nurl = "http://x"\n', "[agents]\nother = 1\n"],
)
def test_a_configuration_that_says_too_little_or_too_much_is_refused(config: Path, text: str):
    config.write_text(text)
    config.chmod(0o600)
    with pytest.raises(UsageError, match=r"holdfast\.toml"):
        parse_agents(trust.read_config(config))


def test_a_configuration_without_agents_names_nobody(config: Path):
    config.write_text("")
    config.chmod(0o600)
    with pytest.raises(NotFoundError, match="agents"):
        load_executor(config)


@pytest.mark.parametrize("words", ["claude -p", [], [1], ["a\0b"]])
def test_a_command_is_a_list_of_words(words: Any):
    with pytest.raises(UsageError, match=r"words|text"):
        Command(words)
