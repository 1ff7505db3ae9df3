"""Tokens into a syntax tree, by recursive descent.

A statement that cannot be read is reported and skipped together with its body. Parsing continues
with the next statement, so that one pass over a program reports all of its errors.

Indentation is compared here, not in the tokenizer. A body is indented deeper than the line of its
head. A line that begins with `|` or `->` continues the statement if it is indented like the
statement or deeper.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.prose import syntax
from holdfast.prose.problems import Problem, make_problem
from holdfast.prose.syntax import Body, Expression, Program, Statement
from holdfast.prose.texts import read_long_text, read_text
from holdfast.prose.tokens import (
    BROKEN,
    CONDITION,
    END,
    LINE,
    LONG_TEXT,
    NAME,
    NUMBER,
    RESERVED,
    TEXT,
    WIDE_CONDITION,
    read_tokens,
)

DEPTH_MAX = 64
"""How deep blocks and brackets may nest.

The limit keeps the recursion of the parser, the checker and the interpreter within Python's stack.
"""
CHAIN_MAX = 100
"""How many operators, members or pipes may follow each other in one expression."""

PROMPT_MAX = 10_000

JOINS = ("all", "first", "any")
ON_FAIL = ("fail-fast", "continue", "ignore")
PIPES = ("map", "filter", "pmap", "reduce")
MODELS = ("sonnet", "opus", "haiku")
BACKOFFS = ("none", "linear", "exponential")
RULES = ("allow", "deny", "prompt")
SESSION_PROPERTIES = ("prompt", "model", "context", "retry", "backoff")
AGENT_PROPERTIES = ("prompt", "model", "retry", "backoff", "persist", "skills", "permissions")

_POWERS = {
    "or": 1,
    "and": 2,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "==": 4,
    "!=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
}
"""How tightly operators bind; `not` has 3."""
_NOT, _COMPARISON = 3, 4
_ARROW_OPERANDS = (
    syntax.Session,
    syntax.Resume,
    syntax.Do,
    syntax.BlockCall,
    syntax.ProgramCall,
    syntax.Parallel,
    syntax.If,
    syntax.Try,
    syntax.Choice,
    syntax.Arrow,
)
_NO_OPERANDS = (
    *(kind for kind in _ARROW_OPERANDS if kind is not syntax.ProgramCall),
    syntax.For,
    syntax.Repeat,
    syntax.Loop,
    syntax.Pipe,
)
_COLLECTIONS = (syntax.Name, syntax.Member, syntax.Index, syntax.Array)
_LITERALS = (syntax.Text, syntax.Constant)
_CLAUSES = frozenset(("elif", "else", "catch", "finally", "option"))
_TEXTS = frozenset((TEXT, LONG_TEXT))
_CONDITIONS = frozenset((CONDITION, WIDE_CONDITION))
_CONTINUES = frozenset(("|", "->"))
_NEVER = 1 << 30  # an indentation that no line has
_AFTER_A_NAME = frozenset((LINE, "=", ".", "|", "->", ":", ")", ",", *_POWERS))
"""What may follow `input`, `output` or `assert` where it is the name of a variable."""
_BINDS_NEXT = frozenset(("let", "const", "agent", "block", "session", "as", "for", ",", "{", "use"))

T = TypeVar("T")


class Parsed(Struct, frozen=True, gc=False):
    """A program as far as it could be read.

    `lost` holds the names that unreadable statements may have bound. The use of such a name is not
    reported as unbound, because the cause is reported already.
    """

    program: Program
    problems: list[Problem]
    lost: frozenset[str]


def read_program(text: str, file: str) -> Parsed:
    """Returns the syntax tree of a program and all of its syntax errors."""
    parser = _Parser(text)
    try:
        body = parser.program()
    except RecursionError:
        # The limits above keep a program far from this, unless the caller's stack is nearly full.
        parser.problems.append(make_problem(1, 1, "too-deep", "the program is nested too deeply"))
        body = ()
    return Parsed(Program(file, body), parser.problems, frozenset(parser.lost))


class _Stop(Exception):
    """A statement that cannot be read any further. Its problem is reported already."""


class _Parser:
    def __init__(self, text: str) -> None:
        tokens = read_tokens(text)
        self._kinds = tokens.kinds
        self._values = tokens.values
        self._lines = tokens.lines
        self._columns = tokens.columns
        self.problems = tokens.problems
        self.lost: set[str] = set()
        self._at = 0
        self._indent = 0  # of the current line
        self._statement_indent = 0  # of the line that the statement begins on
        self._depth = 0
        # Above 0 in brackets and in heads. There a colon does not begin a session's properties.
        self._closed: int = 0
        self._has_calls: bool = True  # False in the heads of for and loop

    # --- places and problems ----------------------------------------------------------------------

    def _here(self) -> tuple[int, int]:
        return self._lines[self._at], self._columns[self._at]

    def _report(self, place: tuple[int, int], code: str, message: str) -> None:
        self.problems.append(make_problem(*place, code, message))

    def _stop(self, expected: str, code: str = "syntax") -> _Stop:
        """Reports what was expected at this token, and returns the exception to raise."""
        kind = self._kinds[self._at]
        if kind != BROKEN:  # which is reported already
            self._report(self._here(), code, f"expected {expected}, found {self._found()}")
        return _Stop()

    def _found(self) -> str:
        kind, value = self._kinds[self._at], self._values[self._at]
        if kind in (LINE, END):
            is_last = self._kinds[self._at + 1 : self._at + 2] in ([END], [])
            return "the end of the program" if is_last else "the end of the line"
        if kind in _TEXTS:
            return "a text"
        if kind in _CONDITIONS:
            return "a condition"
        return f'"{value}"'

    def _expect(self, kind: str) -> None:
        if self._kinds[self._at] != kind:
            raise self._stop(f'"{kind}"')
        self._at += 1

    def _take(self, kind: str) -> bool:
        if self._kinds[self._at] == kind:
            self._at += 1
            return True
        return False

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._depth -= 1
            said = f"blocks and brackets nest at most {DEPTH_MAX} deep"
            self._report(self._here(), "too-deep", said)
            raise _Stop

    # --- names and texts --------------------------------------------------------------------------

    def _name(self, what: str) -> str:
        kind = self._kinds[self._at]
        if kind in RESERVED:
            said = f'"{kind}" is a reserved word and cannot be {what}'
            self._report(self._here(), "reserved-name", said)
        elif kind != NAME:
            raise self._stop(what)
        self._at += 1
        return self._values[self._at - 1]

    def _word(self, what: str) -> str:
        """Reads a name where reserved words do no harm: a member, a key, a property."""
        kind = self._kinds[self._at]
        if kind != NAME and kind not in RESERVED:
            raise self._stop(what)
        self._at += 1
        return self._values[self._at - 1]

    def _text(self, what: str = "a text") -> syntax.Text:
        at, kind = self._at, self._kinds[self._at]
        if kind not in _TEXTS:
            raise self._stop(what)
        self._at += 1
        line, column, written = self._lines[at], self._columns[at], self._values[at]
        if kind == TEXT:
            parts, doubts = read_text(written, line, column + 1, self.problems, is_strict=True)
            return syntax.Text(line, column, parts, False, doubts)
        parts, doubts = read_long_text(written, line, column + 3, self.problems)
        return syntax.Text(line, column, parts, True, doubts)

    def _plain_text(self, what: str) -> str:
        """Reads a text that is a name or a path, in which braces have no meaning."""
        return "".join(
            part if isinstance(part, str) else part.source for part in self._text(what).parts
        )

    def _condition(self) -> syntax.Condition:
        at, kind = self._at, self._kinds[self._at]
        if kind not in _CONDITIONS:
            raise self._stop("a condition, such as **the draft is good**")
        self._at += 1
        line, column, written = self._lines[at], self._columns[at], self._values[at]
        if kind == CONDITION:
            parts, doubts = read_text(written, line, column + 2, self.problems, is_strict=False)
        else:
            parts, doubts = read_long_text(written, line, column + 3, self.problems)
        if not written.strip():
            self._report((line, column), "empty-condition", "a condition has no text")
        elif len(written.strip()) < 3:
            said = f"a condition of {len(written.strip())} characters says little"
            self._report((line, column), "short-condition", said)
        return syntax.Condition(line, column, parts, doubts)

    # --- lines and bodies -------------------------------------------------------------------------

    def program(self) -> Body:
        """Reads the whole program."""
        return self._block(-1, 0, self._statement)

    def _block(self, base: int, expected: int, read: Callable[[], T | None]) -> tuple[T, ...]:
        """Reads the lines that are deeper than `base`, one statement after another."""
        found: list[T] = []
        kinds, values = self._kinds, self._values
        while kinds[self._at] == LINE and values[self._at] > base:
            indent = values[self._at]
            self._at += 1
            if indent != expected:
                said = f"this line is indented by {indent} spaces, its block by {expected}"
                self._report(self._here(), "indentation", said)
            self._indent = indent
            one = self._guarded(read)
            if one is not None:
                found.append(one)
        return tuple(found)

    def _guarded(self, read: Callable[[], T | None]) -> T | None:
        """Reads one statement to the end of its line, or reports it and skips it."""
        begin, indent, depth = self._at, self._indent, self._depth
        kept = self._statement_indent, self._closed, self._has_calls
        self._statement_indent, self._closed, self._has_calls = indent, 0, True
        try:
            self._deepen()
            one = read()
            if self._kinds[self._at] != LINE:
                raise self._stop(f"the end of the line{self._meant(begin)}")
            return one
        except _Stop:
            self._pass_over(begin, indent)
            return None
        finally:
            self._depth = depth
            self._statement_indent, self._closed, self._has_calls = kept

    def _meant(self, begin: int) -> str:
        """Returns a hint at the word that a misspelled first word may have meant, or ""."""
        if self._kinds[begin] != NAME or self._at != begin + 1:
            return ""
        word: str = self._values[begin]
        near = get_close_matches(word, _FIRST_WORDS, 1, cutoff=0.75)
        return f' after "{word}" (is "{near[0]}" meant?)' if near else ""

    def _pass_over(self, begin: int, indent: int) -> None:
        """Skips the rest of this statement with its clauses, and notes the names that it binds."""
        kinds, values = self._kinds, self._values
        while True:
            while kinds[self._at] != LINE or values[self._at] > indent:
                self._at += 1
            if values[self._at] < indent or kinds[self._at + 1] not in _CLAUSES:
                break
            self._at += 1
        for at in range(begin, self._at):
            if kinds[at] == NAME:
                after = kinds[at - 1] in _BINDS_NEXT or values[at - 1] in ("input", "output")
                if after or kinds[at + 1] == "=":
                    self.lost.add(values[at])

    def _body(self, base: int, head: tuple[int, int], what: str) -> Body:
        return self._lines_after(base, head, what, self._statement)

    def _lines_after(
        self, base: int, head: tuple[int, int], what: str, read: Callable[[], T | None]
    ) -> tuple[T, ...]:
        """Reads a colon and the deeper lines after it."""
        self._expect(":")
        if self._kinds[self._at] != LINE:
            raise self._stop(f"the body of {what} on the lines after it, indented")
        indent = self._values[self._at]
        if indent <= base:
            code = "empty-do" if what == "do" else "empty-body"
            self._report(head, code, f"{what} has an empty body")
            return ()
        return self._block(base, indent, read)

    def _clause(self, base: int, kinds: frozenset[str]) -> str | None:
        """Returns the word of a clause on the next line, such as else, and moves there."""
        at = self._at
        if self._kinds[at] == LINE and self._values[at] == base and self._kinds[at + 1] in kinds:
            self._at += 1
            self._indent = base
            return self._kinds[at + 1]
        return None

    # --- statements -------------------------------------------------------------------------------

    def _statement(self) -> Statement | None:
        kind = self._kinds[self._at]
        read = _STATEMENTS.get(kind)
        if read is not None:
            return read(self)
        if kind == NAME:
            return self._named_statement()
        if kind in _CLAUSES:
            said = f'"{kind}" has no block before it that it could belong to'
            self._report(self._here(), "misplaced-clause", said)
            raise _Stop
        if kind in _CONTINUES:
            raise self._stop("a statement: there is none that this line could continue")
        return self._expression()

    def _named_statement(self) -> Statement | None:
        """Reads an assignment, or a statement whose first word is not reserved."""
        line, column = self._here()
        word, after = self._values[self._at], self._kinds[self._at + 1]
        if after == "=":
            self._at += 2
            return syntax.Assign(line, column, word, self._expression())
        if word in ("break", "continue") and after == LINE:
            said = f'there is no "{word}": use a condition of the loop, or output in a block'
            self._report((line, column), "no-break", said)
            raise _Stop
        if word == "input" and after in (NAME, *RESERVED, ":"):
            return self._input()
        if word in ("output", "assert") and after not in _AFTER_A_NAME:
            return self._output() if word == "output" else self._assert()
        return self._expression()

    def _use(self) -> syntax.Use:
        line, column = self._here()
        self._at += 1
        path = self._plain_text("the path of a program")
        if self._take("as"):
            return syntax.Use(line, column, path, self._name("the name of a program"))
        name = PurePosixPath(path).name.removesuffix(".prose")
        if not syntax.is_name(name):
            said = f'"{path}" gives no name for the program: add as NAME'
            self._report((line, column), "use-name", said)
        elif name in RESERVED:
            said = f'"{name}" is a reserved word: add as NAME'
            self._report((line, column), "reserved-name", said)
        return syntax.Use(line, column, path, name)

    def _import(self) -> syntax.Import:
        line, column = self._here()
        self._at += 1
        skill = self._plain_text("the name of a skill")
        if self._values[self._at] != "from" or self._kinds[self._at] != NAME:
            raise self._stop('"from"')
        self._at += 1
        return syntax.Import(line, column, skill, self._plain_text("where the skill comes from"))

    def _input(self) -> syntax.Input:
        line, column = self._here()
        self._at += 1
        name = self._name("the name of an input")
        self._expect(":")
        if self._kinds[self._at] in _CONDITIONS:
            return syntax.Input(line, column, name, self._condition())
        return syntax.Input(line, column, name, self._text("a text or a condition"))

    def _output(self) -> syntax.Output:
        line, column = self._here()
        self._at += 1
        kind, name = self._kinds[self._at], None
        if self._kinds[self._at + 1] == "=" and (kind == NAME or kind in RESERVED):
            name = self._name("the name of an output")
            self._at += 1
        return syntax.Output(line, column, name, self._expression())

    def _assert(self) -> syntax.Assert:
        line, column = self._here()
        base = self._indent
        self._at += 1
        condition = self._head()
        self._expect(":")
        if self._kinds[self._at] == LINE and self._values[self._at] > base:
            self._at += 1
        return syntax.Assert(line, column, condition, self._text("the message of the assert"))

    def _agent(self) -> syntax.Agent:
        line, column = self._here()
        self._at += 1
        name = self._name("the name of an agent")
        self._expect(":")
        return syntax.Agent(line, column, name, self._settings(AGENT_PROPERTIES, {}))

    def _define_block(self) -> syntax.Block:
        head = self._here()
        base = self._indent
        self._at += 1
        name = self._name("the name of a block")
        parameters: tuple[str, ...] = ()
        if self._kinds[self._at] == "(" and not self._is_modifier():
            self._at += 1
            parameters = self._names(")", "a parameter")
        given = self._modifiers("block", ("max_depth",))
        depth = self._whole(given, "max_depth")
        body = self._body(base, head, "block")
        return syntax.Block(*head, name, parameters, 100 if depth is None else depth, body)

    def _names(self, closing: str, what: str) -> tuple[str, ...]:
        """Reads names up to a closing bracket."""
        names: list[str] = []
        seen: set[str] = set()
        while self._kinds[self._at] != closing:
            place = self._here()
            name = self._name(what)
            if name in seen:
                said = f'"{name}" is given twice'
                code = "duplicate-parameter" if what == "a parameter" else "duplicate-variable"
                self._report(place, code, said)
            names.append(name)
            seen.add(name)
            if not self._take(","):
                break
        self._expect(closing)
        return tuple(names)

    def _bind(self) -> syntax.Bind | syntax.Unpack:
        line, column = self._here()
        is_const = self._kinds[self._at] == "const"
        self._at += 1
        if not is_const and self._take("{"):
            names = self._names("}", "a variable")
            if not names:
                self._at -= 1
                raise self._stop("at least one name")
            self._expect("=")
            return syntax.Unpack(line, column, names, self._expression())
        name = self._name("a variable")
        self._expect("=")
        return syntax.Bind(line, column, name, self._expression(), is_const)

    def _throw(self) -> syntax.Throw:
        line, column = self._here()
        self._at += 1
        message = None if self._kinds[self._at] == LINE else self._text("a text")
        return syntax.Throw(line, column, message)

    # --- modifiers --------------------------------------------------------------------------------

    def _is_modifier(self) -> bool:
        return self._kinds[self._at + 2 : self._at + 3] == [":"]

    def _modifiers(self, block: str, known: tuple[str, ...]) -> dict[str, _Value]:
        """Reads `(name: value, …)`. A text without a name has the name ""."""
        given: dict[str, _Value] = {}
        if not self._take("("):
            return given
        while self._kinds[self._at] != ")":
            place = self._here()
            name = ""
            if self._kinds[self._at] not in _TEXTS or "" not in known:
                name = self._word("a modifier")
                self._expect(":")
            value = self._value()
            if name not in known:
                expected = ", ".join(one or "a join" for one in known)
                said = f'{block} has no modifier "{name}": expected {expected}'
                self._report(place, "unknown-modifier", said)
            elif name in given:
                said = f'"{name or value.value}" is a second one of its kind'
                self._report(place, "duplicate-modifier", said)
            else:
                given[name] = value
            if not self._take(","):
                break
        self._expect(")")
        return given

    def _value(self) -> _Value:
        """Reads one word, number or text."""
        line, column = self._here()
        is_negative = self._take("-")
        kind = self._kinds[self._at]
        if kind == NUMBER:
            value = self._values[self._at]
            self._at += 1
            return _Value(line, column, NUMBER, -value if is_negative else value)
        if not is_negative and kind in _TEXTS:
            return _Value(line, column, TEXT, self._plain_text("a text"))
        if not is_negative and (kind == NAME or kind in RESERVED):
            self._at += 1
            return _Value(line, column, NAME, self._values[self._at - 1])
        raise self._stop("a number, a word or a text")

    def _whole(self, given: dict[str, _Value], name: str) -> int | None:
        value = given.get(name)
        if value is None:
            return None
        if value.kind != NUMBER or not isinstance(value.value, int) or value.value < 1:
            said = f"{name} is a whole number from 1 up, found {value.value}"
            self._report((value.line, value.column), "whole-number", said)
            return None
        return value.value

    def _one_of(
        self, given: dict[str, _Value], name: str, known: tuple[str, ...], code: str
    ) -> str | None:
        value = given.get(name)
        if value is None:
            return None
        if value.value not in known:
            expected = ", ".join(f'"{one}"' for one in known)
            said = f'unknown {name or "join"} "{value.value}": expected {expected}'
            self._report((value.line, value.column), code, said)
            return None
        return str(value.value)

    def _on_fail(self, given: dict[str, _Value]) -> Any:
        return self._one_of(given, "on-fail", ON_FAIL, "unknown-on-fail") or "fail-fast"

    # --- sessions ---------------------------------------------------------------------------------

    def _session(self) -> syntax.Session:
        line, column = self._here()
        self._at += 1
        kind = self._kinds[self._at]
        if kind in _TEXTS:
            text = self._text()
            given = self._modifiers("session", ("retry", "backoff"))
            if not self._closed:
                self._take(":")
            settings = self._settings(SESSION_PROPERTIES, given)
            if settings.prompt is None:
                self._check_prompt((text.line, text.column), text)
            return syntax.Session(line, column, text, None, None, settings)
        name = None
        if kind == NAME or kind in RESERVED:
            name = self._name("the name of a session")
        elif kind != ":":
            raise self._stop('a text, ":" or a name')
        self._expect(":")
        agent = self._agent_name()
        settings = self._settings(SESSION_PROPERTIES, {})
        if agent is None and settings.prompt is None:
            said = "a session has neither a prompt nor an agent"
            self._report((line, column), "no-prompt", said)
        return syntax.Session(line, column, None, agent, name, settings)

    def _agent_name(self) -> str | None:
        if self._kinds[self._at] == NAME and self._kinds[self._at + 1] != ":":
            self._at += 1
            return self._values[self._at - 1]
        return None

    def _resume(self) -> syntax.Resume:
        line, column = self._here()
        self._at += 1
        self._expect(":")
        agent = self._name("the name of an agent")
        return syntax.Resume(line, column, agent, self._settings(SESSION_PROPERTIES, {}))

    def _settings(self, known: tuple[str, ...], given: dict[str, _Value]) -> syntax.Settings:
        """Reads the properties on this line and on the deeper lines after it."""
        line, column = self._here()
        found: dict[str, Any] = {}
        if "retry" in given:
            found["retry"] = self._retry(given)
        if "backoff" in given:
            found["backoff"] = self._backoff(given["backoff"])
        if self._closed:
            return syntax.Settings(line, column, **found)
        base, kept = self._indent, self._statement_indent
        self._statement_indent = _NEVER  # a line with | continues the statement, not a property
        kinds, values = self._kinds, self._values
        while kinds[self._at] in _TEXTS or (kinds[self._at] != LINE and kinds[self._at + 1] == ":"):
            self._property(known, found)
        expected = values[self._at]
        while kinds[self._at] == LINE and values[self._at] > base:
            if kinds[self._at + 1] in _CONTINUES:
                break
            self._indent = indent = values[self._at]
            self._at += 1
            if indent != expected:
                said = "this property is indented otherwise than its siblings"
                self._report(self._here(), "deeper-property", said)
            self._property(known, found)
            if kinds[self._at] != LINE:
                raise self._stop("the end of the line")
        self._indent, self._statement_indent = base, kept
        return syntax.Settings(line, column, **found)

    def _property(self, known: tuple[str, ...], found: dict[str, Any]) -> None:
        """Reads one property."""
        place = self._here()
        if self._kinds[self._at] in _TEXTS:
            name = "prompt"
        else:
            name = self._word("a property")
            self._expect(":")
        if name not in known:
            self._unknown_property(place, name, known)
            return
        if name in found:
            self._report(place, "duplicate-property", f'the property "{name}" is given twice')
        found[name] = _PROPERTIES[name](self)

    def _unknown_property(self, place: tuple[int, int], name: str, known: tuple[str, ...]) -> None:
        is_agent = "persist" in known
        if is_agent and name == "context":
            self._report(place, "agent-context", "an agent has no context: give it to the session")
        else:
            owner = "an agent" if is_agent else "a session"
            said = f'{owner} has no property "{name}": expected {", ".join(known)}'
            self._report(place, "unknown-property", said)
        base = self._indent
        while self._kinds[self._at] != LINE or self._values[self._at] > base:
            self._at += 1

    def _prompt_property(self) -> syntax.Text:
        place = self._here()
        text = self._text("the text of the prompt")
        self._check_prompt(place, text)
        return text

    def _check_prompt(self, place: tuple[int, int], text: syntax.Text) -> None:
        size = sum(len(part if isinstance(part, str) else part.source) for part in text.parts)
        if size > PROMPT_MAX:
            said = f"a prompt of {size:,} characters: more than {PROMPT_MAX:,}"
            self._report(place, "long-prompt", said)
        elif all(isinstance(part, str) and not part.strip() for part in text.parts):
            self._report(place, "empty-prompt", "a prompt has no text")

    def _model_property(self) -> str:
        value = self._value()
        self._one_of({"model": value}, "model", MODELS, "unknown-model")
        return str(value.value)

    def _context_property(self) -> Expression:
        line, column = self._here()
        base = self._indent
        if self._kinds[self._at] != LINE:
            return self._expression()
        if self._values[self._at] <= base:
            raise self._stop("an expression, or names and expressions on deeper lines")
        entries = self._block(base, self._values[self._at], self._entry)
        self._indent = base
        return syntax.Object(line, column, entries)

    def _entry(self) -> syntax.Entry:
        line, column = self._here()
        name = self._word("a name")
        self._expect(":")
        return syntax.Entry(line, column, name, self._expression())

    def _retry_property(self) -> int | None:
        return self._retry({"retry": self._value()})

    def _retry(self, given: dict[str, _Value]) -> int | None:
        count = self._whole(given, "retry")
        if count is not None and count > 10:
            place = given["retry"].line, given["retry"].column
            self._report(place, "high-retry", f"retry: {count} is more than 10")
        return count

    def _backoff_property(self) -> str | int | None:
        return self._backoff(self._value())

    def _backoff(self, value: _Value) -> str | int | None:
        found = value.value
        if found in BACKOFFS or (isinstance(found, int) and found >= 0):
            return found
        said = f"unknown backoff {found}: expected {', '.join(BACKOFFS)} or milliseconds"
        self._report((value.line, value.column), "unknown-backoff", said)
        return None

    def _persist_property(self) -> syntax.Persist | None:
        value = self._value()
        if value.kind == TEXT and value.value:
            return syntax.Persist(value.line, value.column, "named", str(value.value))
        places = {"true": "run", "project": "project", "user": "user"}
        if value.kind == NAME and value.value == "false":
            return None
        place: Any = places.get(str(value.value)) if value.kind == NAME else None
        if place is None:
            said = f"persist is true, project, user or a text, found {value.value}"
            self._report((value.line, value.column), "property-value", said)
            return None
        return syntax.Persist(value.line, value.column, place)

    def _skills_property(self) -> tuple[syntax.Text, ...]:
        self._expect("[")
        return self._items("]", self._text)

    def _permissions_property(self) -> tuple[syntax.Permission, ...]:
        base = self._indent
        if self._kinds[self._at] != LINE or self._values[self._at] <= base:
            raise self._stop("permissions on the lines after it, indented", "property-value")
        found = self._block(base, self._values[self._at], self._permission)
        self._indent = base
        return found

    def _permission(self) -> syntax.Permission | None:
        line, column = self._here()
        name = self._word("a permission")
        self._expect(":")
        if self._take("["):
            patterns = self._items("]", lambda: str(self._value().value))
            return syntax.Permission(line, column, name, None, patterns)
        value = self._value()
        rule: Any = value.value
        if value.kind != NAME or rule not in RULES:
            said = f"a permission is {', '.join(RULES)} or a list, found {rule}"
            self._report((value.line, value.column), "property-value", said)
            return None
        return syntax.Permission(line, column, name, rule)

    # --- blocks -----------------------------------------------------------------------------------

    def _do(self) -> syntax.Do | syntax.BlockCall:
        head = self._here()
        base = self._indent
        self._at += 1
        if self._kinds[self._at] == ":":
            return syntax.Do(*head, self._body(base, head, "do"))
        name = self._name("the name of a block")
        arguments: tuple[Expression, ...] = ()
        if self._take("("):
            arguments = self._items(")", self._expression)
        return syntax.BlockCall(*head, name, arguments)

    def _parallel(self) -> syntax.Parallel | syntax.For:
        head = self._here()
        base = self._indent
        self._at += 1
        if self._kinds[self._at] == "for":
            return self._for(head)
        place = self._here()
        given = self._modifiers("parallel", ("", "count", "on-fail"))
        join: Any = self._one_of(given, "", JOINS, "unknown-join") or "all"
        count = self._whole(given, "count")
        branches = self._lines_after(base, head, "parallel", self._branch)
        if "count" in given and join != "any":
            self._report(place, "count-without-any", 'count needs "any"')
        elif count is not None and branches and count > len(branches):
            said = f"count is {count}, the block has {len(branches)} branches"
            self._report(place, "count-above-branches", said)
        elif join == "any" and "count" not in given:
            self._report(place, "any-without-count", '"any" without count takes the first')
        if len(branches) == 1:
            self._report(head, "one-branch", "a parallel block with one branch")
        return syntax.Parallel(*head, branches, join, count, self._on_fail(given))

    def _branch(self) -> syntax.Branch | None:
        line, column = self._here()
        if self._kinds[self._at] == NAME and self._kinds[self._at + 1] == "=":
            name = self._values[self._at]
            self._at += 2
            return syntax.Branch(line, column, name, self._expression())
        statement = self._statement()
        return None if statement is None else syntax.Branch(line, column, None, statement)

    def _for(self, head: tuple[int, int] | None = None) -> syntax.For:
        is_parallel = head is not None
        place = head or self._here()
        base = self._indent
        self._at += 1
        variable = self._name("the variable of the loop")
        index = self._name("the index of the loop") if self._take(",") else None
        if index == variable:
            said = f'"{index}" is both the variable and the index'
            self._report(place, "duplicate-variable", said)
        self._expect("in")
        collection = self._head(has_calls=False)
        if isinstance(collection, _LITERALS):
            self._literal_collection(collection)
        elif not isinstance(collection, _COLLECTIONS):
            said = "the collection of for is a name, a member or an array: bind it to a name first"
            self._report((collection.line, collection.column), "collection", said)
        on_fail = self._on_fail(self._modifiers("for", ("on-fail",)))
        body = self._body(base, place, "for")
        return syntax.For(*place, variable, index, collection, on_fail, is_parallel, body)

    def _literal_collection(self, found: syntax.Node) -> None:
        said = "a literal text or number is no collection"
        self._report((found.line, found.column), "literal-collection", said)

    def _repeat(self) -> syntax.Repeat:
        head = self._here()
        base = self._indent
        self._at += 1
        place = self._here()
        value = self._value()
        count: int | syntax.Name = 1
        if value.kind == NAME and value.value not in RESERVED:
            count = syntax.Name(*place, str(value.value))
        else:
            count = self._whole({"repeat": value}, "repeat") or 1
        variable = self._variable()
        return syntax.Repeat(*head, count, variable, self._body(base, head, "repeat"))

    def _variable(self) -> str | None:
        return self._name("a variable") if self._take("as") else None

    def _loop(self) -> syntax.Loop:
        head = self._here()
        base = self._indent
        self._at += 1
        test: Any = None
        condition = None
        if self._kinds[self._at] in ("until", "while"):
            test = self._kinds[self._at]
            self._at += 1
            condition = self._head(has_calls=False)
        most = self._whole(self._modifiers("loop", ("max",)), "max")
        variable = self._variable()
        body = self._body(base, head, "loop")
        return syntax.Loop(*head, test, condition, most, variable, body)

    def _try(self) -> syntax.Try:
        head = self._here()
        base = self._indent
        self._at += 1
        body = self._body(base, head, "try")
        catch: syntax.Catch | None = None
        final: Body | None = None
        clauses = 0
        while word := self._clause(base, _TRY_CLAUSES):
            place = self._here()
            clauses += 1
            if word == "catch" and final is not None:
                self._report(place, "misplaced-clause", "catch stands before finally")
            elif (catch if word == "catch" else final) is not None:
                self._report(place, "doubled-clause", f"a second {word}")
            self._at += 1
            name = self._variable() if word == "catch" else None
            found = self._body(base, place, word)
            if word == "finally":
                final = final or found
            else:
                catch = catch or syntax.Catch(*place, name, found)
        if not clauses:
            self._report(head, "try-alone", "try needs catch or finally")
        return syntax.Try(*head, body, catch, final)

    def _choice(self) -> syntax.Choice:
        head = self._here()
        base = self._indent
        self._at += 1
        condition = self._condition()
        options = self._lines_after(base, head, "choice", self._option)
        seen: set[tuple[Any, ...]] = set()
        for option in options:
            said = tuple(
                part if isinstance(part, str) else part.source for part in option.label.parts
            )
            if said in seen:
                place = option.line, option.column
                self._report(place, "equal-options", "two options have the same text")
            seen.add(said)
        return syntax.Choice(*head, condition, options)

    def _option(self) -> syntax.Option:
        head = self._here()
        base = self._indent
        self._expect("option")
        label = self._text("the text of the option")
        return syntax.Option(*head, label, self._body(base, head, "option"))

    def _if(self) -> syntax.If:
        head = self._here()
        base = self._indent
        arms = [self._arm(base, head, "if")]
        otherwise: Body | None = None
        while word := self._clause(base, _IF_CLAUSES):
            place = self._here()
            if otherwise is not None:
                code = "doubled-clause" if word == "else" else "misplaced-clause"
                self._report(place, code, f"{word} after else")
            if word == "elif":
                arms.append(self._arm(base, place, "elif"))
            else:
                self._at += 1
                otherwise = self._body(base, place, "else")
        return syntax.If(*head, tuple(arms), otherwise)

    def _arm(self, base: int, head: tuple[int, int], word: str) -> syntax.Arm:
        self._at += 1
        condition = self._head()
        return syntax.Arm(*head, condition, self._body(base, head, word))

    # --- expressions ------------------------------------------------------------------------------

    def _head(self, *, has_calls: bool = True) -> Expression:
        """Reads the expression of a head, which ends at a colon."""
        kept = self._has_calls
        self._closed += 1
        self._has_calls = has_calls
        found = self._binary(0)
        self._closed -= 1
        self._has_calls = kept
        return found

    def _expression(self, has_pipes: bool = True) -> Expression:
        """Reads operands, arrows and pipes, from left to right."""
        left = self._binary(0)
        kinds, values = self._kinds, self._values
        links = 0
        while True:
            at = self._at
            kind = kinds[at]
            if kind == LINE:
                kind = kinds[at + 1]
                if kind not in _CONTINUES or values[at] < self._statement_indent:
                    return left
            if kind not in _CONTINUES or (kind == "|" and not has_pipes):
                return left
            if kinds[at] == LINE:
                self._indent = values[at]
                self._at += 1
            links += 1
            self._check_chain(links)
            left = self._arrow(left) if kind == "->" else self._pipe(left)

    def _check_chain(self, links: int) -> None:
        if links > CHAIN_MAX:
            said = f"at most {CHAIN_MAX} of these follow each other: bind parts of it to names"
            self._report(self._here(), "too-deep", said)
            raise _Stop

    def _arrow(self, left: Expression) -> syntax.Arrow:
        self._at += 1
        if self._kinds[self._at] == LINE and self._values[self._at] >= self._statement_indent:
            self._indent = self._values[self._at]
            self._at += 1
        right = self._binary(0)
        for one, allowed in ((left, (*_ARROW_OPERANDS, syntax.Pipe)), (right, _ARROW_OPERANDS)):
            if not isinstance(one, allowed):
                said = "-> stands between sessions, resumes, calls and blocks"
                self._report((one.line, one.column), "arrow-operand", said)
        before = left.operands if isinstance(left, syntax.Arrow) else (left,)
        return syntax.Arrow(left.line, left.column, (*before, right))

    def _pipe(self, left: Expression) -> syntax.Pipe:
        base = self._indent
        self._at += 1
        place = self._here()
        kind: Any = self._values[self._at]
        if self._kinds[self._at] != NAME or kind not in PIPES:
            raise self._stop(", ".join(PIPES))
        self._at += 1
        if isinstance(left, _LITERALS):
            self._literal_collection(left)
        names: tuple[str, ...] = ()
        if self._take("("):
            names = self._names(")", "a variable")
        if kind == "reduce" and len(names) != 2:
            said = f"reduce has two names, the accumulator and the item; found {len(names)}"
            self._report(place, "reduce-names", said)
        elif kind != "reduce" and names:
            self._report(place, "pipe-names", f'{kind} has no names: the item is "item"')
        body = self._pipe_body(base, place, kind)
        return syntax.Pipe(left.line, left.column, left, kind, names, body)

    def _pipe_body(self, base: int, place: tuple[int, int], kind: str) -> Body:
        if self._kinds[self._at + 1] == LINE or self._kinds[self._at] != ":":
            return self._body(base, place, kind)
        self._at += 1
        return (self._expression(has_pipes=False),)

    def _binary(self, power: int) -> Expression:
        """Reads operands and the operators that bind at least as tightly as `power`."""
        kinds = self._kinds
        left = self._not(power) if kinds[self._at] == "not" else self._operand()
        links = 0
        is_compared = False
        while True:
            operator: Any = kinds[self._at]
            found = _POWERS.get(operator)
            if found is None or found < power:
                return left
            if found == _COMPARISON and is_compared:
                said = "comparisons do not chain: join two of them with and"
                self._report(self._here(), "chained-comparison", said)
            is_compared = found == _COMPARISON
            self._at += 1
            links += 1
            self._check_chain(links)
            right = self._binary(found + 1)
            self._check_operand(left)
            self._check_operand(right)
            left = syntax.Binary(left.line, left.column, operator, left, right)

    def _not(self, power: int) -> Expression:
        line, column = self._here()
        if power > _NOT:
            raise self._stop("an operand: write (not …)")
        self._deepen()
        self._at += 1
        operand = self._binary(_NOT)
        self._check_operand(operand)
        self._depth -= 1
        return syntax.Not(line, column, operand)

    def _check_operand(self, found: Expression) -> None:
        if isinstance(found, _NO_OPERANDS):
            said = "a session or a block is no operand: bind its value to a name first"
            self._report((found.line, found.column), "operand", said)

    def _operand(self) -> Expression:
        read = _OPERANDS.get(self._kinds[self._at])
        if read is None:
            raise self._stop("an expression")
        found = read(self)
        if self._kinds[self._at] in ("[", ".") and isinstance(found, _REACHED):
            return self._reach(found)
        return found

    def _reach(self, target: Expression) -> Expression:
        """Reads `.name` and `[index]` as often as they follow."""
        line, column = target.line, target.column
        links = 0
        while True:
            links += 1
            self._check_chain(links)
            if self._take("."):
                target = syntax.Member(line, column, target, self._word("the name of a member"))
            elif self._take("["):
                index = self._bracketed(self._expression)
                self._expect("]")
                target = syntax.Index(line, column, target, index)
            else:
                return target

    def _name_or_call(self) -> syntax.Name | syntax.ProgramCall:
        line, column = self._here()
        name = self._values[self._at]
        self._at += 1
        if self._kinds[self._at] != "(" or not self._has_calls:
            return syntax.Name(line, column, name)
        self._at += 1
        return syntax.ProgramCall(line, column, name, self._items(")", self._entry))

    def _number(self) -> syntax.Constant:
        self._at += 1
        at = self._at - 1
        return syntax.Constant(self._lines[at], self._columns[at], self._values[at])

    def _word_constant(self) -> syntax.Constant:
        line, column = self._here()
        self._at += 1
        value = {"true": True, "false": False, "null": None}[self._kinds[self._at - 1]]
        return syntax.Constant(line, column, value)

    def _minus(self) -> Expression:
        said = "a minus needs a left operand: write 0 - 1"
        self._report(self._here(), "unary-minus", said)
        raise _Stop

    def _group(self) -> Expression:
        self._at += 1
        found = self._bracketed(self._expression)
        self._expect(")")
        return found

    def _array(self) -> syntax.Array:
        line, column = self._here()
        self._at += 1
        return syntax.Array(line, column, self._items("]", self._expression))

    def _object(self) -> syntax.Object:
        line, column = self._here()
        self._at += 1
        return syntax.Object(line, column, self._items("}", self._object_entry))

    def _object_entry(self) -> syntax.Entry:
        line, column = self._here()
        if self._kinds[self._at] in _TEXTS:
            key = self._plain_text("a key")
        elif self._kinds[self._at] == NAME and self._kinds[self._at + 1] != ":":
            key = self._name("a name")
            return syntax.Entry(line, column, key, syntax.Name(line, column, key))
        else:
            key = self._word("a key")
        self._expect(":")
        return syntax.Entry(line, column, key, self._expression())

    def _items(self, closing: str, read: Callable[[], T]) -> tuple[T, ...]:
        """Reads items separated by commas, up to a closing bracket."""
        found: list[T] = []
        while self._kinds[self._at] != closing:
            found.append(self._bracketed(read))
            if not self._take(","):
                break
        self._expect(closing)
        return tuple(found)

    def _bracketed(self, read: Callable[[], T]) -> T:
        kept = self._has_calls
        self._deepen()
        self._closed += 1
        self._has_calls = True
        found = read()
        self._closed -= 1
        self._has_calls = kept
        self._depth -= 1
        return found


class _Value(Struct, frozen=True, gc=False):
    """One word, number or text in a modifier or a property."""

    line: int
    column: int
    kind: str
    value: str | int | float


_FIRST_WORDS = (
    *("use", "import", "input", "output", "agent", "block", "let", "const", "session", "resume"),
    *("do", "parallel", "for", "repeat", "loop", "try", "throw", "choice", "option", "if", "elif"),
    *("else", "catch", "finally", "assert"),
)
_TRY_CLAUSES = frozenset(("catch", "finally"))
_IF_CLAUSES = frozenset(("elif", "else"))
_REACHED = (
    syntax.Name,
    syntax.ProgramCall,
    syntax.Array,
    syntax.Object,
    syntax.Member,
    syntax.Index,
    syntax.Binary,
    syntax.Not,
)
"""What `.name` and `[index]` may follow; Binary and Not are such operands only in brackets."""
_PROPERTIES: dict[str, Callable[[_Parser], Any]] = {
    "prompt": _Parser._prompt_property,
    "model": _Parser._model_property,
    "context": _Parser._context_property,
    "retry": _Parser._retry_property,
    "backoff": _Parser._backoff_property,
    "persist": _Parser._persist_property,
    "skills": _Parser._skills_property,
    "permissions": _Parser._permissions_property,
}
_BLOCKS: dict[str, Callable[[_Parser], Expression]] = {
    "session": _Parser._session,
    "resume": _Parser._resume,
    "do": _Parser._do,
    "parallel": _Parser._parallel,
    "for": _Parser._for,
    "repeat": _Parser._repeat,
    "loop": _Parser._loop,
    "try": _Parser._try,
    "choice": _Parser._choice,
    "if": _Parser._if,
}
_STATEMENTS: dict[str, Callable[[_Parser], Statement | None]] = {
    "use": _Parser._use,
    "import": _Parser._import,
    "agent": _Parser._agent,
    "block": _Parser._define_block,
    "let": _Parser._bind,
    "const": _Parser._bind,
    "throw": _Parser._throw,
}
_OPERANDS: dict[str, Callable[[_Parser], Expression]] = {
    **_BLOCKS,
    NAME: _Parser._name_or_call,
    NUMBER: _Parser._number,
    TEXT: _Parser._text,
    LONG_TEXT: _Parser._text,
    CONDITION: _Parser._condition,
    WIDE_CONDITION: _Parser._condition,
    "true": _Parser._word_constant,
    "false": _Parser._word_constant,
    "null": _Parser._word_constant,
    "-": _Parser._minus,
    "(": _Parser._group,
    "[": _Parser._array,
    "{": _Parser._object,
}
