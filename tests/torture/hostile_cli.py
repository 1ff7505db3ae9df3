"""Hostile words on the command line, and hostile data shown by it.

In this process for nearly all, in processes of their own for a sample. Whatever is typed or
stored: a known exit code, no traceback, nothing on the screen that could drive it, and --json is
JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

import holdfast
from holdfast.cli import app, main
from tests.torture.hostile_ground import Ground, shown, timed
from tests.torture.hostile_words import WORDS, mutants
from tests.torture.programme import Broken, Point

ROOT = Path(__file__).resolve().parents[2]
CODES = range(11)
DRIVES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
DEEP = 50_000

Typed = Callable[[str], list[str]]
VERBS: dict[str, Typed] = {
    "nothing": lambda w: [w],
    "twice": lambda w: [w, w],
    "show": lambda w: ["show", w],
    "show at": lambda w: ["show", "team/a", "--at", w],
    "get": lambda w: ["get", "team/a", w],
    "get json path": lambda w: ["get", "team/a", json.dumps([w, 0])],
    "get of": lambda w: ["get", w, "k"],
    "set value": lambda w: ["set", "team/a", "k", w],
    "set text": lambda w: ["set", "team/a", "k", w, "--text"],
    "set path": lambda w: ["set", "team/a", w, "1"],
    "set scope": lambda w: ["set", w, "k", "1"],
    "set key": lambda w: ["set", "team/a", "k", "1", "--key", w],
    "set expected": lambda w: ["set", "team/a", "k", "1", "--expected", w],
    "set actor": lambda w: ["set", "team/a", "k", "1", "--actor", w],
    "delete": lambda w: ["delete", "team/a", w],
    "log": lambda w: ["log", w],
    "log limit": lambda w: ["log", "--limit", w],
    "diff": lambda w: ["diff", "team/a", w],
    "checkpoint": lambda w: ["checkpoint", "team/a", w],
    "restore": lambda w: ["restore", "team/a", w],
    "fork": lambda w: ["fork", "team/a", w],
    "scopes": lambda w: ["scopes", w],
    "check": lambda w: ["check", "--expect", w],
    "store": lambda w: ["status", "--store", w],
    "follow": lambda w: ["follow", w, "--timeout", "0"],
    "trust": lambda w: ["trust", w, "--yes"],
    "trust no more": lambda w: ["trust", w, "--revoke"],
}
PARSING = ("get", "set value", "set path", "show at", "diff")
"""Verbs whose words have a grammar of their own."""
TYPED_MORE = (
    *("[" * DEEP, '["a",' * DEEP, '{"a":' * 20_000, "9" * 5000, "[" + "9" * 5000 + "]", "-9" * 50),
    *("@time:9999-12-31T23:59:59-23:59", "@time:0001-01-01T00:00+23:59", "@time:x", "@revision:"),
    *("@revision:" + "9" * 30, "@name:", "0001-01-01", "9999-12-31T23:59:59.999999-12:00", "1e999"),
    *('{"a":1,"a":2}', '{"$bytes":"!"}', '{"$float":"x"}', '{"$text":"["}', "NaN", "-Infinity"),
    *('{"$datetime":"x"}', '{"$pairs":[1]}', '{"$blob":{"id":"../x","size":1}}', '"\\ud800"'),
    *(
        "a[0",
        "a[]",
        "a[-1]",
        "a.b.c" * 200,
        "[[]]",
        "[null]",
        "[1.5]",
        '{"a":' + "[" * 90 + "]" * 90,
    ),
    "{" + ",".join(f'"{n}":0' for n in range(20_000)) + ',"19999":1}',
)


class Screen(io.StringIO):
    """Standard output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def cases(point: Point) -> Iterator[tuple[str, list[str]]]:
    """Yields commands: each verb with every fourth word, so that each word meets six verbs."""
    for number, (name, typed) in enumerate(VERBS.items()):
        words = [*WORDS[number % 4 :: 4], *mutants(Random(f"{point.seed} {name}"), 6)]
        words += TYPED_MORE if name in PARSING else TYPED_MORE[number % 8 :: 8]
        for word in words:
            if len(word) < 120_000:
                yield name, typed(word)


