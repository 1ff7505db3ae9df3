"""Text on standard output: rich on a terminal, plain lines when piped; data never drives it.

What is stored may hold anything, also the sequences that move a cursor, set a title or reverse the
direction of writing. `clean` makes every such character visible; everything that shows stored text
goes through it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import UnavailableError
from holdfast.render.text import clean, encode_json, escape_json, shorten

if TYPE_CHECKING:
    from rich.console import Console

COLUMN_WIDTH_MIN = 8
"""No column is cut to less than this: below it nothing can be recognised."""
EVEN_MAX = 20
"""The longest cells of equal length that are cut last: as long as a time."""
GAP = 2
CHILDREN_MAX = 50


def is_terminal() -> bool:
    """Returns whether standard output is a terminal."""
    return sys.stdout.isatty()


@contextmanager
def _reachable() -> Generator[None]:
    """Raises UnavailableError for output that cannot be written; a closed pipe passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is still buffered could only fail again, with a traceback, when Python ends.
        abandon_output()
        raise UnavailableError(
            f"the output cannot be written: {error.strerror}", hint="free space, or write elsewhere"
        ) from error


def abandon_output() -> None:
    """Discards the rest of the output, so that nothing fails when Python ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a standard output without a descriptor, as in tests
        pass


def print_line(text: str = "") -> None:
    """Prints a line at once, so that a reader of the pipe sees it when it happens."""
    encoding = sys.stdout.encoding or "utf-8"
    print_raw(f"{text}\n".encode(encoding, "backslashreplace"))


def print_json(document: Any) -> None:
    """Prints a document: on one line when piped, indented on a terminal; nothing is shortened."""
    data = encode_json(document)
    if is_terminal():
        data = msgspec.json.format(data, indent=2)
    print_raw(f"{escape_json(data.decode())}\n".encode())


def print_json_line(document: Any) -> None:
    """Prints one document of many, always on a line of its own."""
    print_raw(f"{escape_json(encode_json(document).decode())}\n".encode())


def print_raw(data: bytes) -> None:
    """Writes bytes exactly as they are, all of them."""
    out = getattr(sys.stdout, "buffer", None)
    with _reachable():
        if out is None:  # a stream of text only, as in tests
            sys.stdout.write(data.decode())
            return
        sys.stdout.flush()
        # Unbuffered (PYTHONUNBUFFERED), a write may take only a part; print would lose the rest.
        left = memoryview(data)
        while left:
            left = left[out.write(left) :]
        out.flush()


def console() -> Console:
    """Returns rich's view of standard output; colours follow NO_COLOR and the terminal."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows: a table on a terminal, else tab-separated lines without a header.

    A cell is cleaned here, so that no tab or newline of the data can be taken for one of ours. On a
    terminal the table fits: the widest column is cut, and an ellipsis marks each cut. Verbs take
    such a cut name for the whole one, if only one begins so.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    if not is_terminal():
        for row in cells:
            print_line("\t".join(row))
        return
    from rich.table import Table
    from rich.text import Text

    screen = console()
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    widths = fit_widths(columns, cells, screen.width)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, no_wrap=True, min_width=width)
    for row in cells:
        table.add_row(*(Text(shorten(*pair)) for pair in zip(row, widths, strict=True)))
    with _reachable():
        screen.print(table)


def fit_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the width of each column, so that all fit: the widest is cut first.

    A short column whose cells are all equally long (times, numbers) is cut only when no other can
    be: cut, it would say nothing. If the screen is still too narrow, rich cuts the table.
    """
    lengths = [[len(row[index]) for row in rows] for index in range(len(columns))]
    widths = [max([len(name), *each]) for name, each in zip(columns, lengths, strict=True)]
    is_even = [len(set(each)) == 1 and each[0] <= EVEN_MAX for each in lengths]
    over = sum(widths) + GAP * (len(columns) - 1) - width
    for may_yield in ([not each for each in is_even], is_even):
        while over > 0:
            can = [
                index
                for index, each in enumerate(widths)
                if may_yield[index] and each > COLUMN_WIDTH_MIN
            ]
            if not can:
                break
            # Among equals the last column keeps more: it is what most tables are read for.
            widths[max(can, key=lambda index: (widths[index], -index))] -= 1
            over -= 1
    return widths


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Prints names and values: aligned on a terminal, tab-separated when piped."""
    if not is_terminal():
        for name, value in facts:
            print_line(f"{name}\t{clean(value)}")
        return
    from rich.text import Text

    width = max(len(name) for name, _ in facts) + 2
    with _reachable():
        for name, value in facts:
            console().print(Text.assemble((name.ljust(width), "bold"), clean(value)))


def print_tree(title: str, state: Any, show: Callable[[Any], str]) -> None:
    """Prints a state as a tree on a terminal; wide levels say how much they leave out."""
    from rich.text import Text
    from rich.tree import Tree

    from holdfast.core.tree import List, Map

    def grow(branch: Tree, value: Any) -> None:
        pairs: Iterator[tuple[str, Any]] = (
            iter(value.items())
            if isinstance(value, Map)
            else ((f"[{index}]", item) for index, item in enumerate(value))
        )
        for shown, (key, item) in enumerate(pairs):
            if shown == CHILDREN_MAX:
                left = len(value) - CHILDREN_MAX
                branch.add(Text(f"… {left} more: --json shows all", style="dim"))
                return
            name = clean(key)
            if isinstance(item, Map | List) and len(item):
                grow(branch.add(Text(name, style="bold")), item)
            else:
                branch.add(Text.assemble((name, "bold"), " ", shorten(show(item))))

    tree = Tree(Text(clean(title), style="bold"))
    grow(tree, state)
    if not state:
        tree.add(Text("nothing", style="dim"))
    with _reachable():
        console().print(tree)


def warn(text: str) -> None:
    """Prints a warning on standard error."""
    print(f"warning: {clean(text)}", file=sys.stderr, flush=True)


def print_aside(text: str) -> None:
    """Prints a line on standard error, terminal or not: what a reader of the output must know."""
    print(clean(text), file=sys.stderr, flush=True)


def print_note(text: str) -> None:
    """Prints a note on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(clean(text), file=sys.stderr, flush=True)
