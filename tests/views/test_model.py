"""A model of edits and renders: a person and the log change the same items, in any order.

The model is three dictionaries: what the log says, what the file showed when it was last written,
and what the person has typed since. It knows nothing of lines, texts or keys.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import holdfast
from holdfast.views import task_list
from holdfast.views.item import plain_fields
from holdfast.views.markdown import MarkdownList
from holdfast.views.sources import task_fields
from tests.selection import RUNS_ALL

WORDS = st.sampled_from(["alpha", "beta", "gamma; delta", "(odd) one", "x <y>", "é"])
PICK = st.integers(0, 10_000)
FORM = MarkdownList("Tasks")
MODELLED = ("title", "note", "priority", "status")


class EditsAndRenders(RuleBasedStateMachine):
    """Whatever was typed and whatever was recorded is there after a sync, and nothing else."""

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="holdfast-model-"))
        self.store = holdfast.open("memory:", actor="agent")
        self.scope = self.store.workflow("w1")
        self.views = self.store.views(self.place, [task_list(self.scope, "T.md")], person="ann")
        self.log: dict[str, dict[str, Any]] = {}
        self.typed: dict[str, dict[str, Any]] = {}
        self.new: list[str] = []
        self.gone: set[str] = set()
        self.prose: list[str] = []
        self.count = 0
        self.log_adds("first")
        self.log_adds("second")
        self.log_adds("third")
        self.sync()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.place)

    def text(self) -> str:
        return (self.place / "T.md").read_text()

    def save(self, text: str) -> None:
        beside = self.place / "T.md~"
        beside.write_text(text)
        beside.replace(self.place / "T.md")

    def line_of(self, pick: int) -> tuple[str, str]:
        """Returns an item that the file shows, and its line."""
        lines = [line for line in self.text().splitlines() if "<!-- hf:" in line]
        line = lines[pick % len(lines)]
        return re.findall(r"hf:(\S+)", line)[0], line

    # --- what the log does ------------------------------------------------------------------------

    @rule(title=WORDS)
    def log_adds(self, title: str) -> None:
        task = self.scope.tasks.add(title)
        self.log[task.id] = {"title": title}

    @rule(pick=PICK, word=WORDS, field=st.sampled_from(["title", "note", "priority"]))
    def log_changes(self, pick: int, word: str, field: str) -> None:
        id = list(self.log)[pick % len(self.log)]
        value: Any = 2 + pick % 7 if field == "priority" else word
        self.scope.tasks.amend(id, **{field: value})
        self.log[id][field] = value

    @rule(pick=PICK, status=st.sampled_from(["open", "completed"]))
    def log_moves(self, pick: int, status: str) -> None:
        id = list(self.log)[pick % len(self.log)]
        self.scope.tasks.amend(id, status=status)
        self.log[id]["status"] = status

    # --- what the person does ---------------------------------------------------------------------

    @rule(pick=PICK)
    def person_ticks(self, pick: int) -> None:
        id, line = self.line_of(pick)
        if "[ ]" in line:
            self.save(self.text().replace(line, line.replace("[ ]", "[x]", 1)))
            self.typed.setdefault(id, {})["status"] = "completed"

    @rule(pick=PICK, word=st.sampled_from(["one", "two", "three"]))
    def person_renames(self, pick: int, word: str) -> None:
        id, line = self.line_of(pick)
        # In "(odd) one" the bracket is of the title: what is no status or priority is.
        found = re.match(r"(- \[.\] (?:\((?!odd\))\w+\) )?)", line)
        assert found
        rest = re.search(r"(; (?:by|note|outcome|why|after) .*)? <!-- hf:", line)
        assert rest
        self.save(self.text().replace(line, f"{found[1]}{word}{line[rest.start() :]}"))
        self.typed.setdefault(id, {})["title"] = word

    @rule(number=PICK)
    def person_adds(self, number: int) -> None:
        self.count += 1
        title = f"typed {number} {self.count}"
        lines = self.text().splitlines(keepends=True)
        at = max(at for at, line in enumerate(lines) if line.startswith("- ["))
        self.save("".join([*lines[: at + 1], f"- [ ] {title}\n", *lines[at + 1 :]]))
        self.new.append(title)

    @precondition(lambda self: not self.gone)
    @rule(pick=PICK)
    def person_removes(self, pick: int) -> None:
        id, line = self.line_of(pick)
        # One of three or more: a file that lost more than half of its items waits for a word.
        if self.text().count("<!-- hf:") > 2 and id not in self.typed:
            self.save(self.text().replace(f"{line}\n", ""))
            self.gone.add(id)

    @rule(number=PICK)
    def person_writes_prose(self, number: int) -> None:
        said = f"prose {number}"
        self.save(f"{self.text()}\n{said}\n")
        self.prose.append(said)

    # --- and what comes of it ---------------------------------------------------------------------

    @rule()
    def sync(self) -> None:
        found = self.views.sync()
        assert not [one for one in found if one.kind in ("broken", "pending")], found
        for id, fields in self.typed.items():
            self.log[id].update(fields)
        for id in self.gone:
            if self.log[id].get("status") == "completed":
                assert any(one.kind == "refused" and one.diff for one in found)
            else:
                self.log[id]["status"] = "cancelled"
        tasks = {task.id: task for task in self.scope.tasks.list(limit=None)}
        for title in self.new:
            [id] = [one.id for one in tasks.values() if one.title == title]
            assert tasks[id].created_by == "ann"
            self.log[id] = {"title": title}
        self.typed, self.new, self.gone = {}, [], set()
        self.agree(tasks)
        assert self.views.sync() == []

    def agree(self, tasks: dict[str, Any]) -> None:
        """What the log says, what the file shows and what the model knows are one."""
        said = {id: plain_fields(task_fields(task)) for id, task in tasks.items()}
        known = {
            id: {name: value for name, value in fields.items() if name in MODELLED}
            for id, fields in said.items()
        }
        assert known == {id: plain_fields(fields) for id, fields in self.log.items()}
        shown = {one.id: one.fields for one in FORM.parse(self.text().encode()).items}
        kept = {id: fields for id, fields in said.items() if id in shown}
        assert shown == kept
        assert all(said[id]["status"] == "cancelled" for id in said.keys() - shown.keys())
        lines = self.text().splitlines()
        assert [line for line in lines if line.startswith("prose")] == self.prose


TestEditsAndRenders = EditsAndRenders.TestCase
TestEditsAndRenders.settings = settings(
    max_examples=200 if RUNS_ALL else 10, stateful_step_count=15, deadline=None
)
