"""Steps that are processes: real ones, ended with the run, with all that they started (rule 9)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, RunFailedError, StepError, Store, UsageError, aio
from holdfast.backends.protocol import START
from holdfast.errors import RunCancelledError
from holdfast.runs.engine import Engine
from tests.processes import await_end
from tests.record.stores import new_url
from tests.runs.cuts import until

PYTHON = sys.executable
ROOT = Path(__file__).parents[2]

# Says its own number and that of a child of its own, and stays, deaf to TERM if it is told so.
STAYS = """
import os, signal, subprocess, sys, time
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as store:
        yield store


def await_numbers(place: Path, run: Any = None) -> list[int]:
    """Returns the numbers of a process and its child, as soon as both are there."""
    pause = threading.Event()
    for _ in range(6000):
        with contextlib.suppress(FileNotFoundError):
            return [int(word) for word in place.read_text().split()]
        pause.wait(0.02)
    raise AssertionError("the process did not begin")


@holdfast.run(name="tests:processes")
def talking(ctx: Any, code: int) -> list[Any]:
    script = "import sys; print(sys.stdin.read() + '!'); print('oh', file=sys.stderr); exit(%d)"
    output = ctx.process(
        [PYTHON, "-c", script % code], effect="pure", stdin="$(id) hé", check=False, name="talk"
    )
    return [type(output).__name__, output.code, output.out, output.err, output.cut]


def test_a_process_is_a_step_with_its_output(hf: Store):
    """Rule 1: the output as it was stored; no shell reads the words."""
    run = hf.runs.start(talking, 3, id="r")
    assert run.result() == ["Output", 3, "$(id) hé!\n", "oh\n", 0]
    entry = run.journal.entries["talk"]
    assert (entry.kind, entry.effect, entry.state) == ("step", "pure", "done")


def test_a_process_that_fails_is_a_step_that_failed(hf: Store):
    @holdfast.run(name="tests:failing process")
    def failing(ctx: Any) -> Any:
        script = "import sys; print('half'); sys.exit('no')"
        try:
            ctx.process([PYTHON, "-c", script], effect="idempotent", retry=2, name="fails")
        except StepError as error:
            return [error.kind, error.data]

    @holdfast.run(name="tests:no program")
    def nothing(ctx: Any) -> Any:
        ctx.process(["/nowhere/program"], effect="effect")

    assert hf.runs.start(failing, id="f").result() == [
        "ExitError",
        {"code": 1, "out": "half\n", "err": "no\n"},
    ]
    assert hf.runs.get("f").journal.entries["fails"].attempt == 2
    with pytest.raises(RunFailedError, match="cannot be run: No such file") as failed:
        hf.runs.start(nothing).result()
    assert failed.value.kind == "StepError" or "FileNotFoundError" in str(failed.value)


def test_it_knows_its_key_and_its_environment_is_not_journalled(hf: Store):
    @holdfast.run(name="tests:told")
    def told(ctx: Any) -> str:
        script = "import os; print(*[os.environ[n] for n in ('HOLDFAST_KEY', 'SECRET')])"
        words = [PYTHON, "-c", script]
        return ctx.process(words, effect="idempotent", env={"SECRET": "s3"}, name="told").out

    run = hf.runs.start(told, id="r")
    assert run.result() == "r/told s3\n"
    inputs = [
        e.data
        for e in hf.follow(as_events=True, after=START, timeout_s=0)
        if e.type == "run.intended"
    ]
    assert len(inputs) == 1
    assert "s3" not in str(inputs)


def test_output_is_bounded_and_its_end_is_kept(hf: Store):
    @holdfast.run(name="tests:loud")
    def loud(ctx: Any) -> Any:
        script = "print('x' * 3_000_000); print('last')"
        output = ctx.process([PYTHON, "-c", script], effect="pure", output_max=100)
        return [len(output.out), output.out[-5:], output.cut]

    assert hf.runs.start(loud).result() == [100, "last\n", 3_000_006 - 100]


