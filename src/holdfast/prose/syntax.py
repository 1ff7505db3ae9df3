"""The syntax tree of a program, and the names of its parts in the journal.

Every node has the line and the column where it begins, both counted from 1. Nodes are immutable.
Sequences are tuples; a body is a tuple of statements.

An expression is a value, or an operation: something that runs, asks or waits, such as a session, a
block or a condition. So `let x = if …` and `let x = session …` have the same form in the tree.
Statements are expressions, bindings and definitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias, Union

from msgspec import Struct

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*\Z")


def is_name(text: str) -> bool:
    """Returns whether a text has the form of a name: letters, digits, `_`, and `-` inside."""
    return _NAME.match(text) is not None


# --- values ---------------------------------------------------------------------------------------


class Node(Struct, frozen=True, gc=False):
    """A place in a program."""

    line: int
    column: int


class Constant(Node, frozen=True, gc=False):
    """A number, true, false or null."""

    value: int | float | bool | None


class Name(Node, frozen=True, gc=False):
    """The value of a variable; in a context, also the newest output of an agent."""

    name: str


class Member(Node, frozen=True, gc=False):
    """`target.name`."""

    target: Expression
    name: str


class Index(Node, frozen=True, gc=False):
    """`target[index]`."""

    target: Expression
    index: Expression


class Interpolation(Node, frozen=True, gc=False):
    """`{reference}` in a text. `source` is the original text, with its braces.

    In a `\"\"\"` text and in a condition, `source` stays as text if the name is not bound. In a
    one-line text, the checker reports an error then.
    """

    reference: Name | Member | Index
    source: str


class Doubt(Node, frozen=True, gc=False):
    """Braces that look like an interpolation but are not; an error if `name` is bound."""

    name: str
    source: str


class Text(Node, frozen=True, gc=False):
    """A text: strings and interpolations in order. `is_long` is set for a `\"\"\"` text."""

    parts: tuple[str | Interpolation, ...]
    is_long: bool = False
    doubts: tuple[Doubt, ...] = ()


class Condition(Node, frozen=True, gc=False):
    """`**…**`, which the executor decides."""

    parts: tuple[str | Interpolation, ...]
    doubts: tuple[Doubt, ...] = ()


class Array(Node, frozen=True, gc=False):
    """`[a, b]`."""

    items: tuple[Expression, ...]


class Entry(Node, frozen=True, gc=False):
    """One `key: value` of an object, of a context or of a call; `{a}` is `{a: a}`."""

    key: str
    value: Expression


class Object(Node, frozen=True, gc=False):
    """`{a, b: value, "c d": value}`."""

    entries: tuple[Entry, ...]


class Not(Node, frozen=True, gc=False):
    """`not operand`."""

    operand: Expression


Operator: TypeAlias = Literal["or", "and", "<", "<=", ">", ">=", "==", "!=", "+", "-", "*", "/"]


class Binary(Node, frozen=True, gc=False):
    """`left operator right`. The place is that of `left`."""

    operator: Operator
    left: Expression
    right: Expression


# --- sessions -------------------------------------------------------------------------------------


class Persist(Node, frozen=True, gc=False):
    """Where an agent's memory lives: in the run, the project, with the user, or under a name."""

    place: Literal["run", "project", "user", "named"]
    name: str = ""


class Permission(Node, frozen=True, gc=False):
    """`name: [pattern, …]`, or `name: allow`, `deny` or `prompt`."""

    name: str
    rule: Literal["allow", "deny", "prompt"] | None = None
    patterns: tuple[str, ...] = ()


class Settings(Node, frozen=True, gc=False):
    """The properties of a session or of an agent. None means that a property is not given.

    `context` is an Object if it was written as a block. `backoff` is none, linear, exponential, or
    milliseconds.
    """

    prompt: Text | None = None
    model: str | None = None
    context: Expression | None = None
    retry: int | None = None
    backoff: str | int | None = None
    persist: Persist | None = None
    skills: tuple[Text, ...] | None = None
    permissions: tuple[Permission, ...] | None = None


class Session(Node, frozen=True, gc=False):
    """`session text`, `session: agent` or `session name: agent`; the last binds `name` as a const.

    With a `prompt` property, that is the prompt, and `text` is a label.
    """

    text: Text | None
    agent: str | None
    name: str | None
    settings: Settings


class Resume(Node, frozen=True, gc=False):
    """`resume: agent`: a session with the agent's memory."""

    agent: str
    settings: Settings


# --- blocks ---------------------------------------------------------------------------------------

OnFail: TypeAlias = Literal["fail-fast", "continue", "ignore"]


class Do(Node, frozen=True, gc=False):
    """`do:` and a body."""

    body: Body


class BlockCall(Node, frozen=True, gc=False):
    """`do name(argument, …)`."""

    name: str
    arguments: tuple[Expression, ...]


class ProgramCall(Node, frozen=True, gc=False):
    """`name(input: value, …)`: a program that `use` brought in."""

    name: str
    arguments: tuple[Entry, ...]


