"""A store in miniature: small ring, segments, index steps, snapshots and WAL, which turn over."""

from __future__ import annotations

from holdfast.backends.files import catalog, journal, opening, packing
from holdfast.backends.files import journal as ring
from holdfast.backends.sqlite import opening as sqlite_opening
from holdfast.core import snapshot


def make_small() -> None:
    """Changes the sizes for this process; the format allows any."""
    ring.RING_BYTES = ring.PIECE_BYTES = 128 << 10  # one write, so that it counts as one call
    journal.SEGMENT_BYTES = 256 << 10
    catalog.FLUSH_BYTES = 32 << 10
    opening.WORTH_INDEXING_BYTES = 1 << 10
    packing.SAVED_BYTES_MIN = 1
    packing.PLACE_BYTES = 1 << 10
    sqlite_opening.WAL_PAGES = 24
    snapshot.GROWTH_BYTES_MIN = 64 << 10
