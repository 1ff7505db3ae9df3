"""What the demo has said and claimed so far, scene by scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

Print = Callable[[str, str], None]
"""Shows a line of text in a style: bold, green, bold red, cyan, or none."""
Command = Callable[[str, str], str]
"""Returns the command to type for a verb and the place of a store."""


class ShownClaim(Struct):
    """Something that the demo claims, and whether the data agree."""

    claim: str
    ok: bool


class Scene(Struct):
    """One scene: what was seen, what is claimed about it, and what to type to look at it."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    claims: list[ShownClaim] = field(default_factory=list[ShownClaim])
    commands: list[str] = field(default_factory=list[str])


class Story:
    """Gathers scenes, and shows each line as it happens."""

    def __init__(self, place: str, *, show: Print, command: Command) -> None:
        self.place = place
        self.scenes: list[Scene] = []
        self._show = show
        self._command = command

    @property
    def is_true(self) -> bool:
        """True if the data agreed with every claim."""
        return all(claim.ok for scene in self.scenes for claim in scene.claims)

    def begin(self, title: str) -> None:
        """Begins a scene."""
        self.scenes.append(Scene(title))
        self._show("", "")
        self._show(f"{len(self.scenes)}. {title}", "bold")

    def say(self, text: str) -> None:
        """Says what happened."""
        self._show(f"   {text}", "")

    def note(self, **facts: Any) -> None:
        """Keeps what was seen for the document."""
        self.scenes[-1].facts.update(facts)

    def claim(self, text: str, ok: bool) -> None:
        """Claims something that was compared with the data."""
        self.scenes[-1].claims.append(ShownClaim(text, ok))
        self._show(f"   {'✓' if ok else '✗ NOT SO:'} {text}", "green" if ok else "bold red")

    def suggest(self, *verbs: str) -> None:
        """Names the commands that show what this scene was about."""
        for verb in verbs:
            line = self._command(verb, self.place)
            self.scenes[-1].commands.append(line)
            self._show(f"   type: {line}", "cyan")
