"""A store on files whose contents were let go of becomes as small as a copy of it (0086)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.files import journal
from holdfast.backends.protocol import START
from holdfast.transfer.copy import copy_log

SHARE = 1.3


def size_of(path: Path) -> int:
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def fill(hf: Store, seed: int) -> None:
    """Fills twenty conversations, of which eighteen are removed; messages of many sizes."""
    chance = random.Random(seed)
    for number in range(20):
        chat = hf.conversation(f"c{number}")
        for turn in range(60):
            length = chance.choice([20, 100, 400, 3000])
            chat.say(f"{chance.getrandbits(4 * length):x}")
            if turn % 20 == 0:
                chat.set("turn", turn)
                chat.checkpoint(f"t{turn}")
        if number % 10:
            chat.remove()
    hf.team("kept").set("n", 1)
    hf.retention.hold("conversation/c0", "kept")


def envelopes_of(hf: Store) -> list[tuple[object, ...]]:
    records = hf._log.read_all(after=START, limit=9999)
    return [(one.stream, one.revision, one.position, one.link, one.time) for one in records]


@pytest.mark.parametrize("segment_bytes", [journal.SEGMENT_BYTES, 100_000])
def test_what_was_let_go_of_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", segment_bytes)
    path = tmp_path / "store"
    with holdfast.open(path) as hf:
        fill(hf, 7)
    full = size_of(path)
    with holdfast.open(path) as hf:
        identity = hf.status()["store"]
        points = [(one.name, one.revision) for one in hf.conversation("c0").checkpoints()]
        state = hf.conversation("c10").state.to_dict()
        envelopes = envelopes_of(hf)
    with holdfast.open(path) as reader, holdfast.open(path) as hf:
        follower = reader.follow(as_events=True, timeout_s=0, after=START)
        first = [next(follower) for _ in range(100)]
        assert hf.retention.run(grace_s=0).events > 1000
        followed = [(one.stream, one.revision) for one in [*first, *follower]]
        assert followed[: len(envelopes)] == [one[:2] for one in envelopes]
        assert reader.conversation("c10").state.to_dict() == state
        assert reader.check().ok
    assert size_of(path) < full / 2
    with holdfast.open(path) as hf, holdfast.open(tmp_path / "copy") as copy:
        assert hf.status()["store"] == identity
        assert [(one.name, one.revision) for one in hf.conversation("c0").checkpoints()] == points
        assert hf.conversation("c10").state.to_dict() == state
        assert [one.scope for one in hf.retention.holds()] == ["conversation/c0"]
        assert envelopes_of(hf)[: len(envelopes)] == envelopes
        assert hf.check().ok
        copy_log(hf._log, copy._log)
    assert size_of(path) <= SHARE * size_of(tmp_path / "copy")
