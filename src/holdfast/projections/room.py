"""The projections of a store: `hf.projections`."""

from __future__ import annotations

from holdfast.core.kernel import Kernel
from holdfast.projections.define import Projection
from holdfast.projections.projected import Projected, Projections
from holdfast.scope import Scope


class ProjectionsRoom:
    """States that are folded from events of your own."""

    def __init__(self, kernel: Kernel) -> None:
        self._projections = kernel.part(Projections)

    def __repr__(self) -> str:
        return "<ProjectionsRoom>"

    def of(self, projection: Projection, over: Scope | str | None = None) -> Projected:
        """Returns the state of a projection over some scopes.

        Over a scope, the scopes that match a pattern such as `conversation/support-*`, or the whole
        store. What it shows is up to date whenever it is looked at, for the price of what was
        recorded since.
        """
        return self._projections.projected(projection, over)
