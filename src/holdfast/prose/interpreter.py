"""Runs a program in the context of a run: each statement becomes operations of the journal.

The tree is walked from the top in every pass, and the journal answers what was done before. An
operation is named in the journal after the binding it belongs to, else after its kind and its
number in its block. Lines are not part of a name, so an added comment does not make the run
diverge; `source=` carries file and line for people.

Bodies of `if`, `try`, `do:` and named blocks are blocks of the journal. Arms of `parallel`,
`parallel for` and `pmap` are its branches. Each returns one value that also contains all that the
arm bound and assigned: a replay does not run a finished arm again, so it could not find that out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from msgspec import Struct, to_builtins

from holdfast.agents.protocol import NO, YES, Answer
from holdfast.agents.protocol import Kind as QuestionKind
from holdfast.errors import StepError, UnavailableError
from holdfast.prose import syntax as tree
from holdfast.prose import values
from holdfast.prose.checker import stay_text
from holdfast.prose.scopes import Arm, Cell, Change, Kind, Memories, Scope
from holdfast.prose.settings import Settings
from holdfast.prose.variables import scope_of
from holdfast.prose.view_files import ModifiedError, Shown, ViewDirectory
from holdfast.prose.views import CHECKPOINT, branch_path, render_branch, render_checkpoint
from holdfast.runs.blocks import Enough
from holdfast.runs.context import (
    Cleanup,
    GivenNames,
    block_in,
    declared_here,
    engine_of,
    execution_of,
    inner_block,
    is_const,
    reworded,
)
from holdfast.runs.define import ONCE, Retry, Step

CALLS_MAX = 100
"""How deep blocks may call each other, unless a block sets a higher limit."""
CALLS_MOST = 1000
"""How deep blocks may call each other, whatever limit a block sets."""
_PERSISTED = "agents"


def calls_max(program: tree.Program) -> int:
    """Returns how long a chain of block calls may be in a program."""
    said = [one.max_depth for one in program.body if isinstance(one, tree.Block)]
    return min(max([CALLS_MAX, *said]), CALLS_MOST)


class BlockEnded(Exception):
    """Raised by `output value` to end the block around it."""

    def __init__(self, value: Any) -> None:
        super().__init__("a block ended")
        self.value = value


class Naming:
    """Names the operations of one statement in the journal."""

    __slots__ = ("base", "counts", "direct")

    def __init__(self, base: str | None, direct: Any) -> None:
        self.base = base
        self.direct = direct
        self.counts: dict[str, int] = {}

    def key(self, node: tree.Node, kind: str) -> str | None:
        """Returns the key of an operation; None if the block numbers it by its kind."""
        if self.base is None:
            return None
        if node is self.direct:
            return self.base
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        return f"{self.base}.{count}"


UNNAMED = Naming(None, None)


class Frame:
    """The state of one place of execution: the context of its thread, its names, its caller."""

    __slots__ = (
        "agents",
        "caught",
        "chain",
        "ctx",
        "handed",
        "is_in_block",
        "naming",
        "results",
        "scope",
        "short",
    )

    def __init__(self, ctx: Any, scope: Scope, agents: Memories) -> None:
        self.ctx = ctx
        self.scope = scope
        self.agents = agents
        self.naming = UNNAMED
        self.caught: StepError | None = None
        self.chain: tuple[str, ...] = ()
        self.is_in_block = False
        """Whether `output value` ends a block here; else it sets the result of the program."""
        self.handed: list[tuple[str, Any]] = []
        self.results: dict[str, Any] = {}
        self.short: dict[str, str] = {}
        """Summaries that agents made here, by the full text."""


class Merged(Struct, frozen=True):
    """The settings of a session that follow from the text of the program alone."""

    prompt: tree.Text | None
    system: tree.Text | None
    model: str | None
    skills: tuple[tree.Text, ...]
    permissions: dict[str, Any] | None
    retry: Retry
    label: tree.Text | None
    keeps: bool
    place: Any


_NO_SETTINGS = tree.Settings(0, 0)
Prepared = tuple[Callable[..., Any], Any, str | None, Any]
"""A method, the statement that it runs, the name for its operations, and the node so named.

