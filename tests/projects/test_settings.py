"""What a directory and its holdfast.toml say of a project; bad input is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast import Store, UsageError
from holdfast.projects.settings import Settings, load_settings
from holdfast.projects.survey import ENTRIES_MAX


@pytest.fixture
def here() -> Store:
    return holdfast.open("memory:")


def configure(root: Path, text: str) -> None:
    (root / "holdfast.toml").write_text(text)


def test_without_a_file_the_folder_names_the_project(root: Path, here: Store):
    project = here.project(root)
    assert project.id == "shop"
    assert project.scope.name == "project/shop"
    assert project.settings == Settings()
    assert not project.scope.revision


def test_the_file_says_id_files_and_limits(root: Path, here: Store):
    configure(
        root,
        '[project]\nid = "till"\n[project.files]\ntasks = "notes/TASKS.md"\n'
        '[project.limits]\nagents = 3\n[agents]\ncommand = ["x"]\n',
    )
    project = here.project(str(root))
    assert project.scope.name == "project/till"
    assert project.settings.files.tasks == "notes/TASKS.md"
    assert project.settings.files.goals == "RALPH_GOALS.md"
    assert (project.settings.limits.agents, project.settings.limits.depth) == (3, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[project]\nid = 3\n", "cannot be read"),
        ('[project]\nname = "x"\n', "cannot be read"),
        ("[project\n", "cannot be read"),
        ('[project]\nid = "a/b"\n', "no slash"),
        ("[project.limits]\nagents = 0\n", r"project\.limits\.agents is a whole number from 1"),
        ("[project.limits]\ndepth = -1\n", r"project\.limits\.depth"),
        ('[project.files]\ntasks = "/etc/passwd"\n', "not a path inside"),
        ('[project.files]\ntasks = "../out.md"\n', "not a path inside"),
        ('[project.files]\ntasks = "RALPH_TODO.md"\n', "one file for two kinds"),
        ("x = '''" + "a" * (1 << 20) + "'''\n", "larger than"),
    ],
)
def test_a_wrong_configuration_is_refused(root: Path, here: Store, text: str, says: str):
    configure(root, text)
    with pytest.raises(UsageError, match=says):
        here.project(root)


def test_what_is_no_directory_is_refused(root: Path, here: Store):
    (root / "file").write_text("x")
    for place, says in ((root / "file", "is not a directory"), (root / "gone", "does not exist")):
        with pytest.raises(UsageError, match=says):
            here.project(place)
    with pytest.raises(UsageError, match="a project is a directory"):
        here.project("a\0b")


def test_a_link_out_of_the_project_is_refused(root: Path, tmp_path: Path):
    (tmp_path / "elsewhere.toml").write_text("")
    (root / "holdfast.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(UsageError, match="leads out of the project"):
        load_settings(root)


def test_an_id_that_is_used_twice_is_refused(root: Path, tmp_path: Path, here: Store):
    other = tmp_path / "other"
    other.mkdir()
    configure(other, '[project]\nid = "shop"\n')
    with here.project(root).coordinate():
        pass
    with pytest.raises(UsageError, match="is used twice"), here.project(other).coordinate():
        pass
    # A project that was moved is the same one.
    root.rename(tmp_path / "shop-moved")
    with here.project(other).coordinate():
        pass


def test_a_survey_says_what_is_there_and_why_the_rest_is_not(root: Path, here: Store):
    """RALPH-6, RALPH-7, RALPH-8, RALPH-9, RALPH-10: git, type, configuration, tree, state."""
    empty = here.project(root).survey()
    assert all(one.absent for one in empty.findings)
    (root / ".git").mkdir()
    (root / ".git/HEAD").write_text("ref: refs/heads/feature/x\n")
    (root / "pyproject.toml").write_text("")
    (root / "package.json").write_text("{}")
    rules = "# none\n*.log\n/build\nout/\n!keep.log\ndocs/**/tmp?\n[ab].md\n"
    (root / ".gitignore").write_text(rules)
    for name in ("a.log", "keep.log", "build/x", "src/build/y", "out/z", "src/out", "docs/a/tmp1",
                 "docs/a/tmp", "a.md", "c.md", ".holdfast/journal", "src/in.log"):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (root / "src/.gitignore").write_text("build\n")
    (root / "RALPH_TASKS.md").write_text("- [ ] one\n")
    found = here.project(root).survey()
    assert found.git.value == {"root": str(root), "branch": "feature/x"}
    assert found.type.value == ["Python", "Node.js"]
    assert found.configuration.value == ["pyproject.toml", "package.json"]
    assert found.state.value == {"events": 0, "files": ["RALPH_TASKS.md"]}
    assert found.tree.value.entries == (
        ".gitignore", "RALPH_TASKS.md", "c.md", "docs/", "docs/a/", "docs/a/tmp", "keep.log",
        "package.json", "pyproject.toml", "src/", "src/.gitignore", "src/out",
    )  # fmt: skip


def test_a_broken_repository_is_absent_with_the_reason(root: Path, here: Store):
    (root / ".git").write_text("gitdir: nowhere\n")
    assert "cannot be read" in (here.project(root).survey().git.absent or "")


def test_a_large_tree_is_cut(root: Path, here: Store):
    for number in range(ENTRIES_MAX + 1):
        os.close(os.open(root / f"{number:05}", os.O_CREAT))
    tree = here.project(root).survey().tree.value
    assert len(tree.entries) == ENTRIES_MAX
    assert tree.left_out
