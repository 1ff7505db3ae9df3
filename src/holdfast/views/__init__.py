"""Files that people read and edit, as views of the log.

item         items, edits, findings
grammar      one item as one line of markdown
markdown     a markdown file with items in it, spliced
sources      where items are in the log
item_view    a file of items: a form and a source, and the merge of an edit
last_text    the last text that the log knows
directory    a directory of views, kept true to the log
kinds        the views that are built in, by name
"""

from holdfast.views.config import configured_views
from holdfast.views.directory import Views, ViewStatus
from holdfast.views.item import BrokenFile, Finding, Item, ItemEdit
from holdfast.views.item_view import ItemView
from holdfast.views.kinds import (
    backlog,
    catch_rows,
    decision_index,
    decision_list,
    event_rows,
    goal_list,
    keel_state,
    learning_list,
    make_view,
    progress_list,
    register_view,
    state_file,
    task_list,
    todo_list,
)
from holdfast.views.mapping import JsonMapping, YamlMapping
from holdfast.views.markdown import MarkdownList
from holdfast.views.rows import CatchRows, EventRows, RowView, TsvRows, YamlRows
from holdfast.views.sources import (
    DecisionSource,
    IndexSource,
    ListSource,
    StateSource,
    TaskSource,
)
from holdfast.views.yaml_list import YamlList

__all__ = [
    "BrokenFile",
    "CatchRows",
    "DecisionSource",
    "EventRows",
    "Finding",
    "IndexSource",
    "Item",
    "ItemEdit",
    "ItemView",
    "JsonMapping",
    "ListSource",
    "MarkdownList",
    "RowView",
    "StateSource",
    "TaskSource",
    "TsvRows",
    "ViewStatus",
    "Views",
    "YamlList",
    "YamlMapping",
    "YamlRows",
    "backlog",
    "catch_rows",
    "configured_views",
    "decision_index",
    "decision_list",
    "event_rows",
    "goal_list",
    "keel_state",
    "learning_list",
    "make_view",
    "progress_list",
    "register_view",
    "state_file",
    "task_list",
    "todo_list",
]