The node with the name itself gets it unchanged; other operations of the statement get a number.
"""


class Interpreter:
    """One program on its way through one run."""

    def __init__(
        self,
        program: tree.Program,
        settings: Settings,
        inputs: dict[str, Any],
        call: Callable[[Any, str, dict[str, Any], str | None, str], Any],
    ) -> None:
        self._program = program
        self._settings = settings
        self._inputs = inputs
        self._call = call
        self._agents = {
            one.name: one.settings for one in program.body if isinstance(one, tree.Agent)
        }
        self._blocks = {one.name: one for one in program.body if isinstance(one, tree.Block)}
        self._calls_max = calls_max(program)
        self._prepared: dict[int, tuple[Prepared, ...]] = {}
        self._sources: dict[int, str] = {}
        self._addends: dict[int, Any] = {}
        self._plain = stay_text(program)
        self._top = Scope()
        self._merged: dict[int, Merged] = {}
        self._result: list[Any] = []
        self._views = None if settings.views is None else ViewDirectory(settings.views)
        self._branch_views: dict[str, bytes] = {}

    def run(self, ctx: Any) -> tuple[Any, bool]:
        """Runs the program; returns its result, and whether that is a dict of named outputs."""
        frame = Frame(ctx, self._top, Memories())
        last = self._body(frame, self._program.body)
        self._sync(frame, None)
        if frame.results:
            return frame.results, True
        return (self._result[-1] if self._result else last), False

    # --- statements -------------------------------------------------------------------------------

    def _body(self, frame: Frame, body: tree.Body) -> Any:
        """Runs statements, and returns the value of the last."""
        prepared = self._prepared.get(id(body))
        if prepared is None:
            prepared = self._prepared[id(body)] = _prepared(body)
        value: Any = None
        outer = frame.naming
        try:
            for run, statement, base, direct in prepared:
                frame.naming = UNNAMED if base is None else Naming(base, direct)
                value = run(self, frame, statement)
        finally:
            frame.naming = outer
        return value

    def _input(self, frame: Frame, node: tree.Input) -> Any:
        given = node.name in self._inputs
        if given:
            value = self._inputs[node.name]
        else:
            self._sync(frame, None)  # a person may read the views before answering
            prompt = self._text(frame, node.prompt)
            if isinstance(node.prompt, tree.Condition):
                prompt = reworded(frame.ctx, prompt, self._source(node))
            value = frame.ctx.wait(node.name, label=prompt[:200], source=self._source(node))
        return self._declare(frame, "input", node.name, value, node)

    def _output(self, frame: Frame, node: tree.Output) -> Any:
        value = self._value(frame, node.value)
        if node.name is None:
            if frame.is_in_block:
                raise BlockEnded(value)
            self._result.append(value)
            return value
        cell = frame.scope.cells.get(node.name)
        if cell is None:
            self._declare(frame, "let", node.name, value, node)
        frame.results[node.name] = value
        return value

    def _bind(self, frame: Frame, node: tree.Bind) -> Any:
        value = self._value(frame, node.value)
        return self._declare(frame, "const" if node.is_const else "let", node.name, value, node)

    def _unpack(self, frame: Frame, node: tree.Unpack) -> Any:
        value = self._value(frame, node.value)
        for name in node.names:
            part = values.member(value, name, name, node.line)
            self._declare(frame, "let", name, part, node)
        return value

    def _assign(self, frame: Frame, node: tree.Assign) -> Any:
        addends = self._addends.get(id(node), ())
        if addends == ():
            addends = self._addends[id(node)] = _addends(node)
        if addends is None:
            value = self._value(frame, node.value)
            return self._set(frame, node.name, value, None, node)
        parts = [self._value(frame, one) for one in addends]
        value = frame.scope.get(node.name)[1]
        for part in parts:
            value = values.added(value, part)
        return self._set(frame, node.name, value, parts, node)

    def _throw(self, frame: Frame, node: tree.Throw) -> Any:
        if node.message is None and frame.caught is not None:
            raise frame.caught
        text = "" if node.message is None else self._text(frame, node.message)
        raise values.failure("Thrown", text, node.line)

    def _assert(self, frame: Frame, node: tree.Assert) -> Any:
        if not self._is_true(frame, node.condition, "if"):
            raise values.failure("AssertionError", self._text(frame, node.message), node.line)

    # --- names ------------------------------------------------------------------------------------

    def _declare(self, frame: Frame, kind: Kind, name: str, value: Any, node: tree.Node) -> Any:
        """Binds a name in this scope, and records the binding in the journal."""
        ctx, source = frame.ctx, self._source(node)
        known = declared_here(ctx, name)
        variable = None
        # At a join, an arm before this one may have bound the same name: then it is set again.
        if known is not None and not is_const(known):
            value, variable = known.set(value, source=source), known
        elif kind == "let":
            variable = ctx.let(name, value, source=source)
            value = variable.value
        elif known is None:
            value = ctx.const(name, value, source=source)
        frame.scope.cells.pop(name, None)
        cell = frame.scope.cells[name] = Cell(kind, value, variable)
        if self._views is not None:
            cell.place = scope_of(f"{path}/x" if (path := block_in(ctx).path) else "x")
            self._note_update(frame, cell)
        return value

    def _note_update(self, frame: Frame, cell: Cell) -> None:
        """Records when a let was set. The journal keeps the time, so a replay shows the same."""
        if self._views is not None and cell.variable is not None:
            cell.updated = frame.ctx.now().isoformat(timespec="microseconds")

    def _set(
        self, frame: Frame, name: str, value: Any, added: list[Any] | None, node: tree.Node
    ) -> Any:
        """Sets a name. In an arm, a name from outside is only noted, and set at the join."""
        cell, arm = frame.scope.cell(name)
        if cell is None:  # its binding stands in an arm of `if` that did not run
            return self._declare(frame, "let", name, value, node)
        if arm is not None:
            arm.values[name] = value
            arm.changes.append(Change(name, added, None if added is not None else value))
            return value
        if cell.kind == "const":
            raise values.failure("ConstError", f"{name} is a const: it never changes", node.line)
        if cell.variable is None:
            return self._declare(frame, "let", name, value, node)
        cell.value = cell.variable.set(value, source=self._source(node))
        if self._views is not None:
            self._note_update(frame, cell)
        return cell.value

    # --- values -----------------------------------------------------------------------------------

    def _value(self, frame: Frame, node: tree.Expression) -> Any:
        """Evaluates an expression, and runs the sessions and blocks in it."""
        try:
            return _EXPRESSIONS[type(node)](self, frame, node)
        except StepError as error:
            if error.data is None:
                error.data = {"line": node.line}
            raise

    def _constant(self, frame: Frame, node: tree.Constant) -> Any:
        return node.value

    def _name(self, frame: Frame, node: tree.Name) -> Any:
        found, value = frame.scope.get(node.name)
        if not found and node.name in self._agents:
            return frame.agents.output_of(node.name)
        return value

    def _member(self, frame: Frame, node: tree.Member) -> Any:
        return values.member(self._value(frame, node.target), node.name, _shown(node), node.line)

    def _index(self, frame: Frame, node: tree.Index) -> Any:
        target, index = self._value(frame, node.target), self._value(frame, node.index)
        return values.item(target, index, _shown(node), node.line)

    def _text(self, frame: Frame, node: tree.Text | tree.Condition) -> str:
        parts = node.parts
        if len(parts) == 1 and isinstance(parts[0], str):
            return parts[0]
        found: list[str] = []
        for part in parts:
            if isinstance(part, str):
                found.append(part)
            elif (part.line, part.column) in self._plain:
                found.append(part.source)
            else:
                found.append(values.text_of(self._value(frame, part.reference)))
        return "".join(found)

    def _array(self, frame: Frame, node: tree.Array) -> Any:
        return [self._value(frame, one) for one in node.items]

    def _object(self, frame: Frame, node: tree.Object) -> Any:
        return {entry.key: self._value(frame, entry.value) for entry in node.entries}

    def _not(self, frame: Frame, node: tree.Not) -> Any:
        return not self._is_true(frame, node.operand, "if")

    def _binary(self, frame: Frame, node: tree.Binary) -> Any:
        operator = node.operator
        if operator in ("and", "or"):
            left = self._is_true(frame, node.left, "if")
            if left == (operator == "or"):
                return left
            return self._is_true(frame, node.right, "if")
        left, right = self._value(frame, node.left), self._value(frame, node.right)
        if operator == "+":
            return values.added(left, right)
        if operator in ("-", "*", "/"):
            return values.calculated(operator, left, right, node.line)
        return values.compared(operator, left, right)

    # --- questions --------------------------------------------------------------------------------

    def _condition(self, frame: Frame, node: tree.Condition) -> bool:
        return self._asked(frame, node, self._text(frame, node), "if")

    def _is_true(self, frame: Frame, node: tree.Expression, kind: QuestionKind) -> bool:
        """Returns whether an expression is true; an agent decides if its value does not say."""
        if isinstance(node, tree.Condition):
            return self._asked(frame, node, self._text(frame, node), kind)
        return self._says_yes(frame, node, self._value(frame, node), kind)

    def _says_yes(self, frame: Frame, node: tree.Node, value: Any, kind: QuestionKind) -> bool:
        found = values.said(value)
        return self._asked(frame, node, values.text_of(value), kind) if found is None else found

    def _asked(self, frame: Frame, node: tree.Node, text: str, kind: QuestionKind) -> bool:
        said: str = frame.ctx.decide(
            text,
            kind=kind,
            options=(YES, NO),
            context=self._passed(frame, list(frame.scope.visible()), node),
            key=frame.naming.key(node, "decide"),
            source=self._source(node),
        )
        return said == YES

    def _choice(self, frame: Frame, node: tree.Choice) -> Any:
        labels = [self._text(frame, option.label) for option in node.options]
        chosen = frame.ctx.decide(
            self._text(frame, node.condition),
            kind="choice",
            options=labels,
            context=self._passed(frame, list(frame.scope.visible()), node),
            key=frame.naming.key(node, "decide"),
            source=self._source(node),
        )
        number = labels.index(chosen)
        with self._block(frame, "option", node), self._inside(frame):
            return self._body(frame, node.options[number].body)

    # --- sessions ---------------------------------------------------------------------------------

    def _session(self, frame: Frame, node: tree.Session) -> Any:
        agent = None if node.agent is None else self._agents[node.agent]
        answer = self._ask(frame, node, node.agent, agent, node.text, memory=None)
        if node.name is not None:
            self._declare(frame, "const", node.name, answer, node)
        return answer

    def _resume(self, frame: Frame, node: tree.Resume) -> Any:
        agent = self._agents[node.agent]
        memory = self._memory(frame, node, agent)
        if memory is None:
            raise values.failure(
                "NoMemoryError", f"{node.agent} has no memory yet: begin with session", node.line
            )
        return self._ask(frame, node, node.agent, agent, None, memory=memory)

    def _memory(self, frame: Frame, node: tree.Resume, agent: tree.Settings) -> str | None:
        place = self._place(node.agent, agent)
        if place is None:
            return frame.agents.memory_of(node.agent)
        scope, path = place
        return frame.ctx.read(scope(frame), path, source=self._source(node))

    def _place(self, name: str, agent: tree.Settings) -> Any:
        """Returns where an agent's memory is kept outside of the run; None if it is inside."""
        persist = agent.persist
        if persist is None or persist.place == "run":
            return None
        kept = persist.name if persist.place == "named" else name
        return _global, (_PERSISTED, kept)

    def _ask(
        self,
        frame: Frame,
        node: tree.Session | tree.Resume,
        name: str | None,
        agent: tree.Settings | None,
        text: tree.Text | None,
        *,
        memory: str | None,
    ) -> str:
        """Runs one session, and returns the agent's answer."""
        if self._views is not None:
            self._sync(frame, node)
        merged = self._merged.get(id(node))
        if merged is None:
            merged = self._merged[id(node)] = self._merge(node.settings, name, agent, text)
        pairs = frame.handed
        if pairs:
            frame.handed = []
        if node.settings.context is not None:
            pairs = [*self._context(frame, node.settings.context), *pairs]
        place = merged.place
        answer: Answer = frame.ctx.session(
            "" if merged.prompt is None else self._text(frame, merged.prompt),
            system=None if merged.system is None else self._text(frame, merged.system),
            context=self._passed(frame, pairs, node) if pairs else None,
            model=merged.model,
            agent=name,
            memory=memory,
            skills=[self._text(frame, skill) for skill in merged.skills] if merged.skills else (),
            permissions=merged.permissions,
            remember=merged.keeps if place is None else (place[0](frame), place[1]),
            effect=self._settings.sessions,
            retry=merged.retry,
            key=frame.naming.key(node, "session"),
            label=None if merged.label is None else self._text(frame, merged.label)[:200],
            source=self._source(node),
        )
        if name is not None:
            frame.agents.newest[name] = answer.text
            if merged.keeps and place is None:
                frame.agents.memory[name] = answer.memory or ""
        return answer.text

    def _merge(
        self,
        own: tree.Settings,
        name: str | None,
        agent: tree.Settings | None,
        text: tree.Text | None,
    ) -> Merged:
        """Returns the settings of a session: its own where it has them, else the agent's."""
        given = own.prompt or text
        other = agent or _NO_SETTINGS
        permissions = own.permissions or other.permissions
        return Merged(
            given or other.prompt,
            other.prompt if given is not None else None,
            own.model or other.model,
            own.skills or other.skills or (),
            None if permissions is None else _permitted(permissions),
            self._retry(own, agent),
            text if own.prompt is not None else None,
            other.persist is not None,
            None if other.persist is None else self._place(name or "", other),
        )

    def _retry(self, own: tree.Settings, agent: tree.Settings | None) -> Retry:
        again = own.retry if own.retry is not None else agent.retry if agent is not None else None
        if again is None:
            return ONCE
        backoff = own.backoff if own.backoff is not None else agent.backoff if agent else None
        wait_s, factor = {"none": (0.0, 1.0), "linear": (1.0, 1.0)}.get(str(backoff), (1.0, 2.0))
        if backoff is None:
            wait_s = 0.0
        elif isinstance(backoff, int):
            wait_s, factor = backoff / 1000, 1.0
        return Retry(again + 1, wait_s * self._settings.backoff_scale, factor)

    def _context(self, frame: Frame, node: tree.Expression) -> list[tuple[str, Any]]:
        """Returns the names and values that `context:` passes, in the order written."""
        return [(name, self._value(frame, one)) for name, one in _context_parts(node)]

    def _passed(
        self, frame: Frame, pairs: list[tuple[str, Any]], node: tree.Node
    ) -> list[tuple[str, str]]:
        """Returns names and texts; a long text is summarised, a very long one is a reference."""
        limits, found = self._settings, list[tuple[str, str]]()
        for name, value in pairs:
            text = values.text_of(value)
            if len(text) > limits.verbatim_max:
                if len(text) > limits.summarised_max:
                    text = self._settings.reference(frame.ctx.run_id, name, text)
                else:
                    text = self._summary(frame, text, node)
            found.append((name, text))
        return found

    def _summary(self, frame: Frame, text: str, node: tree.Node) -> str:
        if text not in frame.short:
            frame.short[text] = frame.ctx.summarise(
                text,
                limit=self._settings.verbatim_max,
                key=frame.naming.key(node, "summarise"),
                source=self._source(node),
            )
        return frame.short[text]

    # --- views ------------------------------------------------------------------------------------

    def _sync(self, frame: Frame, node: tree.Node | None) -> None:
        """Writes the view files, and takes over values of lets that a person edited there.

        Called before a session or a wait, and at the end. It is a step of the class read: the
        edits it found are recorded, so that a replay takes the same ones. If a const was edited,
        the run is parked until a person restores it or forks the run.
        """
        if self._views is None:
            return
        views, shown = self._views, list[Shown]()
        if not frame.scope.is_in_arm:
            for name, cell in frame.scope.cells_here():
                if cell.place is not None:
                    shown.append(Shown(name, cell.place, cell.value, cell.updated))
        others = dict(self._branch_views) if not frame.scope.is_in_arm else {}
        if node is not None:
            position = {"block": block_in(frame.ctx).path, "source": self._source(node)}
            context = self._summed_up(frame, node)
            bindings = dict(frame.scope.visible())
            others[CHECKPOINT] = render_checkpoint(position, bindings, context)

        def look(ctx: Any) -> dict[str, Any]:
            try:
                return views.sync(shown, others)
            except ModifiedError as error:
                text = f"{error}; holdfast prose restore {ctx.run} {error.name}, or prose fork"
                raise execution_of(ctx).park(text, ctx.path) from error
            except UnavailableError as error:
                raise execution_of(ctx).park(str(error), ctx.path) from error

        looking: Step[..., Any] = Step(
            look, effect="read", name="views", verify=None, retry=ONCE, not_done=(), ignore=()
        )
        edited: dict[str, Any] = frame.ctx.step(looking)
        for name, value in edited.items():
            self._set(frame, name, value, None, node or self._program.body[-1])

    def _summed_up(self, frame: Frame, node: tree.Node) -> dict[str, int | None]:
        """Returns the names that a session will be passed, with the lengths that are known yet.

        Only plain names are evaluated. Another expression may ask an agent, and the views are
        written before that.
        """
        found: dict[str, int | None] = {}
        settings = node.settings if isinstance(node, tree.Session | tree.Resume) else _NO_SETTINGS
        if settings.context is not None:
            for name, one in _context_parts(settings.context):
                known = isinstance(one, tree.Name)
                found[name] = len(values.text_of(self._name(frame, one))) if known else None
        return found | {name: len(values.text_of(value)) for name, value in frame.handed}

    def _show_branches(self, frame: Frame, count: int, value: dict[str, Any]) -> None:
        """Remembers the results of a wide parallel block, which gets one view file per branch."""
        if self._views is None or count < self._settings.branches_min:
            return
        block = block_in(frame.ctx)
        number = block.counts.get("parallel", 0)
        leaf = "parallel" if number < 2 else f"parallel#{number}"
        path = f"{block.path}/{leaf}" if block.path else leaf
        for name, one in value.items():
            self._branch_views[branch_path(path, name)] = render_branch(one)

    # --- blocks -----------------------------------------------------------------------------------

    def _block(self, frame: Frame, name: str, node: tree.Node) -> Any:
        """Surrounds a body with a block of the journal."""
        key = frame.naming.key(node, name)
        return inner_block(frame.ctx, name, key, self._source(node))

    @contextmanager
    def _inside(self, frame: Frame, scope: Scope | None = None) -> Generator[None]:
        """Runs a body in an inner scope: what it binds is gone afterwards."""
        outer, naming = frame.scope, frame.naming
        frame.scope = Scope(outer) if scope is None else scope
        try:
            yield
        finally:
            frame.scope, frame.naming = outer, naming

    def _do(self, frame: Frame, node: tree.Do) -> Any:
        before, frame.is_in_block = frame.is_in_block, True
        try:
            with self._block(frame, "do", node):
                return self._ended(frame, node.body)
        finally:
            frame.is_in_block = before

    def _ended(self, frame: Frame, body: tree.Body) -> Any:
        """Runs the body of a block; returns the value of `output value`, else its last value.

        The exception is caught within the journal's block, so that the block ends as completed.
        """
        try:
            return self._body(frame, body)
        except BlockEnded as ended:
            return ended.value

    def _block_call(self, frame: Frame, node: tree.BlockCall) -> Any:
        block = self._blocks[node.name]
        arguments = [self._value(frame, one) for one in node.arguments]
        chain = (*frame.chain, node.name)
        if chain.count(node.name) > block.max_depth or len(chain) > self._calls_max:
            shown = " -> ".join(chain if len(chain) < 10 else (*chain[:4], "…", *chain[-4:]))
            raise values.failure("RecursionError", f"blocks call too deep: {shown}", node.line)
        scope = Scope(self._root(frame))
        for name, value in zip(block.parameters, arguments, strict=True):
            scope.cells[name] = Cell("parameter", value)
        with self._block(frame, node.name, node), self._inside(frame, scope):
            before = frame.chain, frame.is_in_block, frame.caught
            frame.chain, frame.is_in_block, frame.caught = chain, True, None
            try:
                return self._ended(frame, block.body)
            finally:
                frame.chain, frame.is_in_block, frame.caught = before

    def _root(self, frame: Frame) -> Scope:
        """Returns the program's own scope, seen through the parallel arms around this place.

        A named block sees the names of the program, not those of its caller. Its assignments still
        count as the arm's, so they are kept for the join.
        """
        arms: list[Arm] = []
        scope: Scope | None = frame.scope
        while scope is not None:
            if scope.arm is not None:
                arms.append(scope.arm)
            scope = scope.outer
        root = self._top
        for arm in reversed(arms):
            root = Scope(root, arm)
        return root

    def _program_call(self, frame: Frame, node: tree.ProgramCall) -> Any:
        given = {entry.key: self._value(frame, entry.value) for entry in node.arguments}
        key = frame.naming.key(node, "call")
        return self._call(frame.ctx, node.name, given, key, self._source(node))

    def _if(self, frame: Frame, node: tree.If) -> Any:
        with self._block(frame, "if", node):
            naming, frame.naming = frame.naming, UNNAMED
            try:
                for arm in node.arms:
                    if self._is_true(frame, arm.condition, "if"):
                        return self._body(frame, arm.body)
                return None if node.otherwise is None else self._body(frame, node.otherwise)
            finally:
                frame.naming = naming

    def _try(self, frame: Frame, node: tree.Try) -> Any:
        if node.final is None:
            return self._tried(frame, node)
        names = GivenNames(frame.naming.key(node, "finally"), None, self._source(node))
        ended: list[BlockEnded] = []
        body = frame.ctx.branch(self._finally, frame, node.final, ended)
        try:
            with Cleanup(frame.ctx, "finally", body, names):
                value = self._tried(frame, node)
        except (StepError, BlockEnded) as error:
            raise ended[0] if ended else error from None
        if ended:
            raise ended[0]
        return value

    def _tried(self, frame: Frame, node: tree.Try) -> Any:
        try:
            with self._block(frame, "try", node):
                return self._body(frame, node.body)
        except StepError as error:
            if node.catch is None:
                raise
            before, frame.caught = frame.caught, error
            frame.handed = []
            try:
                with self._block(frame, "catch", node.catch), self._catching(frame, node, error):
                    return self._body(frame, node.catch.body)
            finally:
                frame.caught = before

    @contextmanager
    def _catching(self, frame: Frame, node: tree.Try, error: StepError) -> Generator[None]:
        """Binds the catch variable while the body of `catch` runs."""
        name = None if node.catch is None else node.catch.name
        if name is None:
            yield
            return
        data: Any = error.data
        line = cast("Any", data).get("line", node.line) if isinstance(data, dict) else node.line
        told = {"kind": error.kind, "message": error.text, "line": line}
        before = frame.scope.cells.get(name)
        frame.scope.cells[name] = Cell("catch", told)
        try:
            yield
        finally:
            del frame.scope.cells[name]
            if before is not None:
                frame.scope.cells[name] = before

    def _finally(self, ctx: Any, frame: Frame, body: tree.Body, ended: list[BlockEnded]) -> None:
        """Runs the body of `finally`, after a cancel too; an `output` in it is noted in `ended`."""
        frame.handed, frame.naming = [], UNNAMED
        try:
            self._body(frame, body)
        except BlockEnded as left:
            ended.append(left)

    def _arrow(self, frame: Frame, node: tree.Arrow) -> Any:
        value: Any = None
        try:
            for number, one in enumerate(node.operands):
                frame.handed = [("input", value)] if number else frame.handed
                value = self._value(frame, one)
        finally:
            frame.handed = []  # after a failure too: a catch must not receive this input
        return value

    # --- loops ------------------------------------------------------------------------------------

    def _iterations(
        self, frame: Frame, loop: Iterator[Any], named: Callable[[Any], dict[str, Any]] | None
    ) -> Iterator[Any]:
        """Yields each iteration of a loop, each with a new scope."""
        outer, naming = frame.scope, frame.naming
        try:
            for one in loop:
                scope = frame.scope = Scope(outer)
                frame.naming = UNNAMED
                if named is not None:
                    for name, value in named(one).items():
                        scope.cells[name] = Cell("loop", value)
                yield one
        finally:
            frame.scope, frame.naming = outer, naming

    def _for(self, frame: Frame, node: tree.For) -> Any:
        items = values.collection(self._value(frame, node.collection), node.line)
        if node.is_parallel:
            names = [_item_names(node, number, item) for number, item in enumerate(items)]
            return self._side_by_side(frame, node, node.body, names, node.on_fail)
        key, source = frame.naming.key(node, "for"), self._source(node)
        loop = frame.ctx.each(list(enumerate(items)), name="for", key=key, source=source)
        return [
            self._body(frame, node.body)
            for _ in self._iterations(frame, loop, lambda one: _item_names(node, *one))
        ]

    def _repeat(self, frame: Frame, node: tree.Repeat) -> Any:
        times = node.count
        if not isinstance(times, int):
            times = values.whole(self._value(frame, times), "repeat", node.line)
        key, source = frame.naming.key(node, "repeat"), self._source(node)
        loop = frame.ctx.repeat(times, key=key, source=source)
        named = _called(node.variable)
        return [self._body(frame, node.body) for _ in self._iterations(frame, loop, named)]

    def _loop(self, frame: Frame, node: tree.Loop) -> Any:
        key, source = frame.naming.key(node, "loop"), self._source(node)
        loop = frame.ctx.loop(node.max, key=key, source=source)
        found: list[Any] = []
        iterations = self._iterations(frame, loop, _called(node.variable))
        for _ in iterations:
            if node.condition is not None and node.test is not None:
                holds = self._is_true(frame, node.condition, node.test)
                if holds == (node.test == "until"):
                    break
            found.append(self._body(frame, node.body))
        _close(iterations)
        return found

    def _pipe(self, frame: Frame, node: tree.Pipe) -> Any:
        items = values.collection(self._value(frame, node.source), node.line)
        frame.handed = []
        if node.kind == "pmap":
            names = [{"item": item} for item in items]
            return self._side_by_side(frame, node, node.body, names, "fail-fast")
        key, source = frame.naming.key(node, node.kind), self._source(node)
        if node.kind == "reduce":
            return self._reduced(frame, node, items, key)
        loop = frame.ctx.each(items, name=node.kind, key=key, source=source)
        found: list[Any] = []
        for item in self._iterations(frame, loop, lambda one: {"item": one}):
            value = self._body(frame, node.body)
            if node.kind == "map":
                found.append(value)
            elif self._says_yes(frame, node, value, "filter"):
                found.append(item)
        return found

    def _reduced(self, frame: Frame, node: tree.Pipe, items: list[Any], key: str | None) -> Any:
        """Folds the items; the first item is the initial accumulator. None without items."""
        if not items:
            return None
        carried = [items[0]]
        loop = frame.ctx.each(items[1:], name="reduce", key=key, source=self._source(node))
        accumulator, variable = node.names
        for _ in self._iterations(
            frame, loop, lambda one: {accumulator: carried[0], variable: one}
        ):
            carried[0] = self._body(frame, node.body)
        return carried[0]

    # --- arms -------------------------------------------------------------------------------------

    def _parallel(self, frame: Frame, node: tree.Parallel) -> Any:
        keys = tree.branch_keys(node.branches)
        sums = {key for key, one in zip(keys, node.branches, strict=True) if _is_sum(frame, one)}
        arms: dict[str, Any] = {}
        for key, branch in zip(keys, node.branches, strict=True):
            statement = branch.statement
            # `x = x + e`: the arm returns what it adds, so that the sums of several arms add up.
            if key in sums:
                added = cast("tree.Expression", statement)
                statement = tree.Assign(branch.line, branch.column, branch.name or "", added)
            arms[key] = (branch.name, (statement,), {})
        join: str | int = {"all": "all", "first": "first"}.get(node.join, node.count or 1)
        left = self._joined(frame, node, arms, join, node.on_fail)
        value: dict[str, Any] = {}
        for key, branch in zip(keys, node.branches, strict=True):
            doc = left.get(key)
            name = branch.name or key
            value[name] = value.get(name) if doc is None else doc["value"]
            self._apply(frame, doc, node)
            if key in sums:
                continue
            if branch.name is not None:
                self._bind_branch(frame, branch.name, doc, branch)
            else:
                for name in _bound_in((branch.statement,)):
                    if doc is None and frame.scope.cell(name)[0] is None:
                        self._declare(frame, "let", name, None, branch)
        self._show_branches(frame, len(arms), value)
        return value

    def _bind_branch(
        self, frame: Frame, name: str, left: dict[str, Any] | None, node: tree.Node
    ) -> None:
        """Binds the variable of a `name =` branch, or assigns it if it exists.

        A branch that failed or lost the race binds null, but it does not assign an existing one.
        """
        cell, _ = frame.scope.cell(name)
        if cell is None:
            self._declare(frame, "let", name, None if left is None else left["value"], node)
        elif left is not None:
            self._set(frame, name, left["value"], None, node)

    def _side_by_side(
        self,
        frame: Frame,
        node: tree.For | tree.Pipe,
        body: tree.Body,
        names: list[dict[str, Any]],
        on_fail: tree.OnFail,
    ) -> list[Any]:
        """Runs a body for all items in parallel, and returns the values in the items' order."""
        if not names:
            return []
        arms: dict[str, Any] = {str(number): (None, body, one) for number, one in enumerate(names)}
        left = self._joined(frame, node, arms, "all", on_fail)
        found: list[Any] = []
        for key in arms:
            doc = left.get(key)
            found.append(None if doc is None else doc["value"])
            self._apply(frame, doc, node, bind=False)
        return found

    def _joined(
        self, frame: Frame, node: tree.Node, arms: dict[str, Any], join: Any, on_fail: str
    ) -> dict[str, Any]:
        """Runs arms in parallel; returns what each arm that counts for the join returned."""
        branches = {key: frame.ctx.branch(self._arm, frame, *arm) for key, arm in arms.items()}
        settles = on_fail != "fail-fast"
        if settles:
            join = "settle" if join == "all" else Enough(1 if join == "first" else join)
        key = frame.naming.key(node, "parallel")
        try:
            found = frame.ctx.parallel(branches, join=join, key=key, source=self._source(node))
        finally:
            frame.handed = []
        if not settles:
            return found
        failed = {key: one.error for key, one in found.items() if one.error is not None}
        if failed and on_fail == "continue":
            listed = "; ".join(f"{key}: {error.text}" for key, error in failed.items())
            raise values.failure("ParallelError", f"{len(failed)} failed: {listed}", node.line)
        return {key: one.value for key, one in found.items() if one.error is None}

    def _arm(
        self,
        ctx: Any,
        outer: Frame,
        name: str | None,
        body: tree.Body,
        names: dict[str, Any],
    ) -> dict[str, Any]:
        """Runs one arm in its own thread; returns its value with what it bound and assigned."""
        arm = Arm()
        scope = Scope(outer.scope, arm)
        frame = Frame(ctx, scope, Memories(outer.agents))
        frame.chain, frame.caught = outer.chain, outer.caught
        frame.is_in_block = outer.is_in_block
        frame.handed, frame.short = list(outer.handed), dict(outer.short)
        for key, value in names.items():
            scope.cells[key] = Cell("loop", value)
        value = self._body(frame, body)
        bound = {
            key: [cell.kind, cell.value]
            for key, cell in scope.cells.items()
            if cell.kind != "loop" and key != name
        }
        left: dict[str, Any] = {
            "value": value,
            "bound": bound,
            "changes": to_builtins(arm.changes),
            "newest": frame.agents.newest,
            "memory": frame.agents.memory,
            "results": frame.results,
        }
        return {key: one for key, one in left.items() if one or key == "value"}

    def _apply(
        self, frame: Frame, left: dict[str, Any] | None, node: tree.Node, *, bind: bool = True
    ) -> None:
        """Applies an arm's bindings and assignments to the surrounding scope.

        Arms are applied in their written order, whichever ended first, so a replay agrees.
        """
        if left is None:
            return
        for name, (kind, value) in left.get("bound", {}).items() if bind else ():
            self._declare(frame, kind, name, value, node)
        for name, added, value in left.get("changes", ()):
            newest = value
            if added is not None:
                newest = frame.scope.get(name)[1]
                for part in added:
                    newest = values.added(newest, part)
            self._set(frame, name, newest, added, node)
        frame.agents.newest.update(left.get("newest", {}))
        frame.agents.memory.update(left.get("memory", {}))
        frame.results.update(left.get("results", {}))

    def _source(self, node: tree.Node) -> str:
        found = self._sources.get(node.line)
        if found is None:
            found = self._sources[node.line] = f"{self._program.file}:{node.line}"
        return found


