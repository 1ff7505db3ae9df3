"""The `.prose` language: programs whose steps are sessions of agents.

syntax    the syntax tree, and how its parts are named in the journal
"""

from __future__ import annotations

from holdfast.prose.syntax import Problem, Program

__all__ = ["Problem", "Program"]
