"""One result of the self-test."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

Verdict = Literal["ok", "info", "warning", "failed"]


class Judged(Struct, frozen=True):
    """What was looked at, how it is judged, what was found, and what helps.

    `warning` is what makes one doubt; `failed` is what was seen to be wrong.
    """

    check: str
    verdict: Verdict
    found: str
    fix: str | None = None
    numbers: dict[str, int] = field(default_factory=dict[str, int])
