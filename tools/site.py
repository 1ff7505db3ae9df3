"""Makes the site of the documentation, and looks at what was made.

    make docs                 builds build/site; a warning is an error

The documents are written to be read in the repository, too, where links lead to files. So they are
staged first: `build/pages` has every page of the site. Links to files that are pages under another
name are changed to fit, links to files that are no pages become plain text, and the reference is
written from the tables of docs/api.md: a directive for each name that they list.

After the build, three things are looked for that the builder does not know of: every public name
has its entry, every page of ours is there, and no page asks another host for anything.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/pages"
SITE = ROOT / "build/site"
SETTINGS = ROOT / "build/zensical.toml"
BUILDER = Path(sys.executable).parent / "zensical"
MOVED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/benchmarks.md",
    "docs/api.md": "reference/index.md",
    "docs/proof.md": "project/proof.md",
    "docs/track-record.md": "project/track-record.md",
    "docs/decisions/README.md": "decisions/index.md",
}
"""Files of the repository that are pages under another name."""
NO_PAGES = {"docs/requirements.md", "README.md"}
"""The list of requirements is for those who work on the project; docs/index.md is the home page."""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<part>#[^)\s]*)?\)")
FRONT = {"index.md": "---\nhide:\n  - navigation\n  - toc\n---\n\n"}
"""What is said to the builder at the top of a page."""
FENCED = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.M | re.S)
ITEM = re.compile(r"(?:-|\d+\.) ")
INSIDE = re.compile(r"(?:-|\d+\.) | ")
"""A line of a list: the first of an item, or one that goes on with it."""
COLOURED = re.compile(r"\x1b\[[0-9;]*m")
NAMES = re.compile(r"`(\w+)`")


def slug(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower()).strip("-")


# Staging


def place_of(source: str) -> str | None:
    """Returns the page that a file of the repository is, or None."""
    if source in MOVED:
        return MOVED[source]
    if source.startswith("examples/") and source.endswith(".py"):
        return str(Path(source).with_suffix(".md"))
    if source.startswith("docs/") and source not in NO_PAGES:
        return source.removeprefix("docs/")
    return None


def sources() -> Iterator[str]:
    """Yields the files that become pages, and the files that pages show."""
    for path in sorted((ROOT / "docs").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix in {".md", ".png", ".svg", ".css", ".js", ".json"}:
            yield name
    yield from (name for name in MOVED if not name.startswith("docs/"))
    yield from (f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.py")))


def relinked(text: str, source: str, page: str) -> str:
    """Returns a page's text with links that fit its place in the site."""

    def replace(match: re.Match[str]) -> str:
        target, part = match["target"], match["part"] or ""
        if not target or ":" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = place_of(file)
        if place is None:
            return match["text"]
        if file == "README.md":
            part = ""
        link = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{match['image']}[{match['text']}]({link}{part})"

    pieces: list[str] = []
    end = 0
    for code in FENCED.finditer(text):
        pieces += [LINK.sub(replace, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, LINK.sub(replace, text[end:])])


def spaced(text: str) -> str:
    """Returns a page's text with an empty line before each list, which the builder needs."""
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        is_code ^= line.lstrip().startswith("```")
        if not is_code and ITEM.match(line) and before and not INSIDE.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def example(path: Path) -> str:
    """Returns the page of an example: what its docstring says, then all of it."""
    code = path.read_text("utf-8")
    said = ast.get_docstring(ast.parse(code)) or path.stem
    first, _, rest = said.partition("\n")
    return f"# {path.name}\n\n{first}\n{rest}\n\n```python\n{code}```\n"


def reference() -> dict[str, tuple[str, list[str]]]:
    """Returns title and full names of each page of the reference, in the order of docs/api.md."""
    pages: dict[str, tuple[str, list[str]]] = {}
    module = page = ""
    for line in (ROOT / "docs/api.md").read_text("utf-8").splitlines():
        if found := re.fullmatch(r"## `([\w.]+)`", line):
            module = found[1]
            page = module.removeprefix("holdfast.").rpartition(".")[2]
            pages[page] = (f"`{module}`", [])
        elif found := re.fullmatch(r"### (.+)", line):
            page = slug(found[1])
            pages[page] = (found[1], [])
        elif line.startswith("| `"):
            pages[page][1].extend(f"{module}.{name}" for name in NAMES.findall(line.split("|")[1]))
    return {page: entry for page, entry in pages.items() if entry[1]}


