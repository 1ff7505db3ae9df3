"""Opens a key store by the text that names it: a folder, a command, a keyring, a database."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import Any, cast

from holdfast.core.key_ring import KeyringKeys
from holdfast.core.key_tables import TableKeys
from holdfast.core.keystore import CommandKeys, FolderKeys, KeyStore, default_folder
from holdfast.errors import UsageError, show_value
from holdfast.names import SCHEME, without_secrets

PLACES = "a folder, command:WORDS, keyring:SERVICE, sqlite:FILE, postgresql://… or a KeyStore"


def to_keys(given: object) -> KeyStore:
    """Returns the key store for the `keys` argument of `open`.

    None means the place that HOLDFAST_KEYS names, else the default folder. Raises UsageError for a
    place where keys must not be.
    """
    if isinstance(given, KeyStore):
        return given
    if given is None:
        given = os.environ.get("HOLDFAST_KEYS") or default_folder()
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"keys is {PLACES}, found {show_value(given)}")
    text = os.fspath(cast("str | os.PathLike[str]", given))
    found = SCHEME.match(text)
    if found is None or not isinstance(given, str):
        return FolderKeys(text)
    scheme = found.group(1)
    maker = _MAKERS.get(scheme)
    if maker is None:
        refused = _REFUSED.get(scheme, "is none of the places that keys can be in")
        raise UsageError(
            f"keys is {PLACES}, found {show_value(without_secrets(text))}, which {refused}",
            hint=f'"./{text}" is a folder of that name' if scheme not in _REFUSED else
            'keep them in a folder: keys="/var/lib/my-agents/keys"',
        )  # fmt: skip
    return maker(text)


def _of_folder(text: str) -> KeyStore:
    return FolderKeys(text.partition(":")[2].removeprefix("//"))


def _of_command(text: str) -> KeyStore:
    return CommandKeys(shlex.split(text.partition(":")[2]))


def _of_keyring(text: str) -> KeyStore:
    return KeyringKeys(text.partition(":")[2])


_MAKERS: dict[str, Callable[[str], Any]] = {
    "file": _of_folder,
    "files": _of_folder,
    "command": _of_command,
    "keyring": _of_keyring,
    "sqlite": TableKeys,
    "postgresql": TableKeys,
    "postgres": TableKeys,
}
_REFUSED = {
    "memory": "would forget every key when the process ends",
    "redis": "is Redis: its copies and files keep what is deleted, so no key could be destroyed",
    "rediss": "is Redis: its copies and files keep what is deleted, so no key could be destroyed",
    "unix": "is Redis: its copies and files keep what is deleted, so no key could be destroyed",
}
