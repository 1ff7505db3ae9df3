"""How the demo speaks: to a person as it goes, or to a program as one document at the end."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field, to_builtins

from holdfast.cli.options import command
from holdfast.cli.printing import is_terminal, print_line
from holdfast.render import clean


class Claim(Struct):
    """Something that the demo says is so, and whether the data agree."""

    claim: str
    ok: bool


class Scene(Struct):
    """One step: what was seen, what follows from it, and what to type to look at it."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    claims: list[Claim] = field(default_factory=list[Claim])
    commands: list[str] = field(default_factory=list[str])


class Telling:
    """Gathers scenes; prints them as they happen unless a document is wanted."""

    def __init__(self, place: str, *, is_json: bool) -> None:
        self.place = place
        self.scenes: list[Scene] = []
        self._is_json = is_json

    @property
    def is_true(self) -> bool:
        """True if the data agreed with every claim."""
        return all(claim.ok for scene in self.scenes for claim in scene.claims)

    def begin(self, title: str) -> None:
        """Begins a scene."""
        self.scenes.append(Scene(title))
        self._print()
        self._print(f"{len(self.scenes)}. {title}", "bold")

    def say(self, text: str) -> None:
        """Tells what happened."""
        self._print(f"   {text}")

    def note(self, **facts: Any) -> None:
        """Keeps what was seen for the document."""
        self.scenes[-1].facts.update(facts)

    def claim(self, text: str, ok: bool) -> None:
        """Says that something is so, after it was compared with the data."""
        self.scenes[-1].claims.append(Claim(text, ok))
        self._print(f"   {'✓' if ok else '✗ NOT SO:'} {text}", "green" if ok else "bold red")

    def suggest(self, *verbs: str) -> None:
        """Names the commands to type next, to see for oneself what this scene was about."""
        for verb in verbs:
            line = command(verb, self.place)
            self.scenes[-1].commands.append(line)
            self._print(f"   type: {line}", "cyan")

    def document(self) -> dict[str, Any]:
        """Returns everything told, for --json."""
        return {"ok": self.is_true, "store": self.place, "scenes": to_builtins(self.scenes)}

    def _print(self, text: str = "", style: str = "") -> None:
        if self._is_json:
            return
        if not is_terminal():
            print_line(clean(text))
            return
        from rich.text import Text

        from holdfast.cli.printing import console

        console().print(Text(clean(text), style=style), soft_wrap=True)
