"""Runs: programs whose position survives anything.

Rules 1 to 12 in docs/guarantees.md say what a run may rely on; decision 0013 says why. `define` has
the decorators, `context` what a body can do, `steps`, `blocks` and `waits` how each operation is
performed, `operation` what it asks its driver for, `journal` what was recorded of them, `execution`
a run that this process owns, `engine` all runs of a store in this process.
"""

from holdfast.runs.blocks import Outcome, Progress
from holdfast.runs.context import Context, Operations
from holdfast.runs.current import Current, current
from holdfast.runs.define import Retry, RunFunction, Step, run, step
from holdfast.runs.engine import Engine, Run
from holdfast.runs.processes import Output
from holdfast.runs.steps import Begun, StepContext

__all__ = [
    "Begun",
    "Context",
    "Current",
    "Engine",
    "Operations",
    "Outcome",
    "Output",
    "Progress",
    "Retry",
    "Run",
    "RunFunction",
    "Step",
    "StepContext",
    "current",
    "run",
    "step",
]
