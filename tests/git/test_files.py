"""One file and its past, and commits and events linked both ways (BOOT-18, BOOT-26, BOOT-27)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Store
from holdfast.cli import main
from holdfast.errors import NotFoundError, UsageError
from holdfast.git import EventPlace, ProjectFile, Repository, events_named, record_commit
from holdfast.record import FileChange
from tests.git.conftest import Project


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    return project


@pytest.fixture
def hf(here: Project) -> Iterator[Store]:
    with holdfast.open(".holdfast") as store:
        yield store


def test_a_file_at_any_commit(here: Project) -> None:
    """BOOT-27: restore, show at a commit, diff, log; what no commit has is named."""
    first = Repository.find(".").head
    here.write("a.txt", "two\n")
    second = here.commit("second")
    here.write("src/b.py", "b = 2\n")
    here.commit("another file")
    file = ProjectFile(Repository.find("."), "a.txt")
    assert [one.id for one in file.log()] == [second, first]
    assert (file.at(str(first)), file.at()) == (b"one\n", b"two\n")
    assert (file.diff().change, file.diff().lost) == (None, False)
    here.write("a.txt", "three\n")
    assert file.diff().text == "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-two\n+three\n"
    assert file.diff().lost
    assert file.diff(str(first)).text.endswith("-one\n+three\n")
    (here.path / "a.txt").unlink()
    assert (file.diff().change, file.diff().lost) == ("deleted", False)
    new = ProjectFile(Repository.find("."), "new.bin")
    (here.path / "new.bin").write_bytes(b"\0\xff")
    assert (new.diff().change, new.diff().text, new.diff().lost) == ("added", "", True)
    with pytest.raises(NotFoundError, match="has no file"):
        new.at()
    with pytest.raises(UsageError, match="no file in the work tree"):
        ProjectFile(Repository.find("."), "../x")


def test_restore_on_the_command_line(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init"])
    here.write("a.txt", "not committed\n")
    capsys.readouterr()
    assert main(["file", "a.txt", "--restore"]) == 2
    assert here.read("a.txt") == "not committed\n"
    capsys.readouterr()
    assert main(["file", "a.txt", "--restore", "--yes", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["files"] == [{"path": "a.txt", "act": "write"}]
    assert done["stays"] == ["changes of a.txt that no commit has: kept with the point before"]
    assert here.read("a.txt") == "one\n"
    assert main(["rewind", "undo", "--yes"]) == 0
    assert here.read("a.txt") == "not committed\n"
    capsys.readouterr()
    assert main(["file", "a.txt", "--at", "HEAD"]) == 0
    assert capsys.readouterr().out == "one\n"
    assert main(["file", "a.txt", "--diff"]) == 0
    assert "+not committed" in capsys.readouterr().out
    assert main(["file", "none.txt", "--restore", "--yes"]) == 3
    assert main(["file", "a.txt", "--diff", "--log"]) == 2


def test_messages_and_files_lead_to_each_other(
    here: Project, hf: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = hf.conversation("c1")
    change = FileChange.of("a.txt", b"one\n", b"two\n")
    here.write("a.txt", "two\n")
    message = chat.messages.add("assistant", "changed it", files=[change])
    chat.messages.add("assistant", "did not")
    [hit] = hf.query(links="file:a.txt")
    assert (hit.kind, hit.id, hit.links) == ("message", message.id, ("file:a.txt",))
    assert [one.path for one in message.files] == ["a.txt"]
    assert main(["file", "a.txt", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in document["linked"]] == [message.id]
    assert (document["changed"], document["staged"]) == ("modified", None)
    assert [one["summary"] for one in document["commits"]] == ["begin"]
    assert hf.search.dangling_links() == []


def test_commits_and_events_lead_to_each_other(
    here: Project, hf: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """BOOT-18, BOOT-26: an event has the commit, its ref and summary; a commit names events."""
    team = hf.team("red")
    revision = team.set("stage", "done")
    here.write("a.txt", "two\n")
    id = here.commit(f"finish\n\nHoldfast-Event: team/red@{revision}\nHoldfast-Event: nonsense")
    repository = Repository.find(".")
    made = record_commit(team, repository, refs=["decision:d1@team/red"])
    again = record_commit(team, repository, refs=["decision:d1@team/red"])
    assert made.revision == again.revision
    assert made.refs == (f"commit:{id}", f"event:team/red@{revision}", "decision:d1@team/red")
    assert {name: made.plain[name] for name in ("commit", "ref", "author", "summary")} == {
        "commit": id,
        "ref": "main",
        "author": "ann",
        "summary": "finish",
    }
    [commit, _] = repository.last_commits()
    assert events_named(commit) == [EventPlace("team/red", revision)]
    [hit] = hf.query(links=f"commit:{id}")
    assert (hit.type, hit.revision) == ("git_commit", made.revision)
    [hit] = hf.query(links=f"event:team/red@{revision}")
    assert hit.revision == made.revision
    assert main(["git", "log", "--json"]) == 0
    newest, oldest = json.loads(capsys.readouterr().out)["commits"]
    assert (newest["names"], len(newest["linked"])) == ([f"team/red@{revision}"], 1)
    assert (oldest["names"], oldest["linked"]) == ([], [])


def test_git_status_and_record(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init"])
    here.write("a.txt", "two\n")
    capsys.readouterr()
    assert main(["git", "status", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["branch"], document["head"]) == ("main", here.git("rev-parse", "HEAD"))
    assert document["files"] == [{"path": "a.txt", "staged": None, "changed": "modified"}]
    assert main(["git", "record", "team/red"]) == 0
    assert main(["git", "record", "team/red", "none"]) == 3
    assert main(["git", "status"]) == 0
    assert main(["git", "log"]) == 0
    assert "begin" in capsys.readouterr().out
