"""Passwords in URLs, however they are misspelt, reach no error, repr or traceback."""

from __future__ import annotations

import random
import traceback
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends import registry
from holdfast.backends.postgresql import connection as postgresql
from holdfast.backends.redis import server as redis
from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.names import without_secrets

FIRST, SECOND = "hushA", "hushB"
"""Both halves of each password: neither may be shown."""
SEED = 14


def reached(built_in: registry.BuiltIn) -> Any:
    """Stands for a backend whose server repeats all that it was sent in an error."""

    def connect(url: str, **_options: object) -> None:
        parse = postgresql.parse_url if "Postgresql" in built_in.name else redis.parse_url
        parsed = parse(url)
        raise UnavailableError(parsed.hide(f"{parsed.shown} failed: {parsed.parameters}"))

    return connect


def spellings() -> list[str]:
    """Returns 500 URLs with a password, most of them wrong in some way."""
    chance = random.Random(SEED)
    found: set[str] = set()
    while len(found) < 500:
        scheme = chance.choice(["postgresql", "postgres", "redis", "rediss", "unix", "Redis", "pg"])
        slashes = chance.choice(["://", "://", "://", ":/", ":///", ":"])
        between = chance.choice(
            ["", "%", "/", "?", "#", "@", ":", "&", "=", " ", "%2", "?x=", "/1/"]
        )
        password = FIRST + between + SECOND
        login = chance.choice([f"ada:{password}@", f":{password}@", f"ada:12/{password}@"])
        host = chance.choice(["h", "h:1", "h:x", "[::1]", ""])
        path = chance.choice(["/0", "/db", "", "/a/b"])
        query = chance.choice(["", "?timeout=1", "?timeout=x", f"?password={password}", "?pool=0"])
        around = chance.choice(["", "", "", " ", '"', "'"])
        found.add(f"{around}{scheme}{slashes}{login}{host}{path}{query}{around.strip()}")
    return sorted(found)


def shows(text: str) -> bool:
    return FIRST in text or SECOND in text


def test_no_misspelt_url_shows_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_load", reached)
    leaks = []
    for url in spellings():
        assert not shows(without_secrets(url)), url
        with pytest.raises(HoldfastError) as caught:
            holdfast.open(url)
        error = caught.value
        told = [str(error), repr(error), str(error.hint), *traceback.format_exception(error)]
        if any(shows(text) for text in told):
            leaks.append((url, str(error)))
    assert not leaks, f"seed {SEED}"
    assert list(tmp_path.iterdir()) == []  # nor was a folder named after one


@pytest.mark.parametrize(
    "given",
    [
        f"host=db.example user=ada password={FIRST} dbname=shop",
        f"dbname=shop password='{FIRST} {SECOND}'",
        f" postgresql://ada:{FIRST}@h/db",
        f"'redis://:{FIRST}@h/0'",
        f'"postgresql://ada:{FIRST}@h/db"',
    ],
)
def test_what_looks_like_a_url_or_a_connection_string_is_no_folder(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        holdfast.open(given)
    assert not shows(str(caught.value) + str(caught.value.hint))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a=b", "host", "it's", "my state", "x@y:z"])
def test_a_folder_may_have_any_other_name(name: str, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / name) as hf:
        hf.global_().set("a", 1)
    assert without_secrets(name) == name


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0?pool=2", "redis://h:1/0?pool=2"),
        ("postgresql://ada:x@h/db?application=a", "postgresql://ada@h/db?application=a"),
        ("postgresql://ada@/db?host=/run/pg&password=x", "postgresql://ada@/db?host=/run/pg"),
        ("redis://h/0?client_name=a@b", "redis://h/0?client_name=a@b"),
        ("sqlite:a@b.db", "sqlite:a@b.db"),
        ("host=h password=x", "host=h password=***"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
