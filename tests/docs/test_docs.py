"""The documentation tells the truth: its code runs, and everything it must name is named."""

from __future__ import annotations

import linecache
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import holdfast.errors
from tests.docs import tutorial
from tools import record_demo

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.M | re.S)
TAUGHT = sorted((ROOT / "docs/tutorial").glob("[0-9]*.md"))
RUNNABLE = [
    ROOT / "README.md",
    ROOT / "docs/index.md",
    *sorted((ROOT / "docs/guides").glob("*.md")),
    *sorted((ROOT / "docs/coming-from").glob("*.md")),
]


def blocks(path: Path, language: str) -> list[tuple[int, str, str]]:
    """Returns line number, whole info string and body of each block in that language."""
    text = path.read_text("utf-8")
    return [
        (text.count("\n", 0, match.start("body")) + 1, match["info"].strip(), match["body"])
        for match in FENCE.finditer(text)
        if match["info"].split()[:1] == [language]
    ]


def rows(path: Path) -> list[list[str]]:
    """Returns the cells of every table row, headers and rules left out."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [index for index, row in enumerate(cells) if set(row[0]) <= set("-: ")]
    headers = {index - 1 for index in rules}
    return [row for index, row in enumerate(cells) if index not in headers.union(rules)]


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_code_in_the_documentation_runs_twice_in_a_row(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A reader types it, changes something and runs it again, in the same folder."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        run_page(path, monkeypatch)


def run_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One namespace per page: a page is read from its top to its end.
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, info, body in blocks(path, "python"):
        assert info == "python", f"{path.name}:{line} {info!r}: every python block is run"
        # Nodes look at the source of functions: each block is a file of its own, at its line.
        place, source = f"{path}:{line}", "\n" * (line - 1) + body
        lines = source.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, place, (len(source), None, lines, place))
        # As a reader runs it, without what this module says of annotations.
        exec(compile(source, place, "exec", dont_inherit=True), namespace)


def test_the_tutorial_does_what_it_says(tmp_path: Path):
    """Page after page in one folder, as a reader does it; kills are kills."""
    assert len(TAUGHT) == 7
    for page in TAUGHT:
        played = tutorial.play(page, tmp_path)
        assert played
        for command in played:
            place = f"{page.name}:{command.line}: $ {command.text}"
            assert command.is_as_shown(), f"{place}\n{command.printed}"
    assert "the mail is out" in (tmp_path / "killed.txt").read_text("utf-8")
    assert len((tmp_path / "sent.jsonl").read_text("utf-8").splitlines()) == 1


def test_every_block_of_the_tutorial_is_played():
    """Installing is not: the tests run where it has been done."""
    infos = {
        info
        for page in TAUGHT
        for info in re.findall(r"^```(.+)$", page.read_text("utf-8"), re.M)
        if not tutorial.TITLE.fullmatch(info)
    }
    assert infos == {"console"}


def test_the_readme_and_the_recording_show_what_the_demo_prints(tmp_path: Path):
    """Line by line; numbers differ from run to run, but not those of the scenes."""
    [(_line, _info, shown), *_] = blocks(ROOT / "README.md", "text")
    program = "import sys; from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "demo", "--dir", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = {without_numbers(line) for line in done.stdout.splitlines()}
    assert not {without_numbers(line) for line in shown.splitlines()} - printed
    # What is told of a step differs with who was faster; its heading and what it proves do not.
    telling = re.compile(r"^(\d+\. |✓ )")
    recorded = [record_demo.STYLED.sub("", line) for _, line in record_demo.recorded_lines()]
    told = {without_numbers(line) for line in recorded}
    assert {line for line in told if telling.match(line)} == {
        line for line in printed if telling.match(line)
    }, "run `make recording`"


def without_numbers(line: str) -> str:
    """Returns a line as it is in every run; the number of a scene stays."""
    scene = re.match(r"\d+\. ", line)
    return line.strip() if scene else re.sub(r"\d+", "N", line.strip())


def test_the_picture_is_drawn_from_the_recording():
    is_current = record_demo.PICTURE.read_text("utf-8") == record_demo.picture()
    assert is_current, "run `python tools/record_demo.py --draw`"


def error_classes() -> list[type[holdfast.errors.HoldfastError]]:
    return [
        value
        for value in vars(holdfast.errors).values()
        if isinstance(value, type) and issubclass(value, holdfast.errors.HoldfastError)
    ]


def test_every_error_is_documented_with_its_exit_code():
    documented = {row[0].strip("`"): row[1] for row in rows(ROOT / "docs/errors.md")}
    expected = {error.__name__: str(error.exit_code) for error in error_classes()}
    assert documented == expected


def test_every_error_is_documented_once():
    """The page is merged line by line: a row that two changes touched would be there twice."""
    counts = Counter(row[0] for row in rows(ROOT / "docs/errors.md"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_error_says_what_to_do():
    for name, _code, when, remedy in rows(ROOT / "docs/errors.md"):
        assert when, name
        assert remedy, name


def test_every_decision_is_listed():
    directory = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (directory / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in directory.glob("[0-9]*.md"))


def glossary() -> dict[str, list[str]]:
    """Returns each word of the glossary with the words that stand for the same thing elsewhere."""
    return {
        word.strip(): [avoided.strip() for avoided in re.split(r"[,/]", avoid) if avoided.strip()]
        for words, _meaning, avoid in rows(ROOT / "docs/glossary.md")
        for word in words.split(",")
    }


def test_every_word_of_the_glossary_has_a_meaning():
    for word, meaning, _avoid in rows(ROOT / "docs/glossary.md"):
        assert len(meaning.split()) >= 3, word


def test_no_word_is_both_chosen_and_avoided():
    words = glossary()
    avoided = {other for others in words.values() for other in others}
    # A run is not a job; but a job is a thing of its own.
    assert words.keys() & avoided <= {"version", "scope", "job"}


@cache
def classes() -> list[tuple[Path, str]]:
    """Returns the classes of the sources, wherever they stand."""
    pattern = re.compile(r"^ *class (\w+)", re.MULTILINE)
    return [
        (path, name)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for name in pattern.findall(path.read_text("utf-8"))
    ]


def test_every_class_of_the_glossary_exists():
    defined = {name for _place, name in classes()}
    named = {word.strip("`") for word in glossary() if re.fullmatch("`[A-Z][A-Za-z]+`", word)}
    assert named
    assert not named - defined


def test_classes_use_the_words_of_the_glossary():
    """compat.py speaks the words of the document that it is compatible with."""
    banned = ("Manager", "Driver", "Provider", "Saver", "Topic", "Channel", "Namespace", "Bucket")
    found = [
        f"{path.relative_to(ROOT)} {name}"
        for path, name in classes()
        if "compat" not in path.with_suffix("").parts and any(word in name for word in banned)
    ]
    assert not found


def modules(package: Path) -> set[str]:
    """Returns the names of the modules and packages directly in a package."""
    return {
        path.stem
        for path in package.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__"}


def test_every_module_has_its_place_in_the_architecture():
    layers = "".join(row[0] for row in rows(ROOT / "ARCHITECTURE.md"))
    listed = modules(ROOT / "src/holdfast")
    assert {name for name in listed if f"`{name}`" not in layers} == set()


def test_the_tree_of_the_architecture_is_that_of_the_sources():
    """The first column of each line names modules; indented ones are those of a package."""
    [(_line, _info, tree), *_] = blocks(ROOT / "ARCHITECTURE.md", "text")
    drawn: dict[str, set[str]] = {"": set()}
    package = ""
    for line in tree.splitlines()[1:]:
        names = re.split(r" {2,}", line.strip())[0].replace("/", "").split()
        if line.startswith("    "):
            drawn.setdefault(package, set()).update(names)
        else:
            drawn[""].update(names)
            package = names[0]
    for package, names in drawn.items():
        assert names == modules(ROOT / "src/holdfast" / package), package or "holdfast"


def test_relative_links_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_every_torture_programme_is_explained():
    from tests.torture.programme import programmes

    explained = rows(ROOT / "docs/proof.md")
    named = {name for row in explained for name in re.findall(r"`(t[0-9][^`]*)`", row[0])}
    assert named >= set(programmes())