def looks() -> list[list[str]]:
    """Returns the verbs that show what is stored."""
    verbs = [
        *(["show", "team/a"], ["show", "team/a", "--at", "-1"], ["get", "team/a", "[]"], ["log"]),
        *(["log", "team/a", "--limit", "1000"], ["diff", "team/a", "0"], ["checkpoints", "team/a"]),
        *(["scopes"], ["status"], ["check"], ["check", "--read-all"], ["doctor"]),
        *(["follow", "--all", "--after", "0", "--timeout", "0"], ["restore", "team/a", "-1"]),
        *(["follow", "team/a", "--after", "0", "--timeout", "0"], ["undo", "team/a"]),
    ]
    return verbs


def fill(url: str, words: list[str]) -> None:
    """Puts hostile text wherever text can be."""
    with holdfast.open(url, durability="process") as store:
        scope = store.team("a")
        scope.set("k", 0, checkpoint="one")
        scope.update({word: [word, {word: word.encode(errors="replace")}] for word in words})
        for word in words:
            with contextlib.suppress(holdfast.HoldfastError):
                scope.set(("deep", word), word, checkpoint=word)
            with contextlib.suppress(holdfast.HoldfastError):
                store.team(word).set("a", word, key=word)
            with contextlib.suppress(holdfast.HoldfastError):
                scope.append("list", {word: word})


def run(words: list[str], *, is_screen: bool = False) -> tuple[int, str, str]:
    """Runs one command here; a word typed in a shell has no NUL in it."""
    out, err = Screen() if is_screen else io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"from standard input"))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        sys.stdin = stdin
    return code, out.getvalue(), err.getvalue()


def judge(words: list[str], ran: tuple[int, str, str]) -> None:
    """Raises Broken for an unknown exit code, a screen that is driven, or JSON that is none."""
    what = f"holdfast {shown(words)}"
    code, out, err = ran
    if code not in CODES:
        raise Broken(f"{what}: exit code {code}: {err[-500:]}")
    for text in (out, err):
        if found := DRIVES.search(text):
            raise Broken(f"{what}: {found.group()!r} reached the terminal: {text[:200]!r}")
        if "Traceback" in text:
            raise Broken(f"{what}: a traceback: {text[-800:]}")
    if code and not err.strip() and words[:1] not in (["check"], ["doctor"]):
        raise Broken(f"{what}: exit code {code} and no word")


def judge_json(words: list[str], ran: tuple[int, str, str]) -> None:
    judge(words, ran)
    what = f"holdfast {shown(words)}"
    code, out, err = ran
    if "--" in words or any(word.startswith(("-h", "--h", "--v", "--i")) for word in words):
        return
    try:
        for line in out.splitlines():
            json.loads(line)
        if code and err and not err.startswith("warning"):
            json.loads(err)["error"]["message"]
    except (ValueError, KeyError) as exc:
        raise Broken(f"{what}: what it printed is not JSON: {exc}: {out[:300]!r} {err!r}") from exc


_make_app = app.make_app
_parser = cache(lambda: _make_app())


def parse_with_one_parser() -> None:
    """Makes the parser once: making it takes longer than all else that a command does."""
    _parser()
    app.make_app = _parser  # type: ignore[assignment]


