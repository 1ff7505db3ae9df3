"""A retain that is killed while others write and follow: nothing is harmed, the next ends it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast

CANARY = "CANARY-91ab"
WRITERS = ("red", "blue", "green", "white")
WRITER = f"""
import sys, holdfast
hf = holdfast.open(sys.argv[1])
for number in range(20):
    chat = hf.conversation(f"{{sys.argv[2]}}-{{number}}")
    chat.set("note", ["{CANARY}", number, "x" * 300])
    chat.say("{CANARY} said")
    hf.team(sys.argv[2]).set("count", number + 1)
    chat.remove() if number % 2 else chat.close(keep=False)
hf.close()
"""
RETAINER = """
import sys, holdfast
print("up", flush=True)
while True:
    with holdfast.open(sys.argv[1]) as hf:
        hf.retention.run(grace_s=0, wait_s=5)
"""
FOLLOWER = """
import sys, holdfast
from holdfast.backends.protocol import START
hf = holdfast.open(sys.argv[1])
seen = {}
for event in hf.follow(as_events=True, after=START, timeout_s=None):
    known = seen.get(event.stream, 0)
    assert event.revision == known + 1, (event, known)
    seen[event.stream] = event.revision
    if event.stream == "team/end":
        break
print("followed", flush=True)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_killed_again_and_again_beside_writers_and_a_follower(tmp_path: Path, kind: str) -> None:
    """Guarantees 2, 5 and 6, with four writers, a follower, and a retain that dies at random."""
    url = str(tmp_path / "store") if kind == "files" else f"sqlite:{tmp_path / 'store.db'}"
    holdfast.open(url).close()
    chance = random.Random(11)
    with ExitStack() as beside:
        follower = beside.enter_context(start(FOLLOWER, url))
        writers = [beside.enter_context(start(WRITER, url, name)) for name in WRITERS]
        for _ in range(6):
            with start(RETAINER, url) as retainer:
                assert retainer.stdout is not None
                assert retainer.stdout.readline() == "up\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    retainer.wait(chance.uniform(0.05, 0.6))
                retainer.send_signal(signal.SIGKILL)
        assert [writer.wait() for writer in writers] == [0] * len(WRITERS)
        with holdfast.open(url) as hf:
            hf.team("end").set("n", 1)
        out, _ = follower.communicate()
        assert (follower.returncode, out) == (0, "followed\n")
    with holdfast.open(url) as hf:
        hf.retention.run(grace_s=0, whole=True, wait_s=60)
        assert hf.check().findings == []
        assert [hf.team(name).get("count") for name in WRITERS] == [20] * len(WRITERS)
        assert hf.retention.run(grace_s=0).scopes == []
        gone = {(one.scope, one.why) for one in hf.retention.past()}
        assert len(gone) == 80
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
