"""The proof of the checker (reliability programme, section 4): it lets what is correct pass, and
finds every anomaly that was put in. HOLDFAST_SEED repeats a run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.checker.anomalies import check, check_lines
from tests.checker.histories import as_text, correct
from tests.checker.history import BadHistory, parse
from tests.checker.spoiled import SPOILS, Spoil, spoil

SEED = int(os.environ["HOLDFAST_SEED"])
ROOT = Path(__file__).resolve().parent.parent.parent
CORRECT = 10_000
PARTS = 8
EACH = 100


@pytest.mark.parametrize("part", range(PARTS))
def test_correct_histories_raise_no_alarm(part: int) -> None:
    for number in range(part, CORRECT, PARTS):
        seed = f"{SEED} correct {number}"
        found = check_lines(as_text(correct(Random(seed))))
        assert not found, f"Random({seed!r}): {[str(finding) for finding in found]}"


@pytest.mark.parametrize("how", SPOILS, ids=lambda how: how.__name__)
def test_every_anomaly_is_found(how: Callable[[Spoil], None]) -> None:
    for number in range(EACH):
        seed = f"{SEED} {how.__name__} {number}"
        found = check_lines(as_text(spoil(Random(seed), how)))
        types = {finding.type for finding in found}
        assert SPOILS[how] in types, f"Random({seed!r}): {[str(finding) for finding in found]}"


def test_there_are_twenty_anomalies_and_more() -> None:
    assert len(SPOILS) >= 20
    types = {"G0", "G1a", "G1b", "G1c", "G-single", "G2", "lost-append", "duplicate-append"}
    assert types <= set(SPOILS.values())


def test_a_circle_is_told_in_words() -> None:
    lines = [
        '{"client":1,"op":"append","stream":"s","value":1,"start":1,"end":2,"ok":true}',
        '{"client":2,"op":"read","stream":"s","values":[],"start":3,"end":4,"ok":true}',
        '{"op":"final","stream":"s","values":[1]}',
    ]
    [finding] = check_lines(lines)
    assert finding.type == "G-single-realtime"
    assert (
        finding.text.splitlines()
        == [
            "a stale read, a circle of 2",
            "  T1 = line 1 (client 1 appended 1 to s)",
            "  T2 = line 2 (client 2 read 0 of s)",
            "  T2 before T1: it read s without what the other added",
            "  T1 before T2: it had ended when the other began",
        ]
        or finding.text.splitlines()[0] == "a stale read, a circle of 2"
    )


@pytest.mark.parametrize("unheard", [False, True])
def test_a_swap_that_no_server_heard_of_says_nothing_of_the_register(unheard: bool) -> None:
    lines = [
        '{"client":1,"op":"put","register":"r","value":1,"start":1,"end":2,"ok":true}',
        '{"client":1,"op":"cas","register":"r","expected":1,"value":2,"start":3,"end":4,"ok":false'
        + (',"unheard":true}' if unheard else "}"),
    ]
    assert [finding.type for finding in check_lines(lines)] == (
        [] if unheard else ["not-linearisable"]
    )


def test_an_operation_that_nobody_knows_of_may_have_happened_or_not() -> None:
    unknown = '{"client":1,"op":"append","stream":"s","value":1,"start":5,"end":null,"ok":null}'
    for values in ("[]", "[1]"):
        final = f'{{"op":"final","stream":"s","values":{values}}}'
        late = f'{{"client":1,"op":"read","stream":"s","values":{values},'
        assert check_lines([unknown, final, late + '"start":90,"end":99,"ok":true}']) == []


@pytest.mark.parametrize(
    "lines",
    [
        ['{"op":"append"}'],
        ["[]"],
        ["no json"],
        ['{"op":"dance","ok":true}'],
        ['{"op":"append","stream":"s","value":1,"start":2,"end":1,"ok":true}'],
        ['{"op":"append","stream":"s","value":1,"ok":true}'] * 2,
    ],
)
def test_what_is_no_history_is_not_judged(lines: list[str]) -> None:
    with pytest.raises(BadHistory):
        check_lines(lines)


def test_a_long_history_is_checked_in_one_go() -> None:
    """Nothing grows with the square of it: 20,000 operations on three lists, partial reads."""
    random = Random(SEED)
    lines: list[str] = []
    lists: list[list[int]] = [[], [], []]
    for n in range(20_000):
        s, time = random.randrange(3), 10 * n
        rest = f'"client":{n % 32},"start":{time},"end":{time + random.randrange(1, 9)},"ok":true'
        if random.random() < 0.5:
            lists[s].append(n)
            lines.append(f'{{"op":"append","stream":"s{s}","value":{n},{rest}}}')
        else:
            after = max(0, len(lists[s]) - 3)
            values = lists[s][after:]
            lines.append(f'{{"op":"read","stream":"s{s}","from":{after},"values":{values},{rest}}}')
    lines += [f'{{"op":"final","stream":"s{n}","values":{lists[n]}}}' for n in range(3)]
    history = parse(lines)
    assert len(history) == 20_000
    assert check(history) == []


def test_the_command_says_what_it_found(tmp_path: Path) -> None:
    fine, bad = tmp_path / "fine.jsonl", tmp_path / "bad.jsonl"
    fine.write_text("\n".join(as_text(correct(Random(SEED)))))
    bad.write_text('{"op":"append","stream":"s","value":1,"ok":true}\n')
    for path, code, said in ((fine, 0, " 0 anomalies"), (bad, 1, "lost-append")):
        done = subprocess.run(
            [sys.executable, "-m", "tests.checker", str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert said in done.stdout


def test_the_checker_stands_on_nothing_of_ours() -> None:
    for name in ("history", "order", "graph", "anomalies", "register", "__main__"):
        tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for imported in names:
                own = imported.startswith("tests.checker")
                assert own or imported.partition(".")[0] in sys.stdlib_module_names, imported
