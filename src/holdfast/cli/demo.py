"""The verb that shows what Holdfast does: demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from holdfast.cli.options import Flag, command
from holdfast.cli.printing import console, is_terminal, print_json, print_line
from holdfast.clock import SystemClock
from holdfast.render.store import demo_document
from holdfast.render.text import clean


def demo(
    *,
    dir: Annotated[str, Parameter(name="--dir")] = "demo-store",
    backend: Literal["files", "sqlite"] = "files",
    json: Flag = False,
) -> int:
    """See the point in under a minute: one agent is killed, nothing is lost.

    Parameters
    ----------
    dir
        The folder for the data, which stays; if it exists, a new one is created beside it.
    backend
        What keeps the data: plain files, or a SQLite database in that folder.
    json
        Print one JSON document; errors are JSON too.
    """
    from holdfast.contrib.demo.scenes import make_folder, run_demo

    folder = make_folder(Path(dir))
    clock = SystemClock()
    start = clock.boot_us()
    story = run_demo(folder, backend, show=ignore if json else print_styled, command=command)
    seconds = (clock.boot_us() - start) / 1_000_000
    if json:
        print_json(demo_document(story, seconds=seconds))
    else:
        print_line()
        print_line(f"Done in {seconds:.1f} s. The data is in {folder}: try the commands above.")
    return 0 if story.is_true else 1


def ignore(_text: str, _style: str) -> None:
    """Shows nothing: a JSON document follows."""


def print_styled(text: str, style: str) -> None:
    """Prints a line, in a style on a terminal."""
    if not is_terminal():
        print_line(clean(text))
        return
    from rich.text import Text

    console().print(Text(clean(text), style=style), soft_wrap=True)
