"""A store in miniature: small ring, segments, index steps, snapshots and WAL, which turn over."""

from __future__ import annotations

from holdfast import snapshots
from holdfast.backends.files import catalog, journal, opening, ring
from holdfast.backends.sqlite import opening as sqlite_opening


def make_small() -> None:
    """Changes the sizes for this process; the format allows any."""
    ring.RING_BYTES = 128 << 10
    journal.SEGMENT_BYTES = 256 << 10
    catalog.FLUSH_BYTES = 32 << 10
    opening.WORTH_INDEXING_BYTES = 1 << 10
    sqlite_opening.WAL_PAGES = 24
    snapshots.GROWTH_BYTES_MIN = 64 << 10
