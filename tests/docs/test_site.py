"""The pages of the site are staged as they should be; `make docs` builds them.

What needs the builder is in the group `docs` of `make test`: links, names, warnings.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_references import ROOT
from tools import requirements, site

FOR_USERS = ["index.md", "cli.md", "errors.md", "glossary.md", "guarantees.md", "api.md"]
FOLDERS_FOR_USERS = ["tutorial", "guides", "coming-from"]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(site, "PAGES", tmp_path)
    site.stage()
    return tmp_path


def test_every_page_has_its_place_in_the_navigation(pages: Path):
    listed = list(site.shown(site.navigation()))
    staged = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    assert sorted(listed) == sorted(staged), "docs/guides/index.md lists the guides"


def test_the_home_page_is_first_and_the_tutorial_second(pages: Path):
    listed = list(site.shown(site.navigation()))
    assert listed[:3] == ["index.md", "tutorial/index.md", "tutorial/1-save.md"]


def test_the_reference_has_every_name_of_the_list(pages: Path):
    listed = {name for _title, names in site.reference().values() for name in names}
    directives = {
        name
        for page in (pages / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.M)
    }
    assert {"holdfast.open", "holdfast.aio.AsyncStore", "holdfast.copy.copy"} <= listed
    assert directives == listed
    index = (pages / "reference/index.md").read_text("utf-8")
    assert not {name for name in listed if f"][{name}]" not in index}


@pytest.mark.parametrize(
    ("source", "text", "staged"),
    [
        ("docs/guides/a.md", "[b](b.md#c)", "[b](b.md#c)"),
        ("docs/guides/a.md", "[r](../../README.md#more)", "[r](../index.md)"),
        ("docs/guides/a.md", "[n](../api.md)", "[n](../reference/index.md)"),
        ("docs/guides/a.md", "[g](../../src/holdfast/x.py)", "g"),
        ("docs/guides/a.md", "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("docs/guides/a.md", "[here](#part)", "[here](#part)"),
        ("docs/guides/a.md", "```python\nd[1](x.md)\n```", "```python\nd[1](x.md)\n```"),
        ("docs/a.md", "[e](../examples/agent.py)", "[e](examples/agent.md)"),
        ("docs/a.md", "![p](performance/p.png)", "![p](performance/p.png)"),
        ("CONTRIBUTING.md", "[d](docs/errors.md)", "[d](../errors.md)"),
    ],
)
def test_links_fit_the_place_of_a_page(source: str, text: str, staged: str):
    page = site.place_of(source)
    assert page is not None
    assert site.relinked(text, source, page) == staged


def test_a_list_has_an_empty_line_before_it():
    text = "These:\n- one\n  and more\n- two\n\n```\nx\n- 1\n```\n"
    assert site.spaced(text) == text.replace("These:\n", "These:\n\n")


def test_the_settings_are_valid_and_fetch_nothing(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(site, "SETTINGS", tmp_path / "zensical.toml")
    site.write_settings()
    settings = tomllib.loads((tmp_path / "zensical.toml").read_text("utf-8"))["project"]
    assert settings["theme"]["font"] is False
    assert settings["nav"][0] == {"Home": "index.md"}
    assert "://" not in str(settings)


def test_what_a_page_fetches_from_elsewhere_is_found():
    page = site.Entries()
    page.feed(
        '<script src="//a.example/b.js"></script><img src="c.png"><p id="d"><a href="http://e">'
    )
    assert page.fetched == ["//a.example/b.js", "c.png"]
    assert page.ids == {"d"}


def test_pages_for_users_name_no_requirement_and_no_programme():
    found = re.compile(rf"\b(?:{requirements.FAMILY})-\d+|\bT\d+\b")
    users = [ROOT / "docs" / name for name in FOR_USERS]
    users += [page for name in FOLDERS_FOR_USERS for page in (ROOT / "docs" / name).glob("*.md")]
    named = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in users
        for match in found.finditer(page.read_text("utf-8"))
    ]
    assert not named
