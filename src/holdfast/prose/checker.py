"""Checks a program beyond its syntax: names, scopes, and misplaced blocks.

It is one walk over the syntax tree, in the order of the source. Names bound in if, try, do and
parallel branches are visible after them, so these share the surrounding scope. Loops, pipes,
options and named blocks have separate scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.prose import syntax
from holdfast.prose.parser import Parsed
from holdfast.prose.problems import Problem, make_problem
from holdfast.prose.syntax import Body, Expression, Node, Program, Statement

PERMISSIONS = ("read", "write", "execute", "bash", "network")

_ASSIGNABLE = ("variable", "output")
_NOT_OF_AGENTS = ("variable", "const", "output")


def check_tree(parsed: Parsed) -> list[Problem]:
    """Returns the problems of a program other than syntax errors."""
    checker = _Checker(parsed)
    try:
        checker.check(parsed.program.body)
    except RecursionError:
        said = "expressions and blocks are nested too deeply"
        checker.problems.append(make_problem(1, 1, "too-deep", said))
    return checker.problems


def stay_text(program: Program) -> frozenset[tuple[int, int]]:
    """Returns the places of each `{name}` that stays text because the name is not bound."""
    problems = check_tree(Parsed(program, [], frozenset()))
    return frozenset((one.line, one.column) for one in problems if one.code == "unbound-text")


class _Scope:
    """The names of one scope, with the kind of each."""

    __slots__ = ("added", "kinds", "rebindable", "taken")

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.added: list[str] = []  # in the current arm, oldest first
        self.taken: set[str] = set()  # bound by earlier branches of a parallel block
        self.rebindable: frozenset[str] = frozenset()  # bound by try, and perhaps again by catch


class _Arms:
    """The arms of one parallel block, parallel for or pmap: which variables they replace."""

    __slots__ = ("depth", "earlier", "is_each", "replaced")

    def __init__(self, depth: int, *, is_each: bool) -> None:
        self.depth = depth  # how many scopes are around it
        self.is_each = is_each  # one body that runs once for each item
        self.earlier: set[str] = set()
        self.replaced: set[str] = set()


class _Checker:
    def __init__(self, parsed: Parsed) -> None:
        self.problems: list[Problem] = []
        self._lost = parsed.lost
        self._agents: dict[str, syntax.Agent] = {}
        self._blocks: dict[str, syntax.Block] = {}
        self._programs: set[str] = set()
        self._skills: set[str] = set()
        self._inputs: set[str] = set()
        self._top = _Scope()
        self._scopes = [self._top]
        self._arms: list[_Arms] = []
        self._tries = 0
        self._pipes = 0  # surrounding pipes and parallel arms, where unnamed output is an error
        self._exits = 0  # throws and outputs seen, which may end a loop

    def _report(self, node: Node, code: str, message: str) -> None:
        self.problems.append(make_problem(node.line, node.column, code, message))

    # --- definitions ------------------------------------------------------------------------------

    def check(self, body: Body) -> None:
        """Checks the whole program."""
        is_late = False
        for statement in body:
            self._define(statement)
            if isinstance(statement, syntax.Use | syntax.Import):
                if is_late:
                    self._report(statement, "late-import", "use and import stand at the beginning")
            else:
                is_late = True
        self._walk_all(body, is_top=True)

    def _define(self, statement: Statement) -> None:
        """Notes a definition, which is known in the whole program."""
        match statement:
            case syntax.Agent():
                self._define_once(self._agents, statement.name, statement, "agent")
            case syntax.Block():
                self._define_once(self._blocks, statement.name, statement, "block")
            case syntax.Use():
                self._import_once(self._programs, statement.name, statement)
            case syntax.Import():
                self._import_once(self._skills, statement.skill, statement)
            case _:
                pass

    def _define_once(self, known: dict[str, Any], name: str, found: Node, what: str) -> None:
        if name in known:
            said = f'{what} "{name}" is defined already, in line {known[name].line}'
            self._report(found, f"duplicate-{what}", said)
        else:
            known[name] = found

    def _import_once(self, known: set[str], name: str, found: Node) -> None:
        if name in known:
            self._report(found, "duplicate-import", f'"{name}" is imported already')
        known.add(name)

    # --- scopes -----------------------------------------------------------------------------------

    def _kind(self, name: str) -> str | None:
        for scope in reversed(self._scopes):
            kind = scope.kinds.get(name)
            if kind is not None:
                return kind
        return None

    def _bind(self, node: Node, name: str, kind: str) -> None:
        """Binds a name in the current scope."""
        top = self._top
        if kind in _NOT_OF_AGENTS and name in self._agents:
            self._report(node, "agent-name", f'"{name}" is the name of an agent')
        if name in top.taken or (name in top.kinds and name not in top.rebindable):
            said = f'"{name}" is bound already in this scope'
            self._report(node, "duplicate-variable", said)
        elif name not in top.kinds and self._kind(name) is not None:
            self._report(node, "shadowing", f'"{name}" hides a name of an outer scope')
        if name not in top.kinds:
            top.added.append(name)
        top.kinds[name] = kind

    @contextmanager
    def _scope(self) -> Generator[None]:
        self._top = _Scope()
        self._scopes.append(self._top)
        yield
        self._scopes.pop()
        self._top = self._scopes[-1]

    @contextmanager
    def _side_by_side(self, *, is_each: bool) -> Generator[_Arms]:
        arms = _Arms(len(self._scopes), is_each=is_each)
        self._arms.append(arms)
        self._pipes += 1
        yield arms
        self._pipes -= 1
        self._arms.pop()

    def _take_added(self) -> dict[str, str]:
        """Unbinds and returns the names that an arm bound, so that the next arm cannot see them."""
        top = self._top
        found = {name: top.kinds.pop(name) for name in top.added}
        top.added = []
        return found

    def _add_again(self, before: list[str], bound: dict[str, str]) -> None:
        """Binds again what all arms bound, after the last one; `before` was bound before them."""
        before += bound
        self._top.added = before
        self._top.kinds |= bound

    # --- the walk ---------------------------------------------------------------------------------

    def _walk_all(self, nodes: Iterable[Statement], *, is_top: bool = False) -> None:
        for node in nodes:
            self._walk(node, is_top=is_top)

    def _walk(self, node: Statement, *, is_top: bool = False) -> None:
        kind = type(node)
        visit = _VISITS.get(kind)
        if visit is not None:
            if not is_top and kind in _TOP_LEVEL:
                self._report_nested(node)
            visit(self, node)

    def _report_nested(self, node: Statement) -> None:
        self._define(node)
        if isinstance(node, syntax.Use | syntax.Import):
            self._report(node, "nested-import", "use and import stand at top level")
        else:
            self._report(node, "nested-definition", "agents and blocks are defined at top level")

    def _pass(self, node: Statement) -> None:
        """Does nothing: `_define` has checked the statement."""

    # --- values -----------------------------------------------------------------------------------

    def _name(self, node: syntax.Name) -> None:
        name = node.name
        if self._kind(name) is None and name not in self._lost:
            said = f'"{name}" is not bound before'
            if name in self._agents:
                said += ": it is an agent, which only a context takes"
            self._report(node, "unbound", said)

    def _text(self, node: syntax.Text) -> None:
        parts = node.parts
        if node.doubts or len(parts) > 1 or (parts and not isinstance(parts[0], str)):
            self._holes(node, "unbound-text" if node.is_long else "unbound")

    def _condition(self, node: syntax.Condition) -> None:
        self._holes(node, "unbound-text")

    def _holes(self, node: syntax.Text | syntax.Condition, code: str) -> None:
        for part in node.parts:
            if isinstance(part, str):
                continue
            for name in _names_of(part.reference):
                if self._kind(name) is None and name not in self._lost:
                    rest = "not bound before" if code == "unbound" else "not bound: it stays text"
                    self._report(part, code, f'"{name}" in {part.source} is {rest}')
        for doubt in node.doubts:
            if self._kind(doubt.name) is not None:
                said = (
                    f'"{doubt.source}" is no interpolation: braces hold a name, a member or an '
                    "index; write \\{ for a brace"
                )
                self._report(doubt, "bad-interpolation", said)

    def _parts(self, node: Expression) -> None:
        for part in syntax.parts(node):
            self._walk(part)  # pyright: ignore[reportArgumentType]

    def _context(self, node: Expression | None) -> None:
        """Checks a context, where the name of an agent stands for its newest output."""
        if isinstance(node, syntax.Name):
            if node.name not in self._agents:
                self._name(node)
        elif isinstance(node, syntax.Array | syntax.Object):
            for part in syntax.parts(node):
                self._context(part)  # pyright: ignore[reportArgumentType]
        elif node is not None:
            self._walk(node)

    # --- sessions ---------------------------------------------------------------------------------

    def _session(self, node: syntax.Session) -> None:
        if node.text is not None:
            self._text(node.text)
        if node.agent is not None:
            self._find_agent(node, node.agent)
        self._settings(node.settings)
        if node.name is not None:
            self._bind(node, node.name, "const")

    def _resume(self, node: syntax.Resume) -> None:
        agent = self._find_agent(node, node.agent)
        if agent is not None and agent.settings.persist is None:
            said = f'agent "{node.agent}" keeps no memory: give it persist, or use session'
            self._report(node, "resume-without-persist", said)
        self._settings(node.settings)

    def _find_agent(self, node: Node, name: str) -> syntax.Agent | None:
        agent = self._agents.get(name)
        if agent is None and name not in self._lost:
            self._report(node, "undefined-agent", f'agent "{name}" is not defined')
        return agent

    def _settings(self, settings: syntax.Settings) -> None:
        if settings.prompt is not None:
            self._text(settings.prompt)
        self._context(settings.context)

    def _agent(self, node: syntax.Agent) -> None:
        settings = node.settings
        self._settings(settings)
        missing = [one for one in ("model", "prompt") if getattr(settings, one) is None]
        if missing:
            said = f'agent "{node.name}" has no {" and no ".join(missing)}'
            self._report(node, "agent-incomplete", said)
        for skill in settings.skills or ():
            self._text(skill)
            name = "".join(part for part in skill.parts if isinstance(part, str))
            if name not in self._skills:
                self._report(skill, "unknown-skill", f'skill "{name}" is not imported')
        for permission in settings.permissions or ():
            if permission.name not in PERMISSIONS:
                said = f'unknown permission "{permission.name}": expected {", ".join(PERMISSIONS)}'
                self._report(permission, "unknown-permission", said)

    # --- blocks -----------------------------------------------------------------------------------

    def _block(self, node: syntax.Block) -> None:
        kept = self._arms, self._tries, self._pipes
        self._arms, self._tries, self._pipes = [], 0, 0
        with self._scope():
            for name in node.parameters:
                if name not in self._top.kinds:  # the parser has reported it otherwise
                    self._bind(node, name, "parameter")
            self._walk_all(node.body)
        self._arms, self._tries, self._pipes = kept

    def _do(self, node: syntax.Do) -> None:
        self._walk_all(node.body)

    def _block_call(self, node: syntax.BlockCall) -> None:
        block = self._blocks.get(node.name)
        if block is None:
            if node.name not in self._lost:
                self._report(node, "undefined-block", f'block "{node.name}" is not defined')
        elif len(node.arguments) != len(block.parameters):
            said = f'block "{node.name}" takes {len(block.parameters)} arguments, found '
            self._report(node, "argument-count", f"{said}{len(node.arguments)}")
        self._parts(node)

    def _program_call(self, node: syntax.ProgramCall) -> None:
        if node.name not in self._programs and node.name not in self._lost:
            said = f'program "{node.name}" is not brought in by use'
            self._report(node, "undefined-program", said)
        seen: set[str] = set()
        for entry in node.arguments:
            if entry.key in seen:
                said = f'the input "{entry.key}" is given twice'
                self._report(entry, "duplicate-parameter", said)
            seen.add(entry.key)
        self._parts(node)

    def _parallel(self, node: syntax.Parallel) -> None:
        """Checks branches. A branch does not see the names of others; after the block all are."""
        top = self._top
        before, taken = top.added, top.taken
        merged: dict[str, str] = {}
        top.added, top.taken = [], set(taken)
        with self._side_by_side(is_each=False) as arms:
            for branch in node.branches:
                arms.replaced = set()
                self._walk(branch.statement)
                self._name_branch(branch)
                bound = self._take_added()
                merged |= bound
                top.taken.update(bound)
                arms.earlier |= arms.replaced
        top.taken = taken
        self._add_again(before, merged)

    def _name_branch(self, branch: syntax.Branch) -> None:
        name = branch.name
        if name is None:
            return
        if self._kind(name) is None:
            self._bind(branch, name, "variable")
        else:
            self._assign(branch, name, branch.statement)

    def _for(self, node: syntax.For) -> None:
        self._walk(node.collection)
        with self._scope():
            self._bind(node, node.variable, "loop variable")
            if node.index is not None and node.index != node.variable:
                self._bind(node, node.index, "loop variable")
            self._each(node.body, is_parallel=node.is_parallel)

    def _each(self, body: Body, *, is_parallel: bool) -> None:
        """Checks a body that runs once for each item, sequentially or in parallel."""
        if is_parallel:
            with self._side_by_side(is_each=True) as arms:
                arms.depth -= 1  # each run of the body has its own copy of the surrounding scope
                self._walk_all(body)
        else:
            self._walk_all(body)

    def _repeat(self, node: syntax.Repeat) -> None:
        if isinstance(node.count, syntax.Name):
            self._name(node.count)
        self._loop_body(node, node.variable, node.body)

    def _loop_body(self, node: Node, variable: str | None, body: Body) -> None:
        with self._scope():
            if variable is not None:
                self._bind(node, variable, "loop variable")
            self._walk_all(body)

    def _loop(self, node: syntax.Loop) -> None:
        condition = node.condition
        if condition is not None:
            self._walk(condition)
        exits = self._exits
        self._loop_body(node, node.variable, node.body)
        goes_on = isinstance(condition, syntax.Constant) and (
            bool(condition.value) == (node.test == "while")
        )
        if (condition is None or goes_on) and node.max is None and exits == self._exits:
            said = "this loop never ends: add (max: N), until or while"
            self._report(node, "endless-loop", said)

    def _try(self, node: syntax.Try) -> None:
        top = self._top
        before, rebindable = top.added, top.rebindable
        top.added = []
        self._tries += 1
        self._walk_all(node.body)
        if node.catch is not None:
            top.rebindable = rebindable | frozenset(top.added)
            self._catch(node.catch)
            top.rebindable = rebindable
        self._tries -= 1
        before += top.added
        top.added = before
        self._walk_all(node.final or ())

    def _catch(self, catch: syntax.Catch) -> None:
        """Checks a catch, whose variable is bound only inside it."""
        kinds, name = self._top.kinds, catch.name
        if name is None:
            self._walk_all(catch.body)
            return
        if self._kind(name) is not None:
            self._report(catch, "shadowing", f'"{name}" hides a name of an outer scope')
        hidden = kinds.get(name)
        kinds[name] = "catch variable"
        self._walk_all(catch.body)
        if hidden is None:
            del kinds[name]
        else:
            kinds[name] = hidden

    def _choice(self, node: syntax.Choice) -> None:
        self._condition(node.condition)
        for option in node.options:
            self._text(option.label)
            with self._scope():
                self._walk_all(option.body)

    def _if(self, node: syntax.If) -> None:
        """Checks the arms. Only one of them runs, so they may bind the same names."""
        top = self._top
        before = top.added
        merged: dict[str, str] = {}
        bodies = [arm.body for arm in node.arms]
        if node.otherwise is not None:
            bodies.append(node.otherwise)
        for arm in node.arms:
            self._walk(arm.condition)
        top.added = []
        for body in bodies:
            self._walk_all(body)
            for name, kind in self._take_added().items():
                # A name that one arm binds as a const cannot be assigned after the if.
                if name not in merged or merged[name] in _ASSIGNABLE:
                    merged[name] = kind
        self._add_again(before, merged)

    def _arrow(self, node: syntax.Arrow) -> None:
        self._walk_all(node.operands)

    def _pipe(self, node: syntax.Pipe) -> None:
        self._walk(node.source)
        with self._scope():
            if node.kind == "reduce":
                for name in dict.fromkeys(node.names):
                    self._bind(node, name, "loop variable")
            else:
                self._top.kinds["item"] = "loop variable"
            self._pipes += 1
            self._each(node.body, is_parallel=node.kind == "pmap")
            self._pipes -= 1

    # --- statements -------------------------------------------------------------------------------

    def _bind_statement(self, node: syntax.Bind) -> None:
        self._walk(node.value)
        self._bind(node, node.name, "const" if node.is_const else "variable")

    def _unpack(self, node: syntax.Unpack) -> None:
        self._walk(node.value)
        for name in dict.fromkeys(node.names):
            self._bind(node, name, "variable")

    def _assign_statement(self, node: syntax.Assign) -> None:
        self._walk(node.value)
        if self._kind(node.name) is not None:
            self._assign(node, node.name, node.value)
        elif node.name not in self._lost:
            said = f'"{node.name}" is not bound before: bind it with let'
            self._report(node, "unbound", said)

    def _assign(self, node: Node, name: str, value: Statement) -> None:
        kind = self._kind(name)
        if kind not in _ASSIGNABLE:
            what = f"an {kind}" if kind == "input" else f"a {kind}"
            self._report(node, "not-assignable", f'"{name}" is {what} and cannot be assigned')
            return
        if self._arms and not syntax.adds_to(name, value):  # pyright: ignore[reportArgumentType]
            self._replace(node, name)

    def _replace(self, node: Node, name: str) -> None:
        """Notes that a parallel arm replaces an outer variable, and warns if another one does."""
        for arms in self._arms:
            inside = self._scopes[arms.depth :]
            own = () if arms.is_each else self._scopes[arms.depth - 1].added
            if name in own or any(name in scope.kinds for scope in inside):
                continue
            if arms.is_each or name in arms.earlier:
                said = f'two parallel arms replace "{name}": the later one counts'
                self._report(node, "arms-replace", said)
                return
            arms.replaced.add(name)

    def _input(self, node: syntax.Input) -> None:
        self._walk(node.prompt)
        if node.name in self._inputs:
            self._report(node, "duplicate-input", f'the input "{node.name}" is there already')
            return
        self._inputs.add(node.name)
        self._bind(node, node.name, "input")

    def _output(self, node: syntax.Output) -> None:
        value, name = node.value, node.name
        self._walk(value)
        if name is None:
            self._exits += 1
            if self._pipes:
                said = "output without a name has no place in a parallel arm or a pipe"
                self._report(node, "output-in-arm", said)
        elif not isinstance(value, syntax.Name) or value.name != name:
            self._bind(node, name, "output")

    def _throw(self, node: syntax.Throw) -> None:
        self._exits += 1
        if node.message is not None:
            self._text(node.message)
        if not self._tries:
            self._report(node, "throw-outside-try", "no try stands around this throw")

    def _assert(self, node: syntax.Assert) -> None:
        self._walk(node.condition)
        self._text(node.message)


def _names_of(reference: Expression) -> Iterator[str]:
    """Yields the names in an interpolation: those used as indexes, and the first."""
    while not isinstance(reference, syntax.Name):
        if isinstance(reference, syntax.Index):
            if isinstance(reference.index, syntax.Name):
                yield reference.index.name
            reference = reference.target
        elif isinstance(reference, syntax.Member):
            reference = reference.target
        else:
            return
    yield reference.name


_TOP_LEVEL = frozenset((syntax.Use, syntax.Import, syntax.Agent, syntax.Block))
_VISITS: dict[type, Callable[[_Checker, Any], None]] = {
    syntax.Name: _Checker._name,
    syntax.Text: _Checker._text,
    syntax.Condition: _Checker._condition,
    syntax.Member: _Checker._parts,
    syntax.Index: _Checker._parts,
    syntax.Array: _Checker._parts,
    syntax.Object: _Checker._parts,
    syntax.Not: _Checker._parts,
    syntax.Binary: _Checker._parts,
    syntax.Session: _Checker._session,
    syntax.Resume: _Checker._resume,
    syntax.Do: _Checker._do,
    syntax.BlockCall: _Checker._block_call,
    syntax.ProgramCall: _Checker._program_call,
    syntax.Parallel: _Checker._parallel,
    syntax.For: _Checker._for,
    syntax.Repeat: _Checker._repeat,
    syntax.Loop: _Checker._loop,
    syntax.Try: _Checker._try,
    syntax.Choice: _Checker._choice,
    syntax.If: _Checker._if,
    syntax.Arrow: _Checker._arrow,
    syntax.Pipe: _Checker._pipe,
    syntax.Use: _Checker._pass,
    syntax.Import: _Checker._pass,
    syntax.Agent: _Checker._agent,
    syntax.Block: _Checker._block,
    syntax.Bind: _Checker._bind_statement,
    syntax.Unpack: _Checker._unpack,
    syntax.Assign: _Checker._assign_statement,
    syntax.Input: _Checker._input,
    syntax.Output: _Checker._output,
    syntax.Throw: _Checker._throw,
    syntax.Assert: _Checker._assert,
}
