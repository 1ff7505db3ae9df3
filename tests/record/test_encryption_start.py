"""Who begins a store decides whether it is encrypted: of two at once, one is refused (0079)."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import Append, Commit, Mark, Receipt, Record
from holdfast.clock import SystemClock
from holdfast.core import encryption
from holdfast.core.encryption import KEYS, StoreKey, check_plain
from holdfast.errors import StoreKeyError, UnavailableError
from tests.crash.children import Child, tell
from tests.record.stores import DURABLE, new_url
from tests.record.test_encryption import on_disk
from tests.selection import RUNS_ALL

KEY = b"k" * 32
CLEAR, LARGE = "CLEAR-5d21", "CLEAR-LARGE-77e0 " * 8000
ROUNDS = 40 if RUNS_ALL else 6


@pytest.fixture(params=DURABLE)
def durable(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("value", [CLEAR, LARGE], ids=["small", "large"])
def test_a_plain_handle_from_before_the_keys_writes_nothing(
    durable: str, tmp_path: Path, value: str
) -> None:
    """It was opened when the store was empty; another process has begun it with a key since."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as late:
        child = Child(lambda p, s: begin(url, KEY, "red", "kept"))
        child.end()
        assert child.trouble is None, child.trouble
        for _ in range(2):
            with pytest.raises(StoreKeyError, match="has begun this store with a store key"):
                late.team("blue").set("n", value)
    with holdfast.open(url, store_key=KEY) as hf:
        assert hf.team("red").get("n") == "kept"
        assert hf.check().findings == []
        assert list(hf.team("blue").state) == []
        assert value[:16].encode() not in on_disk(hf, url, tmp_path)


