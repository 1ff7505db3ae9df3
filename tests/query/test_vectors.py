"""What is near in meaning: equal to brute force on every backend, with a library or without."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, UnavailableError, UsageError, aio
from holdfast.query import vectors
from tests.opening import settled
from tests.record import stores
from tests.record.stores import new_url


class Words:
    """A tiny embedder: each word has a direction of its own, by chance, and a text their sum."""

    def __init__(self, dimension: int = 24, name: str = "words") -> None:
        self.name = name
        self.dimension = dimension
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        self.seen += texts
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        total = [0.0] * self.dimension
        for word in text.split():
            total = [a + b for a, b in zip(total, _direction(word, self.dimension), strict=True)]
        return total


@cache
def _direction(word: str, dimension: int) -> list[float]:
    chance = random.Random(sha256(word.encode()).digest())
    return [chance.gauss(0, 1) for _ in range(dimension)]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def texts_of(found: Sequence[Any]) -> list[str]:
    return [one.hit.shown for one in found]


def test_what_was_said_is_found_by_its_meaning(url: str) -> None:
    """BOOT-29: of every kind, in forks too; as it is now; what else is asked for leaves out."""
    words = Words()
    with holdfast.open(url, actor="ada", settings=Settings(embedder=words)) as hf:
        chat = hf.conversation("c")
        chat.say("the cache is cold")
        chat.decide("warm the cache", key="d1")
        chat.tasks.add("write about birds", id="t1")
        chat.facts.state("birds", "they sing")
        chat.record("noted", {"said": "birds sing"}, unchecked=True)
        chat.set("cache", "a state is not compared")
        found = hf.search.similar("the cache is cold")
        assert texts_of(found)[:2] == ["the cache is cold", "warm the cache"]
        assert found[0].score == pytest.approx(1.0, abs=1e-5)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len(found) == 5
        [decision] = hf.search.similar("warm the cache", kind="decision")
        assert decision.hit.id == "d1@conversation/c"
        assert texts_of(hf.search.similar("birds", limit=2, scope="conversation", text="sing")) == [
            "birds sing", "birds"
        ]  # fmt: skip
        fork = chat.fork("f")
        [near] = hf.search.similar("the cache is cold", scope=fork, limit=1)
        assert (near.hit.scope, near.hit.shown) == (fork.name, "the cache is cold")
        chat.messages.edit(chat.messages[0], content="the oven is hot")
        assert texts_of(hf.search.similar("the oven is hot", limit=1)) == ["the oven is hot"]
        assert texts_of(hf.search.similar("the oven is hot", limit=1, scope=fork)) != [
            "the oven is hot"
        ]
        fork.remove()
        assert not hf.search.similar("the cache is cold", scope=fork)
        words.seen.clear()
        hf.search.similar("birds")
        assert words.seen == ["birds"], "what was seen once is kept"


def test_the_nearest_of_one_agent_by_1536_numbers(url: str) -> None:
    """BOOT-59: top ten of what one agent knows, by the direction of long vectors."""

    class Long:
        name, dimension = "long", 1536

        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return [[1.0 + (hash_of(text, n) % 97) for n in range(1536)] for text in texts]

    def hash_of(text: str, n: int) -> int:
        return sum(map(ord, text)) * (n + 1)

    with holdfast.open(url, actor="ada", settings=Settings(embedder=Long())) as hf:
        chat = hf.team("red")
        for n in range(12):
            with holdfast.provenance(actor="ada" if n % 2 else "bob"):
                chat.facts.state(f"fact{n}", f"it is {'x' * n}")
        found = hf.search.similar("fact3", kind="fact", actor="ada", limit=10)
        assert [one.hit.actor for one in found] == ["ada"] * 6
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)


def test_what_was_seen_is_kept_for_other_processes(durable_url: str) -> None:
    with holdfast.open(durable_url, settings=Settings(embedder=Words())) as hf:
        hf.conversation("c").say("the cache is cold")
        hf.search.similar("cache")
    words = Words()
    with holdfast.open(durable_url) as hf:
        hf.conversation("c").say("the oven is hot")
        assert texts_of(hf.search.similar("oven", limit=1, embedder=words)) == ["the oven is hot"]
        assert words.seen == ["oven", "the oven is hot"]
        other = Words(7, name="others")
        assert len(hf.search.similar("oven", embedder=other)) == 2, "two models beside each other"
        assert len(other.seen) == 3


def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backends.derived_file._load_vectors", lambda _: False)


@pytest.mark.parametrize("kind", ["plain", "library"])
def test_the_nearest_of_ten_thousand_equal_brute_force(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sqlite-vec, and compared in Python."""
    if kind == "plain":
        without_library(monkeypatch)
    _equals_brute_force("memory:", kind == "library", 10_000, monkeypatch)


