"""The benchmark of files runs, small, and measures what it says (BOOT-49)."""

from __future__ import annotations

from pathlib import Path

from bench.files import text_append_times


def test_the_limits_of_text_files_are_measured(tmp_path: Path) -> None:
    """BOOT-49: an append to YAML, to TSV and to a scope, each at so many records."""
    times = text_append_times(tmp_path / "small", 50)
    assert list(times) == [
        "YAML, loaded and written again",
        "TSV, a line at its end",
        "holdfast",
    ]
    assert (tmp_path / "small" / "events.yaml").read_text().count("- type: event") == 51
    assert len((tmp_path / "small" / "events.tsv").read_text().splitlines()) == 51
