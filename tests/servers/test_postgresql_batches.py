"""Random batches, given to a PostgreSQL store and to the contract in its shortest form.

What the contract leaves open is not generated: nothing ends while a batch is under way, `read_ends`
name some of `reads` in their order, no payload is empty, and no answer is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from holdfast.backends import protocol
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.postgresql import PostgresqlBackend
from holdfast.backends.protocol import Cleared, Commit, Fence, Mark, Receipt, Record, Refusal
from holdfast.clock import SystemClock
from holdfast.testing import RecordBuilder
from tests.servers.postgresql import NEWEST, server

BATCHES = 400
_PAST, _FUTURE = 1_700_000_000_000_000, 4_000_000_000_000_000
_METAS = '{"m":"\\u0000"}', '{"\\\\":"\u2028"}'
_NEVER = "no stream of any batch", 7
_PARTS = ["appends", "events", "reads", "read ends", "marks", "watch", "fence", "copy", "ahead"]
_PARTS += ["fork", "text", "end"]
_MISTAKES = ["ahead", "read", "end", "fence", "fork", "revision", "link", "key"]
_ODD = ("", "'", '"', "\\", "%_", "[0]", '","', "é\u2028", "\U0001f600", "\\u0000", "\r\n", "null")
_PAYLOADS = [b"1", b"NULL", b'""', b'"\\n"', b'"\\u0000"', b'"\\\\"', b"{}", b"[[],[]]"]
_PAYLOADS += ['"\u2028\u2029\x85\x0b"'.encode(), b'{"\'":"\\"$1"}', b"[1,\r\t2]", b"9" * 70_000]


class Batches:
    """Makes batches that the model accepts but for mistakes; each has a few kinds of either."""

    def __init__(self, seed: int, model: MemoryBackend, fences: Sequence[Fence]) -> None:
        self._random = Random(seed)
        self._model = model
        self._held, *self._lost = fences
        self._build = RecordBuilder()
        self._kinds: set[str] = set()
        self._is_mistaken = False
        self.streams: list[str] = []
        self._keys: dict[str, list[str]] = {}

    def make(self, number: int) -> list[Commit]:
        random = self._random
        if number % 20 == 0:  # others, so that streams begin, and stay short
            self.streams = [f"{number}{odd}" for odd in random.sample(_ODD, 4)]
            self._keys = {stream: [] for stream in self.streams}
        self._kinds = {*random.sample(_PARTS, random.choice((0, 1, 2, 4, len(_PARTS))))}
        self._kinds.update(random.sample(_MISTAKES, random.choice((0, 1, 1, 2))))
        found = [self._model.read(stream)[-1:] for stream in self.streams]
        tails = {last.stream: last for [last] in filter(None, found)}
        return [self._commit(tails) for _ in range(random.choice((1, 1, 2, 3, 4)))]

    def _has(self, part: str) -> bool:
        return part in self._kinds and self._random.random() < 0.5

    def _errs(self, mistake: str) -> bool:
        is_mistaken = mistake in self._kinds and self._random.random() < 0.3
        self._is_mistaken |= is_mistaken
        return is_mistaken

    def _some(self, part: str, names: Sequence[str]) -> list[str]:
        return self._random.sample(names, self._random.randint(1, 3)) if self._has(part) else []

    def _commit(self, tails: dict[str, Record]) -> Commit:
        """Returns a commit behind `tails`, which have its records from then on if it is right."""
        random, self._is_mistaken = self._random, False
        named = random.sample(self.streams, random.randint(0, 3) if self._has("appends") else 1)
        is_ahead = self._errs("ahead") or self._has("ahead")
        times = [tails[name].time for name in named if name in tails]
        time = max([_FUTURE if is_ahead else _PAST, *times])
        appends = [self._append(name, time, tails) for name in named]
        reads = [
            (name, (tails[name].revision if name in tails else 0) + self._errs("read"))
            for name in self._some("reads", self.streams)
        ]
        has_ends = self._has("read ends")
        ends = [(name, _PAST if self._errs("end") else _FUTURE) for name, _ in reads if has_ends]
        marks = list(map(self._mark, self._some("marks", "abc")))
        fence = self._held if self._has("fence") else None
        fence = random.choice(self._lost) if self._errs("fence") else fence
        watch = self._some("watch", [*self.streams, "unknown"])
        self._build.time = time
        commit = self._build.commit(
            *appends, reads=reads, fence=fence, marks=marks, watch=watch, read_ends=ends
        )
        is_copy = self._has("copy") or (is_ahead and not self._is_mistaken)
        if not self._is_mistaken:
            tails.update({append.stream: append.records[-1] for append in appends})
        return replace(commit, is_copy=is_copy)

    def _append(self, stream: str, time: int, tails: dict[str, Record]) -> protocol.Append:
        random, last = self._random, tails.get(stream)
        fork = bool(tails) and (self._errs("fork") or (last is None and self._has("fork")))
        if fork or (tails and self._errs("revision")):
            last = random.choice(list(tails.values()))
            last = replace(last, revision=random.randint(1, last.revision + 1))
        payloads = random.sample(_PAYLOADS, random.randint(1, 3) if self._has("events") else 1)
        self._build.time = time
        append = self._build.append(
            stream,
            *payloads,
            behind=last and replace(last, time=0),
            fork=fork,
            keys=self._keys_for(stream, len(payloads)),
            checkpoint=random.choice(_ODD) if self._has("text") else None,
            subject=random.choice(_ODD) if self._has("text") else None,
            meta=random.choice(_METAS) if self._has("text") else None,
            type=random.choice(("kind", *_ODD[1:])),
            expires_us=_PAST if self._errs("end") else _FUTURE if self._has("end") else 0,
        )
        link = random.randbytes(32) if last is None or self._errs("link") else last.link
        return replace(append, previous=link if random.random() < 0.7 else None)

    def _keys_for(self, stream: str, count: int) -> list[str | None]:
        known, keys = self._keys[stream], list[str | None]()
        for _ in range(count):
            key = self._random.choice(known[-3:]) if known and self._errs("key") else None
            if key is None and self._random.random() < 0.3:
                key = f"{len(known)}{self._random.choice(_ODD)}"
                known.append(key)
            keys.append(None if key in keys else key)
        return keys

    def _mark(self, key: str) -> Mark | Cleared:
        choice = self._random.choice
        index = choice(_ODD[:2])
        mark = Mark(index, key, choice((0, _FUTURE)), choice((-1, 0, 9)), choice(_ODD))
        return Cleared(index, key) if choice((True, False, False)) else mark


def outcome_of(model: MemoryBackend, commit: Commit) -> Receipt | Refusal:
    """Returns the model's outcome, with the clock of a server, which it has not (clause 22)."""
    heads = model.heads([append.stream for append in commit.appends])
    ahead = [
        Refusal("ahead", append.stream, append.expected)
        for append, head in zip(commit.appends, heads, strict=True)
        if head is None or head.time < commit.time
    ]
    if not ahead or commit.is_copy or commit.time < _FUTURE:
        return model.commit([commit])[0]
    [outcome] = model.commit([replace(commit, reads=(*commit.reads, _NEVER))])
    return ahead[0] if outcome == Refusal("conflict", *_NEVER) else outcome


