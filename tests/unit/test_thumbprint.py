"""Thumbprints of values and of code: what changes them, and what does not."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast import UsageError
from holdfast.errors import ValueDomainError
from holdfast.thumbprint import code_of, register_thumb, thumb
from tests.unit.thumb_corpus import CORPUS
from tools import run_tests

HERE = Path(__file__).parent
KNOWN = HERE / "thumb_corpus.json"
"""The thumbprints of the corpus, as every version of Python must find them."""

_numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns what loads a source as a new module, found under a name that was never used."""
    # Compiled code is believed if size and second are those of the source, which is written often.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(source: str, name: str | None = None) -> ModuleType:
        name = name or f"thumbed_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


# --- values ---------------------------------------------------------------------------------------


def test_equal_values_have_equal_thumbs_and_others_have_not():
    assert thumb({"a": 1, "b": [2]}) == thumb({"b": (2,), "a": 1})
    different = [1, 1.0, True, "1", None, [], {}, [1], {"a": 1}, b"1"]
    assert len({thumb(value) for value in different}) == len(different)


def test_what_cannot_be_encoded_names_its_place_and_gets_no_weaker_key():
    with pytest.raises(ValueDomainError) as caught:
        thumb({"a": [1, object()]})
    assert caught.value.path == ("a", 1)


class Client:
    def __init__(self, url: str) -> None:
        self.url = url


def test_a_registered_class_counts_by_what_its_function_says(monkeypatch: pytest.MonkeyPatch):
    from holdfast import thumbprint

    monkeypatch.setattr(thumbprint, "_registered", {})
    register_thumb(Client, lambda client: client.url)
    one = thumb({"c": Client("a"), "n": 1})
    assert one == thumb({"n": 1, "c": Client("a")})
    assert one != thumb({"n": 1, "c": Client("b")})
    assert one != thumb({"n": 1, "c": None})
    assert one != thumb({"n": 1, "c": "a"})
    with pytest.raises(ValueDomainError) as caught:
        thumb({"c": Client("a"), "o": object()})
    assert caught.value.path[-1] == "o"
    with pytest.raises(UsageError):
        register_thumb("Client", str)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        register_thumb(Client, 3)  # type: ignore[arg-type]


# --- code -----------------------------------------------------------------------------------------

BASE = """
from functools import cache
import json
LIMIT = 3
NAMES = ["a"]

def helper(x):
    return x + 1

def other(x):
    return x

def node(ctx, a, b=2):
    # says nothing
    '''Docs.'''
    return helper(a) + b + LIMIT + len(NAMES) + len(json.dumps("x"))
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# says nothing", "# says something else"),
        ("'''Docs.'''", "'''Other docs.'''"),
        ("'''Docs.'''", ""),
        ("return helper(a) + b", "return (\n        helper( a )\n        + b"),
        ("def other(x):\n    return x", "def other(x):\n    return x * 2"),
        ("LIMIT = 3", "UNUSED = 1\n\n\nLIMIT = 3"),
        ("x + 1", "(x) + (1)  # same"),
    ],
)
def test_what_changes_nothing(load, old: str, new: str):
    assert old in BASE
    changed = BASE.replace(old, new)
    if new.startswith("return (\n"):
        changed = changed.replace('len(json.dumps("x"))', 'len(json.dumps("x"))\n    )')
    assert code_of(load(BASE).node).thumb == code_of(load(changed).node).thumb


def test_a_move_changes_nothing(load):
    helper = "def helper(x):\n    return x + 1\n"
    assert helper in BASE
    last = BASE.replace(helper, "") + helper
    load(helper, "thumbed_elsewhere")
    away = BASE.replace(helper, "from thumbed_elsewhere import helper")
    thumbs = {code_of(load(source).node).thumb for source in (BASE, last, away)}
    assert len(thumbs) == 1


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("+ b + LIMIT", "- b + LIMIT", "function node"),
        ("b=2", "b=3", "function node"),
        ("LIMIT = 3", "LIMIT = 4", "value LIMIT"),
        ("LIMIT = 3", "LIMIT = 3.0", "value LIMIT"),
        ('NAMES = ["a"]', 'NAMES = ["b"]', "value NAMES"),
        ("x + 1", "x + 2", "function helper"),
        ("x + 1", "x + True", "function helper"),
        ("def helper", "@cache\ndef helper", "function helper"),
        ('dumps("x")', 'dumps("y")', "function node"),
    ],
)
def test_what_changes_a_thumb_and_the_part_that_says_so(load, old: str, new: str, part: str):
    before, after = code_of(load(BASE).node), code_of(load(BASE.replace(old, new)).node)
    assert before.thumb != after.thumb
    assert [name for name in after.parts if before.parts.get(name) != after.parts[name]][-1] == part
    assert after.untracked == ()


def test_how_far_the_code_is_followed(load):
    one, two = load(BASE), load(BASE.replace("x + 1", "x + 2"))
    own = load(BASE.replace("+ b + LIMIT", "- b + LIMIT"))

    def thumbs(**how):
        return [code_of(module.node, **how).thumb for module in (one, two, own)]

    closure, alone, none = thumbs(), thumbs(track="self"), thumbs(track="none")
    assert len(set(closure)) == 3
    assert alone[0] == alone[1] != alone[2]
    assert len(set(none)) == 1
    assert len({thumbs(track="none", version=v)[0] for v in ("1", "2", None)}) == 3
    assert thumbs(version="1")[0] != thumbs(version="2")[0]


CLASSES = """
from dataclasses import dataclass
import re

