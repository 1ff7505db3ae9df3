"""A process that copies: `python -m tests.servers.copier A B`. It says a line a batch, and waits.

It goes on when it is told to, so that a test can kill it between any two batches, or while one is
on its way.
"""

from __future__ import annotations

import sys

import holdfast
from holdfast.transfer import sink, source
from holdfast.transfer.copy import copy_log


def main(one_url: str, other_url: str) -> None:
    sink.COMMITS_PER_BATCH = 3
    source.RECORDS_PER_READ = 7

    def say(passed: int, total: int) -> None:
        print(passed, total, flush=True)
        sys.stdin.readline()

    with holdfast.open(one_url, create=False) as one, holdfast.open(other_url) as other:
        copy_log(one._log, other._log, progress=say)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
