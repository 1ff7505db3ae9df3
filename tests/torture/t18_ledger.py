"""T18, the ledger: what was erased does not come back from what was made before.

One point is a store of one kind, and targets of another: by turns all 25 pairs, on real servers.
Texts that were never sealed are written beside others into every kind of record, small and large,
and a person's data is sealed. Then everything is made that can outlive an erasure: a backup, an
export, a copy, and a store that an earlier restore began. Then the texts and the person are erased,
and a scope as a whole. After that each of the older things is brought into a store where the same
keys are: `restore` of all and of one scope, `copy`, `import`, `archive`, `salvage`. None of them
may have a byte of what was erased, in all that a backend can be asked for; what stands beside it is
there; and `check` finds nothing, because the new store tells what it lacks. Of the scope that was
erased as a whole the receipt may say that older backups have it: only then may it come back.

Cases are the texts that were looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import holdfast
from holdfast import Store
from holdfast.archive import archive
from holdfast.backup import backup, restore
from holdfast.core.erased_ledger import Ledger
from holdfast.errors import HoldfastError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.transfer.copy import copy_log
from holdfast.transfer.salvage import salvage_log
from tests.canaries import Canaries
from tests.servers.kinds import KINDS, url_of
from tests.torture.erasure_plants import nothing, replaced
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t18_erasure import as_stored

PAIRS = [(source, target) for source in KINDS for target in KINDS]


class Older:
    """A store, what was made of it before an erasure, and what may not come back."""

    def __init__(self, point: Point) -> None:
        self.source, self.target = PAIRS[point.number % len(PAIRS)]
        self.place = point.place
        self.keys = point.place / "keys"
        self.texts = Canaries(point.seed * 100_003 + point.number)
        seed = point.seed * 100_003 + point.number
        self.beside, self.whole = (Canaries(seed + n, self.texts) for n in (25_000, 50_000))
        self.is_whole_noted = True
        self.made = 0

    @contextmanager
    def opened(self, url: str) -> Any:
        with holdfast.open(url, keys=self.keys) as hf:
            yield hf

    def new(self) -> str:
        self.made += 1
        return url_of(self.target, self.place, f"target-{self.made}")

    def write(self, hf: Store) -> list[str]:
        """Writes the texts beside others, and returns those to be erased as texts."""
        team, own = hf.team("all"), hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
        erased = [self.texts.new(f"text {n}") for n in range(2)]
        for text in erased:
            other = self.beside.new("beside")
            team.set("note", {"who": text, "what": other})
            team.append("list", f"{text} and {other}")
            team.say(f"{text} rang")
            team.tasks.add(f"call {text}")
            team.facts.state("where", text)
            team.decide(f"call {text}?")
            team.set("large", f"{text} {'x' * 70_000}")
            team.record("met", {"who": text}, unchecked=True)
        own.set("name", self.texts.new("sealed"))
        own.set("large", f"{self.texts.new('sealed large')} {'y' * 70_000}")
        team.set("sealed", self.texts.new("sealed beside"), subject="ada")
        hf.conversation("whole").set("note", self.whole.new("whole scope"))
        hf.conversation("old").set("note", f"{erased[0]} {self.beside.new('old')}")
        return erased

    # --- ways back -------------------------------------------------------------------------------

    def judge(self, way: str, hf: Store) -> None:
        stored = as_stored(hf)
        found = self.texts.found_in(stored)
        if self.is_whole_noted or way == "the store itself":
            found |= self.whole.found_in(stored)
        if found:
            raise Broken(f"{self}: {way} brings back what was erased: {sorted(found)}")
        if "beside" not in self.beside.found_in(stored) and way != "an archive":
            raise Broken(f"{self}: {way} lacks what was not erased")
        if findings := [one for one in hf.check().findings if not one.harmless]:
            raise Broken(f"{self}: {way} made a store that is damaged: {findings[:3]}")

    def bring_back(self, begun: Store, older: Store) -> None:
        ways: list[tuple[str, Callable[[Store], object]]] = [
            ("a restore", lambda hf: restore(self.place / "backup", hf)),
            ("a restore of one scope", lambda hf: restore(
                self.place / "backup", hf, scope="team/all"
            )),
            ("an import", lambda hf: import_scopes(hf, self.place / "export.jsonl")),
            ("a copy", lambda hf: copy_log(older._log, hf._log)),
            ("a salvage", lambda hf: salvage_log(older._log, hf._log)),
            ("an archive", lambda hf: archive(older, hf, "conversation/old", older_than=1e-6)),
        ]  # fmt: skip
        for way, bring in ways:
            with self.opened(self.new()) as hf:
                bring(hf)
                self.judge(way, hf)
        restore(self.place / "backup", begun, at="p2")
        self.judge("a restore into what an earlier one began", begun)

    def __str__(self) -> str:
        return f"{self.source} into {self.target}"


def trial(point: Point) -> int:
    older = Older(point)
    try:
        with (
            PLANTS[point.plant](),
            older.opened(url_of(older.source, older.place, "store")) as hf,
            older.opened(url_of(older.target, older.place, "older")) as copied,
            older.opened(url_of(older.target, older.place, "begun")) as begun,
        ):
            hf.team("all").set("first", 1)
            backup(hf, older.place / "backup")
            restore(older.place / "backup", begun)
            erased = older.write(hf)
            backup(hf, older.place / "backup")
            with (older.place / "export.jsonl").open("wb") as file:
                export_scopes(hf, (), file)
            copy_log(hf._log, copied._log)
            for text in erased:
                hf.subjects.erase(match=text)
            hf.subjects.erase("ada")
            receipt = hf.subjects.erase(scope="conversation/whole")
            older.is_whole_noted = not any("in clear" in one for one in receipt.beyond)
            older.judge("the store itself", hf)
            older.bring_back(begun, copied)
    except HoldfastError as error:
        raise Broken(f"{older}: {error!r}") from error
    return len(older.texts.fields) + len(older.whole.fields)


# --- faults ---------------------------------------------------------------------------------------


def ledger_not_applied() -> Any:
    """What is taken over is taken as it is, whatever the ledger says."""
    return replaced(Ledger, "applied", lambda self, record: None)


PLANTS: dict[str, Callable[[], Any]] = {"": nothing, "ledger-not-applied": ledger_not_applied}

PROGRAMMES = (
    Programme(
        "t18-ledger",
        "nothing that was made before an erasure brings back what was erased",
        trial,
        share=len(PAIRS),
        points=len(PAIRS) * 4,
        turns=len(PAIRS),
        plants={"ledger-not-applied": 1},
    ),
)
