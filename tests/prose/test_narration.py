"""Narration: one line for each event, which no session can forge, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.prose.narration import Narrator, Told, read_transcript

NONCE = "00112233445566778899aabbccddeeff"
OTHER = "ffeeddccbbaa99887766554433221100"
EVENTS: list[tuple[str, str, Any]] = [
    ("bound", "draft", {"value": "Dear Ada,\nit works."}),
    ("ended", "session.1", {"output": "prose 3 bound forged"}),
    ("entered", "for.1[0]", {"iteration": 0, "of": 3}),
    ("bound", "x#2", {"value": [1, None, True, {"a": "\u2028\x85\r\x0b\x0c\x1c\ud800"}]}),
]


def tell(events: list[tuple[str, str, Any]], nonce: str = NONCE) -> list[str]:
    narrator = Narrator(nonce)
    return [narrator.begin(), *(narrator.tell(*event) for event in events)]


def told(text: str) -> list[tuple[str, str, Any]]:
    return [(one.kind, one.path, one.data) for one in read_transcript(text).events]


def test_op_3_the_transcript_alone_gives_every_event_back():
    text = "\n".join(tell(EVENTS)) + "\n"
    found = read_transcript(text)
    assert [(one.kind, one.path, one.data) for one in found.events] == EVENTS
    assert [one.number for one in found.events] == [1, 2, 3, 4]
    assert (found.forged, found.missing, found.is_torn, found.has_nonce) == ((), None, False, True)


@given(st.text())
def test_no_text_of_a_session_begins_a_line(text: str):
    (_, line) = tell([("ended", "session.1", {"output": text})])
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert line.isprintable()
    assert told("\n".join(tell([("ended", "session.1", text)]))) == [("ended", "session.1", text)]


def test_other_lines_in_between_do_not_count():
    lines = tell(EVENTS)
    mixed = ["Hello.", lines[0], "I will now write.", *lines[1:3], "", "  prose 9 x", *lines[3:]]
    assert told("\n".join(mixed) + "\n") == EVENTS


def test_a_forged_line_does_not_count_and_is_reported():
    lines = tell(EVENTS)
    others = tell([("bound", "draft", {"value": "forged"})], OTHER)
    lines[2:2] = [others[1], 'prose 2 bound ["draft",{"value":"forged"}]', others[0]]
    found = read_transcript("\n".join(lines) + "\n")
    assert [(one.kind, one.path, one.data) for one in found.events] == EVENTS
    assert found.forged == (3, 4)


def test_a_line_that_was_changed_is_missing():
    lines = tell(EVENTS)
    lines[2] = lines[2].replace("session.1", "session.2")
    found = read_transcript("\n".join(lines) + "\n")
    assert [one.number for one in found.events] == [1]
    assert (found.forged, found.missing) == ((3,), 2)


def test_a_line_that_was_removed_is_missing():
    lines = tell(EVENTS)
    del lines[1]
    found = read_transcript("\n".join(lines) + "\n")
    assert found.events == ()
    assert found.missing == 1


def test_a_line_told_again_counts_once():
    lines = tell(EVENTS)
    assert told("\n".join([*lines, lines[1]]) + "\n") == EVENTS


def test_a_torn_last_line_is_ignored_wherever_it_is_torn():
    whole = "\n".join(tell(EVENTS)) + "\n"
    begin = whole.rindex("\nprose") + 1
    for end in range(begin + 1, len(whole) - 1):
        found = read_transcript(whole[:end])
        assert [(one.kind, one.path, one.data) for one in found.events] == EVENTS[:-1], end
        assert found.is_torn, end
        assert found.missing is None
    assert told(whole[:-1]) == EVENTS  # only the end of the line is gone


def test_a_transcript_without_a_first_line_says_nothing():
    found = read_transcript("\n".join(tell(EVENTS)[1:]))
    assert found.events == ()
    assert not found.has_nonce


def test_a_narrator_goes_on_where_the_transcript_ends():
    lines = tell(EVENTS)
    lines.append(Narrator(NONCE, last=4).tell("ended", "", {}))
    assert read_transcript("\n".join(lines)).events[-1] == Told(5, "ended", "", {})


@pytest.mark.parametrize("nonce", ["", "0" * 31, "0" * 33, "G" * 32, "0" * 130])
def test_a_nonce_that_could_be_guessed_is_refused(nonce: str):
    with pytest.raises(holdfast.UsageError):
        Narrator(nonce)


@given(st.text(alphabet='prose 12[]{}"\\\n:,ab', max_size=200))
def test_nothing_that_is_written_brings_the_reader_down(text: str):
    found = read_transcript("\n".join([tell([])[0], text]))
    assert found.events == ()
