"""The documented name of `holdfast.contrib.advise`."""

from holdfast.contrib.advise import Advice, Needs, advise

__all__ = ["Advice", "Needs", "advise"]
