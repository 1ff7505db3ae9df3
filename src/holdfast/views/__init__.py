"""Files that people read and edit, as views of the log.

item         items, edits, findings
grammar      one item as one line of markdown
markdown     a markdown file with items in it, spliced
sources      where items are in the log
item_view    a file of items: a form and a source, and the merge of an edit
last_text    the last text that the log knows
exchange     two names exchanged in one step
directory    a directory of views, kept true to the log
kinds        the views that are built in, by name
"""

from holdfast.views.directory import Views, ViewStatus
from holdfast.views.item import BrokenFile, Finding, Item, ItemEdit
from holdfast.views.item_view import ItemView
from holdfast.views.kinds import (
    goal_list,
    learning_list,
    make_view,
    progress_list,
    register_view,
    task_list,
    todo_list,
)
from holdfast.views.markdown import MarkdownList
from holdfast.views.sources import ListSource, TaskSource

__all__ = [
    "BrokenFile",
    "Finding",
    "Item",
    "ItemEdit",
    "ItemView",
    "ListSource",
    "MarkdownList",
    "TaskSource",
    "ViewStatus",
    "Views",
    "goal_list",
    "learning_list",
    "make_view",
    "progress_list",
    "register_view",
    "task_list",
    "todo_list",
]