def test_pgvector_equals_brute_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BOOT-59: where the extension is there the server compares; it is never installed by us."""
    url = new_url("postgresql", tmp_path)
    _equals_brute_force(url, False, 300, monkeypatch)
    server = stores._postgresql()
    import psycopg

    with psycopg.connect(server.url("record"), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    try:
        _equals_brute_force(new_url("postgresql", tmp_path), True, 300, monkeypatch)
    finally:
        with psycopg.connect(server.url("record"), autocommit=True) as connection:
            connection.execute("DROP EXTENSION vector CASCADE")


def _equals_brute_force(
    url: str, compares: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(15)
    known = [f"w{number}" for number in range(400)]
    said = [" ".join(chance.choices(known, k=4)) for _ in range(count)]
    said[5] = said[6] = said[7]  # equals are found in the order of their places
    words = Words(12)
    answers: list[Any] = []
    original = vectors.nearest

    def noting(session: Any, tables: Any, model: Any, target: Any, others: Any, limit: int) -> Any:
        answers.append(tables.nearest(session, model.number, target, others, 1))
        return original(session, tables, model, target, others, limit)

    monkeypatch.setattr(vectors, "nearest", noting)
    monkeypatch.setattr(vectors, "AT_ONCE", 1_000)
    with holdfast.open(url, settings=Settings(embedder=words)) as hf:
        chat = hf.conversation("c")
        for at in range(0, count, 1_000):
            some = said[at : at + 1_000]
            chat.messages.add_many([{"role": "user", "content": text} for text in some])
        by_text = {text: words.vector(text) for text in said}
        for asked in (said[5], said[77], "w1 w2"):
            target = words.vector(asked)
            found = hf.search.similar(asked, timeout=300)
            best = sorted(
                ((cosine(target, by_text[text]), at) for at, text in enumerate(said)), reverse=True
            )[:10]
            assert [one.score for one in found] == pytest.approx([s for s, _ in best], abs=1e-5)
            for one, (score, at) in zip(found, best, strict=True):
                is_tie = sum(abs(score - other) < 1e-6 for other, _ in best) > 1
                assert one.hit.shown == said[at] or is_tie
    assert all((answer is not None) is compares for answer in answers)


class Failing(Words):
    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        raise OSError("no network")


class Wrong(Words):
    def __init__(self, answer: Any) -> None:
        super().__init__(3, "wrong")
        self.answer = answer

    def embed(self, texts: Sequence[str], /) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[1, 2]], "says that its dimension is 3, and returned a vector of 2"),
        ([], "returned 0 vectors for 1 texts"),
        ([["a", "b", "c"]], "expected a list of numbers"),
        ([7], "expected a list of numbers"),
        (None, "returned None: expected a vector for each text"),
        ([[1, 2, float("nan")]], "not finite"),
    ],
)
def test_an_embedder_that_does_not_do_what_it_says(answer: Any, said: str) -> None:
    with holdfast.open("memory:", settings=Settings(embedder=Wrong(answer))) as hf:
        hf.conversation("c").say("hello")
        with pytest.raises(UsageError, match=said):
            hf.search.similar("hello")


def test_an_embedder_that_fails_or_changes(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with holdfast.open(place, settings=Settings(embedder=Words())) as hf:
        hf.conversation("c").say("hello")
        assert len(hf.search.similar("hello")) == 1
    with holdfast.open(place, settings=Settings(embedder=Failing())) as hf:
        with pytest.raises(UnavailableError, match="failed: OSError: no network"):
            hf.search.similar("hello")
        assert len(hf.search.similar("hello", embedder=Words())) == 1
    with holdfast.open(place, settings=Settings(embedder=Words(5))) as hf:
        with pytest.raises(UsageError, match="had the dimension 24, and now has 5"):
            hf.search.similar("hello")
        hf.search.rebuild()
        assert len(hf.search.similar("hello")) == 1


def test_a_text_without_a_direction() -> None:
    with holdfast.open("memory:", settings=Settings(embedder=Words())) as hf:
        hf.conversation("c").say("hello")
        nothing = Wrong([[0, 0, 0]])
        assert hf.search.similar("hello", embedder=nothing) == []


def test_a_search_that_has_no_time_for_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory:", settings=Settings(embedder=Words())) as hf:
        hf.conversation("c").say("hello")
        hf.query(limit=1)
        with pytest.raises(UnavailableError, match="has not seen everything in time"):
            hf.search.similar("hello", timeout=0)
        assert hf.search.similar("hello", timeout=0, stale_ok=True) == []
        assert len(hf.search.similar("hello")) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"embedder": 7}, "has a name, a dimension"),
        ({"embedder": Words(0)}, "from 1 to 16000, found 0"),
        ({"embedder": Words(True)}, "found True"),
        ({"embedder": Words(name="")}, "name of an embedder is text"),
    ],
)
def test_what_is_no_embedder(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        holdfast.open("memory:", **settled(given))


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        ("", {}, "takes a text"),
        (7, {}, "takes a text"),
        ("a", {"kind": "state"}, "not compared by its meaning"),
        ("a", {"where": ("a", "=", 1)}, "a state is not compared"),
        ("a", {"limit": 0}, "limit"),
        ("a", {"knd": "task"}, 'nearest is "kind"'),
    ],
)
def test_bad_questions(text: Any, asked: Any, said: str) -> None:
    with (
        holdfast.open("memory:", settings=Settings(embedder=Words())) as hf,
        pytest.raises(UsageError, match=said),
    ):
        hf.search.similar(text, **asked)


def test_a_store_without_an_embedder() -> None:
    with holdfast.open("memory:") as hf, pytest.raises(UsageError, match="without an embedder"):
        hf.search.similar("hello")


def test_asyncio() -> None:
    async def main() -> None:
        async with await aio.open("memory:", settings=Settings(embedder=Words())) as hf:
            await hf.conversation("c").say("hello")
            assert len(await hf.search.similar("hello")) == 1

    asyncio.run(main())
