"""The journal alone: the table of rule 2, blocks and variables of rule 4, and a model of passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core import codec
from holdfast.errors import UsageError
from holdfast.runs import events
from holdfast.runs.events import SAFE
from holdfast.runs.journal import Block, Journal, block_of, escape, iteration

ACTS = ["idempotent", "effect", "txn"]


def done(
    journal: Journal, block: Block, name: str, effect: str, digest: str = "d", **more: Any
) -> str:
    """Asks for a step, which must be new, and records it as done."""
    answer = block.ask("step", name, effect, digest)
    assert answer.verdict == "execute"
    journal.apply(
        events.StepDone(
            answer.path,
            Raw(b"1"),
            ordinal=answer.ordinal,
            kind="step",
            name=name,
            effect=effect,
            digest=digest,
            **more,
        )
    )
    return answer.path


def recorded(*steps: tuple[str, str]) -> Journal:
    """Returns the journal of a body that did these steps: name, effect."""
    journal = Journal()
    block = Block(journal)
    for name, effect in steps:
        done(journal, block, name, effect)
    return journal


@pytest.mark.parametrize("effect", events.EFFECTS)
def test_nothing_at_the_path_and_the_ordinal_free_executes(effect: str):
    assert Block(Journal()).ask("step", "a", effect, "d").verdict == "execute"


@pytest.mark.parametrize("effect", events.EFFECTS)
def test_a_record_is_replayed(effect: str):
    journal = recorded(("a", effect))
    answer = Block(journal).ask("step", "a", effect, "d")
    assert answer.verdict == "replay"
    assert answer.entry is not None
    assert bytes(answer.entry.value) == b"1"


@pytest.mark.parametrize("effect", ["pure", "read"])
def test_a_harmless_step_runs_in_the_middle_of_a_replay(effect: str):
    block = Block(recorded(("a", "effect")))
    assert block.ask("step", "new", effect, "d").verdict == "execute"
    assert block.ask("step", "a", "effect", "d").verdict == "replay"


@pytest.mark.parametrize("effect", ACTS)
def test_an_act_diverges_in_the_middle_of_a_replay(effect: str):
    answer = Block(recorded(("a", "pure"))).ask("step", "new", effect, "d")
    assert (answer.verdict, answer.problem) == ("diverged", "new")
    assert "step a" in answer.expected
    assert "step new" in answer.found


def test_a_deleted_pure_step_does_not_stop_what_comes_after():
    block = Block(recorded(("a", "effect"), ("gone", "pure"), ("b", "effect")))
    assert block.ask("step", "a", "effect", "d").verdict == "replay"
    assert block.ask("step", "b", "effect", "d").verdict == "replay"
    # Its ordinal is that of b, which was read: nothing that acts is left to be confused with.
    assert block.ask("step", "new", "effect", "d").verdict == "execute"


def test_a_deleted_act_stops_the_next_new_one():
    block = Block(recorded(("a", "effect"), ("gone", "effect"), ("b", "effect")))
    assert block.ask("step", "a", "effect", "d").verdict == "replay"
    assert block.ask("step", "b", "effect", "d").verdict == "replay"
    answer = block.ask("step", "new", "effect", "d")
    assert answer.verdict == "diverged"
    assert "gone" in answer.expected


@pytest.mark.parametrize("effect", ["pure", "read"])
def test_changed_inputs_run_a_harmless_step_again(effect: str):
    journal = recorded(("a", effect))
    block = Block(journal)
    assert block.ask("step", "a", effect, "other").verdict == "execute"
    revision = journal.entries["a"].revision
    journal.apply(
        events.StepDone(
            "a", Raw(b"2"), ordinal=1, kind="step", name="a", effect=effect, digest="other"
        )
    )
    assert bytes(journal.entries["a"].value) == b"2"
    assert journal.entries["a"].revision == revision  # a fork from it still begins before both


@pytest.mark.parametrize("effect", ACTS)
def test_changed_inputs_of_an_act_diverge_until_adopted(effect: str):
    journal = recorded(("a", effect))
    answer = Block(journal).ask("step", "a", effect, "other")
    assert (answer.verdict, answer.problem) == ("diverged", "inputs")
    journal.apply(events.Adopted("a", "inputs", "ada"))
    assert Block(journal).ask("step", "a", effect, "other").verdict == "replay"


def test_another_kind_at_the_path_diverges():
    journal = Journal()
    block = Block(journal)
    answer = block.ask("step", "a", "pure", "d", key="k")
    journal.apply(
        events.StepDone(
            answer.path, Raw(b"1"), ordinal=1, kind="step", name="a", effect="pure", digest="d"
        )
    )
    journal.entries[answer.path].kind = "write"
    found = Block(journal).ask("step", "a", "pure", "d", key="k")
    assert (found.verdict, found.problem) == ("diverged", "kind")


def intended(journal: Journal, effect: str) -> None:
    journal.apply(
        events.Intended("a", 1, "step", "a", effect, key="r/a", digest="d", inputs=Raw(b"{}"))
    )


def test_an_intent_without_an_outcome_is_open_and_uncertain_if_it_is_an_effect():
    for effect in ("idempotent", "effect"):
        journal = Journal()
        intended(journal, effect)
        assert Block(journal).ask("step", "a", effect, "d").verdict == "open"
        assert bool(journal.uncertain()) == (effect == "effect")


def test_verdicts_on_an_open_intent():
    journal = Journal()
    intended(journal, "effect")
    journal.apply(events.Suspended("nobody knows", attention=True))
    journal.apply(events.Settled("a", "unknown", "verifier", reason="blind"))
    assert journal.suspended is not None
    assert journal.suspended.attention
    journal.apply(events.Settled("a", "not done", "ada"))
    assert not journal.uncertain()
    assert not journal.suspended.attention
    assert Block(journal).ask("step", "a", "effect", "d").verdict == "open"
    journal.apply(events.Settled("a", "done", "ada", Raw(b"7")))
    answer = Block(journal).ask("step", "a", "effect", "d")
    assert answer.verdict == "replay"
    assert bytes(journal.entries["a"].value) == b"7"


def test_a_failed_attempt_is_open_until_the_last():
    journal = Journal()
    fault = events.Fault("OSError", "no")
    first = events.Failed("a", fault, 1, 99, 1, "step", "a", "pure", "d")
    journal.apply(first)
    assert Block(journal).ask("step", "a", "pure", "d").verdict == "open"
    assert journal.entries["a"].retry_at == 99
    journal.apply(events.Failed("a", fault, 2, None, 1, "step", "a", "pure", "d"))
    assert Block(journal).ask("step", "a", "pure", "d").verdict == "replay"
    assert journal.entries["a"].attempt == 2


def test_unread_records_are_harmless_or_acts():
    journal = recorded(("a", "pure"), ("b", "effect"), ("c", "read"))
    block = Block(journal)
    block.ask("step", "a", "pure", "d")
    harmless, acts = block.leftovers()
    assert [entry.path for entry in harmless] == ["c"]
    assert [entry.path for entry in acts] == ["b"]
    journal.apply(events.Adopted("b", "unread", "ada"))
    assert block.leftovers()[1] == []


def test_an_unread_block_counts_by_what_is_in_it():
    journal = Journal()
    journal.apply(events.Intended("repeat", 1, "repeat", "repeat", "pure", total=1))
    assert Block(journal).leftovers()[1] == []
    done(journal, Block(journal, "repeat[0]"), "b", "effect")
    assert [entry.path for entry in Block(journal).leftovers()[1]] == ["repeat"]


def test_a_block_that_opens_in_the_middle_of_a_replay_lets_nothing_act():
    journal = recorded(("a", "effect"))
    outer = Block(journal)
    answer = outer.ask("repeat", "", "pure")
    assert answer.verdict == "execute"
    assert answer.displaced
    opened = events.Intended(
        answer.path, answer.ordinal, "repeat", "", "pure", displaced=answer.displaced
    )
    inner = Block(journal, "repeat[0]", displaced=answer.displaced)
    assert inner.ask("step", "p", "pure", "d").verdict == "execute"
    assert inner.ask("step", "e", "effect", "d").verdict == "diverged"
    # Also at the next pass, when the block itself is in the journal.
    journal.apply(opened)
    again = Block(journal).ask("repeat", "", "pure")
    assert again.displaced


def test_paths_name_block_name_and_occurrence():
    journal = Journal()
    block = Block(journal, "fold.scan[17]")
    assert block.ask("step", "parse", "pure").path == "fold.scan[17]/parse"
    assert block.ask("step", "parse", "pure").path == "fold.scan[17]/parse#2"
    assert block.ask("let", "parse", "pure").path == "fold.scan[17]/let.parse"
    assert block.ask("step", "parse", "pure", key="p7").path == "fold.scan[17]/parse=p7"
    assert block_of("fold.scan[17]/parse") == "fold.scan[17]"
    assert block_of("fold.scan[17]") == ""
    with pytest.raises(UsageError, match="two operations"):
        block.ask("step", "parse", "pure", key="p7")


@given(st.text(), st.text())
def test_escaped_names_never_meet(a: str, b: str):
    assert (escape(a) == escape(b)) == (a == b)
    assert not set(escape(a)) & set("/#[]=")
    assert block_of(f"x/{escape(a)}") == "x"
    assert iteration("l", a) == f"l[{escape(a)}]"


def test_variables_belong_to_the_block_that_declares_them():
    journal = Journal()

    def record(path: str, kind: str, value: bytes) -> None:
        event = events.StepDone(path, Raw(value), ordinal=1, kind=kind, name="x", effect="pure")
        journal.apply(event)

    record("let.x", "let", b"1")
    record("repeat[0]/set.x", "set", b"2")
    record("repeat[1]/let.x", "let", b"3")
    record("repeat[1]/set.x", "set", b"4")
    found = {place: bytes(value) for place, value in journal.variables.items()}
    assert found == {("", "x"): b"2", ("repeat[1]", "x"): b"4"}


def test_events_survive_their_bytes():
    fault = events.Fault("OSError", "no", Raw(b"[1]"), "not done")
    for event in (
        events.Created("m:f", Raw(b'{"n":1}'), parent="p", path="child.x"),
        events.Claimed("w", 2),
        events.Intended("a", 1, "step", "a", "effect", inputs=Raw(b"{}"), due=5),
        events.StepDone("a", Raw(b"null"), taken=(1, 2)),
        events.Failed("a", fault, 2, 7),
        events.Settled("a", "done", "ada", Raw(b"1")),
        events.Refused("a", (3,), "no"),
        events.Noted("a", "t"),
        events.Diverged("a", "new", "x", "y", "f.py:1"),
        events.Adopted("a", "new", "ada"),
        events.Suspended("sleep", 9),
        events.Cancelling("ada"),
        events.Forked("r", "ask", "drop", "share"),
        events.Ended("failed", error=fault),
    ):
        payload = codec.encode_plain(event)
        again = events.read(events.TYPES[type(event)], payload)
        assert again is not None
        assert codec.encode_plain(again) == payload
    assert events.read("changed", b"[]") is None


def test_status_follows_the_events():
    journal = Journal()
    seen = []
    for event in (
        events.Created("m:f", Raw(b"{}")),
        events.Claimed("w", 1),
        events.Suspended("sleep", 9),
        events.Claimed("w", 2),
        events.Diverged("a", "new", "x", "y"),
        events.Adopted("a", "new", "ada"),
        events.Cancelling("ada"),
        events.Ended("cancelled"),
    ):
        journal.apply(event)
        seen.append(journal.status)
    assert seen == [
        "pending",
        "running",
        "waiting",
        "running",
        "needs_attention",
        "running",
        "cancelling",
        "cancelled",
    ]


def test_a_fork_forgets_how_its_origin_stood():
    journal = Journal()
    journal.apply(events.Created("m:f", Raw(b"{}")))
    journal.apply(events.Claimed("w", 1))
    journal.apply(events.Intended("child.c", 1, "child", "c", "idempotent", child="k"))
    journal.apply(events.StepDone("inbox", Raw(b"[]"), taken=(4,), ordinal=2, kind="inbox"))
    journal.apply(events.Ended("completed"))
    journal.apply(None)  # the log's own `forked`
    journal.apply(events.Forked("r", "ask", "drop", "drop"))
    assert journal.status == "pending"
    assert journal.taken == set()
    assert "child.c" not in journal.entries
    assert journal.revision == 7


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(events.EFFECTS), st.sampled_from("xy")),
    max_size=8,
)


@given(STEPS, STEPS, st.integers(0, 8))
def test_no_act_in_the_middle_of_a_replay_whatever_the_code_became(
    before: list[tuple[str, str, str]], after: list[tuple[str, str, str]], cut: int
):
    """A model of two passes: the second runs other code over what the first left."""
    journal = Journal()
    first = Block(journal)
    for name, effect, digest in before[:cut]:
        done(journal, first, name, effect, digest)
    old = {path: (e.ordinal, e.effect, e.digest) for path, e in journal.entries.items()}
    second, read = Block(journal), set[str]()
    for name, effect, digest in after:
        answer = second.ask("step", name, effect, digest)
        waiting = [path for path in old if path not in read and path != answer.path]
        read.add(answer.path)
        if answer.path in old:
            _, was, inputs = old[answer.path]
            if inputs == digest:
                assert answer.verdict == "replay"
            else:
                harmless = was in SAFE and effect in SAFE
                assert answer.verdict == ("execute" if harmless else "diverged")
        elif effect in SAFE:
            assert answer.verdict == "execute"
        else:
            own = [path for path in waiting if old[path][0] == answer.ordinal]
            held = any(ordinal == answer.ordinal for ordinal, _, _ in old.values())
            acts = [path for path in waiting if old[path][1] not in SAFE]
            expected = "diverged" if own or (held and acts) else "execute"
            assert answer.verdict == expected
        if answer.verdict == "diverged":
            return
    if before[:cut] == after[: len(before[:cut])]:
        assert second.leftovers() == ([], [])
