"""Files that people edit: what they change is recorded, what the log says is shown."""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, Scope, Store, UsageError
from holdfast.views import (
    Finding,
    Views,
    directory,
    goal_list,
    item_view,
    learning_list,
    progress_list,
    task_list,
    todo_list,
)
from holdfast.views.item import BrokenFile
from holdfast.views.markdown import MarkdownList
from holdfast.views.sources import task_fields


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "store", actor="agent", durability="process") as store:
        yield store


@pytest.fixture
def scope(hf: Store) -> Scope:
    return hf.workflow("w1")


@pytest.fixture
def views(hf: Store, scope: Scope, tmp_path: Path) -> Iterator[Views]:
    made = hf.views(tmp_path, [task_list(scope, "RALPH_TASKS.md")], person="ann")
    yield made
    made.close()


def tasks_file(views: Views) -> Path:
    return views.directory / "RALPH_TASKS.md"


def save(path: Path, text: str) -> None:
    """Saves as most editors do: through a new name."""
    beside = path.with_name(path.name + "~")
    beside.write_bytes(text.encode())
    beside.replace(path)


def edit(views: Views, change: Callable[[str], str]) -> list[Finding]:
    path = tasks_file(views)
    save(path, change(path.read_bytes().decode()))
    return views.sync()


def kinds(findings: list[Finding]) -> list[str]:
    return [one.kind for one in findings]


def test_a_file_shows_the_tasks(views: Views, scope: Scope) -> None:
    """RALPH-19, RALPH-20: state is text in the project's own folder."""
    scope.tasks.add("build the form", priority="high")
    scope.tasks.add("test; it", depends_on=["t1"])
    scope.tasks.claim("t1", owner="ann", lasts="1h")
    assert views.sync() == []
    assert tasks_file(views).read_text() == (
        "# Tasks\n\n"
        "- [/] (high) build the form; by ann <!-- hf:t1 -->\n"
        "- [ ] test\\; it; after t1 <!-- hf:t2 -->\n"
    )
    scope.tasks.close("t1", "works", owner="ann")
    views.sync()
    assert "- [x] (high) build the form; by ann; outcome works" in tasks_file(views).read_text()


def test_an_edit_is_an_event_of_the_person(views: Views, scope: Scope) -> None:
    """RALPH-21: a new line is an item, a ticked box closes, a changed field updates."""
    scope.tasks.add("one")
    scope.tasks.add("two")
    views.sync()
    found = edit(
        views,
        lambda text: text.replace("[ ] one", "[x] (high) one; by bob") + "- [!] mine; why no key\n",
    )
    assert sorted(kinds(found)) == ["added", "changed", "changed", "changed"]
    one, mine = scope.tasks.get("t1"), scope.tasks.get("t3")
    assert (one.status, one.priority, one.owner) == ("completed", 1, "bob")
    assert (mine.title, mine.status, mine.why, mine.created_by) == (
        "mine",
        "blocked",
        "no key",
        "ann",
    )
    newest = list(scope.history())[-1]
    assert (newest.actor, newest.meta.source) == ("ann", "file")
    assert "- [!] mine; why no key <!-- hf:t3 -->\n" in tasks_file(views).read_text()
    assert [one.status for one in views.status()] == ["fresh"]
    assert views.sync() == []


def test_a_removed_line_cancels_and_can_be_taken_back(views: Views, scope: Scope) -> None:
    for number in range(5):
        scope.tasks.add(f"task {number}")
    views.sync()
    found = edit(views, lambda text: text.replace("- [ ] task 2 <!-- hf:t3 -->\n", ""))
    assert kinds(found) == ["removed"]
    assert scope.tasks.get("t3").status == "cancelled"
    views.sync()
    assert "task 2" not in tasks_file(views).read_text()
    scope.tasks.reopen("t3")
    views.sync()
    assert "- [ ] task 2; why" not in tasks_file(views).read_text()
    assert "task 2" in tasks_file(views).read_text()