def _global(frame: Frame) -> Any:
    return engine_of(frame.ctx).scopes.scope("global")


def _close(generator: Iterator[Any]) -> None:
    """Ends a loop that was left, now instead of when its generator is garbage-collected."""
    cast("Generator[Any]", generator).close()


def _prepared(body: tree.Body) -> tuple[Prepared, ...]:
    """Returns how each statement of a body is run, and how its operations are named.

    Definitions are left out: they took effect before the program began, and have no value.
    """
    found: list[Prepared] = []
    for statement, key in zip(body, tree.statement_keys(body), strict=True):
        if not isinstance(statement, _DEFINITIONS):
            run = _STATEMENTS.get(type(statement), Interpreter._value)
            base = None if tree.bound_name(statement) is None else key.replace("#", ":")
            found.append((run, statement, base, tree.value_of(statement)))
    return tuple(found)


def _is_sum(frame: Frame, branch: tree.Branch) -> bool:
    """Returns whether an arm is `x = x + e` where x is bound."""
    name, value = branch.name, branch.statement
    if name is None or not isinstance(value, tree.Binary) or frame.scope.cell(name)[0] is None:
        return False
    return _added(name, value) is not None


def _addends(node: tree.Assign) -> list[tree.Expression] | None:
    """Returns what `x = x + a + b` adds to x; None for any other assignment."""
    return _added(node.name, node.value)


