"""Agents that a run asks: the protocol of an executor, and the three that come with the package.

protocol   questions, answers and errors
scripted   answers from a file, for tests and rehearsals
command    a program that reads a prompt and prints an answer
chat       a server that speaks the OpenAI-compatible protocol
credentials    what is sent to log in at a server, and the search for it in answers
config     the executor that `[agents]` of holdfast.toml names

Nothing here writes to the journal. `ctx.session`, `ctx.decide` and `ctx.summarise` of a run make
each question a step of it. The caller or the user's configuration chooses the executor, never
anything that is stored.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazily

if TYPE_CHECKING:
    from holdfast.agents.api import *
else:
    __getattr__ = lazily(__name__, "holdfast.agents.api")
