"""What the checker says of names in texts is what the program does with them."""

from __future__ import annotations

import holdfast
from holdfast.agents import Scripted
from holdfast.prose import check, gather_text, start


def result(text: str) -> object:
    with holdfast.open("memory:") as store:
        store.runs.use_executor(Scripted({}))
        return start(store, gather_text(text), id="r").result()


def test_a_name_that_is_bound_only_later_stays_text():
    text = 'let early = """use {later}"""\nlet later = 1\noutput said = early\n'
    assert [one.code for one in check(text)] == ["unbound-text"]
    assert result(text) == {"said": "use {later}"}


def test_a_name_of_another_arm_stays_text():
    text = 'let n = 1\nif n == 2:\n  let a = 1\nelse:\n  let b = """use {a}"""\noutput said = b\n'
    assert [one.code for one in check(text)] == ["unbound-text"]
    assert result(text) == {"said": "use {a}"}


def test_a_name_of_an_arm_that_did_not_run_is_null():
    text = 'let n = 1\nif n == 2:\n  let a = 1\noutput said = """use {a}."""\n'
    assert check(text) == []
    assert result(text) == {"said": "use null."}


def test_a_name_that_is_bound_is_inserted():
    text = 'let a = {b: [1, 2]}\noutput said = """use {a.b[1]} and {x}"""\n'
    assert [one.code for one in check(text)] == ["unbound-text"]
    assert result(text) == {"said": "use 2 and {x}"}
