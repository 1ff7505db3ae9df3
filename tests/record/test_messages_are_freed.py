"""Messages that were read are freed at once, without the garbage collector."""

from __future__ import annotations

import gc
from pathlib import Path

import holdfast
from holdfast.core.blobs import BLOB_BYTES_MIN

SAID = 200


def test_a_message_that_was_read_leaves_no_reference_cycle(tmp_path: Path) -> None:
    # VIC-18: a long history is read again and again to build prompts from it.
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation("c1")
        chat.messages.add_many([{"role": "user", "content": f"{n}"} for n in range(SAID)])
        chat.messages.add("tool", "x" * BLOB_BYTES_MIN)
        gc.collect()
        gc.disable()
        try:
            assert sum(len(message.text) for message in chat.messages) > BLOB_BYTES_MIN
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            # Only ours: what earlier tests left may become garbage at any moment.
            left = [found for found in gc.garbage if isinstance(found, holdfast.Message)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
