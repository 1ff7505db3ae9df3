"""T21: scopes with ends and holds, copied to and from a real Redis, which lets go by itself.

One point is a pair of backends, of which one at least is a Redis server, and a store with scopes
that last, that end while it is copied, that end in an hour, whose end slides, and that a hold keeps
past their end. Large values are shared between them. The copier is killed three times, as in
`t21-copies`; between the deaths the source is written to. Then the ends come, by the clocks of the
servers themselves.

In the end all that lasts or is held is in the target, with its large values, and no key of it has
an end; what has ended can be read in neither store, and a server has none of its events; the holds
are equal. Cases are the scopes that were compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast import Store
from holdfast.backends.protocol import Backend, Commit
from holdfast.errors import ExpiredError, HoldfastError
from holdfast.transfer import sink as sinks
from holdfast.transfer import source as sources
from holdfast.transfer.copy import copy_log
from tests.servers import redis
from tests.servers.contents import fill_by_chance
from tests.servers.kinds import KEPT
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t21_copies import DEATHS, Run, opened, replaced

PATIENCE_S = 60.0
HOUR_S = 3_600.0
SHARED = "shared " * 15_000
OTHERS = [kind for kind in KEPT if kind != "redis"]
PAIRS = [(kind, "redis") for kind in KEPT] + [("redis", kind) for kind in OTHERS]

LASTING = ("lasts", "held", "held slide", "held past", "held later")
HOURS = ("hour", "hour slide", "hour held")
ENDED = ("short 0", "short 1", "short 2", "short slide")


class Ends(Run):
    """One pair, one store."""

    def __init__(self, point: Point) -> None:
        super().__init__(point, PAIRS)
        self.is_alive = False
        self.seen: set[Any] = set()
        self.over_at = 0.0

    def fill(self, store: Store) -> None:
        """Begins what ends first: its large values are in the target before those that last."""
        chance = self.random
        soon = {name: chance.uniform(0.8, 3.0) for name in (*ENDED, "held", "held slide")}
        terms = {"held past": 0.3, **soon, "held later": 3.0, **dict.fromkeys(HOURS, HOUR_S)}
        for name, ttl_s in terms.items():
            scope = store.conversation(name, ttl_s=ttl_s, slides="slide" in name)
            shared = SHARED if name in ENDED else "n"  # what is held keeps its large values anyway
            scope.set("shared", shared, key="k", checkpoint="p")
            scope.update({"own": f"{name} " * 15_000, "n": 0})
            if name in ("held past", "held", "held slide", "hour held"):
                store.retention.hold(scope, "a request")
        store.conversation("lasts").update({"shared": SHARED, "n": 0})
        fill_by_chance(store, chance, steps=30)
        now = time.monotonic()
        self.over_at = now + max(*soon.values(), terms["held later"]) + 0.1
        self.look(store)
        _until(lambda: time.monotonic() > now + terms["held past"], "the first end does not come")

    def look(self, store: Store) -> None:
        """Notes every event that the source has had."""
        self.seen |= set(_readable(store._log._backend))

    def go_on(self, store: Store) -> None:
        """Writes to the source between two deaths; holds one scope late, while it is there."""
        for name in ("lasts", "hour slide"):
            store.conversation(name).increment("n")
        if time.monotonic() < self.over_at - 1.0:
            store.retention.hold("conversation/held later", "late")
        self.look(store)

    def judge_beginning(self, one: Store, other: Store) -> None:
        report = other.check()
        if not report.ok:
            raise Broken(f"{self}: what a killed copy left is damaged: {report.findings[:3]}")
        strange = set(_readable(other._log._backend)) - self.seen
        if strange:
            raise Broken(f"{self}: the target has what the source never had: {strange!r:.300}")

    def finish(self, one: Store, other: Store) -> int:
        """Copies, lets the ends come, copies again, and compares."""
        copy_log(one._log, other._log)
        held = {name.scope for name in one.retention.holds()}
        _until(lambda: time.monotonic() > self.over_at, "the ends do not come")
        gone = [name for name in (*ENDED, "held later") if f"conversation/{name}" not in held]
        for kind, url in zip((self.source, self.target), self.urls, strict=True):
            if kind == "redis":
                _until(
                    lambda u=url: not any(_has_events(u, name) for name in gone),
                    f"{self}: the server keeps {gone}",
                )
        copy_log(one._log, other._log)
        there = [name for name in (*LASTING, *HOURS) if name not in gone]
        for name in there:
            self._judge_same(one, other, name)
        for name in gone:
            for store in (one, other):
                try:
                    found = store.conversation(name).get("n")
                except ExpiredError:
                    continue
                if found is not None:  # None: it had ended before it was copied
                    raise Broken(f"{self}: {name} has ended, and is read")
        if [hold.scope for hold in other.retention.holds()] != sorted(held):
            raise Broken(f"{self}: other holds: {other.retention.holds()}")
        if self.target == "redis":
            self._judge_keys(other, [name for name in there if name not in HOURS[:2]])
        for store in (one, other):
            if not (report := store.check()).ok:
                raise Broken(f"{self}: {report.findings[:3]}")
        return len(there) + len(gone)

    def _judge_same(self, one: Store, other: Store, name: str) -> None:
        try:
            mine, theirs = (store.conversation(name).state.to_dict() for store in (one, other))
        except HoldfastError as error:
            raise Broken(f"{self}: {name} cannot be read: {error!r}") from error
        heads = [store._log.heads([f"conversation/{name}"])[0] for store in (one, other)]
        ends = [(head.revision, head.link) for head in heads if head is not None]
        if mine != theirs or len(ends) != 2 or ends[0] != ends[1]:
            raise Broken(f"{self}: {name} is another one: {heads}")

    def _judge_keys(self, other: Store, names: list[str]) -> None:
        """Raises if the server will let go of a scope that lasts, or of a large value of it."""
        root = _root(self.urls[1])
        with redis.server(redis.OLDEST).client() as client:
            for name in names:
                large = other.conversation(name).get("own", SHARED)
                blob = sha256(b'"' + large.encode() + b'"').hexdigest()
                for key in (f"{root}:events:conversation/{name}", f"{root}:object:blob:{blob}"):
                    if (left := client.pttl(key)) != -1:
                        raise Broken(f"{self}: {name} loses {key} in {left} ms")


def _readable(backend: Backend) -> Iterator[Any]:
    """Yields the events of every stream that has not ended."""
    after = ""
    while names := backend.streams(after=after):
        for name in names:
            try:
                records = backend.read(name)
            except ExpiredError:
                continue
            for one in records:
                yield one.stream, one.revision, one.type, one.payload, one.link, one.key
        after = names[-1]


def _root(url: str) -> str:
    [application] = parse_qs(urlsplit(url).query)["application"]
    return f"holdfast:{{{application}}}"


def _has_events(url: str, name: str) -> bool:
    with redis.server(redis.OLDEST).client() as client:
        return bool(client.exists(f"{_root(url)}:events:conversation/{name}"))


def _until(holds: Callable[[], bool], trouble: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise Broken(trouble)
        time.sleep(0.02)


def trial(point: Point) -> int:
    run = Ends(point)
    with PLANTS[point.plant]():
        try:
            with opened(run.urls[0]) as one:
                run.fill(one)
            for _ in range(DEATHS):
                run.die()
                with opened(run.urls[0]) as one, opened(run.urls[1]) as other:
                    run.judge_beginning(one, other)
                    run.go_on(one)
            with opened(run.urls[0]) as one, opened(run.urls[1]) as other:
                return run.finish(one, other)
        except HoldfastError as error:
            raise Broken(f"{run}: {error!r}") from error


# --- faults --------------------------------------------------------------------------------------


@contextmanager
def tells_no_server() -> Iterator[None]:
    """A server is not told what is held."""
    with (
        replaced(sinks.Sink, "_keep_held", lambda *_: None),
        replaced(sinks, "keep_held", lambda *_: []),
    ):
        yield


def leaves_out_what_is_held() -> Any:
    """A scope that only a hold keeps is taken for one that has ended."""
    return replaced(sources.Source, "_is_held", lambda *_: False)


def trusts_a_blob_with_an_end() -> Any:
    """A large value that is there already is not written again, whatever its end is."""
    write_blobs = sinks.Sink._write_blobs

    def trusting(self: Any, commit: Commit, place: int) -> None:
        objects = self._parts[place].objects
        for append in commit.appends:
            for record in append.records:
                for name, _ in sinks.codec.blobs_in(record.payload):
                    if name in objects.names("blob", prefix=name):
                        self._known.add((place, name))
        write_blobs(self, commit, place)

    return replaced(sinks.Sink, "_write_blobs", trusting)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


PLANTS: dict[str, Callable[[], Any]] = {
    "": _nothing,
    "tells-no-server": tells_no_server,
    "leaves-out-what-is-held": leaves_out_what_is_held,
    "trusts-a-blob-with-an-end": trusts_a_blob_with_an_end,
}
WITHIN = {
    "tells-no-server": len(PAIRS),
    "leaves-out-what-is-held": 2,
    "trusts-a-blob-with-an-end": len(PAIRS),
}

PROGRAMMES = (
    Programme(
        "t21-ends",
        "a killed copy to or from Redis keeps what is held, and lets go of what has ended",
        trial,
        share=len(PAIRS),
        points=300,
        parts=2,
        turns=len(PAIRS),
        plants=WITHIN,
    ),
)