def test_what_it_left_in_its_group_is_ended_with_it(hf: Store, tmp_path: Path):
    @holdfast.run(name="tests:parent")
    def parent(ctx: Any) -> int:
        script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
        return int(ctx.process([PYTHON, "-c", script], effect="pure").out)

    await_end([hf.runs.start(parent).result()])


@holdfast.run(name="tests:staying")
def staying(ctx: Any, place: str, how: str, timeout: Any = None) -> None:
    ctx.process(
        [PYTHON, "-c", STAYS, place, how],
        effect="effect",
        name="stay",
        timeout=timeout,
        grace=600 if how == "hears" else 0.2,
    )


@pytest.mark.parametrize("how", ["hears", "deaf"])
def test_cancel_ends_the_group_and_the_act_is_uncertain(hf: Store, tmp_path: Path, how: str):
    """Rule 9: TERM, then KILL; a cancelled effect in flight is uncertain, not cancelled."""
    place = tmp_path / "numbers"
    run = hf.runs.start(staying, str(place), how)
    numbers = await_numbers(place)
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(timeout=60)
    await_end(numbers)
    assert [entry.path for entry in run.journal.uncertain()] == ["stay"]
    hf.runs.settle(run.id, "stay", holdfast.Unknown("nobody looked"))
    hf.runs.settle(run.id, "stay", holdfast.Done())
    assert not run.journal.uncertain(), "also after the end somebody may say what became of it"
    assert [one.status for one in hf.runs.list(status="cancelled")] == ["cancelled"]
    with pytest.raises(RunCancelledError):
        hf.runs.get(run.id).result(timeout=60)
    with pytest.raises(NotFoundError):
        hf.runs.adopt(run.id)
    hf.runs.remove(run.id)


def test_a_stop_from_another_process_is_heard_while_a_step_works(durable_url: str, tmp_path: Path):
    """Rule 9: the owner makes no commit meanwhile that would tell it."""
    place = tmp_path / "numbers"
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        run = one.runs.start(staying, str(place), "hears", id="r")
        numbers = await_numbers(place)
        two.runs.cancel("r")
        with pytest.raises(RunCancelledError):
            run.result(timeout=60)
        await_end(numbers)


def test_a_timeout_is_a_failure_that_proves_nothing(hf: Store, tmp_path: Path):
    """Rule 8."""
    run = hf.runs.start(staying, str(tmp_path / "numbers"), "hears", 0.3, id="r")
    with pytest.raises(RunFailedError, match=r"took longer than 0\.3 s"):
        run.result(timeout=60)
    fault = run.journal.entries["stay"].error
    assert fault is not None
    assert (fault.kind, fault.outcome) == ("TimeoutError", "unknown")


def test_a_lost_race_ends_its_process(hf: Store, tmp_path: Path):
    place = tmp_path / "numbers"

    def quick(ctx: Any) -> str:
        await_numbers(place)
        return "won"

    def slow(ctx: Any) -> None:
        ctx.process([PYTHON, "-c", STAYS, str(place), "hears"], effect="pure")

    @holdfast.run(name="tests:raced")
    def raced(ctx: Any) -> Any:
        return ctx.parallel(join="first", quick=ctx.branch(quick), slow=ctx.branch(slow))

    assert hf.runs.start(raced).result() == {"quick": "won"}
    await_end(await_numbers(place))


def test_an_owner_that_lost_its_lease_ends_its_process(durable_url: str, tmp_path: Path):
    """Rule 10: another worker may do it again; this one must not go on beside it."""
    place = tmp_path / "numbers"
    with holdfast.open(durable_url) as one:
        one.runs.start(staying, str(place), "hears", id="r")
        numbers = await_numbers(place)
        run = one._kernel.part(Engine).active["r"]
        one._kernel.leases.drop(run.lease)
        one._log._backend.leases.release(run.lease)
        assert run.over.wait(60)
        await_end(numbers)


