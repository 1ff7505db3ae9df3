"""What is not there, where None could be a value."""

from __future__ import annotations

from typing import Final


class Missing:
    """The type of MISSING, which stands for the absent side of a change."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
