"""The table of layers: what is registered, and that nothing is taken twice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast
from holdfast import ExistsError, Settings, UsageError
from holdfast.core import layers
from holdfast.core.layers import Layer, register_layer, reserved_prefixes

SOURCE = Path(holdfast.__file__).parent


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_table", dict(layers._table))


def test_streams_of_layers_are_reserved():
    assert reserved_prefixes() == {
        *("group", "inbox", "lease", "node", "policy", "retention", "rewind", "run"),
        *("encryption", "git", "marks", "store", "subject"),
    }
    with (
        holdfast.open("memory:", settings=Settings(levels={"run": "workflow"})) as hf,
        pytest.raises(UsageError, match="is written by holdfast itself"),
    ):
        hf.scope("run", "r1").set("a", 1)


def test_every_index_of_marks_belongs_to_a_layer():
    """Whoever sets marks under a new index must say what becomes of them."""
    named: set[str] = set()
    for path in [*SOURCE.glob("record/*.py"), *SOURCE.glob("runs/*.py"), *SOURCE.glob("core/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                targets = [one.id for one in node.targets if isinstance(one, ast.Name)]
                if any(name.startswith("INDEX") for name in targets):
                    named.add(str(node.value.value))
    registered = {index for layer in layers.layers() for index in layer.indexes}
    assert len(named) >= 8
    assert named <= registered
    for layer in layers.layers():
        assert {*layer.swept} <= {*layer.indexes}
        assert {*layer.kept_with} <= {*layer.prefixes}


def test_a_layer_takes_nothing_from_another():
    register_layer(Layer(name="maps", prefixes=("map",), indexes=("map",), levels=("graph",)))
    register_layer(Layer(name="maps", prefixes=("map",), indexes=("map",), levels=("graph",)))
    for taken in (
        Layer(name="maps"),
        Layer(name="other", prefixes=("map",)),
        Layer(name="other", indexes=("map",)),
        Layer(name="other", levels=("graph",)),
    ):
        with pytest.raises(ExistsError):
            register_layer(taken)
    assert "map" in reserved_prefixes()


def test_what_is_swept_and_what_may_be_stale_is_found_in_the_table():
    def stale(context: object, verify: bool) -> list[object]:
        return [verify]

    register_layer(Layer(name="maps", indexes=("map", "edge"), swept=("edge",), stale=stale))
    assert "edge" in list(layers.swept_indexes())
    assert "map" not in layers.swept_indexes()
    assert stale in list(layers.stale_sources())