class Branch(Node, frozen=True, gc=False):
    """One arm of a parallel block: a statement, or `name = expression`."""

    name: str | None
    statement: Statement


class Parallel(Node, frozen=True, gc=False):
    """`parallel:` and its branches."""

    branches: tuple[Branch, ...]
    join: Literal["all", "first", "any"] = "all"
    count: int | None = None
    on_fail: OnFail = "fail-fast"


class For(Node, frozen=True, gc=False):
    """`for variable, index in collection:`, sequential or parallel."""

    variable: str
    index: str | None
    collection: Expression
    on_fail: OnFail
    is_parallel: bool
    body: Body


class Repeat(Node, frozen=True, gc=False):
    """`repeat count as variable:`."""

    count: int | Name
    variable: str | None
    body: Body


class Loop(Node, frozen=True, gc=False):
    """`loop until condition (max: n) as variable:`; without a test it has no condition."""

    test: Literal["until", "while"] | None
    condition: Expression | None
    max: int | None
    variable: str | None
    body: Body


class Catch(Node, frozen=True, gc=False):
    """`catch as name:`."""

    name: str | None
    body: Body


class Try(Node, frozen=True, gc=False):
    """`try:`, with `catch`, `finally` or both."""

    body: Body
    catch: Catch | None
    final: Body | None


class Option(Node, frozen=True, gc=False):
    """`option label:`."""

    label: Text
    body: Body


class Choice(Node, frozen=True, gc=False):
    """`choice condition:` and its options."""

    condition: Condition
    options: tuple[Option, ...]


class Arm(Node, frozen=True, gc=False):
    """`if condition:` or `elif condition:`."""

    condition: Expression
    body: Body


class If(Node, frozen=True, gc=False):
    """`if`, any number of `elif`, and `else`."""

    arms: tuple[Arm, ...]
    otherwise: Body | None


class Arrow(Node, frozen=True, gc=False):
    """`a -> b -> c`: each operand gets the value of the one before as context."""

    operands: tuple[Expression, ...]


class Pipe(Node, frozen=True, gc=False):
    """`source | map: body`. `names` are those of reduce: the accumulator and the item."""

    source: Expression
    kind: Literal["map", "filter", "pmap", "reduce"]
    names: tuple[str, ...]
    body: Body


# --- statements -----------------------------------------------------------------------------------


class Use(Node, frozen=True, gc=False):
    """`use path as name`. Without `as`, the name is the last part of the path."""

    path: str
    name: str


class Import(Node, frozen=True, gc=False):
    """`import skill from source`."""

    skill: str
    source: str


class Input(Node, frozen=True, gc=False):
    """`input name: prompt`."""

    name: str
    prompt: Text | Condition


class Output(Node, frozen=True, gc=False):
    """`output name = value`, or `output value` without a name."""

    name: str | None
    value: Expression


class Agent(Node, frozen=True, gc=False):
    """`agent name:` and its properties."""

    name: str
    settings: Settings


class Block(Node, frozen=True, gc=False):
    """`block name(parameter, …) (max_depth: n):`."""

    name: str
    parameters: tuple[str, ...]
    max_depth: int
    body: Body


class Bind(Node, frozen=True, gc=False):
    """`let name = value` or `const name = value`."""

    name: str
    value: Expression
    is_const: bool


class Unpack(Node, frozen=True, gc=False):
    """`let {name, …} = value`: binds the members with these names."""

    names: tuple[str, ...]
    value: Expression


class Assign(Node, frozen=True, gc=False):
    """`name = value`."""

    name: str
    value: Expression


class Throw(Node, frozen=True, gc=False):
    """`throw`, with or without a message."""

    message: Text | None


class Assert(Node, frozen=True, gc=False):
    """`assert condition:` and the message if it is false."""

    condition: Expression
    message: Text


Operation: TypeAlias = Union[
    "Session",
    "Resume",
    "Do",
    "BlockCall",
    "ProgramCall",
    "Parallel",
    "For",
    "Repeat",
    "Loop",
    "Try",
    "Choice",
    "If",
    "Arrow",
    "Pipe",
    "Condition",
]
Expression: TypeAlias = Union[
    "Constant",
    "Name",
    "Member",
    "Index",
    "Text",
    "Array",
    "Object",
    "Not",
    "Binary",
    "Operation",
]
Statement: TypeAlias = Union[
    "Expression",
    "Use",
    "Import",
    "Input",
    "Output",
    "Agent",
    "Block",
    "Bind",
    "Unpack",
    "Assign",
    "Throw",
    "Assert",
]
Body: TypeAlias = tuple["Statement", ...]


class Program(Struct, frozen=True, gc=False):
    """A program: its file and its statements."""

    file: str
    body: Body


# --- names in the journal -------------------------------------------------------------------------