def test_an_item_that_the_log_took_back_leaves_the_file(views: Views, scope: Scope) -> None:
    """A restore to before it was there: its line goes, and what is typed is not taken for it."""
    scope.tasks.add("one")
    scope.tasks.add("two")
    before = scope.revision
    scope.tasks.add("three")
    scope.tasks.add("four")
    views.sync()
    scope.restore(before)
    assert views.sync() == []
    text = tasks_file(views).read_text()
    assert "three" not in text
    assert "four" not in text
    assert [task.title for task in scope.tasks.list()] == ["one", "two"]
    assert [one.status for one in views.status()] == ["fresh"]


def test_an_item_that_the_log_took_back_while_somebody_edited_it_is_told(
    views: Views, scope: Scope
) -> None:
    """Their word on it stays in the file; a line of theirs that was refused does, too."""
    scope.tasks.add("one")
    before = scope.revision
    scope.tasks.add("two")
    scope.tasks.add("three")
    views.sync()
    scope.restore(before)
    typed = f"- [ ] x <!-- hf:{'long' * 500} -->\n"
    found = edit(views, lambda text: text.replace("two", "two, and more") + typed)
    assert sorted(kinds(found)) == ["refused", "refused"]
    assert all(one.diff for one in found)
    for _ in range(2):
        text = tasks_file(views).read_text()
        assert "three" not in text
        assert f"- [ ] two, and more <!-- hf:t2 -->\n{typed}" in text
        scope.tasks.update("t1", note="again")
        assert views.sync() == []
    found = edit(views, lambda text: text.replace(typed, "- [ ] x <!-- hf:t7 -->\n"))
    assert kinds(found) == ["added"]
    assert kinds(edit(views, lambda text: text.replace("two,", "2,"))) == ["added"]
    assert scope.tasks.get("t2").title == "2, and more"


def test_many_lines_that_vanish_wait_for_a_word(views: Views, scope: Scope) -> None:
    for number in range(4):
        scope.tasks.add(f"task {number}")
    views.sync()
    before = tasks_file(views).read_text()
    found = edit(views, lambda text: "# Tasks\n\n- [ ] task 3 <!-- hf:t4 -->\nprose\n")
    assert kinds(found) == ["pending"]
    assert "-- [ ] task 0" in found[0].diff
    assert {task.status for task in scope.tasks.list()} == {"open"}
    assert [one.status for one in views.status()] == ["pending"]
    scope.tasks.add("one more")
    assert kinds(views.sync()) == ["pending"]
    assert "one more" not in tasks_file(views).read_text()
    views.reject("RALPH_TASKS.md")
    assert tasks_file(views).read_text() == before + "- [ ] one more <!-- hf:t5 -->\n"
    assert list(views.directory.glob("RALPH_TASKS.md.rejected-*"))
    edit(views, lambda text: "# Tasks\n\n- [ ] task 3 <!-- hf:t4 -->\nprose\n")
    assert kinds(views.accept("RALPH_TASKS.md")) == ["removed"] * 4
    assert [task.id for task in scope.tasks.list(status="open")] == ["t4"]
    assert tasks_file(views).read_text() == "# Tasks\n\n- [ ] task 3 <!-- hf:t4 -->\nprose\n"


def test_a_deleted_file_is_written_again(views: Views, scope: Scope) -> None:
    scope.tasks.add("one")
    views.sync()
    edit(views, lambda text: text + "\nprose that stays\n")
    tasks_file(views).unlink()
    assert kinds(views.sync()) == ["deleted"]
    assert tasks_file(views).read_text().endswith("\nprose that stays\n")
    assert scope.tasks.get("t1").status == "open"


