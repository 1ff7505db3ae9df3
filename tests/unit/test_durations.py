"""Lengths of time as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import UsageError
from holdfast.core.arguments import check_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("45s", 45),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("0.5s", 0.5),
        (7, 7),
        (0.25, 0.25),
        (timedelta(minutes=3), 180),
    ],
)
def test_a_length_of_time(value: object, seconds: float) -> None:
    assert check_duration(value, "valid_for") == seconds


@pytest.mark.parametrize(
    "value",
    [
        *("", "s", "1", "1 h", "-1h", "1y", "1h ", "h1", "1e3s", "٣s", "0s", "9" * 65 + "s"),
        *("9999999999999s", "1001000w", 0, -1, True, None, float("nan"), timedelta(0), [1]),
    ],
)
def test_what_is_no_length_of_time(value: object) -> None:
    with pytest.raises(UsageError, match="valid_for is"):
        check_duration(value, "valid_for")
