"""Git: the command, run so that a foreign repository runs nothing, and what is built on it.

command          runs git without any program that a repository's configuration could name
repository       a repository: branch, commits, files of a commit; our own objects and refs
work_tree        the files on the disk: what they hold, and putting one back without losing an edit
linked_trees     our work trees beside the user's, and the merge of their files
files            one file: its content at a commit, its differences, its history
commits          links between commits and events
witness          a note of what a store had when it was closed, kept where git does not revert it
versions         the versions of a store in commits
installed        a merge driver and a hook, installed on request
commit_trailers  events written into the messages of commits, and read back from them
auto_commit      the views and commits that a holdfast.toml asks for, while a store is open
rewinds          rewind points of scopes and files, and going back to them
api              the public names
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.git.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.git.api")
