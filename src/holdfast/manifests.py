"""What the layers above the log own in a store, registered before one is opened.

A layer whose services are imported when they are first used has its manifest here or in a module of
its own (`runs/manifest.py`): so `check`, `retain`, `erase`, `recover` and the routes of a mixed
store are the same, whatever a process has used so far.
"""

from holdfast.core import consumers as _consumers
from holdfast.core import inbox as _inbox
from holdfast.core import mark_ends as _mark_ends
from holdfast.core import retention as _retention
from holdfast.core.layers import Layer, register_layer
from holdfast.names import GLOBAL
from holdfast.nodes import manifest as _nodes
from holdfast.record import recovery as _record
from holdfast.runs import manifest as _runs

__all__ = ["_consumers", "_inbox", "_mark_ends", "_nodes", "_record", "_retention", "_runs"]

register_layer(Layer(name="projections", derived=("snapshot",)))
register_layer(Layer(name="git", prefixes=("git",), kept_with={"git": GLOBAL}))
register_layer(Layer(name="rewinds", prefixes=("rewind",), kept_with={"rewind": GLOBAL}))
