"""Retention that is broken on purpose: each fault is found by the test that is named for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store, archive, backup
from holdfast.backends.protocol import GONE, Record
from holdfast.core import compaction, holds, retention
from holdfast.core.blobs import Blobs
from holdfast.core.event import BASED
from holdfast.core.expiry import Expiry
from holdfast.core.retention import Retainer
from holdfast.core.snapshot import Snapshots
from holdfast.testing import FakeClock
from holdfast.transfer.sink import Sink
from tests.care import test_archive, test_backup_let_go
from tests.record import test_compaction, test_retain, test_what_is_left
from tests.unit import test_bases, test_holds, test_rewriting

Put = Callable[[Any, str, Any], None]


def _hold_ignored(put: Put) -> None:
    put(Retainer, "held", lambda _: set())


def _hold_ignored_at_the_end(put: Put) -> None:
    put(Expiry, "is_held", lambda *_: False)


def _backend_not_told_of_a_hold(put: Put) -> None:
    put(holds, "keep", lambda *_: None)


def _blob_collected_too_early(put: Put) -> None:
    put(retention, "_named_blobs", lambda _log, after: (set(), after))


def _blob_known_for_ever(put: Put) -> None:
    put(Blobs, "_are_collected", lambda _: False)


def _nobody_says_that_bytes_are_left(put: Put) -> None:
    """No mark tells the next run that the backend was not asked."""
    commit = Retainer._commit

    def forget(self: Any, new_events: Any, marks: Any = (), lease: Any = None) -> Any:
        kept = [one for one in marks if one.index != retention.UNPURGED]
        return commit(self, new_events, kept, lease)

    put(Retainer, "_commit", forget)


def _forks_forgotten(put: Put) -> None:
    put(retention, "kept_for_forks", lambda _: {})


def _copy_takes_links_for_bytes(put: Put) -> None:
    put(Sink, "_let_go", lambda *_: None)


def _snapshots_left(put: Put) -> None:
    put(Snapshots, "forget", lambda *_: None)


def _nothing_told(put: Put) -> None:
    put(retention, "_runs", lambda chunk: [(chunk[0].revision, "")])


def _grace_ignored(put: Put) -> None:
    condemned = retention.condemned

    def at_once(log: Any, *, now_us: int, grace_us: int) -> Iterator[Any]:
        del grace_us
        return condemned(log, now_us=now_us, grace_us=0)

    put(retention, "condemned", at_once)


def _compaction_without_the_proof(put: Put) -> None:
    put(compaction, "prove", lambda *_: None)


def _base_not_copied(put: Put) -> None:
    write = Sink._write

    def without_bases(self: Sink, batch: list[list[Record]]) -> None:
        write(
            self,
            [
                [replace(one, payload=GONE) if one.type == BASED else one for one in commit]
                for commit in batch
            ],
        )

    put(Sink, "_write", without_bases)


def _base_taken_for_done(put: Put) -> None:
    def newest(log: Any, stream: str, _after: int) -> int:
        bases = log.find(stream, checkpoint=compaction.BASE)
        return bases[0].revision if bases else 0

    put(compaction, "folded_until", newest)


def _restore_brings_it_back(put: Put) -> None:
    put(backup, "_as_let_go", lambda record, *_: record)


def _archive_not_read_back(put: Put) -> None:
    put(archive, "_verify", lambda *_: None)


def _lists_forgotten(put: Put) -> None:
    put(compaction, "must_stay", lambda *_: frozenset())


def _aged(catcher: Callable[..., None], *more: str) -> Callable[..., None]:
    """Returns a test of compaction as one that brings its own store, with a clock to move."""

    def run(hf: Store, tmp_path: Path) -> None:
        del hf
        clock = FakeClock()
        with holdfast.open("memory:", settings=Settings(clock=clock)) as store:
            catcher((store, clock), *([tmp_path] if more else []))

    return run


def _alone(catcher: Callable[[], None]) -> Callable[..., None]:
    """Returns a test that opens its own store as one that is handed one."""
    return lambda hf: catcher()


def _archived(hf: Store, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        test_archive.test_an_archive_that_lost_what_was_written_keeps_the_scope(tmp_path, patched)


def _backed_up(hf: Store, tmp_path: Path) -> None:
    del hf
    test_backup_let_go.test_a_point_after_a_letting_go_does_not_bring_it_back("files", tmp_path)


def _cut_off_before_it_was_told(hf: Store) -> None:
    for number in range(8):
        hf.team("a").set("n", number)
        hf.team("a").append("list", {"number": number})
        if number == 3:
            hf.team("a").checkpoint("middle")
    with pytest.MonkeyPatch.context() as patched:
        test_bases.test_what_a_base_stands_for_goes_also_after_a_run_that_was_ended(
            hf, retention._Run, "_tell_all", patched
        )


def _died_before_it_purged(hf: Store) -> None:
    with pytest.MonkeyPatch.context() as patched:
        test_what_is_left.test_a_dry_run_says_what_a_killed_run_left(hf, patched)


def _on_sqlite(hf: Store, tmp_path: Path) -> None:
    del hf
    test_compaction.test_what_another_handle_has_in_memory_is_still_read("sqlite", tmp_path)


PLANTS: dict[str, tuple[Callable[[Put], None], Callable[..., None]]] = {
    "hold ignored": (_hold_ignored, test_retain.test_what_is_held_stays_whatever_becomes_of_it),
    "hold ignored at the end": (
        _hold_ignored_at_the_end,
        _alone(test_holds.test_a_hold_is_told_to_the_backend_and_taken_back),
    ),
    "backend not told of a hold": (
        _backend_not_told_of_a_hold,
        _alone(test_holds.test_a_hold_is_told_to_the_backend_and_taken_back),
    ),
    "blob collected too early": (
        _blob_collected_too_early,
        test_retain.test_a_blob_that_others_name_stays,
    ),
    "blob known for ever": (_blob_known_for_ever, test_retain.test_a_blob_that_others_name_stays),
    "nobody says that bytes are left": (
        _nobody_says_that_bytes_are_left,
        _died_before_it_purged,
    ),
    "forks forgotten": (
        _forks_forgotten,
        test_retain.test_the_past_of_a_fork_stays_while_the_fork_is_there,
    ),
    "a copy takes equal links for equal bytes": (
        _copy_takes_links_for_bytes,
        test_retain.test_a_copy_lets_go_of_what_its_source_let_go_of,
    ),
    "snapshots left": (_snapshots_left, test_rewriting.test_snapshots_of_what_is_gone_are_deleted),
    "digests not told": (
        _nothing_told,
        test_retain.test_what_a_removed_scope_held_goes_and_all_else_stays,
    ),
    "compaction without the proof": (
        _compaction_without_the_proof,
        _aged(test_compaction.test_a_state_that_is_not_what_its_events_fold_to_keeps_every_event),
    ),
    "base not copied": (
        _base_not_copied,
        _aged(test_compaction.test_a_new_handle_and_a_copy_read_the_same, "tmp_path"),
    ),
    "a base is taken for done": (_base_taken_for_done, _cut_off_before_it_was_told),
    "a restore brings back what was let go of": (_restore_brings_it_back, _backed_up),
    "an archive is not read back": (_archive_not_read_back, _archived),
    "events of list items let go of": (_lists_forgotten, _on_sqlite),
    "grace ignored": (_grace_ignored, test_retain.test_nothing_goes_before_its_grace_is_over),
}


@pytest.mark.parametrize("name", PLANTS)
def test_each_is_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    break_it, catcher = PLANTS[name]
    with holdfast.open("memory:") as hf:
        assert _found_nothing(catcher, hf, tmp_path / "sound")
    with monkeypatch.context() as broken, holdfast.open("memory:") as hf:
        break_it(broken.setattr)
        assert not _found_nothing(catcher, hf, tmp_path / "broken")


def _found_nothing(catcher: Callable[..., None], hf: Store, place: Any) -> bool:
    place.mkdir()
    wants_place = "tmp_path" in catcher.__code__.co_varnames[: catcher.__code__.co_argcount]
    try:
        catcher(hf, place) if wants_place else catcher(hf)
    except (AssertionError, holdfast.HoldfastError, pytest.fail.Exception):
        return False
    return True
