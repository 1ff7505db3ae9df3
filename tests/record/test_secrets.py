"""No secret reaches a store that redacts: state, record and runs, on every backend (T19)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Context, Settings, Store, interchange
from holdfast.cli import main
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.log import Log
from holdfast.errors import SecretError
from holdfast.secrets import SecretWarning
from tests.record.stores import new_url

CANARY = "ghp_" + "Zq7Kx2" * 6
MARK = "[redacted:github-token]"


@holdfast.event("secrets_test_seen")
@dataclass
class Seen:
    """An event of this module's own."""

    what: str


@holdfast.step(effect="pure")
def say(given: str) -> str:
    """A step that returns what it is given."""
    return f"step of {given}"


@holdfast.run
def echo(ctx: Context, given: str) -> str:
    """A run whose input, step and output hold what it is given."""
    return ctx.step(say, given) + given


@holdfast.run
def fail(ctx: Context, given: str) -> str:
    """A run that fails with what it is given in the message."""
    raise ValueError(f"cannot use {given}")


def write_all(hf: Store) -> None:
    """Writes a secret into every kind of field."""
    chat = hf.conversation("a")
    chat.set("token", CANARY)
    chat.update({"deep": {"er": [CANARY]}, "large": "x" * 70_000 + f" {CANARY}"})
    chat.messages.add("user", f"my token is {CANARY}")
    chat.messages.add("tool", "y" * 70_000 + f" {CANARY}")
    chat.tasks.add(f"rotate {CANARY}")
    chat.facts.state("token", CANARY, about=f"of {CANARY}")
    with chat.decide(f"use {CANARY}", because=CANARY) as decision:
        decision.outcome(f"used {CANARY}")
    chat.record(Seen, {"what": CANARY})
    with hf.commit() as tx:
        tx.scope(chat).set("joint", CANARY)
        tx.scope(chat).messages.add("user", CANARY)
    chat.fork("b").set("more", CANARY)
    hf.runs.start(echo, CANARY, id="echo").result()
    with pytest.raises(holdfast.RunFailedError):
        hf.runs.start(fail, CANARY, id="fail").result()


def payloads(hf: Store) -> Iterator[bytes]:
    """Yields everything that the store holds: events, and what they refer to."""
    log = hf._log
    for record in log.read_all(after=0, limit=10_000):  # pyright: ignore[reportArgumentType]
        yield record.payload
        yield " ".join(filter(None, (record.key, record.checkpoint, record.meta))).encode()
    for name in log.blobs.names():
        yield log._backend.objects.get("blob", name) or b""
    for mark in log.find_marks():
        yield f"{mark.key} {mark.group}".encode()


def find_canary(hf: Store, tmp_path: Path) -> list[str]:
    """Returns where the secret is stored: in what the backend hands out, and in its files."""
    found = ["an event"] * sum(CANARY.encode() in payload for payload in payloads(hf))
    for path in tmp_path.rglob("*"):
        if path.is_file() and CANARY.encode() in path.read_bytes():
            found.append(str(path))
    return found


def test_no_secret_reaches_the_store(url: str, tmp_path: Path) -> None:
    with holdfast.open(url, settings=Settings(secrets="redact")) as hf:
        write_all(hf)
        hf.query(text="token")
        assert find_canary(hf, tmp_path) == []
        chat = hf.conversation("a")
        assert chat["token"] == MARK
        assert chat["large"].endswith(f" {MARK}")
        assert {MARK in task.title for task in chat.tasks.list()} == {True}
        assert chat.facts.get("token").value == MARK
        assert hf.check().ok
    assert [str(path) for path in tmp_path.rglob("*") if path.is_file()
            and CANARY.encode() in path.read_bytes()] == []  # fmt: skip


def test_what_is_handed_out_is_what_is_stored(url: str) -> None:
    with holdfast.open(url, settings=Settings(secrets="redact")) as hf:
        chat = hf.conversation("a")
        assert chat.messages.add("user", CANARY).text == MARK
        assert chat.record(Seen, {"what": CANARY}).raw == {"what": MARK}
        assert chat.tasks.add(CANARY).title == MARK
        assert chat.decide(CANARY, key="d").stored.decision == MARK
        assert [task.title for task in chat.tasks.list()] == [MARK]


