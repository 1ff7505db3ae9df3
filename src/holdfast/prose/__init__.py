"""The `.prose` language: programs whose steps are sessions of agents.

check     parse, check and load: the entrance
checker   names, scopes, and blocks in the wrong place
syntax    the syntax tree, and how its parts are named in the journal
parser    tokens into a tree, by recursive descent
tokens    text into tokens
texts     what stands between quotes
problems  every code, and how a problem is shown
views     variables, branches and checkpoints as files
narration a program told aloud, and rebuilt from what was told
"""

from __future__ import annotations

from holdfast.prose.check import check, load, parse
from holdfast.prose.narration import Narrator, Transcript, read_transcript
from holdfast.prose.problems import Problem
from holdfast.prose.syntax import Program
from holdfast.prose.views import Damage

__all__ = [
    "Damage",
    "Narrator",
    "Problem",
    "Program",
    "Transcript",
    "check",
    "load",
    "parse",
    "read_transcript",
]
