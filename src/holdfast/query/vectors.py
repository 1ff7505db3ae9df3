"""Search by meaning: vectors of texts from the user's embedder, kept as derived data.

No model comes with Holdfast. An embedder has a name and a dimension, and turns texts into vectors.
The index keeps one vector for each document with text. They are as disposable as the index; no
event ever holds one. Documents are numbered as they are added, and a changed document gets a new
number. So it is enough to note up to which number an embedder has seen them.

A search is exact. If the database can compare vectors (sqlite-vec, pgvector), it returns some more
candidates than needed, and they are sorted here by their vectors; otherwise all vectors are
compared here. So every database finds the same.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import mul
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from holdfast.core.codec import kept_closed
from holdfast.errors import UnavailableError, UsageError, show_error, show_value
from holdfast.query.documents import Document, again
from holdfast.query.form import Hit
from holdfast.record.context import RecordContext

if TYPE_CHECKING:
    from holdfast.backends.derived_tables import Condition, SideSession, SideTables

KINDS = ("message", "decision", "task", "fact", "event")
"""The kinds of documents that get vectors. States are found by their words and paths instead."""
TEXT_CHARACTERS_MAX = 8_000
AT_ONCE = 64
CLOSE = 0.001
"""The most by which two databases may differ in the same distance."""
DIMENSION_MAX = 16_000
LISTED = (
    "SELECT n, kind, scope, id, revision FROM docs WHERE chunks > 0 AND n > ? AND kind IN "
    f"({', '.join(map(repr, KINDS))}) ORDER BY n LIMIT {AT_ONCE}"
)


def _sum_of_products(a: array[float], b: array[float]) -> float:
    return sum(map(mul, a, b))


_dot: Callable[[array[float], array[float]], float] = getattr(math, "sumprod", _sum_of_products)
"""The dot product: `math.sumprod` from Python 3.12 on."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors, with a model that you choose."""

    name: str
    """Names the model: vectors of embedders with different names are never compared."""
    dimension: int

    def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """Returns a vector for each text."""
        ...


class Similar(Struct, frozen=True):
    """A hit, and how near it is in meaning: 1 is the same, 0 is unrelated.

    The score is the cosine of the angle between the two vectors.
    """

    hit: Hit
    score: float


class Model(Struct, frozen=True):
    """An embedder as the index knows it, and the number up to which it has seen documents."""

    number: int
    name: str
    dimension: int
    seen: int


def check_embedder(embedder: object) -> Embedder | None:
    """Returns the argument if it is an embedder or None, else raises UsageError."""
    if embedder is None:
        return None
    if not isinstance(embedder, Embedder):
        raise UsageError(
            "an embedder has a name, a dimension and a method embed(texts), "
            f"found {show_value(embedder)}"
        )
    name, dimension = cast("object", embedder.name), cast("object", embedder.dimension)
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of an embedder is text, found {show_value(name)}")
    is_whole = isinstance(dimension, int) and not isinstance(dimension, bool)
    if not is_whole or not 1 <= cast("int", dimension) <= DIMENSION_MAX:
        raise UsageError(
            f"the dimension of an embedder is a whole number from 1 to {DIMENSION_MAX}, "
            f"found {show_value(dimension)}"
        )
    return embedder


def embed(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    """Returns the stored form of the vectors of texts: length 1, 32-bit floats, little-endian.

    A vector of zeros has no direction; it is stored as empty, and nothing is near it.

    Raises UnavailableError if the embedder fails, and UsageError if it does not return one vector
    of its dimension for each text.
    """
    try:
        answer: Any = embedder.embed(texts)
        found: list[Any] | None = list(answer) if hasattr(answer, "__iter__") else None
    except Exception as error:
        raise UnavailableError(
            f'the embedder "{embedder.name}" failed: {show_error(error)[:200]}',
            hint="what was recorded is unharmed, and what it has seen so far is kept: try again",
        ) from error
    if found is None:
        raise UsageError(
            f'the embedder "{embedder.name}" returned {show_value(answer)}: expected a vector for '
            "each text"
        )
    if len(found) != len(texts):
        raise UsageError(
            f'the embedder "{embedder.name}" returned {len(found)} vectors for {len(texts)} texts'
        )
    return [_kept(embedder, one) for one in found]


def _kept(embedder: Embedder, vector: Any) -> bytes:
    try:
        numbers = [float(one) for one in vector]
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f'the embedder "{embedder.name}" returned {show_value(vector)}: expected a list of '
            "numbers"
        ) from error
    if len(numbers) != embedder.dimension:
        raise UsageError(
            f'the embedder "{embedder.name}" says that its dimension is {embedder.dimension}, and '
            f"returned a vector of {len(numbers)}",
            hint="correct its dimension; give a model of another dimension another name",
        )
    length = math.sqrt(sum(one * one for one in numbers))
    if not math.isfinite(length):
        raise UsageError(f'the embedder "{embedder.name}" returned a number that is not finite')
    return _bytes(array("f", [one / length for one in numbers])) if length else b""