def in_process(ground: Ground, typed: list[tuple[str, list[str]]], *, all_forms: bool) -> int:
    """Tries commands here, with the store named by the environment."""
    count = 0
    os.environ.update(HOLDFAST_STORE=ground.url, TERM="dumb", COLUMNS="100")
    os.chdir(ground.home)
    parse_with_one_parser()
    for number, (_, words) in enumerate(typed):
        what = f"holdfast {shown(words)}"
        forms = ("plain", "json", "screen") if all_forms else (("plain", "json")[number % 2],)
        for form in forms:
            with timed(what):
                try:
                    if form == "json":
                        told = [*words[:1], "--json", *words[1:]]
                        judge_json(told, run(told))
                    else:
                        judge(words, run(words, is_screen=form == "screen"))
                except Broken:
                    raise
                except SystemExit as exc:
                    raise Broken(f"{what}: left by SystemExit {exc}") from exc
                except Exception as exc:
                    raise Broken(f"{what}: {type(exc).__name__}: {exc}") from exc
            count += 1
    return count


START = [sys.executable, "-c", "import sys; from holdfast.cli import main; sys.exit(main())"]
_CALL = re.compile(
    r"(?P<call>\w+)\((?P<at>AT_FDCWD|\d+)?(?:, )?"
    r'"(?P<path>(?:[^"\\]|\\.)*)"(?P<rest>.*)'
)


def environment_of(ground: Ground) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOLDFAST_STORE": ground.url,
    }


def under_strace(ground: Ground) -> int:
    """Looks at every path that commands open, make or rename; 0 where there is no strace."""
    if shutil.which("strace") is None:
        return 0
    traced = ground.place / "traced"
    calls = "trace=openat,open,creat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link"
    count = 0
    for words in (
        ["set", "team/../../../canary", "k", "1", "--key", "../../x", "--checkpoint", "/etc/x"],
        ["set", "team/a", "../../etc/passwd", "y" * 70_000, "--text"],
        ["fork", "team/a", "../../../etc"],
        ["check", "--read-all"],
    ):
        command = ["strace", "-f", "-qq", "-s", "300", "-e", calls, "-o", str(traced)]
        done = subprocess.run(
            [*command, *START, *words],
            cwd=ground.home,
            env=environment_of(ground),
            capture_output=True,
            timeout=300,
        )
        if b"ptrace" in done.stderr and not traced.read_bytes():
            return 0  # a machine on which nobody may be traced
        judge(words[:2], (done.returncode, done.stdout.decode(), done.stderr.decode()))
        for line in traced.read_text(errors="replace").splitlines():
            if problem := _escape(line, str(ground.path)):
                raise Broken(f"holdfast {shown(words)} {problem}: {line}")
        count += 1
    traced.unlink(missing_ok=True)
    return count


def _escape(line: str, store: str) -> str:
    """Returns what is wrong with a system call, "" for one that writes nothing or stays inside."""
    found = _CALL.search(line)
    if found is None or " = -1 " in line:
        return ""
    path, rest = found["path"], found["rest"]
    is_write = "open" not in found["call"] or re.search("O_WRONLY|O_RDWR|O_CREAT", rest)
    if not is_write or path.startswith((store, "/dev/")):
        return ""
    if found["at"] not in (None, "AT_FDCWD") and "/" not in path and ".." not in path:
        return ""
    return f"wrote to {path}"


def in_processes(ground: Ground) -> int:
    """Tries a sample in processes of their own, also with words that are no text at all."""
    raw: list[list[bytes]] = [
        [b"set", b"team/a", b"k", b"\xff\xfe\x1b[2J"],
        [b"set", b"team/\xff\x1b]0;x\x07", b"k", b"1"],
        [b"get", b"team/a", b"[" * DEEP],
        [b"show", b"team/a"],
        [b"\x1b[31m\xff"],
    ]
    for words in raw:
        done = subprocess.run(
            [*START, *words],
            cwd=ground.home,
            env=environment_of(ground),
            capture_output=True,
            timeout=300,
        )
        text = [part.decode(errors="surrogateescape") for part in (done.stdout, done.stderr)]
        judge([repr(word)[:60] for word in words], (done.returncode, text[0], text[1]))
    return len(raw)
