"""Projects: a person and a coordinator share one working directory.

settings      `[project]` of holdfast.toml
survey        what a directory shows of a project
project       the project itself: its scope, its tasks, its coordinator
coordinator   the one that works, under the project's lease; its children
work          work on a task as a run, with a block for each turn
housekeeping  slow operations, memory, the disk, and the retention of sessions
inbox         messages to the coordinator, taken in the commits that use them
outcome       the outcome of a task, and of a session
recovery      what was recovered after a crash, and from where
doctor        the problems of a project, and their remedies
tree          files as git sees them, and rewind points
trees         work trees of children, and the merge of their files
handoff       one session gives its context to another
sessions      conversations of the project, and who is in them
"""

from holdfast.projects.coordinator import Child, Coordinator, Holder, Result
from holdfast.projects.doctor import Ailment
from holdfast.projects.handoff import Accepted, Handoff
from holdfast.projects.housekeeping import SlowOperation
from holdfast.projects.inbox import WaitingMessage
from holdfast.projects.outcome import Outcome, Summary
from holdfast.projects.project import Project, ProjectStatus
from holdfast.projects.recovery import RecoveryReport
from holdfast.projects.sessions import ProjectSession, SessionSize
from holdfast.projects.settings import Settings
from holdfast.projects.survey import Finding, Survey

__all__ = [
    "Accepted",
    "Ailment",
    "Child",
    "Coordinator",
    "Finding",
    "Handoff",
    "Holder",
    "Outcome",
    "Project",
    "ProjectSession",
    "ProjectStatus",
    "RecoveryReport",
    "Result",
    "SessionSize",
    "Settings",
    "SlowOperation",
    "Summary",
    "Survey",
    "WaitingMessage",
]
