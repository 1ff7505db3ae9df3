"""The `.prose` language: programs whose steps are sessions of agents.

source    the text of a program: parse, check and load. The entrance
checker   names, scopes, and blocks in the wrong place
syntax    the syntax tree, and how its parts are named in the journal
parser    tokens into a tree, by recursive descent
tokens    text into tokens
texts     what stands between quotes
problems  every code, and how a problem is shown
fetching  programs from elsewhere, when it is asked for
program   a program as a run: gather, start
interpreter    walks the tree over a run's context
scopes values settings    names and arms; what text counts as; what may be set
variables the names that a journal has; other answers for a fork
transcript    programs in context: told aloud, rebuilt, moved to a store
views     variables, branches and checkpoints as files
view_files    the directory of views, and what is read back from it
narration a program told aloud, and rebuilt from what was told
"""

from __future__ import annotations

from holdfast.prose.narration import Narrator, Transcript, read_transcript
from holdfast.prose.problems import Problem
from holdfast.prose.program import gather, gather_text, start
from holdfast.prose.settings import Settings
from holdfast.prose.source import check, load, parse
from holdfast.prose.syntax import Program
from holdfast.prose.views import Damage

__all__ = [
    "Damage",
    "Narrator",
    "Problem",
    "Program",
    "Settings",
    "Transcript",
    "check",
    "gather",
    "gather_text",
    "load",
    "parse",
    "read_transcript",
    "start",
]
