"""Secrets are found by their shapes and names, and little else is: row T19."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any, cast

import pytest

import holdfast
from holdfast import Settings, UsageError
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.redaction import Redactor, check_rules, stricter
from holdfast.core.secrets import KINDS, Secret, _apart, find_secrets, redacted
from holdfast.errors import SecretError
from holdfast.record.secret_rules import SecretRules
from holdfast.secrets import SecretWarning
from tests.secret_texts import CREDENTIALS, credentials, ordinary, secret_part

AROUND = ("{}", "the value is {} and so on", "a\n{}\nb", "'{}'", '{{"x": "{}"}}', "({})", "\t{}")


def clean(text: bytes) -> bytes:
    return redacted(text, find_secrets(text))


def test_every_kind_that_can_be_found_is_made_up_here() -> None:
    assert set(CREDENTIALS) == set(KINDS)
    assert len(KINDS) >= 30


def test_at_least_99_percent_of_credentials_are_found() -> None:
    """T19: 300 and more made-up credentials of 30 and more kinds, in values of every form."""
    rng, missed, total = random.Random(19), [], 0
    for kind, text in credentials(rng, 12):
        for around in rng.sample(AROUND, 2):
            stored = json.dumps(["set", "note", around.format(text)]).encode()
            kept = clean(stored)
            json.loads(kept)
            total += 1
            if json.dumps(secret_part(kind, text))[1:-1].encode() in kept:
                missed.append(stored)
    assert total >= 300
    assert len(missed) <= total / 100, missed[:5]


def test_less_than_one_ordinary_text_in_a_thousand_is_taken_for_one() -> None:
    rng = random.Random(20)
    texts = [json.dumps({"content": ordinary(rng)}).encode() for _ in range(10_000)]
    wrong = [text for text in texts if find_secrets(text)]
    assert len(wrong) < 10, wrong[:3]


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ({"password": "hunter2x"}, True),
        ({"password": "correct"}, False),
        ({"password": "12345678"}, False),
        ({"db": {"PASSWORD": "Tr0ub4dor"}}, True),
        ({"api_key": "${API_KEY}"}, False),
        ({"api_key": "your-api-key-goes-here-1"}, False),
        ({"api_key": "a1b2c3d4e5f6g7h8"}, True),
        ({"key": "a1b2c3d4e5f6g7h8"}, False),
        ({"next_page_token": "a1b2c3d4e5f6g7h8"}, False),
        ({"access_token": "a1b2c3d4e5f6g7h8"}, True),
        ({"token": "aaaaaaaaaaaa1"}, False),
        ({"secret": "only-words-in-here"}, False),
        ({"total_tokens": 123456789}, False),
        ({"text": "-----BEGIN PRIVATE KEY-----\nMIIabc"}, True),
        ({"text": "sig=" + "Ab1" * 20}, True),
        ({"text": 'say \\"password: x9y8z7w6\\"'}, True),
        (["set", ["config", "password"], "x9y8z7w6"], True),
        ({"url": "https://user:${PASSWORD}@example.com"}, False),
        ({"digest": "sha256:" + "0f" * 32}, False),
    ],
)
def test_names_and_stand_ins(value: Any, is_one: bool) -> None:
    stored = json.dumps(value).encode()
    assert bool(find_secrets(stored)) is is_one
    json.loads(clean(stored))


def test_two_that_overlap_are_one() -> None:
    token = "ghp_" + "aB3" * 12
    stored = json.dumps({"token": token, "more": f"password={token}x&"}).encode()
    found = find_secrets(stored)
    assert token.encode() not in redacted(stored, found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert _apart([Secret(3, 9, "b"), Secret(0, 5, "a"), Secret(1, 2, "c")]) == [Secret(0, 9, "a")]
    assert (
        redacted(b"abcdef", [Secret(1, 3, "k"), Secret(4, 5, "k")])
        == b"a[redacted:k]d[redacted:k]f"
    )


# --- what is done about them ----------------------------------------------------------------------

TOKEN = "ghp_" + "aB3dE5" * 6


def test_the_longest_pattern_that_fits_counts() -> None:
    redactor = Redactor({"*": "warn", "team/*": "redact", "team/red": "off"})
    modes = [redactor.mode_of(name) for name in ("team/red", "team/blue", "run/a", "team/red")]
    assert modes == ["off", "redact", "warn", "off"]
    assert Redactor({"team/*": "warn"}).mode_of("global") == "off"
    for number in range(5000):
        assert redactor.mode_of(f"run/{number}") == "warn"
    assert stricter({"a": "refuse", "b": "warn"}, {"a": "warn", "b": "redact", "c": "off"}) == {
        "a": "refuse",
        "b": "redact",
        "c": "off",
    }


@pytest.mark.parametrize("given", ["rot13", {"": "warn"}, {7: "warn"}, {"*": None}, None])
def test_what_is_no_mode_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="off, warn, redact or refuse"):
        check_rules(given)
    with pytest.raises(UsageError):
        holdfast.open("memory:", settings=Settings(secrets=given))


def test_what_is_redacted_is_what_the_state_has_too() -> None:
    with holdfast.open("memory:", settings=Settings(secrets="redact")) as hf:
        team = hf.team("red")
        team.set("token", TOKEN)
        team.update({"a": {"b": [1, TOKEN]}, "c": 2})
        with hf.commit() as tx:
            tx.scope(team).set("late", TOKEN, if_absent=True)
            tx.scope(team).increment("n")
        assert team.state.to_dict() == {
            "token": "[redacted:github-token]",
            "a": {"b": [1, "[redacted:github-token]"]},
            "c": 2,
            "late": "[redacted:github-token]",
            "n": 1,
        }
        assert hf.check().ok
        team.restore(1)
        team.undo()
        assert team["c"] == 2


def test_a_repetition_with_a_key_is_known() -> None:
    with holdfast.open("memory:", settings=Settings(secrets="redact")) as hf:
        assert hf.team("red").set("token", TOKEN, key="k") == 1
        assert hf.team("red").set("token", TOKEN, key="k") == 1
        for _ in range(2):
            with hf.commit(waits=False, key="s") as tx:
                tx.scope(hf.team("blue")).set("token", TOKEN)
            tx.wait()
        assert hf.team("blue").revision == 1


def test_refused_means_that_nothing_is_written() -> None:
    with holdfast.open("memory:", settings=Settings(secrets={"team/*": "refuse"})) as hf:
        with pytest.raises(SecretError, match="github-token") as refused:
            hf.team("red").set("token", TOKEN)
        assert TOKEN not in str(refused.value)
        assert (refused.value.stream, refused.value.kinds) == ("team/red", ("github-token",))
        assert hf.team("red").revision == 0
        hf.conversation("a").set("token", TOKEN)
        with pytest.raises(SecretError):
            hf.team("red").set("large", TOKEN + " " * 100_000)
        with pytest.raises(SecretError, match="a name"):
            hf.team("red").set("a", 1, key=TOKEN)
        with pytest.raises(SecretError, match="a name"):
            hf.team("red").checkpoint(TOKEN)
        assert hf.team("red").revision == 0


def test_warned_means_that_it_is_written() -> None:
    with holdfast.open("memory:", settings=Settings(secrets="warn")) as hf:
        with pytest.warns(SecretWarning, match="github-token"):
            hf.team("red").set("token", TOKEN, key=TOKEN)
        assert hf.team("red")["token"] == TOKEN


def test_a_large_value_is_looked_through_before_it_is_a_blob() -> None:
    with holdfast.open("memory:", settings=Settings(secrets="redact")) as hf:
        hf.team("red").set("large", "x " * 50_000 + TOKEN)
        assert TOKEN not in hf.team("red")["large"]
        assert hf.team("red")["large"].endswith("[redacted:github-token]")


def test_every_way_to_commit_is_looked_through() -> None:
    with holdfast.open("memory:", settings=Settings(secrets="redact")) as hf:
        log = hf._log
        payload = json.dumps(TOKEN).encode()
        write = StreamWrite("team/red", (NewEvent("note.made", payload),))
        log.commit(ProposedCommit((write,)))
        log.wait(log.submit(ProposedCommit((write,))))
        for request in log.submit_all([ProposedCommit((write,))]):
            log.wait(request)
        assert {one.payload for one in log.records("team/red")} == {b'"[redacted:github-token]"'}
        log.use_redactor(None)
        hf.team("red").set("token", TOKEN)
        assert hf.team("red")["token"] == TOKEN


def test_what_the_store_says_counts_for_every_handle() -> None:
    with holdfast.open("memory:") as hf:
        assert hf.secrets.rules == {}
        hf.secrets.guard("redact", scope="team/*")
        hf.secrets.guard("refuse", scope=hf.team("red"))
        assert hf.secrets.rules == {"team/*": "redact", "team/red": "refuse"}
        hf.team("blue").set("token", TOKEN)
        assert TOKEN not in hf.team("blue")["token"]
        with pytest.raises(SecretError):
            hf.team("red").set("token", TOKEN)
        with pytest.raises(UsageError):
            hf.secrets.guard(cast("Any", "rot13"))
        hf.secrets.guard("off", scope="team/*")
        hf.secrets.guard("off", scope="team/red")
        hf.team("red").set("token", TOKEN)


def test_a_store_that_cannot_say_it_is_opened_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(context: object) -> None:
        raise holdfast.CorruptError("damaged")

    with holdfast.open("memory:") as hf:
        monkeypatch.setattr("holdfast.record.secret_rules.secret_rules", fail)
        rules = hf._kernel.part(SecretRules)
        rules._given = {"*": "redact"}
        rules.use()
        hf.team("red").set("token", TOKEN)
        assert TOKEN not in hf.team("red")["token"]
        assert "secrets cannot be read" in caplog.text


def test_what_comes_from_another_store_is_refused_or_told() -> None:
    """It cannot be redacted: its event is linked by these bytes."""
    redactor = Redactor({"team/*": "redact", "run/*": "warn", "task/*": "off"})
    text = b'{"token":"ghp_' + b"Zq7Kx2" * 6 + b'"}'
    with pytest.raises(SecretError, match="what an import has"):
        redactor.check_foreign(text, "team/red")
    with pytest.warns(SecretWarning, match="what an import has"):
        redactor.check_foreign(text, "run/1")
    redactor.check_foreign(text, "task/1")
    redactor.check_foreign(b'{"n":1}', "team/red")
