"""Every backend that is broken on purpose, with its catcher, named in advance.

A suite that has never caught anything proves nothing. So each fault here is one that storage
engines have had, and each must be caught by the very test that is named for it:

- a clause of the contract, and the machine that compares with the model (`holdfast.testing`);
- an anomaly that the independent checker finds in what T9 saw (`tests/broken/plants.py`);
- a programme of the torture tests, which plants its own: broken disks, lost syncs, wrong orders,
  and engines of runs (`tests/broken/engines.py`), which the corpus of runs finds in process, too.

`test_catalogue.py` runs the first two kinds; `tests/torture/test_share.py` runs every plant.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.backends.memory import MemoryBackend
from tests.broken import memory
from tests.broken.engines import ENGINES
from tests.broken.plants import PLANTS
from tests.torture.programme import programmes


class Fault(NamedTuple):
    """One broken backend."""

    name: str
    broken: str
    """What is broken, in one line."""
    catcher: str
    """A programme, or "contract"."""
    finding: str
    """How it is found: a clause, an anomaly, or "" where the programme's docstring says it."""


CONTRACT: dict[type[MemoryBackend], tuple[str, bool]] = {
    memory.ForgetsKeys: ("clause_07", True),
    memory.ForgetsLaterKeys: ("clause_26", False),
    memory.CutsCommits: ("clause_10", True),
    memory.TakesPatterns: ("clause_14", True),
    memory.ForgetsWhereForksBegin: ("clause_04", True),
    memory.LeavesNamesOutOfRows: ("clause_10", False),
    memory.LeavesSubjectsOutOfPayloads: ("clause_10", False),
    memory.FindsOldestFirst: ("clause_11", True),
    memory.TakesNoLimitForNone: ("clause_10", True),
    memory.FailsNeighbours: ("clause_01", True),
    memory.KeepsMarksOfRefusals: ("clause_02", True),
    memory.IgnoresFences: ("clause_06", True),
    memory.IgnoresLinks: ("clause_04", False),
    memory.CachesReads: ("clause_11", False),
    memory.ReusesPositions: ("clause_09", True),
    memory.SkipsAPosition: ("clause_10", True),
    memory.ConfusesNames: ("clause_14", True),
    memory.ForgetsExpiry: ("clause_16", True),
    memory.StartsEpochsAgain: ("clause_16", True),
    memory.ClaimsTwice: ("clause_17", False),
    memory.OutlivesItsEnd: ("clause_18", False),
    memory.EndsAtWhatHasEnded: ("clause_18", False),
    memory.LetsGoAtTheFirstEnd: ("clause_36", False),
    memory.MovesEndsOfRefusals: ("clause_36", False),
    memory.LetsGoOfWhatIsKept: ("clause_30", False),
    memory.ListsWhatWasKept: ("clause_30", False),
    memory.StandsOnWhatHasEnded: ("clause_37", False),
    memory.HidesTheLapsed: ("clause_19", True),
    memory.ListsClaimsThatEnded: ("clause_19", False),
    memory.LooksBack: ("clause_20", True),
    memory.RenewsAllOrNone: ("clause_21", True),
    memory.RefusesWhatIsAhead: ("clause_22", False),
    memory.EndsPagesEarly: ("clause_23", True),
    memory.AnswersByName: ("clause_23", True),
    memory.ReadsBackHalfACommit: ("clause_24", True),
    memory.ReadsPastTheEnd: ("clause_24", True),
    memory.ListsMarksLater: ("clause_35", True),
    memory.DropsMeta: ("clause_27", True),
    memory.LetsGoInOnePlace: ("clause_28", True),
    memory.LetsGoOfTheCommit: ("clause_28", True),
    memory.PurgesWhatIsLeft: ("clause_29", True),
    memory.ShortensWhatWent: ("clause_41", False),
    memory.PassesOverLikeMarks: ("clause_32", True),
    memory.FindsMarksOfOtherGroups: ("clause_32", True),
}
"""The clause whose test must fail, and whether the machine must find it too."""

ALONE: dict[str, type[MemoryBackend]] = {
    "clause_20": memory.LooksBack,
    "clause_21": memory.RenewsAllOrNone,
    "clause_22": memory.RefusesWhatIsAhead,
    "clause_23": memory.AnswersByName,
    "clause_24": memory.ReadsPastTheEnd,
    "clause_26": memory.ForgetsLaterKeys,
    "clause_27": memory.DropsMeta,
    "clause_28": memory.LetsGoInOnePlace,
    "clause_29": memory.PurgesWhatIsLeft,
    "clause_30": memory.LetsGoOfWhatIsKept,
    "clause_32": memory.PassesOverLikeMarks,
    "clause_35": memory.ListsMarksLater,
    "clause_36": memory.MovesEndsOfRefusals,
    "clause_37": memory.StandsOnWhatHasEnded,
    "clause_41": memory.ShortensWhatWent,
}
"""For each clause that was added to the first nineteen, one that no test of another catches."""


def catalogue() -> list[Fault]:
    """Returns all of them, those that the torture programmes plant included."""
    faults = [
        Fault(_name(kind), str(kind.__doc__), "contract", clause)
        for kind, (clause, _) in CONTRACT.items()
    ]
    for programme in programmes().values():
        for name in programme.plants:
            plant = PLANTS.get(name) if programme.name.startswith("t9-") else None
            broken = plant.broken if plant else name.replace("-", " ")
            if programme.name.startswith("t13-"):
                broken = ENGINES[name].broken
            finding = " or ".join(plant.findings) if plant else ""
            faults.append(Fault(name, broken, programme.name, finding))
    return faults


def _name(kind: type[MemoryBackend]) -> str:
    return "".join(
        f"-{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__
    )[1:]
