"""Lengths of time as people write them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import holdfast
from holdfast import UsageError, aio
from holdfast.backends.protocol import START
from holdfast.core.arguments import check_duration, check_seconds, check_timeout


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


def test_every_time_may_be_text_or_a_timedelta() -> None:
    """One parser for all: seconds, "1h30m" or a timedelta."""
    for given in (60, "60s", "1m", timedelta(minutes=1)):
        assert check_seconds(given, "ttl_s") == check_timeout(given) == 60
    assert check_timeout("0s") == 0
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c", ttl_s="1h")
        chat.set("a", 1)
        assert chat.life.expires_at is not None
        assert list(hf.follow(chat, timeout_s="0s")) == []
        assert list(hf.follow(as_events=True, timeout_s="0.01s", after=START))
        assert list(hf.follow(timeout_s=timedelta(0))) == []
        with hf.workers.lease("x", ttl_s="1m", wait_s="1s"):
            pass
        lease = hf.workers.lease("y", ttl_s="1m")
        assert hf.workers.renew(lease, ttl_s="2m") is not None
        assert hf.workers.claim("index", ttl_s="1m") == []
        told = chat.subscribe(print)
        assert told.drain(timeout_s="10s")
        assert list(hf.workers.group("g", ttl_s="1m").deliveries(timeout_s="0s"))
        assert hf.team("t").tasks.claim(wait_s="0.01s") is None
        for wrong in ("1", "soon", -1, timedelta(-1)):
            with pytest.raises(UsageError, match="timeout_s is"):
                told.drain(timeout_s=wrong)


def test_for_asyncio_too() -> None:
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            chat = hf.conversation("c", ttl_s="1h")
            await chat.set("a", 1)
            assert [one async for one in hf.follow(chat, timeout_s="0s")] == []
            assert [one async for one in hf.follow(as_events=True, timeout_s="0.01s", after=START)]
            assert [one async for one in hf.follow(timeout_s="0s")] == []
            async with hf.workers.lease("x", ttl_s="1m", wait_s="1s"):
                pass
            group = hf.workers.group("g", ttl_s="1m")
            assert [one.event.type async for one in group.deliveries(timeout_s="0s")][:1]
            assert await hf.team("t").tasks.claim(wait_s="0.01s") is None

    asyncio.run(main())
