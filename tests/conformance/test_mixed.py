"""A mixed backend keeps the contract for whatever one of its backends keeps.

The streams of the contract have no level of a mix, so all of them are kept in the backend of "*";
what the contract says of several streams in one commit can only be asked there. That commits over
two backends are refused, and what lies where, is in tests/unit/test_mixed.py.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import Backend, Commit, Position, Record
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import Clock
from holdfast.core.layers import kept_with
from holdfast.testing.contract import BackendContract
from holdfast.testing.machine import machine_for
from tests.conformance import test_files


def mixed(rest: Backend, chats: Backend) -> MixedBackend:
    shown = {"*": "rest", "conversation": "chats"}
    return MixedBackend({"*": rest, "conversation": chats}, shown, kept_with())


def placed(backend: Backend, records: list[Record]) -> list[Record]:
    """Returns records as they were found in the backend of "*", with positions of the mix."""
    assert isinstance(backend, MixedBackend)
    width = len(backend.parts)
    zeros = [0] * (width - 1)
    join = vars(backend)["_vectors"].join
    return [replace(record, position=join([record.position, *zeros])) for record in records]


class TestMixedMemory(BackendContract):
    def make(self, place: Path, clock: Clock) -> Backend:
        return mixed(MemoryBackend(clock=clock), MemoryBackend(clock=clock))

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        assert isinstance(backend, MixedBackend)
        return placed(backend, list(vars(backend.parts[0])["_streams"].get(stream, ())))


def _make(place: Path, clock: Clock) -> MixedBackend:
    files = test_files._make(place, clock)
    return mixed(files, SqliteBackend(place / "chats.db", clock=clock))


class TestMixedFiles(test_files.TestFiles):
    """The durable and the multi-process contract too, on files, with SQLite beside them."""

    def make(self, place: Path, clock: Clock) -> Backend:
        return _make(place, clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        return placed(backend, super().raw(backend, place, stream))

    def plant(self, place: Path, commit: Commit, position: Position) -> None:
        super().plant(place, commit, Position(position & (1 << 64) - 1))


class TestMixedFilesLikeMemory(machine_for(_make, reopen=_make).TestCase):  # type: ignore[misc]
    """Clauses 1 to 17, in lock step with the memory backend."""