@pytest.mark.parametrize(
    "broken", [b"\xff\xfe", b"a\0b", b"<<<<<<< a\n- [ ] x\n=======\n- [ ] y\n>>>>>>> b\n"]
)
def test_a_broken_file_is_left_alone(views: Views, scope: Scope, hf: Store, broken: bytes) -> None:
    scope.tasks.add("one")
    views.sync()
    tasks_file(views).write_bytes(broken)
    os.utime(tasks_file(views), (1, 1))
    scope.tasks.add("two")
    [found] = views.sync()
    assert found.kind == "broken"
    assert found.diff
    assert tasks_file(views).read_bytes() == broken
    [aside] = views.directory.glob("RALPH_TASKS.md.broken-*")
    assert aside.read_bytes() == broken
    views.sync()
    assert len(list(views.directory.glob("RALPH_TASKS.md.broken-*"))) == 1
    assert {task.status for task in scope.tasks.list()} == {"open"}
    save(tasks_file(views), "# Tasks\n\n- [x] one <!-- hf:t1 -->\n")
    assert kinds(views.sync()) == ["changed"]
    assert "- [ ] two <!-- hf:t2 -->" in tasks_file(views).read_text()


def test_both_changed_one_field_the_person_wins_and_both_are_told(
    views: Views, scope: Scope
) -> None:
    scope.tasks.add("one")
    scope.tasks.add("two")
    views.sync()
    text = tasks_file(views).read_text()
    scope.tasks.update("t1", title="ours", priority=5)
    save(tasks_file(views), text.replace("] one", "] theirs"))
    found = views.sync()
    assert sorted(kinds(found)) == ["changed", "conflict"]
    [conflict] = [one for one in found if one.kind == "conflict"]
    assert '"ours"' in conflict.message
    assert '"theirs"' in conflict.message
    assert (scope.tasks.get("t1").title, scope.tasks.get("t1").priority) == ("theirs", 5)
    assert "- [ ] (5) theirs <!-- hf:t1 -->" in tasks_file(views).read_text()


def test_who_saves_an_old_text_takes_nothing_back_that_they_never_saw(
    views: Views, scope: Scope
) -> None:
    scope.tasks.add("one")
    scope.tasks.add("two")
    views.sync()
    text = tasks_file(views).read_text()
    scope.tasks.update("t1", title="newer")
    scope.tasks.add("three")
    views.sync()
    scope.tasks.update("t1", title="newest")
    views.sync()
    save(tasks_file(views), text.replace("[ ] two", "[x] two"))
    assert kinds(views.sync()) == ["changed"]
    assert scope.tasks.get("t1").title == "newest"
    assert scope.tasks.get("t2").status == "completed"
    assert scope.tasks.get("t3").status == "open"
    assert "] newest <!-- hf:t1 -->" in tasks_file(views).read_text()
    text = tasks_file(views).read_text()  # now it has been read
    save(tasks_file(views), text.replace("newest", "one"))
    views.sync()
    assert scope.tasks.get("t1").title == "one"


def test_what_the_log_refuses_is_told_with_a_difference_and_restored(
    views: Views, scope: Scope
) -> None:
    scope.tasks.add("one")
    scope.tasks.add("two", depends_on=["t1"])
    scope.tasks.close("t1", "done")
    views.sync()
    before = tasks_file(views).read_text()
    for old, new in [
        ("after t1", "after t9"),
        ("[ ] two", "[?] two"),
        ("[ ] two; after", "[ ] ; after"),
        ("- [x] one; outcome done <!-- hf:t1 -->\n", ""),
        ("; outcome done", ""),
    ]:
        found = edit(views, lambda text, old=old, new=new: text.replace(old, new))
        assert kinds(found) == ["refused"], (old, found)
        assert found[0].diff
        assert sorted(tasks_file(views).read_text()) == sorted(before)


def test_a_line_that_was_copied_is_a_new_item(views: Views, scope: Scope) -> None:
    scope.tasks.add("one")
    views.sync()
    edit(views, lambda text: text + "- [ ] one <!-- hf:t1 -->\n")
    assert [task.id for task in scope.tasks.list()] == ["t1", "t2"]
    assert tasks_file(views).read_text().count("hf:t1 ") == 1


