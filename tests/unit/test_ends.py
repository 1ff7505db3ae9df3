"""Ends of values and marks: the fold, and what the other tests of them do not reach (0073)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import holdfast
from holdfast import Settings, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import Mark
from holdfast.core import ended_values, key_ends, mark_ends, tree
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.item_copies import folder_of
from holdfast.core.key_ends import ENDING, KeyEnds
from holdfast.core.layers import kept_with
from holdfast.core.log import Log, scope_stream
from holdfast.core.tree.ops import Op
from holdfast.errors import ConflictError, CorruptError, UsageError
from holdfast.testing import FakeClock

CANARY = b"CANARY-09aa"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def hf(clock: FakeClock) -> Iterator[Store]:
    with holdfast.open("memory:", settings=Settings(clock=clock)) as store:
        yield store


def test_the_fold_of_ends() -> None:
    def fold(ends: Any, *ops: Op) -> Any:
        return tree.fold_ends(ends, ops, None)

    a, b = tree.until_op(("a",), 5), tree.until_op(("a", "b"), 9)
    both = fold(None, a, b)
    assert both == {("a",): 5, ("a", "b"): 9}
    assert fold(None, tree.set_op("x", 1), tree.append_op("y", 1)) is None
    assert fold(both, tree.append_op("a", 1), tree.truncate_op("a", 0)) == both
    assert fold(both, tree.merge_op("a", {"b": 1})) == {("a",): 5, (): 9}
    assert fold(both, tree.merge_op((), {"c": 1})) == both
    assert fold(both, tree.delete_op("a")) == {(): 5}
    assert fold(both, tree.set_op((), {})) == {(): 5}
    assert fold(both, tree.until_op(("a",), 0)) == {("a", "b"): 9, (): 5}
    assert fold({(): 5}, tree.until_op((), 0)) is None
    assert tree.ended(both, 9) == [("a",)]
    assert tree.lasting(tree.Map({"a": tree.Map({"b": 1}), "c": 1}), both) == {"c": 1}
    assert [op.keys for op in tree.ends_ops([], both, {("a",): 5, ("c",): 7})] == [
        ("a", "b"),
        ("c",),
    ]
    assert tree.ends_ops([], None, None) == []


@pytest.mark.parametrize("value", [b'"soon"', b"-1", b"9223372036854775808", b"1.5"])
def test_an_end_that_is_none_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptError, match="end"):
        tree.fold_ends(None, [Op("until", "a", Raw(value))], None)


def test_an_end_of_nothing_does_not_fit() -> None:
    with pytest.raises(UsageError, match="not there"):
        tree.apply(tree.Map(), [tree.until_op(("a",), 5)], revision=1)
    assert tree.apply(tree.Map(), [tree.until_op((), 5)], revision=1) == {}


def test_a_server_is_asked_once_in_a_while(clock: FakeClock) -> None:
    class Far:
        timeout_s = 1.0
        asked = 0

        def now_us(self, stream: str) -> int:
            self.asked += 1
            return clock.now_us() + 1_000_000

    far: Any = Far()
    ends = KeyEnds(lambda _stream: far, clock)
    begun = ends.now_us("a")
    clock.advance(4)
    assert (ends.now_us("a") - begun, far.asked) == (4_000_000, 1)
    clock.advance(7)
    assert (ends.now_us("a") - begun, far.asked) == (11_000_000, 2)


class Elsewhere(MemoryBackend):
    """Stands for a backend on a server, whose clock is ahead."""

    timeout_s = 1.0
    ahead_us = 0

    def now_us(self, stream: str) -> int:
        return super().now_us(stream) + self.ahead_us


def test_each_part_of_a_mixed_store_has_its_own_clock(clock: FakeClock) -> None:
    parts = {name: Elsewhere(clock=clock) for name in ("*", "conversation")}
    parts["conversation"].ahead_us = 3_600_000_000
    here: Any = {**parts, "workflow": MemoryBackend(clock=clock)}
    mixed = MixedBackend(here, dict.fromkeys(here, "memory"), kept_with())
    ends = Log(mixed, clock=clock, actor="tester").key_ends
    for _ in range(2):
        assert ends.now_us("team/a") == clock.now_us() == ends.now_us("workflow/a")
        assert ends.now_us("conversation/a") == clock.now_us() + 3_600_000_000
        clock.advance(4)


def test_few_states_are_kept_as_they_are_shown(
    hf: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ends, "_SHOWN_MAX", 2)
    for name in "abc":
        hf.team(name).set("token", 1, ttl_s=60)
        assert hf.team(name)["token"] == 1
    assert len(hf._log.key_ends._shown) <= 2
    clock.advance(61)
    assert [hf.team(name).state for name in "abc"] == [{}, {}, {}]


LONG = {f"key {number}": "word and word again " * 5 for number in range(40)}
"""A state that a snapshot compresses."""


def with_snapshot(place: Path) -> None:
    with holdfast.open(place) as hf:
        team = hf.team("t")
        team.update(LONG)
        team.set("token", "9f2c", ttl_s=3600)
        snapshots = hf._log.snapshots
        snapshots._write(team.name, hf._log.folded(team.name), snapshots._begin(team.name))


def test_the_state_that_is_shown_as_now_has_no_value_that_ended() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        red = hf.team("red")
        red.set("stays", 1)
        red.set("token", 2, ttl_s=60)
        stream = scope_stream(red)
        assert stream.now_at(red.revision).to_dict() == {"stays": 1, "token": 2}
        clock.advance(61)
        assert stream.now_at(red.revision).to_dict() == {"stays": 1}


def test_a_snapshot_that_is_compressed_has_the_ends_too(tmp_path: Path) -> None:
    with_snapshot(tmp_path / "s")
    with holdfast.open(tmp_path / "s") as hf:
        state = hf._log.snapshots.nearest("team/t", 1 << 62)
        assert state is not None
        assert state.ends is not None
        assert list(state.ends) == [("token",)]
        assert hf.team("t").state.to_dict() == {**LONG, "token": "9f2c"}
        assert hf.check().findings == []


@pytest.mark.parametrize("ends", [b"\x28\xb5\x2f\xfd", b"[]", b"[],{},{}", b"[1],{}", b'["a"],{}'])
def test_a_snapshot_whose_ends_cannot_be_read_is_discarded(tmp_path: Path, ends: bytes) -> None:
    """As the first version with ends wrote them: around a state that was compressed already."""
    with_snapshot(tmp_path / "s")
    with holdfast.open(tmp_path / "s") as hf:
        objects = hf._log._backend.objects
        [name] = objects.names("snapshot", prefix=folder_of("team/t"))
        data = objects.get("snapshot", name)
        assert data is not None
        rest = data[32 : data.index(b"\n", 32) + 1] + b'["ends",' + ends + b"]"
        objects.delete("snapshot", name)
        objects.put("snapshot", name, sha256(rest).digest() + rest)
        assert hf.team("t").state.to_dict() == {**LONG, "token": "9f2c"}
        assert objects.get("snapshot", name) is None


def test_a_merge_below_an_end_goes_with_it(hf: Store, clock: FakeClock) -> None:
    team = hf.team("t")
    team.set("map", {"a": 1}, ttl_s=60)
    with team.edit() as draft:
        draft["map"].update({"b": CANARY.decode()})
    clock.advance(61)
    assert hf.retention.run(grace_s=0).events == 2
    assert team.state == {}


def test_what_ends_while_it_is_settled_is_left_to_the_next(
    hf: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = hf.team("t")
    team.set("token", 1, ttl_s=60)
    team.set("token", 2)
    clock.advance(61)
    genuine = ended_values._change

    def contested(*given: Any) -> None:
        raise ConflictError("another was faster", stream="team/t", expected=1, actual=2)

    monkeypatch.setattr(ended_values, "_change", contested)
    hf.retention.run(grace_s=0)
    assert hf.workers.marks(ENDING)
    monkeypatch.setattr(ended_values, "_change", genuine)
    hf.retention.run(grace_s=0)
    assert not hf.workers.marks(ENDING)


def test_a_mark_that_leads_nowhere_is_cleared(hf: Store, clock: FakeClock) -> None:
    visit, gone = hf.conversation("v", ttl_s=60), hf.team("gone")
    visit.set("token", 1, ttl_s=30)
    gone.set("token", 1, ttl_s=30)
    gone.remove()
    stale = [Mark(ENDING, "team/none", 1), Mark(ENDING, "team/gone", 1)]
    hf._log.commit(ProposedCommit((), marks=tuple(stale)))
    hf.team("later").set("token", 1, ttl_s=600)
    hf._log.commit(ProposedCommit((), marks=(Mark(ENDING, "team/later", 1),)))
    clock.advance(61)
    hf.retention.run(grace_s=0)
    [left] = hf.workers.marks(ENDING)
    assert left.key == "team/later"
    assert left.due > clock.now_us()


def test_marks_that_are_nobodys_business_stay(hf: Store, clock: FakeClock) -> None:
    hf.conversation("v", ttl_s=600).set("n", 1)
    log: Log = hf._log
    for group in ("", "team/lasts", "conversation/v"):
        log.commit(ProposedCommit((), marks=(Mark("own", f"m{group}", group=group),)))
    log.commit(ProposedCommit((), marks=(Mark(mark_ends.ENDS, "own\x1fm", 1, group="marks/log"),)))
    log.commit(ProposedCommit((), marks=(Mark("own", "second", group="team/lasts"),)))
    assert mark_ends.sweep(log) == 0  # its guard is not there
    assert len(log.marks.list("own")) == 4


def test_a_migration_keeps_the_end_of_what_stays_at_its_path(clock: FakeClock) -> None:
    @holdfast.schema("team", version=2)
    class Second(msgspec.Struct):
        token: str = ""
        more: int = 0

    @holdfast.upgrade(Second, 1)
    def to_second(data: dict[str, Any]) -> dict[str, Any]:
        return {"token": data.get("token", "") + "!", "more": 1}

    with holdfast.open("memory:", schemas=[Second], settings=Settings(clock=clock)) as hf:
        ops = tree.set_op("token", "a"), tree.until_op(("token",), clock.now_us() + 60_000_000)
        first = NewEvent("changed", tree.encode_ops(ops), ops, meta='{"schema":1}')
        hf._log.commit(ProposedCommit((StreamWrite("team/t", (first,)),)))
        hf.schemas.migrate()
        assert hf.team("t").state.to_dict() == {"token": "a!", "more": 1}
        clock.advance(61)
        assert hf.team("t").state.to_dict() == {"more": 1}


def test_a_repeated_default_that_was_not_needed_is_known(hf: Store) -> None:
    team = hf.team("t")
    team.set("n", 1)
    made = team.set("n", 7, if_absent=True, key="k")
    assert team.set("n", 7, if_absent=True, key="k") == made
    with pytest.raises(UsageError, match="another change"):
        team.set("n", 7, key="k")
    with pytest.raises(UsageError, match="another change"):
        team.record("noted", {}, unchecked=True, key="k")


def test_a_sealed_event_with_a_name_stays_and_is_named(hf: Store, clock: FakeClock) -> None:
    chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    chat.set("token", 1, ttl_s=60, checkpoint="named")
    chat.set("token", 2, ttl_s=60)
    clock.advance(61)
    found = hf.retention.run(grace_s=0)
    assert found.events == 1
    assert "sealed" in found.refused[chat.name]
    assert chat.state == {}
