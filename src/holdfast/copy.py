"""The documented name of `holdfast.core.copy`."""

from holdfast.core.copy import Copied, copy

__all__ = ["Copied", "copy"]