def test_recovery_from_the_files_alone_gives_equal_tasks(
    views: Views, scope: Scope, hf: Store, tmp_path: Path
) -> None:
    scope.tasks.add("one; by me", priority=7, epic="e", tags=["a,b", "c"])
    scope.tasks.add("two\nlines", depends_on=["t1"])
    scope.tasks.update("t2", owner="ann", note="a note")
    scope.tasks.claim("t1", owner="bob", lasts="1h")
    scope.tasks.add("three", depends_on=["t2", "t1"])
    scope.tasks.block("t3", why="no key")
    scope.tasks.close(scope.tasks.add("four"), "it works; really")
    scope.tasks.close(scope.tasks.add("five"), "no", status="cancelled")
    views.sync()
    with holdfast.open(tmp_path / "other") as other:
        again = other.workflow("w1")
        other.views(tmp_path, [task_list(again, "RALPH_TASKS.md")]).sync()
        for task in scope.tasks.list():
            if task.id != "t5":
                same = again.tasks.get(task.id)
                for name in ("title", "priority", "epic", "tags", "dependencies", "status",
                             "owner", "note", "why", "outcome"):  # fmt: skip
                    assert getattr(same, name) == getattr(task, name), (task.id, name)


def test_the_five_files(hf: Store, scope: Scope, tmp_path: Path) -> None:
    """RALPH-19: goals, tasks, progress, to-do and learnings."""
    made = [
        task_list(scope, "RALPH_TASKS.md"), goal_list(scope, "RALPH_GOALS.md"),
        progress_list(scope, "RALPH_PROGRESS.md"), todo_list(scope, "RALPH_TODO.md"),
        learning_list(scope, "AGENT.md"),
    ]  # fmt: skip
    views = hf.views(tmp_path, made, person="ann")
    (tmp_path / "AGENT.md").write_text("# Agent\n\n- not ours\n\n## Learnings\n\n- test first\n")
    scope.update({"goals": {"g1": {"title": "ship it"}}})
    views.sync()
    assert (tmp_path / "RALPH_GOALS.md").read_text() == "# Goals\n\n- [ ] ship it <!-- hf:g1 -->\n"
    agent = (tmp_path / "AGENT.md").read_text()
    assert agent == "# Agent\n\n- not ours\n\n## Learnings\n\n- test first <!-- hf:l1 -->\n"
    save(tmp_path / "RALPH_GOALS.md", "# Goals\n\n- [x] ship it <!-- hf:g1 -->\n- [ ] rest\n")
    save(tmp_path / "AGENT.md", agent.replace("- test first", "+ write first"))
    views.sync()
    assert scope.state["goals"]["g1"] == {"title": "ship it", "status": "completed"}
    assert scope.state["goals"]["g2"]["title"] == "rest"
    assert scope.state["learnings"]["l1"]["title"] == "write first"
    assert "+ write first <!-- hf:l1 -->" in (tmp_path / "AGENT.md").read_text()
    views.close()


def test_a_tick_in_a_file_of_open_tasks_moves_the_line(
    hf: Store, scope: Scope, tmp_path: Path
) -> None:
    open_ones = task_list(scope, "OPEN.md", statuses=["open", "in_progress", "blocked"])
    done = task_list(scope, "DONE.md", statuses=["completed", "cancelled"])
    views = hf.views(tmp_path, [open_ones, done])
    scope.tasks.add("one")
    scope.tasks.add("two")
    views.sync()
    path = tmp_path / "OPEN.md"
    save(path, path.read_text().replace("[ ] one", "[x] one"))
    views.sync()
    assert "one" not in path.read_text()
    assert "- [x] one" in (tmp_path / "DONE.md").read_text()
    views.close()


