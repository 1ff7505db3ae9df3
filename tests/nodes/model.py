"""What a walk must do, worked out without digests: kept results are compared by their values.

A graph is a list of nodes, and a node a list of small operations. The same list becomes the source
of real nodes, loaded as a module, and is interpreted here. The model says which nodes a walk must
compute: more would be needless, fewer would be stale.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

SCOPE = "conversation/c"
KEYS = ["k0", "k1", "k2"]
HELPERS = ["h0", "h1"]
FILES = ["f0", "f1"]
HOUR_US = 3_600_000_000

Op = tuple[Any, ...]


class NodeSpec:
    """One node: its edges, its operations, how many results are kept, how long each counts."""

    def __init__(self, name: str, edges: list[str], ops: list[Op], keep: int, ttl_h: int) -> None:
        self.name, self.edges, self.ops, self.keep, self.ttl_h = name, edges, ops, keep, ttl_h

    def helpers(self) -> list[str]:
        return sorted({op[1] for op in _flat(self.ops) if op[0] == "helper"})


def _flat(ops: list[Op]) -> list[Op]:
    found: list[Op] = []
    for op in ops:
        found.append(op)
        if op[0] == "branch":
            found += _flat(op[2]) + _flat(op[3])
    return found


def make_graph(random: Random) -> list[NodeSpec]:
    """Returns some nodes, each depending on some of those before it."""
    nodes: list[NodeSpec] = []
    for number in range(random.randint(3, 7)):
        before = [one.name for one in nodes]
        edges = sorted(random.sample(before, min(len(before), random.randint(0, 2))))
        others = [name for name in before if name not in edges]
        ops = [_make_op(random, others, 0) for _ in range(random.randint(1, 4))]
        if number > 2 and random.random() < 0.2:
            ops.append(("skip", random.choice(KEYS), f"n{number + 1}"))
        ttl_h = random.choice([0, 0, 0, 3])
        nodes.append(NodeSpec(f"n{number}", edges, ops, random.choice([1, 2, 8]), ttl_h))
    known = {one.name for one in nodes}
    for one in nodes:
        one.ops = [op for op in one.ops if op[0] != "skip" or op[2] in known]
    return nodes


def _make_op(random: Random, before: list[str], depth: int) -> Op:
    kinds = ["state", "state", "helper", "file", "clock"]
    kinds += ["node"] * bool(before) + ["branch"] * (depth < 2)
    kind = random.choice(kinds)
    if kind == "state":
        return ("state", random.choice(KEYS))
    if kind == "helper":
        return ("helper", random.choice(HELPERS))
    if kind == "file":
        return ("file", random.choice(FILES))
    if kind == "clock":
        return ("clock",)
    if kind == "node":
        return ("node", random.choice(before))
    ops = [[_make_op(random, before, depth + 1) for _ in range(random.randint(0, 2))] for _ in "ab"]
    return ("branch", random.choice(KEYS), *ops)


# --- as source ------------------------------------------------------------------------------------


def source_of(nodes: list[NodeSpec], helpers: dict[str, int], folder: Path, noise: int) -> str:
    """Returns a module with these nodes; `noise` changes what must not count."""
    lines = ["import holdfast", f"FOLDER = {str(folder)!r}", "witness = None", ""]
    blocks: list[list[str]] = []
    for name, number in helpers.items():
        docs = [f"    '''Noise {noise}.'''"] * (noise % 2)
        blocks.append([f"def {name}(x):", *docs, f"    return x * 3 + {number}  # {noise}", ""])
    if noise % 3 == 1:
        blocks.reverse()  # a move
    for one in nodes:
        ttl = f', ttl="{one.ttl_h}h"' if one.ttl_h else ""
        block = [
            f"@holdfast.node(keep={one.keep}{ttl})",
            f"def {one.name}(ctx, {', '.join(one.edges)}):",
        ]
        if noise % 2:
            block.append(f"    '''Says {noise}.'''")
        block += [
            "    witness(ctx.node)",
            f"    x = {' + '.join([*(f'({edge} or 0)' for edge in one.edges), '0'])}",
        ]
        block += [line + " " * (noise % 2) for line in _lines(one.ops, 1)]
        block += [f"    ctx.setting({one.name!r}, x)", "    return x % 5", ""]
        blocks.append(block)
    lines += [line for block in blocks for line in block]
    names = ", ".join(one.name for one in nodes)
    return "\n".join([*lines, f"graph = holdfast.Graph('model', [{names}])", ""])


def _lines(ops: list[Op], depth: int) -> list[str]:
    pad, lines = "    " * depth, []
    for op in ops:
        if op[0] == "state":
            lines.append(f"{pad}x += ctx.read({SCOPE!r}, {op[1]!r}, 0)")
        elif op[0] == "helper":
            lines.append(f"{pad}x = {op[1]}(x)")
        elif op[0] == "file":
            lines.append(f"{pad}x += len(ctx.file(FOLDER + '/{op[1]}') or '')")
        elif op[0] == "clock":
            lines.append(f"{pad}x += int(ctx.clock('1h').timestamp()) // 3600 % 4")
        elif op[0] == "node":
            lines.append(f"{pad}x += ctx.read({op[1]}) or 0")
        elif op[0] == "skip":
            lines.append(f"{pad}if ctx.read({SCOPE!r}, {op[1]!r}, 0) == 1: ctx.skip({op[2]!r})")
        else:
            lines.append(f"{pad}if ctx.read({SCOPE!r}, {op[1]!r}, 0) % 2:")
            lines += [*_lines(op[2], depth + 1), f"{pad}    pass", f"{pad}else:"]
            lines += [*_lines(op[3], depth + 1), f"{pad}    pass"]
    return lines


# --- the model ------------------------------------------------------------------------------------


class World:
    """What nodes read: state, files, helpers, the time."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.files: dict[str, str] = {}
        self.helpers = dict.fromkeys(HELPERS, 0)
        self.now_us = 0


