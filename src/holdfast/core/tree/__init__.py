"""Copy-on-write state: frozen values, the ops that change them, and what differs between two. Pure.

frozen      Map, List, Lazy: what a reader is handed
ops         Op: one recorded step, its form in an event's payload, and how ops make the next state
difference  diff, diff_ops, set_difference, changed_places, touched
vector, trie    the persistent sequence and the persistent wide map below Map and List
"""

from holdfast.core.tree.difference import (
    Difference,
    changed_places,
    diff,
    diff_ops,
    set_difference,
    touched,
)
from holdfast.core.tree.frozen import (
    EMPTY,
    MISSING,
    Blobs,
    Lazy,
    List,
    Map,
    Missing,
    footprint,
    freeze,
    thaw,
)
from holdfast.core.tree.ops import (
    Kind,
    Op,
    OpBatch,
    append_op,
    apply,
    apply_op,
    decode_ops,
    decode_values,
    delete_op,
    encode_ops,
    get,
    increment_op,
    locate,
    merge_op,
    missing_ops,
    put,
    raw_op,
    reach,
    set_op,
    truncate_op,
)

__all__ = [
    "EMPTY",
    "MISSING",
    "Blobs",
    "Difference",
    "Kind",
    "Lazy",
    "List",
    "Map",
    "Missing",
    "Op",
    "OpBatch",
    "append_op",
    "apply",
    "apply_op",
    "changed_places",
    "decode_ops",
    "decode_values",
    "delete_op",
    "diff",
    "diff_ops",
    "encode_ops",
    "footprint",
    "freeze",
    "get",
    "increment_op",
    "locate",
    "merge_op",
    "missing_ops",
    "put",
    "raw_op",
    "reach",
    "set_difference",
    "set_op",
    "thaw",
    "touched",
    "truncate_op",
]
