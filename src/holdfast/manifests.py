"""What the layers above the log own in a store, registered before one is opened.

Layers are imported at first use, but what they own must be known before: otherwise `check`,
`retain`, `erase`, `recover` and the routes of a mixed store would depend on what a process has used
so far. So the manifest of a layer is here, or in a module that is imported here
(`runs/manifest.py`).
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

register_layer(Layer(name="projections"))
register_layer(Layer(name="git", prefixes=("git",), kept_with={"git": GLOBAL}))
register_layer(Layer(name="rewinds", prefixes=("rewind",), kept_with={"rewind": GLOBAL}))
