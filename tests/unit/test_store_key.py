"""Where the key of an encrypted store is looked for."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Commit, Receipt, Refusal
from holdfast.core.commit import ProposedCommit
from holdfast.core.commit_queue import Request
from holdfast.core.log import scope_stream
from holdfast.core.store_key import StoreKey, to_store_key
from holdfast.core.tree import set_op
from holdfast.errors import CorruptError, StoreKeyError, UnavailableError, UsageError
from holdfast.testing import FakeClock

KEY = bytes(range(32))
ID = StoreKey(KEY).id


def test_a_key_is_given_as_bytes_as_digits_or_in_base64() -> None:
    for given in (KEY, KEY.hex(), KEY.hex().upper(), b64encode(KEY).decode(), StoreKey(KEY)):
        assert to_store_key(given).id == ID
    assert repr(StoreKey(KEY)) == f"<StoreKey {ID}>"


def test_a_key_is_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY.hex() + "\n")
    assert to_store_key("env:MY_KEY").id == ID
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(StoreKeyError, match='"MY_KEY", which has the store key, is not set'):
        to_store_key("env:MY_KEY")


def test_a_key_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.hex() + "\n")
    assert to_store_key(f"file:{tmp_path / 'key'}").id == ID
    with pytest.raises(StoreKeyError, match="cannot be read: No such file"):
        to_store_key(f"file:{tmp_path / 'other'}")


def test_a_key_is_what_a_command_prints() -> None:
    assert to_store_key(f"command:echo {KEY.hex()}").id == ID
    with pytest.raises(StoreKeyError, match='"sh", which prints the store key, failed with 3: no'):
        to_store_key("command:sh -c 'echo no >&2; exit 3'")
    for words in ("/no/such/program", " "):
        with pytest.raises(StoreKeyError, match="failed:"):
            to_store_key(f"command:{words}")


def test_a_key_is_in_a_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {("agents", "state"): KEY.hex()}

    def get_password(service: str, name: str) -> str | None:
        if service == "locked":
            raise RuntimeError("the keyring is locked")
        return held.get((service, name))

    monkeypatch.setitem(sys.modules, "keyring", SimpleNamespace(get_password=get_password))
    assert to_store_key("keyring:agents/state").id == ID
    with pytest.raises(StoreKeyError, match='no key "other" of "agents"'):
        to_store_key("keyring:agents/other")
    with pytest.raises(StoreKeyError, match="locked"):
        to_store_key("keyring:locked/state")
    with pytest.raises(UsageError, match="keyring:SERVICE/NAME"):
        to_store_key("keyring:agents")
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UsageError) as raised:
        to_store_key("keyring:agents/state")
    assert raised.value.hint == 'pip install "holdfast[keyring]"'


def test_what_is_no_key_is_refused_and_not_repeated() -> None:
    almost = KEY.hex()[:-2]
    for given in (almost, f"command:echo {almost}", "not base64!", ""):
        with pytest.raises(StoreKeyError, match="is no store key: expected 32 bytes") as raised:
            to_store_key(given)
        assert almost[8:] not in str(raised.value).replace(given, "")
    for given in (7, None, ["x"]):
        with pytest.raises(UsageError, match="store_key is env:NAME"):
            to_store_key(given)
    for given in ("vault:x", "env:"):
        with pytest.raises(UsageError, match="store_key is env:NAME"):
            to_store_key(given)
    with pytest.raises(UsageError, match="has 32 bytes, found 5"):
        to_store_key(b"short")


def test_a_file_that_names_stores_may_say_where_the_key_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY.hex())
    file = tmp_path / "holdfast.toml"
    begin = '[store]\n"*" = "state"\n[encryption]\n'
    file.write_text(begin + 'key = "env:MY_KEY"\n')
    with holdfast.open(file) as hf:
        assert hf.keys.status().store_key == ID
    for wrong in (f'key = "{KEY.hex()}"', 'key = "command:id"', "key = 3", ""):
        file.write_text(begin + wrong)
        with pytest.raises(UsageError, match="names where the key is") as raised:
            holdfast.open(file)
        assert KEY.hex() not in str(raised.value)
    file.write_text(begin + 'key = "env:MY_KEY"\nother = 1\n')
    with pytest.raises(UsageError, match="has one line"):
        holdfast.open(file)


def test_a_log_tells_whether_anything_below_it_is_encrypted(tmp_path: Path) -> None:
    """Then no copy in clear is kept beside the store."""
    for number, key in enumerate((None, KEY)):
        mix = {"team": str(tmp_path / str(number)), "*": "memory:"}
        for url in ("memory:", mix):
            with holdfast.open(url, store_key=key) as hf:
                assert hf._log.is_encrypted is (key is not None)


class Damaged(MemoryBackend):
    """Refuses one stream as damaged, before it writes anything of a list."""

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        if any(one.stream == "team/b" for commit in commits for one in commit.appends):
            raise CorruptError("the head is damaged", where="team/b")
        return super().commit(commits)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("b",)])
def test_the_first_commit_of_a_handle_is_not_called_unwritten_if_the_next_fails(
    names: tuple[str, ...],
) -> None:
    """The first is sent alone: what comes behind it in its batch may fail when it is written."""
    with holdfast.open(Damaged(clock=FakeClock())) as store:
        requests: list[Request] = []
        for name in names:
            write = scope_stream(store.team(name)).change_write([set_op("n", 1)], None, None, None)
            requests.append(Request(ProposedCommit((write,))))
        failed = UnavailableError if names[0] == "a" else CorruptError
        with pytest.raises(failed, match="the head is damaged") as caught:
            store._log._run(requests)
        assert getattr(caught.value, "outcome_known", True) == (names[0] == "b")
        assert store.team("a").get("n", None) == (1 if names[0] == "a" else None)
