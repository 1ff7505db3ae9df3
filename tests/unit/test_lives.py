"""Removal below the scopes: the fold, the ends, the keys and the snapshots of a stream's lives."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import event
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.commit_queue import Request
from holdfast.core.event import LIFE, Life, StreamEnd
from holdfast.core.layers import Layer, held_by, register_layer
from holdfast.errors import ConflictError, NotFoundError, UsageError
from holdfast.scope import Scope
from tests.unit.test_tips import NOTE, Counting, backend, long_scope, note, open_on

__all__ = ["backend"]  # a fixture
NAME = "conversation/c"


def test_an_end_knows_its_life_where_the_newest_event_says_it(backend: Counting) -> None:
    hf = open_on(backend)
    chat = hf.conversation("c")
    chat.set("n", 1)
    removed_at = chat.remove()
    record = hf._log.record(NAME, removed_at)
    assert (record.type, record.checkpoint) == ("removed", LIFE)
    assert event.end_of(record).removed_at == removed_at
    back = hf._log.record(NAME, chat.undo())
    assert event.life_before(back) == Life()
    assert event.end_of(back).removed_at == 0
    assert event.end_of(hf._log.record(NAME, 1)).removed_at == -1


def test_an_event_follows_a_removal_without_a_fold(backend: Counting) -> None:
    long_scope(backend)
    open_on(backend).conversation("c").remove()
    hf = open_on(backend)
    backend.records_read = 0
    after = note(hf).after[0]
    assert isinstance(after, StreamEnd)
    assert after.removed_at == 501
    assert backend.records_read <= 2
    assert hf._log.marks.list("scope.removed") == []
    assert hf.conversation("c").state.to_dict() == {}


def test_a_keyed_event_after_one_without_a_key_is_of_the_same_life(backend: Counting) -> None:
    """Both are in one batch, and neither knows more than the end of the stream."""
    long_scope(backend, events=3)
    for life in (0, 4):
        log = open_on(backend)._log
        wanted = [
            ProposedCommit((StreamWrite(NAME, (NOTE,)),)),
            ProposedCommit((StreamWrite(NAME, (NOTE,), key="k"),)),
        ]
        if life:
            log.commit(ProposedCommit((StreamWrite(NAME, (NOTE,)),)))  # the new life has begun
        requests = [Request(one) for one in wanted]
        log._run(requests)  # pyright: ignore[reportPrivateUsage]
        revision = requests[1].outcome().revision
        stored = log.record(NAME, revision)
        assert stored.key == ("k" if not life else f"k\x1e{log.life(NAME)}")
        assert event.Event(stored).key == "k"
        assert note(open_on(backend), key="k").revision == revision
        if not life:
            open_on(backend).conversation("c").remove()


def test_a_duplicate_of_an_old_life_is_made_again_by_its_end_too(backend: Counting) -> None:
    hf, other = open_on(backend), open_on(backend)
    first = note(hf, key="k")
    other.conversation("c").remove()
    other.conversation("c").set("n", 1)
    again = note(hf, key="k")
    assert (first.revision, again.revision, again.repeated) == (1, 4, False)
    assert note(hf, key="k").repeated


def test_a_change_that_does_not_fit_is_answered_by_the_key_of_its_own_life(
    backend: Counting,
) -> None:
    hf = open_on(backend)
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.delete("n", key="gone")
    assert chat.delete("n", key="gone") == 2
    chat.remove()
    with pytest.raises(UsageError, match="is not there"):
        chat.delete("n", key="gone")


@pytest.mark.parametrize("begun_again", [False, True])
def test_a_key_over_two_scopes_of_which_one_was_removed(
    begun_again: bool, backend: Counting
) -> None:
    """Half of the change is there and half is gone: neither made again nor taken for made."""
    hf = open_on(backend)
    one, other = hf.conversation("c"), hf.conversation("d")

    def change() -> None:
        with hf.commit(key="k") as tx:
            tx.scope(one).set("n", 1)
            tx.scope(other).set("n", 1)

    change()
    one.remove()
    if begun_again:
        one.set("m", 1)
    with pytest.raises(UsageError, match='"conversation/c", which was removed') as caught:
        change()
    assert caught.value.hint is not None
    assert "use a new key" in caught.value.hint
    assert (one.get("n"), other.revision) == (None, 1)
    other.remove()
    change()  # the key is free in both
    assert (one.get("n"), other.get("n")) == (1, 1)


def test_a_snapshot_keeps_the_life(backend: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.snapshot.CLOSE_BYTES_MIN", 1)
    hf = open_on(backend)
    chat = hf.conversation("c")
    chat.set("n", 1, key="k")
    removed_at = chat.remove()
    chat.set("n", 2)
    hf._log.snapshots.flush(hf._log.folds.states)
    assert hf._log.snapshots.read(NAME, removed_at + 1).removed_at == removed_at
    assert open_on(backend).conversation("c").set("n", 3, key="k") == removed_at + 2


def test_the_parent_of_an_old_life_is_not_that_of_the_new_one(backend: Counting) -> None:
    hf = open_on(backend)
    team = hf.team("t")
    hf.conversation("c", parent=team).set("n", 1)
    hf.conversation("c").remove()
    assert hf.conversation("c").parent is None
    other = open_on(backend)
    note(other)  # by the end alone
    note(other, parent="team/t")
    parent = other.conversation("c").parent
    assert parent is not None
    assert parent.name == "team/t"


def test_a_life_is_asked_for_at_a_revision(backend: Counting) -> None:
    log = open_on(backend)._log
    chat = open_on(backend).conversation("c")
    assert log.life(NAME) == 0
    chat.set("n", 1)
    chat.remove()
    chat.set("n", 2)
    chat.remove()
    chat.undo()
    assert [log.life(NAME, revision) for revision in range(1, 6)] == [0, 2, 2, 4, 2]
    assert log.life(NAME) == 2
    assert log.find("lease/x", key="k") == []


def test_an_event_with_the_name_of_a_life_that_says_none_ends_none(backend: Counting) -> None:
    """Nothing of ours writes it; whoever did must not make a scope vanish."""
    hf = open_on(backend)
    hf.conversation("c").set("n", 1)
    payload = event.restored_payload(1, b"[]", undo=False)
    write = StreamWrite(NAME, (NewEvent(event.RESTORED, payload),), checkpoint=LIFE)
    hf._log.commit(ProposedCommit((write,)))
    assert open_on(backend)._log.life(NAME) == 0


def test_a_restore_of_a_removed_scope_begins_a_life(backend: Counting) -> None:
    hf = open_on(backend)
    chat = hf.conversation("c")
    chat.set("n", 1)
    removed_at = chat.remove()
    chat.restore(removed_at)
    assert (chat.state.to_dict(), hf._log.life(NAME)) == ({}, removed_at)
    assert open_on(backend)._log.newest(NAME).removed_at == removed_at


def test_a_page_of_scopes_is_filled_whatever_was_removed(backend: Counting) -> None:
    hf = open_on(backend)
    hf.global_().set("n", 1)
    for number in range(9):
        hf.conversation(f"c{number}").set("n", 1)
    for number in range(6):
        hf.conversation(f"c{number}").remove()
    page = hf.scopes(limit=2)
    assert ([scope.id for scope in page], page.more) == (["c6", "c7"], True)
    rest = hf.scopes(limit=None, after=page.cursor)
    assert [scope.name for scope in rest] == ["conversation/c8", "global"]
    hf.global_().remove()
    assert [scope.name for scope in hf.scopes(prefix="g")] == []


class Contended(Counting):
    """Somebody else writes before each removal."""

    rival: Scope | None = None

    def commit(self, commits: Any) -> Any:
        rival, self.rival = self.rival, None
        if rival is not None:
            rival.set("rival", 1)
            self.rival = rival if self.lasting else None
        return super().commit(commits)

    lasting = False


@pytest.mark.parametrize("act", [Scope.remove, Scope.undo])
def test_who_was_faster_is_looked_at_again(act: Any) -> None:
    from holdfast.testing import FakeClock

    store = Contended(clock=FakeClock())
    hf, other = open_on(store), open_on(store)
    chat = hf.conversation("c")
    chat.set("n", 1)
    if act is Scope.undo:
        chat.remove()
    store.rival = other.conversation("c")
    act(chat)

    assert chat.state.to_dict() == {}  # removed, or the first change of the new life undone
    if act is Scope.remove:
        chat.set("n", 1)
        store.rival = other.conversation("c")
        with pytest.raises(ConflictError):
            chat.remove(expected=chat.revision)


def test_a_removal_that_is_never_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.testing import FakeClock

    monkeypatch.setattr("holdfast.scope.CLOSE_RETRIES", 3)
    store = Contended(clock=FakeClock())
    hf, other = open_on(store), open_on(store)
    hf.conversation("c").set("n", 1)
    store.rival, store.lasting = other.conversation("c"), True
    with pytest.raises(UsageError, match="changed 3 times while it was being removed"):
        hf.conversation("c").remove()


def test_layers_say_what_is_under_way_and_only_some_is_shown(
    backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.layers._table", {})
    register_layer(Layer(name="quiet"))
    register_layer(Layer(name="busy", holds=lambda _, stream: [f"{stream} {n}" for n in range(5)]))
    assert list(held_by(None, "x")) == [f"x {n}" for n in range(5)]
    chat = open_on(backend).conversation("c")
    chat.set("n", 1)
    with pytest.raises(UsageError, match="c 0; conversation/c 1; conversation/c 2, and 2 more"):
        chat.remove()


def test_what_an_unknown_moment_of_an_old_life_is(backend: Counting) -> None:
    chat = open_on(backend).conversation("c")
    chat.set("n", 1, checkpoint="here")
    chat.remove()
    with pytest.raises(NotFoundError, match="no checkpoint"):
        chat.at("here")
    assert chat.at(1) == {"n": 1}


def test_what_follows_an_event_is_of_its_life(backend: Counting) -> None:
    chat = open_on(backend).conversation("c")
    chat.set("n", 1)
    chat.set("n", 2)
    hf = open_on(backend)  # knows of the stream what its end says
    about = StreamWrite(NAME, (NOTE,), follows=2)
    assert hf._log.commit(ProposedCommit((about,))).revision == 3
    chat.remove()
    with pytest.raises(ConflictError, match="expected revision 2, found 4"):
        hf._log.commit(ProposedCommit((about,)))
    chat.undo()
    assert hf._log.commit(ProposedCommit((about,))).revision == 6
    assert chat.state.to_dict() == {"n": 2}
