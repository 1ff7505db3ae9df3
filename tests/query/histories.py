"""Random histories of a store, and random questions to it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast import Store
from holdfast.errors import HoldfastError

SCOPES = ("a", "b", "f", "g")
WORDS = ("state", "management", "cache", "Ärger", "日本語", "write_it")
TEXTS = ("state management", "management of state", "Cache STATE", "Ärger im cache", "日本語 cache",
         "write_it", 'say "management"')  # fmt: skip
KEYS = ("k1", "k2")

_scope = st.sampled_from(SCOPES)
_text = st.sampled_from(TEXTS)
_key = st.sampled_from(KEYS)
_small = st.integers(0, 6)

actions = st.one_of(
    st.tuples(st.just("say"), _scope, _text),
    st.tuples(st.just("set"), _scope, _key, st.one_of(_small, _text)),
    st.tuples(st.just("decide"), _scope, _key, _text),
    st.tuples(st.just("outcome"), _scope, _key, _text),
    st.tuples(st.just("add"), _scope, _key, _text),
    st.tuples(st.just("finish"), _scope, _key),
    st.tuples(st.just("fact"), _scope, _key, _text),
    st.tuples(st.just("withdraw"), _scope, _key),
    st.tuples(st.just("edit"), _scope, _small, _text),
    st.tuples(st.just("delete"), _scope, _small),
    st.tuples(st.just("pop"), _scope),
    st.tuples(st.just("rewind"), _scope, _small),
    st.tuples(st.just("clear"), _scope),
    st.tuples(st.just("merge"), _scope, _scope),
    st.tuples(st.just("undo"), _scope),
    st.tuples(st.just("restore"), _scope, st.integers(1, 12)),
    st.tuples(st.just("remove"), _scope),
    st.tuples(st.just("close"), _scope, st.booleans()),
    st.tuples(st.just("fork"), st.sampled_from(("a", "b", "f")), st.sampled_from(("f", "g"))),
    st.tuples(st.just("record"), _scope, _text),
    st.tuples(st.just("ask")),
)

questions = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(
            ("message", "decision", "task", "fact", "state", "event", "log", ["task", "log"])
        ),
        "scope": st.sampled_from(
            ("conversation/a", "conversation/f", "conversation/*", "*/g", "con*a", "nowhere/*")
        ),
        "text": st.sampled_from(
            ("state", "cache state", '"state management"', "manag*", "日本", "ärger", "none")
        ),
        "tag": st.sampled_from(("doc", "other")),
        "status": st.sampled_from(("open", "closed", "completed", ["stated", "open"])),
        "links": st.sampled_from(("file:a.py", "task:k1", ["file:a.py", "task:k2"])),
        "type": st.sampled_from(("changed", "noted", ["message.added", "removed"])),
        "actor": st.sampled_from(("ada", "bob")),
        "where": st.sampled_from(
            (("k1", "=", 3), ("k1", ">=", 2), {"k2": "state management"}, ("k2", "exists"))
        ),
        "limit": st.integers(1, 5),
    },
)


def perform(store: Store, action: tuple[Any, ...]) -> None:
    """Does one thing; what does not fit is refused, on every backend alike."""
    try:
        _perform(store, *action)
    except (HoldfastError, IndexError):
        return


def _perform(store: Store, name: str, scope: str = "", *rest: Any) -> None:
    if name == "ask":
        store.query(limit=1)
        return
    chat = store.conversation(scope)
    match name, rest:
        case "say", (text,):
            metadata = {"tags": ["doc"]} if len(text) % 2 else None
            chat.messages.add("user", text, metadata=metadata)
        case "record", (text,):
            said = {"said": text, "tags": ["doc"]}
            chat.record("noted", said, refs=["file:a.py"], unchecked=True)
        case "set", (key, value):
            chat.set(key, value)
        case "decide", (key, text):
            chat.decide(text, key=key, links=["file:a.py"] if key == "k1" else ())
        case "outcome", (key, text):
            store.decisions.close(f"{key}@{chat.name}", text)
        case "add", (key, text):
            others = [one.id for one in chat.tasks.list() if one.id != key][:1]
            chat.tasks.add(text, id=key, tags=["doc"], depends_on=others)
        case "finish", (key,):
            chat.tasks.close(key, "done")
        case "fact", (key, text):
            chat.facts.state(key, {"found": text})
        case "withdraw", (key,):
            chat.facts.withdraw(key)
        case "edit", (at, text):
            chat.messages.edit(chat.messages[at], content=text)
        case "delete", (at,):
            chat.messages.delete(chat.messages[at])
        case "rewind", (at,):
            chat.messages.rewind(chat.messages[at])
        case "merge", (other,):
            chat.messages.merge(store.conversation(other))
        case "restore", (revision,):
            chat.restore(revision)
        case "close", (keep,):
            chat.close(keep=keep)
        case "fork", (new,):
            chat.fork(new)
        case _:
            (getattr(chat.messages, name, None) or getattr(chat, name))()
