"""Holds on scopes of a backend that lets go by itself (clause 30), without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Commit, Head, Receipt, Refusal
from holdfast.copy import copy
from holdfast.core.expiry import HOLDS
from holdfast.errors import CorruptError, ExpiredError, NotFoundError, UsageError
from holdfast.testing import FakeClock
from holdfast.transfer import sink

LARGE = "x" * 100_000


class Forgetful(MemoryBackend):
    """A backend that says of its streams when it lets go of them by itself."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.ends: dict[str, int] = {}

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        for commit in commits:
            self.ends.update((one.stream, one.expires_us) for one in commit.appends)
        return super().commit(commits)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        found = zip(streams, super().heads(streams), strict=True)
        return [
            None if head is None else replace(head, expires_us=self.ends.get(stream, 0))
            for stream, head in found
        ]


class Keeping(Forgetful):
    """The same, with `keep`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.names: set[str] = set()
        self.gone: set[str] = set()

    def keep(self, stream: str, is_kept: bool) -> bool:
        (self.names.add if is_kept else self.names.discard)(stream)
        return stream not in self.gone

    def kept(self) -> list[str]:
        return sorted(self.names)


def opened(kind: type[Forgetful]) -> tuple[Store, Any, FakeClock]:
    clock = FakeClock()
    backend = kind(clock)
    return holdfast.open(backend, settings=Settings(clock=clock)), backend, clock


def test_a_backend_without_keep_takes_no_hold_of_what_it_lets_go_of() -> None:
    store, _, _ = opened(Forgetful)
    with store:
        store.conversation("c1", ttl_s=60).set("n", 1)
        store.conversation("c2").set("n", 1)
        with pytest.raises(UsageError, match="has no keep"):
            store.retention.hold("conversation/c1")
        assert store.retention.holds() == []
        store.retention.hold("conversation/c2")
        store.retention.unhold("conversation/c2")


def test_a_hold_is_told_to_the_backend_and_taken_back() -> None:
    store, backend, clock = opened(Keeping)
    with store:
        chat = store.conversation("c1", ttl_s=60)
        chat.set("text", LARGE)
        store.retention.hold(chat)
        assert backend.kept() == ["conversation/c1"]
        chat.set("text", LARGE + "y")  # its blob is kept for good
        clock.advance(61)
        assert chat["text"] == LARGE + "y"
        store.retention.unhold(chat)
        assert backend.kept() == []
        marks = store.workers.marks("retention.blob")
        assert len(marks) == 2
        assert {mark.due for mark in marks} == {clock.now_us() + 7 * 24 * 3600 * 1_000_000}
        with pytest.raises(NotFoundError, match="is not held"):
            store.retention.unhold(chat)


def test_what_is_gone_already_is_not_held() -> None:
    store, backend, _ = opened(Keeping)
    with store:
        store.conversation("c1", ttl_s=60).set("n", 1)
        store.retention.hold("conversation/c1")
        backend.gone.add("conversation/c1")
        store.retention.run()  # passes over it
        with pytest.raises(ExpiredError):
            store.retention.hold("conversation/c1")


def test_damaged_marks_hide_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store, backend, clock = opened(Keeping)
    with store:
        chat = store.conversation("c1", ttl_s=60)
        chat.set("n", 1)
        found = backend.marks.find

        def damaged(query: Any) -> Any:
            if query.index == HOLDS:
                raise CorruptError("the marks are damaged", where="marks")
            return found(query)

        monkeypatch.setattr(backend.marks, "find", damaged)
        clock.advance(61)
        with pytest.raises(ExpiredError):
            chat.get("n")


# --- copies -------------------------------------------------------------------------------------


def source(clock: FakeClock) -> Store:
    """A store with a scope that is held and others, each written by a commit of its own."""
    store = holdfast.open("memory:", settings=Settings(clock=clock))
    store.conversation("a").set("n", 1)
    store.conversation("h", ttl_s=60).set("text", LARGE)
    store.conversation("not", ttl_s=60).set("n", 1)
    store.retention.hold("conversation/h")
    return store


class Killed(BaseException):
    """Stands for the death of the process."""


def stopped(*_: Any, **__: Any) -> None:
    raise Killed


def test_a_copy_that_was_killed_before_it_asked_to_keep_is_made_good_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not only at its very end, which it may never come to."""
    store, backend, clock = opened(Keeping)
    with store, source(clock) as theirs:
        for place in ("_keep_held", "set_marks"):
            with monkeypatch.context() as patched:
                patched.setattr(sink.Sink, place, stopped)
                with pytest.raises(Killed):
                    copy(theirs, store)
        assert backend.kept() == ["conversation/h"]
        clock.advance(61)
        assert copy(theirs, store).commits == 0
        assert store.conversation("h")["text"] == LARGE


def test_a_copy_keeps_what_was_written_behind_a_commit_that_another_copier_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, backend, clock = opened(Keeping)
    send, rounds = sink._send, list[int]()

    def late(part: Any, wanted: list[Commit]) -> Any:
        if not rounds:
            part.commit(wanted[:1])
        written, refusal = send(part, wanted)
        rounds.append(len(written))
        return written, refusal

    with store, source(clock) as theirs:
        monkeypatch.setattr(sink, "_send", late)
        monkeypatch.setattr(sink.Sink, "set_marks", stopped)
        with pytest.raises(Killed):
            copy(theirs, store)
        assert rounds == [3, 0]
        assert backend.kept() == ["conversation/h"]


@pytest.mark.parametrize("when", ["there already", "at the end"])
def test_a_held_scope_that_the_target_has_let_go_of_is_told_by_its_name(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, backend, clock = opened(Keeping)
    with store, source(clock) as theirs:
        if when == "there already":
            copy(theirs, store)
            backend.gone.add("conversation/h")
        else:
            set_marks = sink.Sink.set_marks

            def late(self: Any, *args: Any) -> None:
                backend.gone.update(("conversation/h", "conversation/not"))
                set_marks(self, *args)

            monkeypatch.setattr(sink.Sink, "set_marks", late)
        with pytest.raises(UsageError, match='let go of "conversation/h" at its end'):
            copy(theirs, store)


def test_a_scope_that_is_not_held_and_gone_is_no_error() -> None:
    store, backend, clock = opened(Keeping)
    with store, source(clock) as theirs:
        copy(theirs, store)
        backend.gone.add("conversation/not")
        copy(theirs, store)
        theirs.retention.unhold("conversation/h")
        backend.gone.add("conversation/h")
        copy(theirs, store)
