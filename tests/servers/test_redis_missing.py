"""Every key of a Redis store, deleted, renamed or replaced: found by what needs it, and by `check`.

An operator's DEL, a script with a wrong prefix, an eviction: what was acknowledged is never read as
absent, and never written a second time, without an error (clause 12, guarantee 7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.backends.protocol import Append, Commit, Fence, Head, Mark, Receipt
from holdfast.backends.redis import RedisBackend, connection
from holdfast.backends.redis import server as redis_server
from holdfast.clock import SystemClock
from holdfast.core.commit import ProposedCommit
from holdfast.core.commit_queue import Request
from holdfast.core.log import scope_stream
from holdfast.core.tree import set_op
from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    NotFoundError,
    UnavailableError,
)
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import accepted, head_of
from tests.servers.redis import OLDEST, server

ROOT = "the store's own key"
OF_STORE = (ROOT, "heads", "streams", "log", "leases", "indexes")
OF_STREAM = ("events", "keys", "checkpoints", "named")
OF_INDEX = ("marks", "order", "due", "ready", "held", "claims")
OF_OBJECTS = ("object:blob:ab", "object:blob:cd", "objects:blob", "expiring:blob")
OF_SNAPSHOTS = ("object:snapshot:ab", "objects:snapshot")
KEYS = (
    *OF_STORE,
    *(f"{kind}:{stream}" for kind in OF_STREAM for stream in ("lasts", "ends")),
    *(f"{kind}:i" for kind in OF_INDEX),
    *OF_OBJECTS,
    *OF_SNAPSHOTS,
)


class Filled:
    """A store with something of every kind, and what it answers."""

    def __init__(self, application: str) -> None:
        self.url = server(OLDEST).url(application=application)
        self.root = f"holdfast:{{{application}}}"
        self.build = RecordBuilder()
        self.backend = backend = self.open()
        now_us = backend.now_us("")
        self.ends = (now_us // 1000 + 3_600_000) * 1000
        lasts = self._append("lasts", "k", "p", None)
        due = now_us - 1_000_000
        marks = [Mark("i", "held", due, 9), Mark("i", "ready", due), Mark("i", "due", self.ends)]
        accepted(backend, self.build.commit(lasts, marks=marks))
        accepted(backend, self.build.commit(self._append("ends", "k", "p", None)))
        lease = backend.leases.acquire("l", "w", ttl_s=3600)
        assert lease is not None
        self.fence = Fence(lease.name, lease.owner, lease.epoch)
        assert [mark.key for mark in backend.marks.claim("i", "w", n=1, ttl_s=3600)] == ["held"]
        backend.objects.put("blob", "ab", b"for good")
        backend.objects.put("blob", "cd", b"for a while", expires_us=self.ends)
        backend.objects.put("snapshot", "ab", b"a fold")

    def open(self) -> RedisBackend:
        return RedisBackend(self.url, clock=SystemClock())

    def key(self, name: str) -> str:
        return self.root if name == ROOT else f"{self.root}:{name}"

    def _append(
        self, stream: str, key: str, checkpoint: str, behind: Head | None, payload: bytes = b"1"
    ) -> Append:
        ends = self.ends if stream == "ends" else 0
        return self.build.append(
            stream, payload, behind=behind, key=key, checkpoint=checkpoint, expires_us=ends
        )

    def writes(self) -> dict[str, Commit]:
        """Returns commits that rely on what there is, made before anything is damaged."""
        made: dict[str, Commit] = {}
        for stream in ("lasts", "ends"):
            behind = head_of(self.backend, stream)
            again = self._append(stream, "k", "p", None)
            made[f"repeat {stream}"] = self.build.commit(again)
            more = self._append(stream, "k2", "p2", behind, b"2")
            marks = [Mark("i", f"new {stream}")]
            made[f"write {stream}"] = self.build.commit(more, fence=self.fence, marks=marks)
        made["begin a stream"] = self.build.commit(self.build.append("new"))
        return made

    def reads(self, backend: RedisBackend) -> dict[str, Callable[[], Any]]:
        """Returns every question whose answer was acknowledged."""
        found: dict[str, Callable[[], Any]] = {
            "heads": lambda: backend.heads(["lasts", "ends"]),
            "an absent head": lambda: backend.heads(["never"]),
            "streams": backend.streams,
            "all": backend.read_all,
            "newest": lambda: backend.wait(holdfast.backends.protocol.START, timeout_s=0),
            "holder": lambda: backend.leases.holder("l"),
            "leases": lambda: [(one.name, one.owner) for one in backend.leases.list()],
            "marks": backend.marks.list,
            "marks of i": lambda: backend.marks.list("i"),
            "claims": lambda: [(one.key, one.owner) for one in backend.marks.claims()],
            "nothing claimed": lambda: backend.marks.claim("i", "w2", n=0, ttl_s=60),
            "blobs": lambda: backend.objects.names("blob"),
            "blob": lambda: backend.objects.get("blob", "ab"),
            "blob with an end": lambda: backend.objects.get("blob", "cd"),
            "snapshots": lambda: backend.objects.names("snapshot"),
        }
        for stream in ("lasts", "ends"):
            found[f"read {stream}"] = lambda s=stream: backend.read(s)
            found[f"key of {stream}"] = lambda s=stream: backend.find(s, key="k")
            found[f"no key of {stream}"] = lambda s=stream: backend.find(s, key="never")
            found[f"name in {stream}"] = lambda s=stream: backend.find(s, checkpoint="p")
            found[f"names of {stream}"] = lambda s=stream: backend.find(s)
        return found


def _relied_on(name: str) -> tuple[str, ...]:
    """Returns what must raise when a key is gone."""
    kind, _, rest = name.partition(":")
    writes = ("write lasts", "write ends")
    match kind:
        case "heads":
            return ("heads", "an absent head", "read lasts", "begin a stream", *writes)
        case "streams":
            return ("streams", "begin a stream")
        case "log":
            return ("all", *writes)
        case "leases":
            return ("holder", "leases", *writes)
        case "events":
            return (f"read {rest}", "all", f"write {rest}", f"repeat {rest}")
        case "keys":
            return (f"key of {rest}", f"no key of {rest}", f"write {rest}", f"repeat {rest}")
        case "checkpoints":
            return (f"names of {rest}", f"write {rest}")
        case "named":
            return (f"name in {rest}", f"write {rest}")
        case "object":
            return {"blob:ab": ("blob",), "blob:cd": ("blob with an end",)}.get(rest, ())
        case "objects":
            return ("blobs",) if rest == "blob" else ("snapshots",)
        case "expiring":
            return ()
        case "indexes" | "marks" | "order" | "due" | "ready" | "held" | "claims":
            return ("marks", "marks of i", "claims", "nothing claimed", *writes)
        case _:
            return ("heads", "read lasts", "all", "streams", "newest", "marks", *writes)


def test_all_keys_of_a_store_are_tried(request: pytest.FixtureRequest) -> None:
    """A key that is new in the format fails here until it has its place above."""
    filled = Filled(request.node.name)
    with server(OLDEST).client() as client:
        found = {key.decode() for key in client.scan_iter(f"{filled.root}*", count=1000)}
    assert found == {filled.key(name) for name in KEYS}
    filled.backend.close()


@pytest.mark.parametrize("how", ["deleted", "renamed", "of another type"])
@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_is_gone_is_never_an_absence(
    name: str, how: str, request: pytest.FixtureRequest
) -> None:
    filled = Filled(request.node.name)
    _check_without(filled, name, how)
    if name == ROOT:
        with pytest.raises((CorruptError, FormatError)):
            filled.open()
    else:
        found = filled.backend.inspect.verify(read_all=name.startswith("object:"))
        assert list(found) != []
        with holdfast.open(filled.url) as store:
            assert not _is_sound(store, name)
    filled.backend.close()


def _check_without(filled: Filled, name: str, how: str) -> None:
    """Takes a key away. Whoever needs it says so, and everybody else answers as before."""
    backend = filled.backend
    before = {what: read() for what, read in filled.reads(backend).items()}
    writes = filled.writes()
    with server(OLDEST).client() as client:
        key = filled.key(name)
        is_text = client.type(key) == b"string"
        if how == "renamed":
            client.rename(key, f"{key}-renamed")
        else:
            client.delete(key)
        if how == "of another type":
            client.rpush(key, "theirs") if is_text else client.set(key, "theirs")
    told: set[str] = set()
    for what, read in filled.reads(backend).items():
        try:
            found = read()
        except (CorruptError, NotFoundError):
            told.add(what)
        else:
            assert found == before[what], f"{what} was answered without {name}"
    for what, commit in writes.items():
        try:
            [outcome] = backend.commit([commit])
        except (CorruptError, NotFoundError):
            told.add(what)
        else:
            is_repeat = what.startswith("repeat")
            assert isinstance(outcome, Receipt) != is_repeat, f"{what}: {outcome}"
    assert set(_relied_on(name)) <= told


@pytest.mark.parametrize(
    "name",
    ["heads", "streams", "log", "keys:lasts", "keys:ends", "named:lasts", "leases", "ready:i"],
)
def test_counts_that_nobody_compares_are_found(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the scripts count, and take whatever they find."""
    read = redis_server._file

    def planted(file: str) -> str:
        text = read(file)
        if file != "redis_counts.lua":
            return text
        broken = text.replace("if counted and found", "if false and found")
        broken = broken.replace("error('DAMAGED marks of '", "return ('DAMAGED marks of '")
        assert ("if false and" in broken, "return ('DAMAGED" in broken) == (True, True)
        return broken

    monkeypatch.setattr(redis_server, "_file", planted)
    filled = Filled(request.node.name)
    with pytest.raises(AssertionError):
        _check_without(filled, name, "deleted")
    filled.backend.close()