SIZE = 2
WORD = re.compile("a")

@dataclass
class Point:
    '''A point.'''
    x: int = SIZE

    def size(self):
        return self.x

    @staticmethod
    def make():
        return Point()

class Far(Point):
    far = {1, 2}

def node(ctx):
    def inner(y):
        return Far(y).size() + len(WORD.findall("a"))
    return inner(1)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("'''A point.'''", "'''Points.'''", True),
        ("return self.x", "return -self.x", False),
        ("return Point()", "return Point(9)", False),
        ("SIZE = 2", "SIZE = 3", False),
        ("x: int = SIZE", "x: float = SIZE", False),
        ("{1, 2}", "{2, 1}", False),
        ("far = {1, 2}", "far = {1, 3}", False),
        ('re.compile("a")', 're.compile("b")', False),
        ("@dataclass\n", "@dataclass(frozen=True)\n", False),
    ],
)
def test_classes_are_followed(load, old: str, new: str, same: bool):
    assert old in CLASSES
    before, after = code_of(load(CLASSES).node), code_of(load(CLASSES.replace(old, new)).node)
    assert (before.thumb == after.thumb) is same
    assert before.untracked == ()


def test_modules_are_followed_by_attribute(load):
    load("def clean(x):\n    return x\ndef never(x):\n    return x\n", "thumbed_parts")
    source = "import thumbed_parts as parts\ndef node(ctx):\n    return parts.clean(1)\n"
    before = code_of(load(source).node)
    load("def clean(x):\n    return x\ndef never(x):\n    return 7\n", "thumbed_parts")
    assert code_of(load(source).node).thumb == before.thumb
    load("def clean(x):\n    return 7\ndef never(x):\n    return x\n", "thumbed_parts")
    assert code_of(load(source).node).thumb != before.thumb


def test_what_cannot_be_followed_is_listed(load):
    source = """
import thumbed_whole
class Model:
    pass
model = Model()
def node(ctx):
    return model, thumbed_whole, absent(1)
"""
    load("x = 1", "thumbed_whole")
    found = code_of(load(source).node).untracked
    assert found == (
        "absent: no such name when the code was looked at",
        "model: an object of type Model",
        "module thumbed_whole as a whole",
    )


def test_other_packages_count_by_version_and_python_by_name(load, monkeypatch: pytest.MonkeyPatch):
    from holdfast import thumbprint

    module = load("import os, msgspec\ndef node(ctx):\n    return os.sep, msgspec.json.encode(1)")
    before = code_of(module.node)
    assert list(before.parts) == ["package msgspec", "value os.sep", "function node"]
    monkeypatch.setattr(thumbprint, "_version_of", lambda package: "99")
    assert code_of(module.node).thumb != before.thumb


