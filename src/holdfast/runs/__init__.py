"""Runs: functions whose position survives a crash. Rules 1 to 12: docs/guarantees.md."""

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
