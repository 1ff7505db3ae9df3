"""Markdown files keep every byte that is not ours (RALPH-22)."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.views.item import BrokenFile
from holdfast.views.markdown import MarkdownDocument, MarkdownList

TASKS = MarkdownList("Tasks")
LEARNINGS = MarkdownList("Learnings", has_box=False, heading="Learnings")
ROOT = Path(__file__).resolve().parents[2]
PIECES = [
    "# Title", "## Learnings", "text", "", "", "- [ ] a <!-- hf:t1 -->", "- [x] b; by ann",
    "  - [ ] nested <!-- hf:t2 -->", "  note below", "* plain", "1. [ ] first", "2. second",
    "```", "~~~", "    code", "> - [ ] quoted", "> text", "<div>", "</div>", "<!-- open", "-->",
    "---", "title: x", "...", "| a | b |", "[ref]: /url", "***", "===", "\tafter a tab", "é 漢 😀",
    "- [ ] wrapped over", "  two lines <!-- hf:t3 -->", "-", "- - [ ] deep", "&nbsp;", "\\- [ ] no",
]  # fmt: skip
ENDS = ["\n", "\r\n", "\r"]


def real_files(count: int) -> list[bytes]:
    """Returns markdown files that people wrote: our own, and those of installed packages."""
    places = [ROOT, Path(sysconfig.get_paths()["purelib"])]
    found = sorted(path for place in places for path in place.rglob("*.md") if path.is_file())
    found += sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.rst"))
    found += sorted(Path(sysconfig.get_paths()["purelib"]).rglob("METADATA"))
    return [path.read_bytes() for path in found if path.stat().st_size < 100_000][:count]


def generated(number: int) -> bytes:
    draw = random.Random(number)
    lines = draw.choices(PIECES, k=draw.randrange(0, 14))
    ends = [draw.choice(ENDS)] * len(lines) if draw.random() < 0.8 else draw.choices(ENDS, k=14)
    text = "".join(line + end for line, end in zip(lines, ends, strict=False))
    if draw.random() < 0.2:
        text = text.rstrip("\r\n")
    return (("\ufeff" if draw.random() < 0.1 else "") + text).encode()


def believed(form: MarkdownList, data: bytes) -> MarkdownDocument | None:
    try:
        return form.parse(data)
    except BrokenFile:
        return None


@pytest.mark.parametrize("form", [TASKS, LEARNINGS], ids=["boxes", "heading"])
def test_real_files_come_back_byte_for_byte(form: MarkdownList) -> None:
    files = real_files(300)
    assert len(files) >= 150
    for data in files:
        document = believed(form, data)
        if document is not None:
            assert form.splice(document, {}).encode() == data


@pytest.mark.parametrize("form", [TASKS, LEARNINGS], ids=["boxes", "heading"])
def test_generated_files_come_back_byte_for_byte(form: MarkdownList) -> None:
    for number in range(2000):
        data = generated(number)
        document = believed(form, data)
        if document is not None:
            assert form.splice(document, {}).encode() == data


@given(st.integers(0, 1 << 30), st.integers(0, 3))
def test_a_spliced_document_is_what_would_be_parsed(number: int, added: int) -> None:
    """Only the lines of items change, and they are still items where they stand."""
    data = generated(number)
    document = believed(TASKS, data)
    if document is None:
        return
    known = {item.id: item.fields for item in document.items if item.id is not None}
    wanted = {id: {**fields, "title": "changed; by me"} for id, fields in known.items()}
    wanted |= {f"n{one}": {"title": f"new {one}"} for one in range(added)}
    names = {at: f"m{at}" for at, item in enumerate(document.items) if item.id is None}
    wanted |= {id: document.items[at].fields for at, id in names.items()}
    spliced = TASKS.splice(document, wanted, ids=names)
    again = TASKS.parse(spliced.encode())
    assert again == spliced
    assert {item.id: item.fields for item in again.items} == wanted
    ours = {line for one in spliced.items for line in [one.id]}
    assert len(ours) == len(spliced.items) or len(known) < len(document.items)
    kept = [line for at, line in enumerate(document.lines) if not is_of_item(document, at)]
    left = [line for at, line in enumerate(again.lines) if not is_of_item(again, at)]
    assert_is_within([line.rstrip("\r\n") for line in kept], [line.rstrip("\r\n") for line in left])


def is_of_item(document: MarkdownDocument, line: int) -> bool:
    return any(one.line <= line < one.line + one.lines for one in document.placed)


def assert_is_within(kept: list[str], left: list[str]) -> None:
    """All lines that are not ours are still there, in their order."""
    rest = iter(left)
    assert all(line in rest for line in kept)


def test_a_removed_item_leaves_what_stands_below_it() -> None:
    data = b"- [ ] a <!-- hf:t1 -->\n- [ ] b <!-- hf:t2 -->\n  a note\n- [ ] c <!-- hf:t3 -->\n"
    done = {"title": "b", "status": "completed"}
    spliced = TASKS.splice(
        TASKS.parse(data), {"t3": {"title": "c"}}, hidden={"t1": {"title": "a"}, "t2": done}
    )
    text = b"- [x] b <!-- hf:t2 -->\n  a note\n- [ ] c <!-- hf:t3 -->\n"
    assert spliced.encode() == text


def test_items_of_an_open_fence_go_to_the_top() -> None:
    spliced = TASKS.splice(TASKS.parse(b"```\ncode"), {"t1": {"title": "a"}})
    assert [item.id for item in TASKS.parse(spliced.encode()).items] == ["t1"]
    assert spliced.encode().endswith(b"```\ncode\n")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"- [ ] a\xff", "UTF-8"),
        (b"- [ ] a\0", "NUL"),
        (b"<<<<<<< ours\n- [ ] a\n=======\n- [x] a\n>>>>>>> theirs\n", "merge"),
    ],
)
def test_what_cannot_be_believed_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(BrokenFile, match=said):
        TASKS.parse(data)


def test_markers_of_a_merge_in_code_are_text() -> None:
    data = b"```\n<<<<<<< ours\n=======\n>>>>>>> theirs\n```\n"
    assert TASKS.splice(TASKS.parse(data), {}).encode() == data
