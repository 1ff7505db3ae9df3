"""What an agent begins with: a text, and one marked block in a file of somebody's."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import ConflictError, UnavailableError, UsageError
from holdfast.cli import main
from holdfast.context import block
from holdfast.context.block import BEGIN, END, splice, write_block


def fill(place: Path) -> None:
    with holdfast.open(place, actor="ada") as hf:
        top = hf.global_()
        top.decide("answer in English", key="o1", standing=True)
        top.decide("draw first", key="o2", standing=True, links=["role:architect"])
        top.set("goals", {"g1": {"title": "ship version 2"}})
        top.set(
            "boot",
            {
                "vocabulary": {"turn": "one question and its answer"},
                "files": {"src/app.py": "where it starts"},
                "roles": {"architect": "decides how parts fit"},
            },
        )
        with top.decide("use plain files", because="people read them", key="d1") as decision:
            decision.outcome("done")
        chat = hf.conversation("c1")
        chat.decide("call the customer", key="d2")
        chat.tasks.add("write the letter")
        chat.tasks.add("post the letter")


def boot(*words: str, place: Path) -> int:
    return main(["--store", str(place), "boot", *words])


def test_the_boot_text_suffices_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """BOOT-16, BOOT-17: goals, orders, vocabulary, decisions, where things are, how to go on."""
    fill(tmp_path / "store")
    assert boot(place=tmp_path / "store") == 0
    text = capsys.readouterr().out
    for part in (
        "# Standing orders\n\n- Write each decision down before you act",
        "- answer in English",
        "# Goals\n\n- ship version 2 (g1)",
        "# Vocabulary\n\n- turn: one question and its answer",
        "# Where things are\n\n- src/app.py: where it starts",
        "# Recent decisions\n\n- use plain files: people read them\n  outcome: done",
        "# Elsewhere in this store\n\n- conversation/c1: 1 open decision, 2 tasks",
        "- `holdfast decide global TEXT --because WHY`: before you act",
    ):
        assert part in text


def test_every_role_file_carries_the_permanent_order(tmp_path: Path):
    """BOOT-38, BOOT-46: whatever the role, its file has the order to decide first."""
    fill(tmp_path / "store")
    for role in ("architect", "tester"):
        path = tmp_path / f"{role}.md"
        assert boot("--role", role, "--write", str(path), place=tmp_path / "store") == 0
        text = path.read_text("utf-8")
        assert "- Write each decision down before you act" in text
        assert ("draw first" in text) is (role == "architect")
    assert "- architect: decides how parts fit" in (tmp_path / "architect.md").read_text("utf-8")


def test_the_block_is_kept_and_nothing_else_is_touched(tmp_path: Path, capsys: Any):
    fill(tmp_path / "store")
    path = tmp_path / "AGENTS.md"
    head, tail = (
        b"\xef\xbb\xbf# Mine\r\n\r\n```\n# code\n```\r\n",
        b"\r\nthe end, without a newline",
    )
    path.write_bytes(head + BEGIN + b"\nold\n" + END + tail)
    path.chmod(0o640)
    assert boot("--write", str(path), place=tmp_path / "store") == 0
    data = path.read_bytes()
    assert data.startswith(head + BEGIN)
    assert data.endswith(END + tail)
    assert b"\nold\n" not in data
    assert b"answer in English" in data
    assert path.stat().st_mode & 0o777 == 0o640
    assert "AGENTS.md: written" in capsys.readouterr().out
    written_at = path.stat().st_mtime_ns
    assert boot("--write", str(path), place=tmp_path / "store") == 0
    assert path.stat().st_mtime_ns == written_at, "what is up to date is not written again"
    assert "up to date" in capsys.readouterr().out


LINES = st.sampled_from(["# a", "", "text", "```", "<!-- x -->", "- [ ] b", "é\u2028", "\x00"])


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(LINES, max_size=6),
    rest=st.lists(LINES, max_size=6),
    newline=st.sampled_from(["\n", "\r\n"]),
    is_whole=st.booleans(),
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=3),
)
def test_splicing_changes_no_byte_outside(
    lines: list[str], rest: list[str], newline: str, is_whole: bool, texts: list[str]
):
    before = newline.join(lines).encode()
    data = splice(before, "first")
    assert data.startswith(before)
    if is_whole:
        data += newline.join(rest).encode()
    at, end = data.index(BEGIN), data.index(END) + len(END)
    head, tail = data[:at], data[end:]
    for text in texts:
        shown = "\n".join(f"- {line}" for line in text.split("\n"))
        data = splice(data, shown)
        assert data.startswith(head + BEGIN)
        assert data.endswith(END + tail)
        assert splice(data, shown) == data


@pytest.mark.parametrize(
    "data",
    [
        BEGIN + b"\n",
        END + b"\n",
        END + b"\n" + BEGIN + b"\n",
        (BEGIN + b"\n" + END + b"\n") * 2,
        BEGIN + b"\n" + BEGIN + b"\n" + END,
    ],
)
def test_markers_that_are_no_pair_are_refused(data: bytes, tmp_path: Path):
    path = tmp_path / "AGENTS.md"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="markers of a boot block"):
        write_block(str(path), "text")
    assert path.read_bytes() == data


def saving_meanwhile(path: Path, saved: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has somebody save the file each time when the new one lies beside it."""
    real: Callable[..., Any] = block.write_new
    left = iter(saved)

    def write_new(beside: Path, data: bytes, mode: int | None) -> None:
        real(beside, data, mode)
        if (theirs := next(left, None)) is not None:
            path.write_bytes(theirs)

    monkeypatch.setattr(block, "write_new", write_new)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_what_somebody_saves_meanwhile_is_kept(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not can_exchange:
        monkeypatch.setattr("holdfast.exchange._system_call", lambda: None)
    path = tmp_path / "AGENTS.md"
    path.write_bytes(b"mine\n")
    saving_meanwhile(path, [b"theirs 0\n", b"theirs 1\n"], monkeypatch)
    assert write_block(str(path), "text")
    assert path.read_bytes() == b"theirs 1\n\n" + BEGIN + b"\ntext\n" + END + b"\n"
    assert os.listdir(tmp_path) == ["AGENTS.md"]


def test_a_new_file_that_somebody_makes_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "AGENTS.md"
    saving_meanwhile(path, [b"theirs\n"], monkeypatch)
    assert write_block(str(path), "text")
    assert path.read_bytes().startswith(b"theirs\n\n" + BEGIN)
    assert os.listdir(tmp_path) == ["AGENTS.md"]


def test_a_save_that_breaks_the_markers_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "AGENTS.md"
    path.write_bytes(b"mine\n")
    theirs = BEGIN + b"\n" + BEGIN + b"\n"
    saving_meanwhile(path, [theirs], monkeypatch)
    with pytest.raises(UsageError, match="markers of a boot block"):
        write_block(str(path), "text")
    assert path.read_bytes() == theirs
    assert os.listdir(tmp_path) == ["AGENTS.md"]


def test_a_file_that_never_rests_keeps_what_was_saved_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "AGENTS.md"
    path.write_bytes(b"mine\n")
    saving_meanwhile(path, [b"theirs %d\n" % number for number in range(99)], monkeypatch)
    with pytest.raises(ConflictError, match="was saved 10 times") as raised:
        write_block(str(path), "text")
    [beside] = [name for name in os.listdir(tmp_path) if name != "AGENTS.md"]
    assert beside in (raised.value.hint or "")
    assert (tmp_path / beside).read_bytes() == b"theirs 9\n"


def test_what_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        write_block(str(tmp_path), "text")
    with pytest.raises(UnavailableError, match="cannot be written"):
        write_block(str(tmp_path / "no" / "AGENTS.md"), "text")


def test_a_link_stays_a_link(tmp_path: Path):
    real, link = tmp_path / "real.md", tmp_path / "AGENTS.md"
    real.write_bytes(b"mine\n")
    link.symlink_to(real)
    assert write_block(str(link), "text")
    assert link.is_symlink()
    assert b"text" in real.read_bytes()


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path):
    """Killed for real, again and again, while it writes the block."""
    path = tmp_path / "AGENTS.md"
    path.write_bytes(b"mine\n" * 1000)
    program = (
        "import sys\nfrom holdfast.context.block import write_block\nnumber = 0\n"
        "print('begun', flush=True)\n"
        "while True:\n    number += 1\n    write_block(sys.argv[1], f'text {number}\\n' * 2000)\n"
    )
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        before = path.stat().st_ino
        while path.stat().st_ino == before:
            assert child.poll() is None
        child.kill()
        child.wait()
        child.stdout.close()
        data = path.read_bytes()
        assert data.startswith(b"mine\n" * 1000)
        assert data.count(BEGIN) == data.count(END) == 1
        lines = data[data.index(BEGIN) : data.index(END)].split(b"\n")[1:-1]
        assert len(lines) == 2000
        assert len(set(lines)) == 1


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: Any):
    fill(tmp_path / "store")
    assert boot("--budget", "0", place=tmp_path / "store") == 2
    assert "--budget must be at least 1" in capsys.readouterr().err
    assert boot("team/none", place=tmp_path / "store") == 3
    capsys.readouterr()
    assert boot("--budget", "5", place=tmp_path / "store") == 0
    assert "never left out has" in capsys.readouterr().err


