"""The `.prose` language: programs whose steps are sessions of agents.

check     parse, check and load: the entrance
checker   names, scopes, and blocks in the wrong place
syntax    the syntax tree, and how its parts are named in the journal
parser    tokens into a tree, by recursive descent
tokens    text into tokens
texts     what stands between quotes
problems  every code, and how a problem is shown
"""

from __future__ import annotations

from holdfast.prose.check import check, load, parse
from holdfast.prose.problems import Problem
from holdfast.prose.syntax import Program

__all__ = ["Problem", "Program", "check", "load", "parse"]
