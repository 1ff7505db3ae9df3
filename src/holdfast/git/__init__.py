"""Git: the command, run so that a foreign repository runs nothing, and what is built on it.

command      runs git without anything that a repository's configuration could name
repository   a repository: branch, commits, files of a commit; objects and refs of our own
work_tree    the files on the disk: what they hold, and putting one back without losing an edit
linked_trees work trees of our own beside the user's, and their files merged back
files        one file: what it held at a commit, what differs, which commits changed it
commits      commits and events, each linked to the other
witness      what a store had when it was closed, noted where git does not take it back
versions     the versions of a store that commits have
installed    a merge driver and a hook, put into a repository when they are asked for
told         events told in the messages of commits, and read back from them
keeping      what a holdfast.toml asks for, done while a store is open
rewinds      points to go back to, of scopes and files, and the way back and forth
"""

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