class Kept:
    """A result, with everything that it was made from."""

    def __init__(self, code: Any, edges: Any, reads: list[Any], value: int, artifact: int) -> None:
        self.code, self.edges, self.reads = code, edges, reads
        self.value, self.artifact = value, artifact
        self.skips: list[str] = []
        self.until_us = 0


class Model:
    """All results so far, newest first."""

    def __init__(self, nodes: list[NodeSpec]) -> None:
        self.nodes = {one.name: one for one in nodes}
        self.results: dict[str, list[Kept]] = {one.name: [] for one in nodes}

    def walk(self, world: World) -> tuple[list[str], dict[str, int | None], list[int]]:
        """Returns who must be computed, in order, the values, and the artifacts."""
        walk = _Walk(self, world)
        for name in self.nodes:
            walk.process(name)
        found = [walk.kept[name] for name in self.nodes]
        artifacts = [one.artifact for one in found if one is not None]
        values = {name: one and one.value for name, one in walk.kept.items()}
        return walk.computed, values, artifacts


class _Walk:
    def __init__(self, model: Model, world: World) -> None:
        self.model, self.world = model, world
        self.computed: list[str] = []
        self.kept: dict[str, Kept | None] = {}
        self.skipped: set[str] = set()

    def value(self, name: str) -> int | None:
        kept = self.process(name)
        return None if kept is None else kept.value

    def process(self, name: str) -> Kept | None:
        if name not in self.kept:
            self.kept[name] = None if name in self.skipped else self._find(self.model.nodes[name])
            found = self.kept[name]
            if found is not None:
                self.skipped.update(found.skips)
        return self.kept[name]

    def _find(self, spec: NodeSpec) -> Kept:
        edges = [self.value(edge) for edge in spec.edges]
        code = [(helper, self.world.helpers[helper]) for helper in spec.helpers()]
        for kept in self.model.results[spec.name][: spec.keep]:
            if kept.code == code and kept.edges == edges and self._holds(kept):
                return kept
        self.computed.append(spec.name)
        kept = self._compute(spec, code, edges)
        self.model.results[spec.name].insert(0, kept)
        return kept

    def _holds(self, kept: Kept) -> bool:
        same = all(self._look(what) == seen for what, seen in kept.reads)
        return same and not (kept.until_us and kept.until_us <= self.world.now_us)

    def _look(self, what: tuple[str, str]) -> Any:
        kind, name = what
        if kind == "state":
            return self.world.state.get(name)
        if kind == "file":
            return self.world.files.get(name)
        if kind == "clock":
            return self.world.now_us // HOUR_US
        return self.value(name)

    def _compute(self, spec: NodeSpec, code: Any, edges: list[int | None]) -> Kept:
        kept = Kept(code, edges, [], 0, 0)

        def read(*what: str) -> Any:
            seen = self._look(what)  # type: ignore[arg-type]
            kept.reads.append((what, seen))
            return seen

        # A dependent of a node that was left out is given None, which cannot be added.
        x = sum(edge or 0 for edge in edges)
        x = self._do(spec.ops, x, read, kept.skips)
        kept.value, kept.artifact = x % 5, x
        kept.until_us = self.world.now_us + spec.ttl_h * HOUR_US if spec.ttl_h else 0
        return kept

    def _do(self, ops: list[Op], x: int, read: Callable[..., Any], skips: list[str]) -> int:
        for op in ops:
            if op[0] == "state":
                x += read("state", op[1]) or 0
            elif op[0] == "helper":
                x = x * 3 + self.world.helpers[op[1]]
            elif op[0] == "file":
                x += len(read("file", op[1]) or "")
            elif op[0] == "clock":
                x += read("clock", "1h") % 4
            elif op[0] == "node":
                x += read("node", op[1]) or 0
            elif op[0] == "skip":
                if (read("state", op[1]) or 0) == 1:
                    skips.append(op[2])
            else:
                x = self._do(op[2] if (read("state", op[1]) or 0) % 2 else op[3], x, read, skips)
        return x
