"""The verb that recommends a backend: advise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.options import Flag
from holdfast.cli.printing import print_facts, print_json, print_note
from holdfast.contrib.advise import MATRIX, Advice, Needs, advise
from holdfast.errors import UsageError
from holdfast.render.store import advice_document

Yes = Annotated[bool | None, Parameter(show_default=False)]
Count = Annotated[int | None, Parameter(show_default=False)]


def advise_backend(
    *,
    survive: Yes = None,
    machines: Count = None,
    writers: Count = None,
    commits_per_second: Count = None,
    readable: Yes = None,
    diffs: Yes = None,
    queries: Yes = None,
    schema: Yes = None,
    embeddings: Yes = None,
    expiry: Yes = None,
    no_server: Annotated[bool | None, Parameter(show_default=False, negative=())] = None,
    has: tuple[str, ...] = (),
    json: Flag = False,
) -> None:
    """Recommend a backend, or a mix, with reasons. Asks, unless an option is given.

    Parameters
    ----------
    survive
        What was acknowledged must survive a crash and a power loss (the default).
    machines
        How many machines have processes that write.
    writers
        How many processes write at the same time.
    commits_per_second
        How many commits a second at the busiest time.
    readable
        A person must be able to read the stored files without tools.
    diffs
        The state is kept in git, and its changes are reviewed there.
    queries
        Other programs query it with SQL.
    schema
        The database itself must enforce a schema.
    embeddings
        Vectors are kept and searched beside the state.
    expiry
        Conversations expire by themselves, so that their memory is freed.
    no_server
        There must be no server to deploy or operate.
    has
        A server that is operated already: redis or postgresql; may be given twice.
    json
        Print one JSON document instead of lines.
    """
    # Each parameter is a field of Needs by the same name; what was not given has its default.
    words = {name: value for name, value in locals().items() if name != "json"}
    given: dict[str, Any] = {
        name: value for name, value in words.items() if value not in (None, ())
    }
    if not given:
        given = ask(input)
    advice = advise(Needs(**given))
    if json:
        print_json(advice_document(advice))
    else:
        show(advice)


def ask(answer: Callable[[str], str]) -> dict[str, Any]:
    """Returns the answers to every question; an empty answer means the default."""
    if not sys.stdin.isatty():
        raise UsageError(
            "advise asks questions on a terminal, and standard input is not one",
            hint="holdfast advise --machines 2",
        )
    survive = "Must what was acknowledged survive a crash and a power loss? [Y/n] "
    found: dict[str, Any] = {"survive": yes(answer(survive), default=True)}
    for name, rule in MATRIX.items():
        if name in ("machines", "writers"):
            found[name] = number(answer(f"{rule.question} [1] "))
        else:
            found[name] = yes(answer(f"{rule.question} [y/N] "), default=False)
    words = answer("Which servers do you operate already: redis, postgresql? [none] ")
    found["has"] = tuple(word.strip() for word in words.replace(",", " ").split() if word != "none")
    return found


def yes(word: str, *, default: bool) -> bool:
    word = word.strip().lower()
    if word not in ("", "y", "yes", "n", "no"):
        raise UsageError(f"expected yes or no, found {word!r:.40}", hint="holdfast advise")
    return word.startswith("y") if word else default


def number(word: str) -> int:
    if not word.strip():
        return 1
    if not word.strip().isdecimal():
        raise UsageError(f"expected a whole number, found {word!r:.40}", hint="holdfast advise")
    return int(word)


def show(advice: Advice) -> None:
    """Prints the recommendation, then why, what it costs, and why not the others."""
    rows = [("backend", advice.backend), ("open", advice.open)]
    rows += [("because", reason) for reason in advice.reasons]
    rows += [("mind", warning) for warning in advice.warnings]
    rows += [("gives up", given) for given in advice.gives_up]
    rows += [(f"not {name}", reason) for name, reason in advice.rejected.items()]
    rows += [("move on", advice.move_on)]
    print_facts(rows)
    print_note("moving on keeps everything: holdfast copy A B")
