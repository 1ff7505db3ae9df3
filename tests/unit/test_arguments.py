"""What callers pass to the record, checked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import holdfast
from holdfast import UsageError
from holdfast.core import arguments
from holdfast.core.arguments import parse_path

HOUR_US = 3_600_000_000


def test_text_is_returned_as_plain_text():
    class Text(str):
        pass

    found = arguments.check_text(Text("é"), "text")
    assert (found, type(found)) == ("é", str)
    assert arguments.check_text(None, "text", optional=True) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "None"),
        (3, "3"),
        ("", "''"),
        (" \n", "text of 2 characters"),
        ("x" * (arguments.TEXT_CHARACTERS_MAX + 1), "text of 65537 characters"),
    ],
)
def test_other_text_is_refused(text: object, found: str):
    with pytest.raises(UsageError) as refused:
        arguments.check_text(text, "note")
    assert "note is text of 1 to 65536 characters" in str(refused.value)
    assert found in str(refused.value)


def test_a_scope_is_given_itself_or_by_its_name():
    with holdfast.open("memory:") as store:
        assert arguments.name_of(store.team("t")) == "team/t"
    assert arguments.name_of("team/t") == "team/t"
    with pytest.raises(UsageError, match="a scope is a scope or its name, found 3"):
        arguments.name_of(3)


def test_an_age_is_a_moment_before_now():
    assert arguments.older_bound(2 * HOUR_US, "1h") == datetime(1970, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("customer.name", ("customer", "name")),
        ("messages[0].text", ("messages", 0, "text")),
        ("messages[-1]", ("messages", -1)),
        ("tickets.0", ("tickets", "0")),
        ('["a.b",0]', ("a.b", 0)),
        ("[]", ()),
    ],
)
def test_text_that_is_a_path(text: str, path: tuple[str | int, ...]):
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a.", "a[x]", "a]", "[", "[1.5]", "[true]"])
def test_text_that_is_no_path(text: str):
    with pytest.raises(UsageError, match="path"):
        parse_path(text)


def test_a_path_is_read_from_text_only():
    with pytest.raises(UsageError, match="found 5"):
        parse_path(5)  # pyright: ignore[reportArgumentType]


def test_a_way_to_write_that_goes_alone_names_what_it_was_given_with():
    with holdfast.open("memory:") as store:
        red = store.team("red")
        with pytest.raises(UsageError, match="if_absent does not go with diff or ttl_s: expected"):
            red.set("a", {}, if_absent=True, diff=True, ttl_s=5)
        assert red.revision == 0