def _bytes(numbers: array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def numbers_of(kept: bytes) -> array[float]:
    """Decodes a stored vector."""
    numbers = array("f")
    numbers.frombytes(kept)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# --- what the index knows -------------------------------------------------------------------------


def models_of(told: str) -> list[Model]:
    """Decodes the embedders whose vectors are in the tables."""
    return [Model(number, *one) for number, one in enumerate(json.loads(told))]


def model_for(told: str, embedder: Embedder) -> Model:
    """Returns the index's entry for an embedder, or a new one.

    Raises UsageError if the name is known with another dimension.
    """
    models = models_of(told)
    for one in models:
        if one.name == embedder.name:
            if one.dimension == embedder.dimension:
                return one
            raise UsageError(
                f'the embedder "{one.name}" had the dimension {one.dimension}, and now has '
                f"{embedder.dimension}",
                hint="give the new model another name; hf.search.rebuild() forgets the old one",
            )
    return Model(len(models), embedder.name, embedder.dimension, 0)


def texts_of(
    context: RecordContext, listed: Iterable[tuple[int, str, str, str, int]]
) -> list[tuple[int, str]]:
    """Returns the numbers and current texts of documents, without those that are gone."""
    found: list[tuple[int, str]] = []
    for n, kind, scope, id, revision in listed:
        with kept_closed():
            document: Document | None = again(context, kind, scope, id, revision)
        if document is not None and document.texts:
            found.append((n, "\n".join(document.texts)[:TEXT_CHARACTERS_MAX]))
    return found


def keep(
    session: SideSession,
    tables: SideTables,
    model: Model,
    seen: int,
    vectors: Sequence[tuple[int, bytes]],
) -> None:
    """Adds vectors of documents up to the number `seen`, unless another process did meanwhile."""
    told = session.ask("SELECT value FROM about WHERE name = 'vectors'")[0][0]
    models: list[list[Any]] = [[one.name, one.dimension, one.seen] for one in models_of(told)]
    if model.number == len(models):
        models.append([model.name, model.dimension, 0])
    kept = models[model.number]
    if kept != [model.name, model.dimension, model.seen]:
        return
    marks = ", ".join("?" * len(vectors))
    numbers = [n for n, _ in vectors]
    rows = session.ask(f"SELECT n FROM docs WHERE n IN ({marks})", numbers) if vectors else []
    there = {n for (n,) in rows}  # a document that was replaced since has another number
    tables.add_vectors(session, model.number, [one for one in vectors if one[0] in there])
    kept[2] = seen
    session.ask("UPDATE about SET value = ? WHERE name = 'vectors'", [json.dumps(models)])


# --- searching ------------------------------------------------------------------------------------


def nearest(
    session: SideSession,
    tables: SideTables,
    model: Model,
    target: bytes,
    others: Condition,
    count: int,
) -> list[tuple[float, int]]:
    """Returns the documents nearest to a vector, each with its score, perhaps more than `count`.

    All documents with the same score as the last one are included, so that the caller can settle
    their order. The database is asked for more until its last candidate is clearly farther away.
    """
    asked = count + 32
    while True:
        found = tables.nearest(session, model.number, target, others, asked)
        if found is None:
            rows = session.ask(
                "SELECT docs.n, vectors.vector FROM docs JOIN vectors ON vectors.n = docs.n "
                f"WHERE vectors.model = {model.number} AND {others[0]}",
                others[1],
            )
            return _scored(target, [(n, bytes(kept)) for n, kept in rows], count)
        if len(found) < asked or found[-1][2] > found[count - 1][2] + CLOSE:
            return _scored(target, [(n, kept) for n, kept, _ in found], count)
        asked *= 4


def _scored(
    target: bytes, rows: Sequence[tuple[int, bytes]], count: int
) -> list[tuple[float, int]]:
    wanted = numbers_of(target)
    scored = [(float(_dot(wanted, numbers_of(kept))), n) for n, kept in rows]
    scored.sort(reverse=True)
    last = scored[count - 1][0] if len(scored) >= count else -math.inf
    return [one for one in scored if one[0] >= last]
