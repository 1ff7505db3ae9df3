"""Views: a variable as a file, and read back byte for byte; what was modified is found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.prose.views import (
    Damage,
    branch_path,
    read_const,
    read_let,
    render_branch,
    render_checkpoint,
    render_const,
    render_let,
    state_path,
)

WHEN = "2026-11-17T15:00:00.123456Z"
TEXTS = ["", "a", "a\n", "\n", "\n\nx", "a\r\nb", "# CONSTANT: x - DO NOT MODIFY\n", "5", "null"]
TEXTS += ["<!-- updated 2026 -->\nx", "\ufeffa", "\ud800", "a\u2028b", "\x00", "  ", "日本語"]
VALUES: list[Any] = [5, 2.5, True, False, None, [], ["a", 1], {}, {"a": {"b": [1]}}, "5"]


def test_op_10_a_const_says_that_it_is_one_and_has_the_output_byte_for_byte():
    data = render_const("plan", "Dear Ada,\nit works.\n")
    first, second, body = data.split(b"\n", 2)
    assert first == b"# CONSTANT: plan - DO NOT MODIFY"
    assert second.startswith(b"<!-- sha256 ")
    assert body == b"Dear Ada,\nit works.\n"


def test_op_12_a_let_has_when_it_was_updated_and_the_output_from_line_2_on():
    data = render_let("Dear Ada,\n", WHEN)
    assert data == f"<!-- updated {WHEN} -->\nDear Ada,\n".encode()


@pytest.mark.parametrize("value", [*TEXTS, *VALUES], ids=repr)
def test_op_13_what_is_read_equals_what_was_written(value: Any):
    for back in (read_const("x", render_const("x", value)), read_let(render_let(value, WHEN))):
        assert back == value
        assert type(back) is type(value)
    if isinstance(value, str):
        assert render_branch(value) == value.encode("utf-8", "surrogatepass")


@given(st.text(), st.binary(max_size=4), st.integers(min_value=0))
def test_op_11_every_change_of_a_const_is_found(value: str, put: bytes, place: int):
    data = render_const("x", value)
    at = place % (len(data) + 1)
    changed = data[:at] + put + data[at + len(put) :]
    if changed == data:
        assert read_const("x", changed) == value
    else:
        assert isinstance(read_const("x", changed), Damage)


@pytest.mark.parametrize("value", ["a", "", 5, [1]], ids=repr)
def test_op_11_a_const_that_lost_or_gained_a_byte_is_found(value: Any):
    data = render_const("x", value)
    for at in range(len(data)):
        assert isinstance(read_const("x", data[:at] + data[at + 1 :]), Damage)
        assert isinstance(read_const("x", data[:at]), Damage)
    assert isinstance(read_const("x", data + b"\n"), Damage)


def test_damage_is_named():
    data = render_const("x", "value")
    assert read_const("y", data).code == "header"
    assert read_const("x", data.replace(b"sha256", b"md5")).code == "digest"
    assert read_const("x", data.replace(b"value", b"other")).code == "changed"
    assert read_const("x", b"").code == "header"
    assert read_let(b"no first line\nvalue").code == "header"
    assert read_let(b"").code == "header"
    assert read_let(f"<!-- updated {WHEN} --> <!-- json -->\n[1".encode()).code == "json"
    assert read_let(f"<!-- updated {WHEN} --> <!-- json -->\n\xff".encode("latin-1")).code == "json"
    assert read_let(f"<!-- updated {WHEN} -->\n\xff".encode("latin-1")).code == "encoding"


def test_the_text_of_a_number_and_a_number_of_one_name_have_other_digests():
    assert render_const("x", "5").split(b"\n")[1] != render_const("x", 5).split(b"\n")[1]


def test_a_let_that_was_edited_has_its_new_value():
    data = render_let("old", WHEN).replace(b"old", b"new\n")
    assert read_let(data) == "new\n"
    assert read_let(render_let([1], WHEN).replace(b"[1]", b"[1, 2]\n")) == [1, 2]


def test_names_of_the_program_stand_in_state_and_others_by_journal_path():
    assert state_path("draft") == "state/draft.md"
    assert state_path("draft", "for.1[0]/x#2") == "state/for.1[0]/x#2/draft.md"
    assert branch_path("parallel.1", "left") == "parallel/parallel.1/left.md"
    assert branch_path("x/parallel.1", "2") == "parallel/x/parallel.1/2.md"


@given(st.text(), st.text())
def test_no_path_leaves_the_directory(block: str, branch: str):
    for path in (state_path("x", block), branch_path(block, branch)):
        for part in path.split("/"):
            assert part not in ("", ".", "..")
            assert part.isascii()
            assert part.isprintable()


def test_op_24_a_checkpoint_holds_position_bindings_and_context():
    data = render_checkpoint({"path": "session.2", "line": 4}, {"x": "a"}, [["x", 1]])
    assert data.startswith(b'{\n  "position": {')
    assert b'"bindings": {\n    "x": "a"\n  }' in data
    assert data.endswith(b"}\n")
