"""Keys on later records (clause 26), as the log and the files backend treat them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

import holdfast
from holdfast import ConflictError, Store, UsageError
from holdfast.backends.files.text import BadLine, LineEvent, Section
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import takes_record_keys
from holdfast.clock import SystemClock
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import OPENED


@pytest.fixture
def hf() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        yield store


def write(*keys: str | None, stream: str = "team/t", **fields: object) -> StreamWrite:
    new_events = [NewEvent("x.said", b'"%d"' % n, key=key) for n, key in enumerate(keys)]
    return StreamWrite(stream, tuple(new_events), **fields)  # pyright: ignore


def test_each_event_has_its_key(hf: Store) -> None:
    hf._log.commit(ProposedCommit((write("a", None, "c"),)))
    assert [record.key for record in hf._log.records("team/t")] == ["a", None, "c"]
    hf._log.commit(ProposedCommit((write(None, "e", key="d"),)))
    assert [record.key for record in hf._log.records("team/t")][3:] == ["d", "e"]


def test_a_key_of_an_event_that_is_there_is_a_conflict(hf: Store) -> None:
    hf._log.commit(ProposedCommit((write("a", "b"),)))
    for keys in (("c", "b"), ("a", "c"), ("a", "b")):
        with pytest.raises(ConflictError, match="has a key"):
            hf._log.commit(ProposedCommit((write(*keys),)))
        with pytest.raises(ConflictError, match="has a key"):
            hf._log.commit(
                ProposedCommit((write(*keys, key="own", stream="team/t"),))
                if keys[0] is None
                else ProposedCommit((write(None, *keys, key="own"),))
            )
    assert hf.team("t").revision == 2


def test_the_key_of_the_commit_says_that_it_is_a_repetition(hf: Store) -> None:
    proposed = ProposedCommit((write(None, "b", key="own"),))
    first = hf._log.commit(proposed)
    again = hf._log.commit(proposed)
    assert again.repeated
    assert again.revision == first.revision == 2
    with pytest.raises(UsageError, match="another change"):
        hf._log.commit(ProposedCommit((write(None, "c", key="own"), write("d", stream="team/u"))))


def test_a_repetition_of_a_joint_commit_is_known_by_the_types_of_its_events(hf: Store) -> None:
    joint = write(None, "b", key="own", is_joint=True)
    hf._log.commit(ProposedCommit((joint,)))
    other = StreamWrite("team/t", (NewEvent("x.said", b'"other"'),) * 2, key="own", is_joint=True)
    assert hf._log.commit(ProposedCommit((other,))).repeated
    shorter = StreamWrite("team/t", (NewEvent("y.said", b"1"),) * 2, key="own", is_joint=True)
    with pytest.raises(UsageError, match="another change"):
        hf._log.commit(ProposedCommit((shorter,)))


@pytest.mark.parametrize("takes", [True, False])
def test_where_one_key_is_all_it_is_on_the_first_event(
    takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryBackend, "record_keys", takes)
    with holdfast.open(MemoryBackend(clock=SystemClock())) as hf:
        hf._log.commit(ProposedCommit((write("a", None, parent="global"),)))
        hf._log.commit(ProposedCommit((write(None, stream="team/u", parent="global"),)))
        records = hf._log.records("team/t")
        assert [record.type for record in records] == [OPENED, "x.said", "x.said"]
        assert [record.key for record in records] == (
            [None, "a", None] if takes else ["a", None, None]
        )


def test_a_mixed_store_takes_them_if_each_of_its_parts_does() -> None:
    class Old(MemoryBackend):
        record_keys = False

    new, old = MemoryBackend(clock=SystemClock()), Old(clock=SystemClock())
    shown = {"*": "new", "team": "old"}
    assert takes_record_keys(MixedBackend({"*": new, "team": new}, shown))
    assert not takes_record_keys(MixedBackend({"*": new, "team": old}, shown))
    assert not takes_record_keys(object())


def test_a_line_with_too_few_keys_is_no_line() -> None:
    events = [LineEvent("t", Raw(b"1"), "")] * 2
    assert Section("s", 1, events, "a").keys() == ["a", None]
    assert Section("s", 1, events, [None, "b"]).keys() == [None, "b"]
    with pytest.raises(BadLine, match="1 keys for 2 events"):
        Section("s", 1, events, ["a"]).keys()


def test_keys_of_later_records_are_found_through_the_index_of_a_files_store(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with holdfast.open(store) as hf:
        hf.conversation("c").messages.add_many(
            [{"role": "user", "content": "x" * 4000, "foreign_id": f"f{n}"} for n in range(100)]
        )
    with holdfast.open(store) as hf:  # a close after 256 KiB has written the index
        chat = hf.conversation("c")
        assert (tmp_path / "store" / "index.sqlite").exists()
        [found] = hf._log.find(chat.name, key="message:f42")
        assert found.revision == 43
        chat.messages.add("user", "x" * 4000, foreign_id="f42")
        assert len(chat.messages) == 100


def test_outside_of_a_joint_commit_revisions_are_final(hf: Store) -> None:
    chat = hf.conversation("c")
    message = chat.messages.add("user", "one")
    chat.set("a", 1)
    assert chat.messages.edit(message, content="two").revision == message.revision
    assert hf._log.pinned(chat.name) is None
    assert chat.decide("go").outcome("gone").revision == chat.revision - 1