def _added(name: str, value: tree.Expression) -> list[tree.Expression] | None:
    found: list[tree.Expression] = []
    while isinstance(value, tree.Binary) and value.operator == "+":
        found.append(value.right)
        value = value.left
    if not found or not isinstance(value, tree.Name) or value.name != name:
        return None
    return found[::-1]


def _called(variable: str | None) -> Callable[[Any], dict[str, Any]] | None:
    """Returns the function that binds an iteration's number; None if the loop names none."""
    return None if variable is None else lambda number: {variable: number}


def _item_names(node: tree.For, number: int, item: Any) -> dict[str, Any]:
    return {node.variable: item, **({node.index: number} if node.index else {})}


def _context_parts(node: tree.Expression) -> list[tuple[str, tree.Expression]]:
    """Returns the names and expressions of `context:`, in the order written."""
    if isinstance(node, tree.Array):
        return [(_named(one) or str(number), one) for number, one in enumerate(node.items, 1)]
    if isinstance(node, tree.Object):
        return [(one.key, one.value) for one in node.entries]
    return [(_named(node) or "context", node)]


def _named(node: tree.Expression) -> str | None:
    """Returns the name that a value has in a context; None if it has none."""
    if isinstance(node, tree.Name):
        return node.name
    return _shown(node) if isinstance(node, tree.Member | tree.Index) else None


