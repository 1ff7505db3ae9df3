"""Projections: states that are folded from events of your own by functions of your own.

`define.py` has what a program declares, `fold.py` the fold and where its events come from,
`stored.py` the folds that are kept, and `projected.py` what a store hands out.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.projections.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.projections.api")
