"""The documented name of `holdfast.contrib.compat`."""

from holdfast.contrib.compat import GlobalStateManager, StateScope

__all__ = ["GlobalStateManager", "StateScope"]
