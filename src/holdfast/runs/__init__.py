"""Runs: programs whose position survives anything. DESIGN rules 1 to 12; decision 0013."""

from holdfast.runs.blocks import Outcome, Progress
from holdfast.runs.context import Operations
from holdfast.runs.define import Retry, RunFunction, Step, run, step
from holdfast.runs.driver import Context
from holdfast.runs.engine import Engine, Run
from holdfast.runs.processes import Output
from holdfast.runs.steps import Begun, StepContext

__all__ = [
    "Begun",
    "Context",
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
    "run",
    "step",
]
