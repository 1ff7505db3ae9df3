"""The git command: what is told of a repository, and that a hostile one runs nothing."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from holdfast.errors import GitError, NotFoundError, UnavailableError, UntrustedError, UsageError
from holdfast.git import Entry, FileStatus, Repository, WorkTree
from holdfast.git.command import run_git
from tests.git.conftest import Project

HOSTILE = """
[core]
    fsmonitor = {script} fsmonitor
    hooksPath = {hooks}
    pager = {script} pager
    editor = {script} editor
    sshCommand = {script} ssh
    askPass = {script}
    alternateRefsCommand = {script} refs
    attributesFile = {attributes}
    untrackedCache = true
    worktree = {elsewhere}
[diff]
    external = {script} external
[diff "evil"]
    textconv = {script} textconv
    command = {script} diff
[filter "evil"]
    clean = {script} clean
    smudge = {script} smudge
    process = {script} process
    required = true
[log]
    showSignature = true
[gpg]
    program = {script}
[credential]
    helper = {script}
[extensions]
    partialClone = origin
[remote "origin"]
    url = ext::{script} transport
    promisor = true
    uploadpack = {script}
[protocol]
    allow = always
[protocol "ext"]
    allow = always
[alias]
    ls-files = !{script} alias
    rev-parse = !{script} alias
[submodule]
    recurse = true
