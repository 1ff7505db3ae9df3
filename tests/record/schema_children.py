"""Two versions of one program, each in a process of its own, on one store.

    python -m tests.record.schema_children URL VERSION SEED STEPS
    python -m tests.record.schema_children URL migrate

Prints a line of JSON for each step that was acknowledged. The first version counts in `count`, the
second in `total`, which its upgrade makes of it: so the sum of both is what was acknowledged.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import msgspec

import holdfast
from holdfast.errors import NewerSchemaError

SCOPES = 4


@holdfast.schema("team", version=1)
class Tally1(msgspec.Struct):
    count: int = 0
    names: list[str] = []


@holdfast.schema("team", version=2)
class Tally2(msgspec.Struct):
    total: int = 0
    names: list[str] = []
    mood: float = 0.5


@holdfast.upgrade(Tally2, 1)
def upgrade(old: dict[str, Any]) -> dict[str, Any]:
    new = {name: value for name, value in old.items() if name != "count"}
    return new | {"total": old.get("count", 0), "mood": 0.5}


@holdfast.downgrade(Tally2, 2)
def downgrade(new: dict[str, Any]) -> dict[str, Any]:
    old = {name: value for name, value in new.items() if name not in ("total", "mood")}
    return old | {"count": new.get("total", 0)}


def work(url: str, version: int, seed: int, steps: int) -> None:
    """Writes by chance, and says what was acknowledged."""
    chance = random.Random(seed)
    field = "count" if version == 1 else "total"
    schema: type[Any] = Tally1 if version == 1 else Tally2
    with holdfast.open(url, schemas=[schema]) as store:
        for step in range(steps):
            name = f"t{chance.randrange(SCOPES)}"
            scope = store.team(name)
            kind = chance.choice(["increment", "edit", "append", "wrong", "joint", "say"])
            try:
                done = act(store, scope, kind, field, f"{version}-{step}")
            except NewerSchemaError:
                assert version == 1
                done = False
            if done:
                tell({"scope": name, "kind": kind, "name": f"{version}-{step}"})
            if version == 2 and chance.random() < 0.1:
                down(store)


def act(store: holdfast.Store, scope: Any, kind: str, field: str, name: str) -> bool:
    if kind == "increment":
        scope.increment(field)
    elif kind == "edit":
        scope.edit(lambda draft: draft.update({field: draft.get(field, 0) + 1}))
    elif kind == "append":
        scope.append("names", name)
    elif kind == "joint":
        with store.commit() as tx:
            tx.scope(scope).increment(field)
            tx.scope(store.workflow("w")).increment("joint")
    elif kind == "say":
        scope.say(name)
    else:
        try:
            scope.set("names", [3])
        except holdfast.SchemaError:
            return False
        raise AssertionError("what does not fit was written")
    return True


def down(store: holdfast.Store) -> None:
    """Brings every scope down, so that the older program may write again."""
    left = store.schemas.migrate(to=1).outdated
    assert all("expected revision" in str(one.error) for one in left), left


def tell(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def main(words: list[str]) -> None:
    url, what, *rest = words
    if what == "migrate":
        with holdfast.open(url, schemas=[Tally2]) as store:
            tell({"ready": True})
            tell({"migrated": store.schemas.migrate().migrated})
        return
    work(url, int(what), *map(int, rest))


if __name__ == "__main__":
    main(sys.argv[1:])
