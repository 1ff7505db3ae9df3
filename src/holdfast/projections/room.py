"""The projections of a store: `hf.projections`."""

from __future__ import annotations

from holdfast.core.kernel import Kernel
from holdfast.projections.define import Projection
from holdfast.projections.projected import Projected, Projections
from holdfast.scope import Scope


class ProjectionsRoom:
    """States that your handlers fold from own events, as `hf.projections`."""

    def __init__(self, kernel: Kernel) -> None:
        self._projections = kernel.part(Projections)

    def __repr__(self) -> str:
        return "<ProjectionsRoom>"

    def of(self, projection: Projection, over: Scope | str | None = None) -> Projected:
        """Returns a projection over a scope, over several, or over the whole store.

        `over` is a scope, a pattern such as `conversation/support-*`, or None for the whole store.
        Each read of its state is up to date, and costs as much as folding what was recorded since
        the last one.
        """
        return self._projections.projected(projection, over)
