"""Files that people edit, and git: an update with its file, an edited list, commits of views.

Each is measured beside the bare work that nothing could do without: a durable append and a replace
of the same file, the parse of the same markdown, the git commands that make the same commit. And
plain text files beside a scope, at so many records: where they stop being practical.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import holdfast
from bench.harness import Block, Loop, Report, Size, closing, interleave, latency_row, ratio
from holdfast.git import Repository, commit_events
from holdfast.views import task_list
from holdfast.views.markdown import MarkdownList

LIST = 1_000
PERSON = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")


def files(size: Size) -> Report:
    """An update with its file, an edited list, a commit of views; plain text files beside ours."""
    report = Report(
        "Views: an update and its file, a list that somebody edited, a commit of git; and an "
        "append to plain text files",
        "full on all sides; the parse and the splice of a list write nothing",
    )
    with ExitStack() as stack:
        place = Path(mkdtemp(prefix="holdfast-bench-files-"))
        stack.callback(lambda: subprocess.run(["rm", "-r", place], check=False))
        _update(size, report, place)
        _edited(size, report)
        _committed(size, report, place)
        _text_files(size, report, place)
    return report


def _compare(size: Size, report: Report, what: str, ours: Loop, bare: Loop, limit: float) -> None:
    with closing([ours, bare]):
        taken = interleave([ours, bare], blocks=min(size.blocks, 30), operations=5)
    for one in (ours, bare):
        report.rows.append({"what": one.name, **latency_row(taken[one.name])})
    found = ratio(taken[ours.name], taken[bare.name])
    report.notes.append(f"{what}: {found}")
    report.at_most(what, found.value, limit)


def _update(size: Size, report: Report, place: Path) -> None:
    """One task is updated and its file shows it, against an append and a replace."""
    hf = holdfast.open(place / "store")
    scope = hf.workflow("w1")
    for number in range(20):
        scope.tasks.add(f"task {number}")
    views = hf.views(place, [task_list(scope)])
    views.sync()
    text = (place / "TASKS.md").read_bytes()
    log = os.open(place / "bare.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = 0

    def update() -> None:
        nonlocal count
        count += 1
        scope.tasks.update("t7", note=f"update {count}")
        views.sync()

    def bare() -> None:
        os.write(log, b"x" * 200)
        os.fdatasync(log)
        _replace(place / "bare.md", text)

    ours = Loop("holdfast: an update and its file", update, hf.close)
    other = Loop("bare: an append, synced, and a replace", bare, lambda: os.close(log))
    _compare(size, report, "an update with its file / bare append and replace", ours, other, 3)


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(path.name + "~")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _edited(size: Size, report: Report) -> None:
    """A list with one line that somebody edited is read and spliced, against the parse alone."""
    from markdown_it import MarkdownIt

    form, parser = MarkdownList("Tasks"), MarkdownIt("commonmark")
    items = {f"t{number}": {"title": f"task {number} of many"} for number in range(LIST)}
    text = form.splice(form.parse(b""), items).encode()
    turn = 0

    def edit() -> None:
        nonlocal turn
        turn += 1
        data = text.replace(b"[ ] task 500 ", b"[x] task 500, edit %d " % turn)
        document = form.parse(data)
        form.splice(document, items).encode()

    ours = Loop(f"holdfast: a list of {LIST:,}, edited", edit, lambda: None)
    shown = text.decode()
    bare = Loop("bare: markdown-it parses it", lambda: parser.parse(shown), lambda: None)
    _compare(size, report, f"an edited list of {LIST:,} / markdown-it's own parse", ours, bare, 2)


def _committed(size: Size, report: Report, place: Path) -> None:
    """An event is told in a commit with its file, against the commands that make such a commit."""
    folder = place / "project"
    folder.mkdir()
    _git(folder, "init", "-q")
    (folder / "view.md").write_text("begin\n")
    _git(folder, "add", "view.md")
    _git(folder, "commit", "-q", "-m", "begin")
    hf = holdfast.open(place / "told", durability="none")
    red, repository, count = hf.team("red"), Repository.find(folder), 0

    def told() -> None:
        nonlocal count
        count += 1
        red.set("n", count)
        (folder / "view.md").write_text(f"{count}\n")
        assert commit_events(red, repository, [folder / "view.md"]) is not None

    def bare() -> None:
        nonlocal count
        count += 1
        (folder / "view.md").write_text(f"bare {count}\n")
        _git(folder, "add", "view.md")
        _git(folder, "commit", "-q", "-m", "bare")

    ours = Loop("holdfast: an event, told in a commit", told, hf.close)
    other = Loop("bare: git add, git commit", bare, lambda: None)
    with closing([ours, other]):
        taken = interleave([ours, other], blocks=min(size.blocks, 10), operations=2)
    for one in (ours, other):
        report.rows.append({"what": one.name, **latency_row(taken[one.name])})
    found = ratio(taken[ours.name], taken[other.name])
    report.notes.append(f"an event told in a commit / git add and commit: {found}")


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *PERSON, *words], cwd=folder, check=True, stdin=subprocess.DEVNULL)


# --- plain text files ----------------------------------------------------------------------------


def _text_files(size: Size, report: Report, place: Path) -> None:
    """One durable append to a file of so many records, beside one to a scope of as many events."""
    for records in (100, 500) if size.quick else (1_000, 10_000, 100_000):
        times = text_append_times(place / str(records), records)
        for what, seconds in times.items():
            block = Block(seconds, [seconds])
            row = {"what": f"{what}, one append at {records:,} records", **latency_row([block])}
            report.rows.append(row)


def text_append_times(place: Path, records: int) -> dict[str, float]:
    """Returns how long one durable append takes, by kind of file; YAML up to 10,000 records."""
    from holdfast.views.yaml_text import dump_block, load_yaml

    place.mkdir()
    found: dict[str, float] = {}
    if records <= 10_000:
        path = place / "events.yaml"
        rows = [{"type": "event", "number": number, "by": "ann"} for number in range(records)]
        path.write_text("".join(dump_block(rows, "\n", 2)))

        def append_yaml() -> None:
            known: list[Any] = load_yaml(path.read_text())
            known.append({"type": "event", "number": records, "by": "ann"})
            _replace(path, "".join(dump_block(known, "\n", 2)).encode())

        found["YAML, loaded and written again"] = _timed(append_yaml)
    path = place / "events.tsv"
    path.write_text("".join(f"event\t{number}\tann\n" for number in range(records)))

    def append_tsv() -> None:
        with open(path, "a") as file:
            file.write(f"event\t{records}\tann\n")
            file.flush()
            os.fsync(file.fileno())

    found["TSV, a line at its end"] = _timed(append_tsv)
    with holdfast.open(place / "store", durability="none") as hf:
        for start in range(0, records, 1_000):
            with hf.commit() as tx:
                for number in range(start, min(start + 1_000, records)):
                    tx.scope(hf.team("red")).record("event", {"number": number}, unchecked=True)
    with holdfast.open(place / "store") as hf:
        red = hf.team("red")
        red.record("event", {"number": -1}, unchecked=True)
        found["holdfast"] = _timed(lambda: red.record("event", {"number": 0}, unchecked=True))
    return found


def _timed(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin
