"""Programs in context: nothing is on disk, and the printed transcript is the state.

Such a program is a run in a store in memory. Each event of its journal is printed as one line
(`narration`) before it is committed, so the lines are the journal. A store made from them has the
same events and variables, and the program can be resumed there. When the transcript gets too long,
or when the program waits for somebody, the same events are put into a durable store, and the
program goes on there.

The answer of a session is printed together with the intent of the next step, as both are in one
commit. So a session that was running when the transcript ends is asked again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import StreamState
from holdfast.core.kernel import kernel_of
from holdfast.core.tree import Op
from holdfast.errors import UsageError
from holdfast.prose import syntax as tree
from holdfast.prose.narration import Narrator, Transcript
from holdfast.prose.program import Stored, loaded
from holdfast.prose.settings import Limits
from holdfast.runs import events
from holdfast.runs.engine import Engine
from holdfast.runs.execution import status_marks
from holdfast.runs.journal import Journal

if TYPE_CHECKING:
    from holdfast.store import Store

_PREFIX = "run."
_BLOB = "blob"
_MOVED = "moved"
_logger = logging.getLogger("holdfast.prose")


class MovedError(UsageError):
    """Raised when the transcript of a program is too long: it must go on in a durable store."""


def reason_to_store(program: Stored, limits: Limits) -> str | None:
    """Returns why a program should be kept in the store; None if it fits into a transcript."""
    trees = [loaded(source.text, source.file) for source in program.sources.values()]
    counts = [_measured(one.body) for one in trees]
    found = {
        "statements": sum(count.statements for count in counts),
        "branches": max(count.branches for count in counts),
        "imports": len(program.sources) - 1,
        "depth": max(count.depth for count in counts),
    }
    for name, count in found.items():
        if count > (most := getattr(limits, name)):
            return f"it has {count} {name}, at most {most} are kept in context"
    for one in (statement for program in trees for statement in program.body):
        persist = one.settings.persist if isinstance(one, tree.Agent) else None
        if isinstance(one, tree.Agent) and persist is not None and persist.place != "run":
            return f"agent {one.name} remembers beyond the run"
    return None


class _Measured(Struct):
    statements: int = 0
    branches: int = 0
    depth: int = 0


def _measured(body: tree.Body) -> _Measured:
    """Counts the statements of a program, its widest parallel block, and how deep bodies nest."""
    found = _Measured()
    waiting: list[tuple[Any, int]] = [(one, 0) for one in body]
    while waiting:
        node, depth = waiting.pop()
        found.statements += 1
        found.depth = max(found.depth, depth)
        value = tree.value_of(node) or node
        inner = [statement for _, part in tree.bodies(value) for statement in part]
        if isinstance(value, tree.Parallel):
            found.branches = max(found.branches, len(value.branches))
            inner += [branch.statement for branch in value.branches]
        waiting += [(one, depth + 1) for one in inner]
    return found


class Telling:
    """Prints the journal of one run, each event before it is committed.

    It is a validator of the log, so no event is committed that was not printed. When the transcript
    gets too long, it prints the commit that exceeds the limit and refuses it. The run has not acted
    on that commit yet, and all printed events go to the store.
    """

    def __init__(
        self, store: Store, id: str, narrator: Narrator, say: Callable[[str], None], most: int
    ) -> None:
        self.store = store
        self._stream = f"run/{id}"
        self._narrator = narrator
        self._say = say
        self._most = most
        self.id = id
        self.told: list[NewEvent] = []
        self.blobs: list[bytes] = []
        self.characters = 0
        self.waits = False
        """Whether the run waits for an answer, which cannot be given in a transcript."""
        self.is_full = False
        self._known: set[str] = set()

    def begin(self) -> None:
        """Prints the first line, and every event from now on."""
        self._tell(self._narrator.begin())
        self.go_on([])

    def go_on(self, told: Sequence[NewEvent]) -> None:
        """Prints every event from now on that comes after the given ones."""
        self.told = list(told)
        kernel_of(self.store).log.add_validator(self._validate)

    def _validate(self, write: StreamWrite, before: StreamState, after: StreamState) -> None:
        if write.stream != self._stream:
            return
        if self.is_full:
            raise self._too_much()
        if before.revision < len(self.told):
            return  # the commit was prepared again: its events were printed the first time
        for one in write.new_events:
            self._tell_event(one)
        if self.characters > self._most:
            self.is_full = True
            raise self._too_much()

    def _too_much(self) -> MovedError:
        return MovedError(f"its transcript has more than {self._most:,} characters")

    def _tell_event(self, one: NewEvent) -> None:
        for id, size in codec.blobs_in(one.payload):
            if id not in self._known:
                self._known.add(id)
                encoded = kernel_of(self.store).log.blobs.read(id, size)
                self.blobs.append(encoded)
                self._tell(self._narrator.tell(_BLOB, id, encoded.decode()))
        data = json.loads(one.payload)
        path = data.get("path", "") if one.type != "run.created" else self.id
        self.told.append(one)
        self.waits = one.type == "run.suspended" and data.get("until") is None
        self._tell(self._narrator.tell(one.type.removeprefix(_PREFIX), path, data))

    def tell_moved(self, place: str) -> None:
        """Prints that the run goes on elsewhere, so that this transcript cannot be resumed."""
        self._tell(self._narrator.tell(_MOVED, place, {}))

    def _tell(self, line: str) -> None:
        self.characters += len(line) + 1
        self._say(line)


class Rebuilt(Struct, frozen=True):
    """A run read from a transcript: its events, and the blobs that they name."""

    id: str
    told: tuple[NewEvent, ...]
    blobs: tuple[bytes, ...]
    count: int
    """The number of lines so far; a narrator goes on after them."""


def rebuild(transcript: Transcript) -> Rebuilt:
    """Returns the run of a transcript; raises UsageError if there is none in it.

    Lines that the narrator did not write are ignored. Nothing after a missing line counts, because
    the journal would have a gap.
    """
    if not transcript.has_nonce or not transcript.events:
        raise UsageError(
            "the transcript has no beginning: nothing in it can be believed",
            hint="give the whole of what prose run --in-context printed",
        )
    for number in transcript.forged:
        _logger.warning("line %d of the transcript was not told by the narrator", number)
    first = transcript.events[0]
    if first.kind != "created":
        raise UsageError("the transcript does not begin with the start of a program")
    told: list[NewEvent] = []
    blobs: list[bytes] = []
    for one in transcript.events:
        if one.kind == _MOVED:
            raise UsageError(
                f'the program was moved to the store "{one.path}", and goes on there',
                hint=f"holdfast prose resume {first.path}",
            )
        if one.kind == _BLOB:
            blobs.append(one.data.encode())
        else:
            payload = json.dumps(one.data, separators=(",", ":")).encode()
            told.append(NewEvent(f"{_PREFIX}{one.kind}", payload))
    return Rebuilt(first.path, tuple(told), tuple(blobs), len(transcript.events))


def put_into(store: Store, run: Rebuilt) -> None:
    """Puts a run into a store as if it had been executed there; raises ExistsError if it exists."""
    journal = Journal()
    for one in run.told:
        journal.apply(events.read(one.type, one.payload))
    stream = f"run/{run.id}"
    kernel = kernel_of(store)
    for encoded in run.blobs:
        kernel.log.blobs.spill(Op("set", "value", Raw(encoded)), stream)
    free_after = kernel.part(Engine).free_after(run.id)
    write = StreamWrite(stream, run.told, expected=free_after or 0)
    status = journal.status
    marks = status_marks(run.id, status if status in events.ENDED else "running")
    kernel.log.commit(ProposedCommit((write,), marks=marks))


def moved(telling: Telling) -> Rebuilt:
    """Returns the printed events of a run, to go on with it in a store."""
    return Rebuilt(telling.id, tuple(telling.told), tuple(telling.blobs), 0)