def _is_sound(store: holdfast.Store, name: str) -> bool:
    try:
        report = store.check()
    except HoldfastError:
        return False
    return report.ok if not name.endswith("snapshot:ab") else not report.findings


@pytest.mark.parametrize("name", ["keys:lasts", "heads", "log", "ready:i", "events:lasts"])
def test_a_commit_that_is_refused_for_damage_writes_nothing(
    name: str, request: pytest.FixtureRequest
) -> None:
    """All that a commit will write is looked at before its first write: nothing is rolled back."""
    filled = Filled(request.node.name)
    writes = filled.writes()
    with server(OLDEST).client() as client:
        key = filled.key(name)
        client.delete(key)
        client.set(key, "theirs")

        def all_of_it() -> dict[bytes, bytes]:
            keys = sorted(client.scan_iter(f"{filled.root}*", count=1000))
            return {one: client.dump(one) for one in keys if b":events:" not in one}

        before = all_of_it()
        with pytest.raises(CorruptError, match="another type than"):
            filled.backend.commit([writes["write lasts"]])
        assert all_of_it() == before
    filled.backend.close()


def test_one_head_that_is_gone_leaves_the_others(request: pytest.FixtureRequest) -> None:
    """What is there is read and written; what is not there may be what is gone."""
    filled = Filled(request.node.name)
    backend = filled.backend
    with server(OLDEST).client() as client:
        client.hdel(f"{filled.root}:heads", "ends")
    assert len(backend.read("lasts")) == 1
    more = filled.build.append("lasts", behind=head_of(backend, "lasts"))
    accepted(backend, filled.build.commit(more))
    for call in (
        lambda: backend.read("ends"),
        lambda: backend.read("never"),
        lambda: backend.heads(["ends"]),
        lambda: backend.heads(["lasts", "never"]),
        lambda: backend.find("ends", key="k"),
        lambda: backend.commit([filled.build.commit(filled.build.append("never"))]),
    ):
        with pytest.raises(CorruptError, match=r":heads|events:ends"):
            call()
    found = {one.where for one in backend.inspect.verify(read_all=True)}
    assert {filled.key("heads"), filled.key("events:ends")} <= found
    assert not [where for where in found if "lasts" in where]
    backend.close()