def linked_names(text: str) -> str:
    """Returns docs/api.md with a link from each name of its tables to its entry."""
    module = ""
    lines: list[str] = []
    for line in text.splitlines():
        if found := re.fullmatch(r"## `([\w.]+)`", line):
            module = found[1]
        elif line.startswith("| `"):
            _, first, rest = line.split("|", 2)
            line = "|" + NAMES.sub(rf"[`\1`][{module}.\1]", first) + "|" + rest
        lines.append(line)
    return "\n".join(lines) + "\n"


def stage() -> None:
    """Writes every page of the site to build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for source in sources():
        page = place_of(source)
        if page is None or source in NO_PAGES:
            continue
        target = PAGES / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".py"):
            target.write_text(example(ROOT / source), "utf-8")
        elif source.endswith(".md"):
            text = spaced(relinked((ROOT / source).read_text("utf-8"), source, page))
            text = linked_names(text) if source == "docs/api.md" else text
            target.write_text(FRONT.get(page, "") + text, "utf-8")
        else:
            shutil.copyfile(ROOT / source, target)
    for page, (title, names) in reference().items():
        entries = "".join(f"\n::: {name}\n" for name in names)
        (PAGES / f"reference/{page}.md").write_text(f"# {title}\n{entries}", "utf-8")


# The navigation

Nav = list["str | dict[str, str | Nav]"]


def navigation() -> Nav:
    """Returns the pages in their order; guides as docs/guides/index.md lists them."""
    return [
        {"Home": "index.md"},
        {"Tutorial": in_order("tutorial")},
        {"Guides": [*guides(), {"Examples": in_order("examples")}]},
        {"Coming from": in_order("coming-from")},
        {
            "Reference": [
                "reference/index.md",
                *(f"reference/{page}.md" for page in reference()),
                "cli.md",
                "errors.md",
                "guarantees.md",
                "glossary.md",
            ]
        },
        {"Project": [*in_order("project"), "performance.md", {"Decisions": in_order("decisions")}]},
    ]


def in_order(folder: str) -> Nav:
    """Returns the pages of a folder by name, its index first."""
    found = sorted((PAGES / folder).glob("*.md"))
    found.sort(key=lambda path: path.stem != "index")
    return [path.relative_to(PAGES).as_posix() for path in found]


def guides() -> Nav:
    """Returns the guides in the sections of their index."""
    listed: Nav = ["guides/index.md"]
    text = (PAGES / "guides/index.md").read_text("utf-8")
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, lines = section.partition("\n")
        pages = re.findall(r"\]\(([\w-]+\.md)\)", lines)
        listed.append({title: [f"guides/{page}" for page in pages]})
    return listed


def shown(pages: Nav) -> Iterator[str]:
    """Yields every page of a navigation."""
    for page in pages:
        if isinstance(page, str):
            yield page
        else:
            for inner in page.values():
                yield from shown([inner] if isinstance(inner, str) else inner)


def toml(value: str | Nav | dict[str, str | Nav]) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    return "[" + ", ".join(toml(one) for one in value) + "]"


# Building and looking


def write_settings() -> None:
    settings = (ROOT / "docs/site/zensical.toml").read_text("utf-8")
    nav = f"[project]\nnav = {toml(navigation())}\n"
    SETTINGS.write_text(settings.replace("[project]\n", nav, 1), "utf-8")


class Entries(HTMLParser):
    """Collects the ids of a page, and what it fetches to be shown."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if identity := named.get("id"):
            self.ids.add(identity)
        address = named.get("href") if tag == "link" else named.get("src")
        if address and tag != "a":
            self.fetched.append(address)


def problems() -> list[str]:
    """Returns what is wrong with the site that was built."""
    pages: dict[str, Entries] = {}
    for path in SITE.rglob("*.html"):
        pages[path.relative_to(SITE).as_posix()] = entries = Entries()
        entries.feed(path.read_text("utf-8"))
    found = [
        f"{page}: fetches {address}"
        for page, entries in sorted(pages.items())
        for address in entries.fetched
        if re.match(r"(https?:)?//", address)
    ]
    for page, (_title, names) in reference().items():
        known = pages[f"reference/{page}.html"].ids
        found += [f"reference/{page}: no entry for {name}" for name in names if name not in known]
    listed = set(shown(navigation()))
    staged = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    found += [f"{page}: not in the navigation" for page in sorted(staged - listed)]
    return found


def build() -> int:
    stage()
    write_settings()
    shutil.rmtree(SITE, ignore_errors=True)
    words = [str(BUILDER), "build", "--strict", "--clean", "--config-file", str(SETTINGS)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(COLOURED.sub("", done.stdout + done.stderr))
        return 1
    wrong = problems()
    print("\n".join(wrong) or f"{SITE.relative_to(ROOT)}: {len(list(SITE.rglob('*.html')))} pages")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(build())
