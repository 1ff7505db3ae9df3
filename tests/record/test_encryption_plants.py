"""Planted faults: what judges encryption at rest must notice each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import START
from holdfast.backup import backup
from holdfast.core import encryption
from holdfast.core.encryption import EncryptedBackend

KEY, OTHER = b"k" * 32, b"o" * 32
WORD = "CANARY-19fe"


def inner(hf: Store) -> Any:
    assert hf._kernel.encryption is not None
    return hf._kernel.encryption.parts[0].inner


def payloads_are_hidden(place: Path) -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        hf.team("red").set("n", WORD)
        assert not any(WORD.encode() in one.payload for one in inner(hf).read_all()), "in clear"


def links_are_hidden(place: Path) -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        hf.team("red").set("n", WORD)
        links = {one.link for one in hf._log.read_all(after=START, limit=9)}
        assert not links & {one.link for one in inner(hf).read_all()}, "a link in clear"


def equal_payloads_differ(place: Path) -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        for name in ("red", "blue"):
            hf.team(name).set("n", WORD)
        payloads = [inner(hf).read(f"team/{name}")[-1].payload for name in ("red", "blue")]
        assert payloads[0] != payloads[1], "equal values have equal bytes"


def the_old_key_opens_nothing(place: Path) -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        old = hf.keys.status().store_key.encode()
        hf.keys.rewrap(OTHER)
        events = inner(hf).read(encryption.KEYS)
        assert not any(old in one.payload for one in events), "the old key still opens it"


def backups_are_hidden(place: Path) -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        hf.team("red").set("n", WORD)
        backup(hf, place / "backup")
    for path in (place / "backup").rglob("*"):
        assert not path.is_file() or WORD.encode() not in path.read_bytes(), "in clear"


PLANTS: dict[str, tuple[Callable[[Path], None], object, str, Any]] = {
    "payload in clear": (payloads_are_hidden, EncryptedBackend, "_encrypted", lambda s, c: c),
    "link in clear": (links_are_hidden, EncryptedBackend, "_masked", lambda s, n, r, link: link),
    "no place": (equal_payloads_differ, encryption, "_place", lambda stream, revision: b""),
    "old key left": (the_old_key_opens_nothing, EncryptedBackend, "drop_older", lambda s: []),
    "plain backup": (backups_are_hidden, holdfast.backup, "_key_of", lambda store: None),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_noticed(
    plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, owner, name, broken = PLANTS[plant]
    judge(tmp_path / "sound")
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        judge(tmp_path / "broken")
