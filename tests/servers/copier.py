"""A process that copies: `python -m tests.servers.copier A B`. It says a line a batch, and waits.

It goes on when it is told to, so that a test can kill it between any two batches, or while one is
on its way.
"""

from __future__ import annotations

import sys

import holdfast
from holdfast.core import copy as copying


def main(source: str, target: str) -> None:
    copying.COMMITS_PER_BATCH = 3
    copying.RECORDS_PER_READ = 7

    def say(passed: int, total: int) -> None:
        print(passed, total, flush=True)
        sys.stdin.readline()

    with holdfast.open(source, create=False) as one, holdfast.open(target) as other:
        copying.copy_log(one._log, other._log, progress=say)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