PROGRAM = """
import sys
import holdfast
sys.path.insert(0, {root!r})
from tests.runs.test_processes import staying
with holdfast.open({url!r}) as hf:
    hf.runs.start(staying, {place!r}, "deaf", id="r").result()
"""


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_nothing_of_a_killed_owner_goes_on(kind: str, tmp_path: Path):
    """SIGKILL of the owner: the process and its child, deaf to TERM, end without anybody's help."""
    place = tmp_path / "numbers"
    url = new_url(kind, tmp_path)
    program = PROGRAM.format(root=str(ROOT), url=url, place=str(place))
    owner = subprocess.Popen([PYTHON, "-c", program], cwd=ROOT)
    numbers = await_numbers(place)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    await_end(numbers)
    with holdfast.open(url) as hf, pytest.raises(holdfast.NeedsAttentionError):
        hf.runs.resume("r").result(timeout=60)


def test_a_cancelled_async_run_ends_its_process(tmp_path: Path):
    place = tmp_path / "numbers"

    @holdfast.run(name="tests:staying async")
    async def waits(ctx: Any) -> None:
        await ctx.process([PYTHON, "-c", STAYS, str(place), "hears"], effect="effect", name="stay")

    @holdfast.run(name="tests:given up")
    async def gives_up(ctx: Any) -> str:
        output = await ctx.process([PYTHON, "-c", "print(1)"], effect="pure", name="prints")
        return output.out

    async def main() -> None:
        async with await aio.open("memory:") as store:
            assert await (await store.runs.start(gives_up)).result() == "1\n"
            run = await store.runs.start(waits)
            numbers = await asyncio.to_thread(await_numbers, place)
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=60)
            await asyncio.to_thread(await_end, numbers)

    asyncio.run(main())


def test_an_awaited_process_that_is_given_up_is_ended(tmp_path: Path):
    place = tmp_path / "numbers"
    left: list[bool] = []

    @holdfast.run(name="tests:given up too")
    async def gives_up(ctx: Any) -> None:
        words = [PYTHON, "-c", STAYS, str(place), "hears"]
        task = asyncio.ensure_future(ctx.process(words, effect="pure", name="stay"))
        await asyncio.sleep(0)
        numbers = await asyncio.to_thread(await_numbers, place)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(await_end, numbers)
        left.append(False)

    async def main() -> None:
        async with await aio.open("memory:") as store:
            await (await store.runs.start(gives_up)).result(timeout=60)

    asyncio.run(main())
    assert left == [False]


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ("ls -l", {}),
        ([], {}),
        ([1], {}),
        (["a\0b"], {}),
        (["ls"], {"env": {"a=b": "c"}}),
        (["ls"], {"env": [1]}),
        (["ls"], {"stdin": b"x"}),
        (["ls"], {"cwd": 1}),
        (["ls"], {"timeout": "soon"}),
        (["ls"], {"output_max": 0}),
        (["ls"], {"effect": "txn"}),
        (["ls"], {"effect": None}),
    ],
)
def test_bad_arguments_are_told(hf: Store, argv: Any, options: dict[str, Any]):
    @holdfast.run(name="tests:bad process")
    def bad(ctx: Any) -> None:
        with pytest.raises(UsageError):
            ctx.process(argv, **{"effect": "pure", **options})

    hf.runs.start(bad).result()


def test_a_dry_fork_starts_no_process(hf: Store, tmp_path: Path):
    """Rule 12: and what it left out is None, whatever the annotation says."""
    place = tmp_path / "touched"

    @holdfast.run(name="tests:touching")
    def touching(ctx: Any) -> bool:
        return ctx.process(["touch", str(place)], effect="effect", name="touch") is None

    assert hf.runs.start(touching, id="r").result() is False
    place.unlink()
    assert hf.runs.fork("r", "touch", id="dry", effects="dry").id == "dry"
    assert hf.runs.resume("dry").result() is True
    assert not place.exists()
    until(hf.runs.get("dry"), "completed")
