"""The verb that an agent begins with: boot."""

from __future__ import annotations

from contextlib import ExitStack

from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading
from holdfast.cli.parsing import find_scope
from holdfast.cli.printing import print_aside, print_json, print_line, print_raw, warn
from holdfast.core.codec import kept_closed
from holdfast.errors import UsageError
from holdfast.names import GLOBAL
from holdfast.render.context import context_document
from holdfast.render.text import clean


def boot(
    scope: str = GLOBAL,
    /,
    *,
    role: str | None = None,
    budget: int = 8_000,
    task: str | None = None,
    compact: Flag = False,
    tokenizer: str | None = None,
    write: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Print what an agent must know to begin: orders, goals, decisions, tasks, how to go on.

    Parameters
    ----------
    scope
        The scope to begin in; those above it count too.
    role
        Show the orders for this role, beside those for all.
    budget
        How many tokens at most; orders, goals and the task are never left out.
    task
        The task in hand: its id, or what it says.
    compact
        One short line for each order, goal, open task, open decision and fact instead.
    tokenizer
        An encoding of tiktoken to count with, or estimate.
    write
        Keep it as one marked block in this file, such as AGENTS.md; nothing else is touched there.
    """
    if budget < 1:
        raise UsageError(f"--budget must be at least 1, found {budget}")
    with ExitStack() as opened:
        store = opened.enter_context(open_reading(options))
        if write is not None:  # sealed values stay sealed: no erasure would find the file
            opened.enter_context(kept_closed())
        named = find_scope(store, scope, must_exist=scope != GLOBAL)
        context = store.context(
            named, budget, task, role=role, compact=compact, tokenizer=tokenizer, boot=True
        )
    changed = None if write is None else _write(write, context.text)
    if context.is_over:
        warn(f"what is never left out has {context.tokens} tokens: more than {budget}")
    if options.json:
        print_json(context_document(named.name, context, write, changed))
    elif write is not None:
        print_line(f"{clean(write)}: {'written' if changed else 'up to date'}")
    else:
        print_raw(clean(context.text, keep="\n\t").encode("utf-8", "replace"))
        counted = f"by {context.counted_by}" if context.is_exact else "by estimate"
        print_aside(f"{context.tokens} tokens, {counted}")


def _write(path: str, text: str) -> bool:
    from holdfast.context.block import write_block  # only a boot that writes loads the views

    return write_block(path, text)
