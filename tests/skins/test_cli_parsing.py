"""The small grammars: paths, moments, values; and text that is safe to show."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Settings
from holdfast.cli.app import put_verb_first
from holdfast.cli.parsing import find_revision, parse_value
from holdfast.core.arguments import parse_path
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from holdfast.render.text import clean, escape_json, shorten, show_path
from holdfast.testing import FakeClock

DRIVES = [chr(code) for code in [*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x202E, 0x2066, 0xFEFF]]


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("stage", ("stage",)),
        ("customer.name", ("customer", "name")),
        ("messages[0].text", ("messages", 0, "text")),
        ("m[0][-1]", ("m", 0, -1)),
        ("m.0", ("m", "0")),
        ("a b.ü-$", ("a b", "ü-$")),
        ('["a.b",0]', ("a.b", 0)),
        ('[""]', ("",)),
        ("[]", ()),
    ],
)
def test_paths(word: str, path: tuple[str | int, ...]):
    assert parse_path(word) == path


@pytest.mark.parametrize(
    "word",
    ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a]", "a[0]b", "[0", "[true]", "[1.5]", "[[]]"],
)
def test_a_path_that_cannot_be_read(word: str):
    with pytest.raises(UsageError) as raised:
        parse_path(word)
    assert "write it like" in (raised.value.hint or "")


@given(st.lists(st.text() | st.integers(-(10**17), 10**17)).map(tuple))
def test_every_path_can_be_written(path: tuple[str | int, ...]):
    assert parse_path(show_path(path)) == path


@given(st.text())
def test_text_that_is_no_json_stays_text(text: str):
    assert parse_value(text, is_text=True) == text
    try:
        expected: Any = json.loads(text, parse_constant=refuse)
    except ValueError:
        if text.lstrip()[:1] in ("{", "[", '"'):
            with pytest.raises(UsageError, match="begins like JSON"):
                parse_value(text, is_text=False)
            return
        expected = text
    if not (isinstance(expected, dict) and len(expected) == 1):  # a tag of the value domain
        assert parse_value(text, is_text=False) == expected


def refuse(word: str) -> None:
    raise ValueError(word)


def test_moments():
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as store:
        scope = store.team("a")
        times: list[datetime] = []
        for number, name in enumerate(["one", "2", "2026-11-16", "@name:x"], 1):
            scope.set("n", number, checkpoint=name)
            times.append(next(scope.history(after=number - 1, until=number)).time)
            clock.advance(3600)
        for word, revision in [
            ("0", 0),
            ("3", 3),
            ("+3", 3),
            ("-1", 3),
            ("one", 1),
            ("2", 2),
            ("@name:2", 2),
            ("@revision:2", 2),
            ("@revision:-4", 0),
            ("2026-11-16", 3),
            ("@name:@name:x", 4),
            ("@name:one", 1),
            (times[1].isoformat(), 2),
            (times[1].astimezone(UTC).replace(tzinfo=None).isoformat(), 2),
            (f"@time:{times[3].isoformat()}", 4),
            ("@time:1970-01-01", 0),
            ("1970-01-01T00:00Z", 0),
        ]:
            assert find_revision(scope, word) == revision, word
        for word in ("9", "-9", "nope", "@name:nope", "@revision:9", "@other:1", "@"):
            with pytest.raises(NotFoundError) as raised:
                find_revision(scope, word)
            assert (raised.value.hint or "").startswith("holdfast "), word
        for word in ("@time:noon", "@revision:one", "@time:", "@revision:"):
            with pytest.raises(UsageError):
                find_revision(scope, word)


@given(st.text() | st.text(st.sampled_from(DRIVES)))
def test_clean_text_drives_nothing(text: str):
    shown = clean(text)
    assert not set(shown) & set(DRIVES)
    shown.encode()
    assert clean(shown) == shown


@given(st.text() | st.text(st.sampled_from(DRIVES)))
def test_escaped_json_is_equal_json(text: str):
    escaped = escape_json(json.dumps({"x": text}, ensure_ascii=False))
    assert json.loads(escaped) == {"x": text}
    assert not set(escaped) & set(DRIVES)


def test_shortened_text_says_so():
    assert shorten("a" * 60) == "a" * 60
    assert shorten("a" * 61) == "a" * 59 + "…"


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["log", "--json"], ["log", "--json"]),
        (["--json", "log", "x"], ["log", "--json", "x"]),
        (["--store", "a", "--actor=b", "log"], ["log", "--store", "a", "--actor=b"]),
        (["--store", "--json", "log"], ["log", "--store", "--json"]),
        (["--store"], ["--store"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
)
def test_the_verb_comes_first(typed: list[str], read: list[str]):
    assert put_verb_first(typed) == read


def test_a_password_in_a_url_is_never_repeated(cli: Any) -> None:
    secret = "redis://user:sekret@127.0.0.1:1/0?timeout=0.5"
    gone, wrong = UnavailableError.exit_code, UsageError.exit_code
    for code, words in (
        (wrong, ("check", secret)),
        (gone, ("--store", secret, "status")),
        (gone, ("--store", secret, "init")),
    ):
        failed = cli(*words, code=code)
        assert "sekret" not in failed.err + failed.out, words
        assert "127.0.0.1" in failed.err