def test_a_run_that_is_resumed_does_the_same_again(durable: str, tmp_path: Path) -> None:
    """What a body is given is what is stored: its steps have the same inputs after a crash."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url, settings=Settings(secrets="redact")) as hf:
        first = hf.runs.start(echo, CANARY, id="echo").result()
    with holdfast.open(url, settings=Settings(secrets="redact")) as hf:
        assert hf.runs.resume("echo").result() == first.replace(CANARY, MARK)


def test_the_scan_catches_a_redactor_that_comes_after_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: a commit is written first, and looked through then."""
    real = Log.commit

    def late(self: Log, proposed: ProposedCommit) -> CommitResult:
        redactor, self.redactor = self.redactor, None
        try:
            result = real(self, proposed)
        finally:
            self.redactor = redactor
        if redactor is not None:
            redactor.cleaned(proposed)
        return result

    monkeypatch.setattr(Log, "commit", late)
    with holdfast.open(str(tmp_path / "store"), settings=Settings(secrets="redact")) as hf:
        hf.conversation("a").set("token", CANARY)
        assert find_canary(hf, tmp_path)


def test_another_process_heeds_what_the_store_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "store")
    with holdfast.open(url) as hf:
        hf.secrets.guard("refuse", scope="team/*")
    for words, code in (
        (["set", "team/red", "token", CANARY], 2),
        (["secrets", "redact", "--scope", "conversation/*"], 0),
        (["set", "conversation/a", "token", CANARY], 0),
        (["secrets", "rot13"], 2),
    ):
        assert main([*words, "--store", url]) == code
    assert CANARY not in capsys.readouterr().err
    assert main(["secrets", "--json", "--store", url]) == 0
    said: Any = json.loads(capsys.readouterr().out)
    assert said == {"secrets": {"conversation/*": "redact", "team/*": "refuse"}}
    with holdfast.open(url) as hf:
        assert hf.conversation("a")["token"] == MARK
        assert hf.team("red").revision == 0


@pytest.mark.parametrize("value", [CANARY, "x" * 70_000 + f" {CANARY}"], ids=["small", "large"])
@pytest.mark.parametrize("mode", ["redact", "refuse"])
def test_a_file_with_secrets_is_not_imported(tmp_path: Path, mode: Any, value: str) -> None:
    """It cannot be redacted, because its events are linked by their bytes: nothing is written."""
    with holdfast.open(tmp_path / "theirs", keys=tmp_path / "keys") as hf:
        hf.team("red").set("token", value)
        hf.team("blue").set("n", 1)
        hf.team("blue").set("mail", "x" * 70_000, subject="ada")
        with open(tmp_path / "red", "wb") as file:
            interchange.export_scopes(hf, ["team/red", "team/blue"], file)
        with open(tmp_path / "blue", "wb") as file:
            interchange.export_scopes(hf, ["team/blue"], file)
    with holdfast.open(tmp_path / "ours", settings=Settings(secrets={"team/*": mode})) as hf:
        with pytest.raises(SecretError, match="what an import has") as raised:
            interchange.import_scopes(hf, tmp_path / "red")
        assert CANARY not in str(raised.value)
        assert hf.scopes("team") == []
        interchange.import_scopes(hf, tmp_path / "blue")
        assert hf.team("blue").get("n") == 1
    with (
        holdfast.open(tmp_path / "warned", settings=Settings(secrets="warn")) as hf,
        pytest.warns(SecretWarning, match="what an import has"),
    ):
        interchange.import_scopes(hf, tmp_path / "red")
    with holdfast.open(
        tmp_path / "off", settings=Settings(secrets={"team/*": "off", "*": "refuse"})
    ) as hf:
        interchange.import_scopes(hf, tmp_path / "red")
        assert hf.team("red").get("token") == value
