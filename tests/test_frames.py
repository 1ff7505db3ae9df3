"""The way of a write and of a step stays short: `tools/frames.py` counts our frames and files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.core.log import Log

TOOL = Path(__file__).parent.parent / "tools" / "frames.py"
MOST = {
    "scope.set": (45, 12),
    "scope.get": (13, 8),
    "message": (57, 15),
    "pure step": (27, 6),
    "effect step": (90, 18),
}
"""The most frames and files that each path may take, on the oldest interpreter."""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("frames", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["frames"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Forks:
    """A log of forks: "a" began in "b", and "b" in "c"."""

    def origin(self, stream: str) -> tuple[str, int] | None:
        return {"a": ("b", 2), "b": ("c", 1)}.get(stream)


def test_a_generator_counts_once_however_often_it_is_resumed(tool: ModuleType) -> None:
    forks: Any = Forks()
    assert tool.count(lambda: list(Log.ancestry(forks, "a", 3))).calls == (
        "core/log.py:Log.ancestry",
    )


@pytest.fixture(scope="module")
def measured(tool: ModuleType) -> dict[str, Any]:
    return tool.measure()


@pytest.mark.parametrize("path", MOST)
def test_a_path_takes_no_more_frames_and_files_than_it_may(
    measured: dict[str, Any], path: str
) -> None:
    found = measured[path]
    frames_most, files_most = MOST[path]
    assert (found.frames <= frames_most, found.files <= files_most) == (True, True), (
        f"{path} takes {found.frames} frames in {found.files} files, at most {frames_most} in "
        f"{files_most} are allowed; see python tools/frames.py --trace {path!r}\n"
        + "\n".join(found.calls)
    )