def test_what_is_no_view_is_refused(hf: Store, scope: Scope, tmp_path: Path) -> None:
    for file in ("", "/etc/passwd", "../x.md"):
        with pytest.raises(UsageError):
            hf.views(tmp_path, [task_list(scope, file)])
    with pytest.raises(UsageError):
        hf.views(tmp_path, [task_list(scope), task_list(scope)])
    with pytest.raises(NotFoundError):
        hf.views(tmp_path, [task_list(scope)]).accept("OTHER.md")


def test_a_link_in_the_place_of_a_view_is_not_followed(views: Views, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    tasks_file(views).symlink_to(outside)
    with pytest.raises(holdfast.UnavailableError):
        views.sync()
    assert outside.read_text() == "secret"


# --- somebody saves in the middle of a write -----------------------------------------------------


def at_the_exchange(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], times: int = 1
) -> None:
    """Has something happen right before the names are exchanged."""
    real, left = directory.exchange, [times]

    def exchange(new: Path, target: Path) -> str:
        if left[0]:
            left[0] -= 1
            act()
        return real(new, target)

    monkeypatch.setattr(directory, "exchange", exchange)


def test_a_save_in_the_middle_of_our_write_is_imported(
    views: Views, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope.tasks.add("one")
    scope.tasks.add("two")
    views.sync()
    path = tasks_file(views)
    text = path.read_text().replace("[ ] two", "[x] two") + "- [ ] mine\n\nprose\n"
    at_the_exchange(monkeypatch, lambda: save(path, text))
    scope.tasks.update("t1", title="newer")
    found = views.sync()
    assert sorted(kinds(found)) == ["added", "changed"]
    assert path.read_text() == (
        "# Tasks\n\n- [ ] newer <!-- hf:t1 -->\n"
        "- [x] two; outcome completed by hand <!-- hf:t2 -->\n"
        "- [ ] mine <!-- hf:t3 -->\n\nprose\n"
    )
    assert views.sync() == []


def test_a_file_system_that_cannot_exchange_names(
    views: Views, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.exchange._system_call", lambda: None)
    test_a_save_in_the_middle_of_our_write_is_imported(views, scope, monkeypatch)


def test_a_file_that_is_made_while_it_is_taken_away_stays(
    views: Views, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.exchange._system_call", lambda: None)
    scope.tasks.add("one")
    views.sync()
    path, real = tasks_file(views), os.link
    text = path.read_text().replace("[ ] one", "[x] one")
    left = [1]

    def link(*names: str, **options: Any) -> None:
        if left[0]:
            left[0] = 0
            save(path, text)
        real(*names, **options)

    monkeypatch.setattr(os, "link", link)
    scope.tasks.add("two")
    views.sync()
    assert scope.tasks.get("t1").status == "completed"
    assert "- [ ] two <!-- hf:t2 -->" in path.read_text()


# --- planted faults ------------------------------------------------------------------------------


def plant_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renders from the state that it saw first."""
    real = item_view.ItemView.render
    seen: dict[str, object] = {}

    def render(self: item_view.ItemView, *arguments: Any) -> bytes:
        seen.setdefault(self.path, self.source.items())
        monkeypatch.setattr(type(self.source), "items", lambda _: seen[self.path])
        return real(self, *arguments)

    monkeypatch.setattr(item_view.ItemView, "render", render)


def plant_last_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes whatever the file says for what counts."""
    real = item_view.ItemView.read

    def read(self: item_view.ItemView, data: bytes, last: object, **options: bool) -> object:
        return real(self, data, last, is_read=True)  # type: ignore[arg-type]

    monkeypatch.setattr(item_view.ItemView, "read", read)


def plant_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads a file that cannot be read as an empty one, and any removal for meant."""
    real = item_view.ItemView.document

    def document(self: item_view.ItemView, data: bytes) -> object:
        try:
            return real(self, data)
        except BrokenFile:
            return real(self, b"")

    monkeypatch.setattr(item_view.ItemView, "document", document)
    monkeypatch.setattr(directory, "_is_mass_removal", lambda _: False)


def plant_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges names and does not look at what came out."""
    real = Views._take_over

    def take_over(self: Views, *arguments: object) -> bool:
        self._end_exchange(arguments[0])  # type: ignore[arg-type]
        return True

    assert real
    monkeypatch.setattr(Views, "_take_over", take_over)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (plant_stale, test_a_file_shows_the_tasks),
        (plant_last_writer, test_who_saves_an_old_text_takes_nothing_back_that_they_never_saw),
        (plant_empty, test_a_broken_file_is_left_alone),
        (plant_blind, test_a_save_in_the_middle_of_our_write_is_imported),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[..., None],
    views: Views,
    scope: Scope,
    hf: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        plant(patched)
        given = {"views": views, "scope": scope, "hf": hf, "monkeypatch": patched}
        given["broken"] = b"\xff"  # type: ignore[assignment]
        names = test.__code__.co_varnames[: test.__code__.co_argcount]
        with pytest.raises((AssertionError, ValueError)):
            test(**{name: given[name] for name in names})


def test_what_a_person_says_of_a_task_counts_over_a_claim(scope: Scope) -> None:
    scope.tasks.add("one")
    held = scope.tasks.claim("t1")
    assert scope.tasks.amend("t1", status="completed", outcome="by me").outcome == "by me"
    with pytest.raises(holdfast.LeaseLostError):
        scope.tasks.close(held, "too late")
    assert scope.tasks.amend("t1", status="blocked", why="no key").why == "no key"
    assert scope.tasks.amend("t1", status="in_progress", owner="bob").owner == "bob"
    assert scope.tasks.amend("t1", status="open", title="two").title == "two"
    scope.tasks.update("t1", owner="bob")
    assert scope.tasks.claim() is None
    assert scope.tasks.claim(owner="bob", lasts="1h").owner == "bob"


# --- beside others -------------------------------------------------------------------------------


def test_a_person_edits_while_updates_are_written(views: Views, scope: Scope) -> None:
    """RALPH-22: 1,000 updates, and edits in between: nothing is lost, the prose is byte-equal."""
    for number in range(20):
        scope.tasks.add(f"task {number}")
    views.sync()
    path = tasks_file(views)
    prose = "\n> a quote\n\n```\n- [ ] code\n```\nlast words"
    turns = threading.Barrier(2)

    def person() -> None:
        turns.wait()
        for change in (
            lambda text: text.replace("- [ ] task 18", "- [x] task 18"),
            lambda text: text.replace("- [ ] task 19", "- [x] task 19"),
            lambda text: text.rstrip("\n") + "\n- [ ] typed by hand\n",
            lambda text: text + prose,
        ):
            save(path, change(path.read_text()))
            turns.wait()

    thread = threading.Thread(target=person)
    thread.start()
    for number in range(250):
        if number % 50 == 0:
            turns.wait()
        for one in range(4):
            scope.tasks.update(f"t{number % 18 + 1}", note=f"update {number}.{one}")
        views.sync()
    thread.join()
    views.sync()
    assert {task.status for task in map(scope.tasks.get, ("t19", "t20"))} == {"completed"}
    [typed] = [task for task in scope.tasks.list(limit=None) if task.title == "typed by hand"]
    assert typed.created_by == "ann"
    assert path.read_text().endswith(prose)
    for number in range(232, 250):
        assert scope.tasks.get(f"t{number % 18 + 1}").note == f"update {number}.3"
        assert f"note update {number}.3 <!-- hf:t{number % 18 + 1} -->" in path.read_text()
    assert [one.status for one in views.status()] == ["fresh"]


def test_two_directories_handles_of_one_store_agree(
    hf: Store, scope: Scope, tmp_path: Path
) -> None:
    """A second process is a second handle: what one rendered, the other takes for no edit."""
    one = hf.views(tmp_path, [task_list(scope, "RALPH_TASKS.md")])
    other = hf.views(tmp_path, [task_list(scope, "RALPH_TASKS.md")])
    for number in range(6):
        scope.tasks.add(f"task {number}")
        assert (one if number % 2 else other).sync() == []
    assert [view.status()[0].status for view in (one, other)] == ["fresh", "fresh"]
    one.close()
    other.close()


def test_a_text_of_another_history_says_nothing(views: Views, scope: Scope, tmp_path: Path) -> None:
    """The store is gone and a new one begun: the file is the only word there is."""
    scope.tasks.add("one")
    scope.tasks.add("two")
    views.sync()
    with holdfast.open(tmp_path / "another") as other:
        fresh = other.workflow("w1")
        again = other.views(tmp_path, [task_list(fresh, "RALPH_TASKS.md")])
        assert kinds(again.sync()) == ["added", "added"]
        assert [task.title for task in fresh.tasks.list()] == ["one", "two"]
        again.close()


def random_edit(draw: random.Random, text: str) -> str:
    """Returns a text that a person changed in one way or another."""
    lines = text.splitlines(keepends=True)
    items = [at for at, line in enumerate(lines) if "<!-- hf:" in line]
    at, kind = draw.choice(items), draw.randrange(9)
    word = f"word{draw.randrange(10_000)}"
    if kind == 0:
        lines[at] = re.sub(r"\[.\]", f"[{draw.choice(' /!x-?')}]", lines[at], count=1)
    elif kind == 1:
        lines[at] = lines[at].replace("task", word, 1)
    elif kind == 2:
        said = draw.choice(["high", "low", "7"])
        lines[at] = re.sub(r"(\[.\] )(\(.*?\) )?", rf"\1({said}) ", lines[at])
    elif kind == 3:
        lines[at] = re.sub(r"(; after t\d+)? <!--", "; after t1 <!--", lines[at])
    elif kind == 4:
        del lines[at]
    elif kind == 5:
        lines.append(f"- [{draw.choice(' x!')}] task {word}; by {word}\n")
    elif kind == 6:
        lines.append(lines[at])
    elif kind == 7:
        lines.insert(draw.randrange(len(lines)), f"\n{word} is prose\n\n")
    else:
        lines[at] = re.sub(r"(; note \w+)? <!--", f"; note {word} <!--", lines[at])
    return "".join(lines)


def test_a_hundred_edits_by_hand_and_none_is_silent(views: Views, scope: Scope) -> None:
    """Each is imported, or refused with a difference; then file and log say the same."""
    for number in range(8):
        scope.tasks.add(f"task {number}")
    views.sync()
    form, prose = MarkdownList("Tasks"), set[str]()
    for number in range(100):
        draw = random.Random(number)
        path = tasks_file(views)
        before = path.read_text()
        after = random_edit(draw, before)
        prose |= {line for line in after.splitlines() if line.endswith("is prose")}
        save(path, after)
        found = views.sync()
        old, new = (
            [(item.id, item.fields, item.problem) for item in form.parse(text.encode()).items]
            for text in (before, after)
        )
        assert bool(found) == (old != new), (number, before, after, found)
        assert all(one.diff for one in found if one.kind == "refused")
        shown = {item.id: item.fields for item in form.parse(path.read_bytes()).items}
        tasks = {task.id: task_fields(task) for task in scope.tasks.list(limit=None)}
        assert shown == {id: tasks[id] for id in shown}
        gone = tasks.keys() - shown.keys()
        assert {tasks[id]["status"] for id in gone} <= {"cancelled"}
        assert prose <= set(path.read_text().splitlines())
        assert views.sync() == []


def test_git_does_not_see_what_is_kept_beside_the_files(
    views: Views, scope: Scope, tmp_path: Path
) -> None:
    """It follows the store of this machine: committed, it would be another's last text."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    scope.tasks.add("one")
    views.sync()
    words = ["git", "-C", tmp_path, "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert "RALPH_TASKS.md" in seen
    assert not any(name.startswith(".holdfast-views") for name in seen)
