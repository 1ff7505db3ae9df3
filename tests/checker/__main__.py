"""Checks histories: `python -m tests.checker FILE…` prints the anomalies; the code is 1 if any."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

from tests.checker.anomalies import check
from tests.checker.history import parse


def main(names: list[str]) -> int:
    if not names:
        print(__doc__)
        return 2

    def lines() -> Iterator[str]:
        with ExitStack() as stack:
            for name in names:
                yield from stack.enter_context(open(name, encoding="utf-8"))

    history = parse(lines())
    found = check(history)
    for finding in found:
        print(finding)
    print(f"{len(history)} operations, {len(found)} anomalies")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
