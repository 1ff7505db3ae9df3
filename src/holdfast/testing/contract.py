"""The backend contract as a test suite, which every backend must pass.

    class TestMine(BackendContract):
        def make(self, place, clock):
            return MyBackend(place, clock=clock)

        def raw(self, backend, place, stream):
            return [...]  # the stored records, read without any method of the backend

Each test names the clause of `holdfast.backends.protocol` that it proves. What outlives a process
is proved by `DurableContract` and `MultiProcessContract` in `holdfast.testing.durable`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from holdfast.backends.protocol import (
    START,
    Backend,
    KeepsEnded,
    Lease,
    Mark,
    Rewrites,
    marks_at_moment,
    read_back,
    read_many,
    renew_many,
)
from holdfast.errors import UsageError
from holdfast.testing.ahead import AheadClauses
from holdfast.testing.clock import FakeClock
from holdfast.testing.commits import CommitClauses
from holdfast.testing.expiring import ExpiryClauses
from holdfast.testing.leases import LeaseClauses, MarkClauses, acquired
from holdfast.testing.meta import MetaClauses
from holdfast.testing.reads import ReadClauses
from holdfast.testing.record_keys import RecordKeyClauses
from holdfast.testing.records import RecordBuilder
from holdfast.testing.rewriting import RewriteClauses
from holdfast.testing.trial import accepted, head_of, write


class BackendContract(
    CommitClauses,
    RecordKeyClauses,
    ReadClauses,
    LeaseClauses,
    MarkClauses,
    ExpiryClauses,
    AheadClauses,
    MetaClauses,
    RewriteClauses,
):
    """The clauses that every backend must keep."""

    def test_clause_13_a_closed_backend_refuses_every_call(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", marks=[Mark("i", "m")])
        lease = acquired(backend, "l", "w1")
        calls = _every_call(backend, build, lease)
        backend.close()
        for name, call in calls.items():
            assert _raises_usage_error(call), f"{name} works after close"
        backend.close()

    def test_clause_13_a_forked_child_is_refused_every_call(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a", marks=[Mark("i", "m")])
        lease = acquired(backend, "l", "w1")
        calls = list(_every_call(backend, build, lease).items())
        code = _in_forked_child(lambda: _first_that_works([call for _, call in calls]))
        assert code == 0, f"works in a forked child: {calls[code - 1][0]}"
        # The parent continues as if nothing had happened.
        assert backend.leases.holder("l") == lease
        write(backend, build, "a")
        assert head_of(backend, "a").revision == 2

    def test_clause_13_a_forked_child_that_closes_does_not_close_its_parent(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        write(backend, build, "a")
        lease = acquired(backend, "l", "w1")

        def close() -> int:
            try:
                backend.close()
            except UsageError:
                return 0
            return 0

        assert _in_forked_child(close) == 0
        write(backend, build, "a")
        assert backend.leases.holder("l") == lease
        assert backend.read_all() == backend.read("a")

    def test_two_places_are_two_stores(
        self, backend: Backend, clock: FakeClock, tmp_path: Path, build: RecordBuilder
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        other = self.make(elsewhere, clock)
        write(backend, build, "a", marks=[Mark("i", "m")])
        assert other.streams() == []
        assert other.marks.list() == []
        other.close()
        assert backend.streams() == ["a"]

    def test_describe_has_plain_facts(self, backend: Backend, build: RecordBuilder) -> None:
        write(backend, build, "a")
        facts = backend.inspect.describe()
        assert {"kind", "place", "format", "durability", "size_bytes"} <= facts.keys()
        assert facts["durability"] == backend.durability
        assert isinstance(facts["kind"], str)
        assert facts["size_bytes"] >= 0

    def test_verify_finds_nothing_in_a_healthy_store(
        self, backend: Backend, build: RecordBuilder
    ) -> None:
        for n in range(5):
            write(backend, build, f"s{n % 2}", b"1", b"2", key=f"k{n}", checkpoint="p")
        accepted(backend, build.commit(marks=[Mark("i", "m")]))
        backend.objects.put("blob", "ab/cd", b"data")
        assert list(backend.inspect.verify(read_all=False)) == []
        assert list(backend.inspect.verify(read_all=True)) == []


def _every_call(
    backend: Backend, build: RecordBuilder, lease: Lease
) -> dict[str, Callable[[], object]]:
    commit = build.commit(build.append("never"))
    objects, leases, marks = backend.objects, backend.leases, backend.marks
    more: dict[str, Callable[[], object]] = {}
    if isinstance(backend, Rewrites):
        more["rewrite"] = lambda: backend.rewrite({"a": [1]})
        more["purge"] = lambda: backend.purge()
    if isinstance(backend, KeepsEnded):
        more["keep"] = lambda: backend.keep("a", True)
        more["kept"] = lambda: backend.kept()
    return more | {
        "commit": lambda: backend.commit([commit]),
        "read": lambda: backend.read("a"),
        "read_all": lambda: backend.read_all(),
        "read_many": lambda: read_many(backend, ["a"], limit=1),
        "read_back": lambda: read_back(backend),
        "heads": lambda: backend.heads(["a"]),
        "streams": lambda: backend.streams(),
        "find": lambda: backend.find("a", key="k"),
        "wait": lambda: backend.wait(START, timeout_s=0),
        "moment": lambda: backend.moment(),
        "marks_at_moment": lambda: marks_at_moment(backend),
        "now_us": lambda: backend.now_us("a"),
        "objects.put": lambda: objects.put("blob", "ab/cd", b""),
        "objects.get": lambda: objects.get("blob", "ab/cd"),
        "objects.names": lambda: objects.names("blob"),
        "objects.delete": lambda: objects.delete("blob", "ab/cd"),
        "leases.acquire": lambda: leases.acquire("l", "w1", ttl_s=10),
        "leases.renew": lambda: leases.renew(lease, ttl_s=10),
        "leases.renew_many": lambda: renew_many(leases, [lease], ttl_s=10),
        "leases.release": lambda: leases.release(lease),
        "leases.holder": lambda: leases.holder("l"),
        "leases.list": lambda: leases.list(),
        "marks.claim": lambda: marks.claim("i", "w1", n=1, ttl_s=10),
        "marks.release": lambda: marks.release("i", "m", "w1"),
        "marks.list": lambda: marks.list("i"),
        "marks.claims": lambda: marks.claims(),
        "inspect.describe": lambda: backend.inspect.describe(),
        "inspect.verify": lambda: list(backend.inspect.verify(read_all=True)),
    }


def _raises_usage_error(call: Callable[[], object]) -> bool:
    try:
        call()
    except UsageError:
        return True
    return False


def _first_that_works(calls: list[Callable[[], object]]) -> int:
    """Returns the number of the first call that does not raise UsageError, or 0."""
    works = (n for n, call in enumerate(calls, 1) if not _raises_usage_error(call))
    return next(works, 0)


def _in_forked_child(work: Callable[[], int]) -> int:
    """Returns what `work` returned in a forked child, 255 if it raised."""
    with warnings.catch_warnings():
        # Python warns of a fork beside running threads, which is what the clause is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 255
        try:
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