def test_a_plain_handle_that_began_the_store_goes_on(durable: str, tmp_path: Path) -> None:
    """Whoever comes with a key is refused, and leaves nothing that anybody trips over."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as first, holdfast.open(url) as second:
        child = Child(lambda p, s: late_keys(url, p, s))
        child.hear_until(lambda: bool(child.lines))
        first.team("red").set("n", 1)
        child.tell_to_stop()
        child.end()
        assert child.trouble is None, child.trouble
        assert "begun this store without a key" in child.lines[-1]["refused"]
        second.team("red").set("m", LARGE)  # its own first commit, after keys that do not count
        first.team("red").set("n", 2)
    with holdfast.open(url) as hf:
        assert (hf.team("red").get("n"), hf.team("red").get("m")) == (2, LARGE)
        assert hf.check().findings == []
    with pytest.raises(StoreKeyError, match="is not encrypted"):
        holdfast.open(url, store_key=KEY)


def begin(url: str, key: bytes | None, name: str, value: str) -> None:
    with holdfast.open(url, store_key=key) as hf:
        hf.team(name).set("n", value)


def late_keys(url: str, pipe: int, stop: int) -> None:
    """Opens with a key, and stops between its look at the store and the event of its keys."""
    sound = encryption.DataKeys._append

    def stopped(self: Any, *words: Any) -> bool:
        tell(pipe, looked=True)
        os.read(stop, 1)
        return sound(self, *words)

    encryption.DataKeys._append = stopped  # type: ignore[method-assign]
    try:
        begin(url, KEY, "blue", "n")
    except StoreKeyError as error:
        tell(pipe, refused=error.message)


def racer(url: str, key: bytes | None, number: int, pipe: int, stop: int) -> None:
    """Begins the store when it is told to, writes on, and says what was acknowledged."""
    tell(pipe, ready=True)
    os.read(stop, 1)
    try:
        with holdfast.open(url, store_key=key) as hf:
            scope = hf.team(f"t{number}")
            for step in range(5):
                scope.set(f"k{step}", LARGE if step == 3 else CLEAR)
                tell(pipe, wrote=step)
    except StoreKeyError as error:
        tell(pipe, refused=error.message)


def test_of_processes_that_begin_one_store_one_kind_wins(durable: str, tmp_path: Path) -> None:
    """Two with a key and two without; in every other round one of them is killed as it goes."""
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    random = Random(seed)
    kinds: set[str] = set()
    for round in range(ROUNDS):
        url = new_url(durable, tmp_path)
        children: list[Child] = []
        for number in range(4):
            key = KEY if number % 2 else None
            race = partial(racer, url, key, number)
            children.append(Child(race))
        for child in children:
            child.hear_until(lambda one=child: bool(one.lines))
        order = random.sample(children, 4)
        for child in order:
            child.tell_to_stop()
        if round % 2:
            order[0].hear_for(random.random() / 50)
            if not order[0].is_at_end:
                os.kill(order[0].pid, signal.SIGKILL)
        for child in children:
            status = child.end()
            assert child.trouble is None or os.WIFSIGNALED(status), child.trouble
        kinds.add(judge_round(url, children, tmp_path))
    assert kinds <= {"plain", "encrypted", "empty"}


def judge_round(url: str, children: list[Child], tmp_path: Path) -> str:
    """Returns which kind of store it became; what was acknowledged is there, in that kind."""
    wrote = [[one["wrote"] for one in child.lines if "wrote" in one] for child in children]
    kinds = {number % 2 for number, steps in enumerate(wrote) if steps}
    assert len(kinds) <= 1, "both kinds were acknowledged"
    try:
        hf = holdfast.open(url)
    except StoreKeyError:
        hf = holdfast.open(url, store_key=KEY)
    with hf:
        is_encrypted = hf.keys.status().is_encrypted
        assert kinds <= {int(is_encrypted)}
        for number, steps in enumerate(wrote):
            state = hf.team(f"t{number}").state
            assert [state[f"k{step}"] for step in steps] == [
                LARGE if step == 3 else CLEAR for step in steps
            ]
            assert number % 2 == int(is_encrypted) or not state
        assert hf.check().findings == []
        if is_encrypted:
            part = hf._kernel.encryption.parts[0].inner  # type: ignore[union-attr]
            assert all(b"CLEAR" not in one.payload for one in part.read_all(limit=1000))
        return "encrypted" if is_encrypted else "plain" if kinds else "empty"


# --- the guard itself -----------------------------------------------------------------------------


def commit_of(stream: str, revision: int = 1) -> Commit:
    record = Record(stream, revision, 1, "x", "a", b"{}", bytes(32))
    return Commit(1, "a", (Append(stream, revision - 1, (record,)),))


def with_keys(backend: MemoryBackend) -> None:
    encryption.DataKeys(backend, StoreKey(KEY), SystemClock(), "a").open(create=True)


def test_only_the_first_commit_of_a_handle_is_guarded() -> None:
    backend = MemoryBackend(clock=SystemClock())
    sent: list[Commit] = []
    sound = backend.commit

    def noted(commits: Any) -> Any:
        sent.extend(commits)
        return sound(commits)

    backend.commit = noted  # type: ignore[method-assign]
    check_plain(backend)
    backend.commit([])
    marked = Commit(1, "a", marks=(Mark("index", "key"),))
    answers = backend.commit([marked, commit_of("x/a", 9), commit_of("x/a"), commit_of("x/b")])
    assert [isinstance(one, Receipt) for one in answers] == [True, False, True, True]
    backend.commit([commit_of("x/a", 2)])
    guarded = [(KEYS, 0) in one.reads for one in sent]
    assert guarded == [True, True, True, False, False]  # marks alone begin nothing
    backend.objects.put("blob", "name", b"data")
    assert backend.objects.get("blob", "name") == b"data"


def test_what_was_put_before_a_refused_commit_goes_again(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store") as late:
        backend = late._log._backend
        backend.objects.put("blob", "name", b"in clear")
        begin(str(tmp_path / "store"), KEY, "red", "kept")
        with pytest.raises(StoreKeyError, match="nothing was written"):
            backend.commit([commit_of("x/a")])
        assert "name" not in backend.objects.names("blob")
        with pytest.raises(StoreKeyError):
            backend.objects.put("blob", "name", b"in clear")
        assert "name" not in backend.objects.names("blob")
        assert backend.heads(["x/a"]) == [None]


def test_a_backend_whose_methods_cannot_be_replaced_is_used_as_it_is() -> None:
    class Slotted:
        __slots__ = ("commit", "heads", "objects")

        def __init__(self) -> None:
            self.heads, self.commit, self.objects = (lambda names: [None]), list, object()

    backend: Any = Slotted()
    backend.objects = type("Objects", (), {"__slots__": (), "put": lambda *a, **k: None})()
    assert check_plain(backend) is backend
    assert backend.commit is list


def test_a_first_event_that_cannot_be_seen_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server shows no event behind a transaction that is open."""
    for key in (None, KEY):
        backend = MemoryBackend(clock=SystemClock())
        with_keys(backend)
        monkeypatch.setattr(backend, "wait", lambda after, timeout_s: 0)
        with pytest.raises(UnavailableError, match="cannot be seen yet"):
            holdfast.open(backend, store_key=key)


def test_every_part_of_a_given_backend_is_looked_at() -> None:
    parts = {name: MemoryBackend(clock=SystemClock()) for name in ("team", "*")}
    mixed = MixedBackend(parts, dict.fromkeys(parts, "memory:"))
    with_keys(parts["team"])
    with pytest.raises(StoreKeyError, match="is encrypted, and no store key was given"):
        holdfast.open(mixed)