def _shown(node: tree.Expression) -> str:
    """Returns a reference as it is written."""
    if isinstance(node, tree.Member):
        return f"{_shown(node.target)}.{node.name}"
    if isinstance(node, tree.Index):
        return f"{_shown(node.target)}[{_shown(node.index)}]"
    if isinstance(node, tree.Constant):
        return values.json_of(node.value)
    return node.name if isinstance(node, tree.Name) else "…"


def _permitted(permissions: tuple[tree.Permission, ...]) -> dict[str, Any]:
    return {one.name: one.rule or list(one.patterns) for one in permissions}


def _bound_in(body: tree.Body) -> Iterator[str]:
    """Yields the names that statements bind, those inside `if`, `try` and `do` included."""
    for statement in body:
        match statement:
            case tree.Bind() | tree.Input():
                yield statement.name
            case tree.Output() | tree.Session():
                if statement.name is not None:
                    yield statement.name
            case tree.Unpack():
                yield from statement.names
            case _:
                pass
        value = tree.value_of(statement)
        match value:
            case tree.Parallel():
                for branch in value.branches:
                    if branch.name is not None:
                        yield branch.name
                    yield from _bound_in((branch.statement,))
            case tree.If() | tree.Try() | tree.Do():
                for _, inner in tree.bodies(value):
                    yield from _bound_in(inner)
            case _:
                pass


