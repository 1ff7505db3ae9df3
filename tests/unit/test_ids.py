"""Ids: they sort by time, and what is not time in them is chance."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.names import fits_pattern, is_pattern, new_id, short_id
from holdfast.testing import FakeClock

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class Drawn(FakeClock):
    """A clock whose chance is what it is told."""

    drawn = b""

    def random_bytes(self, n: int) -> bytes:
        part, self.drawn = self.drawn[:n], self.drawn[n:]
        assert len(part) == n
        return part


def read(text: str) -> int:
    number = 0
    for character in text:
        number = number * 32 + ALPHABET.index(character)
    return number


def test_an_id_is_its_time_in_milliseconds_then_eighty_bits_of_chance() -> None:
    clock = FakeClock()
    made = [new_id(clock) for _ in range(50)]
    assert {len(id) for id in made} == {26}
    assert {read(id[:10]) for id in made} == {clock.now_us() // 1000}
    assert len({id[10:] for id in made}) == 50
    assert all(read(id[10:]) < 1 << 80 for id in made)


def test_ids_sort_by_time() -> None:
    clock = FakeClock()
    made: list[str] = []
    for step in (0.001, 0.031, 1.023, 33.0, 1_100_000.0, 40_000_000_000.0):
        made.append(new_id(clock))
        clock.advance(step)
    assert made == sorted(made)


def test_every_character_is_as_likely_as_any_other() -> None:
    clock = Drawn()
    clock.drawn = bytes(range(256))
    chance = "".join(new_id(clock)[10:] for _ in range(16))
    assert {character: chance.count(character) for character in ALPHABET} == dict.fromkeys(
        ALPHABET, 8
    )
    clock.drawn = bytes(range(256))
    chance = "".join(short_id(clock) for _ in range(32))
    assert {character: chance.count(character) for character in ALPHABET} == dict.fromkeys(
        ALPHABET, 8
    )


def test_one_meaning_of_patterns() -> None:
    assert fits_pattern("conversation/support-*", "conversation/support-7")
    assert fits_pattern("*/s-*", "team/s-")
    assert not fits_pattern("conversation/support-?", "conversation/support-7")
    assert fits_pattern("conversation/[a]*", "conversation/[a]b")
    assert fits_pattern("conversation", "conversation/x")
    assert not fits_pattern("conversation", "conversations/x")
    assert is_pattern("team")
    assert not is_pattern("global")


def test_an_error_shows_an_id_as_it_was_given():
    """Not by the escapes that its stored name has."""
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("a\nb")
        for call in (chat.remove, chat.undo, lambda: chat.facts.get("x"), lambda: chat.at(7)):
            with pytest.raises(holdfast.NotFoundError) as raised:
                call()
            assert '"conversation/a\\nb"' in str(raised.value)
            assert raised.value.message.isprintable()
        long = hf.conversation("x" * 600)
        with pytest.raises(holdfast.NotFoundError) as raised:
            long.remove()
        assert str(raised.value).startswith('scope "conversation/' + "x" * 440)
        assert raised.value.message.isprintable()