def test_a_count_that_an_operator_removes_is_taken_anew(request: pytest.FixtureRequest) -> None:
    """The way out where a loss is to be accepted: leases of workers that are all stopped."""
    filled = Filled(request.node.name)
    with server(OLDEST).client() as client:
        client.delete(f"{filled.root}:leases")
        with pytest.raises(CorruptError, match="leases"):
            filled.backend.leases.acquire("l", "w2", ttl_s=60)
        client.hdel(filled.root, "leases")
    assert filled.backend.leases.acquire("l", "w2", ttl_s=60) is not None
    assert filled.backend.leases.acquire("m", "w2", ttl_s=60) is not None
    assert [one.name for one in filled.backend.leases.list()] == ["l", "m"]
    assert list(filled.backend.inspect.verify(read_all=True)) == []
    filled.backend.close()


def test_a_store_whose_keys_were_never_counted_is_read_and_written(
    request: pytest.FixtureRequest,
) -> None:
    """As one that was written before there were counts: they begin with what is written next."""
    filled = Filled(request.node.name)
    backend = filled.backend
    before = {what: read() for what, read in filled.reads(backend).items()}
    with server(OLDEST).client() as client:
        counts = ("streams", "entries", "leases", "indexes", "seen")
        objects = (
            f"{one}:{kind}" for one in ("objects", "expiring") for kind in ("blob", "snapshot")
        )
        client.hdel(filled.root, *counts, *objects)
        for stream, head in client.hgetall(f"{filled.root}:heads").items():
            *parts, ends, _, _ = head.split()
            old = [*parts, ends] if ends != b"0" else parts
            client.hset(f"{filled.root}:heads", stream, b" ".join(old))
    for what, read in filled.reads(backend).items():
        assert read() == before[what], what
    for what, commit in filled.writes().items():
        [outcome] = backend.commit([commit])
        assert isinstance(outcome, Receipt) != what.startswith("repeat"), what
    backend.objects.put("blob", "ef", b"more")
    assert backend.leases.acquire("m", "w", ttl_s=60) is not None
    assert [head_of(backend, stream).revision for stream in backend.streams()] == [2, 2, 1]
    assert list(backend.inspect.verify(read_all=True)) == []
    with server(OLDEST).client() as client:
        client.delete(f"{filled.root}:log")
    with pytest.raises(CorruptError, match="log"):
        backend.read_all()
    backend.close()


