"""Projections: states that are folded from events of your own by functions of your own.

`define.py` has what a program declares, `fold.py` the fold and where its events come from,
`stored.py` the folds that are kept, and `projected.py` what a store hands out.
"""

from holdfast.projections.define import Projection, projection
from holdfast.projections.projected import Projected, Projections

__all__ = ["Projected", "Projection", "Projections", "projection"]