"""
HOOKS = ["reference-transaction", "post-index-change", "fsmonitor-watchman", "pre-commit",
         "post-checkout", "post-commit", "commit-msg", "pre-auto-gc", "update"]  # fmt: skip


def make_hostile(project: Project, tmp_path: Path) -> Path:
    """Lets everything that a repository can name run a program that leaves a trace."""
    trace = tmp_path / "trace"
    script = tmp_path / "evil.sh"
    script.write_text(f'#!/bin/sh\necho "$0 $@" >> {trace}\ncat\n')
    script.chmod(0o755)
    hooks = project.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in HOOKS:
        (hooks / name).write_text(script.read_text())
        (hooks / name).chmod(0o755)
    attributes = tmp_path / "attributes"
    attributes.write_text("* filter=evil diff=evil\n")
    project.write(".gitattributes", "* filter=evil diff=evil\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.txt").write_text("not of the project\n")
    with open(project.path / ".git" / "config", "a") as file:
        file.write(
            HOSTILE.format(script=script, hooks=hooks, attributes=attributes, elsewhere=elsewhere)
        )
    return trace


def test_facts(project: Project) -> None:
    repository = Repository.find(project.path / "src")
    assert repository.root == str(project.path)
    assert repository.branch == "main"
    assert repository.head == project.git("rev-parse", "HEAD")
    project.write("a.txt", "two\n")
    second = project.commit("second\n\nwith more\n\nHoldfast-Event: team/red@7\nOther: x")
    newest, oldest = repository.last_commits()
    assert (newest.id, newest.summary, oldest.summary) == (second, "second", "begin")
    assert newest.parents == (oldest.id,)
    assert (newest.author, newest.mail) == ("ann", "ann@example.org")
    assert newest.trailers == [("Holdfast-Event", "team/red@7"), ("Other", "x")]
    assert [one.id for one in repository.last_commits(path="src/b.py")] == [oldest.id]
    project.git("checkout", "-q", "--detach")
    assert repository.branch is None
    assert repository.find_commit("main").id == second
    with pytest.raises(NotFoundError, match="has no commit 'none'"):
        repository.find_commit("none")
    with pytest.raises(UsageError):
        repository.find_commit("--all")


def test_a_repository_without_commits(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.git("init", "-q", "-b", "work")
    repository = Repository.find(tmp_path)
    assert (repository.branch, repository.head, repository.last_commits()) == ("work", None, [])


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_status_is_what_git_says(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path / "p")
    project.path.mkdir()
    project.git("init", "-q", f"--object-format={kind}")
    for name in ("same", "staged", "changed", "gone", "unstaged", "mode"):
        project.write(name, name)
    project.write(".gitignore", "*.log\n")
    project.commit()
    project.write("staged", "staged 2")
    project.git("add", "staged")
    project.write("changed", "changed 2")
    (project.path / "gone").unlink()
    project.git("rm", "-q", "--cached", "unstaged")
    (project.path / "mode").chmod(0o755)
    project.write("new\nline", "untracked")
    project.write("x.log", "ignored")
    project.write("added", "added")
    project.git("add", "added")
    tree = WorkTree(Repository.find(project.path))
    assert tree.status() == [
        FileStatus("added", "added", None),
        FileStatus("changed", None, "modified"),
        FileStatus("gone", None, "deleted"),
        FileStatus("mode", None, "modified"),
        FileStatus("new\nline", None, "untracked"),
        FileStatus("staged", "modified", None),
        FileStatus("unstaged", "deleted", "untracked"),
    ]
    assert tree.status() == tree.status()  # from what was kept of the first look


def test_a_hostile_repository_runs_nothing(project: Project, tmp_path: Path) -> None:
    trace = make_hostile(project, tmp_path)
    project.write("new.txt", "new\n")
    repository = Repository.find(project.path)
    tree = WorkTree(repository)
    assert {one.path for one in tree.status()} == {".gitattributes", "new.txt"}
    look = tree.look(keep=True)
    assert set(look.files) == {".gitattributes", ".gitignore", "a.txt", "new.txt", "src/b.py"}
    commit = repository.write_commit(repository.write_tree(look.files), "kept\n")
    repository.point_ref("refs/holdfast/points/x", commit)
    assert repository.refs() == {"refs/holdfast/points/x": commit}
    assert repository.files_of(commit) == look.files
    assert repository.last_commits()[0].summary == "begin"
    with pytest.raises(GitError, match="is not in the repository"):
        repository.read_objects(["1" * 40])  # git would ask the remote of a partial clone for it
    assert tree.put("a.txt", look.files["new.txt"], look.files["a.txt"], b"new\n") is None
    assert project.read("a.txt") == "new\n"
    assert not trace.exists(), trace.read_text()


def test_the_trap_is_one(project: Project, tmp_path: Path) -> None:
    """The configuration above does run its program if git is called plainly."""
    trace = make_hostile(project, tmp_path)
    project.write("a.txt", "other\n")
    subprocess.run(
        ["git", "--work-tree=.", "add", "a.txt"],
        cwd=project.path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert "clean" in trace.read_text() or "process" in trace.read_text()


def test_a_repository_of_another_user_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.stat(project.path).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(project.path, 4711, -1)
    with pytest.raises(UntrustedError, match="belongs to another user"):
        Repository.find(project.path)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="in no git repository"):
        Repository.find(tmp_path)
    with pytest.raises(UsageError):
        Repository.find(7)  # pyright: ignore[reportArgumentType]


def test_git_is_missing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{project.path}/none:.:bin")
    with pytest.raises(UnavailableError, match="git command is not there"):
        Repository.find(project.path)


def test_a_git_in_the_project_is_not_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("git", "#!/bin/sh\ntouch trace\n")
    (project.path / "git").chmod(0o755)
    monkeypatch.chdir(project.path)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    assert Repository.find(".").branch == "main"
    assert not (project.path / "trace").exists()


@pytest.mark.parametrize("content", ["", "nothing\n", "gitdir: ../none\n"])
def test_a_pointer_that_leads_nowhere(tmp_path: Path, content: str) -> None:
    (tmp_path / ".git").write_text(content)
    with pytest.raises(UnavailableError):
        Repository.find(tmp_path)


def test_a_broken_repository(project: Project) -> None:
    (project.path / ".git" / "HEAD").unlink()
    with pytest.raises(UnavailableError, match="git rev-parse ended with 128"):
        Repository.find(project.path)


def test_limits(project: Project) -> None:
    project.write("large", "x" * 100_000)
    project.commit()
    repository = Repository.find(project.path)
    with pytest.raises(GitError, match="printed more than 1000 bytes"):
        repository.run("cat-file", "blob", "HEAD:large", most=1000)
    with pytest.raises(GitError, match="took longer than 0 s"):
        run_git(["--version"], timeout_s=0)
    with pytest.raises(GitError, match="ended with"):
        repository.run("cat-file", "blob", "HEAD:none")


def test_only_refs_of_ours_are_written(project: Project) -> None:
    repository = Repository.find(project.path)
    with pytest.raises(UsageError, match="refs/holdfast/"):
        repository.point_ref("refs/heads/main", repository.head)


def test_a_linked_work_tree_has_its_own_files(project: Project, tmp_path: Path) -> None:
    project.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    (tmp_path / "linked" / "c.txt").write_text("c\n")
    linked = Repository.find(tmp_path / "linked")
    assert (linked.branch, linked.root) == ("other", str(tmp_path / "linked"))
    assert linked.common_dir == str(project.path / ".git")
    assert "c.txt" in WorkTree(linked).look().files
    assert "c.txt" not in WorkTree(Repository.find(project.path)).look().files


def test_what_is_left_out_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.git.work_tree.UNTRACKED_BYTES_MAX", 1000)
    project.write("large", "x" * 1001)
    inner = Project(project.path / "inner")
    inner.path.mkdir()
    inner.git("init", "-q")
    inner.write("x", "x")
    inner.commit()
    os.mkfifo(project.path / "fifo")
    unreadable = project.write("unreadable", "x")
    unreadable.chmod(0)
    look = WorkTree(Repository.find(project.path)).look()
    assert look.left_out["large"].startswith("larger than")
    assert look.left_out["inner/"] == "a repository of its own"
    if os.geteuid():
        assert look.left_out["unreadable"].startswith("cannot be read")
    assert set(look.files) - {"unreadable"} == {".gitignore", "a.txt", "src/b.py"}


def test_a_sparse_checkout_is_whole(project: Project) -> None:
    repository = Repository.find(project.path)
    before = WorkTree(repository).look().files
    project.git("update-index", "--skip-worktree", "src/b.py")
    (project.path / "src" / "b.py").unlink()
    assert WorkTree(repository).look().files == before


def test_links_are_kept_as_links(project: Project) -> None:
    os.symlink("../../etc/passwd", project.path / "link")
    repository = Repository.find(project.path)
    look = WorkTree(repository).look(keep=True)
    assert repository.read_objects([look.files["link"].id]) == {
        look.files["link"].id: b"../../etc/passwd"
    }
    assert look.files["link"].mode == "120000"


def test_what_the_user_ignores_everywhere_is_ignored(project: Project, home: Path) -> None:
    project.write("secret.env", "x")
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/ignored\n")
    (home / "ignored").write_text("*.env\n")
    assert "secret.env" not in WorkTree(Repository.find(project.path)).look().files


@pytest.mark.parametrize(
    "path", ["../out", "/etc/x", ".git/hooks/pre-commit", "a/.GIT/x", "git~1/x", "a//b", ".git ./x"]
)
def test_nothing_is_put_outside(project: Project, path: str) -> None:
    tree = WorkTree(Repository.find(project.path))
    assert "leads out" in str(tree.put(path, Entry("100644", "0" * 40), None, b"x"))


def test_a_link_on_the_way_is_not_followed(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, project.path / "folder")
    tree = WorkTree(Repository.find(project.path))
    assert tree.put("folder/x", Entry("100644", "0" * 40), None, b"x") is not None
    assert list(outside.iterdir()) == []


def test_permissions_stay(project: Project) -> None:
    path = project.path / "a.txt"
    path.chmod(0o600)
    tree = WorkTree(Repository.find(project.path))
    now = tree.look().files["a.txt"]
    assert tree.put("a.txt", Entry("100644", "0" * 40), now, b"two\n") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "two\n"