@pytest.mark.parametrize("name", ["keys:ends", "events:ends", "ready:i"])
def test_damage_that_is_found_behind_a_written_commit_leaves_the_outcome_unknown(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Nobody is told that nothing was written who could then write it a second time."""
    filled = Filled(request.node.name)
    backend, build = filled.backend, filled.build
    marks = [Mark("i", "third")] if name == "ready:i" else []
    sound = build.commit(build.append("new", b"1", key="once"))
    harmed = filled.writes()["write ends"]
    if marks:
        harmed = build.commit(build.append("other"), marks=marks)
    with server(OLDEST).client() as client:
        client.delete(filled.key(name))
    with pytest.raises(UnavailableError, match="earlier commits") as caught:
        backend.commit([sound, harmed, build.commit(build.append("behind"))])
    assert not caught.value.outcome_known
    assert isinstance(caught.value.__cause__, CorruptError)
    # What was written is held against a server that comes back, and is there for all readers.
    assert [one.payload for one in backend.read("new")] == [b"1"]
    assert backend.read("behind") == []
    # If nothing was written before it, damage is told as what it is.
    with pytest.raises(CorruptError):
        backend.commit([sound, harmed])
    assert [one.payload for one in backend.read("new")] == [b"1"]
    backend.close()


@pytest.mark.parametrize("place", [0, 1])
def test_damage_that_is_found_when_a_list_is_sent_again_leaves_the_outcome_unknown(
    place: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke behind the first attempt, and a key was lost before the second."""
    filled = Filled(f"again-{place}")
    backend, build = filled.backend, filled.build
    sound, harmed = build.commit(build.append("new", b"1", key="once")), filled.writes()
    wanted = [harmed["write ends"], sound] if place == 0 else [sound, harmed["write ends"]]
    checkout: Any = backend._checkout
    run_on = checkout.run_on

    def broken(*args: Any) -> Any:
        run_on(*args)
        monkeypatch.undo()
        with server(OLDEST).client() as client:
            client.delete(filled.key("keys:ends"))
        raise connection.CutError("connection reset by peer")

    monkeypatch.setattr(checkout, "run_on", broken)
    with pytest.raises(UnavailableError, match="is damaged") as caught:
        backend.commit(wanted)
    assert not caught.value.outcome_known
    assert [one.payload for one in backend.read("new")] == [b"1"]
    backend.close()


def test_a_store_says_of_a_batch_with_damage_that_its_outcome_is_unknown(
    request: pytest.FixtureRequest,
) -> None:
    filled = Filled(request.node.name)
    with holdfast.open(filled.url) as store:
        store.team("first").set("n", 1)  # what a handle sends first, it sends alone
        with server(OLDEST).client() as client:
            client.delete(filled.key("ready:i"))
        proposed: list[ProposedCommit] = []
        for name, marks in (("a", ()), ("b", (Mark("i", "third"),))):
            stream = scope_stream(store.team(name))
            write = stream.change_write([set_op("n", 1)], None, None, None)
            proposed.append(ProposedCommit((write,), marks=marks))
        with pytest.raises(UnavailableError, match="earlier commits") as caught:
            store._log._run([Request(one) for one in proposed])
        assert not caught.value.outcome_known
        assert store.team("a").get("n") == 1
    filled.backend.close()