def test_every_command_that_a_context_names_can_be_typed(tmp_path: Path, capsys: Any):
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation("a b's")
        hf.global_().set("boot", {"vocabulary": {"a": "b" * 90}, "files": {"a": "b" * 90}})
        hf.global_().set("learnings", {"l1": {"title": "c" * 90}})
        chat.memory.notes.put("a", "b" * 90)
        chat.memory.files.put("a" * 90, "b")
        chat.facts.state("f", "c" * 90)
        chat.facts.state("stale", "c" * 90, valid_for=0.000_001)
        chat.tasks.add("t" * 90)
        chat.tasks.claim()
        chat.tasks.add("o" * 90)
        chat.decide("d" * 90)
        with chat.decide("e" * 90) as decision:
            decision.outcome("done")
        for number in range(40):
            chat.say(f"about invoices {'x' * 90} {number}")
        chat.messages.summarise("s" * 90)
        left = [*hf.context(chat, 1, boot=True).left_out, *hf.context(chat, 1, "invoices").left_out]
    kinds = {one.kind for one in left}
    assert kinds == {
        "warning", "decision", "progress", "open", "place", "word", "how", "decided", "note",
        "fact", "file", "older", "message", "summary",
    }  # fmt: skip
    for one in left:
        words = shlex.split(one.where)[1:]
        assert main(["--store", str(tmp_path / "store"), *words]) == 0, (one, capsys.readouterr())


def test_a_sealed_value_is_not_written_into_a_file(tmp_path: Path, capsys: Any):
    """Nobody erases it there. On the screen, where nothing stays, it is shown."""
    place = tmp_path / "store"
    with holdfast.open(place) as hf:
        hf.global_().messages.add("user", "my street is Canary Row", subject="ada")
    path = tmp_path / "AGENTS.md"
    assert boot("--write", str(path), place=place) == 0
    assert "[sealed]" in path.read_text("utf-8")
    assert "Canary Row" not in path.read_text("utf-8")
    capsys.readouterr()
    assert boot(place=place) == 0
    assert "Canary Row" in capsys.readouterr().out
