"""The names of `holdfast.projections`, imported together when the first is asked for."""

from holdfast.projections.define import Projection, projection
from holdfast.projections.projected import Projected, Projections
from holdfast.projections.room import ProjectionsRoom

__all__ = [
    "Projected",
    "Projection",
    "Projections",
    "ProjectionsRoom",
    "projection",
]
