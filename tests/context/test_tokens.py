"""Tokens: by a tokenizer where there is one, else as an estimate that is called so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiktoken

import holdfast
from holdfast import UsageError
from holdfast.context import tokens
from holdfast.context.tokens import estimate, find_counter

PLUGIN = '''
def tiny():
    """Every byte is a token, and `ab` is one."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return {"name": "tiny", "pat_str": r"\\S+|\\s+", "mergeable_ranks": ranks,
            "special_tokens": {"<|end|>": 257}}

ENCODING_CONSTRUCTORS = {"tiny": tiny}
'''


@pytest.fixture
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds an encoding to tiktoken, as a package of somebody's would: nothing is fetched."""
    folder = tmp_path / "plugins" / "tiktoken_ext"
    folder.mkdir(parents=True)
    (folder / "tiny_encoding.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in [name for name in sys.modules if name.startswith("tiktoken_ext")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", None)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    tiktoken.registry._available_plugin_modules.cache_clear()


@pytest.mark.usefixtures("_tiny")
def test_a_named_encoding_counts_exactly(monkeypatch: pytest.MonkeyPatch):
    counter = find_counter("tiny")
    assert (counter.name, counter.is_exact) == ("tiny", True)
    assert [counter.count(text) for text in ("", "ab", "abc d", "<|end|>")] == [0, 1, 4, 7]
    monkeypatch.setenv(tokens.VARIABLE, "tiny")
    tokens._installed.cache_clear()
    try:
        with holdfast.open("memory:") as hf:
            chat = hf.conversation("c")
            for number in range(100):
                chat.say(f"ab {number}")
            context = hf.context(chat, 300, strategies="full")
        assert (context.is_exact, context.counted_by) == (True, "tiny")
        assert context.tokens == counter.count(context.text) <= 300
        assert 0 < len(context.messages) < 100
    finally:
        tokens._installed.cache_clear()


def test_a_tokenizer_of_the_callers():
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", special_tokens={},
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
    )  # fmt: skip

    class Ids:
        """As the library `tokenizers` answers."""

        def __init__(self, text: str) -> None:
            self.ids = text.split()

    class Tokenizer:
        def encode(self, text: str) -> Ids:
            return Ids(text)

    assert find_counter(encoding).count("four") == 4
    assert find_counter(Tokenizer()).count("two words") == 2
    assert find_counter(len).count("four") == 4
    with pytest.raises(UsageError, match="answers with a number"):
        find_counter(lambda text: text).count("four")


def test_an_estimate_is_called_so():
    assert find_counter("estimate").is_exact is False
    assert [estimate(text) for text in ("", "a", "four", "fives", "é" * 4, "\ud800")] == [
        0, 1, 1, 2, 2, 1,
    ]  # fmt: skip


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="no encoding 'nonesuch'"):
        find_counter("nonesuch")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UsageError, match="needs the library tiktoken") as raised:
        find_counter("tiny")
    assert "holdfast[tokens]" in (raised.value.hint or "")


def test_a_vocabulary_that_cannot_be_read_is_an_estimate_and_one_that_was_named_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "_has_vocabulary", lambda: True)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokens._installed.cache_clear()
    try:
        assert find_counter() is tokens.ESTIMATE
        tokens._installed.cache_clear()
        monkeypatch.setenv(tokens.VARIABLE, "nonesuch")
        with pytest.raises(UsageError, match="needs the library"):
            find_counter()
    finally:
        tokens._installed.cache_clear()


def test_the_vocabulary_is_looked_for_where_tiktoken_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert tokens._has_vocabulary() is False
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790").write_bytes(b"")
    assert tokens._has_vocabulary() is True
