"""What clients of a server were told, compared with what is there.

done       there, once, in every list that it was for; those of one client in their order
refused    nowhere
unknown    in all of its lists or in none, never twice
lost       only from a server that is set to lose: then it is said before anything else is
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import Store
from tests.torture.programme import Broken
from tests.torture.servers_clients import OVER, Line, heard, lists


@dataclass
class Deaths:
    """When the server died, and whether it may have lost anything then."""

    moments: list[float] = field(default_factory=list[float])
    """When it was down: what is told behind that, the next one tells."""
    cuts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """While the power is being cut, no answer is one: nobody would have got it."""
    may_lose_s: float = 0.0

    def is_void(self, asked: float, told: float) -> bool:
        """Returns whether an answer may have been given in a power cut, and be read behind it."""
        return any(begin <= told and asked <= end for begin, end in self.cuts)

    def may_lose(self, begun: float, told: float) -> float | None:
        """Returns the death that may have taken what was begun and acknowledged at those times.

        A client may read its answer when the server that gave it is dead already, so it is the
        beginning that has to lie before the death.
        """
        for down in self.moments:
            if begun <= down <= told + self.may_lose_s:
                return down
        return None


def last_words(lines: list[Line], deaths: Deaths) -> dict[int, Line]:
    """Returns the last word on each value; what was said in a power cut was never said."""
    said: dict[int, Line] = {}
    asked = 0.0
    for line in lines:
        is_void = line["said"] != "begun" and deaths.is_void(asked, line["at"])
        if "value" in line and not is_void:
            said[line["value"]] = line
        asked = line["at"]
    return said


def judge(store: Store, paths: list[Path], deaths: Deaths) -> int:
    """Returns how many operations were judged; raises Broken with the first that is wrong."""
    found = lists(store)
    known: set[int] = set()
    judged = 0
    for path in paths:
        lines = list(heard(path))
        words = last_words(lines, deaths)
        known |= set(words)
        judged += len(words)
        begun = {line["value"]: line["at"] for line in lines if line["said"] == "begun"}
        for word in judge_words(words.values(), found):
            death = None
            if deaths.may_lose_s:
                death = deaths.may_lose(begun[word["value"]], word["at"])
            if death is None:
                raise Broken(f"acknowledged and gone: {word}")
            if not _was_told(lines, death):
                raise Broken(f"lost, as it may be, and the client was not told: {word}")
        _judge_order(words, found)
    judge_rest(store, known, found)
    return judged


def judge_words(words: Iterable[Line], found: dict[str, list[int]]) -> list[Line]:
    """Returns those that were acknowledged and are gone; raises Broken for all other wrongs."""
    counts = {name: Counter(values) for name, values in found.items()}
    return [word for word in words if _is_gone(word, counts)]


def judge_rest(store: Store, known: set[int], found: dict[str, list[int]]) -> None:
    """Raises Broken for what nobody wrote, and for what a check of the store finds."""
    strange = {value for values in found.values() for value in values} - known
    if strange:
        raise Broken(f"nobody ever wrote {sorted(strange)[:5]}")
    report = store.check()
    if not report.ok:
        raise Broken(f"check says {report}")


def _is_gone(word: Line, counts: dict[str, Counter[int]]) -> bool:
    there = [counts.get(name, Counter())[word["value"]] for name in word["streams"]]
    what = f"{word}, found {dict(zip(word['streams'], there, strict=True))} times"
    if max(there) > 1:
        raise Broken(f"doubled: {what}")
    if len(set(there)) != 1:
        raise Broken(f"half a commit: {what}")
    if word["said"] == "refused" and there[0]:
        raise Broken(f"refused with a known outcome, and there: {what}")
    return word["said"] == "done" and not there[0]


def _was_told(lines: list[Line], down: float) -> bool:
    """Returns whether the client's first news behind the death were that commits are lost.

    An answer may be read when its server is dead already: what was begun before does not count.
    """
    begun = {line["value"]: line["at"] for line in lines if line["said"] == "begun"}
    later = [
        line["said"]
        for line in lines
        if line["at"] > down
        and (line["said"] == "lost" or (line["said"] == "done" and begun[line["value"]] > down))
    ]
    return not later or later[0] == "lost"


def _judge_order(words: dict[int, Line], found: dict[str, list[int]]) -> None:
    """One client's own values come in the order in which they were acknowledged."""
    done = [word for word in words.values() if word["said"] == "done"]
    for name, values in found.items():
        places = {value: place for place, value in enumerate(values)}
        mine = [word["value"] for word in sorted(done, key=lambda word: word["at"])]
        order = [places[value] for value in mine if value in places]
        if order != sorted(order):
            raise Broken(f"{name}: one client's values in another order than acknowledged")


def judge_follower(store: Store, path: Path, deaths: Deaths) -> int:
    """Returns how many events a follower saw: all, once, in order. Raises Broken otherwise.

    All means up to the end that everybody knows of; what was given up may have come after it. What
    was read while the power was being cut may be gone: nobody would have got that answer.
    """
    lines = list(heard(path))
    if not lines or lines[-1]["said"] != "over":
        raise Broken("the follower did not come to the end")
    [end] = store._log._backend.heads([OVER])
    if end is None:
        raise Broken("nobody has said that it is over")
    records = store._log._backend.read_all(limit=10**9)
    there = [(one.position, one.stream, one.revision) for one in records]
    there = [one for one in there if one[0] <= end.position]
    kept = set(there)
    seen = [
        one
        for line in lines[:-1]
        if (one := (line["position"], line["stream"], line["revision"])) in kept
        or not deaths.is_void(line["asked"], line["at"])
    ]
    seen = [one for one in seen if one[0] <= end.position]
    if seen != there:
        late = set(there) - set(seen)
        raise Broken(
            f"a follower saw {len(seen)} events where there are {len(there)}; "
            f"missed {sorted(late)[:3]}, saw besides {sorted(set(seen) - set(there))[:3]}"
        )
    return len(seen)
