"""Copy-on-write state: frozen values, the ops that change them, and what differs between two. Pure.

frozen      Map, List, Lazy: what a reader is handed
ops         Op: one recorded step, its builders and its form in an event's payload
change      apply, get: how ops make the next state
run         Run: many events' ops at once
difference  diff, diff_ops, touched
vector, trie    the persistent sequence and the persistent wide map below Map and List
"""

from holdfast.tree.change import apply, get, locate, put
from holdfast.tree.difference import Change, diff, diff_ops, touched
from holdfast.tree.frozen import EMPTY, Blobs, Lazy, List, Map, freeze, thaw
from holdfast.tree.missing import MISSING, Missing
from holdfast.tree.ops import (
    Kind,
    Op,
    append_op,
    decode_ops,
    delete_op,
    encode_ops,
    increment_op,
    merge_op,
    raw_op,
    set_op,
    truncate_op,
)
from holdfast.tree.run import Run

__all__ = [
    "EMPTY",
    "MISSING",
    "Blobs",
    "Change",
    "Kind",
    "Lazy",
    "List",
    "Map",
    "Missing",
    "Op",
    "Run",
    "append_op",
    "apply",
    "decode_ops",
    "delete_op",
    "diff",
    "diff_ops",
    "encode_ops",
    "freeze",
    "get",
    "increment_op",
    "locate",
    "merge_op",
    "put",
    "raw_op",
    "set_op",
    "thaw",
    "touched",
    "truncate_op",
]