_DEFINITIONS = (tree.Use, tree.Import, tree.Agent, tree.Block)
_STATEMENTS: dict[type, Callable[[Interpreter, Frame, Any], Any]] = {
    tree.Input: Interpreter._input,
    tree.Output: Interpreter._output,
    tree.Bind: Interpreter._bind,
    tree.Unpack: Interpreter._unpack,
    tree.Assign: Interpreter._assign,
    tree.Throw: Interpreter._throw,
    tree.Assert: Interpreter._assert,
}
_EXPRESSIONS: dict[type, Callable[[Interpreter, Frame, Any], Any]] = {
    tree.Constant: Interpreter._constant,
    tree.Name: Interpreter._name,
    tree.Member: Interpreter._member,
    tree.Index: Interpreter._index,
    tree.Text: Interpreter._text,
    tree.Array: Interpreter._array,
    tree.Object: Interpreter._object,
    tree.Not: Interpreter._not,
    tree.Binary: Interpreter._binary,
    tree.Condition: Interpreter._condition,
    tree.Choice: Interpreter._choice,
    tree.Session: Interpreter._session,
    tree.Resume: Interpreter._resume,
    tree.Do: Interpreter._do,
    tree.BlockCall: Interpreter._block_call,
    tree.ProgramCall: Interpreter._program_call,
    tree.If: Interpreter._if,
    tree.Try: Interpreter._try,
    tree.Arrow: Interpreter._arrow,
    tree.For: Interpreter._for,
    tree.Repeat: Interpreter._repeat,
    tree.Loop: Interpreter._loop,
    tree.Pipe: Interpreter._pipe,
    tree.Parallel: Interpreter._parallel,
}
