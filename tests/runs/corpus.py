"""Run programs whose outcome is known: cut anywhere and resumed, each must end as if never cut.

To add one: write a run in the module of its topic, and put a `Program` into the module's list, with
what it gives and does uncut. Its acts go through the witness, by key.
"""

from __future__ import annotations

from tests.runs.corpus_async import ASYNC
from tests.runs.corpus_branches import BRANCHES
from tests.runs.corpus_chains import CHAINS
from tests.runs.corpus_children import CHILDREN, small
from tests.runs.corpus_cleanups import CLEANUPS
from tests.runs.corpus_failures import FAILURES
from tests.runs.corpus_loops import LOOPS
from tests.runs.corpus_steps import Program, add, order, pay, post
from tests.runs.corpus_waits import WAITS
from tests.runs.corpus_writes import WRITES

PROGRAMS = [
    *CHAINS,
    *LOOPS,
    *BRANCHES,
    *FAILURES,
    *WAITS,
    *CHILDREN,
    *WRITES,
    *ASYNC,
    *CLEANUPS,
]
BY_NAME = {program.name: program for program in PROGRAMS}

__all__ = ["BY_NAME", "PROGRAMS", "Program", "add", "order", "pay", "post", "small"]
