"""Histories that a correct store could have shown, by chance: what the checker must let pass.

Clients act side by side in made-up time. Every operation takes effect at one moment between its
start and its end, on a model that is as plain as can be; a guarded one looks first and is refused
if what it saw has changed by then. Some clients never hear what became of their operation.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

Line = dict[str, Any]


class Model:
    """Lists with revisions, registers and leases."""

    def __init__(self) -> None:
        self.lists: dict[str, list[int]] = {}
        self.revisions: dict[str, int] = {}
        self.lengths: dict[str, list[int]] = {}
        """The length at each revision, from 0."""
        self.registers: dict[str, int | None] = {}
        self.leases: dict[str, tuple[str | None, int]] = {}

    def look(self, stream: str) -> tuple[list[int], int]:
        return list(self.lists.get(stream, [])), self.revisions.get(stream, 0)

    def append(self, stream: str, values: list[int]) -> int:
        self.lists.setdefault(stream, []).extend(values)
        revision = self.revisions[stream] = self.revisions.get(stream, 0) + 1
        self.lengths.setdefault(stream, [0]).append(len(self.lists[stream]))
        return revision

    def fork(self, stream: str, parent: str, revision: int) -> int:
        length = self.lengths[parent][revision]
        self.lists[stream] = self.lists[parent][:length]
        self.revisions[stream] = revision + 1
        self.lengths[stream] = [*self.lengths[parent][: revision + 1], length]
        return length


class Play:
    """One history in the making."""

    def __init__(self, random: Random, *, clients: int, operations: int, streams: int) -> None:
        self.random = random
        self.model = Model()
        self.lines: list[Line] = []
        self.values = 0
        self.epoch = 0
        self.streams = [f"s{n}" for n in range(streams)]
        free = {client: random.randrange(20) for client in range(clients)}
        moments: list[tuple[int, int, Line]] = []
        for number in range(operations):
            client = random.choice(list(free))
            start = free[client] + random.randrange(1, 10)
            look = start + random.randrange(1, 10)
            point = look + random.randrange(20)
            end = point + random.randrange(1, 20)
            line: Line = {"client": client, "start": start, "end": end, "ok": True}
            self.lines.append(line)
            free[client] = end
            if random.random() < 0.06:
                # This client hears no answer, and goes on as another one.
                line |= {"end": None, "ok": None}
                free[clients + number] = free.pop(client) + 1
                point += random.choice([0, 200, 10**6])
            self._plan(line)
            moments += [(look, 2 * number, line), (point, 2 * number + 1, line)]
        for _, number, line in sorted(moments, key=lambda moment: moment[:2]):
            (self._act if number % 2 else self._look)(line)
        for line in self.lines:
            line.pop("plan", None)
            line.pop("seen", None)

    def value(self) -> int:
        self.values += 1
        return self.values

    def history(self) -> list[Line]:
        """Returns the lines, in a chance order, and the final reads."""
        lines = [line for line in self.lines if line.get("op")]
        self.random.shuffle(lines)
        finals = [
            {"op": "final", "stream": stream, "values": values, "revision": revision}
            for stream in self.model.lists
            for values, revision in [self.model.look(stream)]
        ]
        return lines + finals

    def _plan(self, line: Line) -> None:
        random = self.random
        plans = ["append"] * 5 + ["read"] * 4 + ["cas"] * 3 + ["txn"] * 4 + ["view"] * 2
        plan = random.choice([*plans, "fork", "get", "swap", "put", "lease", "lease"])
        line["plan"] = plan
        if plan in ("get", "swap", "put"):
            line["register"] = random.choice("pq")
        if plan == "lease":
            line |= {"lease": "l", "owner": f"w{line['client']}"}

    def _look(self, line: Line) -> None:
        """What a guarded operation reads first; nothing is promised yet."""
        random, plan = self.random, line["plan"]
        known = [*self.streams, *self.model.lists]
        if plan == "cas":
            line["seen"] = [(stream, *self.model.look(stream)) for stream in [random.choice(known)]]
        elif plan == "txn":
            chosen = random.sample(sorted(set(known)), min(2, len(set(known))))
            line["seen"] = [(stream, *self.model.look(stream)) for stream in chosen]
        elif plan == "swap":
            line["seen"] = self.model.registers.get(line["register"])

    def _act(self, line: Line) -> None:
        getattr(self, f"_act_{line['plan']}")(line)

    def _happens(self, line: Line) -> bool:
        """Says whether it takes effect; where nobody knows, chance decides."""
        return line["ok"] is not None or self.random.random() < 0.5

    def _act_append(self, line: Line) -> None:
        stream, value = self.random.choice([*self.streams, *self.model.lists]), self.value()
        line |= {"op": "append", "stream": stream, "value": value}
        if self._happens(line):
            revision = self.model.append(stream, [value])
            if line["ok"]:
                line["revision"] = revision

    def _act_read(self, line: Line) -> None:
        if line["ok"]:
            stream = self.random.choice([*self.streams, *self.model.lists])
            values, revision = self.model.look(stream)
            line |= {"op": "read", "stream": stream, "values": values}
            if self.random.random() < 0.5:
                line["revision"] = revision
            if self.random.random() < 0.3:
                line["from"] = self.random.randint(0, len(values))
                line["values"] = values[line["from"] :]

    def _act_view(self, line: Line) -> None:
        if line["ok"]:
            chosen = self.random.sample(self.streams, min(2, len(self.streams)))
            line |= {"op": "txn", "do": [["r", s, *self.model.look(s)] for s in chosen]}

    def _act_cas(self, line: Line) -> None:
        [(stream, values, revision)] = line["seen"]
        value = self.value()
        line |= {"op": "txn", "do": [["r", stream, values, revision], ["a", stream, value, None]]}
        self._commit(line, [(stream, [value])])

    def _act_txn(self, line: Line) -> None:
        writes: list[tuple[str, list[int]]] = []
        for stream, _, _ in line["seen"]:
            if self.random.random() < 0.7:
                count = self.random.choice([1, 1, 2])
                writes.append((stream, [self.value() for _ in range(count)]))
        if not writes:
            writes.append((line["seen"][0][0], [self.value()]))
        reads = [["r", *seen] for seen in line["seen"]]
        adds = [["a", stream, value, None] for stream, values in writes for value in values]
        line |= {"op": "txn", "do": reads + adds}
        self._commit(line, writes)

    def _commit(self, line: Line, writes: list[tuple[str, list[int]]]) -> None:
        if any(self.model.look(stream)[1] != revision for stream, _, revision in line["seen"]):
            if line["ok"]:
                line["ok"] = False
        elif self._happens(line):
            for stream, values in writes:
                revision = self.model.append(stream, values)
                for what in line["do"] if line["ok"] else ():
                    if what[0] == "a" and what[1] == stream:
                        what[3] = revision

    def _act_fork(self, line: Line) -> None:
        if self.model.lists:
            parent, stream = self.random.choice(list(self.model.lists)), f"f{self.value()}"
            revision = self.random.randint(1, self.model.revisions[parent])
            length = self.model.lengths[parent][revision]
            line |= {"op": "fork", "stream": stream, "from": parent}
            line |= {"revision": revision, "length": length}
            if self._happens(line):
                self.model.fork(stream, parent, revision)

    def _act_get(self, line: Line) -> None:
        line |= {"op": "get", "value": self.model.registers.get(line["register"])}

    def _act_put(self, line: Line) -> None:
        line |= {"op": "put", "value": self.value()}
        if self._happens(line):
            self.model.registers[line["register"]] = line["value"]

    def _act_swap(self, line: Line) -> None:
        line |= {"op": "cas", "expected": line["seen"], "value": self.value()}
        if self.model.registers.get(line["register"]) != line["seen"]:
            if line["ok"]:
                line["ok"] = False
        elif self._happens(line):
            self.model.registers[line["register"]] = line["value"]

    def _act_lease(self, line: Line) -> None:
        holder, epoch = self.model.leases.get("l", (None, 0))
        owner = line["owner"]
        plan = self.random.choice(["acquire", "release", "under"])
        if holder == owner and plan != "acquire" and line["ok"]:
            line |= {"op": plan, "epoch": epoch}
            if plan == "release":
                self.model.leases["l"] = None, 0
        elif plan == "under" and line["ok"]:
            line |= {"op": "under", "epoch": self.epoch, "ok": False}
        else:
            line |= {"op": "acquire"}
            if holder not in (None, owner):
                line["ok"] = line["ok"] and False
            elif self._happens(line):
                if holder is None:
                    self.epoch += 1
                    epoch = self.epoch
                self.model.leases["l"] = owner, epoch
                if line["ok"]:
                    line["epoch"] = epoch


def correct(random: Random, operations: int | None = None) -> list[Line]:
    """Returns a history without an anomaly."""
    play = Play(
        random,
        clients=random.randint(1, 6),
        operations=random.randint(5, 40) if operations is None else operations,
        streams=random.randint(1, 3),
    )
    return play.history()


def as_text(lines: list[Line]) -> list[str]:
    return [json.dumps(line) for line in lines]
