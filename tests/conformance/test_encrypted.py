"""A backend that encrypts keeps the contract that the one below it keeps."""

from __future__ import annotations

from pathlib import Path

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Backend, Record
from holdfast.clock import Clock
from holdfast.core.encryption import Encryption
from holdfast.core.store_key import StoreKey
from holdfast.testing.contract import BackendContract

KEY = StoreKey(b"k" * 32)


class TestEncrypted(BackendContract):
    def make(self, place: Path, clock: Clock) -> Backend:
        return Encryption(KEY, clock, "test", create=True).wrap(MemoryBackend(clock=clock))

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        return backend.read(stream)

    # These begin with a store at position 0. A store with a key begins with the commit of the key.
    test_clause_10_an_empty_store_has_nothing = None
    test_clause_11_wait_returns_what_there_is_after_its_time = None
    test_clause_20_a_moment_has_what_was_acknowledged_and_nothing_later = None
    test_clause_35_marks_are_of_the_moment = None
