"""The verb that tests a disk by killing, failing and filling stores on it: selftest."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from holdfast.cli.options import Flag, Seconds
from holdfast.cli.printing import is_terminal, print_json, print_line
from holdfast.render.store import selftest_document
from holdfast.render.text import clean

if TYPE_CHECKING:
    from holdfast.selftest.examinations import CheckResult


def selftest(
    *,
    disk: Annotated[str, Parameter(name="--disk")],
    seconds: Seconds = 15.0,
    seed: int | None = None,
    json: Flag = False,
) -> int:
    """Kill, fail and fill a store on your own disk; judge its syncs.

    Parameters
    ----------
    disk
        A directory on the disk; the test runs in a scratch directory there, removed at the end.
    seconds
        About how long to take: a number of seconds, or text such as 2m.
    seed
        Decides when a process is killed and which disk call fails; repeats an earlier test.
    json
        Print one JSON document; errors are JSON too.
    """
    from holdfast import selftest as torture

    screen = SelftestProgress(is_shown=not json and sys.stderr.isatty())
    try:
        report = torture.run(
            disk,
            seconds=15.0 if seconds is None else seconds,
            seed=seed,
            show=(lambda _: None) if json else screen.show,
            tell=screen.tell,
        )
    finally:
        screen.clear()
    if json:
        print_json(selftest_document(report))
        return 0 if report.ok else 1
    for each in report.checks:
        if each.fix:
            print_line(f"fix {each.check}\t{clean(each.fix)}")
    for each in report.unproven:
        print_line(f"unproven\t{each}")
    print_line(f"verdict\t{report.verdict} ({report.seconds:.1f} s, seed {report.seed})")
    return 0 if report.ok else 1


class SelftestProgress:
    """Prints results, and on a terminal a last line that says what goes on."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._width = 0

    def show(self, result: CheckResult) -> None:
        self.clear()
        mark = {"failed": "FAILED"}.get(result.verdict, result.verdict)
        if is_terminal():
            print_line(f"{mark:<8} {result.check:<22} {clean(result.found)}")
        else:
            print_line(f"{mark}\t{result.check}\t{clean(result.found)}")

    def tell(self, text: str) -> None:
        if self._is_shown:
            self.clear()
            shown = clean(text)[: max(os.get_terminal_size(sys.stderr.fileno()).columns - 1, 0)]
            self._width = len(shown)
            print(shown, end="\r", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._width:
            print(" " * self._width, end="\r", file=sys.stderr, flush=True)
            self._width = 0