def check(url: str, seed: int) -> None:
    """Gives both the batches of a seed, and compares all that they answer and then hold."""
    model = MemoryBackend(clock=SystemClock())
    store = PostgresqlBackend(url, clock=SystemClock(), durability="none")
    fences: dict[Fence, Fence] = {}  # of the model and of the store: each has its own epochs
    for name, ttl_s in (("held", 3600), ("lapsed", 0)):
        leases = [one.leases.acquire(name, "me", ttl_s=ttl_s) for one in (model, store)]
        mine, its = [Fence(one.name, one.owner, one.epoch) for one in leases if one is not None]
        fences |= {mine: its, replace(mine, owner="you"): replace(its, owner="you")}
        fences[replace(mine, epoch=mine.epoch + 1)] = replace(its, epoch=its.epoch + 1)
    positions = {0: protocol.START}

    def placed(record: Record | protocol.Head | None) -> object:
        return record and replace(record, position=positions[record.position])

    batches = Batches(seed, model, list(fences))
    for number in range(BATCHES):
        print(f"seed {seed}, batch {number}")  # shown where the test fails
        commits = batches.make(number)
        expected = [outcome_of(model, commit) for commit in commits]
        sent = [replace(one, fence=one.fence and fences[one.fence]) for one in commits]
        found = store.commit(sent)
        assert list(map(type, found)) == list(map(type, expected))
        for one, other in zip(found, expected, strict=True):
            if isinstance(one, Receipt) and isinstance(other, Receipt):
                assert one.position > max(positions)
                positions[one.position] = other.position
                assert one.news == other.news
            elif isinstance(one, Refusal) and isinstance(other, Refusal):
                # What was expected of a stream that was only read is not told by each backend.
                if other.reason == "expired" and not other.expected:
                    one = replace(one, expected=0)
                assert replace(one, head=None, now_us=0) == replace(other, head=None)
                assert placed(one.head) == other.head
        for stream in batches.streams if number % 5 == 4 else ():
            assert list(map(placed, store.read(stream))) == model.read(stream)
            assert placed(store.heads([stream])[0]) == model.heads([stream])[0]
        assert store.marks.list() == model.marks.list()
    assert store.streams(limit=1 << 20) == model.streams(limit=1 << 20)
    assert list(map(placed, store.read_all(limit=1 << 20))) == model.read_all(limit=1 << 20)
    assert list(store.inspect.verify(read_all=True)) == []
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_end_as_in_the_model(seed: int) -> None:
    name = f"random_batches_{seed}"
    server(NEWEST).create_database(name)
    check(server(NEWEST).url(name), seed)
