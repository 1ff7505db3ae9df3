"""What checking a `.prose` program costs, against `ast.parse` of Python, per byte.

`python -m bench.prose` prints a table and the bar. Three kinds of programs are checked: a long one
with prompts as people write them, a dense one of short statements without prompts, and every
program of the corpus without errors by itself. The Python is this package's own: as it is, and
without comments and docstrings (what `ast.unparse` gives back), which is the harder measure. All
take turns, and the median of the rounds counts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from holdfast.prose import check
from tests.prose.corpus import read_samples

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 15
BAR = 5.0

PROMPTS = '''
const notes-{n} = session: writer
  prompt: """
    Read what was found on {{topic}} and take notes. Keep the facts, leave out the opinions, and
    mark what nobody has confirmed. Write at most two hundred words.
    """
  retry: 2
let draft-{n} = session "Write the part on {{topic}} from the notes, for readers who know nothing"
  model: opus
  context: [notes-{n}, topic]
loop until **the draft is clear, complete and free of jargon** (max: 3) as i-{n}:
  draft-{n} = session "Improve the draft; this is round {{i-{n}}}"
    context:
      notes: notes-{n}
      draft: draft-{n}
parallel (on-fail: "continue"):
  facts-{n} = session "Check every number in the draft"
    context: draft-{n}
  style-{n} = session "Check spelling and style"
    context: draft-{n}
if **the checks found mistakes**:
  draft-{n} = session "Correct the draft"
    context: [draft-{n}, facts-{n}, style-{n}]
'''
DENSE = """
let a{n} = x + {n} * 2 - y / 3
const b{n} = [a{n}, x, {{k: a{n}, x}}]
if a{n} > 3 and not b{n}[0] == x:
  x = x + a{n}
else:
  y = b{n}[2].k
for i{n} in b{n}:
  y = y + i{n}
let c{n} = b{n} | map: item + 1 | filter: item > 2
"""


def programs() -> dict[str, list[str]]:
    """Returns the programs of each kind."""
    head = 'input topic: "What about?"\nagent writer:\n  model: opus\n  prompt: "You write"\n'
    long = head + "".join(PROMPTS.format(n=n) for n in range(100))
    dense = "let x = 1\nlet y = 2\n" + "".join(DENSE.format(n=n) for n in range(250))
    corpus = [sample.text for sample in read_samples("valid") if len(sample.text) < 5000]
    return {"with prompts": [long], "dense": [dense], "the corpus": corpus}


def sources() -> dict[str, list[str]]:
    """Returns the Python of this package, as it is and without comments and docstrings."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "src/holdfast").rglob("*.py"))[::4]]
    return {"as it is": texts, "bare": [ast.unparse(_bare(ast.parse(text))) for text in texts]}


def _bare(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kept = [
                one
                for one in node.body
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]
    return tree


def ns_per_byte(function: Callable[[str], object], texts: list[str]) -> float:
    began = perf_counter()
    for text in texts:
        function(text)
    return (perf_counter() - began) * 1e9 / sum(len(text.encode()) for text in texts)


def main() -> None:
    contenders: dict[str, tuple[Callable[[str], object], list[str]]] = {}
    for name, texts in sources().items():
        contenders[f"ast.parse, {name}"] = (ast.parse, texts)
    for name, texts in programs().items():
        contenders[f"check, {name}"] = (check, texts)
        wrong = [one for text in texts for one in check(text) if one.severity == "error"]
        assert not wrong, wrong[0]
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (function, texts) in contenders.items():
            found[name].append(ns_per_byte(function, texts))
    bars = [median(found[name]) for name in contenders if name.startswith("ast")]
    for name, rounds in found.items():
        ratios = ", ".join(f"{median(rounds) / bar:.2f}" for bar in bars)
        print(f"{name:24} {median(rounds):8.0f} ns per byte   times ast.parse: {ratios}")
    worst = max(median(found[name]) for name in contenders if name.startswith("check"))
    print(f"worst against Python as it is: {worst / bars[0]:.2f} (bar {BAR})")
    print(f"worst against bare Python: {worst / bars[1]:.2f} (bar {BAR})")


if __name__ == "__main__":
    main()
