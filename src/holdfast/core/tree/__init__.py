"""Copy-on-write state: frozen values, the ops that change them, and what differs between two. Pure.

frozen      Map, List, Lazy: the values that a reader gets
ops         Op: one recorded step, its form in an event's payload, and how ops make the next state
batch       OpBatch: many events folded at once
difference  diff, diff_ops, set_difference, changed_places, touched
seals       sealed values that stay sealed when what contains them is written back
ends        when values end: folded with the ops, independent of the time
vector, trie    the persistent sequence and the persistent wide map below Map and List
"""

from holdfast.core.tree.batch import OpBatch
from holdfast.core.tree.difference import (
    Difference,
    changed_places,
    diff,
    diff_ops,
    set_difference,
    touched,
)
from holdfast.core.tree.ends import (
    Ends,
    decode_ends,
    encode_ends,
    ended,
    ends_ops,
    fold_ends,
    held_over,
    lasting,
    without,
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
    UNTIL,
    Kind,
    Op,
    append_op,
    apply,
    apply_op,
    decode_ops,
    decode_values,
    delete_op,
    describe,
    encode_ops,
    get,
    increment_op,
    level_of,
    locate,
    may_cover_seals,
    merge_op,
    missing_ops,
    put,
    raw_op,
    reach,
    set_op,
    truncate_op,
    until_op,
)
from holdfast.core.tree.seals import keep_seals

__all__ = [
    "EMPTY",
    "MISSING",
    "UNTIL",
    "Blobs",
    "Difference",
    "Ends",
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
    "decode_ends",
    "decode_ops",
    "decode_values",
    "delete_op",
    "describe",
    "diff",
    "diff_ops",
    "encode_ends",
    "encode_ops",
    "ended",
    "ends_ops",
    "fold_ends",
    "footprint",
    "freeze",
    "get",
    "held_over",
    "increment_op",
    "keep_seals",
    "lasting",
    "level_of",
    "locate",
    "may_cover_seals",
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
    "until_op",
    "without",
]
