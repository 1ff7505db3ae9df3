"""Verbs for the keys of an encrypted store: key new, status, rotate, rewrap."""

from __future__ import annotations

from holdfast.cli.options import DEFAULTS, Options, open_reading, open_writing
from holdfast.cli.printing import print_json, print_line, print_note
from holdfast.clock import SystemClock
from holdfast.core.encryption import KeyStatus
from holdfast.core.store_key import KEY_BYTES
from holdfast.render.keys import key_document, new_key_document
from holdfast.render.text import clean


def new_key(*, options: Options = DEFAULTS) -> None:
    """Print a new store key. Keep it apart from the store, and a copy of it elsewhere."""
    key = SystemClock().random_bytes(KEY_BYTES).hex()
    if options.json:
        print_json(new_key_document(key))
        return
    print_line(key)
    print_note("whoever loses it loses the store: keep a copy where the store is not")


def status(*, options: Options = DEFAULTS) -> None:
    """Show whether the store is encrypted, and the ids of its keys."""
    with open_reading(options) as store:
        _print(store.keys.status(), options)


def rotate(*, options: Options = DEFAULTS) -> None:
    """Encrypt what is written from now on with a new data key; nothing is rewritten."""
    with open_writing(options) as store:
        _print(store.keys.rotate(), options)


def rewrap(*, to: str, options: Options = DEFAULTS) -> None:
    """Change the store key that opens the store; no data is rewritten.

    Parameters
    ----------
    to
        The new key: env:NAME, file:PATH, command:WORDS or keyring:SERVICE/NAME.
    """
    with open_writing(options) as store:
        _print(store.keys.rewrap(to), options)


def _print(found: KeyStatus, options: Options) -> None:
    if options.json:
        print_json(key_document(found))
        return
    if not found.is_encrypted:
        print_line("not encrypted")
        return
    print_line(f"store key\t{' and '.join(found.wrapped_by)}")
    print_line(f"data key\t{found.data_key}\tof {found.data_keys}")
    if not found.is_done:
        print_note("a rewrap is not finished: give the same new key again with key rewrap")
    for left in found.left:
        print_line(f"still there\t{clean(left.where)}\t{clean(left.remedy)}")
