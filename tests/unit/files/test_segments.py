"""Clause 12: no thread reads through a descriptor that another has closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files.disk import Disk
from holdfast.backends.files.text import Segments
from tests.unit.files.conftest import FaultyDisk

WAITED_S = 0.5  # that one who need not wait is done; one who must waits for us, not we for it
COUNT = 9  # one more than are kept open


@pytest.mark.parametrize("meanwhile", ["append", "close"])
def test_what_is_being_read_is_not_closed(tmp_path: Path, meanwhile: str) -> None:
    for start in range(COUNT):
        (tmp_path / f"{start * 4:016x}.jsonl").write_bytes(b"abc\n")
    acts: list[Callable[[], object]] = []
    threads: list[threading.Thread] = []

    def fault(_: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        del arguments
        if name == "pread" and acts:
            threads.append(threading.Thread(target=acts.pop()))
            threads[0].start()
            threads[0].join(WAITED_S)
        return run()

    folder = os.open(tmp_path, os.O_RDONLY)
    disk: Disk = FaultyDisk(fault)
    segments = Segments(disk, folder, read_only=False)
    try:
        for start in range(COUNT - 1):  # all but the newest
            assert segments.read(start * 4, start * 4 + 4) == b"abc\n"
        end = COUNT * 4
        acts.append(
            (lambda: segments.append(end, b"def\n")) if meanwhile == "append" else segments.close
        )
        assert segments.read(0, 4) == b"abc\n"
        threads[0].join(120)
        assert segments.end() == (end + 4 if meanwhile == "append" else end)
    finally:
        segments.close()
        os.close(folder)
