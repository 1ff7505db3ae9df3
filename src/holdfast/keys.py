"""The keys that a store is encrypted with: `hf.keys`."""

from __future__ import annotations

from holdfast.core.encryption import Encryption, KeyStatus
from holdfast.core.kernel import Kernel
from holdfast.core.key_ring import KeyringKeys
from holdfast.core.key_tables import TableKeys
from holdfast.core.keystore import CommandKeys, FolderKeys, KeyStore, SubjectKey
from holdfast.core.store_key import StoreKey, to_store_key
from holdfast.errors import StoreKeyError

__all__ = [
    "CommandKeys",
    "FolderKeys",
    "KeyStatus",
    "KeyStore",
    "KeyringKeys",
    "KeysRoom",
    "StoreKey",
    "SubjectKey",
    "TableKeys",
]


class KeysRoom:
    """The keys of a store that is encrypted at rest."""

    def __init__(self, kernel: Kernel) -> None:
        self._encryption = kernel.encryption

    def __repr__(self) -> str:
        return "<KeysRoom>"

    def status(self) -> KeyStatus:
        """Returns whether the store is encrypted, and with which keys."""
        if self._encryption is None:
            return KeyStatus(is_encrypted=False)
        return self._encryption.status()

    def rotate(self) -> KeyStatus:
        """Makes a new data key, with which everything written from now on is encrypted.

        Stored data is neither read nor rewritten: it stays encrypted with its old data key. Other
        processes that have the store open keep using the key that they know until they meet the
        new one.
        """
        return self._encrypted().rotate()

    def rewrap(self, new: str | bytes | StoreKey) -> KeyStatus:
        """Replaces the store key: from now on only the new one opens the store.

        Only the wrapped data keys are written; no data is. If the process is killed in between, the
        old or the new key opens the store, and the same call continues. Backups made earlier still
        open with the old key.
        """
        return self._encrypted().rewrap(to_store_key(new))

    def _encrypted(self) -> Encryption:
        if self._encryption is None:
            raise StoreKeyError(
                "this store is not encrypted: it has no keys",
                hint="copy it into a new store that is opened with store_key=…",
            )
        return self._encryption
