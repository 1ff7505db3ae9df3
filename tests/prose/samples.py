"""Programs whose outcome is known: cut anywhere and resumed, each must end as if never cut.

To add one: its text, what the script says, and what it gives. Without a rule a session is answered
`ok: <prompt>`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.prose.program import Stored, gather_text


class Sample(Struct, frozen=True):
    """One program, the script of its agents, and what it gives."""

    name: str
    text: str
    gives: Any
    sessions: list[dict[str, Any]] = []
    conditions: list[dict[str, Any]] = []
    inputs: dict[str, Any] = {}
    memory: dict[str, str] = {}
    """What agents remember in the global scope at the end."""

    @property
    def script(self) -> dict[str, Any]:
        return {"sessions": self.sessions, "conditions": self.conditions}

    @property
    def program(self) -> Stored:
        return gather_text(self.text, f"{self.name}.prose")


def rule(match: str, answer: Any) -> dict[str, Any]:
    return {"match": match, "answer": answer}


FAILS = rule("fail", {"fail": "nope"})

SAMPLES = [
    Sample("one_session", 'session "a"\n', "ok: a"),
    Sample("chain", 'let x = session "a"\nconst y = session "b {x}"\ny\n', "ok: b ok: a"),
    Sample(
        "reassigned",
        'let x = session "a"\nx = session "b {x}"\nx = x + "!"\noutput x\n',
        "ok: b ok: a!",
    ),
    Sample(
        "outputs", 'output a = session "a"\noutput b = a + "?"\n', {"a": "ok: a", "b": "ok: a?"}
    ),
    Sample("two_results", 'output session "a"\noutput session "b"\n', "ok: b"),
    Sample(
        "inputs", 'input who: "Who?"\nsession "hi {who}"\n', "ok: hi ada", inputs={"who": "ada"}
    ),
    Sample(
        "agents",
        'agent a:\n  model: opus\n  prompt: "be brief"\nsession: a\nsession: a\n  prompt: "more"\n'
        'let y = session "use it"\n  context: a\noutput y\n',
        "ok: use it",
    ),
    Sample(
        "named_session",
        'agent a:\n  model: opus\n  prompt: "p"\nsession first: a\noutput first\n',
        "ok: p",
    ),
    Sample(
        "memory_in_the_run",
        'agent a:\n  model: opus\n  prompt: "p"\n  persist: true\nsession: a\n'
        'resume: a\n  prompt: "q"\nlet r = resume: a\n  prompt: "r"\noutput r\n',
        "ok: r",
    ),
    Sample(
        "memory_of_the_user",
        'agent a:\n  model: opus\n  prompt: "p"\n  persist: user\nsession: a\n'
        'resume: a\n  prompt: "q"\n',
        "ok: q",
        memory={"a": "asked: p\nanswered: ok: p\nasked: q\nanswered: ok: q"},
    ),
    Sample(
        "memory_by_name",
        'agent a:\n  model: opus\n  prompt: "p"\n  persist: "shared"\nsession: a\n',
        "ok: p",
        memory={"shared": "asked: p\nanswered: ok: p"},
    ),
    Sample("repeat", 'repeat 3 as i:\n  session "n {i}"\n', ["ok: n 0", "ok: n 1", "ok: n 2"]),
    Sample(
        "repeat_by_answer",
        'let n = session "how many"\nrepeat n:\n  session "go"\n',
        ["ok: go"] * 2,
        [rule("how many", "2")],
    ),
    Sample(
        "for_lines",
        'let t = session "list"\nfor x, i in t:\n  session "{i}: {x}"\n',
        ["ok: 0: a", "ok: 1: b"],
        [rule("list", "- a\n- b\n")],
    ),
    Sample(
        "for_json",
        'let t = session "list"\nfor x in t:\n  session "{x.name}"\n',
        ["ok: a", "ok: b"],
        [rule("list", '```json\n[{"name": "a"}, {"name": "b"}]\n```')],
    ),
    Sample(
        "loop_until",
        'let l = loop until **done** (max: 9) as i:\n  session "n {i}"\noutput l\n',
        ["ok: n 0", "ok: n 1"],
        conditions=[rule("done", ["no", "no", "yes"])],
    ),
    Sample(
        "loop_while",
        'let n = 0\nloop while **more** (max: 9):\n  n = n + 1\n  session "n {n}"\noutput n\n',
        2,
        conditions=[rule("more", ["yes", "yes", "no"])],
    ),
    Sample("loop_most", 'loop (max: 2):\n  session "x"\n', ["ok: x", "ok: x"]),
    Sample(
        "loop_by_value",
        'let n = 0\nloop until n >= 2 (max: 9):\n  n = n + 1\n  session "x"\noutput n\n',
        2,
    ),
    Sample(
        "if_arms",
        'if **a**:\n  let x = session "1"\nelif **b**:\n  let x = session "2"\n'
        'else:\n  let x = session "3"\noutput x\n',
        "ok: 2",
        conditions=[rule("a", "no")],
    ),
    Sample(
        "not_needed",
        'if false and **never**:\n  session "1"\nelse:\n  session "2"\n',
        "ok: 2",
        conditions=[rule("never", {"fail": "it was asked"})],
    ),
    Sample(
        "choice",
        'choice **which**:\n  option "left":\n    session "L"\n'
        '  option "right":\n    session "R"\n',
        "ok: R",
        conditions=[rule("which", "right")],
    ),
    Sample(
        "caught",
        'try:\n  session "fail"\ncatch as e:\n  session "{e.kind} {e.message} {e.line}"\n',
        "ok: AgentError nope 2",
        [FAILS],
    ),
    Sample(
        "finally",
        'let x = "a"\ntry:\n  session "fail"\ncatch:\n  x = x + "b"\n'
        'finally:\n  session "tidy"\n  x = x + "c"\noutput x\n',
        "abc",
        [FAILS],
    ),
    Sample(
        "thrown_again",
        'try:\n  try:\n    throw "no {1}"\n  catch:\n    session "x"\n    throw\n'
        "catch as e:\n  output m = e.message\n",
        {"m": "no {1}"},
    ),
    Sample(
        "retried",
        'session "flaky" (retry: 2, backoff: none)\n',
        "third",
        [rule("flaky", [{"fail": "1"}, {"fail": "2"}, "third"])],
    ),
    Sample("failed", 'session "a"\nsession "fail"\n', ["AgentError", "nope"], [FAILS]),
    Sample("asserted", 'session "a"\nassert 1 > 2:\n  "wrong"\n', ["AssertionError", "wrong"]),
    Sample(
        "blocks",
        'block greet(who):\n  let t = session "hi {who}"\n  output t + "!"\n'
        'let a = do greet("ada")\nlet b = do greet("bo")\noutput [a, b]\n',
        ["ok: hi ada!", "ok: hi bo!"],
    ),
    Sample(
        "recursion",
        'block down(n):\n  session "at {n}"\n  if n > 0:\n    output do down(n - 1)\n'
        '  output "bottom"\ndo down(2)\n',
        "bottom",
    ),
    Sample(
        "outer_let",
        'let total = 0\nblock add(n):\n  total = total + n\n  session "add {n}"\n'
        "do add(2)\ndo add(3)\noutput total\n",
        5,
    ),
    Sample(
        "parallel",
        'parallel:\n  a = session "1"\n  b = session "2"\n  session "3"\noutput [a, b]\n',
        ["ok: 1", "ok: 2"],
    ),
    Sample(
        "parallel_value",
        'let r = parallel:\n  a = session "1"\n  session "2"\noutput r\n',
        {"a": "ok: 1", "1": "ok: 2"},
    ),
    Sample(
        "arms_assign_in_order",
        'let s = ""\nparallel:\n  do:\n    session "1"\n    s = s + "a"\n'
        '  do:\n    s = s + "b"\n    s = s + "c"\n  do:\n    session "3"\n    s = s + "d"\n'
        "output s\n",
        "abcd",
    ),
    Sample(
        "arms_bind",
        'parallel:\n  do:\n    let x = session "1"\n  do:\n    const y = session "2"\n'
        "output x + y\n",
        "ok: 1ok: 2",
    ),
    Sample(
        "race_with_too_few",
        'parallel ("any", count: 2, on-fail: "ignore"):\n  a = session "fail"\n'
        '  b = session "2"\nlet c = session "3"\noutput [a, b, c]\n',
        [None, "ok: 2", "ok: 3"],
        [FAILS],
    ),
    Sample(
        "race_that_lists_failures",
        'try:\n  parallel ("first", on-fail: "continue"):\n    session "fail 1"\n'
        '    session "fail 2"\ncatch as e:\n  session "{e.message}"\n',
        "ok: 2 failed: 1: nope; 2: nope",
        [rule("^fail", {"fail": "nope"})],
    ),
    Sample(
        "output_ends_do",
        'let x = do:\n  let y = session "a"\n  if true:\n    output y\n  session "never"\n'
        'x = session "b {x}"\noutput x\n',
        "ok: b ok: a",
    ),
    Sample(
        "ignored_failures",
        'parallel (on-fail: "ignore"):\n  a = session "fail"\n  b = session "2"\noutput [a, b]\n',
        [None, "ok: 2"],
        [FAILS],
    ),
    Sample(
        "all_failures",
        'try:\n  parallel (on-fail: "continue"):\n    a = session "fail 1"\n'
        '    b = session "fail 2"\n    c = session "3"\ncatch as e:\n  output e.message\n',
        "2 failed: a: nope; b: nope",
        [FAILS],
    ),
    Sample(
        "parallel_for",
        'let s = []\nlet r = parallel for x, i in ["a", "b", "c"]:\n  s = s + [i]\n'
        '  session "{x}"\noutput {r, s}\n',
        {"r": ["ok: a", "ok: b", "ok: c"], "s": [0, 1, 2]},
    ),
    Sample(
        "nested_arms",
        'let s = ""\nparallel:\n  do:\n    parallel:\n      do:\n        s = s + "a"\n'
        '      do:\n        s = s + "b"\n    s = s + "c"\n  do:\n    s = s + "d"\noutput s\n',
        "abcd",
    ),
    Sample("arrows", 'session "a" -> session "b" -> session "c"\n', "ok: c"),
    Sample(
        "map_filter",
        'let r = ["a", "b", "c"] | filter: session "keep {item}"\n'
        'let m = r | map: session "{item}"\noutput m\n',
        ["ok: a", "ok: c"],
        [rule("keep b", "No, drop it."), rule("keep", "yes")],
    ),
    Sample("pmap", '["a", "b"] | pmap: session "{item}"\n', ["ok: a", "ok: b"]),
    Sample(
        "reduce",
        '["a", "b", "c"] | reduce(acc, x): session "{acc}+{x}"\n',
        "ok: ok: a+b+c",
    ),
    Sample("reduce_none", 'let r = [] | reduce(a, b): session "x"\noutput [r]\n', [None]),
    Sample(
        "objects",
        'let o = {a: 1, "b c": [1, 2]}\nlet {a} = o\nsession "{a} {o}"\n',
        'ok: 1 {"a":1,"b c":[1,2]}',
    ),
    Sample(
        "long_context",
        'let x = session "long"\nlet y = session "huge"\nlet z = session "use"\n'
        "  context: [x, y]\noutput z\n",
        "ok: use",
        [rule("long", "l" * 3000), rule("huge", "h" * 9000)],
    ),
]
BY_NAME = {sample.name: sample for sample in SAMPLES}