KINDS: dict[type, str] = {
    Session: "session",
    Resume: "resume",
    Do: "do",
    BlockCall: "do",
    ProgramCall: "call",
    Parallel: "parallel",
    For: "for",
    Repeat: "repeat",
    Loop: "loop",
    Try: "try",
    Choice: "choice",
    If: "if",
    Arrow: "arrow",
    Pipe: "pipe",
    Condition: "condition",
}
"""The name of each kind of operation in the journal."""

_STATEMENT_KINDS: dict[type, str] = {
    Use: "use",
    Import: "import",
    Output: "output",
    Agent: "agent",
    Block: "block",
    Throw: "throw",
    Assert: "assert",
}


def statement_keys(body: Body) -> tuple[str, ...]:
    """Returns the journal key of each statement of a body.

    A statement that binds a name is keyed by it, the second time by `name#2`. Other statements are
    keyed by kind and number, such as `session.1`. So comments and blank lines change no key, and a
    new statement changes only the keys of later unnamed statements of its kind. Names cannot have
    the characters `#` and `.`, so no two keys of a body are equal.
    """
    counts: dict[str, int] = {}
    keys: list[str] = []
    for statement in body:
        name = bound_name(statement)
        kind = f".{statement_kind(statement)}" if name is None else name
        count = counts[kind] = counts.get(kind, 0) + 1
        if name is None:
            keys.append(f"{kind[1:]}.{count}")
        else:
            keys.append(name if count == 1 else f"{name}#{count}")
    return tuple(keys)


def branch_keys(branches: tuple[Branch, ...]) -> tuple[str, ...]:
    """Returns the keys of the branches of a parallel block: names, or numbers for unnamed ones.

    They are also the keys of the block's value. If several branches assign one variable, the second
    key gets a number, as `x:2`, and so on.
    """
    unnamed = 0
    named: dict[str, int] = {}
    keys: list[str] = []
    for branch in branches:
        if branch.name is None:
            unnamed += 1
            keys.append(str(unnamed))
        else:
            count = named[branch.name] = named.get(branch.name, 0) + 1
            keys.append(branch.name if count == 1 else f"{branch.name}:{count}")
    return tuple(keys)


def value_of(statement: Statement) -> Expression | None:
    """Returns the expression whose value a statement has; None if it has none."""
    match statement:
        case Bind() | Unpack() | Assign() | Output():
            return statement.value
        case Use() | Import() | Input() | Agent() | Block() | Throw() | Assert():
            return None
        case _:
            return statement


def bound_name(statement: Statement) -> str | None:
    """Returns the name that a statement is keyed by: the one that it binds or assigns."""
    match statement:
        case Bind() | Assign() | Input() | Output() | Session():
            return statement.name
        case Unpack():
            return "+".join(statement.names)
        case _:
            return None


def statement_kind(statement: Statement) -> str:
    """Returns the kind that names an unnamed statement in the journal."""
    kind = type(statement)
    return KINDS.get(kind) or _STATEMENT_KINDS.get(kind) or "value"


def parts(node: Node) -> tuple[Node, ...]:
    """Returns the expressions directly inside a node, in the order in which they are written."""
    match node:
        case Member():
            return (node.target,)
        case Index():
            return (node.target, node.index)
        case Array():
            return node.items
        case Object() | ProgramCall():
            arguments = node.entries if isinstance(node, Object) else node.arguments
            return tuple(entry.value for entry in arguments)
        case Not():
            return (node.operand,)
        case Binary():
            return (node.left, node.right)
        case Session() | Resume():
            return tuple(_given(node.settings.context))
        case BlockCall():
            return node.arguments
        case For():
            return (node.collection,)
        case Loop():
            return tuple(_given(node.condition))
        case Choice() | Assert():
            return (node.condition,)
        case If():
            return tuple(arm.condition for arm in node.arms)
        case Arrow():
            return node.operands
        case Pipe():
            return (node.source,)
        case _:
            return ()


def adds_to(name: str, value: Expression) -> bool:
    """Returns whether `name = value` adds to the variable, that is, the value is `name + …`.

    In parallel arms, such an assignment adds to the newest value at the join; any other replaces
    it.
    """
    while isinstance(value, Binary) and value.operator == "+":
        if isinstance(value.left, Name):
            return value.left.name == name
        value = value.left
    return False


def bodies(node: Node) -> tuple[tuple[str, Body], ...]:
    """Returns the bodies of a block with their keys; those of an iteration have its index below."""
    match node:
        case Do() | For() | Repeat() | Loop() | Pipe() | Block():
            return (("body", node.body),)
        case Try():
            caught = (("catch", node.catch.body),) if node.catch else ()
            final = () if node.final is None else (("finally", node.final),)
            return (("try", node.body), *caught, *final)
        case Choice():
            return tuple(
                (f"option.{number}", option.body) for number, option in enumerate(node.options, 1)
            )
        case If():
            arms = tuple((f"arm.{number}", arm.body) for number, arm in enumerate(node.arms, 1))
            return arms if node.otherwise is None else (*arms, ("else", node.otherwise))
        case _:
            return ()


def _given(expression: Expression | None) -> Iterator[Expression]:
    if expression is not None:
        yield expression
