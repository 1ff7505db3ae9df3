"""The `.prose` language: programs whose steps are sessions of agents.

source    parses, checks and loads the text of a program; start reading here
checker   checks names, scopes, and misplaced blocks
syntax    the syntax tree, and the names of its parts in the journal
parser    tokens into a tree, by recursive descent
tokens    text into tokens
texts     the content of texts: escapes and interpolations
problems  every code, and how a problem is shown
fetching  fetches programs by URL, if the caller asks for it
program   a program as a run: gather, start
interpreter    walks the tree in the context of a run
scopes values settings    names and arms; conversion of values; settings
variables the names in a journal; edited answers for a fork
transcript    programs in context: printed, rebuilt, moved to a store
views     variables, branches and checkpoints as files
view_files    the directory of views, and the edits that are read back
narration writes and reads the lines of a transcript
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
