"""What layers make of a scope goes with it: node results, projections, files, index, vectors.

BOOT-32. A subject's scope has no copy in clear at any time. Of a session that was never sealed,
`erase(scope=…)` takes every copy along that the store knows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.copy import copy
from holdfast.core import retention
from holdfast.errors import ConflictError, UsageError
from holdfast.scope import Scope
from holdfast.views.kinds import decision_list, event_rows, state_file, task_list
from tests.canaries import Canaries, fill
from tests.record.test_subjects import stored


class Letters:
    """An embedder for tests."""

    name, dimension = "letters", 26

    def embed(self, texts: Iterable[str]) -> list[list[float]]:
        return [[float(text.count(chr(97 + one))) for one in range(26)] for text in texts]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def hf(url: str, keys: Path) -> Iterator[Store]:
    with holdfast.open(
        url, keys=keys, settings=Settings(clear_ids=True, embedder=Letters())
    ) as store:
        yield store


def graph(chat: Scope) -> holdfast.Graph:
    """Returns a graph whose results copy what a scope and its caller say."""

    @holdfast.node
    def told(ctx: Any, thread: Any) -> Any:
        return [ctx.read(chat, "text"), [one.text for one in ctx.messages(chat)], thread]

    @holdfast.node
    def large(ctx: Any, told: Any) -> Any:
        return [told] * 2000

    return holdfast.Graph("copies", [told, large])


def test_node_results_of_a_subject_s_scope_are_the_subject_s(hf: Store, keys: Path) -> None:
    canaries = Canaries(3)
    chat = hf.conversation("c", subject="ada")
    chat.set("text", canaries.new("state"))
    chat.say(canaries.new("message"))
    made = graph(chat)
    given = [canaries.new("input")]
    first = hf.nodes.process(made, chat, thread=given)
    assert hf.nodes.process(made, chat, thread=given).counts["hit"] == 2
    assert canaries.found_in(repr(first.states["told"].value).encode()) == {
        "state",
        "message",
        "input",
    }
    assert canaries.found_in(stored(hf)) == set()
    assert hf.subjects.get("ada").scopes == ["conversation/c", "node/copies/conversation/c"]
    receipt = hf.subjects.erase("ada")
    assert {one.scope: one.outcome for one in receipt.scopes}.keys() == {
        "conversation/c",
        "node/copies/conversation/c",
    }
    assert [name for name in hf._log.blobs.names() if hf._log.blobs.subject(name)] == []
    assert hf.check().findings == []


def names() -> Any:
    @holdfast.projection(init=list, name="copied")
    class Copied:
        def measured(self, said: Any, event: Any) -> None:
            said.append(event.data["said"])

    return Copied


def test_a_session_is_erased_with_every_copy_of_it(hf: Store, tmp_path: Path) -> None:
    canaries = Canaries(4)
    chat, stays = hf.conversation("gone"), hf.conversation("stays")
    fill(hf, chat, canaries)
    fork = hf.team("beside")
    fork.set("n", 1)
    stays.set("n", 1)
    hf.nodes.process(graph(chat), chat, thread=[canaries.new("node input")])
    hf.nodes.process(graph(stays), stays, thread=["other"])
    assert len(hf.projections.of(names()).state) == 1
    assert list(hf.query(text="hello"))
    hf.search.similar("hello")
    hf.search.tables()
    place = tmp_path / "views"
    kinds = [task_list(chat, "T.md"), decision_list(chat, "D.md"), event_rows(chat)]
    views = hf.views(place, [*kinds, state_file(chat, "nested.yaml", at="nested")])
    views.sync()
    shown = set(canaries.found_below(place))
    assert {"task new title", "decision", "own event", "state path"} <= shown
    edited = place / "T.md"
    edited.write_text(edited.read_text() + f"- [ ] {canaries.new('edited file')}\n")
    receipt = hf.subjects.erase(scope="conversation/gone")
    assert [one.scope for one in receipt.scopes] == [
        "conversation/gone",
        "node/copies/conversation/gone",
    ]
    assert [one for one in receipt.left if "views" in one.where] == []
    assert canaries.found_in(stored(hf)) == set()
    assert canaries.found_below(place) == {}
    assert list(hf.query(text="hello")) == []
    assert hf.projections.of(names()).state == []
    assert hf.nodes.process(graph(stays), stays, thread=["other"]).counts["hit"] == 2
    assert hf.check().findings == []
    if hf.status()["kind"] == "files":
        assert canaries.found_below(tmp_path) == {}


def test_files_of_states_show_nothing_of_a_subject_s_scope(tmp_path: Path, keys: Path) -> None:
    canaries = Canaries(5)
    with holdfast.open(
        f"yaml:{tmp_path / 'y'}", keys=keys, settings=Settings(clear_ids=True)
    ) as hf:
        hf.conversation("c", subject="ada").set("text", canaries.new("own"))
        hf.team("red").set("mail", canaries.new("shared"), subject="ada")
        hf.team("red").set("open", 1)
    assert "[sealed]" in (tmp_path / "y" / "state" / "team%2Fred.yaml").read_text()
    assert len(list((tmp_path / "y" / "state").iterdir())) == 1
    assert canaries.found_below(tmp_path / "y") == {}


def test_a_view_whose_scope_becomes_a_subject_s_is_not_written(tmp_path: Path, keys: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=keys, settings=Settings(clear_ids=True)) as hf:
        views = hf.views(tmp_path / "v", [state_file(hf.team("red"), "red.json")])
        views.sync()
        own = hf.team("red", subject="ada")
        own.set("text", "CANARY-77aa")
        views.sync()
        assert "CANARY" not in (tmp_path / "v" / "red.json").read_text()
        with pytest.raises(UsageError, match="a copy in clear"):
            hf.views(tmp_path / "w", [state_file(own, "red.json")])


def test_a_file_that_cannot_be_written_is_told_and_nothing_is_kept_for_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s") as hf:
        chat = hf.conversation("c")
        for number in range(4):
            chat.tasks.add(f"CANARY-78aa {number}")
        views = hf.views(tmp_path / "v", [task_list(chat, "T.md")])
        views.sync()
        (tmp_path / "v" / "T.md").write_text("# Tasks\n")  # an edit that waits to be accepted
        receipt = hf.subjects.erase(scope="conversation/c")
        assert [Path(one.where).name for one in receipt.left] in ([], ["T.md"])
        (tmp_path / "v").rename(tmp_path / "gone")
        (tmp_path / "v").write_text("a file in its place")
        chat = hf.conversation("d")
        chat.set("n", 1)
        receipt = hf.subjects.erase(scope="conversation/d")
        assert [one.where for one in receipt.left] == [str(tmp_path / "v")]
        assert [one.outcome for one in receipt.scopes] == ["deleted"]


def test_a_text_goes_from_files_too_and_an_edit_does_not_bring_it_back(tmp_path: Path) -> None:
    canaries = Canaries(6)
    text = canaries.new("text")
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation("c")
        chat.tasks.add(f"call {text} back")
        views = hf.views(tmp_path / "v", [task_list(chat, "T.md")])
        views.sync()
        file = tmp_path / "v" / "T.md"
        file.write_text(file.read_text() + f"- [ ] write to {text}\n")
        assert hf.subjects.erase(match=text, dry_run=True).left == []
        assert file.read_text().count(text) == 2  # a preview leaves files as they are
        hf.subjects.erase(match=text)
        assert "write to" in file.read_text()
        views.sync()
        assert canaries.found_below(tmp_path) == {}


def _cut_short(*_: object, **__: object) -> int:
    raise KeyboardInterrupt


def test_an_erasure_that_is_finished_later_writes_files_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(7)
    text = canaries.new("text")
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation("c")
        chat.set("said", f"call {text} back")
        views = hf.views(tmp_path / "v", [state_file(chat, "c.json")])
        views.sync()
        assert hf.subjects.finish() == []
        with monkeypatch.context() as patch:
            patch.setattr(retention._Run, "_collect_blobs", _cut_short)
            with pytest.raises(KeyboardInterrupt):
                hf.subjects.erase(match=text)
        assert text in (tmp_path / "v" / "c.json").read_text()
        [receipt] = hf.subjects.finish()
        assert [one for one in receipt.left if "c.json" in one.where] == []
        assert "call" in (tmp_path / "v" / "c.json").read_text()
        assert canaries.found_below(tmp_path) == {}


def test_a_second_copy_of_an_older_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The first one tells in the target of what was erased: the older store knows nothing of it."""
    text, old = "CANARY-88bb", tmp_path / "old"
    keys = tmp_path / "keys"
    with holdfast.open(tmp_path / "store", keys=keys) as hf:
        hf.team("red").set("said", f"{text} was here")
    shutil.copytree(tmp_path / "store", old)
    with holdfast.open(tmp_path / "store", keys=keys) as hf:
        hf.subjects.erase(match=text)
    with holdfast.open(old, keys=keys) as source:
        with holdfast.open(tmp_path / "target", keys=keys) as target:
            copy(source, target)
            before = target.status()["digest"]
            with pytest.raises(ConflictError) as refused:
                copy(source, target)
            assert "copy the source into an empty one" in str(refused.value.hint)
            assert target.status()["digest"] == before
        with holdfast.open(tmp_path / "again", keys=keys) as again:
            copy(source, again)
            assert again.team("red").state.to_dict() == {"said": "[erased] was here"}
