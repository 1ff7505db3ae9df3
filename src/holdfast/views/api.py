"""The names of `holdfast.views`, imported together when the first is asked for."""

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
from holdfast.views.sources import DecisionSource, IndexSource, ListSource, StateSource, TaskSource
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
