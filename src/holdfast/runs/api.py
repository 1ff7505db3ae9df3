"""The names of `holdfast.runs`, imported together when the first is asked for."""

from holdfast.runs.admin import RunSummary
from holdfast.runs.ambient import Current, current
from holdfast.runs.blocks import Outcome, Progress
from holdfast.runs.context import Context, Operations
from holdfast.runs.define import Retry, RunFunction, Step, run, step
from holdfast.runs.engine import Engine, Run
from holdfast.runs.processes import Output
from holdfast.runs.room import RunsRoom
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
    "RunSummary",
    "RunsRoom",
    "Step",
    "StepContext",
    "current",
    "run",
    "step",
]
