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

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.git.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.git.api")
