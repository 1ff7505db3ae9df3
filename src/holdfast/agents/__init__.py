"""Agents that a run asks: what an executor is, and the three that come with the package.

protocol   what is asked, what is answered, and what can go wrong
scripted   answers from a file, for tests and rehearsals
command    a program that reads a prompt and prints an answer
chat       a server that speaks the OpenAI-compatible protocol
credentials    what it is told as who we are; looked for in what it says
config     the executor that `[agents]` of holdfast.toml names

Nothing here journals. `ctx.session`, `ctx.decide` and `ctx.summarise` of a run make each question
a step of it. Who executes is chosen by the caller or by the user's configuration, never by what
is stored.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.agents.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.agents.api")
