"""Tools to test programs that use holdfast, and to prove a backend or a key store.

`FakeClock`, `RecordBuilder`, `FaultyBackend` and `CrashPoints` are here. The contract classes are
in `holdfast.testing.contract` and `holdfast.testing.durable`, that of key stores in
`holdfast.testing.keys`, the state machine in `holdfast.testing.machine`. Only these modules need
pytest and Hypothesis.
"""

from __future__ import annotations

import sys

from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import CrashPoints, FaultyBackend
from holdfast.testing.records import RecordBuilder

__all__ = ["CrashPoints", "FakeClock", "FaultyBackend", "RecordBuilder"]

_ASSERTING = (
    "holdfast.testing.ahead",
    "holdfast.testing.commits",
    "holdfast.testing.contract",
    "holdfast.testing.durable",
    "holdfast.testing.keys",
    "holdfast.testing.leases",
    "holdfast.testing.machine",
    "holdfast.testing.reads",
)

if "pytest" in sys.modules:
    # Without this, a failing clause shows "AssertionError" and not the values.
    sys.modules["pytest"].register_assert_rewrite(*_ASSERTING)
