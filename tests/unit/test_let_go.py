"""What is let go of for good, and a handle that still remembers it (0041)."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.protocol import Head, Record
from holdfast.core.event import EMPTY, fold
from holdfast.core.kernel import kernel_of
from holdfast.core.retention import Told, drop, tell_again
from holdfast.errors import ExpiredError, LetGoError
from holdfast.testing import FakeClock


def test_a_ledger_that_names_a_stream_that_is_not_there(tmp_path: Path) -> None:
    """As in a backup whose first point came after the stream had ended."""
    with holdfast.open(tmp_path / "s") as store:
        log = kernel_of(store).log
        store.conversation("c").set("n", 1)
        gone = {("conversation/none", 2): Told(b"1" * 32, "expired", store.position)}
        gone["conversation/c", 1] = Told(b"2" * 32, "erased", store.position)
        tell_again(log, gone)
        assert drop(log)[0] == 1


@pytest.mark.parametrize("slides", [False, True])
def test_what_has_ended_and_was_let_go_of_cannot_be_held(slides: bool, tmp_path: Path) -> None:
    """Nor is it shown again by the handle that let go of it, which had it in memory."""
    clock = FakeClock()
    with holdfast.open(tmp_path / "s", settings=Settings(clock=clock)) as store:
        chat = store.conversation("c", ttl_s=60, slides=slides)
        chat.set("n", "secret")
        assert chat["n"] == "secret"
        clock.advance(61)
        store.retention.run(grace_s=0)
        assert "conversation/c" not in kernel_of(store).log.folds.states
        with pytest.raises(LetGoError, match='of "conversation/c" cannot be read'):
            store.retention.hold("conversation/c")
        with pytest.raises(ExpiredError):
            store.scope("conversation/c").get("n")


def test_what_has_ended_and_is_still_there_is_held_and_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(tmp_path / "s", settings=Settings(clock=clock)) as store:
        log = kernel_of(store).log
        store.conversation("c", ttl_s=60).set("n", 1)
        clock.advance(61)
        # As by a run that was killed behind what it recorded.
        tell_again(log, {("conversation/c", 2): Told(b"1" * 32, "expired", store.position)})
        store.retention.hold("conversation/c")
        store.retention.run(grace_s=0)
        assert store.scope("conversation/c").get("n") == 1


def test_a_life_that_was_let_go_of_does_not_keep_the_next_one_from_a_hold(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s") as store:
        team = store.team("red")
        team.set("n", 1)
        team.remove()
        store.retention.run(grace_s=0)
        with pytest.raises(LetGoError, match='of "team/red"'):
            store.retention.hold(team)
        team.set("n", 2)
        store.retention.hold(team)  # it is alive
        store.retention.unhold(team)
        team.remove()
        store.retention.hold(team)  # of the second life nothing is gone
        store.retention.run(grace_s=0)
        assert [record.revision for record in team_records(store) if b"2" in record.payload]


def test_a_state_whose_lifetime_is_over_is_not_kept_beside_the_log(tmp_path: Path) -> None:
    """A snapshot of it would be found by whoever asks after its events were let go of."""
    clock = FakeClock()
    with holdfast.open(tmp_path / "s", settings=Settings(clock=clock)) as store:
        log = kernel_of(store).log
        store.conversation("c", ttl_s=60).set("n", 1)
        state = log.newest("conversation/c")
        assert log._is_current("conversation/c", state, True)
        clock.advance(61)
        assert not log._is_current("conversation/c", state, True)


def team_records(store: holdfast.Store) -> list[Record]:
    return kernel_of(store).log.backend.read("team/red")


def fork_that_was_removed(store: holdfast.Store, *, written: bool) -> holdfast.Scope:
    store.conversation("o").set("n", 1)
    forked = store.conversation("o").fork("f")
    if written:
        forked.set("own", 1)
    forked.remove()
    return forked


@pytest.mark.parametrize("written", [False, True])
def test_a_removed_fork_is_begun_anew_although_its_origin_was_let_go_of(
    written: bool, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "s") as store:
        fork_that_was_removed(store, written=written)
        store.conversation("o").remove()
        store.retention.run(grace_s=0)
        assert store.conversation("f").state == {}
    for n in (1, 2):
        with holdfast.open(tmp_path / "s") as store:
            forked = store.scope("conversation/f")
            assert forked.state == ({} if n == 1 else {"z": 1})
            forked.set("z", n)
            assert forked["z"] == n
            assert [one.name for one in store.scopes(where={"z": n})] == ["conversation/f"]
            assert store.check(read_all=True).ok
            assert kernel_of(store).log.replayed(*at_head(store)).root == {"z": n}
            with pytest.raises(LetGoError):
                forked.at(1)


def at_head(store: holdfast.Store) -> tuple[str, Head, int]:
    [head] = kernel_of(store).log.heads(["conversation/f"])
    assert head is not None
    return "conversation/f", head, head.revision


@pytest.mark.parametrize("subject", [None, "ada"])
def test_a_removed_fork_folds_from_its_removal_to_what_all_its_events_say(
    subject: str | None, tmp_path: Path
) -> None:
    settings = Settings(clear_ids=True)
    with holdfast.open(tmp_path / "s", keys=tmp_path / "k", settings=settings) as store:
        store.conversation("o", subject=subject).set("n", 1)
        forked = store.conversation("o").fork("f")
        forked.set("own", 1)
        forked.remove()
        log = kernel_of(store).log
        for _ in range(2):
            stream, head, revision = at_head(store)
            found = log.replayed(stream, head, revision)
            inherited = log.backend.read("conversation/o", until=head.first - 1)
            records = inherited + log.backend.read(stream)
            assert found == fold(EMPTY, records, log.blobs.read, log.sealing.opener())
            store.conversation("f").set("again", 1)
