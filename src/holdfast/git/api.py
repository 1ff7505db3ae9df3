"""The names of `holdfast.git`, imported together when the first is asked for."""

from holdfast.git.commit_trailers import GitSettings, Rebuilt, commit_events, rebuild_from_git
from holdfast.git.commits import EventPlace, events_named, record_commit
from holdfast.git.files import FileDifference, ProjectFile
from holdfast.git.repository import Commit, Entry, Repository
from holdfast.git.rewinds import FileStep, Preview, RewindPoint, Rewinds, Rewound, What
from holdfast.git.work_tree import FileStatus, Look, WorkTree

__all__ = [
    "Commit",
    "Entry",
    "EventPlace",
    "FileDifference",
    "FileStatus",
    "FileStep",
    "GitSettings",
    "Look",
    "Preview",
    "ProjectFile",
    "Rebuilt",
    "Repository",
    "RewindPoint",
    "Rewinds",
    "Rewound",
    "What",
    "WorkTree",
    "commit_events",
    "events_named",
    "rebuild_from_git",
    "record_commit",
]
