"""Backends against the memory model, step by step; and the model against itself."""

from __future__ import annotations

from pathlib import Path

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Backend
from holdfast.clock import Clock
from holdfast.testing.machine import machine_for


def make_memory(place: Path, clock: Clock) -> Backend:
    return MemoryBackend(clock=clock)


class TestMemoryAgainstItself(machine_for(make_memory).TestCase):
    """Proves the rules: whatever they compare must be the backend's promise, not its accident."""