def test_closures_and_partials_count_by_their_values(load):
    module = load("def make(n):\n    def node(ctx, x=1):\n        return n + x\n    return node\n")
    assert code_of(module.make(1)).thumb == code_of(module.make(1)).thumb
    assert code_of(module.make(1)).thumb != code_of(module.make(2)).thumb
    node = module.make(1)
    one = code_of(functools.partial(node, x=1)).thumb
    assert one == code_of(functools.partial(node, x=1)).thumb
    assert one != code_of(functools.partial(node, x=2)).thumb


def test_lambdas_of_one_line_are_told_apart():
    one, two, again = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 1)
    assert code_of(one).thumb != code_of(two).thumb
    assert code_of(one).thumb == code_of(again).thumb


def test_code_without_source_needs_a_version():
    table: dict[str, object] = {}
    exec("def node(ctx):\n    return 1", table)
    for one in (table["node"], len):
        with pytest.raises(UsageError, match="has no source"):
            code_of(one)
        assert code_of(one, track="none", version="1").thumb


def test_a_source_that_was_edited_since_it_was_loaded_is_not_believed(load, tmp_path: Path):
    """What runs is what is compared: else the result of old code would pass for that of new."""
    module = load("def node(ctx):\n    return 1\n")
    (tmp_path / f"{module.__name__}.py").write_text("def node(ctx):\n    return 2\n")
    with pytest.raises(UsageError, match="edited since it was loaded"):
        code_of(module.node)


def test_nor_is_the_source_of_a_helper(load, tmp_path: Path):
    load("def helper(x):\n    return 1\n", "thumbed_edited")
    module = load("from thumbed_edited import helper\ndef node(ctx):\n    return helper(1)\n")
    (tmp_path / "thumbed_edited.py").write_text("def helper(x):\n    return 2\n")
    with pytest.raises(UsageError, match="the source of helper is not the code that runs"):
        code_of(module.node)


def test_a_helper_without_source_is_listed(load):
    module = load("def node(ctx):\n    return made(1)\n")
    exec("def made(x):\n    return x", vars(module))
    assert code_of(module.node).untracked == ("made: its source is not to be found",)


def test_a_module_that_is_loaded_again_counts_as_it_is_now(load, tmp_path: Path):
    module = load("def node(ctx):\n    return 1\n")
    before = code_of(module.node)
    again = load("\n\ndef node(ctx):\n    return 2\n", module.__name__)
    assert code_of(again.node).thumb != before.thumb


def test_a_thumb_notices_when_what_it_was_taken_from_changes(load):
    module = load(BASE)
    for change in (
        lambda: setattr(module, "LIMIT", 9),
        lambda: module.NAMES.append("z"),
        lambda: setattr(module, "helper", module.other),
        lambda: setattr(module.node, "__defaults__", (5,)),
        lambda: setattr(module.node, "__code__", module.other.__code__),
    ):
        code = code_of(module.node)
        assert code.holds()
        change()
        assert not code.holds()


# --- every version of Python ----------------------------------------------------------------------


def test_the_corpus_has_the_thumbs_that_every_python_finds():
    """NODE-6: a digest that survives a change of the interpreter."""
    found = {name: code_of(function).thumb for name, function in CORPUS.items()}
    assert found == json.loads(KNOWN.read_text())


def test_the_other_pythons_of_this_machine_agree():
    paths = [HERE.parent.parent / "src/holdfast/thumbprint.py", HERE / "thumb_corpus.py"]
    program = [HERE / "thumb_elsewhere.py", *paths]
    pythons = [Path(sys.executable), *run_tests.interpreters().values()]
    answers = {
        python: subprocess.run([python, *program], capture_output=True, text=True, check=True)
        for python in pythons
    }
    assert len({answer.stdout for answer in answers.values()}) == 1
    assert set(json.loads(answers[pythons[0]].stdout)) == set(CORPUS)
