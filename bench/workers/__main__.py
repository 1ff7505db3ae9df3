"""The process around a worker: one JSON request a line on stdin, one JSON answer on stdout.

    {"do": "open", "worker": "SqliteSaver", "path": "...", "options": {}}  -> {"release": "..."}
    {"do": "block", "operation": "turn", "operations": 20}  -> {"seconds": s, "latencies": [...]}
    {"do": "marked", "operation": "turn", "operations": 20}                -> {}
    {"do": "close"}                                                        -> {}

`marked` looks for a file that is not there between two operations: the mark in a trace.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from bench.workers import Worker, block, make

MARK = "between-two-operations"


def answer(request: dict[str, Any], worker: Worker) -> dict[str, Any]:
    """Does what was asked of an open worker."""
    if request["do"] == "block":
        seconds, latencies = block(worker, request["operation"], request["operations"])
        return {"seconds": seconds, "latencies": latencies}
    if request["do"] == "marked":
        for _ in range(request["operations"]):
            os.access(MARK, os.F_OK)
            block(worker, request["operation"], 1)
        os.access(MARK, os.F_OK)
        return {}
    worker.close()
    return {}


def main() -> None:
    # Peers warn of experimental features and deprecations; the answers share this terminal.
    warnings.simplefilter("ignore")
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if worker is None:
            worker = make(request["worker"], request["path"], **request["options"])
            said: dict[str, Any] = {"release": worker.release}
        else:
            said = answer(request, worker)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
