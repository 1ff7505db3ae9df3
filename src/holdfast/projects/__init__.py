"""Projects: a person and a coordinator share one working directory.

settings      `[project]` of holdfast.toml
survey        what a directory shows of a project
project       the project itself: its scope, its tasks, who coordinates it
coordinator   the one that works, under the project's lease; its children
work          work on a task as a run, a turn as a block of it
housekeeping  what is slow, memory, the disk, sessions that are let go of
inbox         messages of a person, taken in the commit that uses them
outcome       what came of a task, and of a session
recovery      what is known again after a crash, and from where
doctor        what is wrong with a project, and what can be done
tree          files as git sees them, points to go back to
trees         work trees of children, and what becomes of their files
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
